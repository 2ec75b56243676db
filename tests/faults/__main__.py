"""Measure the kill matrix: `python -m tests.faults matrix --help`."""

import argparse
from contextlib import closing
from pathlib import Path

from tests.faults import BY_NAME, MUTANTS, matrix
from tests.faults.suites import Runners

RESULTS = Path("build") / "kills.jsonl"


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("matrix", help="measure which scenarios and rules of ops notice which mutants")
    for name in ("suite", "rule", "device", "mutant"):
        command.add_argument(f"--{name}", default="", metavar="NAME", help=f"measure those of this {name} alone")
    command.add_argument("--most", type=int, default=8, metavar="N", help="how many cases of a scenario are tried")
    command.add_argument("--results", type=Path, default=RESULTS, help="where results are kept until all are measured")
    command.add_argument("--update", action="store_true", help="write tests/faults/kills.csv and the page of it")
    commands.add_parser("page", help="write the page of the matrix as it was last measured")
    chosen = parser.parse_args()
    if chosen.command == "matrix":
        _measure(chosen)
    if chosen.command == "page" or getattr(chosen, "update", False):
        matrix.PAGE.write_text(matrix.page(matrix.read(), MUTANTS), encoding="utf-8")


def _measure(chosen: argparse.Namespace) -> None:
    selection = matrix.Selection(chosen.suite, chosen.rule, chosen.device, chosen.mutant, chosen.most)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    with closing(Runners()) as runners:
        found = matrix.measure(selection, MUTANTS, runners, chosen.results)
    print(matrix.text(found))
    if chosen.update:
        tried = {(mutant.name, device) for mutant, device in selection.of(MUTANTS)}
        killed = {(kill.mutant, kill.device, kill.row) for kill in found}
        kept = [
            kill
            for kill in matrix.read()
            if kill.mutant in BY_NAME
            and ((kill.mutant, kill.device) not in tried or (kill.mutant, kill.device, kill.row) in killed)
        ]
        known = {(kill.mutant, kill.device, kill.row) for kill in kept}
        new = [kill for kill in found if (kill.mutant, kill.device, kill.row) not in known]
        matrix.write([*kept, *new], list(BY_NAME))
        chosen.results.unlink()


if __name__ == "__main__":
    main()
