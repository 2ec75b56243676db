"""The kill matrix: which scenarios and rules of ops notice which mutants.

`kills.csv` is the matrix as it was last measured: for each mutant on a device, and each scenario or rule of ops that
notices it, one case that is red under it, its status, and the seconds that it takes.
"""

import csv
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from ampcheck.runner.record import RED
from tests.cli_support import ROOT
from tests.faults.mutant import Mutant
from tests.faults.suites import OTHERS, Runners

FILE = Path(__file__).with_name("kills.csv")
PAGE = ROOT / "docs" / "coverage" / "mutants.md"
HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
OPS = frozenset(("downcast", "upcast", "optdtype", "append", "promote", "banned", "drift", "fallthrough"))
"""The rules of ops: each is one row of the matrix. The other rules have a row for each of their scenarios."""


@dataclass(frozen=True)
class Kill:
    """A case that is red under a mutant on a device.

    `status`: what it then is. `when`: whether each run has the case, or a nightly one alone: "run" or "night".
    """

    mutant: str
    device: str
    case: str
    status: str
    when: str
    seconds: float

    @property
    def rule(self) -> str:
        """The `suite/rule` of its case."""
        return "/".join(self.case.split("/")[:2])

    @property
    def row(self) -> str:
        """The row of its case in the matrix."""
        return row(self.case)


def row(case: str) -> str:
    """Return the row of a case: its suite, its rule, and its scenario where the rule is not one of ops."""
    suite, rule, id_ = case.split("/", 2)
    return f"{suite}/{rule}" if rule in OPS else f"{suite}/{rule}/{id_.partition('-')[0]}"


def read(file: Path = FILE) -> list[Kill]:
    """Return the matrix as it was last measured."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [Kill(**{**line, "seconds": float(line["seconds"])}) for line in csv.DictReader(lines)]


def write(kills: Iterable[Kill], mutants: Sequence[str], file: Path = FILE) -> None:
    """Write a matrix, by mutant and device, the kills of the mutant's own rule first and the quickest of them first."""
    places = {name: place for place, name in enumerate(mutants)}
    ordered = sorted(kills, key=lambda kill: (places[kill.mutant], kill.device, kill.seconds, kill.case))
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field.name for field in fields(Kill)])
        writer.writerows(astuple(kill) for kill in ordered)


# ---- measuring


@dataclass(frozen=True)
class Selection:
    """Which part of the matrix is measured; "" for all. `most`: how many cases of a row are tried at most."""

    suite: str = ""
    rule: str = ""
    device: str = ""
    mutant: str = ""
    most: int = 8

    def of(self, mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, str]]:
        """Yield mutants and devices."""
        for mutant in mutants:
            suite, rule = mutant.rule.split("/")
            if fnmatchcase(mutant.name, self.mutant or "*") and self.suite in ("", suite) and self.rule in ("", rule):
                yield from ((mutant, device) for device in mutant.devices if self.device in ("", device))


def measure(
    selection: Selection,
    mutants: Sequence[Mutant],
    runners: Runners,
    results: Path,
    tell: Callable[[str], None] = print,
) -> list[Kill]:
    """Measure a part of the matrix: each mutant against each row of its rule, and of the rules that once noticed it.

    What is measured is appended to `results` at once, and is not measured again: an interrupted measurement goes on.
    """
    found, done = _measured(results)
    known = defaultdict(list)
    for kill in read() if FILE.exists() else []:
        known[kill.mutant, kill.device].append(kill)
    chosen = list(selection.of(mutants))
    with results.open("a", encoding="utf-8") as out:
        for number, (mutant, device) in enumerate(chosen, 1):
            earlier = known[mutant.name, device]
            tried = rows(mutant, device, runners, earlier)
            for name, cases in tried.items():
                if (mutant.name, device, name) in done:
                    continue
                kill = _first(mutant, device, cases[: selection.most], runners)
                print(json.dumps([mutant.name, device, name, asdict(kill) if kill else None]), file=out, flush=True)
                found += [kill] if kill else []
            killers = {kill.row for kill in found if (kill.mutant, kill.device) == (mutant.name, device)}
            tell(f"{number}/{len(chosen)} {mutant.name} on {device}: {len(killers)} of {len(tried)}")
    wanted = {(mutant.name, device) for mutant, device in chosen}
    return [kill for kill in found if (kill.mutant, kill.device) in wanted]


