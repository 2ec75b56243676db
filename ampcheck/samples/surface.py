"""Programs that call what PyTorch's databases of ops, modules and optimizers do not have.

`surface.txt` says in its first lines how it is written. A program is an expression; `inputs` and `Helpers` are all the
names it knows.
"""

import inspect
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ampcheck.samples.torch_private import pytree

FILE = Path(__file__).with_suffix(".txt")
MODULES = {
    "A": "torch.autograd.forward_ad",
    "C": "torch.distributed",
    "D": "torch.distributions",
    "F": "torch.nn.functional",
    "G": "torch.autograd.graph",
    "L": "torch.optim.lr_scheduler",
    "NN": "torch.nn.utils",
    "P": "torch.nn.utils.parametrize",
    "Q": "torch.ao.quantization",
    "R": "torch.nn.utils.rnn",
    "S": "torch.distributed.pipelining",
    "T": "torch.distributed.tensor",
    "X": "torch.nn.attention.flex_attention",
    "prune": "torch.nn.utils.prune",
}
"""The short names of modules in a program."""
_CALLED = re.compile(rf"\b(?:torch|nn|{'|'.join(MODULES)})(?:\.\w+)+(?=\()")
_LINE = re.compile(r"((?:[^{\s:!?]|\{[^}]*\})+)([:!?]) (.+)")


@dataclass(frozen=True, slots=True)
class SurfaceLine:
    """A name of the surface, or a pattern of names, with its program or the reason why it has none.

    `kind`: ":" for a program, "!" for what has nothing to do with tensors, "?" for what is not exercised.
    """

    name: str
    kind: str
    text: str


@cache
def lines() -> tuple[SurfaceLine, ...]:
    """Return the lines of the file, one for each name or pattern."""
    found = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"surface.txt: {line}")
            found += [SurfaceLine(name, match[2], match[3]) for name in _names(match[1])]
    return tuple(found)


def _names(pattern: str) -> Iterator[str]:
    before, brace, rest = pattern.partition("{")
    inner, _, after = rest.partition("}")
    yield from (f"{before}{each}{after}" for each in inner.split()) if brace else (pattern,)


def programs() -> dict[str, str]:
    """Return the program of each name that has one."""
    return {line.name: line.text.replace("NAME", f"torch.{line.name}") for line in lines() if line.kind == ":"}


def repeated() -> set[str]:
    """Return the names whose program an earlier name has."""
    first: dict[str, str] = {}
    return {name for name, text in programs().items() if first.setdefault(text, name) != name}


def neighbours() -> set[str]:
    """Return every second one of the names that a line gives one program, but for what it calls."""
    of_a_line: dict[str, list[str]] = {}
    for line in lines():
        of_a_line.setdefault(line.text, []).append(line.name)
    return {name for names in of_a_line.values() for name in names[1::2]}


def inputs(rand: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a program, given what makes one of a shape on the device."""
    a, one = rand(4, 4), rand(1)
    return {
        **{"a": a, "b": rand(4, 4), "v": rand(4), "t": rand(2, 3, 4), "s": a @ a.mT + 4 * torch.eye(4).to(a.device)},
        **{"image": rand(1, 2, 6, 6), "kernel": rand(2, 2, 3, 3), "volume": rand(1, 2, 4, 4, 4), "one": one},
        **{"eye": torch.eye(4).to(a.device), "classes": torch.arange(4).to(a.device)},
    }


def _home(program: str) -> dict[str, object]:
    """Return the modules that a program names."""
    names = {short: import_module(name) for short, name in MODULES.items() if re.search(rf"\b{short}\.", program)}
    for name in re.findall(r"\btorch((?:\.[a-z_]\w*)+)\.", program):
        _imported(name)
    return {**names, "torch": torch, "nn": nn, "partial": partial}


def varied(program: str, options: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield an option off its default, and the program in which one callable has it.

    `options`: expressions of values by name; of other options a number or a truth value differs from the default.
    """
    home = _home(program)
    for called in dict.fromkeys(_CALLED.findall(program)):
        try:
            parameters = inspect.signature(eval(called, home)).parameters.values()  # our own text
        except (AttributeError, TypeError, ValueError):  # a kernel has no signature
            continue
        for name, default in ((one.name, one.default) for one in parameters):
            for value in options.get(name, [repr(_other(default))]):
                if value != repr(default) and value != "None":
                    made = f"{called}({name}={value})"
                    yield made, program.replace(f"{called}(", f"partial({called}, {name}={value})(")


def _other(default: object) -> object:
    """Return another value of an option, None where only the table knows one."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default / 2 + 0.2
    return default + 1 if isinstance(default, int) else None


def as_function(program: str, like: torch.Tensor) -> Callable[..., object]:
    """Return a program as a function of its tensors by name; modules that it makes have the dtype and device of one."""
    home: dict[str, Any] = {**Helpers(like).names(), **_home(program)}
    exec(f"def program({'=None, '.join(inputs(torch.zeros))}=None):\n    return {program}", home)  # our own text
    made: Callable[..., object] = home["program"]
    return made


def evaluate(program: str, given: Mapping[str, torch.Tensor]) -> object:
    """Return what a program gives for tensors."""
    return padded(as_function(program, given["a"])(**given))


def padded(made: object) -> object:
    """Return what a program gives with nested tensors, which cannot be compared, as padded ones."""
    return pytree.tree_map(
        lambda x: torch.nested.to_padded_tensor(x, 0.0) if isinstance(x, torch.Tensor) and x.is_nested else x, made
    )


def _imported(path: str) -> None:
    """Import the modules that a dotted name goes through."""
    name = "torch"
    for part in path.split(".")[1:]:
        name += f".{part}"
        try:
            import_module(name)
        except ImportError:
            return


class Two(nn.Module):
    """A module of two inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).exp()


