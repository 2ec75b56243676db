"""The most memory that a call holds at a time, where the device tells."""

from __future__ import annotations

import torch

from ampcheck.bench.core.prepare import Prepared
from ampcheck.devices.base import Device


def peak(ready: Prepared, device: Device, compiler: str) -> int | None:
    """Bytes of tensors that a call holds at most beyond those it began with, or None where nobody counts them.

    On the CPU from the profiler's allocations; on CUDA from the allocator; of a jitted program what XLA plans for its
    temporaries and new outputs. It is found in a separate call, outside of any timing.
    """
    if compiler == "jit":
        plan = ready.jitted.lower(*ready.arguments).compile().memory_analysis()
        if plan is None:
            return None
        fresh = plan.output_size_in_bytes - plan.alias_size_in_bytes
        return int(plan.temp_size_in_bytes + max(fresh, 0))
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ready.call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    return _profiled(ready) if device.type == "cpu" else None


def _profiled(ready: Prepared) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        ready.call()
    held = most = 0
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return int(most)
