"""Elementwise functions with PyTorch's promotion.

Operands reach a formula in their common dtype. What says "wide" has several steps, so it is computed in float32 for
float16 and bfloat16 and rounded once; a single step rounds once by itself. Of integers most functions of one tensor
give floating results. Polynomials follow their three-term recurrences: p(k + 1) from x, k, p(k) and p(k - 1).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import torch
from jax import Array

from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import wide, widened


def floating(x: Array) -> Array:
    """Return the array, integers and bools in PyTorch's default floating dtype."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jax_dtype(torch.get_default_dtype()))


def once(function: Computation) -> Computation:
    """Wrap a function of a floating array: low precision is computed in float32 and rounded once."""

    def compute(self: Array, *args: Array) -> Array:
        x = floating(self)
        out: Array = function(wide(x), *args)
        return out.astype(x.dtype)

    return compute


def digamma(x: Array) -> Array:
    """Return the derivative of the logarithm of gamma, with PyTorch's infinities at both zeros."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


def _erfcx(x: Array) -> Array:
    """Compute exp(x²) erfc(x): the product where nothing overflows, a continued fraction for large x."""
    large = jnp.maximum(x, 5.0)
    tail = jnp.zeros_like(x)
    for k in range(40, 0, -1):
        tail = (k / 2) / (large + tail)
    # x * x rounds; what is lost matters, as exp multiplies it.
    safe = jnp.minimum(x, 5.0)
    wide = safe.astype(jnp.float64)
    product = jnp.exp(wide * wide) * jax.lax.erfc(wide)
    return jnp.where(x > 5, 1 / (jnp.sqrt(jnp.pi) * (large + tail)), product.astype(x.dtype))


_AS_IN_NUMPY = (
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 sin sinc sinh sqrt tan tanh"
)
_FUNCTIONS: dict[str, Computation] = {
    **{name: getattr(jnp, name) for name in _AS_IN_NUMPY.split()},
    **{f"special_{name}": getattr(special, name) for name in ("i0e", "i1", "i1e", "ndtri")},
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "erfinv": jax.lax.erf_inv,
    "digamma": digamma,
    "lgamma": special.gammaln,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": jax.lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "special_erfcx": _erfcx,
    "i0": special.i0,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
}
for _name, _function in _FUNCTIONS.items():
    lower(_name)(once(_function))
lower("mvlgamma")(
    once(lambda x, p: sum(special.gammaln(x - i / 2) for i in range(p)) + p * (p - 1) / 4 * math.log(math.pi))
)


def _kept(function: Computation) -> Computation:
    """Wrap a function of floating arrays; an integer is its own result."""
    return lambda self: function(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self


_ROUNDING: dict[str, Computation] = {
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "trunc": jnp.trunc,
    "round": jnp.round,
    "frac": lambda x: x - jnp.trunc(x),
}
for _name, _function in _ROUNDING.items():
    lower(_name)(_kept(_function))
lower("abs")(jnp.abs)
lower("neg")(jnp.negative)
lower("conj_physical", "_conj_physical")(jnp.conj)


@lower("sign")
def sign(self: Array) -> Array:
    """Return -1, 0 or 1; 0 of nan; a bool as it is."""
    # JAX's sign of nan is nan, PyTorch's is 0.
    return self if self.dtype == jnp.bool_ else jnp.where(jnp.isnan(self), jnp.zeros_like(self), jnp.sign(self))


# of a complex number, the number of magnitude 1 in its direction
lower("sgn")(lambda self: jnp.sign(self) if jnp.iscomplexobj(self) else sign(self))


@lower("angle")
def angle(self: Array) -> Array:
    """Return the angle of a complex number; of a real one 0 or pi, and nan of nan."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    x = wide(floating(self))
    out = jnp.where(x < 0, jnp.asarray(jnp.pi, x.dtype), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, out)


def _scaled(value: Number, alpha: Number | None) -> Number:
    return value if alpha is None else jnp.multiply(value, alpha)


def filled(number: Number, like: Array) -> Number:
    """Return a number as an array of that dtype and shape, which a program has once; anything else as it is."""
    if not isinstance(number, jax.Array) or number.ndim or jnp.result_type(number, like) != like.dtype:
        return number
    return jnp.broadcast_to(number.astype(like.dtype), like.shape)


