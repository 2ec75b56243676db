"""What comes out of a program: what PyTorch promises of it, and the tensors that are made of its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import torch

from ampcheck.jax_device.annotations import Args, Kernel, Kwargs, Tree
from ampcheck.jax_device.dispatch import promotion
from ampcheck.jax_device.dispatch.schema import Kind, arguments
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.storage.arrays import alias, create, storage_of, wrap
from ampcheck.jax_device.storage.layout import Layout, contiguous, order, physical
from ampcheck.jax_device.torch_private import pytree
from ampcheck.register.torch_private import OpOverload


class PromisedResult(NamedTuple):
    """What PyTorch promises of one result."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def promised(op: OpOverload, args: Sequence[Tree], kwargs: Kwargs) -> tuple[list[PromisedResult | None] | None, bool]:
    """Ask PyTorch what comes out of meta tensors, in order, and whether it is one tensor; None where it cannot say."""
    if any(a.name == "device" for a in arguments(op)):
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        out = _asked(op, args, kwargs)
    except NotImplementedError:
        return None, False
    alone = isinstance(out, torch.Tensor)
    flat = [out] if alone else pytree.tree_leaves(out or ())  # an op that only checks its arguments returns nothing
    return [None if o is None else _result(o) for o in flat], alone


def _asked(op: OpOverload, args: Sequence[Tree], kwargs: Kwargs) -> Tree:
    """Call PyTorch's Meta kernel. Of few overloads it takes a number for a tensor; others get a 0-d tensor."""
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "same reduction dim" in str(error):  # since torch 2.14, from the Meta kernel of mm in Python
            (n, m), (k, p) = args[0].shape, args[1].shape
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({n}x{m} and {k}x{p})") from None
        if "Unable to cast" not in str(error):
            raise
    scalars = [
        torch.scalar_tensor(v, device="meta", dtype=torch.tensor(v).dtype)
        if a.kind is Kind.TENSOR and isinstance(v, (bool, int, float, complex))
        else v
        for a, v in zip(arguments(op), args, strict=False)
    ]
    return op(*scalars, **kwargs)


def _result(out: torch.Tensor) -> PromisedResult:
    size = tuple(out.shape)
    # The device gives each result a storage of its own, so strides with holes or overlaps become contiguous ones.
    dense = order(Layout(size, out.stride(), 0), math.prod(size)) is not None
    return PromisedResult(size, out.stride() if dense else contiguous(size), out.dtype)


def plain(result: PromisedResult) -> bool:
    if 0 in result.size:
        return len(result.size) < 2  # of more dimensions, `create` makes other strides than PyTorch
    return result.stride == contiguous(result.size) or math.prod(result.size) <= 1


def single(run: Kernel, result: PromisedResult) -> Kernel:
    """Return the program of an overload with one contiguous result: the shortest way from arrays to a tensor."""
    size, dtype = result.size, result.dtype

    def program(*inputs: jax.Array) -> Tree:
        (array,) = run(*inputs)
        tensor = create(size, dtype)
        storage_of(tensor).array = array
        return tensor

    return program


def made(array: jax.Array, result: PromisedResult | None) -> torch.Tensor:
    """Return a tensor on a new storage that holds the array; the array is laid out as the strides say."""
    if result is None:
        return wrap(array)
    tensor: torch.Tensor = create(array.shape, result.dtype)
    storage_of(tensor).array = array
    return tensor if plain(result) else alias(tensor, result.size, result.stride, 0)


def conform(name: str, flat: list[Tree], wanted: list[PromisedResult | None] | None) -> list[Tree]:
    """Return the lowering's arrays in PyTorch's dtypes and storage order; raise RuntimeError for wrong shapes."""
    if wanted is None:
        return [o if o is None else jax.numpy.asarray(o) for o in flat]
    if len(flat) != len(wanted):
        raise RuntimeError(f"the jax lowering of aten::{name} gave {len(flat)} results; PyTorch promises {len(wanted)}")
    out: list[Tree] = []
    for value, result in zip(flat, wanted, strict=True):
        if value is None or result is None:
            out.append(None)
            continue
        array = jax.numpy.asarray(value)
        if array.shape != result.size:
            raise RuntimeError(
                f"the jax lowering of aten::{name} gave shape {list(array.shape)}; PyTorch promises {list(result.size)}"
            )
        array = promotion.convert(array, jax_dtype(result.dtype))
        out.append(array if plain(result) else physical(array, result.stride))
    return out


def structure(op: OpOverload, lengths: list[int]) -> Callable[[list[Tree]], Tree]:
    """Return a function from the flat results to what the overload returns: a tensor, a list, or a tuple of these."""
    kinds = [str(r.type) for r in op._schema.returns]
    if kinds == ["Tensor"]:
        return lambda flat: flat[0]
    if kinds == ["List[Tensor]"]:
        return lambda flat: flat
    if "List[Tensor]" not in kinds:
        return tuple
    return lambda flat: _nested(flat, kinds, lengths)


def _nested(flat: list[Tree], kinds: list[str], lengths: list[int]) -> Args:
    out, rest = [], list(flat)
    for kind, count in zip(kinds, lengths, strict=True):
        taken, rest = rest[:count], rest[count:]
        out.append(taken[0] if kind == "Tensor" else taken)
    return tuple(out)
