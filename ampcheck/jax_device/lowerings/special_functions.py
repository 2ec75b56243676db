"""`torch.special`: Bessel and Airy functions, polygamma and zeta."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.unary import digamma, floating, once

_MANY = 2.0**16  # terms that are added one by one; PyTorch has no bound


def _torchax(name: str) -> Computation:
    """Return torchax's lowering, for floating arrays: it has none of PyTorch's promotion."""

    def compute(self: Array) -> Array:
        from torchax.ops import jaten  # noqa: PLC0415  # a second of start-up, for eight rare functions

        out: Array = getattr(jaten, f"_aten_{name}")(floating(self))
        return out

    return compute


_BESSEL = [
    "special_bessel_j0",
    "special_bessel_j1",
    "special_bessel_y0",
    "special_bessel_y1",
    "special_modified_bessel_i0",
    "special_modified_bessel_i1",
    "special_modified_bessel_k0",
    "special_modified_bessel_k1",
]
for _name in _BESSEL:
    lower(_name)(_torchax(_name))


def _scaled_k(x: Array, order: float) -> Array:
    """Compute exp(x) K_order(x), x in float64: the integral of exp(-x (cosh t - 1)) cosh(order t) over t > 0.

    The trapezoidal rule converges exponentially here: with this step its error is below float64's.
    """
    step, count = 0.125, 220
    t = jnp.arange(count) * step
    weight = jnp.where(t == 0, 0.5, 1.0) * step * jnp.cosh(order * t)
    total = jnp.sum(weight * jnp.exp(-x[..., None] * (jnp.cosh(t) - 1)), axis=-1)
    return jnp.where(x > 0, total, jnp.where(x == 0, jnp.inf, jnp.nan))


def _scaled_modified_bessel_k(order: int) -> Computation:
    def compute(x: Array) -> Array:
        return _scaled_k(x.astype(jnp.float64), order).astype(x.dtype)

    return compute


lower("special_scaled_modified_bessel_k0")(once(_scaled_modified_bessel_k(0)))
lower("special_scaled_modified_bessel_k1")(once(_scaled_modified_bessel_k(1)))


@lower("special_spherical_bessel_j0")
@once
def spherical_bessel_j0(x: Array) -> Array:
    """Compute sin(x) / x, 1 at 0 and 0 at infinity."""
    safe = jnp.where((x == 0) | jnp.isinf(x), 1, x)
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(safe) / safe)).astype(x.dtype)


def _airy_series(x: Array) -> Array:
    """Return the power series about 0, for float64 x of magnitude up to 7."""
    first, second, cube = jnp.ones_like(x), x, x * x * x
    f, g = first, second
    for k in range(1, 40):
        first, second = first * cube / ((3 * k - 1) * (3 * k)), second * cube / ((3 * k) * (3 * k + 1))
        f, g = f + first, g + second
    return f / (3 ** (2 / 3) * math.gamma(2 / 3)) - g / (3 ** (1 / 3) * math.gamma(1 / 3))


def _airy_oscillating(x: Array) -> Array:
    """Return the asymptotic series for float64 x far below 0."""
    z = jnp.maximum(-x, 1.0)
    zeta = 2 / 3 * z * jnp.sqrt(z)
    terms = [1.0]
    for k in range(1, 14):
        terms.append(terms[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    even = sum((-1) ** (k // 2) * u / zeta**k for k, u in enumerate(terms) if k % 2 == 0)
    odd = sum((-1) ** (k // 2) * u / zeta**k for k, u in enumerate(terms) if k % 2)
    phase = zeta - jnp.pi / 4
    out: Array = (jnp.cos(phase) * even + jnp.sin(phase) * odd) / (jnp.sqrt(jnp.pi) * z**0.25)
    return out


@lower("special_airy_ai")
@once
def airy_ai(x: Array) -> Array:
    """Return the Airy function Ai."""
    wide = x.astype(jnp.float64)
    near = _airy_series(jnp.clip(wide, -7, 2))
    above = jnp.maximum(wide, 1.0)
    zeta = 2 / 3 * above * jnp.sqrt(above)
    decaying = jnp.sqrt(above / 3) / jnp.pi * _scaled_k(zeta, 1 / 3) * jnp.exp(-zeta)
    decaying = jnp.where(wide > 103.892, 0.0, decaying)
    out = jnp.where(wide > 2, decaying, jnp.where(wide < -7, _airy_oscillating(wide), near))
    return jnp.where(jnp.isfinite(wide), out, jnp.nan).astype(x.dtype)


def _hurwitz(x: Array, q: Array) -> Array:
    """Compute the Hurwitz zeta function, of negative q too: terms up to q > 0 are added one by one, as PyTorch does."""
    x, q = jnp.broadcast_arrays(x, q)
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == jnp.floor(q)))

    def below(state: tuple[Array, Array]) -> Array:
        return jnp.any((state[1] <= 0) & (state[1] > -_MANY))

    def added(state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, at = state
        more = (at <= 0) & (at > -_MANY)
        return jnp.where(more, total + jnp.power(at, -x), total), jnp.where(more, at + 1, at)

    total, q = jax.lax.while_loop(below, added, (jnp.zeros_like(q), jnp.where(pole | (x < 1), 1, q)))
    return jnp.where(pole, jnp.inf, jnp.where(x < 1, jnp.nan, total + jax.lax.zeta(x, q)))


@lower("special_zeta", promotes=True)
def zeta(self: Array, other: Array) -> Array:
    """Return the Hurwitz zeta function."""
    return _hurwitz(*(floating(jnp.asarray(a)) for a in (self, other)))


def _trigamma(x: Array) -> Array:
    """Return the second derivative of the logarithm of gamma, reflected for x below 1/2."""
    reflected = x < 0.5
    sine = jnp.sin(jnp.pi * x)
    y = jnp.where(reflected, 1 - x, x)
    total = jnp.zeros_like(x)
    for _ in range(6):
        total, y = total + 1 / (y * y), y + 1
    inverse = 1 / (y * y)
    total = total + (1 + 1 / (2 * y) + inverse * (1 / 6 - inverse * (1 / 30 - inverse / 42))) / y
    return jnp.where(reflected, jnp.pi * jnp.pi / (sine * sine) - total, total)


@lower("polygamma")
def polygamma(n: int, self: Array) -> Array:
    """Return the n-th derivative of digamma; from n = 2 on by the zeta function, as PyTorch has it."""

    def later(x: Array) -> Array:
        return (1.0 if n % 2 else -1.0) * math.factorial(n) * _hurwitz(jnp.asarray(n + 1, x.dtype), x)

    out: Array = once(digamma if n == 0 else _trigamma if n == 1 else later)(self)
    return out