_EXACT: dict[tuple[str, ...], Computation] = {
    ("add.Tensor", "add.Scalar"): lambda x, other, alpha=None: jnp.add(x, _scaled(other, alpha)),
    ("sub.Tensor", "sub.Scalar"): lambda x, other, alpha=None: jnp.subtract(x, _scaled(other, alpha)),
    ("rsub.Tensor", "rsub.Scalar"): lambda x, other, alpha=None: jnp.subtract(other, _scaled(x, alpha)),
    ("mul.Tensor", "mul.Scalar"): lambda x, other: jnp.multiply(x, other),
    ("div.Tensor", "div.Scalar"): lambda x, other: jnp.true_divide(x, other),
    ("maximum", "clamp_min", "clamp_min.Tensor"): lambda x, other: jnp.maximum(x, other),
    ("minimum", "clamp_max", "clamp_max.Tensor"): lambda x, other: jnp.minimum(x, other),
}
_WIDE: dict[tuple[str, ...], Computation] = {
    ("fmod.Tensor", "fmod.Scalar"): lambda x, other: jnp.fmod(x, other),
    # the rest of the division that rounds down, which has the divisor's sign
    ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"): lambda x, other: jnp.remainder(x, other),
    ("addcmul",): lambda x, first, second, value=None: x + _scaled(first, value) * second,
    ("addcdiv",): lambda x, first, second, value=None: x + _scaled(first / second, value),
    ("logaddexp",): lambda x, other: jnp.logaddexp(x, other),
    ("logaddexp2",): lambda x, other: jnp.logaddexp2(x, other),
}
for _names, _formula in _EXACT.items():
    lower(*_names, promotes=True)(_formula)
for _names, _formula in _WIDE.items():
    lower(*_names, promotes=True)(widened(_formula))


@lower("div.Tensor_mode", "div.Scalar_mode", promotes=True)
def _div_mode(self: Array, other: Number, *, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return jnp.true_divide(self, other)
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if _integral(self, other):
        return jax.lax.div(*jnp.broadcast_arrays(self, jnp.asarray(other).astype(jnp.result_type(self))))
    quotient = jnp.true_divide(self, other)
    info = jnp.finfo(quotient.dtype)  # XLA may keep the quotient in float32, where 17.99 is not bfloat16's 18
    return jnp.trunc(jax.lax.reduce_precision(quotient, info.nexp, info.nmant))


def _integral(*operands: Number) -> bool:
    return not jnp.issubdtype(jnp.result_type(*operands), jnp.inexact)


@lower("floor_divide", "floor_divide.Scalar", promotes=True)
@widened
def _floor_divide(self: Array, other: Number) -> Array:
    """Divide and round down; floating numbers by their remainder, as Python does, so that it is exact."""
    if _integral(self, other):
        return jnp.floor_divide(self, other)
    left = jnp.fmod(self, other)
    quotient = (self - left) / other
    quotient = jnp.where((left != 0) & ((left < 0) != (jnp.asarray(other) < 0)), quotient - 1, quotient)
    down = jnp.floor(quotient)
    down = jnp.where(quotient - down > 0.5, down + 1, down)
    plain = self / other
    return jnp.where(jnp.asarray(other) == 0, plain, jnp.where(quotient != 0, down, jnp.copysign(0.0, plain)))


@lower("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", promotes=True)
@widened
def _power(self: Number, exponent: Number) -> Array:
    """Return self ** exponent; a negative power of an integer is 0 where the base is neither 1 nor -1."""
    base, raised = jnp.asarray(self), jnp.asarray(exponent)
    if _integral(self, exponent):
        dtype = jnp.result_type(self, exponent)
        base, raised = base.astype(dtype), raised.astype(dtype)
        out = jnp.power(base, jnp.maximum(raised, 0))
        if jnp.issubdtype(dtype, jnp.unsignedinteger):
            return out
        odd = jnp.where(raised % 2 == 0, 1, base)
        return jnp.where(raised < 0, jnp.where(jnp.abs(base) == 1, odd, 0), out)
    if raised.ndim or not base.ndim or jnp.issubdtype(raised.dtype, jnp.complexfloating):
        return jnp.power(self, exponent)
    floating = base if jnp.issubdtype(base.dtype, jnp.inexact) else base.astype(jnp.result_type(self, exponent))
    # PyTorch computes a square as a product, whose last bit differs from the power's. The exponent is traced.
    chosen: Array = jax.lax.cond(
        raised == 2, lambda x: x * x, lambda x: jnp.power(x, exponent).astype(x.dtype), floating
    )
    return chosen


@lower("clamp", "clamp.Tensor", promotes=True)
def _clamp(self: Array, min: Number | None = None, max: Number | None = None) -> Array:
    """Keep the tensor within the bounds; the upper one wins where they cross."""
    out = self if min is None else jnp.maximum(self, min)
    return out if max is None else jnp.minimum(out, max)


@lower("lerp.Scalar", "lerp.Tensor")
@widened
def lerp(self: Array, end: Array, weight: Number) -> Array:
    """Go from `self` to `end`, computed from whichever is nearer, so that weight 1 gives `end` itself."""
    near, off = jnp.abs(weight) < 0.5, end - self
    there, back = self + filled(weight, off) * off, end - off * filled(1 - weight, off)
    return jax.lax.select(jnp.broadcast_to(near, there.shape if near.ndim else ()), there, back)


lower("where.self")(lambda condition, self, other: jnp.where(condition.astype(jnp.bool_), self, other))


class Family(NamedTuple):
    """The polynomial of degree 1, and the recurrence."""

    first: Computation
    following: Computation


_CHEBYSHEV: dict[str, Computation] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
FAMILIES = {
    **{
        f"chebyshev_polynomial_{kind}": Family(first, lambda x, k, p, before: 2 * x * p - before)
        for kind, first in _CHEBYSHEV.items()
    },
    "legendre_polynomial_p": Family(lambda x: x, lambda x, k, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1)),
    "laguerre_polynomial_l": Family(
        lambda x: 1 - x, lambda x, k, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1)
    ),
    "hermite_polynomial_h": Family(lambda x: 2 * x, lambda x, k, p, before: 2 * x * p - 2 * k * before),
    "hermite_polynomial_he": Family(lambda x: x, lambda x, k, p, before: x * p - k * before),
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


