"""Activations, normalisations and losses, and their backward passes.

Here are those that are wanted most, or of which neither torchax nor PyTorch's decompositions have the CPU's results,
its speed, or a backward pass; and the names of those of which the decomposition has them and torchax's code has not. A
formula's arguments are those of the overload, in its order. What says "wide" is computed in float32 for float16 and
bfloat16 and rounded once, as PyTorch's kernels do.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import assign, computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, Number, decomposed, lower
from ampcheck.jax_device.lowerings.accumulate import MEAN, pullback, reduced, rounded, widened


def _zero(array: Array) -> Array:
    """Return a zero that does not change what dtype `jnp.where` gives."""
    return jnp.zeros((), array.dtype)


def _summed(array: Array, dim: int) -> Array:
    return jnp.sum(array, axis=dim, keepdims=True) if array.ndim else array


@lower("glu")
@widened
def _glu(x: Array, dim: int = -1) -> Array:
    first, second = jnp.split(x, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


@lower("_softmax_backward_data")
@widened
def _softmax_backward(grad: Array, out: Array, dim: int, _: object = None) -> Array:
    weighted = grad * out
    return weighted - out * _summed(weighted, dim)


# Comparisons are written so that nan comes through as PyTorch's kernels let it.
_EXACT: dict[str, Computation] = {
    "relu": lambda x: jnp.maximum(x, _zero(x)),
    "threshold_backward": lambda grad, x, threshold: jnp.where(x <= threshold, _zero(grad), grad),
    "softshrink_backward": lambda grad, x, lambd: jnp.where((x >= -lambd) & (x <= lambd), _zero(grad), grad),
    "hardshrink_backward": lambda grad, x, lambd: jnp.where((x >= -lambd) & (x <= lambd), _zero(grad), grad),
}
_WIDE: dict[str, Computation] = {
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    "leaky_relu_backward": lambda grad, x, slope, _: jnp.where(x > 0, grad, grad * slope),
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "silu_backward": lambda grad, x: grad * jax.nn.sigmoid(x) * (1 + x * (1 - jax.nn.sigmoid(x))),
    # Without elements, or of one number, jax.nn has no axis to go along.
    "_softmax": lambda x, dim, _: jax.nn.softmax(x, axis=dim) if x.size and x.ndim else x * 0 + 1,
    "_log_softmax": lambda x, dim, _: jax.nn.log_softmax(x, axis=dim) if x.size and x.ndim else x - x,
    "_log_softmax_backward_data": lambda grad, out, dim, _: grad - jnp.exp(out) * _summed(grad, dim),
    "glu_backward": lambda grad, x, dim: pullback(lambda y: _glu(y, dim), grad, x)[0],
}
# The result has the first argument's dtype, which no Meta kernel says.
_ROUNDED: dict[str, Computation] = {
    "glu_jvp": lambda _, x, dx, dim: jax.jvp(lambda v: _glu(v, dim), (x,), (dx.astype(x.dtype),))[1],
    "glu_backward_jvp": lambda _, grad, x, dgrad, dx, dim: jax.jvp(
        lambda g, v: _WIDE["glu_backward"](g, v, dim), (grad, x), (dgrad, dx)
    )[1],
    "_masked_softmax_backward": lambda grad, out, mask, dim=None: jnp.where(
        jnp.broadcast_to(mask, out.shape), 0, _softmax_backward(grad, out, -1 if dim is None else dim)
    ),
}
decomposed(
    *("mish", "mish_backward", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
    *("native_group_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats"),
    *("_native_batch_norm_legit_no_training", "binary_cross_entropy_with_logits"),
    *(f"{loss}{form}" for loss in ("smooth_l1_loss", "huber_loss") for form in ("", "_backward")),
)
for _name, _formula in _EXACT.items():
    lower(_name)(_formula)
for _name, _formula in _WIDE.items():
    lower(_name)(widened(_formula))
for _name, _formula in _ROUNDED.items():
    lower(_name)(rounded(_formula))


@lower("mse_loss", promotes=True)
@widened
def _mse_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    return reduced(jnp.square(self - target), reduction)


@lower("mse_loss_backward", promotes=True)
@widened
def _mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    difference = self - target
    return (grad_output / max(difference.size, 1) if reduction == MEAN else grad_output) * (2 * difference)


@lower("gelu")
@widened
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Return x * Phi(x), Phi by erf or by its tanh form."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@lower("_masked_softmax")
@rounded
def masked_softmax(x: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Return the softmax of (B, heads, L, S) where the mask is False; a row without such an element is zero.

    `mask_type` 0: the mask is (L, S); 1: it is (B, S); 2, or none: it has the shape of `x`.
    """
    if mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    kept = jnp.broadcast_to(jnp.logical_not(mask), x.shape)
    return jax.nn.softmax(x, axis=-1 if dim is None else dim, where=kept)


