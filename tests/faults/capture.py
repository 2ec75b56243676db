"""Compiled functions that act in the state that they were made in, or lose the casts of it where they must keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails
from torch.fx.experimental import proxy_tensor

from tests.faults import compilers as wrong
from tests.faults.compilers import Change, Function, entering, handed_out, results
from tests.faults.fault import Fault, Inject

_EXPORT = torch.export.export
_MADE = "made_and_called"


def _fault(name: str, inject: Inject, says: str, op: str = _MADE, **chosen: str) -> Fault:
    return Fault(name, "ambient", inject, (says,), "jit", op=op, **chosen)


def _out(name: str, change: Change, says: str, method: str = "compile", **chosen: str) -> Fault:
    return _fault(name, lambda: handed_out(change, method), says, **chosen)


@contextmanager
def exported_in_its_region() -> Iterator[None]:
    """An exported program that runs in the state of its export."""
    region: list[AbstractContextManager[object]] = []

    def export(*args: Any, **options: Any) -> Any:
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        region[:] = [torch.autocast("cpu", dtype, enabled)]
        return _EXPORT(*args, **options)

    with patch.object(torch.export, "export", export), handed_out(wrong.inside(lambda: region[0]), "export"):
        yield


def not_recorded(_: Function, function: Function) -> Function:
    """A trace that is the function it was made of, so that it has no cast of its making."""
    return function


def graphs_not_recorded() -> AbstractContextManager[object]:
    """`make_fx` that gives back the function, so that the graph has no cast of its making."""
    return patch.object(proxy_tensor, "make_fx", lambda function, **_: lambda *_: function)


def written_without_state() -> AbstractContextManager[object]:
    """A folder of programs that tells those of one dtype, and of a disabled region, not from those of another."""
    record = AOTAutogradCacheDetails._record_runtime_state

    def forget(self: Any, graph: Any) -> None:
        record(self, graph)
        self.autocast_state = {}

    return patch.object(AOTAutogradCacheDetails, "_record_runtime_state", forget)


def counting_wrongly(compiled: Function, _: Function) -> Function:
    """A region is entered and never left, as far as the count of regions knows."""

    def call(*args: Any) -> Any:
        torch.autocast_increment_nesting()
        return compiled(*args)

    return call


def keeping(compiled: Function, _: Function) -> Function:
    """A call puts the setting of the cache back to what it is outside of regions."""

    def call(*args: Any) -> Any:
        out = compiled(*args)
        torch.set_autocast_cache_enabled(True)
        return out

    return call


def first_sizes(compiled: Function, _: Function) -> Function:
    """What was compiled for one size forgets the region for others."""
    seen: list[torch.Size] = []

    def call(*args: Any) -> Any:
        seen.append(args[0].shape)
        out = compiled(*args)
        return out if seen[-1] == seen[0] else tuple(y.float() for y in out)

    return call


_CALLED: Callable[[str], str] = "dtypes of the first call in {}: got".format
FAULTS = (
    _out("state-of-the-first-call", wrong.frozen, _CALLED("other"), compiler="aot"),
    _out("state-of-another-thread", wrong.eager_in_threads, _CALLED("other"), compiler="aot"),
    _fault("export-keeps-its-region", exported_in_its_region, _CALLED("out"), compiler="export"),
    _fault("region-of-the-body-dropped", lambda: entering(wrong.not_at_all), "where it was made", compiler="dynamo"),
    _out("trace-without-its-casts", not_recorded, _CALLED("out"), "trace", compiler="traced"),
    _fault("graph-without-its-casts", graphs_not_recorded, _CALLED("off"), "recorded_and_called"),
    _out("leaves-autocast-on", wrong.leaking, "state where it was made", compiler="dynamo"),
    _out("leaves-a-count", counting_wrongly, "state where it was made", compiler="dynamo"),
    _out("turns-the-cache-on", keeping, "state where it was made, in unkept: got", compiler="aot"),
    _out("sizes-without-a-region", first_sizes, _CALLED("unkept"), compiler="dynamo", only="resized"),
    _fault("folder-without-state", written_without_state, "program, of", "found_on_disk", only="found_on_disk-bare"),
    _out("rounded", results(wrong.rounded), "product of the first call in out: differs", compiler="dynamo"),
)
