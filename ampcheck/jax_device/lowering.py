"""What the schema of an overload says, and its JAX computation.

The computation is the device's own, torchax's, or PyTorch's decomposition, in this order.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar

import jax
import torch

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.torch_private import decompositions
from ampcheck.register.torch_private import OpOverload, has_kernel, op_names


class Kind(Enum):
    """How an argument takes part in a compiled program."""

    TENSOR = "an array"
    TENSORS = "a list of arrays"
    NUMBER = "a number that may change from call to call without a new program"
    NUMBERS = "a list of such numbers"
    GENERATOR = "where random numbers come from"
    STATIC = "part of the program"


class Argument(NamedTuple):
    """One argument of an overload."""

    name: str
    kind: Kind
    written: bool
    kwarg_only: bool
    default: object


_KINDS = {
    **dict.fromkeys(("Tensor", "Optional[Tensor]"), Kind.TENSOR),
    **dict.fromkeys(("List[Tensor]", "List[Optional[Tensor]]"), Kind.TENSORS),
    **dict.fromkeys(("number", "Optional[number]", "Scalar", "Optional[Scalar]"), Kind.NUMBER),
    **dict.fromkeys(("List[number]", "List[Scalar]"), Kind.NUMBERS),
    **dict.fromkeys(("Generator", "Optional[Generator]"), Kind.GENERATOR),
}
REQUIRED = object()


@cache
def arguments(op: OpOverload) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            name=a.name,
            kind=_KINDS.get(str(a.type), Kind.STATIC),
            written=a.alias_info is not None and a.alias_info.is_write,
            kwarg_only=a.kwarg_only,
            default=a.default_value if a.has_default_value() else REQUIRED,
        )
        for a in op._schema.arguments
    )


def overload(name: str) -> OpOverload:
    """Find an overload by name, "aten::add.Tensor" or "aten::mm" for mm.default. Raise AttributeError if unknown."""
    space, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, space), packet), which or "default")
    return found


def overloads() -> Iterator[OpOverload]:
    for name in op_names():
        if name.startswith("aten::"):
            try:
                yield overload(name)
            except (AttributeError, RuntimeError):  # registered without a schema that Python can see
                continue


def is_view(op: OpOverload) -> bool:
    """Return whether what the overload returns shares the storage of an argument."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def is_out(op: OpOverload) -> bool:
    """Return whether the overload writes its results to tensors the caller gives as `out=`."""
    # What torch 2.13 tags as torch.Tag.out; 2.11 and 2.12 have no such tag.
    return any(a.kwarg_only and a.written for a in arguments(op))


def is_inplace(op: OpOverload) -> bool:
    """Return whether the overload is `name_`, which writes to its first argument."""
    name = op._schema.name.removeprefix("aten::")
    return name.endswith("_") and not name.endswith("__") and bool(arguments(op)) and arguments(op)[0].written


def takes_lazy(op: OpOverload) -> bool:
    """Return whether the overload's kernel gets tensors with lazy conjugate or negative bits, resolved for others."""
    return has_kernel(op.name(), "Conjugate") or has_kernel(op.name(), "Negative")


def _signature(op: OpOverload, *, outs: bool) -> list[tuple[str, str]]:
    return [
        (a.name, str(a.type))
        for a in op._schema.arguments
        if outs or not (a.kwarg_only and a.alias_info is not None and a.alias_info.is_write)
    ]


@cache
def functional(op: OpOverload) -> OpOverload | None:
    """Find the overload that computes the same and writes to nothing: `mm` of `mm.out`, `add.Tensor` of `add_.Tensor`.

    Overloads are matched by argument names and types without the `out` arguments. None where PyTorch has none.
    """
    name = op._schema.name.removeprefix("aten::")
    if not any(a.written for a in arguments(op)):
        return op
    if is_inplace(op):
        name = name[:-1]
    elif name.endswith("_out"):
        name = name.removesuffix("_out")
    wanted = _signature(op, outs=False)
    for candidate in (name, f"{name}_functional"):
        packet = getattr(torch.ops.aten, candidate, None)
        for which in packet.overloads() if packet is not None else ():
            other: OpOverload = getattr(packet, which)
            if any(a.written for a in arguments(other)) or is_view(other):
                continue
            if _signature(other, outs=True) == wanted:
                return other
    return None


Computation = Callable[..., Any]
"""A function of arrays and numbers that gives an array, or a tuple or list of them."""
F = TypeVar("F", bound=Computation)
Number = complex | jax.Array
"""A number that a lowering is given: of Python, or in a compiled program an array without dimensions."""


@dataclass(frozen=True)
class Lowering:
    """How an overload is computed.

    `compute` takes what the functional overload takes, by position and keyword as PyTorch passes it, with tensors as
    arrays of their own shape; it returns an array, or a tuple of them, of the shapes PyTorch promises. Dtypes are put
    right afterwards. For an overload that writes to arguments and has no functional counterpart it returns their new
    values in the order of the schema, then what the overload returns besides.
    """

    compute: Computation
    promotes: bool = False
    """Tensor arguments are first brought to their common dtype, as PyTorch promotes."""
    random: bool = False
    """The first argument is a JAX random key."""
    static: bool = False
    """Numbers are part of the program, because the computation looks at them."""
    concrete: bool = False
    """It cannot be compiled, because the shape of its result depends on values."""
    unpromised: bool = False
    """PyTorch's Meta kernel promises another shape than the CPU's kernel gives."""
    torch_code: bool = False
    """`compute` is written in PyTorch and takes tensors of the device."""
    traced: tuple[str, ...] = ()
    """Names of `float` and `int` arguments that, as `Scalar` ones, may change from call to call in one program."""
    columns: bool = False
    """A matrix that lies in its storage by columns comes as `layout.Columns`, so that it need not be turned."""
    source: str = "own"
    """Where it comes from: "own", "torchax" or "decomposition"."""


