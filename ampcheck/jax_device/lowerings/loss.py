"""Losses that PyTorch's decompositions take apart at a loss of speed, or whose backward passes they lack."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import MEAN, pullback, reduced, rounded, spread, widened


def _smooth_l1(difference: Array, beta: float = 1.0) -> Array:
    distance = jnp.abs(difference)
    inner = 0.5 * distance * distance / beta if beta else distance
    return jnp.where(distance < beta, inner, distance - 0.5 * beta)


def _huber(difference: Array, delta: float = 1.0) -> Array:
    distance = jnp.abs(difference)
    return jnp.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))


# Losses of the difference between input and target: each element's loss, and its slope.
_OF_DIFFERENCES: dict[str, tuple[Computation, Computation]] = {
    "mse_loss": (jnp.square, lambda difference: 2 * difference),
    "smooth_l1_loss": (_smooth_l1, lambda d, beta: jnp.where(jnp.abs(d) < beta, d / beta if beta else d, jnp.sign(d))),
    "huber_loss": (_huber, lambda d, delta: jnp.where(jnp.abs(d) < delta, d, delta * jnp.sign(d))),
}


def _register(name: str, losses: Computation, slopes: Computation) -> None:
    @lower(name, promotes=True)
    @widened
    def forward(self: Array, target: Array, reduction: int = MEAN, *option: float) -> Array:
        return reduced(losses(self - target, *option), reduction)

    @lower(f"{name}_backward", promotes=True)
    @widened
    def backward(grad_output: Array, self: Array, target: Array, reduction: int, *option: float) -> Array:
        difference = self - target
        slope: Array = slopes(difference, *option)
        return spread(grad_output, reduction, difference.size) * slope


for _name, (_losses, _slopes) in _OF_DIFFERENCES.items():
    _register(_name, _losses, _slopes)


@lower("binary_cross_entropy_with_logits")
@widened
def _binary_cross_entropy_with_logits(
    self: Array, target: Array, weight: Array | None = None, pos_weight: Array | None = None, reduction: int = MEAN
) -> Array:
    softened = jnp.log1p(jnp.exp(-jnp.abs(self))) + jnp.maximum(-self, 0)  # -log(sigmoid(self)), without overflow
    scale = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    losses = (1 - target) * self + scale * softened
    return reduced(losses if weight is None else losses * weight, reduction)


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
