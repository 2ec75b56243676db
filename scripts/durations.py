"""Write down how long the cases of a rule take on each device, for the first forecast of a run on a new machine.

    python -m scripts.durations RUN.jsonl

takes a whole run and writes `ampcheck/cli/durations.csv`: the mean seconds of a case by device, suite and rule.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from ampcheck.cli.progress import DURATIONS
from ampcheck.runner.record import read
from ampcheck.spec import versioned


def main(path: Path) -> None:
    """Write the table from a run file."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in read(path).results.values():
        found[result.device, f"{result.suite}/{result.rule}"].append(result.seconds)
    rows = ((*place, f"{fmean(seconds):.4f}") for place, seconds in found.items())
    versioned.write(DURATIONS, ("device", "rule", "seconds"), rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
