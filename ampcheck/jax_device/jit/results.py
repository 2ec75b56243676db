"""What comes out of a trace: which arrays are returned, which are written, and what else a call changes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import jax
import torch

from ampcheck.jax_device.annotations import DeviceStorage, Tree
from ampcheck.jax_device.jit.optim import TracedNumber
from ampcheck.jax_device.jit.state import Reached, Size
from ampcheck.jax_device.jit.values import deferred
from ampcheck.jax_device.jit.watch import OpWatch, raw
from ampcheck.jax_device.storage.arrays import Bytes, alias, create, storage_of
from ampcheck.jax_device.storage.layout import Layout
from ampcheck.jax_device.torch_private import conj, neg_view, pytree


class TraceAttempt(Protocol):
    """What the results of a trace are sorted by: the attempt that traced."""

    tensors: list[torch.Tensor]
    storages: list[DeviceStorage]
    leaves: list[torch.Tensor]
    given_grads: Tree
    reached: Reached
    watch: OpWatch


class NewTensor(NamedTuple):
    """A tensor on a storage of the call's own: which output holds the storage, and the tensor's place in it."""

    output: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    plain: bool
    bits: tuple[bool, bool]


class Alias(NamedTuple):
    """A tensor on the storage of an input tensor."""

    tensor: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    bits: tuple[bool, bool]


class Same(NamedTuple):
    """An input tensor itself."""

    tensor: int


class NumberResult(NamedTuple):
    """A number that the program computes, and its Python type."""

    output: int
    kind: type


class Constant(NamedTuple):
    """What no input decides. A CPU tensor is copied for each call."""

    value: object


@dataclass
class Results:
    """What the function returns: its structure and its leaves."""

    spec: Tree
    leaves: list[Tree]


@dataclass
class Effects:
    """What a call changes besides: by slots, places, leaves and optimizers, in the order in which they were reached."""

    written: list[tuple[int, int, bool]] = field(default_factory=list)  # slot, output, as bytes
    places: list[tuple[int, Tree]] = field(default_factory=list)
    grads: list[tuple[int, Tree]] = field(default_factory=list)
    state: list[tuple[int, int, str, Tree]] = field(default_factory=list)  # optimizer, tensor, name


def collect(attempt: TraceAttempt, out: Tree, tracers: Sequence[jax.Array]) -> tuple[Results, Effects, list[jax.Array]]:
    """Sort what the traced function returned and changed; the arrays are the program's outputs."""
    return _Collector(attempt, tracers).collect(out)


