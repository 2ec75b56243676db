"""Summarize what several processes measured of a group: medians, ratios beside the first variant, verdicts.

`summary` says in a few lines what a run found: the fastest variants first, what does not count, and the known gaps.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from ampcheck.bench import workloads
from ampcheck.bench.core import prepare, statistics, table
from ampcheck.bench.core.model import AA, DEFAULT, PRECISIONS, VERDICTS, Group, Rounds, VariantResult, Workload
from ampcheck.errors import UsageError
from ampcheck.runner.record import first_line

Peaks = Callable[[str, str], float | None]
"""From a device and a precision's name to the device's peak in flop/s, None where nobody knows it."""

Beside = Callable[[VariantResult, VariantResult], statistics.TimingComparison]
"""Compares a variant with another, the base."""

TOO_FAST = 1.25
"""Above this share of a published peak a speed is wrong: clocks boost by less, so the call had not ended."""
WINOGRAD = 4
"""A convolution's algorithm multiplies this many times less often than its operations are counted."""

BAND = 0.02
"""Estimated speeds of 1/1.02 to 1.02 are the same."""

ABOVE = "above the {} ceiling"
"""The text in place of a share above 1; "measured" or "published" goes in."""


def summarize(
    rounds: Iterable[Rounds], catalogue: Mapping[str, Workload] | None = None, peaks: Peaks | None = None
) -> list[Group]:
    """One group per device, compiler and workload, in the order of their first rounds; each `Rounds` is a process.

    Args:
        catalogue: workloads by name, those of this version unless given. A workload that is not among them is
            summarized without its family, flops and bytes, and with the bounds of an op.
        peaks: with it, each variant gets its share of the device's peak, and one above 125 % of it is invalid. A share
            above 1 is never given; `VariantResult.ceiling` says that the variant is above the published ceiling.

    Raises UsageError where the rounds hold something that is not a measurement.
    """
    if catalogue is None:
        catalogue = workloads.catalogue()
    pooled: dict[str, list[Rounds]] = {}
    for measured in rounds:
        pooled.setdefault(measured.key, []).append(measured)
    return [_group(processes, catalogue.get(processes[0].workload), peaks) for processes in pooled.values()]


def _group(processes: list[Rounds], workload: Workload | None, peaks: Peaks | None) -> Group:
    some = processes[0]
    if workload is None:
        note = "this version does not know the workload"
        group = Group(some.workload, "", "op", some.device, some.compiler, note=note)
    else:
        group = group_of(workload, some.device, some.compiler)
    try:
        group.variants = [_figures(name, processes, group, workload, peaks) for name in _names(processes)]
        samples = {v.name: [one.samples.get(v.name, []) for one in processes] for v in group.variants}
        compare(group, _by_samples(group, samples))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"the rounds of {some.key} hold something that is not a measurement: {error}") from error
    return group


def group_of(workload: Workload, device: str, compiler: str) -> Group:
    """Return the group of a workload on a device through a compiler, without variants."""
    same = {name: getattr(workload, name) for name in ("family", "kind", "policy", "base", "size", "samples")}
    return Group(workload.name, device=device, compiler=compiler, flops=prepare.flops(workload), **same)


def _names(processes: list[Rounds]) -> list[str]:
    """Return the variants' names, first the one that the others are compared with.

    A variant that failed has no samples, so the first that has some need not be it. The A/A baseline bears its name;
    without one it is the first in the order of precisions, and where the variants are not precisions the first that was
    noted.
    """
    parts = [part for one in processes for part in (one.samples, one.facts, one.failed)]
    names = list(dict.fromkeys(name for part in parts for name in part))
    first = next((name.removesuffix(AA) for name in names if name.endswith(AA)), None)
    if first is None and all(name in PRECISIONS for name in names):
        first = next((name for name in PRECISIONS if name in names), None)
    return names if first is None else [first, *(name for name in names if name != first)]


def _figures(
    name: str, processes: list[Rounds], group: Group, workload: Workload | None, peaks: Peaks | None
) -> VariantResult:
    """Return a variant's own figures; its verdict is "invalid", "not measured", or "" until it is compared."""
    found = [one.facts[name] for one in processes if name in one.facts]
    failed = [one.failed[name] for one in processes if name in one.failed]
    cpu = [float(value) for one in processes for value in one.cpu.get(name, [])]
    samples = np.array([value for one in processes for value in one.samples.get(name, [])], dtype=float)
    variant = VariantResult(name, "", rounds=samples.size, processes=sum(bool(p.samples.get(name)) for p in processes))
    _facts(variant, found)
    invalid = next((str(facts["invalid"]) for facts in found if facts.get("invalid")), "")
    if samples.size:
        variant.cpu_seconds = float(np.median(cpu)) if cpu else None
        bad = samples[~(np.isfinite(samples) & (samples > 0))]
        if bad.size:
            invalid = invalid or f"a sample of {bad[0]:g} s cannot be the time of a call"
        else:
            variant.seconds = float(np.median(samples))
            variant.low, variant.high = (float(value) for value in np.percentile(samples, [5, 95]))
            invalid = _rates(variant, variant.seconds, group, workload, peaks) or invalid
    if invalid:
        variant.verdict, variant.reason = "invalid", invalid
    elif not samples.size:
        reason = first_line(failed[0]) if failed else "no process has a sample of it"
        variant.verdict, variant.reason = "not measured", reason
    elif failed:
        variant.reason = f"failed in {len(failed)} of {len(processes)} processes: {first_line(failed[0])}"
    return variant