@lower("native_layer_norm")
@widened
def layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise over the last dimensions; also return the mean and 1 / standard deviation."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean = jnp.mean(input, axis=axes, keepdims=True)
    off = input - mean
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(off), axis=axes, keepdims=True) + eps)
    out = off * rstd if weight is None else off * rstd * weight
    return out if bias is None else out + bias, mean, rstd


@lower("_weight_norm_interface")
@widened
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """Compute g * v / |v|, norms over all dimensions but `dim`; also return the norms."""
    rest = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norms = jnp.sqrt(jnp.sum(jnp.square(v), axis=rest, keepdims=True))
    return v * (g / norms), norms


lower("_weight_norm_interface_backward")(
    widened(lambda grad, v, g, norms, dim: pullback(lambda v, g: weight_norm(v, g, dim)[0], grad, v, g))
)


@kernel("native_batch_norm")
def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *options: float
) -> Tree:
    """Run the forward pass; it writes the running statistics, which its schema does not say."""
    if mean is None or var is None:
        return computed("_native_batch_norm_legit.no_stats")(input, weight, bias, *options)
    found = computed("_native_batch_norm_legit_functional")(input, weight, bias, mean, var, *options)
    if options[0]:  # training
        assign([mean, var], found[3:])
    return tuple(found[:3])


