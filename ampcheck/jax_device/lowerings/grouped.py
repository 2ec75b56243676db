"""Products of groups of rows, as in mixtures of experts, without asking how long the groups are."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.lax import RaggedDotDimensionNumbers, ragged_dot_general
from torch.library import Library

from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowerings.accumulate import asked
from ampcheck.jax_device.storage.arrays import wrap
from ampcheck.jax_device.storage.transfer import values
from ampcheck.register.torch_private import DispatchKey

_ROWS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))  # (m, k), (g, k, n) -> (m, n)
_INNER = RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), (1,), ())  # (m, k), (k, n) -> (g, m, n)


@partial(jax.jit, static_argnums=3)
def _grouped(left: Array, right: Array, ends: Array, dtype: np.dtype) -> Array:
    """Return the products of the groups that end at `ends`; what is behind the last one is 0."""
    turned = left.ndim == 3  # the groups are columns of `right`
    if turned:
        left, right = right.T, left.swapaxes(1, 2)
    sizes = jnp.diff(ends, prepend=0)
    form = _ROWS if right.ndim == 3 else _INNER
    out = ragged_dot_general(left, right, sizes, form, preferred_element_type=asked(left.dtype)).astype(dtype)
    return out.T if turned else out


@kernel("_grouped_mm")
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the product of each group of rows, of columns, or of both, by `jax.lax.ragged_dot_general`."""
    groups = {t.shape[0] for t in (self, mat2) if t.dim() == 3}
    fits = self.shape[-1] == mat2.shape[-2] and self.dtype is mat2.dtype and self.dim() + mat2.dim() < 6
    if offs is None or bias is not None or not fits or not groups <= {*offs.shape}:
        op = torch.ops.aten._grouped_mm.default  # raises PyTorch's errors, or calls `bmm`
        out: torch.Tensor = op._op_dk(DispatchKey.CompositeExplicitAutograd, self, mat2, offs, bias, out_dtype)
        return out
    return wrap(_grouped(values(self), values(mat2), values(offs), jax_dtype(out_dtype or self.dtype)))


def experts_backward(
    input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `input` and `weight`, where `input @ weight` in groups has the gradient `grad`."""
    return grouped_mm(grad, weight.mT, offs), grouped_mm(input.mT, grad, offs)


# The op by which Hugging Face's models of experts compute while they are compiled. Its own kernel is a loop in Python.
_library = Library("transformers", "IMPL")
_library.impl("grouped_mm_fallback", grouped_mm, "PrivateUse1")
_library.impl("grouped_mm_fallback_backward", experts_backward, "PrivateUse1")
