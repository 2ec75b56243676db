"""Puts together what the two modes of a trace see: which kernel and which cast belong to which call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch.autograd.graph import Node

from ampcheck.observe.finite import CHOSEN, nonfinite
from ampcheck.observe.recorder import CASTS, Recorder, overload_name, tensors
from ampcheck.observe.torch_private import DisableTorchFunction
from ampcheck.register.torch_private import DispatchKey, OpOverload, backend_name, has_kernel
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.torch_private import FakeTensor, current_node, restored_state, sequence_number
from ampcheck.tools.trace import names
from ampcheck.tools.trace.casts import CastTracker, TracedCall
from ampcheck.tools.trace.records import OpRecord, TracedRegion
from ampcheck.tools.trace.sources import Sources

_COMPOSITE = DispatchKey.CompositeImplicitAutograd
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
        self._types = [name for name in _device_types() if torch.amp.is_autocast_available(name)]
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
            policy = names.kernel_policy(record.region.device, signature.overload)
            self._casts.consumed(call, policy, signature.overload, given)
        # An op with a policy runs with autocast off inside; one without leaves it on for what it calls.
        free = policy == "fallthrough" and record.policy in ("", "fallthrough")
        with self._autocast(call, free):
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
                record.nonfinite = nonfinite(results)
        record.views = call.views
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
        with _outside() if given is not None else nullcontext():
            call.enabled = [name for name in self._types if torch.is_autocast_enabled(name)]
        device = next((t.device.type for t in (*tensors((call.args, call.kwargs)), *(given or ()))), "cpu")
        on = device in call.enabled
        dtype = name_of(torch.get_autocast_dtype(device)) if on else ""
        region = TracedRegion(device, on, dtype, torch.is_autocast_cache_enabled())
        phase = "forward" if call.node is None else "backward"
        if call.func is not None:
            name = names.public_name(call.func)
            policy = names.call_policy(device, name, call.args, call.kwargs)
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
    def _autocast(self, call: TracedCall, free: bool) -> Iterator[None]:
        """Autocast as the kernel would have it without a trace: on inside of an op that has no policy itself."""
        types = call.enabled if free else ()
        for name in types:
            torch.set_autocast_enabled(name, True)
        try:
            yield
        finally:
            for name in types:
                torch.set_autocast_enabled(name, False)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the class of a tensor runs no Python code for a kernel, but that of fake tensors."""
    kind = type(tensor)
    return kind is FakeTensor or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _untraced() -> AbstractContextManager[object]:
    """Hide the trace's own questions to tensors from function modes."""
    guard: AbstractContextManager[object] = DisableTorchFunction()
    return guard


def _outside() -> AbstractContextManager[None]:
    guard: AbstractContextManager[None] = restored_state()
    return guard


def _device_types() -> tuple[str, ...]:
    own = backend_name()
    return ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "xla", "ipu", own)


def _note(record: OpRecord, overload: str, given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    record.kernels.append(overload)
    record.name = record.name or overload
    record.dtype = _joined(record.dtype, given or results)
    record.out = _joined(record.out, results)


def _joined(known: str, found: list[torch.Tensor]) -> str:
    parts = known.split("+") if known else []
    for tensor in found:
        name = name_of(tensor.dtype)
        if is_floating(name) and name not in parts:
            parts.append(name)
    return "+".join(parts)
