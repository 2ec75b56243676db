"""One trace of a PyTorch function: from its inputs' storages to a JAX program and what to do with its results."""

import contextlib
import gc
import random as python_random
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr
from torch import Tensor

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import Args, DeviceStorage, Function, Kwargs, Tree
from ampcheck.jax_device.jit.reads import Measured, Reads
from ampcheck.jax_device.jit.state import Concretize, Reached, extended, numbers_of, remembered, traced_optimizers
from ampcheck.jax_device.jit.watch import Asking, OpWatch, Poisoned, Value, ValueNeededError, deferred
from ampcheck.jax_device.storage.arrays import Bytes, Layout, alias, create, raw, storage_of
from ampcheck.jax_device.torch_private import conj, neg_view, pytree


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


class _Collector:
    """Sorts what the traced function returned and changed; the arrays are the program's outputs."""

    def __init__(self, attempt: "_Attempt", tracers: Sequence[jax.Array]) -> None:
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
        effects = Effects()
        # First, as JAX gives donated memory to outputs of its shape and dtype in order: what goes astray is copied.
        for slot, (storage, tracer) in enumerate(zip(self.attempt.storages, self.tracers, strict=True)):
            if raw(storage.array) is not tracer:
                effects.written.append((slot, self._output(storage.array), isinstance(storage.array, Bytes)))
        results = Results(spec, [self._returned(leaf) for leaf in leaves])
        self._grads(effects)
        self._places(effects)
        self._states(effects)
        return results, effects, self.outputs

    def _output(self, found: Tree) -> int:
        self.outputs.append(raw(found))
        return len(self.outputs) - 1

    def _returned(self, leaf: Tree) -> Tree:
        if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in self._tensors and _live(leaf):
            raise RuntimeError(
                "a jitted function returns a tensor that requires grad, and its graph would end at the call: call "
                "backward() inside, or return tensor.detach(), or call it under torch.no_grad()"
            )
        if (number := deferred(leaf)) is not None:
            return NumberResult(self._output(number.traced), number.kind)
        return self._tensor(leaf)

    def _tensor(self, value: Tree) -> Tree:
        """Say how a call gets this value again."""
        if not isinstance(value, Tensor):
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
            if now is not value and not isinstance(now, Tensor):
                self.attempt.watch.refuse_effects()
            if now is not value and not isinstance(holder, Measured):
                effects.places.append((i, self._tensor(now)))

    def _states(self, effects: Effects) -> None:
        reached = self.attempt.reached
        known = {(id(h), k) for h, k in zip(reached.holders, reached.keys, strict=True) if isinstance(k, (str, Tensor))}
        for o, optimizer in enumerate(reached.optimizers):
            for p, state in optimizer.state.items():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if (id(state), name) not in known:
                        effects.state.append((o, self._tensors[id(p)], name, self._tensor(value)))


def _live(tensor: Tensor) -> bool:
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
                    if isinstance(getattr(node, name), Tensor):
                        return True
        nodes.extend(following for following, _ in node.next_functions)
    return False


def rebuild(what: Tree, outputs: Sequence[jax.Array], tensors: list[Tensor], storages: dict[int, Tensor]) -> Tree:
    """Return a value of this call, from the program's outputs; tensors with one storage in the trace have one here."""
    kind = what.__class__
    if kind is NewTensor:
        if what.plain and what.output not in storages:
            tensor: Tensor = create(what.size, what.dtype)
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
    return what.value.clone() if isinstance(what.value, Tensor) else what.value


def _with_bits(tensor: Tensor, bits: tuple[bool, bool]) -> Tensor:
    tensor = neg_view(tensor) if bits[1] else tensor
    return conj(tensor) if bits[0] else tensor


lock = threading.RLock()  # storages hold traced arrays meanwhile, so one trace at a time


class _Tracing(threading.local):
    active = False


tracing = _Tracing()


