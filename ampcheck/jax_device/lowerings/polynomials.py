"""Orthogonal polynomials by their three-term recurrences: p(k + 1) from x, k, p(k) and p(k - 1)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.unary import floating


class Family(NamedTuple):
    """The polynomial of degree 1, and the recurrence."""

    first: Computation
    following: Computation


def _chebyshev(x: Array, k: Array, p: Array, before: Array) -> Array:
    return 2 * x * p - before


def _legendre(x: Array, k: Array, p: Array, before: Array) -> Array:
    return ((2 * k + 1) * x * p - k * before) / (k + 1)


def _laguerre(x: Array, k: Array, p: Array, before: Array) -> Array:
    return ((2 * k + 1 - x) * p - k * before) / (k + 1)


def _hermite_h(x: Array, k: Array, p: Array, before: Array) -> Array:
    return 2 * x * p - 2 * k * before


def _hermite_he(x: Array, k: Array, p: Array, before: Array) -> Array:
    return x * p - k * before


FAMILIES = {
    "chebyshev_polynomial_t": Family(lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": Family(lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": Family(lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": Family(lambda x: 2 * x + 1, _chebyshev),
    "legendre_polynomial_p": Family(lambda x: x, _legendre),
    "laguerre_polynomial_l": Family(lambda x: 1 - x, _laguerre),
    "hermite_polynomial_h": Family(lambda x: 2 * x, _hermite_h),
    "hermite_polynomial_he": Family(lambda x: x, _hermite_he),
}


def evaluate(family: Family, x: Array, n: Array) -> Array:
    """Return the polynomial of degree n (integers, of x's shape) at x; 0 for a negative degree."""
    last = jnp.max(n, initial=1)

    def following(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        before, p = state
        more = k < n
        new = family.following(x, jnp.asarray(k, x.dtype), p, before)
        return jnp.where(more, p, before), jnp.where(more, new, p)

    _, p = jax.lax.fori_loop(1, last, following, (jnp.ones_like(x), family.first(x)))
    return jnp.where(n < 0, 0, jnp.where(n == 0, 1, p)).astype(x.dtype)


def _lowering(family: Family, shifted: bool) -> Computation:
    def compute(x: Array, n: Array) -> Array:
        x, n = jnp.broadcast_arrays(floating(jnp.asarray(x)), jnp.asarray(n))
        degree = jnp.where(jnp.isfinite(n), n, -1).astype(jnp.int64)  # an infinite loop would be as long
        return evaluate(family, 2 * x - 1 if shifted else x, degree)

    return compute


for _name, _family in FAMILIES.items():
    lower(f"special_{_name}")(_lowering(_family, shifted=False))
    if _name.startswith("chebyshev"):
        lower(f"special_shifted_{_name}")(_lowering(_family, shifted=True))
