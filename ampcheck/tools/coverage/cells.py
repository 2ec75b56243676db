"""Counts the cells of `ampcheck.checks.sweep` that the cases of a run reach."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate

from ampcheck.checks.cases import cell_cases, compiled_cases, op_cases
from ampcheck.checks.sweep import TRANSITIONS, Cell, cells, reached
from ampcheck.devices.base import Device
from ampcheck.spec.case import Case
from ampcheck.spec.casting import POLICIES


@dataclass(frozen=True, slots=True)
class Coverage:
    """The cells of a device.

    `reachable`: how many can be. `every`, `nightly`: how many of those the cases of every run, and of a nightly run,
    reach; of some run files, how many their cases reached. `unreachable`: by reason, how many cannot be. `open`: the
    overload and compiler of reachable cells that no case reaches, with how many. `not_passed`: of the open cells,
    those whose case ran and did not pass, by `OUTCOMES`.
    """

    device: str
    key: str
    cells: int
    reachable: int
    every: int
    nightly: int
    unreachable: dict[str, int]
    open: list[str]
    not_passed: dict[str, int]


OUTCOMES = {"failed": "failed", "deviation": "known deviation", "unsupported": "unsupported"}
"""Why a cell whose case ran does not count, the strongest reason first: by status, the column. Every status that is not
named here is a failure."""


def count(device: Device, statuses: Mapping[str, str] | None = None) -> Coverage:
    """Count the cells of a device. `statuses`: of the cases that ran, by key; None counts all of a nightly run."""
    states = dict(cells(device))
    possible = {cell for cell, why in states.items() if not why}

    def reach(nightly: bool) -> set[Cell]:
        cases = (each for each in _cases(device, nightly) if statuses is None or statuses.get(each.key) == "pass")
        return possible & {cell for case in cases for cell in reached(case, device)}

    every, nightly = reach(False), reach(True)
    not_passed: dict[str, set[Cell]] = {status: set() for status in OUTCOMES}
    for case in _cases(device, True) if statuses else ():
        if statuses and (status := statuses.get(case.key, "pass")) != "pass":
            not_passed[status if status in OUTCOMES else "failed"].update(reached(case, device))
    counted, outcomes = set(nightly), {}
    for status, found in not_passed.items():
        outcomes[status] = len((possible & found) - counted)
        counted |= found
    missing = Counter((cell.overload, cell.compiler or "eager", cell.mode) for cell in possible - nightly)
    left = [f"{op}, {compiler}, {mode}: {number} cells" for (op, compiler, mode), number in sorted(missing.items())]
    unreachable = dict(Counter(why for why in states.values() if why))
    sizes = (len(states), len(possible), len(every), len(nightly))
    return Coverage(device.name, device.key, *sizes, unreachable, left, outcomes)


def figure(counted: Sequence[Coverage], ran: bool = False) -> str:
    """Return the one figure, in a sentence. `ran`: whether the cases of run files were counted, not all there are."""
    reachable, nightly, every = (sum(getattr(c, of) for c in counted) for of in ("reachable", "nightly", "every"))
    cases = "The cases that ran and passed" if ran else "The cases of a nightly run"
    return (
        f"{cases} reach {nightly / reachable:.1%} of {reachable} reachable cells of overload, dispatch key, mix of "
        f"dtypes, gradient mode, layout and compiler; those of them that every run has, {every / reachable:.1%}."
    )


def table(counted: Sequence[Coverage], list_open: bool, ran: bool) -> str:
    """Write the counts as text. `list_open`: whether to list what is open; `ran`: as in `figure`."""
    names = ["device", "dispatch key", "cells", "unreachable", "reachable", "in each run", "nightly"]
    headers = [*names, *(OUTCOMES.values() if ran else ()), "open"]
    rows = []
    for c in counted:
        row = [c.device, c.key, c.cells, c.cells - c.reachable, c.reachable, c.every, c.nightly]
        others = list(c.not_passed.values())
        rows.append([*row, *(others if ran else ()), c.reachable - c.nightly - sum(others)])
    reasons = sum((Counter(each.unreachable) for each in counted), Counter[str]())
    why = [[number, reason] for reason, number in reasons.most_common()]
    walked = (
        f"Every run takes all {len(TRANSITIONS.reachable)} transitions of the model of autocast's state that can be, "
        f"of {TRANSITIONS.size}."
    )
    tables = tabulate(rows, headers=headers), tabulate(why, headers=["unreachable", "because"])
    parts = [figure(counted, ran), walked, *tables]
    if list_open:
        parts += [f"open on {each.device}: {name}" for each in counted for name in each.open]
    return "\n\n".join(parts)


def fields(counted: Sequence[Coverage], ran: bool) -> dict[str, object]:
    """Return the counts as JSON data, which `ampcheck report` shows. `ran`: as in `figure`."""
    shown = ("device", "key", "cells", "reachable", "nightly", "not_passed", "unreachable")
    return {
        "torch": torch.__version__,
        "ran": ran,
        "devices": [{"each_run": each.every} | {name: getattr(each, name) for name in shown} for each in counted],
    }


def _cases(device: Device, nightly: bool) -> Iterator[Case]:
    """Yield the op cases of a run that reach cells."""
    for rule in POLICIES:
        yield from op_cases(device, rule, "eager")
        yield from op_cases(device, rule, "autograd")
        yield from compiled_cases(device, rule, nightly=nightly)
        for suite in ("eager", "jit") if nightly else ():
            yield from cell_cases(device, rule, suite)