def _measured(results: Path) -> tuple[list[Kill], set[tuple[str, str, str]]]:
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return [Kill(**kill) for *_, kill in lines if kill], {(mutant, device, name) for mutant, device, name, _ in lines}


def rows(mutant: Mutant, device: str, runners: Runners, earlier: Collection[Kill] = ()) -> dict[str, list[str]]:
    """Return the cases of each row that may notice a mutant, with those that once did first."""
    rules = {mutant.rule, *(kill.rule for kill in earlier)}
    found: dict[str, list[str]] = {}
    for kill in earlier:
        found.setdefault(kill.row, []).append(kill.case)
    for case, (of, name) in runners.of(device).cases().items():
        suite, rule, id_ = case.split("/", 2)
        if of == device and f"{suite}/{rule}" in rules and (rule not in OPS or fnmatchcase(id_, mutant.cases)):
            found.setdefault(name, []).append(case)
    return {name: list(dict.fromkeys(cases)) for name, cases in found.items()}


def _first(mutant: Mutant, device: str, cases: Iterable[str], runners: Runners) -> Kill | None:
    """Return the first kill. A case that is red each time but the first that it runs in a process is none."""
    for case in cases:
        without = runners.run(None, device, [case])
        began = time.perf_counter()
        under = runners.run(mutant, device, [case]).get(case)
        seconds = round(time.perf_counter() - began, 1)
        killed = under is not None and under["status"] in RED and without[case]["status"] not in RED
        if under is not None and killed and runners.again(device, [case])[case]["status"] not in RED:
            when = "run" if case in runners.of(device).cases() or case.rsplit("/", 1)[0] in OTHERS else "night"
            return Kill(mutant.name, device, case, under["status"], when, seconds)
    return None


# ---- showing


def text(kills: Sequence[Kill]) -> str:
    """Return a matrix as text: for each mutant the rows that notice it, with a star where no other mutant is theirs."""
    of_row = Counter(kill.row for kill in kills)
    rows = defaultdict(list)
    for kill in kills:
        rows[kill.mutant, kill.device].append(kill.row + "*" * (of_row[kill.row] == 1))
    return "\n".join(f"{name} on {device}\n    " + "\n    ".join(sorted(n)) for (name, device), n in rows.items())


def page(kills: Sequence[Kill], mutants: Sequence[Mutant]) -> str:
    """Return the page of the matrix."""
    by_row, killers = defaultdict(set), defaultdict(set)
    for kill in kills:
        by_row[kill.row].add(kill.mutant)
        killers[kill.mutant].add(kill.row)
    rules = defaultdict(list)
    for name in sorted(by_row):
        alone = sum(len(killers[mutant]) == 1 for mutant in by_row[name])
        suite, rule, *scenario = name.split("/")
        rules[f"{suite}/{rule}"].append(f"{scenario[0] if scenario else 'all ops'} {len(by_row[name])}/{alone}")
    of_rule = defaultdict(list)
    for mutant in mutants:
        of_rule[mutant.rule].append(f"{mutant.name} {len(killers[mutant.name])}")
    return "\n".join(
        (
            HEAD.format(mutants=len(mutants), rows=len(by_row), kills=len(kills)),
            "| rule | scenarios: mutants noticed / noticed by it alone |",
            "|---|---|",
            *(f"| {rule} | {', '.join(names)} |" for rule, names in sorted(rules.items())),
            "\n## Mutants\n",
            "| rule | mutants: scenarios and rules of ops that notice it |",
            "|---|---|",
            *(f"| {rule} | {', '.join(names)} |" for rule, names in sorted(of_rule.items())),
            "",
        )
    )
