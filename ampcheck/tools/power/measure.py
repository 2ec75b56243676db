"""Measure which mutants the cases notice: draw them, try each on the cases that run its line, and tell the figures."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.runner.record import RED
from ampcheck.runner.run import environment
from ampcheck.runner.worker import Worker
from ampcheck.tools.power import kernels
from ampcheck.tools.power.kernels import KernelMutant
from ampcheck.tools.power.process import mutant_of
from ampcheck.tools.power.source import UNAPPLIED, SourceMutant, Target, generate, path_of

_COMPILED, _RANKS = ("jit/*",), ("autograd/ranks", "autograd/dataparallel")
_AMP = r"\bamp\b|_amp\b|[aA]utocast"
TARGETS = (
    Target("torch.amp.autocast_mode"),
    Target("torch.amp.grad_scaler"),
    Target("torch.distributed.fsdp.sharded_grad_scaler"),
    Target("torch.utils.checkpoint", about="autocast"),
    Target("torch._dynamo.variables.ctx_manager", ("AutocastModeVariable.*",), rules=_COMPILED),
    Target("torch._functorch._aot_autograd.graph_compile", about=_AMP, rules=_COMPILED),
    Target("torch._functorch._aot_autograd.collect_metadata_analysis", about=_AMP, rules=_COMPILED),
    Target("torch._functorch._aot_autograd.utils", about=_AMP, rules=_COMPILED),
    Target("torch.distributed.fsdp._fully_shard._fsdp_param", about="reduce_dtype|param_dtype", rules=_RANKS),
    Target("torch.distributed.fsdp._fully_shard._fsdp_state", about="_cast|cast_|output_dtype", rules=_RANKS),
)
"""What of PyTorch is mutated."""
EQUIVALENT: Mapping[tuple[str, str], str] = {}
"""By function and change, why a mutant behaves as what it changes does."""

LIMIT = 120.0
"""Seconds that a case may take under a mutant; one that takes longer notices it."""
START = 900.0
"""Seconds that collecting the cases may take."""


Mutant = SourceMutant | KernelMutant


def group(mutant: Mutant) -> str:
    """Return the class of a mutant: the module that it changes, or how it changes kernels."""
    return mutant.module if isinstance(mutant, SourceMutant) else f"kernels: {mutant.change}"


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """What became of a mutant.

    `killed`: the status of the case `by`, which is green without it; "" for a survivor. `rule`: of that case, or of the
    first one tried. `tried`: how many cases ran under it. `why`: of a survivor, the reason as far as it is known.
    """

    mutant: Mutant
    killed: str
    by: str
    rule: str
    tried: int
    why: str = ""


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
        of_row: how many cases of a scenario, or of a rule of ops, are recorded.
        rules: the rules whose cases are tried; empty for all.
    """

    def __init__(self, devices: Sequence[str], folder: Path, most: int, of_row: int, rules: Sequence[str]) -> None:
        self._devices, self._most, self._of_row = list(devices), most, of_row
        self._worker: Worker | None = None
        self._files = [str(path_of(target.module)) for target in TARGETS]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._kept = folder / f"power-lines-{'-'.join(devices).replace(':', '_')}-torch-{torch.__version__}.jsonl"
            self._kept.touch()
        except OSError as error:
            raise UsageError(f"the folder {folder} cannot be written: {error.strerror}") from error
        rows: dict[str, list[str]] = defaultdict(list)
        self._of_op: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, (row, op, device) in self._ask({"do": "cases"}, START)["cases"].items():
            if not rules or key.split("/")[1] in rules:
                rows[row].append(key)
                self._of_op[op, device].append(key)
        self._rows = rows
        self._lines: dict[str, dict[str, set[int]]] = {}

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.stop()

    def _ask(self, what: object, limit: float) -> Any:
        """Return the answer of the child; None where it ended or was silent for so long, and a new one comes next."""
        if self._worker is None:
            command = [sys.executable, "-m", "ampcheck.tools.power.process", *self._devices]
            self._worker = Worker(command, {**environment(1), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
        self._worker.tell(json.dumps(what))
        try:
            answer = self._worker.hear(limit)
        except TimeoutError:
            answer = None
        if answer is None:
            self._worker.stop()
            self._worker = None
        return answer

    def record(self, tell: Callable[[str], None]) -> None:
        """Record the lines that cases run, but those that are recorded already."""
        known = [json.loads(line) for line in self._kept.read_text(encoding="utf-8").splitlines()]
        done = {case: (status, lines) for case, status, lines in known}
        wanted = [case for cases in self._rows.values() for case in _spread(cases, self._of_row)]
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
            if status == "pass":
                self._lines[case] = {file: set(numbers) for file, numbers in lines.items()}

    def candidates(self, mutant: Mutant) -> list[str]:
        """Return the cases that run a mutant's line, those first that run little else of its file, a scenario each."""
        if isinstance(mutant, KernelMutant):
            cases = self._of_op[mutant.overload, mutant.device]
            eager = [case for case in cases if case.startswith("eager/")]
            return [*_spread(eager, self._most // 2), *_spread([c for c in cases if c not in eager], self._most // 2)]
        file = str(path_of(mutant.module))
        running = {case: len(lines[file]) for case, lines in self._lines.items() if mutant.line in lines.get(file, ())}
        ordered = sorted(running, key=lambda case: (running[case], case))
        row = {case: name for name, cases in self._rows.items() for case in cases}
        seen: dict[str, int] = defaultdict(int)
        place = {}
        for case in ordered:
            place[case] = seen[row[case]]
            seen[row[case]] += 1
        first = sorted(ordered, key=lambda case: place[case])
        globs = next(target.rules for target in TARGETS if target.module == mutant.module)
        others = [case for case in self._lines if case not in running and _matches(case, globs)]
        return [*first[: self._most], *_spread(others, max(self._most - len(first), 0))]

    def try_out(self, mutant: Mutant) -> MutantOutcome:
        """Try a mutant on its cases until one notices it."""
        if isinstance(mutant, SourceMutant) and (why := EQUIVALENT.get((mutant.function, mutant.change))):
            return MutantOutcome(mutant, "", "", "", 0, f"equivalent: {why}")
        cases = self.candidates(mutant)
        for number, case in enumerate(cases, 1):
            status = self._kill(mutant, case)
            if status == UNAPPLIED:
                return MutantOutcome(
                    mutant, "", "", "", number, "not applied: it runs only while its module is imported"
                )
            if status:
                return MutantOutcome(mutant, status, case, "/".join(case.split("/")[:2]), number)
        rule = "/".join(cases[0].split("/")[:2]) if cases else "none"
        return MutantOutcome(mutant, "", "", rule, len(cases), "" if cases else "no case that was tried runs it")

    def _kill(self, mutant: Mutant, case: str) -> str:
        """Return the status of a case that is red under a mutant and green after it, in this process or a fresh one."""
        for _ in range(2):
            answer = self._ask({"do": "try", "mutant": asdict(mutant), "case": case}, LIMIT)
            if answer is None:
                return "crash or timeout"
            if answer["status"] not in RED:
                return UNAPPLIED if answer["status"] == UNAPPLIED else ""
            after = self._ask({"do": "try", "mutant": None, "case": case}, LIMIT)
            if after is not None and after["status"] not in RED:
                return str(answer["status"])
            if self._worker is not None:  # the case stays red: the mutant, or an earlier one, left something behind
                self._worker.stop()
                self._worker = None
            self._ask({"do": "cases"}, START)
        return str(answer["status"])


def _matches(case: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(case.rpartition("/")[0], glob) for glob in globs)


def _spread(cases: Sequence[str], count: int) -> list[str]:
    """Return so many cases, evenly chosen."""
    return [cases[place * len(cases) // count] for place in range(count)] if len(cases) > count else list(cases)


def population(devices: Sequence[Device]) -> list[Mutant]:
    """Return every mutant; those of kernels on some devices."""
    return [*(mutant for target in TARGETS for mutant in generate(target)), *kernels.generate(devices)]


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
    """Return the figures as JSON data, which `ampcheck report` shows."""
    counted = [each for each in outcomes if not each.why.startswith(("equivalent", "not applied"))]
    return {
        "torch": torch.__version__,
        "devices": list(devices),
        "generated": total,
        "mutants": len(counted),
        "killed": sum(bool(each.killed) for each in counted),
        "equivalent": len(outcomes) - len(counted),
        "modules": _tally(counted, lambda each: group(each.mutant)),
        "rules": _tally(counted, lambda each: each.rule),
        "survivors": [_survivor(each) for each in counted if not each.killed],
    }


def _tally(outcomes: Iterable[MutantOutcome], name: Callable[[MutantOutcome], str]) -> list[dict[str, object]]:
    groups: dict[str, list[MutantOutcome]] = defaultdict(list)
    for each in outcomes:
        groups[name(each)].append(each)
    return [
        {"name": group, "killed": sum(bool(each.killed) for each in found), "mutants": len(found)}
        for group, found in sorted(groups.items())
    ]


def _survivor(outcome: MutantOutcome) -> str:
    mutant = outcome.mutant
    why = outcome.why or f"none of the {outcome.tried} cases that were tried notices"
    if isinstance(mutant, KernelMutant):
        return f"{mutant.key} {mutant.overload} ({mutant.policy}): {mutant.change} ({why})"
    return f"{mutant.module.replace('.', '/')}.py:{mutant.line} {mutant.function}: {mutant.change} ({why})"


def text(figures: Mapping[str, Any]) -> str:
    """Write the figures as text."""
    killed, mutants = figures["killed"], figures["mutants"]
    head = (
        f"The cases of every run kill {killed} of {mutants} mutants"
        f"{f' ({killed / mutants:.1%})' if mutants else ''}, drawn from {figures['generated']}; "
        f"{figures['equivalent']} more behave as what they change."
    )
    tables = [
        tabulate(
            [[row["name"], row["killed"], row["mutants"] - row["killed"], row["mutants"]] for row in figures[name]],
            headers=[title, "killed", "survived", "mutants"],
        )
        for name, title in (("modules", "class of mutants"), ("rules", "rule that notices them"))
    ]
    return "\n\n".join(
        [head, *tables, *(["Survivors:\n" + "\n".join(figures["survivors"])] if mutants > killed else [])]
    )