@cache
def _answer() -> None:
    """Have `torch.compiler.is_compiling()` return True in a thread that traces, and no other answer elsewhere.

    Only the function's code is replaced: libraries that took the function by `from torch.compiler import` and Dynamo's
    tables have the function itself, and TorchScript reads its source where the code says that it is.
    """
    asked = torch.compiler.is_compiling
    before = asked.__code__
    by_torch = types.FunctionType(before, asked.__globals__)
    asked.__globals__["_jax_is_compiling"] = lambda: tracing.active or by_torch()
    replaced = (lambda: _jax_is_compiling()).__code__  # type: ignore[name-defined]  # noqa: F821
    asked.__code__ = replaced.replace(
        co_name=before.co_name,
        co_qualname=before.co_qualname,
        co_filename=before.co_filename,
        co_firstlineno=before.co_firstlineno,
    )


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through all of PyTorch and JAX for what tracing and compiling make."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class StepTrace:
    """What one trace gave: the program as a jaxpr over all inputs, and what its outputs are."""

    closed: ClosedJaxpr
    tensors: list[Tensor]
    leaves: list[Tensor]
    extra: list[Tensor]
    reads_grads: bool
    host: list[Tensor]
    results: Results
    effects: Effects
    random: bool
    numbers: int
    asked: int
    """How many values it asked for, the last of the program's outputs."""
    outcomes: list[str]
    """The lines at which it did."""
    whole: bool
    """Whether the values that it was given are all that it asks for; else its program computes those, and no more."""
    reads: Reads


def unique(tensors: list[Tensor]) -> list[DeviceStorage]:
    """Return the storages of device tensors, each once, in order."""
    found = {id(s): s for s in (storage_of(t) for t in tensors if t.device.type == "jax")}
    return list(found.values())


def grad_leaves(arguments: list[Tensor], reached: Reached) -> list[Tensor]:
    """Return the tensors whose `.grad` the function may use or set."""
    found = [*(t for t in arguments if t.is_leaf), *reached.leaves]
    return [t for t in dict.fromkeys(found) if t.requires_grad and t.device.type == "jax"]


class StepCall(NamedTuple):
    """A call of a function, the tensors among its arguments, and what it reaches besides."""

    fn: Function
    args: Args
    kwargs: Kwargs
    arguments: list[Tensor]
    reached: Reached


def trace(call: StepCall, assumed: tuple[Value, ...] | None = ()) -> StepTrace:
    """Trace the function without any effect that lasts: every storage, gradient and setting is as before afterwards.

    Storages that were not known to be inputs become inputs of a second trace. `assumed`: the values that it asks for,
    as far as they are known; None where it may ask for none.
    Raises ValueNeededError, RuntimeError for what cannot be compiled, and whatever the function raises; instead of
    that ValueNeededError where it asked for a value before, since eagerly it may do without.
    """
    extra: list[Tensor] = []
    reads_grads = False
    with lock, uncollected():
        while True:
            attempt = _Attempt(call, extra, reads_grads, assumed)
            try:
                done = attempt.run()
            except Poisoned:
                reads_grads = True
                continue
            except (Restart, ValueNeededError, Concretize):
                raise
            except Exception as error:
                if call.reached.grew:
                    raise Restart from None
                if attempt.watch.first is None:
                    raise
                raise attempt.watch.first from error
            if attempt.watch.unknown:
                extra = [*extra, *(t for _, _, t in attempt.watch.unknown.values())]
                continue
            return done


class Restart(Exception):
    """The function reads tensors or optimizers that the walk did not find; now they have a place."""