class Helpers:
    """What programs call beside torch, for tensors such as one of them."""

    def __init__(self, like: torch.Tensor) -> None:
        self.dtype, self.where = like.dtype, like.device.type

    def names(self) -> dict[str, object]:
        """Return the helpers by name."""
        return {**{name: getattr(self, name) for name in dir(self) if not name.startswith("_")}, "Two": Two}

    def made(self, module: nn.Module) -> nn.Module:
        """Return a module on the device, with the dtype of the tensors."""
        return module.to(self.where, self.dtype)

    def net(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters of a module."""
        return list(self.made(module).parameters())

    def runs(self, module: Any, *inputs: Any) -> object:
        """Return the result of a module."""
        return module(*inputs)

    def dist(self, d: Any) -> object:
        """Return a sample of a distribution and all that it can say of it."""
        x = d.rsample((2,)) if d.has_rsample else d.sample((2,))
        asked = (d.entropy, lambda: d.mean, lambda: d.variance, lambda: d.cdf(x), lambda: d.log_prob(x))
        return [x, *_answers(*asked, lambda: torch.distributions.kl_divergence(d, d))]

    def trans(self, transform: Any, x: torch.Tensor) -> object:
        """Return what a transform makes of a tensor, its inverse and its Jacobian."""
        y = transform(x)
        return [y, *_answers(lambda: transform.inv(y), lambda: transform.log_abs_det_jacobian(x, y))]

    def with_grad(self, value: torch.Tensor, grad: torch.Tensor) -> nn.Parameter:
        """Return a parameter with a gradient."""
        made = nn.Parameter(value.detach().clone())
        made.grad = grad.detach().clone()
        return made

    def cached(self, module: nn.Module, x: torch.Tensor) -> object:
        """Return two results of a module whose parametrizations are computed once."""
        with nn.utils.parametrize.cached():
            return module(x), module(x)

    def chosen(self, t: torch.Tensor) -> torch.Tensor:
        """Return attention by the formula."""
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(t, t, t)

    def trained(self, value: torch.Tensor, schedule: Callable[[Any], Any], metric: bool = False) -> nn.Parameter:
        """Return a parameter after three steps with a schedule of the learning rate."""
        made = nn.Parameter(value.detach().clone())
        optimizer = torch.optim.SGD([made], 0.1, momentum=0.9)
        scheduler = schedule(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = (made @ value).square().sum()
            loss.backward()
            optimizer.step()
            torch.clear_autocast_cache()  # a region keeps casts of weights that a step changes
            scheduler.step(*([loss] if metric else []))
        return made

    def scaled(self, scaler: Any, value: torch.Tensor) -> nn.Parameter:
        """Return a parameter after a scaled step."""
        made = nn.Parameter(value.detach().clone())
        optimizer = torch.optim.SGD([made], 0.1)
        scaler.scale((made @ value).square().sum()).backward()
        scaler.step(optimizer)
        torch.clear_autocast_cache()
        scaler.update()
        return made

    def sparsely(self, call: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return a product of a sparse matrix and a dense one."""
        sparse = (a * (a > 0.5)).to_sparse()
        return call(sparse, sparse, b) if call.__name__.endswith("addmm") else call(sparse, b)

    def observed(self, observer: Any, x: torch.Tensor) -> object:
        """Return what an observer says of a tensor that it saw."""
        return observer(x), *(_answers(observer.calculate_qparams) if hasattr(observer, "min_val") else [])

    def tuned(self, qconfig: object) -> Any:
        """Return a module to be quantized."""
        ao = import_module("torch.ao.quantization")
        module: Any = nn.Sequential(ao.QuantStub(), self.made(nn.Linear(4, 4)), nn.ReLU(), ao.DeQuantStub())
        module.qconfig = qconfig
        return module

    def calibrated(self, module: nn.Module, x: torch.Tensor) -> nn.Module:
        """Return a module that saw a tensor."""
        module(x)
        return module

    def quantized(self, x: torch.Tensor) -> torch.Tensor:
        """Return a quantized tensor."""
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)

    def filled(self, module: Any) -> Any:
        """Return a quantized module with weights that something wrote."""
        shape = module.weight().shape
        weight = torch.linspace(-1, 1, shape.numel()).reshape(shape)
        module.set_weight_bias(torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8), module.bias())
        return module

    def saved(self, program: Any) -> Any:
        """Return the module of an exported program that was saved and loaded."""
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        buffer.seek(0)
        return torch.export.load(buffer).module()

    def streamed(self, items: Sequence[torch.Tensor]) -> object:
        """Return a dataset that gives some tensors one after the other."""

        class Streamed(torch.utils.data.IterableDataset[torch.Tensor]):
            def __iter__(self) -> Iterator[torch.Tensor]:
                return iter(items)

        return Streamed()

    def alone(self, call: Callable[[], Any]) -> object:
        """Return what a call gives in a process group of one rank."""
        dist = import_module("torch.distributed")
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        try:
            return call()
        finally:
            dist.destroy_process_group()

    def gathered(self, module: nn.Module, x: torch.Tensor) -> object:
        """Return the whole result of a distributed module."""
        out = module(x)
        return out.full_tensor() if hasattr(out, "full_tensor") else out


def _answers(*asked: Callable[[], object]) -> list[object]:
    """Return the answers to questions, but those that are not implemented."""
    found = []
    for ask in asked:
        try:
            found.append(ask())
        except (NotImplementedError, ValueError) as error:  # ValueError: a sample outside of the support by rounding
            if "not implemented for '" in str(error):  # a kernel is missing, not a method
                raise
    return found
