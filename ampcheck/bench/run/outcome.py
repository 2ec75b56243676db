"""Say in a few lines what a run found: the fastest variants first, what does not count, and the gaps that are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tabulate import tabulate

from ampcheck.bench.core import table
from ampcheck.bench.core.model import AA, PRECISIONS, VERDICTS, Group

SHOWN = 10
"""A summary shows this many of the fastest variants."""


@dataclass(frozen=True, slots=True)
class KnownGap:
    """Variants that a library computes in another precision than their name says, which does not fail a run.

    `platform`: JAX's or PyTorch's, e.g. "cpu". `workloads`: globs. `reason`: a regular expression for the whole reason.
    """

    device: str
    platform: str
    workloads: Sequence[str]
    variants: Sequence[str]
    reason: str
    why: str


KNOWN_GAPS = (
    KnownGap(
        "jax",
        "cpu",
        ("sdpa*", "transformer-step*"),
        ("fp16", "fp16-native"),
        r"\d+ of \d+ products (compute in fp32: what is fp16 is widened for them|are not in fp16: bmm received fp32)",
        "on a CPU the jax device takes PyTorch's math path for attention in float16, which computes in float32",
    ),
)


def invalid(groups: Iterable[Group], platforms: Mapping[str, str]) -> tuple[list[str], dict[str, list[str]]]:
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
            why = _gap(group, variant.name, variant.reason, platforms.get(group.device, group.device))
            if why:
                known.setdefault(why, []).append(name)
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
    failing, known = invalid(groups, platforms)
    lines += [f"Invalid, so that this run fails: {one}" for one in failing]
    lines += [f"Known gap, which fails no run: {', '.join(names)}: {why}" for why, names in known.items()]
    return "\n".join(lines)


def _gap(group: Group, variant: str, reason: str, platform: str) -> str:
    """Say why a variant is invalid as it is known to be, "" where that is not known."""
    return next(
        (
            gap.why
            for gap in KNOWN_GAPS
            if (gap.device, gap.platform) == (group.device, platform)
            and any(fnmatchcase(group.workload, pattern) for pattern in gap.workloads)
            and variant.removesuffix(AA) in gap.variants
            and re.fullmatch(gap.reason, reason)
        ),
        "",
    )
