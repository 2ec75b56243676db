"""Matrix products, also of groups of rows, without asking how long the groups are (mixtures of experts).

The product itself is one XLA dot of the tensors in their dtype (accumulate.py). `alpha` and `beta` multiply only where
they are given: PyTorch leaves out what has its default. Then the dot gives float32 for lower precision, so that the
scaled sum is rounded once (ATen/native/cpu/BlasKernel.cpp: opmath_t). On a CPU it gives float32 in any case.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.lax import RaggedDotDimensionNumbers, ragged_dot_general
from torch import Tensor
from torch.library import Library

from ampcheck.jax_device.dispatch.special import DType, kernel
from ampcheck.jax_device.dtypes import jax_dtype, opmath_dtype
from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings import accumulate
from ampcheck.jax_device.lowerings.accumulate import Matrix, asked, settled, wide
from ampcheck.jax_device.storage.arrays import wrap
from ampcheck.jax_device.storage.transfer import values
from ampcheck.register.torch_private import DispatchKey

lower("mm", "bmm", "mv", "dot", columns=True)(accumulate.product)
# as the dot accumulated it, without rounding to the inputs' dtype
lower("mm.dtype", "bmm.dtype", columns=True)(lambda a, b, out: accumulate.product(a, b, jax_dtype(out)))
lower("_int_mm")(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int32))


def scaled_sum(self: Array, product: Array, beta: Number | None = None, alpha: Number | None = None) -> Array:
    """Compute beta * self + alpha * product, where None is 1; with a beta of 0 not even nan in `self` counts."""
    if alpha is not None:
        product = product * _factor(alpha, product)
    if beta is None:
        return product + self
    self = wide(self)
    beta = _factor(beta, self)
    return product + jnp.where(beta == 0, jnp.zeros_like(self), self * beta)


def _factor(number: Number, array: Array) -> Array:
    """Return the number as PyTorch multiplies by it: in the array's dtype, so that integers know no fractions."""
    return jnp.asarray(number).astype(array.dtype)


def _product(a: Matrix, b: Matrix, scales: dict[str, Number]) -> Array:
    """Return a @ b in the inputs' own dtype, or as accumulated where it is multiplied by a number afterwards."""
    return accumulate.product(a, b, opmath_dtype(a.dtype) if scales else None)


@lower("addmm", "addmv", "baddbmm", columns=True)
def addmm(self: Matrix, mat1: Matrix, mat2: Matrix, **scales: Number) -> Array:
    """Compute beta * self + alpha * mat1 @ mat2."""
    return scaled_sum(settled(self), _product(mat1, mat2, scales), **scales)


@lower("addmm.dtype", "baddbmm.dtype", columns=True)
def addmm_dtype(self: Matrix, mat1: Matrix, mat2: Matrix, out_dtype: torch.dtype, **scales: Number) -> Array:
    """Compute beta * self + alpha * mat1 @ mat2 as the dot accumulated it, without rounding to the inputs' dtype."""
    product = accumulate.product(mat1, mat2, jax_dtype(out_dtype))
    return scaled_sum(settled(self).astype(product.dtype), product, **scales)


@lower("addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, **scales: Number) -> Array:
    """Compute beta * self + alpha * the batch's sum of batch1 @ batch2: one dot over batch and inner dimension."""
    batch, rows, inner = batch1.shape
    # One dot over both sums in the accumulator, where a sum of products would round each.
    left = jnp.swapaxes(batch1, 0, 1).reshape(rows, batch * inner)
    return scaled_sum(self, _product(left, batch2.reshape(batch * inner, batch2.shape[2]), scales), **scales)


@lower("addr", promotes=True)
def addr(self: Array, vec1: Array, vec2: Array, *, beta: Number | None = None, alpha: Number | None = None) -> Array:
    """Compute beta * self + alpha * the outer product of two vectors; of truth values "or" and "and"."""
    if self.dtype == jnp.bool_:
        both = vec1[:, None] & vec2[None, :] & (True if alpha is None else jnp.asarray(alpha) != 0)
        return both | (self if beta is None else self & (jnp.asarray(beta) != 0))
    scaled = alpha is not None or beta is not None
    product = wide(vec1)[:, None] * wide(vec2)[None, :] if scaled else vec1[:, None] * vec2[None, :]
    return jnp.broadcast_to(scaled_sum(self, product, beta, alpha), product.shape)


@lower("_addmm_activation")
def addmm_activation(self: Array, mat1: Array, mat2: Array, *, use_gelu: bool = False, **scales: Number) -> Array:
    """Apply relu or gelu to addmm; PyTorch approximates gelu by tanh on CUDA alone."""
    out = addmm(self, mat1, mat2, **scales)
    return jax.nn.gelu(wide(out), approximate=False) if use_gelu else jnp.maximum(out, 0)


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
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: DType = None
) -> Tensor:
    """Return the product of each group of rows, of columns, or of both, by `jax.lax.ragged_dot_general`."""
    groups = {t.shape[0] for t in (self, mat2) if t.dim() == 3}
    fits = self.shape[-1] == mat2.shape[-2] and self.dtype is mat2.dtype and self.dim() + mat2.dim() < 6
    if offs is None or bias is not None or not fits or not groups <= {*offs.shape}:
        op = torch.ops.aten._grouped_mm.default  # raises PyTorch's errors, or calls `bmm`
        out: Tensor = op._op_dk(DispatchKey.CompositeExplicitAutograd, self, mat2, offs, bias, out_dtype)
        return out
    return wrap(_grouped(values(self), values(mat2), values(offs), jax_dtype(out_dtype or self.dtype)))


def experts_backward(input: Tensor, weight: Tensor, offs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `input` and `weight`, where `input @ weight` in groups has the gradient `grad`."""
    return grouped_mm(grad, weight.mT, offs), grouped_mm(input.mT, grad, offs)


# The op by which Hugging Face's models of experts compute while they are compiled. Its own kernel is a loop in Python.
_library = Library("transformers", "IMPL")
_library.impl("grouped_mm_fallback", grouped_mm, "PrivateUse1")
_library.impl("grouped_mm_fallback_backward", experts_backward, "PrivateUse1")