class _Collector:
    def __init__(self, attempt: TraceAttempt, tracers: Sequence[jax.Array]) -> None:
        self.attempt, self.tracers = attempt, tracers
        self.outputs: list[jax.Array] = []
        self._made: dict[int, int] = {}
        self._tensors = {id(t): i for i, t in enumerate(attempt.tensors)}
        self._storages: dict[int, int] = {}
        for i, t in enumerate(attempt.tensors):
            if t.device.type == "jax":
                self._storages.setdefault(id(storage_of(t)), i)

    def collect(self, out: Tree) -> tuple[Results, Effects, list[jax.Array]]:
        leaves, spec = pytree.tree_flatten(out)
        results = Results(spec, [self._returned(leaf) for leaf in leaves])
        effects = Effects()
        self._grads(effects)
        self._places(effects)
        self._states(effects)
        for slot, (storage, tracer) in enumerate(zip(self.attempt.storages, self.tracers, strict=True)):
            if raw(storage.array) is not tracer:
                effects.written.append((slot, self._output(storage.array), isinstance(storage.array, Bytes)))
        return results, effects, self.outputs

    def _output(self, found: TracedNumber | Bytes) -> int:
        self.outputs.append(raw(found))
        return len(self.outputs) - 1

    def _returned(self, leaf: Tree) -> Tree:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and id(leaf) not in self._tensors and _live(leaf):
            raise RuntimeError(
                "a jitted function returns a tensor that requires grad, and its graph would end at the call: call "
                "backward() inside, or return tensor.detach(), or call it under torch.no_grad()"
            )
        if (number := deferred(leaf)) is not None:
            return NumberResult(self._output(number.traced), number.kind)
        return self._tensor(leaf)

    def _tensor(self, value: Tree) -> Tree:
        """Say how a call gets this value again."""
        if not isinstance(value, torch.Tensor):
            return Constant(value)
        if id(value) in self._tensors:
            return Same(self._tensors[id(value)])
        if value.device.type != "jax":
            return Constant(value.detach())
        storage = storage_of(value)
        size, stride, offset = Layout.of(value)
        bits = (value.is_conj(), value.is_neg())
        if id(storage) in self._storages:
            if value.dtype is not self.attempt.tensors[self._storages[id(storage)]].dtype:
                raise RuntimeError("a jitted function returns or keeps an input seen under another dtype; clone() it")
            return Alias(self._storages[id(storage)], size, stride, offset, bits)
        if id(storage) not in self._made:
            if isinstance(storage.array, Bytes):
                raise RuntimeError(
                    "a jitted function returns or keeps a tensor that was seen under two dtypes; clone() it"
                )
            self._made[id(storage)] = self._output(storage.array)
        array = storage.array
        plain = array.shape == size and value.is_contiguous() and not any(bits)
        return NewTensor(self._made[id(storage)], size, stride, offset, value.dtype, plain, bits)

    def _grads(self, effects: Effects) -> None:
        for i, (leaf, given) in enumerate(zip(self.attempt.leaves, self.attempt.given_grads, strict=True)):
            if leaf.grad is not given:
                effects.grads.append((i, self._tensor(leaf.grad)))

    def _places(self, effects: Effects) -> None:
        reached = self.attempt.reached
        for i, (holder, key, value) in enumerate(zip(reached.holders, reached.keys, reached.values, strict=True)):
            try:
                now = holder[key]
            except (KeyError, IndexError, ValueError):
                raise RuntimeError(f"{key!r} was there before a jitted function and is removed by it") from None
            if now is not value and not isinstance(now, torch.Tensor):
                self.attempt.watch.refuse_effects()
            if now is not value and not isinstance(holder, Size):
                effects.places.append((i, self._tensor(now)))

    def _states(self, effects: Effects) -> None:
        reached = self.attempt.reached
        known = {
            (id(h), k) for h, k in zip(reached.holders, reached.keys, strict=True) if isinstance(k, (str, torch.Tensor))
        }
        for o, optimizer in enumerate(reached.optimizers):
            for p, state in optimizer.state.items():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if (id(state), name) not in known:
                        effects.state.append((o, self._tensors[id(p)], name, self._tensor(value)))


def _live(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's graph still has what backward needs."""
    nodes, seen = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # PyTorch has no question "is this graph freed": a saved tensor that can still be read says that it is not.
        for name in dir(node):
            if name.startswith("_saved_"):
                with contextlib.suppress(RuntimeError):  # freed: PyTorch says so by an error
                    if isinstance(getattr(node, name), torch.Tensor):
                        return True
        nodes.extend(following for following, _ in node.next_functions)
    return False


def rebuild(
    what: Tree, outputs: Sequence[jax.Array], tensors: list[torch.Tensor], storages: dict[int, torch.Tensor]
) -> Tree:
    """Return a value of this call, from the program's outputs; tensors with one storage in the trace have one here."""
    kind = what.__class__
    if kind is NewTensor:
        if what.plain and what.output not in storages:
            tensor: torch.Tensor = create(what.size, what.dtype)
            storage_of(tensor).array = outputs[what.output]
            storages[what.output] = tensor
            return tensor
        whole = storages.get(what.output)
        if whole is None:
            array = outputs[what.output]
            whole = storages[what.output] = create(array.shape, what.dtype)
            storage_of(whole).array = array
        return _with_bits(alias(whole, what.size, what.stride, what.offset), what.bits)
    if kind is Alias:
        of = tensors[what.tensor].detach()
        return _with_bits(alias(of, what.size, what.stride, what.offset), what.bits)
    if kind is Same:
        return tensors[what.tensor]
    if kind is NumberResult:
        return what.kind(outputs[what.output])
    return what.value.clone() if isinstance(what.value, torch.Tensor) else what.value


def _with_bits(tensor: torch.Tensor, bits: tuple[bool, bool]) -> torch.Tensor:
    tensor = neg_view(tensor) if bits[1] else tensor
    return conj(tensor) if bits[0] else tensor