@lower("multi_margin_loss")
@widened
def _multi_margin_loss(
    self: Array, target: Array, p: Number = 1, margin: Number = 1, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """Sum max(0, margin - self[target] + self)^p over the other classes, divided by how many classes there are."""
    rows = jnp.atleast_2d(self)
    index = target.reshape(rows.shape[0], 1)
    violation = jnp.maximum(0, margin - jnp.take_along_axis(rows, index, axis=1) + rows)
    violation = jnp.where(p == 1, violation, violation * violation)
    if weight is not None:
        violation = violation * weight[index]
    others = jnp.arange(rows.shape[1])[None] != index
    losses = jnp.sum(jnp.where(others, violation, 0), axis=1) / rows.shape[1]
    return reduced(losses.reshape(target.shape if self.ndim > 1 else ()), reduction)


lower("multi_margin_loss_backward")(
    rounded(lambda grad, self, *given: pullback(lambda x: _multi_margin_loss(x, *given), grad, self)[0])
)


@lower("multilabel_margin_loss_forward", unpromised=True)  # of one row unreduced, shape [1]
@rounded
def _multilabel_margin_loss(self: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """Sum max(0, 1 - (self[label] - self[other])) over labels and others; also say which classes are labels.

    A row's labels end at the first -1. The sum is divided by the number of classes.
    """
    rows, labels = jnp.atleast_2d(self), jnp.atleast_2d(target)
    listed = jnp.cumsum(labels < 0, axis=1) == 0
    classes = jnp.arange(rows.shape[1])
    is_label = jnp.any(listed[:, :, None] & (labels[:, :, None] == classes), axis=1)
    of_label = jnp.take_along_axis(rows, jnp.where(listed, labels, 0), axis=1)
    violation = jnp.maximum(0, 1 - (of_label[:, :, None] - rows[:, None, :]))
    counted = listed[:, :, None] & ~is_label[:, None, :]
    losses = jnp.sum(jnp.where(counted, violation, 0), axis=(1, 2)) / rows.shape[1]
    losses = losses.reshape(()) if self.ndim < 2 else losses
    return reduced(losses, reduction), is_label.astype(self.dtype).reshape(target.shape)


lower("multilabel_margin_loss_backward")(
    rounded(lambda grad, self, *given: pullback(lambda x: _multilabel_margin_loss(x, *given[:2])[0], grad, self)[0])
)


def _rows(targets: Array, lengths: Array, longest: int) -> Array:
    """Return targets as (N, longest), from that form or one after the other."""
    if targets.ndim == 2:
        return jnp.pad(targets, [(0, 0), (0, max(0, longest - targets.shape[1]))])[:, :longest]
    ends = jnp.cumsum(lengths)
    places = (ends - lengths)[:, None] + jnp.arange(longest)[None]
    return jnp.take(jnp.pad(targets, (0, 1)), jnp.minimum(places, targets.size))


def _alphas(log_probs: Array, rows: Array, blank: int) -> Array:
    """Return, as (N, T, 2 * longest + 1), the log probability of all beginnings that end in a state at a time."""
    count, longest = rows.shape
    states = jnp.full((count, 2 * longest + 1), blank).at[:, 1::2].set(rows)
    emitted = jnp.take_along_axis(log_probs.transpose(1, 0, 2), states[:, None, :].astype(jnp.int64), axis=2)
    skips = jnp.zeros(states.shape, bool).at[:, 2:].set((states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2]))
    start = jnp.where(jnp.arange(states.shape[1]) < 2, emitted[:, 0], -jnp.inf)

    def step(alpha: Array, now: Array) -> tuple[Array, Array]:
        # A state is reached from itself, from the one before and, between different labels, past the blank before it.
        one = jnp.pad(alpha, [(0, 0), (1, 0)], constant_values=-jnp.inf)[:, :-1]
        two = jnp.pad(alpha, [(0, 0), (2, 0)], constant_values=-jnp.inf)[:, : alpha.shape[1]]
        new = _log_sum(alpha, one, jnp.where(skips, two, -jnp.inf)) + now
        return new, new

    _, later = jax.lax.scan(step, start, emitted[:, 1:].transpose(1, 0, 2))
    return jnp.concatenate([start[:, None], later.transpose(1, 0, 2)], axis=1)


def _log_sum(*terms: Array) -> Array:
    """Compute log(sum(exp)), whose gradient is zero, not nan, where every term is -inf."""
    stacked = jnp.stack(terms)
    peak = jax.lax.stop_gradient(jnp.max(stacked, axis=0))
    dead = jnp.isneginf(peak)
    shifted = jnp.exp(jnp.where(dead, -1.0, stacked - jnp.where(dead, 0, peak)))
    return jnp.where(dead, -jnp.inf, jnp.log(jnp.sum(shifted, axis=0)) + jnp.where(dead, 0, peak))


@lower("_ctc_loss")
@widened
def ctc_loss(
    log_probs: Array, targets: Array, lengths: Sequence[int], target_lengths: Sequence[int], blank: int = 0, *_: bool
) -> tuple[Array, Array]:
    """Compute -log of the targets' probability by (T, N, C) log probabilities: (N), and the table of beginnings."""
    longest = max(target_lengths, default=0)
    inputs, sizes = jnp.asarray(lengths, jnp.int64), jnp.asarray(target_lengths, jnp.int64)
    alphas = _alphas(log_probs, _rows(targets, sizes, longest), blank)
    last = jnp.take_along_axis(alphas, jnp.maximum(inputs - 1, 0)[:, None, None], axis=1)[:, 0]
    end = jnp.take_along_axis(last, 2 * sizes[:, None], axis=1)[:, 0]
    before = jnp.take_along_axis(last, jnp.maximum(2 * sizes - 1, 0)[:, None], axis=1)[:, 0]
    total = _log_sum(end, jnp.where(sizes > 0, before, -jnp.inf))
    empty = jnp.where(sizes == 0, 0.0, jnp.inf).astype(total.dtype)  # no steps have only the empty target
    return jnp.where(inputs == 0, empty, -total), alphas


@lower("_ctc_loss_backward")
@rounded
def ctc_loss_backward(grad: Array, log_probs: Array, targets: Array, *given: Tree) -> Array:
    """Return the gradient of the log probabilities as PyTorch defines it: exp(log_probs) less the expected alignments.

    It is that of the logits of which they are the log_softmax; after its own backward pass both agree.
    """
    input_lengths, target_lengths, neg_log_likelihood, _, blank, zero_infinity = (*given, False)[:6]
    _, vjp = jax.vjp(lambda x: ctc_loss(x, targets, input_lengths, target_lengths, blank)[0], log_probs)
    (by_likelihood,) = vjp(jnp.ones_like(neg_log_likelihood))
    steps = jnp.arange(log_probs.shape[0])[:, None] < jnp.asarray(input_lengths, jnp.int64)[None]
    expected = jnp.where(steps[..., None], jnp.exp(log_probs) + by_likelihood, 0) * grad[None, :, None]
    if zero_infinity:
        return jnp.where(jnp.isinf(neg_log_likelihood)[None, :, None], 0, expected)
    return jnp.where(jnp.isinf(neg_log_likelihood)[None, :, None] & steps[..., None], jnp.nan, expected)


@kernel("_ctc_loss.Tensor")
def ctc_loss_tensor(log_probs: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, *rest: Tree) -> Tree:
    """Read the lengths from their tensors, as PyTorch's own kernels do: they shape the program."""
    return computed("_ctc_loss")(log_probs, targets, inputs.tolist(), lengths.tolist(), *rest)


@kernel("_ctc_loss_backward.Tensor")
def ctc_loss_backward_tensor(grad: Tensor, log: Tensor, targets: Tensor, inputs: Tensor, *rest: Tree) -> Tree:
    lengths, *others = rest
    return computed("_ctc_loss_backward")(grad, log, targets, inputs.tolist(), lengths.tolist(), *others)
