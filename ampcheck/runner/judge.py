"""Judges: turns what became of a case into a result with its status, its cause, and how to reproduce it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ampcheck import reproduce, samples
from ampcheck.checks.cells import parts
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.base import Device
from ampcheck.errors import CheckFailure, one_line
from ampcheck.observe import blame
from ampcheck.runner import causes, summary
from ampcheck.runner.collect import CASE, Collector, function_of
from ampcheck.runner.deviations import Deviation, after_deviations
from ampcheck.runner.execute import WARNED
from ampcheck.runner.outcome import mark, raised, status_of
from ampcheck.runner.results import RED, Result
from ampcheck.samples import op_database
from ampcheck.spec.case import CELLS, GRADIENT, Case
from ampcheck.spec.torch_dtypes import DTYPES


class Judge:
    """Judges the cases of a collector, by its devices and deviations."""

    def __init__(self, config: pytest.Config, collector: Collector) -> None:
        self._collector = collector
        self._without_deviations = bool(config.option.no_deviations)
        self._further = _further(config.option)

    def judge(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Turn pytest's outcome of a case into a status, and put the result on the report."""
        if report.when != "call" and call.excinfo is None:
            return
        case = item.stash[CASE]
        status, message, differences = "pass", "", []
        if call.excinfo is not None:
            status, message = status_of(call.excinfo, report.when or "call")
            differences = _differences(call.excinfo.value)
            if noted := _noted(item, differences):  # before the case raised something else
                status = "fail" if status in ("broken", "unsupported") else status
                message = "\n".join([*noted, message])
                differences = [*noted, *differences]
        shown, why, entries = self._after_deviations(status, message, differences, case)
        details = {}
        if shown != "pass":
            details = self.details(item, message or why)
        if shown in RED:
            error = raised(call.excinfo) if call.excinfo is not None else None
            # The op of a scenario is the scenario's name.
            op = case.op if case.op in samples.catalogue() or case.op in op_database.rows() else ""
            details["cause"] = causes.text(shown, message or why, case.rule, op, error)
            details["traceback"] = blame.trimmed(error) if error is not None else ""
        result = Result(
            **case.fields(),
            status=shown,
            seconds=round(call.duration, 5),
            deviation=", ".join(entry.id for entry in entries),
            warnings=_texts(item.stash.get(WARNED, [])),
            **details,
        )
        report.ampcheck = result.filled()  # type: ignore[attr-defined]  # travels from xdist's workers with the report
        if result.cause:  # pytest writes it into its own JUnit file
            item.user_properties.append(("cause", result.cause))
        mark(report, shown, why, summary.text(result, why))

    def _after_deviations(
        self, status: str, message: str, differences: list[str], case: Case
    ) -> tuple[str, str, tuple[Deviation, ...]]:
        """Return the status after deviations, the reason to show for it, and the deviations it is about."""
        if status == "unsupported":
            return status, message, ()
        if self._without_deviations:
            return after_deviations(status, differences, [])
        swept = [part.name for part in parts(case)] if case.sample == CELLS else ()
        entries = self._collector.deviations.of(case.device, case.name, swept)
        return after_deviations(status, differences, entries)

    def details(self, item: pytest.Item, message: str) -> dict[str, str]:
        """Return the fields of a result that say how a case differs and how to reproduce it.

        `message`: "" for a case that ended its process; then nothing of it is run here.
        """
        case = item.stash[CASE]
        device = self._collector.devices[case.device]
        node, root, suites = item.nodeid, item.config.rootpath, self._collector.root
        # Elsewhere no conftest.py loads the plugin, and node ids are relative to another folder.
        away = root != item.config.invocation_params.dir or (suites is not None and suites.parent != root)
        if away:
            node = f"{item.path}{node[node.index('::') :]}"
        line = reproduce.pytest_line(node, device, self._collector.modules, installed=away, further=self._further)
        try:
            program = self._in_plain_torch(function_of(item), case, device, message)
        except Exception as error:  # a result must not be lost because its reproduction cannot be written
            program = f"# This reproduction could not be written: {one_line(error)}"
        return {"node": item.nodeid, "message": message, "pytest": line, "torch": program}

    def _in_plain_torch(self, function: pytest.Function, case: Case, device: Device, message: str) -> str:
        """Return a case as a program that imports no ampcheck."""
        modules, ran = self._collector.modules, bool(message)
        if case.sample == op_database.SAMPLE:
            return reproduce.of_op_database(case, device, message)
        if case.sample == CELLS:
            return reproduce.of_cells(case, device, message, modules, ran=ran)
        if case.op in samples.catalogue() and case.compiler:
            return reproduce.of_compiled(case, device, message, modules)
        if case.inputs.endswith(GRADIENT):
            return reproduce.of_gradient(case, device, message, modules, ran=ran)
        if case.op in samples.catalogue() and case.rule != "drift":
            return reproduce.of_op(case, device, message, modules, ran=ran)
        amp = function.funcargs.get("amp")
        amp = amp if isinstance(amp, DeviceAmp) else None
        given = {name: value for name, value in function.callspec.params.items() if name != "amp"}
        return reproduce.of_scenario(function.function, device, DTYPES[case.amp], given, modules, amp=amp)


def _differences(error: BaseException) -> list[str]:
    """Return each difference from the promise; an exception is one, with its whole text."""
    return error.differences if isinstance(error, CheckFailure) else [f"{type(error).__name__}: {error}"]


def _noted(item: pytest.Item, differences: list[str]) -> list[str]:
    """Return the differences that a scenario had noted before it raised something else."""
    amp = function_of(item).funcargs.get("amp")
    return [text for text in amp.differences if text not in differences] if isinstance(amp, DeviceAmp) else []


def _further(option: Any) -> list[str]:
    """Return the options that a line which reproduces one case has to repeat."""
    if not option.nightly:
        return []
    seed = getattr(option, "hypothesis_seed", None)
    return ["--nightly", *([f"--hypothesis-seed={seed}"] if seed is not None else [])]


def _texts(warned: list[warnings.WarningMessage]) -> str:
    """Return each warning of a case once, a line each."""
    lines = (f"{w.category.__name__}: {' '.join(str(w.message).split())}" for w in warned)
    return "\n".join(dict.fromkeys(lines))
