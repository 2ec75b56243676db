"""The ceilings of devices: published peaks where a model is known, else the best that is measured here.

    python -m ampcheck.bench.run.ceilings DEVICE [MODULE …]

runs in a separate process, as it asks the device. Published ones lie in `peaks.csv` beside this file: dense products in
TFLOP/s, memory in GB/s, and where that is said. `names` is a regular expression for what PyTorch or JAX call the
device, in lower case and without the maker's name.
"""

import csv
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch

from ampcheck.bench.core.model import AA, PRECISIONS, Group
from ampcheck.bench.core.timing import Clock, clock
from ampcheck.bench.run import summary
from ampcheck.bench.run.measure import environment, pin
from ampcheck.devices.registry import select
from ampcheck.runner.worker import Channel, Worker
from ampcheck.spec.torch_dtypes import DTYPES

TABLE = Path(__file__).parent / "peaks.csv"
KINDS = ("fp32", "tf32", "bf16", "fp16")

_MAKERS = re.compile(r"^(nvidia|tesla|google|cloud)\s+")
_LEAST = 3
"""Samples of each call when a ceiling is measured."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that a device can do.

    `flops`: operations a second by kind of product ("fp32", "tf32", "bf16", "fp16"). `bandwidth`: bytes a second.
    `measured`: whether it is only the best that was seen here, which another call may exceed; nothing can exceed a
    published figure, and a share above 1 of that is a clock that stopped too early.
    """

    device: str
    flops: Mapping[str, float]
    bandwidth: float | None
    source: str
    measured: bool = False

    def of(self, precision: str) -> float | None:
        """Operations a second for a precision of `PRECISIONS`; None where there is no figure, or no such precision.

        "fp32-default" has the fastest kind that may replace float32: bf16 on a TPU, TF32 where there is that.
        """
        known = PRECISIONS.get(precision)
        if known is None:
            return None
        if known.low is not None:
            return self.flops.get({torch.bfloat16: "bf16", torch.float16: "fp16"}[known.low])
        kinds = {"highest": ("fp32",), "tf32": ("tf32",), "default": ("tf32", "fp32", "bf16")}[known.matmul]
        return next((self.flops[kind] for kind in kinds if kind in self.flops), None)


def known(name: str) -> Peaks | None:
    """Return the published peaks of a device by its name in PyTorch or JAX, e.g. "NVIDIA H200" or "TPU v5 lite"."""
    wanted = name.strip().lower()
    while match := _MAKERS.match(wanted):
        wanted = wanted[match.end() :]
    return next((peaks for names, peaks in read() if names.fullmatch(wanted)), None)


@cache
def read() -> tuple[tuple[re.Pattern[str], Peaks], ...]:
    """Return the rows of the table, each with what its device may be called."""
    rows = []
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, strict=True):
            flops = {kind: float(row[kind]) * 1e12 for kind in KINDS if row[kind]}
            bandwidth = float(row["bandwidth"]) * 1e9 if row["bandwidth"] else None
            rows.append((re.compile(row["names"]), Peaks(row["device"], flops, bandwidth, row["source"])))
    return tuple(rows)


Load = tuple[str, float, Callable[[], object]]
"""Something that loads a device to its limit: one of `KINDS` or "bandwidth", the flops or bytes of a call, the call."""


def measure(timer: Clock, loads: Iterable[Load], device: str, seconds: float = 2.0) -> Peaks:
    """Return the best that a device shows on some loads, where no peak is published.

    Args:
        timer: what times a call until its work is done.
        loads: e.g. `torch_loads("cpu")`.
        device: its name, for the result.
        seconds: to spend, shared by the loads; each is sampled a few times in any case.

    A load that the device cannot do is left out, and one that would take longer than `seconds`, by what a smaller one
    of its kind took: some processors do the products of a dtype a hundred times as slowly as others.
    """
    given = list(loads)
    best: dict[str, float] = {}
    for kind, amount, call in given:
        if seconds and (_LEAST + 1) * amount > seconds * best.get(kind, math.inf):
            continue
        until = time.perf_counter() + seconds / len(given)
        try:
            timer.sample(call, 1)  # the first call compiles, and finds nothing in the caches
            taken = 0
            while taken < _LEAST or time.perf_counter() < until:
                rate = amount / max(timer.sample(call, 1)[0], 1e-9)
                best[kind] = max(best.get(kind, 0.0), rate)
                taken += 1
        except (RuntimeError, TypeError, NotImplementedError):  # what PyTorch raises for what a device lacks
            continue
    bandwidth = best.pop("bandwidth", None)
    return Peaks(device, best, bandwidth, "the best that square products and sums reached here", measured=True)


