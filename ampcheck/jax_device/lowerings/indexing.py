"""Tensors made, copied, filled and put together; elements read and written by index, their reductions; embeddings.

The numbers of factories are traced, so that only size and dtype make a new program. Sums of lower precision are in
float32. An index out of bounds cannot be an error in a compiled program: what is read there is nan (the least number of
integer dtypes), and nothing is written.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import NAME, Tree
from ampcheck.jax_device.dispatch import checks
from ampcheck.jax_device.dispatch.kernels import assign, computed, fit
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import Number, compiled, lower
from ampcheck.jax_device.lowerings.accumulate import wide, widened
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
    # XLA multiplies by the inverse of what it knows, so that 50, 49, … 1 has 24.99… in its middle.
    step = (last - first) / jax.lax.optimization_barrier(jnp.float64(max(size - 1, 1)))
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


@lower("slice_backward")
def slice_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    """Return the gradient of a slice: zeros elsewhere, by padding, which XLA fuses."""
    dim %= len(input_sizes)
    begin = slice(start, end, step).indices(input_sizes[dim])[0]
    length = grad_output.shape[dim]
    behind = input_sizes[dim] - begin - ((length - 1) * step + 1 if length else 0)
    edges = [(begin, behind, step - 1) if d == dim else (0, 0, 0) for d in range(len(input_sizes))]
    return jax.lax.pad(grad_output, jnp.zeros((), grad_output.dtype), edges)


Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Places = tuple[Array | Ints | slice, ...]
"""An index for each dimension, as jnp takes it."""
MASKS = (jnp.bool_, jnp.uint8)


def is_mask(index: Array | None) -> TypeGuard[Array]:
    """Return whether the index selects where it is true, rather than counting."""
    return index is not None and index.dtype in MASKS


def _spread(indices: Sequence[Array | None], places: Callable[[Array], Places]) -> Places:
    """Return the indices for jnp: a mask as the places where it is true, a missing one as the whole dimension."""
    out: list[Array | Ints | slice] = []
    for index in indices:
        if index is None:
            out.append(slice(None))
        elif is_mask(index):
            out.extend(places(index) if index.ndim else (index != 0,))
        else:
            out.append(index)
    return tuple(out)


@lower("index.Tensor", "_unsafe_index.Tensor")
def index(self: Array, indices: Sequence[Array | None]) -> Array:
    """Return the elements at the broadcast places, of which none is a mask."""
    return self[tuple(slice(None) if index is None else index for index in indices)]


@kernel("index.Tensor")
def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Index by places: PyTorch's Meta kernel says the shape and the strides of these, and not of a mask."""
    given: list[Tensor | None] = []
    for place in indices:
        if place is None or place.dtype not in (torch.bool, torch.uint8):
            given.append(place)
            continue
        mask = np.asarray(transfer.values(place) if place.device.type == NAME else transfer.to_numpy(place))
        if not mask.ndim or self.shape[len(given) : len(given) + mask.ndim] != mask.shape:
            checks.on_cpu("index.Tensor", ((self, indices), {}))  # for its error
        given.extend(wrap(jax.device_put(places)) for places in np.nonzero(mask))
    return computed("index.Tensor")(self, given)  # type: ignore[no-any-return]


def _count(self: Array, indices: Sequence[Array | None], values: Array) -> int:
    """Return how many places a mask among the indices is to give: as many as what meets them, or at most all."""
    masks = [i for i in indices if is_mask(i)]
    lengths = [i.shape[-1] for i in indices if i is not None and not is_mask(i) and i.ndim]
    given = [d for d, i in enumerate(indices) if i is not None]
    # NumPy's rule: indices side by side put their dimensions in their place, others put them in front.
    adjacent = given[-1] - given[0] + 1 == len(given)
    used = sum(1 if not is_mask(i) else i.ndim for i in indices if i is not None)
    rest = self.ndim - used if not adjacent else self.ndim - used - given[0]
    if values.ndim > rest:
        lengths.append(values.shape[values.ndim - rest - 1])
    return int(next((n for n in lengths if n != 1), max(m.size for m in masks)))


