"""Activations, normalisations and losses, and their backward passes.

Here are those that are wanted most, or of which neither torchax nor PyTorch's decompositions have the CPU's results,
its speed, or a backward pass. A formula's arguments are those of the overload, in its order. What says "wide" is
computed in float32 for float16 and bfloat16 and rounded once, as PyTorch's kernels do.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import assign, computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import MEAN, pullback, reduced, rounded, spread, wanted, widened


def _softplus(x: Array) -> Array:
    return jnp.logaddexp(x, jnp.zeros((), x.dtype))


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
    "mish": lambda x: x * jnp.tanh(_softplus(x)),
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
for _name, _formula in _EXACT.items():
    lower(_name)(_formula)
for _name, _formula in _WIDE.items():
    lower(_name)(widened(_formula))
for _name, _formula in _ROUNDED.items():
    lower(_name)(rounded(_formula))


@lower("mish_backward")
@widened
def _mish_backward(grad: Array, x: Array) -> Array:
    t = jnp.tanh(_softplus(x))
    return grad * (t + x * jax.nn.sigmoid(x) * (1 - t * t))


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


def _moments(array: Array, axes: int | Sequence[int], eps: float) -> tuple[Array, Array, Array]:
    """Return the normal values, the mean and 1 / standard deviation."""
    mean = jnp.mean(array, axis=axes, keepdims=True)
    off = array - mean
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(off), axis=axes, keepdims=True) + eps)
    return off * rstd, mean, rstd


def _affine(array: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        array = array * weight
    return array if bias is None else array + bias


@lower("native_layer_norm")
@widened
def layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise over the last dimensions; also return the mean and 1 / standard deviation."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    normal, mean, rstd = _moments(input, axes, eps)
    return _affine(normal, weight, bias), mean, rstd


@lower("native_layer_norm_backward")
@widened
def layer_norm_backward(
    grad_out: Array, input: Array, normalized_shape: Sequence[int], mean: Array, rstd: Array, *affine: Tree
) -> tuple[Array | None, ...]:
    weight, bias, output_mask = affine
    first = input.ndim - len(normalized_shape)
    axes, outer = tuple(range(first, input.ndim)), tuple(range(first))
    shape = (*input.shape[:first], *((1,) * len(axes)))
    normal = (input - mean.reshape(shape)) * rstd.reshape(shape)
    by_input = _through(grad_out if weight is None else grad_out * weight, normal, rstd.reshape(shape), axes)
    return wanted(
        output_mask,
        by_input,
        None if weight is None else jnp.sum(grad_out * normal, axis=outer),
        None if bias is None else jnp.sum(grad_out, axis=outer),
    )


def _through(grad: Array, normal: Array, rstd: Array, axes: int | Sequence[int]) -> Array:
    """Return the gradient of what was normalised over `axes` from the gradient of the normal values."""
    centre = jnp.mean(grad, axis=axes, keepdims=True)
    along = jnp.mean(grad * normal, axis=axes, keepdims=True)
    return rstd * (grad - centre - normal * along)


@lower("_fused_rms_norm")
@widened
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    """Divide by the root of the mean square over the last dimensions; also return 1 / that root."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    least = float(jnp.finfo(input.dtype).eps) if eps is None else eps
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(input), axis=axes, keepdims=True) + least)
    return _affine(input * rstd, weight, None), rstd


@lower("_fused_rms_norm_backward")
@widened
def rms_norm_backward(
    grad_out: Array, input: Array, shape: Sequence[int], rstd: Array, weight: Array | None, mask: Sequence[bool]
) -> tuple[Array | None, ...]:
    first = input.ndim - len(shape)
    axes = tuple(range(first, input.ndim))
    rstd = rstd.reshape(*input.shape[:first], *((1,) * len(axes)))
    normal = input * rstd
    grad = grad_out if weight is None else grad_out * weight
    by_input = rstd * (grad - normal * jnp.mean(grad * normal, axis=axes, keepdims=True))
    by_weight = None if weight is None else jnp.sum(grad_out * normal, axis=tuple(range(first)))
    return wanted(mask, by_input, by_weight)


@lower("native_group_norm")
@widened
def group_norm(
    input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise over each group of channels; also return the means and 1 / standard deviations, (N, groups)."""
    normal, mean, rstd = _moments(input.reshape(N, group, C // group * HxW), 2, eps)
    out = _affine(normal.reshape(N, C, HxW), _column(weight), _column(bias))
    return out.reshape(input.shape), mean[..., 0], rstd[..., 0]


def _column(per_channel: Array | None) -> Array | None:
    return None if per_channel is None else per_channel.reshape(1, -1, 1)


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


def _channels(input: Array, per_channel: Array) -> Array:
    return per_channel.reshape(1, -1, *((1,) * (input.ndim - 2)))


def _axes(input: Array) -> tuple[int, ...]:
    return (0, *range(2, input.ndim))


def _normalised(input: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> Array:
    factor = rstd if weight is None else rstd * weight
    out = (input - _channels(input, mean)) * _channels(input, factor)
    return out if bias is None else out + _channels(input, bias)


@lower("_native_batch_norm_legit_functional")
@widened
def batch_norm(
    input: Array, weight: Array | None, bias: Array | None, running_mean: Array, running_var: Array, *options: float
) -> tuple[Array, ...]:
    """Return (N, C, …) normalised per channel, the statistics it took, and the running statistics after it.

    Without training it takes the running statistics, which stay. `options`: training, momentum, eps.
    """
    training, momentum, eps = options
    if not training:
        rstd = jax.lax.rsqrt(running_var + eps)
        return _normalised(input, weight, bias, running_mean, rstd), running_mean, rstd, running_mean, running_var
    mean = jnp.mean(input, axis=_axes(input))
    variance = jnp.mean(jnp.square(input - _channels(input, mean)), axis=_axes(input))
    rstd = jax.lax.rsqrt(variance + eps)
    seen = math.prod(input.shape[d] for d in _axes(input))
    unbiased = variance * (seen / max(seen - 1, 1))
    kept = [momentum * n + (1 - momentum) * r for n, r in ((mean, running_mean), (unbiased, running_var))]
    return _normalised(input, weight, bias, mean, rstd), mean, rstd, *kept


lower("_native_batch_norm_legit.no_stats")(
    lambda x, w, bias, *options: batch_norm(x, w, bias, jnp.zeros(()), jnp.zeros(()), True, *options[1:])[:3]
)
lower("_native_batch_norm_legit_no_training")(
    lambda input, *given: batch_norm(input, *given[:4], False, *given[4:])[:3]
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
