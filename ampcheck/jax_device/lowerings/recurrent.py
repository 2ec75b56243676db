"""nn.LSTM and nn.GRU: a layer is one loop of XLA's over the sequence, where PyTorch calls a cell for every step.

So the program's size does not grow with the sequence, the input's product is one, and so is the weights' gradient.
PyTorch's own way remains for what is not served here (packed sequences, projections), for what the caller does by a
mode or a transform of functions, which sees the cells, and for what is to raise an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from ampcheck.jax_device.dispatch.special import apart, composed
from ampcheck.jax_device.lowerings.accumulate import matmul, product
from ampcheck.jax_device.lowerings.rnn import gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward
from ampcheck.jax_device.lowerings.wide import wide
from ampcheck.jax_device.storage.layout import Columns
from ampcheck.register.torch_private import dispatch_modes, functorch_level

_GATES = {"lstm": 4, "gru": 3}


def _lstm_step(gates: Any, hidden: Any, state: Any, biases: Any) -> Any:
    out, cell, workspace = lstm_cell(gates, hidden, state[1], *biases)
    return (out, cell), workspace


def _lstm_back(grads: Any, before: Any, after: Any, workspace: Any) -> Any:
    by_gates, by_cell, _ = lstm_cell_backward(grads[0], grads[1], before[1], after[1], workspace, False)
    return by_gates, by_gates, (None, by_cell)


def _gru_step(gates: Any, hidden: Any, state: Any, biases: Any) -> Any:
    out, workspace = gru_cell(gates, hidden, state[0], *biases)
    return (out,), workspace


def _gru_back(grads: Any, before: Any, after: Any, workspace: Any) -> Any:
    by_gates, by_hidden, by_state, _, _ = gru_cell_backward(grads[0], workspace, False)
    return by_gates, by_hidden, (by_state,)


_STEPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lstm": (_lstm_step, _lstm_back),
    "gru": (_gru_step, _gru_back),
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def layer(kind: str, reverse: bool, gates: Any, state: Any, weight: Any, biases: Any) -> Any:
    """A layer in one direction: its outputs (T, B, H) and the last state.

    `gates`: (T, B, gates * H), the input's product with its weights, without bias. `state`: (h,) or (h, c), of (B, H)
    each. `weight`: (gates * H, H) for h. `biases`: the input's and the hidden one, or none. Each step rounds its state
    and keeps its gates in the dtype of `gates`, as PyTorch's cells do.
    """
    return _forward(kind, reverse, gates, state, weight, biases)[0]


def _forward(kind: str, reverse: bool, gates: Any, state: Any, weight: Any, biases: Any) -> Any:
    def step(before: Any, gate: Any) -> Any:
        after, workspace = _STEPS[kind][0](gate, product(before[0], Columns(weight)), before, biases)
        after, workspace = jax.tree.map(lambda a: a.astype(gates.dtype), (after, workspace))
        return after, (after, workspace)

    last, (states, workspaces) = jax.lax.scan(step, state, gates, reverse=reverse)
    return (states[0], last), (state, states, workspaces, weight, biases)


def _backward(kind: str, reverse: bool, kept: Any, grads: Any) -> Any:
    state, states, workspaces, weight, biases = kept
    by_outputs, by_last = grads
    befores = tuple(
        jnp.concatenate([s[1:], first[None]] if reverse else [first[None], s[:-1]])
        for first, s in zip(state, states, strict=True)
    )

    def step(by_after: Any, given: Any) -> Any:
        by_output, before, after, workspace = given
        by_after = (by_after[0] + wide(by_output), *by_after[1:])
        by_gates, by_hidden, by_before = _STEPS[kind][1](by_after, before, after, workspace)
        by_gates, by_hidden = by_gates.astype(weight.dtype), by_hidden.astype(weight.dtype)
        through = wide(product(by_hidden, weight))
        return (through if by_before[0] is None else by_before[0] + through, *by_before[1:]), (by_gates, by_hidden)

    start = tuple(map(wide, by_last))
    by_state, (by_gates, by_hidden) = jax.lax.scan(
        step, start, (by_outputs, befores, states, workspaces), reverse=not reverse
    )
    by_weight = matmul(Columns(_flat(by_hidden)), _flat(befores[0]))
    by_biases = tuple(jnp.sum(_flat(g), 0) for g, _ in zip((by_gates, by_hidden), biases, strict=False))
    return by_gates, tuple(s.astype(weight.dtype) for s in by_state), by_weight, by_biases


def _flat(steps: Any) -> Any:
    """(T, B, …) as (T * B, …)."""
    return steps.reshape(-1, steps.shape[-1])


layer.defvjp(_forward, _backward)


@functools.cache
def _differentiable() -> Callable[..., Any]:
    from ampcheck.jax_device.interop.functions import j2t_autograd

    return j2t_autograd(layer)


def _served(kind: str, input: Any, state: Sequence[Any], params: Sequence[Any], biased: bool, sides: int) -> bool:
    """Whether all is as a module of `sides` layers and directions gives it, and no mode or transform is to see it."""
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


def _layers(
    kind: str,
    input: torch.Tensor,
    state: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    biased: bool,
    count: int,
    dropout: float,
    directions: int,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All layers of (T, B, in): the last one's outputs, and each state's last values of all layers."""
    run, each = _differentiable(), 4 if biased else 2
    lasts = []
    for i in range(count):
        outputs = []
        for side in range(i * directions, (i + 1) * directions):
            by_input, by_hidden, *biases = params[side * each : (side + 1) * each]
            gates = F.linear(input, by_input)  # where autocast casts; the rest follows
            given = [t.to(gates.dtype) for t in (*(s[side] for s in state), by_hidden, *biases)]
            first, weight, rest = given[: len(state)], given[len(state)], given[len(state) + 1 :]
            out, last = run(kind, side % directions == 1, gates, tuple(first), weight, tuple(rest))
            outputs.append(out)
            lasts.append(last)
        input = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if dropout and i < count - 1:
            input = F.dropout(input, dropout)
    return input, [torch.stack(values) for values in zip(*lasts, strict=True)]


def _module(kind: str, whole: Any, args: tuple[Any, ...]) -> Any:
    input, given, params, biased, count, dropout, train, bidirectional, batch_first = args
    state, directions = given if kind == "lstm" else [given], 1 + bidirectional
    steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
    if not _served(kind, steps, state, params, biased, count * directions):
        return apart(whole, *args)
    out, last = _layers(kind, steps, state, params, biased, count, dropout if train else 0.0, directions)
    return (out.transpose(0, 1) if batch_first else out, *last)


@composed("lstm.input")
def lstm(*args: Any) -> Any:
    """Outputs, last hidden and last cell states."""
    return _module("lstm", torch.ops.aten.lstm.input, args)


@composed("gru.input")
def gru(*args: Any) -> Any:
    """Outputs and last hidden states."""
    return _module("gru", torch.ops.aten.gru.input, args)