def _polynomial(family: Family, x: Array, n: Array, *, shifted: bool = False) -> Array:
    x, n = jnp.broadcast_arrays(floating(jnp.asarray(x)), jnp.asarray(n))
    degree = jnp.where(jnp.isfinite(n), n, -1).astype(jnp.int64)  # an infinite loop would be as long
    return evaluate(family, 2 * x - 1 if shifted else x, degree)


for _name, _family in FAMILIES.items():
    lower(f"special_{_name}")(partial(_polynomial, _family))
    if _name.startswith("chebyshev"):
        lower(f"special_shifted_{_name}")(partial(_polynomial, _family, shifted=True))


_MANY = 2.0**16  # terms that are added one by one; PyTorch has no bound


def _by_torchax(name: str, self: Array) -> Array:
    """Compute as torchax does, of floating arrays: it has none of PyTorch's promotion."""
    from torchax.ops import jaten  # noqa: PLC0415  # a second of start-up, for six rare functions

    out: Array = getattr(jaten, f"_aten_{name}")(floating(self))
    return out


for _kind in ("bessel_j", "bessel_y", "modified_bessel_k"):
    for _name in (f"special_{_kind}0", f"special_{_kind}1"):
        lower(_name)(partial(_by_torchax, _name))


def _scaled_k(x: Array, order: float) -> Array:
    """Compute exp(x) K_order(x), x in float64: the integral of exp(-x (cosh t - 1)) cosh(order t) over t > 0.

    The trapezoidal rule converges exponentially here: with this step, for the peak at 0 that is narrower the larger x
    is, its error is below float64's.
    """
    x = x[..., None]
    step, count = 0.125 / jnp.sqrt(jnp.maximum(x, 1)), jnp.arange(220)
    t = count * step
    weight = jnp.where(count == 0, 0.5, 1.0) * step * jnp.cosh(order * t)
    total = jnp.sum(weight * jnp.exp(-2 * x * jnp.sinh(t / 2) ** 2), axis=-1)
    x = x[..., 0]
    return jnp.where(jnp.isposinf(x), 0, jnp.where(x > 0, total, jnp.where(x == 0, jnp.inf, jnp.nan)))


lower("special_scaled_modified_bessel_k0")(once(lambda x: _scaled_k(x.astype(jnp.float64), 0).astype(x.dtype)))
lower("special_scaled_modified_bessel_k1")(once(lambda x: _scaled_k(x.astype(jnp.float64), 1).astype(x.dtype)))


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


@lower("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", promotes=True)
def zeta(x: Array | float, q: Array | float) -> Array:
    """Compute the Hurwitz zeta function, of which one argument may be a number."""
    dtype = next(floating(a).dtype for a in (x, q) if isinstance(a, jax.Array))
    return _hurwitz(jnp.asarray(x, dtype), jnp.asarray(q, dtype))


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


def _quantized(
    self: Array, scale: float | Array, zero_point: float | Array, least: int, most: int
) -> tuple[Array, Array]:
    values = wide(self)
    step = jnp.asarray(scale).astype(values.dtype)
    # PyTorch multiplies by the inverse, which rounds otherwise than a division.
    steps = jnp.round(values * (1 / step)) + jnp.asarray(zero_point).astype(values.dtype)
    inside = (steps >= least) & (steps <= most)
    return ((jnp.clip(steps, least, most) - zero_point) * step).astype(self.dtype), inside


lower("fake_quantize_per_tensor_affine_cachemask")(_quantized)


@lower("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_given_as_tensors(
    self: Array, scale: Array, zero_point: Array, fake_quant_enabled: Array, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """Return the same, of one-element tensors; the values stay where it is not enabled."""
    out, inside = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return jnp.where(enabled, out, self), inside | ~enabled


@lower("fake_quantize_per_channel_affine_cachemask")
def per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """Quantize by a scale and a zero point for each place along `axis`."""
    column = [-1 if i == axis % self.ndim else 1 for i in range(self.ndim)]
    return _quantized(self, scale.reshape(column), zero_point.reshape(column), quant_min, quant_max)
