"""Write a case as a program of plain torch: the checks' own source, printed, around the call of the case.

What a check compares with is in functions that need torch alone. The check calls them, and its program prints them
(`PrintedSource`), so that both compare the same things in the same words.
"""

import ast
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from ampcheck.checks.call import CallPlan
from ampcheck.checks.source import PrintedSource
from ampcheck.compilers import source
from ampcheck.devices.base import Device
from ampcheck.samples import tensors as fills
from ampcheck.samples.describe import TensorArg, leaves
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import DTYPES

Needed = Callable[..., Any]
"""A function or a class that a program names."""

OURS = "ampcheck"
"""The package whose source is printed, because a program must not import it."""


def pytest_line(
    node: str, device: Device, modules: Sequence[str] = (), *, installed: bool = False, further: Sequence[str] = ()
) -> str:
    """Return the command that runs one case and nothing else, quoted for a shell.

    `modules`: what `--device-module` named. `installed`: where the repository's conftest.py, which loads the plugin,
    may not be there. `further`: options without which the case would not exist.
    """
    program = ["pytest", "-p", "ampcheck.runner.plugin"] if installed else ["pytest"]
    options = [f"--device-module={module}" for module in modules]
    return shlex.join([*program, node, f"--device={device.name}", *options, *further])


def preamble(device: Device, modules: Sequence[str] = (), *, simulate_cuda: bool = True) -> list[str]:
    """Return the lines that make a device usable in plain torch; `fake` is the mode of a virtual device's tensors.

    `modules`: what `--device-module` named. `simulate_cuda`: False leaves out the patch of the check for CUDA.
    """
    lines = ["import torch", *device.setup, *_backend(device, modules)]
    if device.has_values or not device.name.startswith("virtual:"):
        return lines
    lines.append("from torch._subclasses.fake_tensor import FakeTensorMode")
    if device.type == "cuda" and simulate_cuda:  # torch.autocast("cuda") switches itself off where CUDA is absent
        lines += [
            "torch.cuda.amp.common.amp_definitely_not_available = lambda: False",
            "torch.cuda.is_bf16_supported = lambda *args: True",
        ]
    return [*lines, "fake = FakeTensorMode(allow_non_fake_inputs=True)", "fake.__enter__()"]


def _backend(device: Device, modules: Sequence[str]) -> list[str]:
    """Return the import of a third party's backend: the module that declares the device, or else that of its class."""
    declared = (name for name in modules if device in getattr(sys.modules.get(name), "DEVICES", ()))
    name = next(declared, type(device).__module__)
    if name.partition(".")[0] == OURS:
        return []
    lines = [f"import {name}"]
    if device.has_values and type(device).tensor is not Device.tensor:
        lines.append(f"# {type(device).__name__} makes its tensors by itself; x.to({device.type!r}) must work here.")
    return lines


def region(device: Device, amp: str, *, enabled: bool = True) -> str:
    """Return the expression of a region of a device, in a dtype of the specification."""
    off = ", enabled=False"
    if not enabled and device.region != "torch.autocast":  # torchax takes no `enabled`
        return f"{device.region}({device.type!r}, dtype=None)"
    return f"{device.region}({device.type!r}, dtype={DTYPES[amp]}{'' if enabled else off})"


def dtypes_list(names: Iterable[str]) -> str:
    """Return dtypes of the specification as a list in a program."""
    return f"[{', '.join(str(DTYPES[name]) for name in names)}]"


def written(device: Device, modules: Sequence[str], needed: Iterable[Needed], lines: Sequence[str]) -> str:
    """Return a program.

    Args:
        device: the device that it runs on.
        modules: what `--device-module` named.
        needed: the functions, classes and modules that its lines name; those of ampcheck are printed.
        lines: its own blocks, which follow.
    """
    sources = PrintedSource("")
    for value in needed:
        if value.__module__.partition(".")[0] == OURS:
            sources.add(value.__name__, value.__module__)
        else:
            sources.imports.add(f"from {value.__module__} import {value.__name__}")
    head = [*merged(sources.imports), *preamble(device, modules)]
    return "\n\n".join(["\n".join(head), *sources.text(), *lines])


