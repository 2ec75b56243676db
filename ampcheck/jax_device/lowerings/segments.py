"""`segment_reduce`: reductions of consecutive runs of elements, given by their lengths or by where they start."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, Number, lower

_START: dict[str, float] = {"max": -float("inf"), "min": float("inf"), "sum": 0.0, "mean": 0.0, "prod": 1.0}
_COMBINED: dict[str, Computation] = {
    "max": jnp.maximum,
    "min": jnp.minimum,
    "sum": jnp.add,
    "mean": jnp.add,
    "prod": jnp.multiply,
}
_OVER: dict[str, Computation] = {
    "max": jax.ops.segment_max,
    "min": jax.ops.segment_min,
    "sum": jax.ops.segment_sum,
    "mean": jax.ops.segment_sum,
    "prod": jax.ops.segment_prod,
}


def _ends(lengths: Array | None, offsets: Array | None) -> tuple[Array, Array]:
    """Return length and end of each segment, of shape (rows, segments): the dimensions before the axis are rows."""
    if offsets is not None:
        offsets = offsets.reshape(-1, offsets.shape[-1])
        return offsets[:, 1:] - offsets[:, :-1], offsets[:, 1:]
    assert lengths is not None  # a call gives one of the two
    lengths = lengths.reshape(-1, lengths.shape[-1])
    return lengths, jnp.cumsum(lengths, axis=-1)


def _places(ends: Array, lengths: Array, count: int) -> Array:
    """Return the segment of each of the `count` elements of a row; one past the last for elements in none."""
    at = jnp.arange(count)
    found = jax.vmap(lambda e: jnp.searchsorted(e, at, side="right"))(ends)
    # Offsets may start behind the first element; what lies before them is in no segment.
    first = (ends - lengths)[:, :1] if ends.shape[1] else jnp.zeros((ends.shape[0], 1), ends.dtype)
    return jnp.where(at < first, ends.shape[1], found)


def _each(rows: Array, places: Array, segments: int, reduce: str) -> Array:
    """Return each row's reduction per segment, of shape (rows, segments, rest)."""
    over = _OVER[reduce]
    out: Array = jax.vmap(lambda row, place: over(row, place, num_segments=segments))(rows, places)
    return out


@lower("segment_reduce")
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Array:
    """Reduce each segment of the dimension `axis`; a mean of no elements is nan unless `initial` is given."""
    length, end = _ends(lengths, offsets)
    segments = end.shape[1]
    shape = (*data.shape[:axis], segments, *data.shape[axis + 1 :])
    if not data.size and not segments:
        return jnp.zeros(shape, data.dtype)
    rows = data.reshape(end.shape[0], data.shape[axis], -1)
    out = _each(rows, _places(end, length, data.shape[axis]), segments, reduce)
    start = _START[reduce] if initial is None else initial
    out = _COMBINED[reduce](out, jnp.asarray(start, out.dtype))
    if reduce == "mean":
        count = length[..., None].astype(out.dtype)
        empty = jnp.nan if initial is None else out
        out = jnp.where(count == 0, empty, out / jnp.maximum(count, 1))
    return out.reshape(shape)


@lower("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Number | None = None,
) -> Array:
    """Return the gradient of `data`: equal extrema share it; elements in no segment have none."""
    length, end = _ends(lengths, offsets)
    segments = end.shape[1]
    if not data.size:
        return jnp.zeros_like(data)
    rows = data.reshape(end.shape[0], data.shape[axis], -1)
    places = _places(end, length, data.shape[axis])

    def spread(values: Array) -> Array:
        """Return each segment's value at its elements, 0 at elements in no segment."""
        padded = jnp.pad(values.reshape(end.shape[0], segments, -1), ((0, 0), (0, 1), (0, 0)))
        return jnp.take_along_axis(padded, places[..., None], axis=1)

    given = spread(grad)
    if reduce == "mean":
        given = given / jnp.maximum(
            spread(jnp.broadcast_to(length[..., None], grad.reshape(given.shape[0], segments, -1).shape)), 1
        )
    elif reduce in ("max", "min"):
        chosen = ((rows == spread(output)) | jnp.isnan(rows)).astype(rows.dtype)
        given = given * chosen / jnp.maximum(spread(_each(chosen, places, segments, "sum")), 1)
    elif reduce == "prod":
        given = given * _others(rows, places, segments, spread, 1.0 if initial is None else initial)
    return given.reshape(data.shape)


def _others(rows: Array, places: Array, segments: int, spread: Callable[[Array], Array], start: Number) -> Array:
    """Return, at each element, the product of `start` and the segment's other elements, also where it is zero."""
    zero = rows == 0
    product = spread(_each(jnp.where(zero, 1, rows), places, segments, "prod") * start)
    zeros = spread(_each(zero.astype(rows.dtype), places, segments, "sum"))
    return jnp.where(zero, jnp.where(zeros == 1, product, 0), jnp.where(zeros == 0, product / rows, 0))