OWN: dict[str, Lowering] = {}


def lower(*names: str, **options: Any) -> Callable[[F], F]:
    """Decorate a function as the lowering of the overloads of those names, e.g. "mm" or "add.Tensor".

    Names are aten's, without "aten::". Options: the fields of `Lowering`.
    """

    def register(compute: F) -> F:
        for name in names:
            if name in OWN:
                raise ValueError(f"{name} has two lowerings")
            OWN[name] = Lowering(compute, **options)
        return compute

    return register


def decomposed(*names: str) -> None:
    """Compute overloads as PyTorch's decompositions do, also those that torchax has."""
    OWN.update((name, found) for name in names if (found := _decomposition(overload(f"aten::{name}"))) is not None)


_MEDIUM = 1 << 16
_CHEAP = (
    (_MEDIUM, "xla_cpu_use_fusion_emitters", False),  # gone in jax 0.11
    (_MEDIUM, "xla_cpu_parallel_codegen_split_count", 1),  # it is compiled in one piece
    (1 << 10, "xla_backend_optimization_level", 0),
)
"""Up to how many elements a program is compiled with an option; see docs/jax_device.md, "What compiling costs"."""


BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""Makes barriers last: XLA's CPU compiler takes them away before it merges what is equal, by the pass of this name."""


def _accepts(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@cache
def known_options() -> dict[str, Any]:
    """Return those of the options for programs on a CPU that this version of XLA has."""
    wanted = BARRIERS | {name: value for _, name, value in _CHEAP}
    return wanted if _accepts(wanted) else {n: value for n, value in wanted.items() if _accepts({n: value})}


_NO_KERNEL = re.compile(r"Unsupported dtype (\w+)")
"""How JAX says that a library of the host, such as LAPACK, has no function for a dtype."""


def compiled(program: Computation, elements: int) -> Computation:
    """Return `program` as a function that JAX compiles at its first call for each kind of arguments.

    On the CPU a small program is compiled with options that take a third of the time and by which a large one would
    run slower. They follow from the shapes alone, so that a call has the same bits each time: a program that is called
    often is not compiled anew in the background, as its results would change while it runs.

    Args:
        program: a pure function of arrays.
        elements: those of the largest array that it reads or makes.
    """
    inner = jax.jit(program, inline=True)
    if elements > _MEDIUM or jax.default_backend() != "cpu":
        return inner
    options = {name: value for most, name, value in _CHEAP if elements <= most and name in known_options()}
    alone = jax.jit(program, inline=True, compiler_options=options)

    def run(*arrays: jax.Array) -> Tree:
        if arrays and isinstance(arrays[0], jax.core.Tracer):
            return inner(*arrays)
        try:
            return alone(*arrays)
        except ValueError:  # JAX refuses options inside another program
            return inner(*arrays)
        except NotImplementedError as error:
            if found := _NO_KERNEL.search(str(error)):  # in PyTorch's words
                lacks = {"float16": "Half", "bfloat16": "BFloat16"}.get(found[1], found[1])
                raise NotImplementedError(f'"{program.__name__}" not implemented for {lacks!r}') from error
            raise

    def clear_cache() -> None:
        alone.clear_cache()  # type: ignore[attr-defined]  # jax.stages.Wrapped does not say it
        inner.clear_cache()  # type: ignore[attr-defined]

    run.clear_cache = clear_cache  # type: ignore[attr-defined]
    return run


def short_name(op: OpOverload) -> str:
    """Return the overload's name as lowerings are registered: "add.Tensor"; "mm" for mm.default."""
    name: str = op._schema.name.removeprefix("aten::")
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def find(op: OpOverload) -> Lowering | None:
    """Return the overload's lowering, or None where there is none."""
    if own := OWN.get(short_name(op)):
        return own
    found = _torchax(op) or _decomposition(op)
    if found is not None and torch.Tag.dynamic_output_shape in op.tags:
        return replace(found, concrete=True)
    return found


@cache
def _torchax_table() -> dict[object, Tree]:
    # Their import costs a second, which a process that runs the device's own lowerings alone need not wait for.
    import torchax.ops.jaten  # noqa: F401, PLC0415  # fills the registry
    from torchax.ops.ops_registry import all_aten_ops  # noqa: PLC0415  # start-up, as above

    return dict(all_aten_ops)


def _torchax(op: OpOverload) -> Lowering | None:
    found = _torchax_table().get(op) or _torchax_table().get(op.overloadpacket)
    if found is None or not found.is_jax_function or found.needs_env or found.is_view_op:
        return None
    return Lowering(found.func, source="torchax")


def _decomposition(op: OpOverload) -> Lowering | None:
    found = decompositions.get(op)
    numbers = any(a.kind in (Kind.NUMBER, Kind.NUMBERS) for a in arguments(op))
    return Lowering(found, torch_code=True, static=numbers, source="decomposition") if found is not None else None