class _Attempt:
    """One try, with a given set of inputs."""

    def __init__(
        self, call: StepCall, extra: list[Tensor], reads_grads: bool, assumed: tuple[Value, ...] | None
    ) -> None:
        self.call, self.reached = call, call.reached
        self.leaves = grad_leaves(call.arguments, call.reached)
        self.grads = [leaf.grad for leaf in self.leaves]
        # A step that reads no gradients is traced with empty ones, in place of those that there are before each call.
        self.given_grads = self.grads if reads_grads else [create(leaf.shape, leaf.dtype) for leaf in self.leaves]
        given = [g for g in self.given_grads if g is not None]
        self.tensors = [*call.arguments, *call.reached.tensors, *(given if reads_grads else ()), *extra]
        self.extra = extra
        self.storages = unique(self.tensors)
        self.reads_grads = reads_grads
        self.watch = OpWatch(self.storages, [] if reads_grads else [storage_of(g) for g in given], assumed)
        self.originals = [s.array for s in self.storages]
        self.homes = [(t, storage_of(t), t.detach()) for t in self.tensors if t.device.type == "jax"]
        self.random, self.whole = False, True
        self.reads = Reads(call.reached.read, call.reached.iterators, call.reached.generators, self.watch.stop)

    def run(self) -> StepTrace:
        closed, numbers, host_tensors, done = self._traced_apart()
        if done:
            self._check_escapes()
        return StepTrace(
            closed, self.tensors, self.leaves, self.extra, self.reads_grads, host_tensors, self.results, self.effects,
            self.random, numbers, len(self.watch.asked), [*self.watch.outcomes], self.whole,
            self.reads,
        )  # fmt: skip

    def _traced_apart(self) -> tuple[ClosedJaxpr, int, list[Tensor], bool]:
        """Return the program, how many numbers it takes, the host's tensors that it read, and whether it is one.

        In a frame of its own: whoever looks at a frame's locals (an import in the step may) keeps them until it ends.
        """
        specs = [jax.ShapeDtypeStruct(raw(a).shape, raw(a).dtype) for a in self.originals]
        numbers = numbers_of(self.reached)
        self.rewind = remembered(self.reached.optimizers, self.reached.scalers)
        on_host = [t for t in self.tensors if t.device.type == "cpu"]
        host = _Host(on_host, self.reached.containers())
        done = False
        try:
            closed = jax.make_jaxpr(self._body)(specs, numbers, np.zeros(2, np.uint32))
            if self.reached.grew:
                raise Restart
            if not self.watch.unknown and self.whole:
                if not host.check(self.watch.host.values()):
                    raise self.watch.stop("the function seeds the random numbers of the CPU", "some line")
                self.watch.check_numbers()
                if host.changed(self.reached.unguarded):
                    self.watch.refuse_effects()
                done = True
        finally:
            if not done:
                host.restore()
                self.rewind()  # again, as the scaler has another dict
                self.watch.wipe()
            del host  # its copies of containers have tensors, and an error in backward keeps this frame
        host_tensors = [*on_host, *(t for t, _ in self.watch.host.values())]
        return closed, len(numbers), host_tensors, done

    def _body(self, arrays: Sequence[jax.Array], numbers: Sequence[jax.Array], base: jax.Array) -> list[jax.Array]:
        torch.clear_autocast_cache()  # a kept cast from outside would be a constant, one from inside a tracer
        try:
            return self._traced(arrays, numbers, base)
        finally:  # here, as JAX looks for leaked tracers when this function returns
            torch.clear_autocast_cache()
            self._restore()

    def _traced(self, arrays: Sequence[jax.Array], numbers: Sequence[jax.Array], base: jax.Array) -> list[jax.Array]:
        for leaf, grad in zip(self.leaves, self.given_grads, strict=True):
            leaf.grad = grad
        for storage, array, original in zip(self.storages, arrays, self.originals, strict=True):
            storage.array = Bytes(array) if isinstance(original, Bytes) else array
        with (
            torch.autograd.set_multithreading_enabled(False),
            _active(),
            random.traced(base),
            traced_optimizers(self.reached.optimizers, numbers, self._outer),
            self.watch,
        ):
            try:
                with extended(self.reached), self.reads:
                    out = self.call.fn(*self.call.args, **self.call.kwargs)
                self.watch.ask_checks()
                kept = random.kept() if self.watch.needed is None else ""
            except Asking:
                self.whole, self.results, self.effects = False, Results(None, []), Effects()
                return self.watch.asked
            finally:
                self.random = random.drew()
        if self.watch.needed is not None:  # the function took the error for one of its own
            raise self.watch.needed
        if kept:
            raise self.watch.stop(f"the function {kept}", "its end")
        self.reads.check()
        if self.watch.poisoned:
            raise Poisoned
        for tensor, home, _ in self.homes:
            if storage_of(tensor) is not home:
                raise RuntimeError(
                    f"a tensor of shape {list(tensor.shape)} from outside of a jitted function was given another "
                    "storage inside (x.data = ..., set_, resize_); write to it in place (copy_)"
                )
        self.results, self.effects, outputs = _Collector(self, arrays).collect(out)
        outputs += self.watch.asked
        return [jax.lax.convert_element_type(o, o.dtype) for o in outputs]

    def _outer(self) -> list[DeviceStorage]:
        return [*self.storages, *(s for s, _, _ in self.watch.unknown.values())]

    def _restore(self) -> None:
        for storage, array in zip(self.storages, self.originals, strict=True):
            storage.array = array
        for storage, array, _ in self.watch.unknown.values():
            storage.array = array
        for leaf, grad in zip(self.leaves, self.grads, strict=True):
            leaf.grad = grad
        for tensor, home, same in self.homes:
            if storage_of(tensor) is not home:
                tensor.data = same
        places = zip(self.reached.holders, self.reached.keys, self.reached.values, strict=True)
        for place, (holder, key, value) in enumerate(places):
            with contextlib.suppress(AttributeError, TypeError, KeyError, IndexError):  # a tuple cannot have changed
                try:
                    same = holder[key] is value
                except (KeyError, IndexError, ValueError):
                    same = False
                if not same:
                    self.reached.put(place, value)
        self.rewind()

    def _check_escapes(self) -> None:
        """Raise RuntimeError where something keeps a tensor of the trace, which a later call would not make anew."""
        if not self.watch.alive():
            return
        gc.collect()
        alive = self.watch.alive()
        if not alive:
            return
        _, op, line = alive[0]
        more = f" ({len(alive)} such tensors)" if len(alive) > 1 else ""
        del alive
        self.watch.wipe()
        raise RuntimeError(
            f"a tensor made in a jitted function outlives the call: the result of {op} at {line}{more}; return it (a "
            "tensor, or lists, tuples and dicts of them, not inside of another object), or write it in place to a "
            "tensor made before (copy_)"
        )


