"""Random numbers: each computation takes a JAX random key first.

Low-precision results are computed in float32 and rounded once. As on CUDA, what a tensor argument holds (a probability
outside [0, 1], a negative standard deviation) is not looked at. The numbers of in-place ops are checked in words of
PyTorch's CPU kernels: they are no part of the compiled program, and PyTorch's Meta kernels, which are asked once per
program, check few of them.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import Args, Tree
from ampcheck.jax_device.dispatch.kernels import assign, computed, fit
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, Number, arguments, lower, overload
from ampcheck.jax_device.lowerings.accumulate import rounded
from ampcheck.jax_device.lowerings.pointwise import digamma, floating
from ampcheck.jax_device.storage.arrays import wrap


def drawn_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers for a tensor of `dtype` are drawn: float64 for 64-bit parts, else float32."""
    return np.dtype(np.float64 if dtype in (jnp.float64, jnp.complex128) else np.float32)


def _positive(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Draw uniform numbers of the open interval (0, 1) for a tensor of `dtype`."""
    drawn = drawn_dtype(dtype)
    return jax.random.uniform(key, shape, drawn, minval=jnp.finfo(drawn).tiny, maxval=1.0)


@lower("uniform", random=True, traced=("from", "to"))
def uniform(key: Array, self: Array, low: float | Array = 0.0, high: float | Array = 1.0) -> Array:
    """Draw uniform numbers of [low, high); one that rounds to `high` becomes `low`."""
    drawn = jax.random.uniform(key, self.shape, drawn_dtype(self.dtype))
    scaled = (low + drawn * (high - low)).astype(self.dtype)
    # Rounding to bfloat16 may reach `high`, which the half-open range does not hold.
    return jnp.where(scaled < jnp.asarray(high).astype(self.dtype), scaled, jnp.asarray(low).astype(self.dtype))


def standard_normal(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Draw normal numbers of mean 0 and variance 1; of a complex one each part has variance 1/2."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, dtype)
    return jax.random.normal(key, shape, drawn_dtype(dtype))


@lower("normal_functional", random=True, traced=("mean", "std"))
def normal(key: Array, self: Array, mean: float | Array = 0.0, std: float | Array = 1.0) -> Array:
    """Draw normal numbers; PyTorch adds the mean to both parts of a complex number."""
    drawn = standard_normal(key, self.shape, self.dtype) * std
    complex_ = jnp.issubdtype(self.dtype, jnp.complexfloating)
    return drawn + (mean * jnp.asarray(1 + 1j, self.dtype) if complex_ else mean)


@lower("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", random=True, traced=("mean", "std"))
def normal_of(key: Array, mean: Array | float, std: Array | float = 1.0) -> Array:
    given = [a.dtype for a in (mean, std) if isinstance(a, Array) and not a.weak_type]
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    return mean + std * standard_normal(key, shape, jnp.result_type(*given))


def _integers(key: Array, shape: Sequence[int], low: Number, span: Number) -> Array:
    """Draw from `span` integers from `low` on (0: all 2**64), as int64; the modulo's bias is below span / 2**64."""
    bits = jax.random.bits(key, shape, jnp.uint64)
    span = jnp.asarray(span).astype(jnp.uint64)
    within = jnp.where(span == 0, bits, bits % jnp.maximum(span, 1))
    return (within + jnp.asarray(low).astype(jnp.int64).astype(jnp.uint64)).astype(jnp.int64)


def _largest(dtype: np.dtype) -> int:
    """Return the largest integer `random_()` gives: up to it a floating dtype holds every integer."""
    if dtype == jnp.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max)
    return int(2 ** (jnp.finfo(dtype).nmant + 1))


# Each overload and what it draws of a key, the tensor and its numbers.
_DRAWN: dict[tuple[str, ...], Computation] = {
    # 1 with a probability, else 0
    ("bernoulli",): lambda key, self: jax.random.uniform(key, self.shape, drawn_dtype(self.dtype)) < self,
    ("bernoulli.p", "bernoulli.Tensor"): lambda key, self, p=0.5: (
        jax.random.uniform(key, self.shape, drawn_dtype(jnp.asarray(p).dtype)) < p
    ),
    ("exponential",): lambda key, self, lambd=1.0: -jnp.log(_positive(key, self.shape, self.dtype)) / lambd,
    ("cauchy",): lambda key, self, median=0.0, sigma=1.0: (
        median + sigma * jnp.tan(jnp.pi * (_positive(key, self.shape, self.dtype) - 0.5))
    ),
    # numbers whose logarithm is normal
    ("log_normal",): lambda key, self, mean=1.0, std=2.0: jnp.exp(
        mean + std * standard_normal(key, self.shape, self.dtype)
    ),
    # how many trials of probability p it takes to succeed
    ("geometric",): lambda key, self, p: jnp.maximum(
        jnp.ceil(jnp.log(_positive(key, self.shape, np.dtype(np.float64))) / jnp.log1p(-p)), 1.0
    ),
    # integers up to the largest one that counts exactly in the dtype, or below a bound
    ("random",): lambda key, self: _integers(key, self.shape, 0, jnp.uint64(_largest(self.dtype) + 1)),
    ("random.to",): lambda key, self, to: _integers(key, self.shape, 0, to),
    ("poisson",): lambda key, self: jax.random.poisson(
        key, self.astype(drawn_dtype(self.dtype)), self.shape, jnp.int64
    ),
}
_TRACED = ("p", "lambd", "median", "sigma", "mean", "std", "to")
for _names, _compute in _DRAWN.items():
    lower(*_names, random=True, traced=_TRACED)(_compute)