def _rates(variant: VariantResult, seconds: float, group: Group, workload: Workload | None, peaks: Peaks | None) -> str:
    """Fill in what follows from flops and bytes; the reason why it cannot be, "" where it can."""
    precision = variant.name.removesuffix(AA)
    known = PRECISIONS.get(precision)
    if known and workload and (moved := prepare.moved(workload, 4 if known.low is None else 2)):
        variant.bytes_per_second = moved / seconds
        variant.intensity = group.flops / moved if group.flops else None
    if not group.flops:
        return ""
    variant.flops_per_second = group.flops / seconds
    peak = peaks(group.device, precision) if peaks is not None else None
    if not peak:
        return ""
    share(variant, variant.flops_per_second / peak, "published")
    if variant.flops_per_second <= TOO_FAST * peak * (WINOGRAD if "conv" in group.workload else 1):
        return ""
    rate, most = (table.count(value, "FLOP/s") for value in (variant.flops_per_second, peak))
    return f"{rate} where the device can do {most} at most: the clock stopped before the work was done"


def share(variant: VariantResult, value: float, kind: str) -> None:
    """Give a variant its share of a ceiling, or say that it is above it. `kind`: "measured" or "published"."""
    variant.share, variant.ceiling = (value, "") if value <= 1 else (None, ABOVE.format(kind))


def _by_samples(group: Group, samples: Mapping[str, statistics.Samples]) -> Beside:
    """Return a function that compares variants by their samples, beside the noise that the A/A baseline shows."""
    bound, first = statistics.BOUNDS[group.kind], group.variants[0].name
    aa = group.variant(first + AA)
    noise = None
    if aa is not None:  # one that does not count is as if it had no samples
        again = [[] for _ in samples[aa.name]] if aa.verdict else samples[aa.name]
        noise = statistics.compare_variants(samples[first], again, bound)

    def beside(base: VariantResult, variant: VariantResult) -> statistics.TimingComparison:
        found = statistics.compare_variants(samples[base.name], samples[variant.name], bound)
        return found if noise is None else statistics.beside_noise(found, noise, bound)

    return beside


def by_estimate(base: VariantResult, variant: VariantResult) -> statistics.TimingComparison:
    """Compare a compiler's seconds, which have no noise: ambiguous only where a part's time is unknown."""
    speed = (base.seconds or math.nan) / (variant.seconds or math.nan)
    if "ambiguous" in (base.verdict, variant.verdict):
        reason = "" if variant.reason else f"{base.name}: {base.reason}"
        return statistics.TimingComparison("ambiguous", reason, speed)
    verdict = "faster" if speed > 1 + BAND else "slower" if speed < 1 / (1 + BAND) else "same"
    return statistics.TimingComparison(verdict, "", speed)


def compare(group: Group, beside: Beside) -> None:
    """Give each variant its speed beside the first one, and its verdict; then beside float32 by default."""
    first, others = group.variants[0], group.variants[1:]
    counts = first.verdict not in table.INVALID
    for variant in others:
        if variant.verdict in table.INVALID:
            _bound(variant, first)
        elif not counts:
            variant.verdict = "not measured"
            variant.reason = f"{first.name}, which it is compared with, is {first.verdict}: {first.reason}"
        else:
            found = beside(first, variant)
            variant.speed, variant.speed_low, variant.speed_high = found.ratio, found.low, found.high
            variant.verdict, reasons = found.verdict, (found.reason, variant.reason)
            variant.reason = "; ".join(filter(None, reasons))
    first.verdict = "first" if counts else first.verdict
    compare_with_default(group, beside)


def compare_with_default(group: Group, beside: Beside) -> None:
    """Give each lower precision its speed beside the float32 that a device computes by default, where that counts."""
    default = group.variant(DEFAULT)
    if default is None or default.verdict in table.INVALID:
        return
    for variant in group.variants:
        lower = variant.name in PRECISIONS and PRECISIONS[variant.name].low is not None
        if lower and variant.verdict not in table.INVALID:
            found = beside(default, variant)
            variant.default_speed, variant.default_low, variant.default_high = found.ratio, found.low, found.high
            variant.default_verdict = found.verdict


