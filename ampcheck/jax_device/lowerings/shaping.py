"""Tensors made from numbers, copied, filled and put together, and the gradients of their parts.

The numbers of factories are traced, so that only size and dtype make a new program.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from ampcheck.jax_device.dispatch.kernels import assign, fit
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import compiled, lower
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import wrap

Bound = complex | jax.Array
"""A number of a factory, which is given anew at each call."""
Values = Callable[..., jax.Array]
"""The values of `size` elements for a dtype, from the factory's numbers."""


def _steps(start: Bound, step: Bound, *, size: int, dtype: torch.dtype) -> jax.Array:
    """Compute start + i * step, for integers in int64, else in float64."""
    wide = jnp.float64 if dtype.is_floating_point else jnp.int64
    return jnp.asarray(start).astype(wide) + jnp.arange(size, dtype=wide) * jnp.asarray(step).astype(wide)


def _even(start: Bound, end: Bound, *, size: int, dtype: torch.dtype) -> jax.Array:
    """Go evenly from `start` to `end`, each half from its own end; ends and a float step are rounded to the dtype."""
    wide = jnp.complex128 if dtype.is_complex else jnp.float64

    def rounded(number: Bound) -> jax.Array:
        return jnp.asarray(number).astype(jax_dtype(dtype)).astype(wide)

    first, last = rounded(start), rounded(end)
    step = (last - first) / max(size - 1, 1)
    step = rounded(step) if dtype.is_floating_point else step
    i = jnp.arange(size)
    return jnp.where((i < size // 2) | (size == 1), first + step * i, last - step * (size - 1 - i))


def _powers(start: Bound, end: Bound, base: Bound, *, size: int, dtype: torch.dtype) -> jax.Array:
    exponents = _even(start, end, size=size, dtype=dtype)
    return jnp.power(jnp.asarray(base).astype(exponents.dtype), exponents)


@cache
def _program(values: Values, size: int, dtype: torch.dtype) -> Values:
    def program(*numbers: Bound) -> jax.Array:
        return values(*numbers, size=size, dtype=dtype).astype(jax_dtype(dtype))

    return compiled(program, size)


def _made(values: Values, meta: Tensor, *numbers: Bound) -> Tensor:
    """Make a tensor of the Meta tensor's size and dtype."""
    return wrap(_program(values, meta.numel(), meta.dtype)(*numbers).reshape(meta.shape))


def _arange(*bounds: complex, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return _made(_steps, torch.arange(start, end, step, dtype=dtype, device="meta"), start, step)


def _range(start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    size = int((end - start) / step) + 1 if step and (end - start) / step >= 0 else 0
    if not size:
        raise RuntimeError(f"upper bound and lower bound inconsistent with step sign: from {start} to {end} by {step}")
    return _made(_steps, torch.empty(size, dtype=dtype, device="meta"), start, step)


def _linspace(start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return _made(_even, torch.linspace(start, end, steps, dtype=dtype, device="meta"), start, end)


def _logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype: torch.dtype | None = None, **_: object
) -> Tensor:
    return _made(_powers, torch.logspace(start, end, steps, base, dtype=dtype, device="meta"), start, end, base)


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    size = (n, n if m is None else m)
    return wrap(_identity(*size, jax_dtype(torch.eye(*size, dtype=dtype, device="meta").dtype)))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _identity(n: int, m: int, dtype: np.dtype) -> jax.Array:
    return jnp.eye(n, m, dtype=dtype)


def _register(make: Callable[..., Tensor], names: tuple[str, ...], outs: tuple[str, ...]) -> None:
    kernel(*names)(make)

    @kernel(*outs)
    def filled(*numbers: Bound, out: Tensor) -> Tensor:
        made = make(*numbers, dtype=out.dtype)
        fit(out, made)
        assign(out, made)
        return out


_register(_arange, ("arange", "arange.start", "arange.start_step"), ("arange.out", "arange.start_out"))
_register(_range, ("range", "range.step"), ("range.out",))
_register(_linspace, ("linspace",), ("linspace.out",))
_register(_logspace, ("logspace",), ("logspace.out",))
_register(_eye, ("eye", "eye.m"), ("eye.out", "eye.m_out"))


def _indices(make: Callable[..., Tensor], *numbers: int, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return transfer.to_device(make(*numbers, dtype=dtype or torch.int64, device="cpu"))


kernel("tril_indices")(partial(_indices, torch.tril_indices))
kernel("triu_indices")(partial(_indices, torch.triu_indices))
# the dtype and the strides are what PyTorch's Meta kernel says
lower("_to_copy", "clone")(lambda self, **_: self)
lower("fill.Scalar", "fill.Tensor")(
    lambda self, value: jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), self.shape)
)
lower("zero")(jnp.zeros_like)
lower("full")(lambda size, fill_value, **_: jnp.broadcast_to(jnp.asarray(fill_value), size))
lower("stack", promotes=True)(jnp.stack)


@lower("cat", promotes=True)
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Return the tensors one after the other along `dim`; one of shape [0] goes with every shape."""
    # an old promise of PyTorch's, older than tensors of zero size
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    return kept[0] if len(kept) == 1 else jnp.concatenate(kept, dim)


def _on_diagonal(base: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Return `base` with `src`, whose last dimension runs along it, on the diagonal of two dimensions."""
    turned = jnp.moveaxis(base, (dim1, dim2), (-2, -1))
    steps = jnp.arange(src.shape[-1])
    out = turned.at[..., steps + max(-offset, 0), steps + max(offset, 0)].set(src)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


lower("diagonal_scatter")(_on_diagonal)
lower("diagonal_backward")(
    lambda grad, sizes, *options: _on_diagonal(jnp.zeros(tuple(sizes), grad.dtype), grad, *options)
)


@lower("slice_backward")
def slice_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    """Return the gradient of a slice: zeros elsewhere, by padding, which XLA fuses."""
    dim %= len(input_sizes)
    begin = slice(start, end, step).indices(input_sizes[dim])[0]
    length = grad_output.shape[dim]
    behind = input_sizes[dim] - begin - ((length - 1) * step + 1 if length else 0)
    edges = [(begin, behind, step - 1) if d == dim else (0, 0, 0) for d in range(len(input_sizes))]
    return jax.lax.pad(grad_output, jnp.zeros((), grad_output.dtype), edges)
