"""Casts of a trace: what was cast, who asked for it, and which later calls were spared one by the weight cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.recorder import tensors
from ampcheck.spec.casting import Leaf, expect
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.torch_private import is_functorch_wrapped
from ampcheck.tools.trace.names import CONVERSIONS
from ampcheck.tools.trace.records import CastRecord, OpRecord, Origin
from ampcheck.tools.trace.sources import Sources

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
        cast = CastRecord(
            given,
            got,
            count,
            count * (before.element_size() + after.element_size()),
            "op",
            kind,
            self._sources.name(base),
            base._version if not base.is_inference() else 0,
            id(base),
            _cacheable(record, before, given, got, kind),
            int(torch.is_grad_enabled()),
        )
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
    if wanted is None and pending.cast.got in asked.values() and _transformed(call):
        wanted = pending.cast.got
    # An op with a policy casts its arguments before anything else; later casts are part of its own computation.
    if wanted is not None and pending.first and pending.leaf.eligible and wanted in ("", pending.cast.got):
        return "autocast"
    return "op"


def _transformed(call: TracedCall) -> bool:
    """Return whether vmap, grad or the like wraps its arguments: autocast then casts the tensors inside of them."""
    return any(is_functorch_wrapped(t) for t in tensors((call.args, call.kwargs)))


def _matching(cast: CastRecord, forward: OpRecord) -> list[CastRecord]:
    return [c for c in forward.casts if (c.given, c.got, c.elements) == (cast.got, cast.given, cast.elements)]


def _from_forward(cast: CastRecord, forward: OpRecord | None) -> None:
    """Name a gradient's cast after the tensor whose gradient it is."""
    matching = [c for c in _matching(cast, forward) if c.origin == "autocast"] if forward is not None else []
    if matching:
        first = matching[0]
        cast.kind, cast.key, cast.version = first.kind, first.key, first.version
        cast.source = f"gradient of {first.source}"


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
        return None


def _cacheable(record: OpRecord, before: torch.Tensor, given: str, got: str, kind: str) -> str:
    """Why autocast does not keep a cast for reuse, "" where it does."""
    if not record.region.cache:
        return "the weight cache is off"
    if torch.is_inference_mode_enabled():
        return "nothing is cached in inference mode"
    if got != record.region.dtype:
        return "only casts to the region's dtype are cached"
    if given != "fp32":
        return "only float32 tensors are cached"
    if before._is_view():
        return "a view is not cached"
    if not before.requires_grad:
        return "only tensors that require grad are cached"
    return "" if before.is_leaf else "only leaves are cached"
