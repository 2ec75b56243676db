"""Losses that PyTorch's decompositions take apart at a loss of speed, or whose backward passes they lack."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.wide import MEAN, pullback, reduced, rounded, spread, widened


def _smooth_l1(difference: Array, beta: float = 1.0) -> Array:
    distance = jnp.abs(difference)
    inner = 0.5 * distance * distance / beta if beta else distance
    return jnp.where(distance < beta, inner, distance - 0.5 * beta)


def _smooth_l1_slope(difference: Array, beta: float) -> Array:
    return jnp.where(jnp.abs(difference) < beta, difference / beta if beta else difference, jnp.sign(difference))


def _huber(difference: Array, delta: float = 1.0) -> Array:
    distance = jnp.abs(difference)
    return jnp.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))


def _huber_slope(difference: Array, delta: float) -> Array:
    return jnp.where(jnp.abs(difference) < delta, difference, delta * jnp.sign(difference))


# Losses of the difference between input and target: each element's loss, and its slope.
_OF_DIFFERENCES: dict[str, tuple[Computation, Computation]] = {
    "mse_loss": (jnp.square, lambda difference: 2 * difference),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_slope),
    "huber_loss": (_huber, _huber_slope),
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


@lower("multi_margin_loss_backward")
@rounded
def _multi_margin_loss_backward(grad_output: Array, self: Array, *given: Array | Number | None) -> Array:
    return pullback(lambda x: _multi_margin_loss(x, *given), grad_output, self)[0]  # type: ignore[arg-type]


@lower("multilabel_margin_loss_forward")
@widened
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


@lower("multilabel_margin_loss_backward")
@rounded
def _multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    return pullback(lambda x: _multilabel_margin_loss(x, target, reduction)[0], grad_output, self)[0]