@contextlib.contextmanager
def _active() -> Iterator[None]:
    _answer()
    before, tracing.active = tracing.active, True
    try:
        yield
    finally:
        tracing.active = before


class _Host:
    """What is on the host: CPU tensors, seeds, and containers of Python's.

    A compiled function may read them as constants. A trace that gives no program leaves them as they were.
    """

    def __init__(self, tensors: list[Tensor], containers: list[Tree]) -> None:
        self._before = [(t, t._version, t.detach().clone()) for t in tensors]
        self._containers = [(c, c.copy()) for c in containers]
        self._random = torch.get_rng_state()
        self._seeds = (random.default.get_state(), python_random.getstate(), np.random.get_state())

    def restore(self) -> None:
        for tensor, version, value in self._before:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(value)
        for container, kept in self._containers:
            if not _alike(container, kept):
                container.clear()
                container.extend(kept) if isinstance(container, (list, deque)) else container.update(kept)
        torch.set_rng_state(self._random)
        on_device, by_python, by_numpy = self._seeds
        random.default.set_state(on_device)
        python_random.setstate(by_python)
        np.random.set_state(by_numpy)

    def changed(self, unguarded: list[Tree]) -> bool:
        """Return whether a container has other objects than before; some may change without a new program."""
        apart = {*map(id, unguarded)}
        return any(id(c) not in apart and not _alike(c, kept) for c, kept in self._containers)

    def check(self, seen: Iterable[tuple[Tensor, int]]) -> bool:
        """Raise RuntimeError where something was written; return whether PyTorch's random state is as it was.

        `seen` are the tensors that the trace met, with the versions they had then.
        """
        for tensor, version in (*((t, v) for t, v, _ in self._before), *seen):
            if tensor._version != version:
                raise RuntimeError(
                    f"a CPU tensor of shape {list(tensor.shape)} is written in a jitted function, which would happen "
                    "once, when it is compiled; put it on the jax device (an optimizer's step count by capturable=True)"
                )
        return torch.equal(self._random, torch.get_rng_state())


def _alike(one: Tree, other: Tree) -> bool:
    """Return whether two containers of a kind have the same objects, in the same order."""
    if isinstance(one, dict):
        return [*map(id, one.keys()), *map(id, one.values())] == [*map(id, other.keys()), *map(id, other.values())]
    return [*map(id, one)] == [*map(id, other)]
