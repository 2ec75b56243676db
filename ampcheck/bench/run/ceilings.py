"""Find the ceilings of a device: published where its model is known, else the best that is measured here.

    python -m ampcheck.bench.run.ceilings DEVICE [MODULE …]

runs in a separate process, as it asks the device.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from ampcheck.bench.core import peaks
from ampcheck.bench.core.model import AA, Group
from ampcheck.bench.core.peaks import Peaks
from ampcheck.bench.run import summary
from ampcheck.bench.run.group import environment
from ampcheck.runner.worker import Channel, Worker


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
    from ampcheck.bench.core.timing import clock  # noqa: PLC0415  # loads torch
    from ampcheck.bench.run.worker import pin  # noqa: PLC0415  # loads torch
    from ampcheck.devices.registry import select  # noqa: PLC0415  # loads torch

    name, threads, seconds, *modules = arguments
    channel = Channel()
    pin(int(threads), 0, name)
    (device,) = select([name], modules)
    with device.activate():
        model = device.describe().get("model", "")
        found = peaks.known(model) if model else None
        if found is None:
            found = peaks.measure(clock(device), peaks.torch_loads(device.type), name, float(seconds))
    channel.send(asdict(found))


if __name__ == "__main__":
    main(sys.argv[1:])
