"""The compilers: each makes a compiled program of a function and example inputs."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.errors import Unsupported
from ampcheck.observe.recorder import Observation
from ampcheck.observe.torch_private import TracerWarning, compile_package, load_package, reset_dynamo

Function = Callable[..., Any]


class Everything:
    """A collection that holds every overload: nothing is taken apart."""

    def __contains__(self, overload: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True)
class Compiled:
    """A compiled program. `observe` runs it and records its kernels, None where they are not PyTorch's own ones."""

    call: Function
    observe: Callable[[Device, Sequence[torch.Tensor]], Observation] | None = None


def _observed(call: Function) -> Callable[[Device, Sequence[torch.Tensor]], Observation]:
    return lambda device, inputs: device.observe(lambda: call(*inputs), Everything(), inputs)


class _Module(torch.nn.Module):
    """`torch.export` takes modules."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


def _torchscript(name: str) -> Callable[..., Any]:
    """A function of `torch.jit`. Raises Unsupported where TorchScript, which is deprecated, is gone."""
    found: Callable[..., Any] | None = getattr(getattr(torch, "jit", None), name, None)
    if found is None:
        raise Unsupported(f"torch {torch.__version__} has no torch.jit.{name}")
    return found


def _script(function: Function, inputs: Sequence[Any], **_: Any) -> Compiled:
    call = _torchscript("script")(function)
    return Compiled(call, _observed(call))


def _traced(function: Function, inputs: Sequence[Any], **_: Any) -> Compiled:
    call = _torchscript("trace")(function, tuple(inputs), check_trace=False)
    return Compiled(call, _observed(call))


class _Watched:
    """A backend of torch.compile that runs Dynamo's graph as it is and can record its kernels.

    Dynamo compiles nothing while a dispatch mode is entered, so the recorder is entered inside.
    """

    def __init__(self) -> None:
        self.device: Device | None = None
        self.seen: Observation | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        def run(*given: Any) -> Any:
            if self.device is None:
                return graph.forward(*given)
            out: list[Any] = []
            self.seen = self.device.observe(
                lambda: out.append(graph.forward(*given)),
                Everything(),
                [x for x in given if isinstance(x, torch.Tensor)],
            )
            if self.seen.error is not None:
                raise self.seen.error
            return out[0]

        return run


def _dynamo(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
    watched = _Watched()
    call: Function = torch.compile(function, backend=watched, **{"fullgraph": True, **options})

    def observe(device: Device, inputs: Sequence[torch.Tensor]) -> Observation:
        watched.device, watched.seen = device, None
        try:
            call(*inputs)
        except Exception as error:  # what it raises was compared when it ran unobserved
            return watched.seen or Observation(error=error)
        finally:
            watched.device = None
        return watched.seen or Observation()

    return Compiled(call, observe)


def _backend(name: str) -> Callable[..., Compiled]:
    def make(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
        if name == "jax":
            import ampcheck.jax_device.compile  # noqa: F401  # registers the backend
        return Compiled(torch.compile(function, backend=name, **{"fullgraph": True, **options}))

    return make


def _exported(
    function: Function, inputs: Sequence[Any], *, strict: bool = False, dynamic: bool = False, **_: Any
) -> torch.export.ExportedProgram:
    """Export a function; with `dynamic`, as of `torch.compile`, for tensors of any size."""
    sizes = [dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in inputs] if dynamic else None
    shapes = (tuple(sizes),) if sizes else None
    return torch.export.export(_Module(function), tuple(inputs), dynamic_shapes=shapes, strict=strict)


def _export(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
    call = _exported(function, inputs, **options).module()
    return Compiled(call, _observed(call))


def _strict(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
    call = _exported(function, inputs, strict=True, **options).module()
    return Compiled(call, _observed(call))


def _decomposed(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
    return Compiled(_exported(function, inputs, **options).run_decompositions().module())


def _packaged(function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
    program = _exported(function, inputs, **options)
    with tempfile.TemporaryDirectory() as folder:
        package = compile_package(program, package_path=f"{folder}/program.pt2")
        return Compiled(load_package(package))


def _jaxjit(function: Function, inputs: Sequence[Any], **_: Any) -> Compiled:
    from ampcheck.jax_device import jit

    return Compiled(jit(function, fullgraph=True))


@dataclass(frozen=True, slots=True)
class Compiler:
    """`make`: compiles a function for example inputs; options are `torch.compile`'s, of which exports take `dynamic`.

    `grads`: gradients flow through what it makes.

    `rounds`: how far its results may lie from eager's, in roundings; 0 where the same kernels run.

    `wide`: the same for what is float32 from end to end, where that is more.
    """

    make: Callable[..., Compiled]
    grads: bool = True
    rounds: int = 0
    wide: int = 0


_ROUNDS = 48
"""As in `ampcheck.checks.reference`: another compiler adds in another order."""
_FEW = 4
"""The same kernels run, but of parts that a composite op is taken apart into, whose layouts may be other ones."""

COMPILERS = {
    "script": Compiler(_script, rounds=_FEW),
    "traced": Compiler(_traced, rounds=_FEW),
    "dynamo": Compiler(_dynamo),
    # It takes some ops apart by formulas of PyTorch's own, which add in another order: bicubic upsampling is one.
    "aot": Compiler(_backend("aot_eager"), rounds=_FEW, wide=_ROUNDS),
    "inductor": Compiler(_backend("inductor"), rounds=_ROUNDS),
    "export": Compiler(_export, rounds=_FEW),
    "strict": Compiler(_strict, rounds=_FEW),
    "decomposed": Compiler(_decomposed, rounds=_ROUNDS),
    "packaged": Compiler(_packaged, grads=False, rounds=_ROUNDS),
    "jaxcompile": Compiler(_backend("jax"), rounds=_ROUNDS),
    "jaxjit": Compiler(_jaxjit, grads=False, rounds=_ROUNDS),
}
"""The compilers by the names of `ampcheck.spec.compilers`."""


@contextmanager
def quiet() -> Iterator[None]:
    """Around compiling and running: what compilers warn of that is not about the program, and Dynamo's caches."""
    reset_dynamo()
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated as a whole; that a traced program is only good for its inputs is known here.
            for kind in (DeprecationWarning, FutureWarning):  # since torch 2.11 and 2.14
                warnings.filterwarnings("ignore", message=r"(?s).*torch\.jit\.", category=kind)
            warnings.filterwarnings("ignore", category=TracerWarning)
            # PyTorch asks its own trees, and makes its own autograd functions, in old ways.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*should not be instantiated", category=DeprecationWarning)
            # Inductor calls what PyTorch deprecated, and says where it makes no fast code.
            warnings.filterwarnings("ignore", message=r".*torch\._prims_common\.check", category=FutureWarning)
            warnings.filterwarnings("ignore", message="Torchinductor does not support code generation for complex")
            warnings.filterwarnings("ignore", message="bf16 and fp16 are mixed in the scheduler node")
            yield
    finally:
        reset_dynamo()
