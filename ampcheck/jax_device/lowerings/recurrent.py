"""Recurrent cells, and nn.LSTM and nn.GRU: a layer is one loop of XLA's, where PyTorch calls a cell for every step.

So the program's size does not grow with the sequence, the input's product is one, and so is the weights' gradient.
PyTorch's own way remains for what is not served here (packed sequences, projections), for what the caller does by a
mode or a transform of functions, which sees the cells, and for what is to raise an error.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Function, Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import apart, composed, kernel, zeros
from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.accumulate import matmul, product, rounded, wide, widened
from ampcheck.jax_device.storage.arrays import Columns, wrap
from ampcheck.register.torch_private import OpOverload, dispatch_modes, functorch_level


def _sum(total: Array, *terms: Array | None) -> Array:
    for term in terms:
        total = total if term is None else total + term
    return total


@lower("_thnn_fused_lstm_cell")
@widened
def lstm_cell(input_gates: Array, hidden_gates: Array, cx: Array, *biases: Array | None) -> tuple[Array, Array, Array]:
    """Return the new hidden and cell state, and the activated gates (input, forget, cell, output), from raw gates."""
    gates = _sum(input_gates, hidden_gates, *biases)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=-1)


@lower("_thnn_fused_lstm_cell_backward_impl")
@widened
def lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array | None]:
    """Return the gradients of the gates, of the cell state and of each bias."""
    i, f, g, o = jnp.split(workspace, 4, axis=-1)
    squashed = jnp.tanh(cy)
    by_hidden = jnp.zeros_like(cy) if grad_hy is None else grad_hy
    by_cell = by_hidden * o * (1 - squashed * squashed)
    by_cell = by_cell if grad_cy is None else by_cell + grad_cy
    by_i, by_f = by_cell * g * i * (1 - i), by_cell * cx * f * (1 - f)
    by_g, by_o = by_cell * i * (1 - g * g), by_hidden * squashed * o * (1 - o)
    gates = jnp.concatenate([by_i, by_f, by_g, by_o], axis=-1)
    return gates, by_cell * f, jnp.sum(gates, axis=0) if has_bias else None


@kernel("_thnn_fused_lstm_cell")
def lstm_cell_kernel(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Tensor | None) -> Tree:
    """Run the cell; PyTorch's Meta kernel fails where there are no biases, so it is given zeros."""
    if len(biases) < 2 or None in biases:
        biases = (wrap(zeros((input_gates.shape[-1],), input_gates.dtype)),) * 2
    return computed("_thnn_fused_lstm_cell")(input_gates, hidden_gates, cx, *biases)