def merged(imports: Iterable[str]) -> list[str]:
    """Return lines of imports in order, those from one module as one, without that of torch itself."""
    some: dict[str, set[str]] = {}
    for line in imports:
        start, word, names = line.partition(" import ")
        if word:
            some.setdefault(start, set()).update(names.split(", "))
    lines = [line for line in imports if line.startswith("import ") and line != "import torch"]
    lines += [f"{start} import {', '.join(sorted(names))}" for start, names in some.items()]
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def report(what: str, differences: Sequence[str]) -> None:
    """Print each difference behind FAIL; `ok` and what was compared where there is none."""
    print("\n".join(f"FAIL {text}" for text in differences) or f"ok   {what}")


def expression(arg: TensorArg, dtype: str, position: int, device: Device) -> tuple[str, list[Needed]]:
    """Return a tensor argument as `ampcheck.samples.tensors.host_tensor` makes it, and the functions that it names."""
    where = "cpu" if arg.device == "cpu" else device.type
    if not device.has_values:
        return f"torch.empty({arg.shape}, dtype={DTYPES[dtype]}, device={where!r})", []
    needed: list[Needed] = []
    wanted, own = DTYPES[dtype], DTYPES[arg.dtype] if arg.dtype else None
    seed = crc32(repr((arg.shape, arg.fill, arg.seed, position)).encode())
    generator = f"torch.Generator().manual_seed({seed})"
    count = 1
    for size in arg.shape:
        count *= size
    if arg.fill == "integers":
        made = f"torch.randint({arg.high}, {arg.shape}, generator={generator})"
    elif arg.fill == "arange":
        made = f"torch.arange({count}).reshape({arg.shape})"
    elif arg.fill == "pivots":
        made = f"torch.arange(1, {arg.shape[-1]} + 1).expand({arg.shape})"
    elif own is not None and own.is_complex:
        part = f"torch.randn({arg.shape}, dtype=torch.float64, generator=g)"
        made = f"(lambda g: torch.complex({part}, {part}))({generator})"
    else:
        fill = fills.FILLS[arg.fill]
        made = _inlined(fill, (repr(arg.shape), generator))
        if not made:
            made, needed = f"{fill.__name__}({arg.shape}, {generator})", [fill]
        if not wanted.is_floating_point and own is None:
            made = f"(3 * ({made})).round()"
    if arg.strided and len(arg.shape) > 1:  # as ampcheck.samples.tensors makes one that is not contiguous
        made = f"({made}).transpose(-2, -1).clone(memory_format=torch.contiguous_format).transpose(-2, -1)"
    elif arg.strided:
        made = f"torch.stack([{made}] * 2, -1)[..., 0]"
    if not isinstance(ast.parse(made, mode="eval").body, (ast.Call, ast.Attribute, ast.Subscript)):
        made = f"({made})"
    on = "" if where == "cpu" else f"{where!r}, "
    return f"{made}.to({on}{wanted})", needed


