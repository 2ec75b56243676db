"""Measure which mutants the cases notice: draw them, try each on the cases that run its line, and tell the figures."""

import json
import random
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from msgspec import convert
from tabulate import tabulate

from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.runner.record import RED
from ampcheck.runner.run import environment
from ampcheck.runner.worker import Worker
from ampcheck.tools.power import kernels
from ampcheck.tools.power.kernels import KernelMutant
from ampcheck.tools.power.process import OWN, mutant_of
from ampcheck.tools.power.source import UNAPPLIED, SourceMutant, Target, generate, path_of

_HERE = Path(__file__).parent
_TABLE = tomllib.loads((_HERE / "targets.toml").read_text(encoding="utf-8"))
TARGETS = convert(_TABLE["torch"], tuple[Target, ...])
"""What of PyTorch is mutated."""
COMPARING = tuple(Target(name, (*of,), rules=("own/*",), operators=True) for name, of in _TABLE["own"].items())
"""What of ampcheck is mutated, for ampcheck's own tests to notice: the functions that compare."""
UNCOMPILED = 5
"""How many times more cases are recorded of a scenario that compiles nothing, and so takes a hundredth of the time."""
LIMIT = 120.0
"""Seconds that a case may take under a mutant; one that takes longer notices it."""
NIGHTLY = "--nightly"
"""Names, where a device is expected, the devices of a measurement with the cases of nightly runs."""
START = 900.0
"""Seconds that collecting the cases may take."""

Mutant = SourceMutant | KernelMutant


def group(mutant: Mutant) -> str:
    """Return the class of a mutant: the module that it changes, or how it changes kernels."""
    return mutant.module if isinstance(mutant, SourceMutant) else f"kernels: {mutant.change.partition(':')[0]}"


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """What became of a mutant.

    `killed`: the status of the case `by`, which is green without it; "" for a survivor. `rule`: of that case, or of the
    first one tried. `tried`: how many cases ran under it. `why`: of a survivor, the reason as far as it is known.
    `nightly`: whether `by` is a case of nightly runs alone.
    """

    mutant: Mutant
    killed: str
    by: str
    rule: str
    tried: int
    why: str = ""
    nightly: bool = False


def rule_of(case: str) -> str:
    """Return the rule of a case, as a row of the figures: of relations, with the kind of program they run."""
    suite, rule, name = case.split("/", 2)
    return f"{suite}/{rule}/{name.partition('-')[0]}" if rule == "relations" else f"{suite}/{rule}"