def _bound(variant: VariantResult, first: VariantResult) -> None:
    """Say how fast a variant is at most that was given up: only of one that passed its precision check.

    The first variant's slowest samples are taken, and the least that a call of this one took.
    """
    checked = variant.precision_check and variant.verdict == "not measured" and first.verdict not in table.INVALID
    if checked and variant.at_least and first.high:
        variant.at_most = first.high / variant.at_least


def judge_again(group: Group) -> None:
    """Judge a group of an earlier version by the rule of this one, so that all files of a site mean the same.

    The rule needs no more than the intervals that the group has; they are not made again.
    """
    aa = next((variant for variant in group.variants if variant.name.endswith(AA)), None)
    if group.estimate or aa is None or aa.speed_low is None:
        return
    bound = statistics.BOUNDS.get(group.kind, statistics.BOUNDS["op"])
    noise = statistics.TimingComparison("", "", aa.speed, aa.speed_low, aa.speed_high)
    for variant in group.variants:
        speed, low, high = variant.speed, variant.speed_low, variant.speed_high
        if not (speed and low and high and low <= high) or variant.verdict in table.INVALID:
            continue
        found = statistics.beside_noise(statistics.judged(speed, low, high, bound), noise, bound)
        if found.verdict != variant.verdict:
            failed = [part for part in variant.reason.split("; ") if part.startswith("failed in ")]
            variant.verdict, variant.reason = found.verdict, "; ".join(filter(None, (found.reason, *failed)))


def _facts(variant: VariantResult, processes: Sequence[Mapping[str, Any]]) -> None:
    """Pool what each process found out once: the worst error, the most memory, the median time to compile."""
    pools: Mapping[str, Callable[[list[float]], float]] = {
        "error": max,
        "memory": lambda values: int(max(values)),
        "compile": lambda values: float(np.median(values)),
        "first": lambda values: float(np.median(values)),
        "at_least": min,
    }
    for name in dict.fromkeys(name for facts in processes for name in facts):
        values = [facts[name] for facts in processes if facts.get(name) is not None]
        if name == "precision_check":
            variant.precision_check = "; ".join(dict.fromkeys(str(value) for value in values if value))
        elif name in pools:
            numbers = [math.inf if math.isnan(value) else value for value in map(float, values)]
            setattr(variant, name, pools[name](numbers) if numbers else None)
        elif name != "invalid":
            raise ValueError(f"{name!r} is not a fact of a variant")


# ---- a whole run in a few lines

SHOWN = 10
"""A summary shows this many of the fastest variants."""

GAP = "on a CPU the jax device takes PyTorch's math path for attention in float16, which computes in float32"
"""The one known gap: variants that a library computes in another precision than their name says, which fails no run."""
_GAP = re.compile(
    r"\d+ of \d+ products (compute in fp32: what is fp16 is widened for them|are not in fp16: bmm received fp32)"
)
"""The whole reason of such a variant."""


def invalid_variants(groups: Iterable[Group], platforms: Mapping[str, str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the invalid variants that fail a run, each with its reason, and the others by the gap that explains them.

    Args:
        platforms: by device, its platform.
    """
    failing: list[str] = []
    known: dict[str, list[str]] = {}
    for group in groups:
        for variant in group.variants:
            if variant.verdict != "invalid":
                continue
            name = f"{group.key} {variant.name}"
            attention = group.workload.startswith(("sdpa", "transformer-step"))
            on_cpu = (group.device, platforms.get(group.device)) == ("jax", "cpu")
            low = variant.name.removesuffix(AA) in ("fp16", "fp16-native")
            if attention and on_cpu and low and _GAP.fullmatch(variant.reason):
                known.setdefault(GAP, []).append(name)
            else:
                failing.append(f"{name}: {' '.join(variant.reason.split())}")
    return failing, known


def summary(groups: Sequence[Group], platforms: Mapping[str, str]) -> str:
    """Return how many variants have which verdict, the fastest beside float32, and a line for what is invalid."""
    variants = [(group, v) for group in groups for v in group.variants if v.name in PRECISIONS and v.verdict != "first"]
    verdicts = Counter(variant.verdict for _, variant in variants)
    counted = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict])
    faster = sorted((one for one in variants if one[1].verdict == "faster"), key=lambda one: -(one[1].speed or 0))
    lines = [f"Beside float32 {counted or 'nothing was measured'}" + (". The fastest:" if faster else ".")]
    rows = [(table.ratio(v), v.name, f"{g.device} {g.compiler}", table.label(g)) for g, v in faster[:SHOWN]]
    lines += [f"  {line}" for line in tabulate(rows, tablefmt="plain", disable_numparse=True).splitlines()]
    if len(faster) > SHOWN:
        lines.append(f"  and {len(faster) - SHOWN} more")
    failing, known = invalid_variants(groups, platforms)
    lines += [f"Invalid, so that this run fails: {one}" for one in failing]
    lines += [f"Known gap, which fails no run: {', '.join(names)}: {why}" for why, names in known.items()]
    return "\n".join(lines)