@lower("random.from", random=True, traced=("from", "to"))
def integers_from(key: Array, self: Array, low: int | Array, to: int | Array | None) -> Array:
    """Draw integers of [low, to), or up to the dtype's largest one."""
    below = jnp.uint64(_largest(self.dtype) + 1) if to is None else jnp.asarray(to).astype(jnp.uint64)
    return _integers(key, self.shape, low, below - jnp.asarray(low).astype(jnp.int64).astype(jnp.uint64))


@lower("multinomial", random=True)
def multinomial(key: Array, self: Array, num_samples: int, replacement: bool = False) -> Array:
    """Draw indices by the weights of the last dimension; without replacement, the largest perturbed logarithms."""
    logits = jnp.log(self.astype(drawn_dtype(self.dtype)))
    if replacement:
        drawn = jax.random.categorical(key, logits, shape=(num_samples, *self.shape[:-1]))
        return jnp.moveaxis(drawn, 0, -1)
    # Gumbel's trick: the largest of perturbed logarithms are a draw without replacement, in one sort.
    perturbed = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
    return jax.lax.top_k(perturbed, num_samples)[1]


@lower("binomial", random=True)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    shape = jnp.broadcast_shapes(count.shape, prob.shape)
    dtype = drawn_dtype(count.dtype)
    return jax.random.binomial(key, count.astype(dtype), prob.astype(dtype), shape, dtype)


@lower("_standard_gamma", random=True)
def standard_gamma(key: Array, self: Array) -> Array:
    """Draw gamma numbers of each element's concentration and rate 1; never 0 in the dtype."""
    drawn = jax.random.gamma(key, self.astype(drawn_dtype(self.dtype)))
    return jnp.maximum(drawn.astype(self.dtype), jnp.finfo(self.dtype).tiny)


@lower("_standard_gamma_grad")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    dtype = drawn_dtype(self.dtype)
    out: Array = jax.lax.random_gamma_grad(self.astype(dtype), output.astype(dtype)).astype(self.dtype)
    return out


@lower("_sample_dirichlet", random=True)
def sample_dirichlet(key: Array, self: Array) -> Array:
    dtype = drawn_dtype(self.dtype)
    return jnp.exp(jax.nn.log_softmax(jax.random.loggamma(key, self.astype(dtype)), axis=-1)).astype(self.dtype)


State = tuple[Array, Array, Array, Array, Array]


def _fraction(x: Array, a: Array, b: Array) -> Array:
    """Return the continued fraction f of the incomplete beta function: I(x; a, b) = x^a (1 - x)^b / (a B(a, b)) f."""

    def step(state: State) -> State:
        m, _, c, d, out = state
        before = out
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            out = out * c * d
        return m + 1, before, c, d, out

    def goes_on(state: State) -> Array:
        m, before, _, _, out = state
        return (m < _MOST) & jnp.any(jnp.abs(out - before) > 1e-15 * jnp.abs(out))

    first = 1 / (1 - (a + b) * x / (a + 1))
    return jax.lax.while_loop(goes_on, step, (jnp.ones(()), 0 * first, jnp.ones_like(x), first, first))[-1]


_MOST = 2000  # terms; about the root of the larger parameter is needed


@lower("_dirichlet_grad")
@rounded
def dirichlet_grad(x: Array, alpha: Array, total: Array) -> Array:
    """Return -(d cdf / d alpha) / pdf / (1 - x) of Beta(alpha, total - alpha) at x."""
    x, a = (v.astype(jnp.float64) for v in (x, alpha))
    b = total.astype(jnp.float64) - a
    low = x < (a + 1) / (a + b + 2)  # where the fraction converges fast; elsewhere that of 1 - cdf does
    y, c, d = jnp.where(low, x, 1 - x), jnp.where(low, a, b), jnp.where(low, b, a)
    by_alpha = jnp.where(low, 1.0, 0.0)

    def fraction(c: Array, d: Array) -> Array:
        return _fraction(y, c, d)

    value, slope = jax.jvp(fraction, (c, d), (by_alpha, 1 - by_alpha))
    slope = slope / value + jnp.log(x) - digamma(a) + digamma(a + b) - jnp.where(low, 1 / a, 0)
    grad: Array = jnp.where(low, -x / c, x / c) * value * slope
    return grad


@lower("native_dropout", random=True, traced=("p",))
def native_dropout(key: Array, input: Array, p: float | Array, train: bool | None) -> tuple[Array, Array]:
    """Drop elements with probability p and scale the rest by 1 / (1 - p); also return what was kept."""
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    kept = jax.random.uniform(key, input.shape, jnp.float32) >= p
    scale = jnp.where(p == 1, 0.0, 1 / (1 - p))
    return (input * kept.astype(input.dtype)) * scale.astype(input.dtype), kept


