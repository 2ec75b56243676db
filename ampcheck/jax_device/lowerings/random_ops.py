"""Random numbers: each computation takes a JAX random key first.

Low-precision results are computed in float32 and rounded once. As on CUDA, what a tensor argument holds (a probability
outside [0, 1], a negative standard deviation) is not looked at; numbers are, in `lowerings/random_inplace.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import Number, lower


def drawn_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers for a tensor of `dtype` are drawn: float64 for 64-bit parts, else float32."""
    return np.dtype(np.float64 if dtype in (jnp.float64, jnp.complex128) else np.float32)


def positive(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Draw uniform numbers of the open interval (0, 1)."""
    return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny, maxval=1.0)


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
    """Draw normal numbers of a mean and a standard deviation per element."""
    given = [a.dtype for a in (mean, std) if isinstance(a, Array) and not a.weak_type]
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    return mean + std * standard_normal(key, shape, jnp.result_type(*given))


@lower("bernoulli", random=True)
def bernoulli(key: Array, self: Array) -> Array:
    """Draw 1 with the probability that each element holds, else 0."""
    return jax.random.uniform(key, self.shape, drawn_dtype(self.dtype)) < self


@lower("bernoulli.p", "bernoulli.Tensor", random=True, traced=("p",))
def bernoulli_of(key: Array, self: Array, p: float | Array = 0.5) -> Array:
    """Draw 1 with probability p, else 0."""
    return jax.random.uniform(key, self.shape, drawn_dtype(jnp.asarray(p).dtype)) < p


@lower("exponential", random=True, traced=("lambd",))
def exponential(key: Array, self: Array, lambd: float | Array = 1.0) -> Array:
    """Draw exponential numbers, never 0."""
    return -jnp.log(positive(key, self.shape, drawn_dtype(self.dtype))) / lambd


@lower("cauchy", random=True, traced=("median", "sigma"))
def cauchy(key: Array, self: Array, median: float | Array = 0.0, sigma: float | Array = 1.0) -> Array:
    """Draw Cauchy numbers."""
    return median + sigma * jnp.tan(jnp.pi * (positive(key, self.shape, drawn_dtype(self.dtype)) - 0.5))


@lower("log_normal", random=True, traced=("mean", "std"))
def log_normal(key: Array, self: Array, mean: float | Array = 1.0, std: float | Array = 2.0) -> Array:
    """Draw numbers whose logarithm is normal."""
    return jnp.exp(mean + std * standard_normal(key, self.shape, self.dtype))


@lower("geometric", random=True, traced=("p",))
def geometric(key: Array, self: Array, p: float | Array) -> Array:
    """Draw how many trials of probability p it takes to succeed."""
    trials = jnp.ceil(jnp.log(positive(key, self.shape, np.dtype(np.float64))) / jnp.log1p(-p))
    return jnp.maximum(trials, 1.0)


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


@lower("random", random=True)
def integers(key: Array, self: Array) -> Array:
    """Draw integers from 0 to the largest one that counts exactly in the dtype."""
    return _integers(key, self.shape, 0, jnp.uint64(_largest(self.dtype) + 1))


@lower("random.to", random=True, traced=("to",))
def integers_to(key: Array, self: Array, to: int | Array) -> Array:
    """Draw integers of [0, to)."""
    return _integers(key, self.shape, 0, to)


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


@lower("poisson", random=True)
def poisson(key: Array, self: Array) -> Array:
    """Draw Poisson counts of each element's rate."""
    return jax.random.poisson(key, self.astype(drawn_dtype(self.dtype)), self.shape, jnp.int64)


@lower("binomial", random=True)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    """Draw how many of `count` trials of probability `prob` succeed."""
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
    """Return the derivative of a gamma number by its concentration."""
    dtype = drawn_dtype(self.dtype)
    out: Array = jax.lax.random_gamma_grad(self.astype(dtype), output.astype(dtype)).astype(self.dtype)
    return out


@lower("_sample_dirichlet", random=True)
def sample_dirichlet(key: Array, self: Array) -> Array:
    """Draw Dirichlet numbers of the concentrations in the last dimension."""
    dtype = drawn_dtype(self.dtype)
    return jnp.exp(jax.nn.log_softmax(jax.random.loggamma(key, self.astype(dtype)), axis=-1)).astype(self.dtype)


@lower("native_dropout", random=True, traced=("p",))
def native_dropout(key: Array, input: Array, p: float | Array, train: bool | None) -> tuple[Array, Array]:
    """Drop elements with probability p and scale the rest by 1 / (1 - p); also return what was kept."""
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    kept = jax.random.uniform(key, input.shape, jnp.float32) >= p
    scale = jnp.where(p == 1, 0.0, 1 / (1 - p))
    return (input * kept.astype(input.dtype)) * scale.astype(input.dtype), kept


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