@lower("_thnn_fused_gru_cell")
@rounded
def gru_cell(input_gates: Array, hidden_gates: Array, hx: Array, *biases: Array | None) -> tuple[Array, Array]:
    """Return the new hidden state, and for the backward pass reset, update and new gates, hx, hidden part of new."""
    ir, iz, i_new = jnp.split(_sum(input_gates, *biases[:1]), 3, axis=-1)
    hr, hz, h_new = jnp.split(_sum(hidden_gates, *biases[1:]), 3, axis=-1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(i_new + r * h_new)
    return n + z * (hx - n), jnp.concatenate([r, z, n, hx, h_new], axis=-1)


@lower("_thnn_fused_gru_cell_backward")
@rounded
def gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> tuple[Array, Array, Array, Array, Array]:
    """Return the gradients of the input's gates, the hidden gates, the hidden state and the two biases."""
    r, z, n, hx, h_new = jnp.split(workspace, 5, axis=-1)
    by_z = grad_hy * (hx - n) * z * (1 - z)
    by_n = grad_hy * (1 - z) * (1 - n * n)
    by_r = by_n * h_new * r * (1 - r)
    by_input = jnp.concatenate([by_r, by_z, by_n], axis=-1)
    by_hidden = jnp.concatenate([by_r, by_z, by_n * r], axis=-1)
    biases = (jnp.sum(by_input, axis=0), jnp.sum(by_hidden, axis=0)) if has_bias else (None, None)
    return by_input, by_hidden, grad_hy * z, *biases


State = tuple[Array, ...]
"""(h,), or (h, c) of an LSTM, of (B, H) each."""
_GATES = {"lstm": 4, "gru": 3}


def _lstm_step(gates: Array, hidden: Array, state: State, biases: State) -> tuple[State, Array]:
    out, cell, workspace = lstm_cell(gates, hidden, state[1], *biases)
    return (out, cell), workspace


def _lstm_back(
    grads: State, before: State, after: State, workspace: Array
) -> tuple[Array, Array, tuple[Array | None, ...]]:
    by_gates, by_cell, _ = lstm_cell_backward(grads[0], grads[1], before[1], after[1], workspace, False)
    return by_gates, by_gates, (None, by_cell)


def _gru_step(gates: Array, hidden: Array, state: State, biases: State) -> tuple[State, Array]:
    out, workspace = gru_cell(gates, hidden, state[0], *biases)
    return (out,), workspace


def _gru_back(grads: State, _: State, __: State, workspace: Array) -> tuple[Array, Array, tuple[Array | None, ...]]:
    by_gates, by_hidden, by_state, *_biases = gru_cell_backward(grads[0], workspace, False)
    return by_gates, by_hidden, (by_state,)


_STEPS: dict[str, tuple[Computation, Computation]] = {"lstm": (_lstm_step, _lstm_back), "gru": (_gru_step, _gru_back)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def layer(kind: str, reverse: bool, gates: Array, state: State, weight: Array, biases: State) -> tuple[Array, State]:
    """Run a layer in one direction; return its outputs (T, B, H) and the last state.

    `gates`: (T, B, gates * H), the input's product with its weights, without bias. `state`: (h,) or (h, c), of (B, H)
    each. `weight`: (gates * H, H) for h. `biases`: the input's and the hidden one, or none. Each step rounds its state
    and keeps its gates in the dtype of `gates`, as PyTorch's cells do.
    """
    out: tuple[Array, State] = _forward(kind, reverse, gates, state, weight, biases)[0]
    return out


def _forward(kind: str, reverse: bool, gates: Array, state: State, weight: Array, biases: State) -> Tree:
    def step(before: State, gate: Array) -> tuple[State, tuple[State, Array]]:
        after, workspace = _STEPS[kind][0](gate, product(before[0], Columns(weight)), before, biases)
        after, workspace = jax.tree.map(lambda a: a.astype(gates.dtype), (after, workspace))
        return after, (after, workspace)

    last, (states, workspaces) = jax.lax.scan(step, state, gates, reverse=reverse)
    return (states[0], last), (state, states, workspaces, weight, biases)


def _backward(kind: str, reverse: bool, kept: Tree, grads: Tree) -> Tree:
    state, states, workspaces, weight, biases = kept
    by_outputs, by_last = grads
    befores = tuple(
        jnp.concatenate([s[1:], first[None]] if reverse else [first[None], s[:-1]])
        for first, s in zip(state, states, strict=True)
    )

    def step(by_after: State, given: Tree) -> tuple[State, State]:
        by_output, before, after, workspace = given
        by_after = (by_after[0] + wide(by_output), *by_after[1:])
        by_gates, by_hidden, by_before = _STEPS[kind][1](by_after, before, after, workspace)
        by_gates, by_hidden = by_gates.astype(weight.dtype), by_hidden.astype(weight.dtype)
        # the gradient that goes on to the state before, in float32 as long as it travels
        through = wide(product(by_hidden, weight))
        return (through if by_before[0] is None else by_before[0] + through, *by_before[1:]), (by_gates, by_hidden)

    start = tuple(map(wide, by_last))
    by_state, (by_gates, by_hidden) = jax.lax.scan(
        step, start, (by_outputs, befores, states, workspaces), reverse=not reverse
    )
    by_weight = matmul(Columns(_flat(by_hidden)), _flat(befores[0]))
    # no biases, no gradients: the shorter list ends it
    by_biases = tuple(jnp.sum(_flat(g), 0) for g, _ in zip((by_gates, by_hidden), biases, strict=False))
    return by_gates, tuple(s.astype(weight.dtype) for s in by_state), by_weight, by_biases


def _flat(steps: Array) -> Array:
    """Return (T, B, …) as (T * B, …)."""
    return steps.reshape(-1, steps.shape[-1])


layer.defvjp(_forward, _backward)


@functools.cache
def _differentiable() -> Function:
    from ampcheck.jax_device.interop.functions import j2t_autograd  # noqa: PLC0415  # it needs the whole device

    return j2t_autograd(layer)


def _served(
    kind: str, input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], biased: bool, sides: int
) -> bool:
    """Return whether all is as a module of `sides` layers and directions gives it, and no mode is to see it."""
    each = 4 if biased else 2
    tensors = (input, *state, *params)
    if dispatch_modes() or functorch_level() is not None:
        return False
    if any(t.device != input.device or t.dtype != input.dtype for t in tensors) or not input.is_floating_point():
        return False
    if input.dim() != 3 or not input.numel() or len(params) != each * sides or len(state) != 1 + (kind == "lstm"):
        return False
    hidden = params[1].shape[-1]
    if any(s.shape != (sides, input.shape[1], hidden) for s in state):
        return False
    rows = _GATES[kind] * hidden
    return all(
        params[i].dim() == 2
        and params[i + 1].shape == (rows, hidden)
        and {p.shape for p in params[i + 2 : i + each]} <= {(rows,)}
        for i in range(0, len(params), each)
    )


def _module(kind: str, whole: OpOverload, args: Sequence[Tree]) -> Tree:
    """Run all layers; return the last one's outputs, and each state's last values of all layers."""
    input, given, params, biased, count, dropout, train, bidirectional, batch_first = args
    state, directions = given if kind == "lstm" else [given], 1 + bidirectional
    steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
    if not _served(kind, steps, state, params, biased, count * directions):
        return apart(whole, *args)
    run, each, lasts = _differentiable(), 4 if biased else 2, []
    for i in range(count):
        outputs = []
        for side in range(i * directions, (i + 1) * directions):
            by_input, by_hidden, *biases = params[side * each : (side + 1) * each]
            gates = F.linear(steps, by_input)  # where autocast casts; the rest follows
            cast = [t.to(gates.dtype) for t in (*(s[side] for s in state), by_hidden, *biases)]
            first, weight, rest = cast[: len(state)], cast[len(state)], cast[len(state) + 1 :]
            out, last = run(kind, side % directions == 1, gates, tuple(first), weight, tuple(rest))
            outputs.append(out)
            lasts.append(last)
        steps = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if dropout and train and i < count - 1:
            steps = F.dropout(steps, dropout)
    out = steps.transpose(0, 1) if batch_first else steps
    return (out, *(torch.stack(values) for values in zip(*lasts, strict=True)))


@composed("lstm.input")
def lstm(*args: Tree) -> Tree:
    return _module("lstm", torch.ops.aten.lstm.input, args)


@composed("gru.input")
def gru(*args: Tree) -> Tree:
    return _module("gru", torch.ops.aten.gru.input, args)
