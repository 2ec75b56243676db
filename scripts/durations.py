"""Write down how long the cases of a rule take on each device, for the first forecast of a run on a new machine.

    python -m scripts.durations RUN.jsonl

takes a whole run and writes `ampcheck/cli/durations.csv`: the mean seconds of a case by device, suite and rule.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from ampcheck.cli.progress import DURATIONS
from ampcheck.runner.record import read


def main(path: Path) -> None:
    """Write the table from a run file."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in read(path).results.values():
        found[result.device, f"{result.suite}/{result.rule}"].append(result.seconds)
    with DURATIONS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("device", "rule", "seconds"))
        writer.writerows((*place, f"{fmean(seconds):.4f}") for place, seconds in sorted(found.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