def draw(mutants: Sequence[Mutant], sample: int, seed: int) -> list[Mutant]:
    """Draw mutants: as near as can be the same number of each class, evenly over its members from a random start."""
    by_module = defaultdict(list)
    for mutant in mutants:
        by_module[group(mutant)].append(mutant)
    left, drawn = sample, list[Mutant]()
    chance = random.Random(seed)
    for number, module in enumerate(sorted(by_module, key=lambda name: len(by_module[name]))):
        whole = by_module[module]
        count = min(len(whole), left // (len(by_module) - number))
        left -= count
        start = chance.random()
        # Before the classes with fewer mutants, whose cases compile and take the longest.
        drawn[:0] = [whole[int((place + start) * len(whole) / count)] for place in range(count)]
    return drawn


class Power:
    """Cases on some devices in a child process, and which lines of PyTorch each of them runs.

    Args:
        devices: their names.
        folder: where the lines are kept, which are recorded once, and the outcomes, as they are measured.
        most: how many cases a mutant is tried on at most.
        of_row: how many cases of a scenario that compiles, or of such a rule of ops, are recorded.
        rules: the rules whose cases are tried; empty for all.
        nightly: whether a mutant that no case of every run notices is tried on those of nightly runs, too.
    """

    def __init__(
        self,
        devices: Sequence[str],
        folder: Path,
        most: int,
        of_row: int,
        rules: Sequence[str],
        *,
        nightly: bool = False,
    ) -> None:
        self._devices, self._most, self._of_row, self._nightly = list(devices), most, of_row, nightly
        self._workers: dict[str, Worker] = {}
        self._files = [str(path_of(target.module)) for target in (COMPARING if self._devices == [OWN] else TARGETS)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._kept = folder / f"power-lines-{'-'.join(devices).replace(':', '_')}-torch-{torch.__version__}.jsonl"
            self._kept.touch()
        except OSError as error:
            raise UsageError(f"the folder {folder} cannot be written: {error.strerror}") from error
        self._rules = rules
        self._elsewhere: dict[str, tuple[dict[str, list[str]], dict[tuple[str, str], list[str]]]] = {}
        self._rows, self._of_op = self._collected("")
        self._row_of = {case: row for row, cases in self._rows.items() for case in cases}
        self._lines: dict[str, dict[str, set[int]]] = {}

    def close(self) -> None:
        """End the children."""
        for device in list(self._workers):
            self._end(device)

    def _end(self, device: str) -> None:
        if device in self._workers:
            self._workers.pop(device).stop()

    def _ask(self, what: object, limit: float, device: str = "") -> Any:
        """Return what the child answers; None where it ended or was silent for so long, and a new one comes next.

        `device`: a further one, or `NIGHTLY`, which has a child of its own.
        """
        if device not in self._workers:
            names = [*self._devices, device] if device in ("", NIGHTLY) else [device]
            command = [sys.executable, "-m", "ampcheck.tools.power.process", *filter(None, names)]
            limits = {**environment(1), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
            self._workers[device] = Worker(command, limits)
        self._workers[device].tell(json.dumps(what))
        try:
            answer = self._workers[device].hear(limit)
        except TimeoutError:
            answer = None
        if answer is None:
            self._end(device)
        return answer

    def _collected(self, device: str) -> tuple[dict[str, list[str]], dict[tuple[str, str], list[str]]]:
        """Return the cases by row, and by op and device; they are asked for once."""
        if device in self._elsewhere:
            return self._elsewhere[device]
        rows: dict[str, list[str]] = defaultdict(list)
        of_op: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, (row, op, name) in self._ask({"do": "cases"}, START, device)["cases"].items():
            if not self._rules or key.split("/")[1] in self._rules:
                rows[row].append(key)
                of_op[op, name].append(key)
        self._elsewhere[device] = rows, of_op
        return rows, of_op

    def record(self, tell: Callable[[str], None]) -> None:
        """Record the lines that cases run, but those that are recorded already."""
        known = [json.loads(line) for line in self._kept.read_text(encoding="utf-8").splitlines()]
        done = {case: (status, lines) for case, status, lines in known}
        wanted = []
        for cases in self._rows.values():
            wanted += _spread(cases, self._of_row * (1 if cases[0].startswith("jit/") else UNCOMPILED))
        with self._kept.open("a", encoding="utf-8") as out:
            for number, case in enumerate(wanted, 1):
                if case not in done:
                    asked = {"do": "touched", "case": case, "files": self._files}
                    answer = self._ask(asked, START) or {"status": "crash", "lines": {}}
                    done[case] = answer["status"], answer["lines"]
                    print(json.dumps([case, *done[case]]), file=out, flush=True)
                if number % 100 == 0 or number == len(wanted):
                    tell(f"{number} of {len(wanted)} cases recorded")
        for case in wanted:
            status, lines = done[case]
            if status in ("pass", "deviation"):
                self._lines[case] = {file: set(numbers) for file, numbers in lines.items()}

    def candidates(self, mutant: Mutant) -> list[str]:
        """Return the cases that run a mutant's line, those first that run little else of its file, a scenario each."""
        if isinstance(mutant, KernelMutant):
            about = [case for case in self._row_of if f"-{mutant.overload}-" in case.rpartition("/")[2]]
            cases = about + self._of_op[mutant.overload, mutant.device]  # first scenarios that have it as a parameter
            eager = [case for case in cases if case.startswith("eager/")]
            return [*_spread(eager, self._most // 2), *_spread([c for c in cases if c not in eager], self._most // 2)]
        file = str(path_of(mutant.module))
        # Where no case runs the line, those of the line before it that one runs: another case of theirs may go on.
        ran = {line for lines in self._lines.values() for line in lines.get(file, ()) if line <= mutant.line}
        nearest = max(ran, default=mutant.line)
        running = {case: len(lines[file]) for case, lines in self._lines.items() if nearest in lines.get(file, ())}
        rules: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for case in sorted(running, key=lambda case: (running[case], case)):
            rules[case.rpartition("/")[0]][self._row_of[case]].append(case)
        first = _in_turns(_in_turns(rows.values()) for rows in rules.values())
        hit = [row for rows in rules.values() for row in rows]
        if nearest != mutant.line:
            # No recorded case gets there, and another one of any scenario that runs the file may.
            hit += [self._row_of[case] for case, lines in self._lines.items() if file in lines]
        siblings = [[case for case in self._rows[row] if case not in self._lines] for row in dict.fromkeys(hit)]
        more = _in_turns(_spread(cases, self._most) for cases in siblings)
        others = [case for case in self._lines if case not in running and _matches(case, _target(mutant.module).rules)]
        left = max(self._most - len(first), 0)
        return [*first[: self._most], *more[: self._most], *_spread(others, left)]

    def _cases_elsewhere(self, mutant: Mutant) -> Iterator[tuple[str, str]]:
        """Yield further devices and their cases on which a mutant is tried."""
        for device, rules in _target(mutant.module).elsewhere if isinstance(mutant, SourceMutant) else ():
            rows = [cases for cases in self._collected(device)[0].values() if _matches(cases[0], rules)]
            for case in _in_turns(_spread(cases, self._of_row) for cases in rows):
                yield device, case

    def _cases_nightly(self, mutant: Mutant, tried: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield cases that nightly runs alone have: of the op, or of rules whose cases run the mutant's line."""
        if not self._nightly:
            return
        rows, of_op = self._collected(NIGHTLY)
        if isinstance(mutant, KernelMutant):
            found = [of_op[mutant.overload, mutant.device]]
        else:
            rules = [*dict.fromkeys(case.rpartition("/")[0] for case in tried), *_target(mutant.module).rules]
            found = [cases for cases in rows.values() if _matches(cases[0], rules)]
        new = ([case for case in cases if case not in self._row_of] for cases in found)
        for case in _in_turns(_spread(cases, self._most) for cases in new)[: self._most]:
            yield NIGHTLY, case

    def try_out(self, mutant: Mutant) -> MutantOutcome:
        """Try a mutant on its cases until one notices it."""
        cases = self.candidates(mutant)
        of_every_run = chain((("", case) for case in cases), self._cases_elsewhere(mutant))
        everywhere = chain(of_every_run, self._cases_nightly(mutant, cases))
        number, felt = 0, False
        for number, (device, case) in enumerate(everywhere, 1):
            status, changed = self._kill(mutant, case, device)
            felt |= changed
            if status == UNAPPLIED:
                why = "not applied: it runs only while its module is imported"
                return MutantOutcome(mutant, "", "", "", number, why)
            if status:
                return MutantOutcome(mutant, status, case, rule_of(case), number, nightly=device == NIGHTLY)
        why = "not applied: it changes no result of the op" if number and not felt else ""
        rule = rule_of(cases[0]) if cases else "none"
        return MutantOutcome(mutant, "", "", rule, number, why if number else "no case that was tried runs it")

    def _kill(self, mutant: Mutant, case: str, device: str) -> tuple[str, bool]:
        """Return the status of a case that is red under a mutant and green after it, in this process or a fresh one.

        The status is "" for one that is not. The flag says whether the mutant changed anything.
        """
        for _ in range(2):
            answer = self._ask({"do": "try", "mutant": asdict(mutant), "case": case}, LIMIT, device)
            if answer is None:
                return "crash or timeout", True
            if answer["status"] not in RED:
                return (UNAPPLIED if answer["status"] == UNAPPLIED else ""), bool(answer["felt"])
            after = self._ask({"do": "try", "mutant": None, "case": case}, LIMIT, device)
            if after is not None and after["status"] not in RED:
                return str(answer["status"]), True
            self._end(device)  # the case stays red: the mutant, or an earlier one, left something behind
            self._ask({"do": "cases"}, START, device)
        return str(answer["status"]), True


def _target(module: str) -> Target:
    return next(target for target in (*TARGETS, *COMPARING) if target.module == module)


def _in_turns(lists: Iterable[Sequence[str]]) -> list[str]:
    """Return the first of each list, then the second of each, and so on."""
    return [case for turn in zip_longest(*lists) for case in turn if case is not None]


def _matches(case: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(case.rpartition("/")[0], glob) for glob in globs)


def _spread(cases: Sequence[str], count: int) -> list[str]:
    """Return so many cases, evenly chosen."""
    return [cases[place * len(cases) // count] for place in range(count)] if len(cases) > count else list(cases)


def population(devices: Sequence[Device]) -> list[Mutant]:
    """Return every mutant; those of kernels on some devices."""
    return [*(mutant for target in TARGETS for mutant in generate(target)), *kernels.generate(devices)]


def comparing() -> list[Mutant]:
    """Return every mutant of what compares in ampcheck."""
    return [mutant for target in COMPARING for mutant in generate(target)]


_EQUIVALENT = tomllib.loads((_HERE / "equivalent.toml").read_text(encoding="utf-8"))["mutant"]
EQUIVALENT = [(row["where"], row["change"], row["why"]) for row in _EQUIVALENT]
"""Mutants that no case can notice: they compute the same, or differ only on hardware that no test machine has. Where
such a mutant is (`module:function: statement`), what it changes, both as searched, and why it is not counted. One that
a user could notice on the CPU, or on a virtual device, is never among them."""


def why_equivalent(mutant: SourceMutant) -> str:
    """Return why no case can notice a mutant; "" where one might."""
    where = f"{mutant.module.rpartition('.')[2]}:{mutant.function}: {mutant.statement}"
    found = (why for place, change, why in EQUIVALENT if re.search(place, where) and re.search(change, mutant.change))
    return next(found, "")


def set_aside(mutants: Iterable[Mutant]) -> list[MutantOutcome]:
    """Return the outcomes of the mutants that no case can notice, and that are not drawn."""
    found = ((mutant, why_equivalent(mutant)) for mutant in mutants if isinstance(mutant, SourceMutant))
    return [MutantOutcome(mutant, "", "", "", 0, f"equivalent: {why}") for mutant, why in found if why]


def measure(
    power: Power, drawn: Iterable[Mutant], results: Path, tell: Callable[[str], None]
) -> Iterator[MutantOutcome]:
    """Try mutants and yield outcomes, each appended to `results` at once; those that it has are not measured again."""
    known = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []
    done = {MutantOutcome(**{**line, "mutant": mutant_of(line["mutant"])}) for line in known}
    by_mutant = {outcome.mutant: outcome for outcome in done}
    killed, chosen = 0, list(drawn)
    with results.open("a", encoding="utf-8") as out:
        for number, mutant in enumerate(chosen, 1):
            if mutant not in by_mutant:
                by_mutant[mutant] = power.try_out(mutant)
                print(json.dumps(asdict(by_mutant[mutant])), file=out, flush=True)
            killed += bool(by_mutant[mutant].killed)
            yield by_mutant[mutant]
            if number % 10 == 0 or number == len(chosen):
                tell(f"{number} of {len(chosen)} mutants, {killed} killed")


# ---- telling it


def fields(outcomes: Sequence[MutantOutcome], total: int, devices: Sequence[str]) -> dict[str, object]:
    """Return the figures as JSON data, which `ampcheck report` shows. `nightly`: killed by some case of either run."""
    aside = [each for each in outcomes if each.why.startswith(("equivalent", "not applied"))]
    counted = [each for each in outcomes if each not in aside]
    return {
        "torch": torch.__version__,
        "devices": list(devices),
        "generated": total,
        "mutants": len(counted),
        **_killed(counted),
        "equivalent": len(aside),
        "modules": _tally(counted, lambda each: group(each.mutant)),
        "rules": _tally(counted, lambda each: each.rule),
        "survivors": [_survivor(each) for each in counted if not each.killed],
        "not_counted": [_survivor(each) for each in aside],
    }


def _tally(outcomes: Iterable[MutantOutcome], name: Callable[[MutantOutcome], str]) -> list[dict[str, object]]:
    groups: dict[str, list[MutantOutcome]] = defaultdict(list)
    for each in outcomes:
        groups[name(each)].append(each)
    return [{"name": group, **_killed(found), "mutants": len(found)} for group, found in sorted(groups.items())]


def _killed(outcomes: Sequence[MutantOutcome]) -> dict[str, int]:
    killed = [each for each in outcomes if each.killed]
    return {"killed": sum(not each.nightly for each in killed), "nightly": len(killed)}


def _survivor(outcome: MutantOutcome) -> str:
    mutant = outcome.mutant
    why = outcome.why or f"none of the {outcome.tried} cases that were tried notices"
    if isinstance(mutant, KernelMutant):
        return f"{mutant.key} {mutant.overload} ({mutant.policy}): {mutant.change} ({why})"
    return f"{mutant.module.replace('.', '/')}.py:{mutant.line} {mutant.function}: {mutant.change} ({why})"


def text(figures: Mapping[str, Any]) -> str:
    """Write the figures as text."""
    killed, nightly, mutants = figures["killed"], figures["nightly"], figures["mutants"]
    head = (
        f"The cases of every run kill {killed} of {mutants} mutants"
        f"{f' ({killed / mutants:.1%})' if mutants else ''}, drawn from {figures['generated']}"
        f"{f', with those of nightly runs {nightly} ({nightly / mutants:.1%})' if nightly > killed else ''}; "
        f"{figures['equivalent']} more behave as what they change, or are seen on other hardware alone."
    )
    counts, columns = ("name", "killed", "nightly", "mutants"), ("killed", "with nightly cases", "mutants", "survived")
    tables = []
    for name, title in (("modules", "class of mutants"), ("rules", "rule that notices them")):
        cells = [[*(row[count] for count in counts), row["mutants"] - row["nightly"]] for row in figures[name]]
        tables.append(tabulate(cells, headers=[title, *columns]))
    lists = {"Survivors": figures["survivors"], "Not counted": figures["not_counted"]}
    told = [f"{title}:\n" + "\n".join(found) for title, found in lists.items() if found]
    return "\n\n".join([head, *tables, *told])