def torch_loads(device: str = "cpu") -> list[Load]:
    """Products of square matrices in each precision, and sums larger than most caches, on a PyTorch device type."""
    sizes = {"fp32": (256, 512, 1024), "bf16": (256, 512, 1024), "fp16": (64, 128) if device == "cpu" else (512, 1024)}
    if device != "cpu":
        sizes = {kind: (*some, 4096) for kind, some in sizes.items()}
    squares = [
        (kind, torch.randn(size, size).to(DTYPES[kind]).to(device)) for kind, some in sizes.items() for size in some
    ]
    loads: list[Load] = [(kind, 2.0 * len(a) ** 3, partial(torch.matmul, a, a)) for kind, a in squares]
    source = torch.zeros(16 * 2**20).to(device)
    target = torch.empty_like(source)
    # Read once and written once. Not a copy: where arrays cannot change, as in JAX, that moves nothing.
    loads.append(("bandwidth", 2.0 * source.nbytes, lambda: torch.add(source, 1, out=target)))
    loads.append(("bandwidth", 1.0 * source.nbytes, source.sum))  # where new memory for a result is slow
    return loads


# ---- those of a run


def find(device: str, modules: Sequence[str], threads: int, seconds: float, limit: float) -> Peaks | None:
    """Return the ceilings of a device, None where they cannot be found out.

    `seconds`: to spend where they must be measured. `threads`: of each library meanwhile, as in the run. `limit`:
    seconds after which there are none.
    """
    command = [sys.executable, "-m", "ampcheck.bench.run.ceilings", device, str(threads), str(seconds), *modules]
    with Worker(command, environment(threads)) as worker:
        try:
            found = worker.answer(limit)
        except TimeoutError:
            return None
    return None if found is None else Peaks(**found)


def header(found: Mapping[str, Peaks]) -> dict[str, dict[str, object]]:
    """Return the ceilings by device for a header: flop/s by kind of product, bytes/s as "bandwidth", their source."""
    bandwidth = {name: {"bandwidth": one.bandwidth} for name, one in found.items() if one.bandwidth}
    return {
        "ceilings": {name: {**one.flops, **bandwidth.get(name, {})} for name, one in found.items()},
        "ceilings_source": {name: one.source for name, one in found.items()},
    }


def gate(found: Mapping[str, Peaks]) -> Callable[[str, str], float | None]:
    """Return the published peaks, above which no speed can be, for `summarize`."""
    real = {name: one for name, one in found.items() if not one.measured}
    return lambda device, precision: real[device].of(precision) if device in real else None


def share(groups: Iterable[Group], found: Mapping[str, Peaks]) -> None:
    """Fill in the share of a ceiling that was only measured. One that is exceeded gives no share."""
    for group in groups:
        for variant in group.variants:
            peak = found[group.device].of(variant.name.removesuffix(AA)) if group.device in found else None
            if variant.share is None and not variant.ceiling and peak and variant.flops_per_second:
                summary.share(variant, variant.flops_per_second / peak, "measured")


def main(arguments: Sequence[str]) -> None:
    """Find a device's ceilings and print them as JSON."""
    name, threads, seconds, *modules = arguments
    channel = Channel()
    pin(int(threads), 0, name)
    (device,) = select([name], modules)
    with device.activate():
        model = device.describe().get("model", "")
        found = known(model) if model else None
        if found is None:
            found = measure(clock(device), torch_loads(device.type), name, float(seconds))
    channel.send(asdict(found))


if __name__ == "__main__":
    main(sys.argv[1:])
