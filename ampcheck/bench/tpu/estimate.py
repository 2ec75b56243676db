"""One program compiled for a TPU that is described, not there, and what the compiler says of it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

from ampcheck.bench.core.model import Precision, Variant, Workload
from ampcheck.bench.tpu.chips import Chip, available, chip
from ampcheck.bench.tpu.program import DotProduct, casts, parse, products, wide
from ampcheck.bench.tpu.schedule import SMALL, Schedule, schedule
from ampcheck.errors import UsageError


@dataclass(frozen=True, slots=True)
class Estimate:
    """The compiler's estimate of one program on one device.

    `seconds` of one call, from `source`: "cycles" (the compiler's, scheduled), "optimal" (XLA's `optimal_seconds`) or
    "roofline" (the larger of flops by peak and bytes by bandwidth). `optimal`: XLA's `optimal_seconds` as it is, below
    zero where it means nothing, None where there is none. `flops`: operations, a product of six passes once. `bytes`:
    read from and written to HBM. `arguments`, `outputs`, `temporary`, `memory`: bytes, the last of all together.
    `compile`: seconds the compiler took. `products`: how many of each kind, with their dtypes. `casts`: those of 65536
    elements and more, the largest first, and `cast_count` all. `wide`: float64 arrays, which a TPU has no hardware for.
    """

    seconds: float
    source: str
    schedule: Schedule
    optimal: float | None
    flops: float
    bytes: float
    arguments: int
    outputs: int
    temporary: int
    memory: int
    compile: float
    products: Counter[DotProduct]
    casts: tuple[str, ...]
    cast_count: int
    wide: tuple[str, ...]


def estimate(workload: Workload, precision: Precision, tpu: str) -> Estimate:
    """Compile a workload in a precision for a TPU, and read what the compiler says.

    Makes the jax device in this process and describes a TPU to libtpu in the environment, so a process that uses a
    real TPU is not the place for it; `groups` starts another. Nothing is computed, but the workload's tensors are made.
    Raises UsageError for an unknown TPU or where `available` says why not, and whatever tracing or the compiler raises.
    """
    made = chip(tpu)
    why = available()
    if why is not None:
        raise UsageError(why)
    import jax  # noqa: PLC0415  # jax only where it is measured

    from ampcheck import jax_device  # noqa: F401, PLC0415  # makes the device
    from ampcheck.bench.core.prepare import prepare  # noqa: PLC0415  # loads torch

    setting = "highest" if precision.matmul == "highest" else "default"
    with jax.default_matmul_precision(setting):
        ready = prepare(workload, Variant(precision), "jax", "jit")
        with traced_for("tpu"):
            function, structs = ready.jitted.program(*ready.arguments)
        lowered = lower(function, structs, _device(made.topology), "tpu")
        return compiled(lowered, made)


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """Lowerings that ask `jax.default_backend()` are told another platform; JAX itself goes on with the real one.

    Without it the program would have what the device does for a CPU only, such as float32 results of bf16 products.
    What this process has traced of the same ops and shapes before stays as it is.
    """
    with mock.patch("jax.default_backend", return_value=platform):
        yield


def lower(function: Any, structs: Sequence[Any], device: Any, platform: str) -> Any:
    """JAX's `Lowered` of a program for one device, given what its inputs are."""
    import jax  # noqa: PLC0415  # jax only where it is measured

    place = jax.sharding.SingleDeviceSharding(device)
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place, weak_type=s.weak_type) for s in structs]
    return function.trace(*placed).lower(lowering_platforms=(platform,))


@cache
def _device(topology: str) -> Any:
    """Return a described TPU device. libtpu asks the network what machine it is on unless the environment says so."""
    from jax.experimental import topologies  # noqa: PLC0415  # jax only where it is measured

    described = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # of the machine that is not there; `topology` says what for to compile
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for chips, and there is none
    }
    for name, value in described.items():
        os.environ.setdefault(name, value)
    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]


def compiled(lowered: Any, made: Chip) -> Estimate:
    """Compile what is lowered, and read what the compiler says of it.

    Raises ValueError where it says nothing from which a time could be had.
    """
    started = time.perf_counter()
    result = lowered.compile()
    took = time.perf_counter() - started
    program = parse(result.as_text())
    plan = schedule(program, made.clock, made.bandwidth)
    cost: Mapping[str, float] = result.cost_analysis() or {}
    flops, accessed = cost.get("flops", 0.0), cost.get("bytes accessed", 0.0)
    optimal = cost.get("optimal_seconds")
    seconds, source = duration(plan, optimal, flops, accessed, made)
    found = casts(program)
    big = [cast for cast in found if math.prod(cast.result.shape) >= SMALL]
    memory = result.memory_analysis()
    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    temporary = memory.temp_size_in_bytes
    return Estimate(
        seconds=seconds,
        source=source,
        schedule=plan,
        optimal=optimal,
        flops=flops,
        bytes=plan.hbm if source == "cycles" else accessed,
        arguments=arguments,
        outputs=outputs,
        temporary=temporary,
        memory=arguments + outputs + temporary - memory.alias_size_in_bytes,
        compile=took,
        products=products(program),
        casts=tuple(
            f"{found[cast]} × {cast}" for cast in sorted(big, key=lambda cast: -found[cast] * cast.result.bytes)
        ),
        cast_count=sum(found.values()),
        wide=tuple(map(str, wide(program))),
    )


def duration(plan: Schedule, optimal: float | None, flops: float, accessed: float, made: Chip) -> tuple[float, str]:
    """Seconds of a program, and where they come from: see `Estimate`. Raises ValueError where nothing says any."""
    if plan.cycles:
        return plan.seconds, "cycles"
    if optimal is not None and math.isfinite(optimal) and optimal > 0:
        return optimal, "optimal"
    seconds = max(flops / made.flops, accessed / made.bandwidth)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("the compiler gives neither cycles nor seconds, operations or bytes")
    return seconds, "roofline"
