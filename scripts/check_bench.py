#!/usr/bin/env python3
"""Measure the benchmarks of two checkouts in turns, and print the largest changes as a job summary. Used by check.yml.

    python scripts/check_bench.py BASE HEAD [--turns 5] [--out FOLDER] [-- OPTIONS OF ampcheck bench]

A turn measures base, head and base once more, each in its own process, every other turn in the reverse order. A change
counts where its interval lies beyond the bound of equal variants and, in either direction, beyond the interval of base
beside itself. Changes do not fail the command: 1 means that a checkout could not be measured.
"""

import argparse
import math
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ampcheck.bench.core import table
from ampcheck.bench.core.model import AA
from ampcheck.bench.core.statistics import BOUNDS, TimingComparison, beside_noise, compare_variants
from ampcheck.bench.run import exports, runfile
from ampcheck.errors import UsageError

SHOWN = 5
QUICK = ["--quick", "--device", "cpu"]
SIDES = ("base", "head", "base-again")
SEE = "import ampcheck; print(ampcheck.__file__)"


class Timing(NamedTuple):
    """A variant of a group in both checkouts. `found`: head beside base. `noise`: base beside itself."""

    name: str
    base: float
    head: float
    found: TimingComparison
    noise: TimingComparison

    @property
    def counts(self) -> bool:
        """Whether head differs by more than base does from itself. Which of its two turns was the slower is chance."""
        nearest, farthest = min(map(abs, _edges(self.found))), max(map(abs, _edges(self.noise)))
        return self.found.verdict in ("faster", "slower") and nearest > farthest


def main(arguments: list[str]) -> int:
    """Measure and print the summary."""
    parser = argparse.ArgumentParser(description="Benchmarks of two checkouts, measured in turns.")
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    parser.epilog = "What follows -- are options of ampcheck bench, by default --quick --device cpu."
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    own, options = arguments[:cut], arguments[cut + 1 :]
    args = parser.parse_args(own)
    trees = {"base": args.base.resolve(), "head": args.head.resolve(), "base-again": args.base.resolve()}
    try:
        for tree in trees.values():
            own_package(tree)
        files: dict[str, list[Path]] = {side: [] for side in SIDES}
        for turn in range(args.turns):
            for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                file = args.out.resolve() / f"{side}-{turn}.jsonl"
                files[side].append(measure(trees[side], file, options or QUICK))
        print(summary(compare(files), invalid(files), args.turns))
    except UsageError as error:
        print(f"check_bench: {error}", file=sys.stderr)
        return 1
    return 0


def python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the ampcheck of a checkout before any installed one."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=env, capture_output=True, text=True, check=False)


def own_package(tree: Path) -> None:
    """Raise UsageError where a process in the checkout would import another ampcheck."""
    done = python(tree, "-c", SEE)
    if not done.stdout.startswith(f"{tree}{os.sep}"):
        raise UsageError(f"ampcheck of {tree} is not what Python imports there: {done.stdout or done.stderr}".strip())


def measure(tree: Path, file: Path, options: list[str]) -> Path:
    """Measure a checkout once. Raises UsageError where that writes no file; 1 alone says that a variant is invalid."""
    done = python(tree, "-m", "ampcheck", "bench", *options, "--run-file", str(file))
    if done.returncode not in (0, 1) or not file.exists():
        raise UsageError(f"ampcheck bench ended with {done.returncode} in {tree}:\n{done.stdout}{done.stderr}")
    return file


def compare(files: dict[str, list[Path]]) -> list[Timing]:
    """Compare each variant that base and head have, a process a turn."""
    raw = {side: [exports.samples(file) for file in turns] for side, turns in files.items()}
    kinds = {key: group.kind for key, group in runfile.read(files["head"][-1]).groups.items()}
    timed = dict.fromkeys((key, name) for turn in raw["head"] for key, found in turn.items() for name in found)
    timings = []
    for key, variant in timed:
        if variant.endswith(AA) or key not in kinds:
            continue
        base, head, again = (
            [[value for process in turn.get(key, {}).get(variant, []) for value in process] for turn in raw[side]]
            for side in SIDES
        )
        bound = BOUNDS[kinds[key]]
        noise = compare_variants(base, again, bound)
        found = beside_noise(compare_variants(base, head, bound), noise, bound)
        if found.ratio is not None and noise.ratio is not None:
            one, two = (median(chain.from_iterable(side)) for side in (base, head))
            timings.append(Timing(f"{key}/{variant}", one, two, found, noise))
    return timings


def invalid(files: dict[str, list[Path]]) -> list[str]:
    """Name the variants that count in every turn of base and are invalid in a turn of head, with the reason."""

    def reasons(side: str) -> dict[str, str]:
        groups = [group for file in files[side] for group in runfile.read(file).groups.values()]
        return {f"{g.key}/{v.name}": v.reason for g in groups for v in g.variants if v.verdict == "invalid"}

    before = reasons("base")
    return [f"{name}: {reason}" for name, reason in reasons("head").items() if name not in before]


def summary(timings: list[Timing], invalid: list[str], turns: int) -> str:
    """Return the largest changes as Markdown."""
    changed = [timing for timing in timings if timing.counts]
    changed.sort(key=lambda timing: -abs(math.log(timing.found.ratio or 1)))
    slower = sum(timing.found.verdict == "slower" for timing in changed)
    lines = [
        "## Benchmarks of base and head\n",
        f"{len(timings)} timings in {turns} turns: {slower} slower, {len(changed) - slower} faster beyond the noise "
        "of base beside itself.",
    ]
    if changed:
        lines += [
            "\n| timing | base | head | head's speed [95 %] | | base beside itself [95 %] |",
            "| --- | ---: | ---: | ---: | --- | ---: |",
        ]
    for timing in changed[:SHOWN]:
        found, noise = (table.interval(one.ratio or 1, one.low, one.high) for one in (timing.found, timing.noise))
        times = f"{table.seconds(timing.base)} | {table.seconds(timing.head)}"
        lines.append(f"| {timing.name} | {times} | {found} | {timing.found.verdict} | {noise} |")
    if len(changed) > SHOWN:
        lines.append(f"\n{len(changed) - SHOWN} smaller changes are in the run files.")
    lines += [f"\n**Invalid in head only:** {one}" for one in invalid]
    return "\n".join(lines)


def _edges(found: TimingComparison) -> tuple[float, float]:
    return math.log(found.low or 1), math.log(found.high or 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
