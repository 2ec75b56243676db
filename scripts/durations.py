"""Write down how long the cases of a rule take on each device, for the first forecast of a run on a new machine.

    python -m scripts.durations RUN.jsonl [RUN.jsonl …]

takes a whole run, and nightly ones for what only they have, and writes `ampcheck/cli/durations.csv`: the mean seconds
of a case by device, rule and compiler, each from the first run that has it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from ampcheck.cli.progress import DURATIONS
from ampcheck.runner.record import read
from ampcheck.spec import versioned


def main(paths: Iterable[Path]) -> None:
    """Write the table from run files."""
    means: dict[tuple[str, str, str], float] = {}
    for path in paths:
        found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for result in read(path).results.values():
            found[result.device, f"{result.suite}/{result.rule}", result.compiler].append(result.seconds)
        means = {place: fmean(seconds) for place, seconds in found.items()} | means
    rows = ((*place, f"{seconds:.4f}") for place, seconds in means.items())
    versioned.write(DURATIONS, ("device", "rule", "compiler", "seconds"), rows)


if __name__ == "__main__":
    main(map(Path, sys.argv[1:]))
