"""What an overload's schema says: which arguments are tensors, which it writes, and its functional counterpart."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple

import torch

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
    "Tensor": Kind.TENSOR,
    "Optional[Tensor]": Kind.TENSOR,
    "List[Tensor]": Kind.TENSORS,
    "List[Optional[Tensor]]": Kind.TENSORS,
    "number": Kind.NUMBER,
    "Optional[number]": Kind.NUMBER,
    "Scalar": Kind.NUMBER,
    "Optional[Scalar]": Kind.NUMBER,
    "List[number]": Kind.NUMBERS,
    "List[Scalar]": Kind.NUMBERS,
    "Generator": Kind.GENERATOR,
    "Optional[Generator]": Kind.GENERATOR,
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