@lower("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    """Return `self` with the values written, or added, at the broadcast places; where a mask is true, in order."""
    masks = [i for i in indices if is_mask(i)]
    if len(masks) == 1 == len(indices) and values.size == 1 and not accumulate:
        # One value for all places needs no places, whose number a program cannot know.
        mask = (masks[0] != 0).reshape(masks[0].shape + (1,) * (self.ndim - masks[0].ndim))
        return jnp.where(mask, values.reshape(()), self)
    count = _count(self, indices, values) if masks else 0
    beyond = max(self.shape, default=1)  # an index outside of every dimension, which `mode="drop"` leaves out

    def places(mask: Array) -> Places:
        return jnp.nonzero(mask != 0, size=count, fill_value=beyond)

    return _written(self, _spread(indices, places), values, accumulate)


lower("masked_fill.Scalar", "masked_fill.Tensor")(
    lambda self, mask, value: jnp.where(mask, jnp.asarray(value).astype(self.dtype), self)
)


@lower("masked_select", concrete=True)
def masked_select(self: Array, mask: Array) -> Array:
    """Return the elements where the broadcast mask is true, in order."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    return jnp.broadcast_to(self, shape)[jnp.broadcast_to(mask, shape)].reshape(-1)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """Return the gradient of `masked_scatter` by a source of these sizes: the gradients under the mask, then zeros."""
    shape = jnp.broadcast_shapes(grad_output.shape, mask.shape)
    mask = jnp.broadcast_to(mask, shape).reshape(-1)
    out = jnp.zeros(tuple(sizes), grad_output.dtype)
    place = jnp.where(mask, jnp.cumsum(mask.astype(jnp.int64)) - 1, out.size)
    taken = jnp.broadcast_to(grad_output, shape).reshape(-1)
    return out.reshape(-1).at[place].set(taken, mode="drop").reshape(out.shape)


@lower("put")
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """Return `self` with the elements of `source` written, or added, at places counted over all of it."""
    return _written(self.reshape(-1), index.reshape(-1), source.reshape(-1), accumulate).reshape(self.shape)


def _written(self: Array, where: Array | Places, values: Array, accumulate: bool) -> Array:
    """Return `self` with values written or added at places; adding truth values is "or"."""
    if not accumulate:
        return self.at[where].set(values, mode="drop")
    if self.dtype == jnp.bool_:
        return self.at[where].max(values, mode="drop")
    return wide(self).at[where].add(wide(values), mode="drop")


@lower("nonzero", concrete=True)
def nonzero(self: Array) -> Array:
    """Return the places, a row each, of what is not zero."""
    if not self.ndim:
        return jnp.zeros((int(self != 0), 0), jnp.int64)
    return jnp.stack(jnp.nonzero(self != 0), 1).astype(jnp.int64)


@lower("nonzero_static")
def nonzero_static(self: Array, *, size: int, fill_value: int = -1) -> Array:
    """Return the first `size` places of what is not zero, a row each, then rows of `fill_value`."""
    if not self.ndim or not self.size:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self != 0, size=size, fill_value=fill_value), 1).astype(jnp.int64)


@lower("repeat_interleave.Tensor", concrete=True)
def repeat_interleave(repeats: Array, *, output_size: int | None = None) -> Array:
    """Return the places 0, 1, …, each as often as `repeats` says."""
    places = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(places, repeats, total_repeat_length=output_size)


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """Return the place of each element of `index`, as `index` says along `dim` and its own in the other dimensions."""
    dim %= index.ndim
    own = [jax.lax.broadcasted_iota(jnp.int64, index.shape, d) for d in range(index.ndim)]
    return (*own[:dim], index, *own[dim + 1 :])


def _line(value: Array) -> Array:
    return value if value.ndim else value.reshape(1)


def _fitted(source: Number, index: Array) -> Array:
    """Return the part of `source` that is as large as `index`; of a number, a tensor filled with it."""
    given = jnp.asarray(source)
    if not given.ndim:
        return jnp.broadcast_to(given, index.shape)
    return given[tuple(slice(0, n) for n in index.shape)]


@lower("gather")
def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """Return the elements that `index` names along `dim`."""
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    return _line(self)[_grid(_line(index), dim)].reshape(index.shape)


def _given(src: Number | None, value: Number | None) -> Number:
    given = src if value is None else value
    assert given is not None  # the schema asks for one of the two
    return given


@lower("scatter.src", "scatter.value")
def scatter(self: Array, dim: int, index: Array, src: Number | None = None, *, value: Number | None = None) -> Array:
    """Return `self` with the elements of `src` written where `index` says along `dim`."""
    given = jnp.asarray(_given(src, value)).astype(self.dtype)
    where = _line(index)
    if not where.size:
        return self
    return _line(self).at[_grid(where, dim)].set(_fitted(given, where), mode="drop").reshape(self.shape)


@lower("scatter_reduce.two")
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Number, reduce: str, *, include_self: bool = True
) -> Array:
    """Return `self` with the elements of `src` combined where `index` says along `dim`."""
    if not index.size:
        return self
    return reduced(self, _grid(_line(index), dim), _fitted(src, _line(index)), reduce, include_self)


lower("scatter_add")(lambda self, dim, index, src: scatter_reduce(self, dim, index, src, "sum"))
lower("scatter.reduce", "scatter.value_reduce")(
    lambda self, dim, index, src=None, *, reduce, value=None: scatter_reduce(
        self, dim, index, _given(src, value), {"add": "sum", "multiply": "prod"}[reduce]
    )
)


@lower("index_reduce")
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Return `self` with the slices of `source` combined at the places in `index` along `dim`."""
    where = (slice(None),) * (dim % max(self.ndim, 1)) + (index.reshape(-1),)
    source = source if self.ndim else source.reshape(-1)
    return reduced(self, where, source, reduce, include_self)


def _neutral(dtype: np.dtype, reduce: str) -> float:
    """Return what changes nothing when combined with."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf if reduce == "amin" else -jnp.inf
    if dtype == jnp.bool_:
        return reduce == "amin"
    bounds = jnp.iinfo(dtype)
    return bounds.max if reduce == "amin" else bounds.min


def reduced(self: Array, where: tuple[Array | slice, ...], source: Array, reduce: str, include_self: bool) -> Array:
    """Return `self` with `source` combined at the places `where`: what was there takes part, or is replaced."""
    values, source = _line(wide(self)), wide(source).astype(wide(self).dtype)
    if not source.size:
        return self
    if not include_self:
        values = values.at[where].set(jnp.asarray(_neutral(values.dtype, reduce), values.dtype), mode="drop")
    at = values.at[where]
    if self.dtype == jnp.bool_ and reduce != "mean":
        # of truth values a sum is "or", a product "and"
        out = at.max(source, mode="drop") if reduce in ("sum", "amax") else at.min(source, mode="drop")
    elif reduce in ("sum", "mean"):
        out = at.add(source, mode="drop")
    elif reduce == "prod":
        out = at.multiply(source, mode="drop")
    else:
        out = (at.max if reduce == "amax" else at.min)(source, mode="drop")
    if reduce == "mean":
        out = _over(out, where, source, include_self)
    return out.reshape(self.shape)


def _over(total: Array, where: tuple[Array | slice, ...], source: Array, include_self: bool) -> Array:
    """Return the totals over how many elements each is of; integers are divided downwards."""
    count = jnp.full(total.shape, int(include_self), jnp.int64).at[where].add(1, mode="drop")
    count = jnp.maximum(count, 1)
    if jnp.issubdtype(total.dtype, jnp.integer):
        return jnp.floor_divide(total, count.astype(total.dtype))
    return total / count.astype(total.dtype)


_MEAN, _MAX = 1, 2  # the modes; 0 is the sum
_RENORM_FLOOR = 1e-7


@lower("embedding")
def embedding(weight: Array, indices: Array, *_: object) -> Array:
    """Return the rows at the indices; an index outside the table gives nan, as nothing can raise in a program."""
    return jnp.take(weight, indices, axis=0)


@lower("embedding_renorm")
@widened
def embedding_renorm(self: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    """Return the rows at the indices scaled down to a norm of `max_norm`, where it is greater."""
    norms = jnp.linalg.norm(self, ord=norm_type, axis=1, keepdims=True)
    named = jnp.zeros((self.shape[0], 1), bool).at[indices.reshape(-1)].set(True)
    return jnp.where(named & (norms > max_norm), self * (max_norm / (norms + _RENORM_FLOOR)), self)


def _bags(indices: Array, offsets: Array, bags: int) -> Array:
    """Return which bag each index lies in."""
    starts = jnp.zeros(indices.shape[0] + 1, jnp.int64).at[offsets[:bags]].add(1)
    return jnp.cumsum(starts[: indices.shape[0]]) - 1


@lower("_embedding_bag", "_embedding_bag_forward_only")
@widened
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Return each bag's sum, mean or maximum of rows, each index's bag, the bags' sizes, and the greatest rows."""
    count = offsets.shape[0] - include_last_offset
    bag = _bags(indices, offsets, count)
    kept = indices != padding_idx
    sizes = jnp.zeros(count, jnp.int64).at[bag].add(kept)
    rows = jnp.take(weight, indices, axis=0)
    padded = jnp.pad(sizes, (0, int(include_last_offset)))
    if mode == _MAX:
        out, greatest = _greatest(rows, kept, bag, indices, count)
        return out, bag, padded, greatest
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    out = jnp.zeros((count, weight.shape[1]), weight.dtype).at[bag].add(jnp.where(kept[:, None], rows, 0))
    if mode == _MEAN:
        out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    return out, bag, padded, jnp.zeros((0,), jnp.int64)


def _greatest(rows: Array, kept: Array, bag: Array, indices: Array, count: int) -> tuple[Array, Array]:
    """Return each bag's maximum by feature and the first index that has it; zero and -1 for an empty bag."""
    size, features = rows.shape
    rows = jnp.where(kept[:, None], rows, -jnp.inf)
    best = jnp.full((count, features), -jnp.inf, rows.dtype).at[bag].max(rows)
    first = jnp.where((rows == best[bag]) & kept[:, None], jnp.arange(size)[:, None], size)
    place = jnp.full((count, features), size).at[bag].min(first)
    found = place < size
    chosen = jnp.take(indices, place, mode="clip") if size else place
    return jnp.where(found, best, 0), jnp.where(found, chosen, -1)


@lower("_embedding_bag_dense_backward")
@widened
def _embedding_bag_dense_backward(grad: Array, indices: Array, *given: Tree) -> Array:
    """Return the gradient of the table.

    `given`: each index's bag, the bags' sizes and greatest rows; how many rows the table has, whether they count by how
    often they occur, the mode, each index's weight, and the index of padding.
    """
    offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, *padding = given
    table = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
    if mode == _MAX:
        rows = jnp.where(maximum_indices < 0, num_weights, maximum_indices)  # out of range: dropped
        return table.at[rows, jnp.arange(grad.shape[1])[None]].add(grad, mode="drop")
    by_index = grad[offset2bag]
    if mode == _MEAN:
        by_index = by_index / jnp.maximum(bag_size[offset2bag], 1)[:, None].astype(grad.dtype)
    if per_sample_weights is not None:
        by_index = by_index * per_sample_weights[:, None]
    if scale_grad_by_freq:
        by_index = by_index / jnp.bincount(indices, length=num_weights)[indices][:, None].astype(grad.dtype)
    return table.at[indices].add(jnp.where((indices != (padding or [-1])[0])[:, None], by_index, 0))


@lower("_embedding_bag_backward")
@widened
def _embedding_bag_backward(grad: Array, indices: Array, offsets: Array, *given: Tree) -> Array:
    *found, sparse, weights, padding_idx = (*given, -1)[:9]
    if sparse:
        raise NotImplementedError("the jax device has no sparse tensors: embedding_bag needs sparse=False")
    return _embedding_bag_dense_backward(grad, indices, *found, weights, padding_idx)


@lower("_embedding_bag_per_sample_weights_backward")
@widened
def embedding_bag_weights_backward(
    grad: Array, weight: Array, indices: Array, offsets: Array, offset2bag: Array, mode: int, padding_idx: int = -1
) -> Array:
    """Return the gradient of each index's weight."""
    by_index = jnp.sum(grad[offset2bag] * weight[indices], axis=1)
    return jnp.where(indices != padding_idx, by_index, 0)
