"""PyTorch's type promotion, for lowerings that ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dtypes import jax_dtype, torch_dtype
from ampcheck.jax_device.torch_private import PromotionKind, elementwise_dtypes, pytree
from ampcheck.register.torch_private import OpOverload

_LOW = (torch.float16, torch.bfloat16)
_UNPROMOTED = {torch.uint16, torch.uint32, torch.uint64}


def _operands(args: Iterable[Tree]) -> list[Tree]:
    return [leaf for leaf in pytree.tree_leaves(list(args)) if isinstance(leaf, (torch.Tensor, Number))]


def common(args: Iterable[Tree]) -> np.dtype | None:
    """Return the dtype in which an elementwise op computes on these tensors and numbers; None without tensors.

    Numbers meet float16 and bfloat16 in float32, as PyTorch's opmath type does (ATen/OpMathType.h): 0.999 in bfloat16
    would be 1.
    """
    operands = _operands(args)
    if not any(isinstance(o, torch.Tensor) for o in operands):
        return None
    _, result = elementwise_dtypes(*operands, type_promotion_kind=PromotionKind.DEFAULT)
    if result in _LOW and any(not isinstance(o, torch.Tensor) for o in operands):
        return jax_dtype(torch.float32)
    return jax_dtype(result)


def check(op: OpOverload, args: Iterable[Tree]) -> None:
    """Raise RuntimeError, as PyTorch does, where an op would promote uint16, uint32 or uint64 to another integer dtype.

    PyTorch's Meta kernels written in Python promote them by rules of their own. A bool tensor may be a mask.
    """
    tensors = [o for o in _operands(args) if isinstance(o, torch.Tensor) and o.dtype is not torch.bool]
    if (torch.Tag.pointwise in op.tags or op is torch.ops.aten.cat.default) and any(
        t.dtype in _UNPROMOTED for t in tensors
    ):
        for other in tensors[1:]:
            torch.result_type(tensors[0], other)


def convert(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return the array in another dtype, as `Tensor.to` converts: a complex number gives its real part."""
    if array.dtype == dtype:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        array = (array != 0) if dtype == jnp.bool_ else array.real
    return array.astype(dtype)


def common_of(operands: Iterable[Tree]) -> np.dtype | None:
    """Return `common` of arrays and traced numbers, inside a lowering; a traced number is a weakly typed array."""
    return common([_example(o) for o in operands])


def _example(operand: Tree) -> Tree:
    if not isinstance(operand, jax.Array):
        return operand
    # Any number of its type stands for it: promotion asks for the type alone.
    if operand.weak_type and not operand.shape:
        return operand.dtype.type(1).item()
    return torch.empty(operand.shape, dtype=torch_dtype(operand.dtype), device="meta")
