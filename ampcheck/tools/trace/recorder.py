"""Puts together what the two modes of a trace see: which kernel and which cast belong to which call."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.closeness import CHOSEN, nonfinite
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.recorder import CASTS, Recorder, overload_name, tensors
from ampcheck.observe.torch_private import DisableTorchFunction
from ampcheck.register.torch_private import DispatchKey, OpOverload, backend_name, has_kernel
from ampcheck.samples.torch_private import disable_current_modes
from ampcheck.spec.casting import Leaf, expect, is_floating
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.torch_private import FakeTensor, current_node, is_functorch_wrapped, restored_state, sequence_number
from ampcheck.tools.trace.records import CastRecord, OpRecord, Origin, TracedRegion
from ampcheck.tools.trace.sources import CONVERSIONS, Sources, call_policy, kernel_policy, public_name

_TYPES = ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "xla", "ipu")
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_untraced: Callable[[], AbstractContextManager[object]] = DisableTorchFunction
"""Hides the trace's own questions to tensors from function modes."""
# Kernels that move no data, beside those whose schema says that they return a view.
_VIEWS = frozenset(("_unsafe_view", "_reshape_alias", "lift_fresh", "set_.source_Tensor"))


class TracedOp(NamedTuple):
    """An op as a trace sees it. `composite`: whether it is made of others on every device."""

    overload: str
    is_cast: bool
    is_view: bool
    composite: bool


@cache
def signature_of(func: OpOverload) -> TracedOp:
    """Return what a trace must know of an op."""
    name = overload_name(func)
    if name.startswith(("prim::", "profiler::")):
        return TracedOp(name, False, True, False)
    qualified = str(func._schema.name) + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    # A composite op with a kernel for a backend is not taken apart there.
    composite = has_kernel(qualified, "CompositeImplicitAutograd") and not has_kernel(qualified, "CPU")
    return TracedOp(name, name in CASTS, bool(func.is_view) or name in _VIEWS, composite)