@lower("native_dropout_backward", traced=("scale",))
def native_dropout_backward(grad_output: Array, mask: Array, scale: Array) -> Array:
    """Return the scaled gradient of what was kept, and 0 elsewhere, which XLA makes of a product with a mask, too."""
    scaled = floating(grad_output)
    return jnp.where(mask, scaled * jnp.asarray(scale).astype(scaled.dtype), 0)


@lower("rrelu_with_noise_functional", random=True)
def rrelu_with_noise(
    key: Array, self: Array, noise: Array, lower_: Number = 0.125, upper: Number = 1 / 3, training: bool = False
) -> tuple[Array, Array]:
    """Compute leaky relu with a slope drawn per element in training, else the mean slope; the noise is the slopes."""
    dtype = drawn_dtype(self.dtype)
    if not training:
        slope = (jnp.asarray(lower_, dtype) + upper) / 2
        return jnp.where(self <= 0, self * slope, self), noise
    drawn = jax.random.uniform(key, self.shape, dtype) * (upper - lower_) + lower_
    slopes = jnp.where(self <= 0, drawn, 1.0)
    return self * slopes, slopes


def _below(low: int, to: int | None, dtype: torch.dtype) -> str | None:
    """Check the bounds of `random_`, which the dtype must hold."""
    if to is None:
        return None
    if low >= to:
        return f"random_ expects 'from' to be less than 'to', but got from={low} >= to={to}"
    for name, bound in (("from", low), ("to - 1", to - 1)):
        if not _holds(dtype, bound):
            return f"{name} is out of bounds for {dtype}: {bound}"
    return None


def _holds(dtype: torch.dtype, number: int) -> bool:
    if dtype is torch.bool:
        return number in (0, 1)
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min <= number <= info.max


# By the name of an op: its functional overload, whether its numbers are in order, and what is said where they are not.
_CONTINUOUS: dict[str, tuple[str, Callable[..., bool], str]] = {
    "uniform_": (
        "uniform",
        lambda low, to: low <= to,
        "uniform_ expects to return a [from, to) range, but found from={} > to={}",
    ),
    "normal_": ("normal_functional", lambda mean, std: std >= 0, "normal expects std >= 0.0, but found std {1}"),
    "log_normal_": ("log_normal", lambda mean, std: std > 0, "log_normal_ expects std > 0.0, but found std={1}"),
    "exponential_": ("exponential", lambda rate: rate > 0, "exponential_ expects lambda > 0.0, but found lambda={}"),
    "cauchy_": ("cauchy", lambda median, sigma: sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma={1}"),
}
_DISCRETE: dict[str, tuple[str, Callable[..., bool], str]] = {
    "geometric_": ("geometric", lambda p: 0 < p < 1, "geometric_ expects p to be in (0, 1), but got p={}"),
    "bernoulli_.float": ("bernoulli.p", lambda p: 0 <= p <= 1, "bernoulli_ expects p to be in [0, 1], but got p={}"),
    "random_.to": ("random.to", lambda to: True, ""),
    "random_.from": ("random.from", lambda low, to: True, ""),
}


def _problem(name: str, numbers: Args, dtype: torch.dtype) -> str | None:
    """Return what is wrong with the numbers of a call and the tensor's dtype, or None."""
    _, in_order, message = (_CONTINUOUS | _DISCRETE)[name]
    if name in _CONTINUOUS and not (dtype.is_floating_point or (dtype.is_complex and name == "normal_")):
        return f"{name} needs a tensor of a floating dtype, and this one is {dtype}"
    if name == "geometric_" and (dtype is torch.bool or dtype.is_complex):
        return f"geometric_ is not implemented for {dtype}"
    if name.startswith("random_"):
        low, to = (0, *numbers)[-2:]
        return _below(low, to, dtype)
    return None if in_order(*numbers) else message.format(*numbers)


def _register(name: str, functional: str) -> None:
    given: list[Tree] = [a.default for a in arguments(overload(f"aten::{name}"))[1:] if not a.kwarg_only]

    @kernel(name)
    def drawn(self: torch.Tensor, *numbers: float | None, generator: torch.Generator | None = None) -> torch.Tensor:
        numbers = (*numbers, *given[len(numbers) :])  # PyTorch leaves out defaults, which the functional may not have
        if (problem := _problem(name, numbers, self.dtype)) is not None:
            raise RuntimeError(problem)
        assign(self, computed(functional)(self, *numbers, generator=generator))
        return self


for _name, _row in (_CONTINUOUS | _DISCRETE).items():
    _register(_name, _row[0])


@kernel("randperm.generator_out", "randperm.out")
def _randperm(n: int, *, generator: torch.Generator | None = None, out: torch.Tensor) -> torch.Tensor:
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    if n and not _holds(out.dtype, n - 1):
        raise RuntimeError(f"n is too large for result tensor type: {out.dtype}, n = {n}")
    values = wrap(jax.random.permutation(random.next_key(generator), n)).to(out.dtype)
    fit(out, values)
    assign(out, values)
    return out
