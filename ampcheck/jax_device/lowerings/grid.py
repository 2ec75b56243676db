"""Sampling an image at the places of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.wide import pullback, wanted, widened

_NEAREST, _BICUBIC = 1, 2  # interpolation modes; 0 is linear
_BORDER, _REFLECTION = 1, 2  # padding modes; 0 is zeros
_KEYS = -0.75


def _place(normal: Array, length: int, align_corners: bool) -> Array:
    """Convert a coordinate in [-1, 1] to elements."""
    return (normal + 1) / 2 * (length - 1) if align_corners else ((normal + 1) * length - 1) / 2


def _inside(place: Array, length: int, padding: int, align_corners: bool) -> Array:
    """Return the place after padding; its gradient is zero where it was clipped, also on the edge itself."""
    if padding == _REFLECTION:
        low, span = (0.0, length - 1) if align_corners else (-0.5, length)
        if span == 0:
            return jnp.zeros_like(place)
        distance = jnp.abs(place - low)
        rest, turns = jax.lax.rem(distance, jnp.full_like(distance, span)), jnp.floor(distance / span)
        place = jnp.where(turns % 2 == 0, rest, span - rest) + low
    if padding in (_BORDER, _REFLECTION):
        place = jax.lax.clamp(jnp.zeros((), place.dtype), place, jnp.asarray(length - 1, place.dtype))
    return place


def _fetch(flat: Array, size: Sequence[int], places: Sequence[Array]) -> Array:
    """Return the values at whole places, zero outside. flat: (N, C, elements); places: (N, outputs) each."""
    index, valid = jnp.zeros((), jnp.int64), jnp.ones((), jnp.bool_)
    for place, length in zip(places, size, strict=True):
        valid = valid & (place >= 0) & (place <= length - 1)
        # outside it is any valid place: its value is dropped below
        index = index * length + jnp.clip(jnp.nan_to_num(place), 0, length - 1).astype(jnp.int64)
    index = jnp.broadcast_to(index[:, None], (*flat.shape[:2], index.shape[-1]))
    return jnp.where(valid[:, None], jnp.take_along_axis(flat, index, axis=2), 0)


def _cubic(x: Array) -> Array:
    x = jnp.abs(x)
    near = ((_KEYS + 2) * x - (_KEYS + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _KEYS
    return jnp.where(x <= 1, near, far)


def _weighted(
    flat: Array,
    size: Sequence[int],
    places: Sequence[Array],
    offsets: Sequence[int],
    weigh: Computation,
    pad: Callable[[Array, int], Array],
) -> Array:
    out = jnp.zeros((), flat.dtype)
    floors = [jax.lax.stop_gradient(jnp.floor(p)) for p in places]
    for corner in itertools.product(offsets, repeat=len(size)):
        weight = math.prod(weigh(p - (f + c)) for p, f, c in zip(places, floors, corner, strict=True))
        taken = _fetch(flat, size, [pad(f + c, n) for f, c, n in zip(floors, corner, size, strict=True)])
        out = out + taken * weight[:, None]
    return out


@lower("grid_sampler_2d", "grid_sampler_3d")
@widened
def grid_sampler(input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    """Sample (N, C, …) at the grid (N, …, dims), whose coordinates are x first and in [-1, 1]."""
    size, shape = input.shape[2:], grid.shape[1:-1]
    flat = input.reshape(*input.shape[:2], math.prod(size))
    rows = grid.reshape(grid.shape[0], math.prod(shape), len(size))
    places = [_place(rows[..., len(size) - 1 - i], n, align_corners) for i, n in enumerate(size)]

    def pad(place: Array, length: int) -> Array:
        return _inside(place, length, padding_mode, align_corners)

    if interpolation_mode == _BICUBIC:
        out = _weighted(flat, size, places, (-1, 0, 1, 2), _cubic, pad)
    else:
        places = [pad(p, n) for p, n in zip(places, size, strict=True)]
        if interpolation_mode == _NEAREST:
            out = _fetch(flat, size, [jnp.round(p) for p in places])
        else:
            out = _weighted(flat, size, places, (0, 1), lambda x: 1 - jnp.abs(x), lambda p, _: p)
    return out.reshape(*input.shape[:2], *shape)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
@widened
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    """Return the gradients of input and grid that the mask asks for."""

    def forward(x: Array, g: Array) -> Array:
        return grid_sampler(x, g, interpolation_mode, padding_mode, align_corners)

    grads = pullback(forward, grad_output, input, grid)
    return wanted(output_mask, *grads)


@kernel("_grid_sampler_2d_cpu_fallback")
def fallback(
    input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tree:
    """Call grid_sampler_2d; PyTorch's own kernel of this overload reads CPU memory, on any device."""
    return computed("grid_sampler_2d")(input, grid, interpolation_mode, padding_mode, align_corners)


@kernel("_grid_sampler_2d_cpu_fallback_backward")
def fallback_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Tree:
    """Return the gradients of input and grid."""
    compute = computed("grid_sampler_2d_backward")
    return compute(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, [True, True])