class TraceRecorder:
    """The state of one trace. `ops` are the records made so far, `kernels` the mode that sees the casts and kernels."""

    def __init__(self) -> None:
        self.kernels = Recorder(self._kernel)
        self.ops: list[OpRecord] = []
        self._sources = Sources()
        self._casts = CastTracker(self._sources)
        self._calls: list[TracedCall] = []
        # What runs without a public call: the backward, and what TorchScript runs.
        self._loose: TracedCall | None = None
        # Autograd's sequence numbers where forward records start, ascending, to find the forward of a backward node.
        self._starts: list[int] = []
        self._started: list[OpRecord] = []
        self._types = [name for name in (*_TYPES, backend_name()) if torch.amp.is_autocast_available(name)]
        self._error: Exception | None = None

    def enter(self, call: TracedCall) -> bool:
        """Begin a public call. Returns whether it is one of the same function inside of another."""
        self._end_loose()
        call.node = current_node()
        call.sequence = sequence_number()
        repeated = bool(self._calls) and self._calls[-1].func is call.func
        self._calls.append(call)
        return repeated

    def leave(self, call: TracedCall) -> None:
        """End a public call, however it ended."""
        self._end_loose()
        self._calls.remove(call)
        with _untraced():
            self._casts.settle(call)
        call.args, call.kwargs = (), {}

    def failed(self, call: TracedCall, error: Exception) -> None:
        """Mark a call that raised: the innermost that the exception comes from."""
        # PyTorch's own control flow is not an error: a checkpoint stops its recomputation by a private exception.
        if error is not self._error and not type(error).__name__.startswith("_"):
            self._error = error
            with _untraced():
                record = self._record(call)
            record.error = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"

    def finish(self) -> None:
        """End the trace: settle what is open, and let go of the program's tensors and modules."""
        self._end_loose()
        for call in self._calls:
            self._casts.settle(call)
        self._calls.clear()
        self._error = None
        self._sources = Sources()
        self._casts = CastTracker(self._sources)

    def _kernel(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run a kernel that the dispatch mode was given, and record it. Returns what it returns."""
        with _untraced():
            given = list(tensors((args, kwargs)))
        # Function modes saw the program's call; the second one from here they would not see without a trace. The
        # methods of tensor subclasses are the program's again.
        untraced = _untraced() if all(map(_is_plain, given)) else nullcontext()
        signature = signature_of(func)
        call = self.current()
        if signature.is_cast or signature.is_view:
            with untraced:
                out = func(*args, **kwargs)
            with _untraced():
                self._moved(call, signature, args, out)
            return out
        with _untraced():
            record = self._record(call, given)
            policy = kernel_policy(record.region.device, signature.overload)
            self._casts.consumed(call, policy, signature.overload, given)
        # An op with a policy runs with autocast off inside; one without leaves it on for what it calls.
        free = policy == "fallthrough" and record.policy in ("", "fallthrough")
        with switched(call.enabled if free else (), on=True):
            if signature.composite and free:
                with self.kernels:
                    return func._op_dk(_COMPOSITE, *args, **kwargs)
            with untraced:
                out = func(*args, **kwargs)
        with _untraced():
            results = list(tensors(out))
            if given:
                self._casts.made(results)
            _note(record, signature.overload, given, results)
            plain = signature.overload.partition(".")[0] not in CHOSEN and all(map(_is_plain, results))
            if plain and not record.nonfinite and not any(type(x) is FakeTensor for x in results):
                with disable_current_modes():  # another mode would take what is asked here for the program's
                    record.nonfinite = nonfinite(results)
        if self._loose is call and call.node is None:
            # It has no public call, so its row names the kernel itself.
            record.policy = policy
            self._end_loose()
        return out

    def _moved(self, call: TracedCall, signature: TracedOp, args: tuple[object, ...], out: object) -> None:
        """Note a kernel that computes nothing."""
        if not signature.is_cast:
            call.views += 1
            if call.record is not None:
                call.record.views = call.views
        else:
            before = args[0]
            if isinstance(before, torch.Tensor) and isinstance(out, torch.Tensor) and out.dtype != before.dtype:
                self._casts.add(call, self._record(call, [before]), before, out)

    def current(self) -> TracedCall:
        """Return the call that kernels are counted to now."""
        node = current_node()
        if self._calls and self._calls[-1].node is node:
            return self._calls[-1]
        if self._loose is None or self._loose.node is not node:
            self._end_loose()
            self._loose = TracedCall(None, (), {})
            self._loose.node = node
            self._loose.sequence = sequence_number()
        return self._loose

    def _end_loose(self) -> None:
        if self._loose is not None:
            with _untraced():
                self._casts.settle(self._loose)
            self._loose = None

    def _record(self, call: TracedCall, given: Sequence[torch.Tensor] | None = None) -> OpRecord:
        if call.record is not None:
            return call.record
        # Inside a dispatch mode every autocast key is off; this is the state the program's call had.
        with restored_state() if given is not None else nullcontext():
            call.enabled = [name for name in self._types if torch.is_autocast_enabled(name)]
        device = next((t.device.type for t in (*tensors((call.args, call.kwargs)), *(given or ()))), "cpu")
        on = device in call.enabled
        dtype = name_of(torch.get_autocast_dtype(device)) if on else ""
        region = TracedRegion(device, on, dtype, torch.is_autocast_cache_enabled())
        phase = "forward" if call.node is None else "backward"
        if call.func is not None:
            name = public_name(call.func)
            policy = call_policy(device, name, call.args, call.kwargs)
            module, location = self._sources.place()
        else:
            name, policy, module, location = self._unnamed(call)
        record = OpRecord(len(self.ops), name, policy, phase, module, location, region)
        record.views = call.views
        call.record = record
        self.ops.append(record)
        if call.func is not None and torch.is_grad_enabled():
            self._starts.append(max(call.sequence, self._starts[-1] if self._starts else 0))
            self._started.append(record)
        return record

    def _unnamed(self, call: TracedCall) -> tuple[str, str, str, str]:
        """Name, policy, module and place of what no public call is known for."""
        module, location = self._sources.place()
        if call.node is None:
            return "", "fallthrough", module, location
        call.forward = self._forward(call.node)
        if call.forward is not None:
            module, location = call.forward.module, call.forward.location
        return call.node.name().rpartition("::")[2], "", module, location

    def _forward(self, node: Node) -> OpRecord | None:
        """Return the record of the call that made an autograd node, None where it was not traced."""
        number = getattr(node, "_sequence_nr", lambda: 2**64)()
        place = bisect_right(self._starts, number) - 1
        return self._started[place] if place >= 0 and number < 2**63 else None


@contextmanager
def switched(devices: Collection[str], *, on: bool) -> Iterator[None]:
    """Switch autocast of some device types on or off, where it is the other way round."""
    for name in devices:
        torch.set_autocast_enabled(name, on)
    try:
        yield
    finally:
        for name in devices:
            torch.set_autocast_enabled(name, not on)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the class of a tensor runs no Python code for a kernel, but that of fake tensors."""
    kind = type(tensor)
    return kind is FakeTensor or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _note(record: OpRecord, overload: str, given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    record.kernels.append(overload)
    record.name = record.name or overload
    record.dtype = _joined(record.dtype, given or results)
    record.out = _joined(record.out, results)


def _joined(known: str, found: list[torch.Tensor]) -> str:
    names = (name_of(tensor.dtype) for tensor in found)
    return "+".join(dict.fromkeys([*filter(None, known.split("+")), *filter(is_floating, names)]))


# What a convolution or a recurrent layer with a policy is made of, where an op without one contains it.
_PARTS = frozenset(("convolution", "_convolution", "convolution_overrideable", "mkldnn_rnn_layer"))


@dataclass(slots=True)
class _Pending:
    """A cast whose origin is not decided. `first`: no kernel of the call ran before it."""

    cast: CastRecord
    source: int
    leaf: Leaf
    first: bool


@dataclass(eq=False)
class TracedCall:
    """A public call while it runs; `func` is None for what runs without one.

    `node`, `sequence`: autograd's node and sequence number when it began. `enabled`: the device types autocast is on
    for. `forward`: for a backward node, the record of the call that made it.
    """

    func: Callable[..., object] | None
    args: tuple[object, ...]
    kwargs: dict[str, object]
    node: Node | None = None
    sequence: int = 0
    record: OpRecord | None = None
    forward: OpRecord | None = None
    enabled: list[str] = field(default_factory=list)
    views: int = 0
    pending: dict[int, _Pending] = field(default_factory=dict)
    hits: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Kept:
    """A weight's low copy. The weak reference to its storage keeps the storage's address from being used again."""

    storage: StorageWeakRef
    cast: CastRecord
    weight: weakref.ref[torch.Tensor]
    call: TracedCall


class CastTracker:
    """Follows casts from where they are made to the kernels that take them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._weights: dict[int, _Kept] = {}
        self._made: dict[int, StorageWeakRef] = {}
        self._limit = 1024

    def add(self, call: TracedCall, record: OpRecord, before: torch.Tensor, after: torch.Tensor) -> None:
        """Note a cast that was made in a call."""
        given, got = name_of(before.dtype), name_of(after.dtype)
        count = before.numel()
        storage = _storage(before)
        kind = self._sources.kind(before, made=storage is not None and storage._cdata in self._made)
        base = before._base if kind == "view" and before._base is not None else before
        moved = count * (before.element_size() + after.element_size())
        version = base._version if not base.is_inference() else 0
        told = (self._sources.name(base), version, id(base), _cacheable(record, before, given, got))
        cast = CastRecord(given, got, count, moved, "op", kind, *told, int(torch.is_grad_enabled()))
        record.casts.append(cast)
        leaf = Leaf(given, before.device.type == record.region.device)
        pending = _Pending(cast, id(before), leaf, first=not record.kernels)
        target = _storage(after)
        # Sparse tensors have no storage to follow.
        call.pending[target._cdata if target is not None else -id(cast)] = pending
        if target is not None:
            self.made([after])
            if kind == "weight" and not cast.cacheable:
                self._weights[target._cdata] = _Kept(StorageWeakRef(target), cast, weakref.ref(before), call)

    def consumed(self, call: TracedCall, policy: str, overload: str, given: Sequence[torch.Tensor]) -> None:
        """Tell whose the casts are that a kernel is about to take: autocast's where its policy explains them."""
        record = call.record
        if record is None or not record.region.enabled or not (call.pending or self._weights):
            return
        expected = {"downcast": record.region.dtype, "upcast": "fp32"}.get(policy)
        if overload in _PARTS:
            expected = record.region.dtype
        for tensor in given:
            storage = _storage(tensor)
            if storage is None:
                continue
            pending = call.pending.get(storage._cdata)
            if pending is not None:
                asked = policy in ("promote", UNKNOWN) or pending.cast.got == expected
                if record.policy in ("", "fallthrough") and asked and pending.leaf.eligible:
                    pending.cast.origin = "autocast"
            elif call.func is not None or call.node is None:
                self._hit(call, record, storage._cdata)

    def _hit(self, call: TracedCall, record: OpRecord, storage: int) -> None:
        cached = self._weights.get(storage)
        if cached is None or cached.call is call or storage in call.hits or cached.storage.expired():
            return
        call.hits.add(storage)
        cached.cast.uses += torch.is_grad_enabled()
        record.cache_hits += 1
        weight = cached.weight()
        if weight is not None and weight._version != cached.cast.version:
            record.stale.append(cached.cast.source)

    def settle(self, call: TracedCall) -> None:
        """Decide whose the casts of a call were that ended."""
        record = call.record
        if record is None or not call.pending:
            return
        asked = self._asked(call, record)
        for storage, pending in call.pending.items():
            if pending.cast.origin == "op":
                pending.cast.origin = _origin(call, record, pending, asked)
            if pending.cast.origin == "gradient":
                _from_forward(pending.cast, call.forward)
            if pending.cast.origin != "autocast":
                pending.cast.cacheable = ""
                self._weights.pop(storage, None)
        call.pending.clear()

    def _asked(self, call: TracedCall, record: OpRecord) -> dict[int, str]:
        """Return the dtype that the call's own policy asks of each of its arguments."""
        if not record.region.enabled or record.policy not in ("downcast", "upcast", "promote", UNKNOWN):
            return {}
        given = list(tensors((call.args, call.kwargs)))
        if record.policy == UNKNOWN:
            return {id(tensor): "" for tensor in given}
        leaves = [Leaf(name_of(tensor.dtype), tensor.device.type == record.region.device) for tensor in given]
        wanted = expect(record.policy, record.name, leaves, record.region.dtype).leaves
        return {id(tensor): dtype for tensor, dtype in zip(given, wanted, strict=True)}

    def made(self, results: Sequence[torch.Tensor]) -> None:
        """Tensors the program computed."""
        for tensor in results:
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in self._made:
                self._made[storage._cdata] = StorageWeakRef(storage)
        if len(self._made) > self._limit:
            self._made = {key: ref for key, ref in self._made.items() if not ref.expired()}
            self._weights = {key: cached for key, cached in self._weights.items() if not cached.storage.expired()}
            self._limit = max(1024, 2 * len(self._made))


def _origin(call: TracedCall, record: OpRecord, pending: _Pending, asked: dict[int, str]) -> Origin:
    if call.func is not None and record.name.partition(".")[0] in CONVERSIONS:
        return "user"
    if call.node is not None and call.func is None:
        if not record.name.startswith("ToCopyBackward") or call.forward is None:
            return "op"
        origins = {cast.origin for cast in _matching(pending.cast, call.forward)}
        return "gradient" if "autocast" in origins else "user" if "user" in origins else "op"
    wanted = asked.get(pending.source)
    # Where vmap, grad or the like wraps its arguments, autocast casts the tensors inside of them.
    wrapped = any(is_functorch_wrapped(tensor) for tensor in tensors((call.args, call.kwargs)))
    if wanted is None and pending.cast.got in asked.values() and wrapped:
        wanted = pending.cast.got
    # An op with a policy casts its arguments before anything else; later casts are part of its own computation.
    if wanted is not None and pending.first and pending.leaf.eligible and wanted in ("", pending.cast.got):
        return "autocast"
    return "op"


def _matching(cast: CastRecord, forward: OpRecord) -> list[CastRecord]:
    return [c for c in forward.casts if (c.given, c.got, c.elements) == (cast.got, cast.given, cast.elements)]


def _from_forward(cast: CastRecord, forward: OpRecord | None) -> None:
    """Name a gradient's cast after the tensor whose gradient it is."""
    matching = _matching(cast, forward) if forward is not None else []
    if first := next((one for one in matching if one.origin == "autocast"), None):
        cast.kind, cast.key, cast.version = first.kind, first.key, first.version
        cast.source = f"gradient of {first.source}"


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
        return None


def _cacheable(record: OpRecord, before: torch.Tensor, given: str, got: str) -> str:
    """Why autocast does not keep a cast for reuse, "" where it does."""
    reasons = {
        "the weight cache is off": not record.region.cache,
        "nothing is cached in inference mode": torch.is_inference_mode_enabled(),
        "only casts to the region's dtype are cached": got != record.region.dtype,
        "only float32 tensors are cached": given != "fp32",
        "a view is not cached": before._is_view(),
        "only tensors that require grad are cached": not before.requires_grad,
        "only leaves are cached": not before.is_leaf,
    }
    return next((why for why, holds in reasons.items() if holds), "")