def _inlined(function: Callable[..., object], arguments: Sequence[str]) -> str:
    """Return the call of a function as the expression that it returns; "" for one that is more than an expression."""
    node = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    result = node.body[-1]
    if (
        len(node.body) > 1 + (ast.get_docstring(node) is not None)
        or not isinstance(result, ast.Return)
        or result.value is None
    ):
        return ""
    given = {arg.arg: text for arg, text in zip(node.args.args, arguments, strict=True)}
    possible = True

    class Inline(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.AST:
            nonlocal possible
            self.generic_visit(call)
            if not isinstance(call.func, ast.Name):
                return call
            inner = getattr(fills, call.func.id, None)
            text = _inlined(inner, [ast.unparse(part) for part in call.args]) if inner else ""
            possible = possible and bool(text)
            return ast.parse(text, mode="eval").body if text else call

        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.parse(given[name.id], mode="eval").body if name.id in given else name

    text = ast.unparse(Inline().visit(result.value))
    return text if possible else ""


_SIGNS = {"matmul": "@", "pow": "**", "truediv": "/", "add": "+", "sub": "-", "mul": "*", "eq": "=="}


class PlainProgram:
    """A program in the making: `inputs`, which makes the tensors of a call, `call`, and what a check adds to them.

    `needed`: the functions and classes that its blocks name. `made`: how each tensor is made. `layout`: lays out each
    floating tensor. `where`: stands before each difference, as of `ampcheck.checks.forward.judged_at`.
    """

    def __init__(
        self, device: Device, todo: CallPlan, layout: Callable[..., object] | None = None, where: str = ""
    ) -> None:
        self.device, self.todo, self.where = device, todo, where
        self.needed: list[Needed] = [report, *([layout] if layout else [])]
        self.made: list[str] = []
        for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True)):
            text, functions = expression(leaf, given.dtype, place, device)
            laid_out = layout and DTYPES[given.dtype].is_floating_point
            self.made.append(f"{layout.__name__}({text})" if layout and laid_out else text)
            self.needed += functions
        listed = "\n".join(["[", *(f"        {text}," for text in self.made), "    ]"])
        listed = listed if len(self.made) > 1 else f"[{''.join(self.made)}]"
        seeded = "" if todo.op.values == "exact" else "    torch.manual_seed(0)\n"
        parameters = ", ".join(source.names(todo.sample))
        inputs = f"def inputs():\n{seeded}    return {listed}"
        self.blocks = [inputs, f"def call({parameters}):\n    return {written_call(todo)}"]
        filled = todo.sample.call == "aten" and todo.expected.dtype_kwarg
        self.reference = "reference" if filled else "call"

    def add(self, needed: Sequence[Needed], *blocks: str) -> None:
        """Add blocks, and what they need."""
        self.needed += needed
        self.blocks += blocks

    def cpu_inputs(self) -> str:
        """Return the expression of the inputs as the CPU has them, before they are copied to the device."""
        on = f".to({self.device.type!r}"
        if on in self.blocks[0]:
            self.blocks[0] = self.blocks[0].replace("inputs()", f"inputs(device={self.device.type!r})", 1)
            self.blocks[0] = self.blocks[0].replace(on, ".to(device")
        return 'inputs("cpu")' if ".to(device" in self.blocks[0] else "(x.cpu() for x in inputs())"

    def say(self, what: str, found: str) -> str:
        """Return the line that reports the differences which an expression gives."""
        found = f'[f"{self.where}: {{text}}" for text in {found}]' if self.where else found
        return f"report({what!r}, {found})"

    def text(self, modules: Sequence[str]) -> str:
        """Return the program."""
        return written(self.device, modules, self.needed, self.blocks)


def cast_blocks(todo: CallPlan, rule: str) -> list[str]:
    """Write `cast`, which casts the tensors of a call as autocast should.

    Where autocast fills in a `dtype=`, also `reference`, the call that it should make on these.
    """
    cast = f"def cast(given):  # rule {rule}\n    return {cast_expression(todo, 'given')}"
    return [cast, *reference_blocks(todo)]


def cast_expression(todo: CallPlan, given: str) -> str:
    """Return the list of the tensors of a call, cast as autocast should."""
    filled = todo.expected.dtype_kwarg if todo.sample.call != "aten" else None
    wanted = [filled if filled and is_floating(x) else x for x in todo.expected.leaves]
    return f"[x.to(dtype) for x, dtype in zip({given}, {dtypes_list(wanted)})]"


def reference_blocks(todo: CallPlan) -> list[str]:
    """Write `reference`, the call with the `dtype=` that autocast fills in, where it does; else nothing."""
    filled = todo.expected.dtype_kwarg
    if not filled or todo.sample.call != "aten":
        return []
    parameters = ", ".join([*source.names(todo.sample), f"dtype={DTYPES[filled]}"])
    return [f"def reference({parameters}):\n    return {written_call(todo, filled=True)}"]


def overload_path(name: str) -> str:
    """Return the path of an overload behind `torch.ops.aten`."""
    packet, _, variant = name.partition(".")
    return f"{packet}.{variant or 'default'}"


def written_call(todo: CallPlan, *, filled: bool = False) -> str:
    """Return the call as people write it; where it is `filled`, of the overload that takes the `dtype` filled in."""
    remaining = iter(source.names(todo.sample))
    args = [source.written(value, remaining) for value in todo.sample.args]
    kwargs = [f"{name}={source.written(value, remaining)}" for name, value in todo.sample.kwargs.items()]
    path = todo.sample.call
    own = bool(args) and isinstance(todo.sample.args[0], TensorArg)
    if path == "aten":
        path = f"torch.ops.aten.{overload_path(todo.expected.overload if filled else todo.op.overload)}"
        kwargs += ["dtype=dtype"] * filled
    elif path.startswith("operator.") and len(args) == 2:
        return f"{args[0]} {_SIGNS[path.removeprefix('operator.')]} {args[1]}"
    elif path.startswith("torch.Tensor.") and own:
        path = f"{args.pop(0)}.{path.removeprefix('torch.Tensor.')}"
    return f"{path}({', '.join([*args, *kwargs])})"
