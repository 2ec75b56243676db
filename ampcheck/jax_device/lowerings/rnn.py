"""The recurrent cells that PyTorch calls on a PrivateUse1 device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel, zeros
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import rounded, widened
from ampcheck.jax_device.storage.arrays import wrap


def _sum(total: Array, *terms: Array | None) -> Array:
    for term in terms:
        total = total if term is None else total + term
    return total


@lower("_thnn_fused_lstm_cell")
@widened
def lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The new hidden and cell state, and the activated gates (input, forget, cell, output), from gates before bias."""
    gates = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=-1)


@lower("_thnn_fused_lstm_cell_backward_impl")
@widened
def lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array | None]:
    """The gradients of the gates, of the cell state and of each bias."""
    i, f, g, o = jnp.split(workspace, 4, axis=-1)
    squashed = jnp.tanh(cy)
    by_hidden = jnp.zeros_like(cy) if grad_hy is None else grad_hy
    by_cell = by_hidden * o * (1 - squashed * squashed)
    by_cell = by_cell if grad_cy is None else by_cell + grad_cy
    gates = jnp.concatenate(
        [
            by_cell * g * i * (1 - i),
            by_cell * cx * f * (1 - f),
            by_cell * i * (1 - g * g),
            by_hidden * squashed * o * (1 - o),
        ],
        axis=-1,
    )
    return gates, by_cell * f, jnp.sum(gates, axis=0) if has_bias else None


@kernel("_thnn_fused_lstm_cell")
def lstm_cell_kernel(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> Any:
    """The cell; PyTorch's Meta kernel fails where there are no biases, so it is given zeros."""
    if input_bias is None or hidden_bias is None:
        input_bias = hidden_bias = wrap(zeros((input_gates.shape[-1],), input_gates.dtype))
    return computed("_thnn_fused_lstm_cell")(input_gates, hidden_gates, cx, input_bias, hidden_bias)


@lower("_thnn_fused_gru_cell")
@rounded
def gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    """The new hidden state, and what the backward pass takes: reset, update and new gates, hx, hidden part of new."""
    ir, iz, i_new = jnp.split(_sum(input_gates, input_bias), 3, axis=-1)
    hr, hz, h_new = jnp.split(_sum(hidden_gates, hidden_bias), 3, axis=-1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(i_new + r * h_new)
    return n + z * (hx - n), jnp.concatenate([r, z, n, hx, h_new], axis=-1)


@lower("_thnn_fused_gru_cell_backward")
@rounded
def gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> tuple[Array, Array, Array, Array, Array]:
    """The gradients of the input's gates, the hidden gates, the hidden state and the two biases."""
    r, z, n, hx, h_new = jnp.split(workspace, 5, axis=-1)
    by_z = grad_hy * (hx - n) * z * (1 - z)
    by_n = grad_hy * (1 - z) * (1 - n * n)
    by_r = by_n * h_new * r * (1 - r)
    by_input = jnp.concatenate([by_r, by_z, by_n], axis=-1)
    by_hidden = jnp.concatenate([by_r, by_z, by_n * r], axis=-1)
    biases = (jnp.sum(by_input, axis=0), jnp.sum(by_hidden, axis=0)) if has_bias else (None, None)
    return by_input, by_hidden, grad_hy * z, *biases
