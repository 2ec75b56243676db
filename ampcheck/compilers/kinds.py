"""The compilers: each makes a compiled program of a function and example inputs.

Reproductions print the source of what makes a program, so that nothing of it needs more than torch.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.errors import Unsupported
from ampcheck.observe.closeness import OTHER_KERNELS, SAME_KERNELS, SAME_KERNELS_ON_PARTS
from ampcheck.observe.recorder import Observation, attempt
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


Observe = Callable[[Callable[[], object], Sequence[torch.Tensor]], Observation]
"""Runs a call on inputs and records its kernels, of which none is taken apart."""


@dataclass(slots=True)
class Compiled:
    """A compiled program. `observe` runs it and records its kernels, None where they are not PyTorch's own ones."""

    call: Function
    observe: Callable[[Observe, Sequence[torch.Tensor]], Observation] | None = None


def _observed(call: Function) -> Compiled:
    """Return a program that runs PyTorch's kernels where a dispatch mode sees them."""
    return Compiled(call, lambda observe, inputs: observe(lambda: call(*inputs), inputs))


class _Module(torch.nn.Module):
    """`torch.export` takes modules."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


def _torchscript(name: str) -> Callable[..., Any]:
    """Return a function of `torch.jit`. Raises Unsupported where TorchScript, which is deprecated, is gone."""
    found: Callable[..., Any] | None = getattr(getattr(torch, "jit", None), name, None)
    if found is None:
        raise Unsupported(f"torch {torch.__version__} has no torch.jit.{name}")
    return found


def _script(function: Function, inputs: Sequence[torch.Tensor], **_: object) -> Compiled:
    return _observed(_torchscript("script")(function))


def _traced(function: Function, inputs: Sequence[torch.Tensor], **_: object) -> Compiled:
    return _observed(_torchscript("trace")(function, tuple(inputs), check_trace=False))


class _Watched:
    """A backend of torch.compile that runs Dynamo's graph as it is and can record its kernels.

    Dynamo compiles nothing while a dispatch mode is entered, so the recorder is entered inside.
    """

    def __init__(self) -> None:
        self.observe: Observe | None = None
        self.seen: Observation | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        def run(*given: Any) -> Any:
            if self.observe is None:
                return graph.forward(*given)
            out: list[Any] = []
            self.seen = self.observe(
                lambda: out.append(graph.forward(*given)), [x for x in given if isinstance(x, torch.Tensor)]
            )
            if self.seen.error is not None:
                raise self.seen.error
            return out[0]

        return run


def _dynamo(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Compiled:
    watched = _Watched()
    call: Function = torch.compile(function, backend=watched, **{"fullgraph": True, **options})

    def observe(observe: Observe, inputs: Sequence[torch.Tensor]) -> Observation:
        watched.observe, watched.seen = observe, None
        _, error = attempt(lambda: call(*inputs))  # what it raises was compared when it ran unobserved
        watched.observe = None
        return watched.seen or Observation(error=error)

    return Compiled(call, observe)


def _backend(function: Function, inputs: Sequence[torch.Tensor], *, backend: str, **options: Any) -> Compiled:
    return Compiled(torch.compile(function, backend=backend, **{"fullgraph": True, **options}))


def _jaxcompile(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Compiled:
    import ampcheck.jax_device.compile  # noqa: F401, PLC0415  # imports JAX, and registers the backend

    return _backend(function, inputs, backend="jax", **options)


def _exported(
    function: Function, inputs: Sequence[Any], *, strict: bool = False, dynamic: bool = False, **_: Any
) -> torch.export.ExportedProgram:
    """Export a function; with `dynamic`, as of `torch.compile`, for tensors of any size."""
    sizes = [dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in inputs] if dynamic else None
    shapes = (tuple(sizes),) if sizes else None
    return torch.export.export(_Module(function), tuple(inputs), dynamic_shapes=shapes, strict=strict)


def _export(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Compiled:
    return _observed(_exported(function, inputs, **options).module())


def _decomposed(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Compiled:
    return Compiled(_exported(function, inputs, **options).run_decompositions().module())


def _packaged(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Compiled:
    program = _exported(function, inputs, **options)
    with tempfile.TemporaryDirectory() as folder:
        return Compiled(load_package(compile_package(program, package_path=f"{folder}/program.pt2")))


def _jaxjit(function: Function, inputs: Sequence[torch.Tensor], **_: object) -> Compiled:
    from ampcheck.jax_device import jit  # noqa: PLC0415  # imports JAX

    return Compiled(jit(function, fullgraph=True))


@dataclass(frozen=True, slots=True)
class Compiler:
    """How a function is compiled.

    `how`: compiles a function for example inputs; `given`: with these options. `grads`: gradients flow through what it
    makes. `roundings`: how far its results may lie from eager's; see `ampcheck.observe.closeness.rounding_bound`.
    `in_float32`: the same for what is float32 from end to end, where that is more.
    """

    how: Callable[..., Compiled]
    given: Mapping[str, object] = field(default_factory=dict)
    grads: bool = True
    roundings: int = SAME_KERNELS
    in_float32: int = 0

    def make(self, function: Function, inputs: Sequence[Any], **options: Any) -> Compiled:
        """Compile a function for example inputs. Options are those of `torch.compile`; exports take `dynamic`."""
        return self.how(function, inputs, **(dict(self.given) | options))


_OTHER, _PARTS = OTHER_KERNELS, SAME_KERNELS_ON_PARTS
COMPILERS = {
    "script": Compiler(_script, roundings=_PARTS),
    "traced": Compiler(_traced, roundings=_PARTS),
    "dynamo": Compiler(_dynamo),
    # It takes some ops apart by formulas of PyTorch's own, which add in another order: bicubic upsampling is one.
    "aot": Compiler(_backend, {"backend": "aot_eager"}, roundings=_PARTS, in_float32=_OTHER),
    "inductor": Compiler(_backend, {"backend": "inductor"}, roundings=_OTHER),
    "export": Compiler(_export, roundings=_PARTS),
    "strict": Compiler(_export, {"strict": True}, roundings=_PARTS),
    "decomposed": Compiler(_decomposed, roundings=_OTHER),
    "packaged": Compiler(_packaged, grads=False, roundings=_OTHER),
    "jaxcompile": Compiler(_jaxcompile, roundings=_OTHER),
    "jaxjit": Compiler(_jaxjit, grads=False, roundings=_OTHER),
}
"""The compilers by the names of `ampcheck.spec.case`."""


def source_of_making(compiler: str, function: str, inputs: str) -> tuple[Callable[..., Compiled], str]:
    """Return what compiles a program, and the expression that calls it. `function`, `inputs`: as expressions."""
    how, given = COMPILERS[compiler].how, COMPILERS[compiler].given
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    return how, f"{how.__name__}({function}, {inputs}{options})"


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what compilers warn of that is not about the program, and reset Dynamo's caches before and after."""
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
