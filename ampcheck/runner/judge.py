"""Judge a case: run it apart from the others, and turn what became of it into a result.

A result has the status after known deviations, its cause, and how to reproduce it.
"""

import argparse
import os
import sys
import tomllib
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ampcheck import samples
from ampcheck.checks.kinds import check_of
from ampcheck.checks.program import pytest_line
from ampcheck.checks.scenario import DeviceAmp, ScenarioCheck
from ampcheck.checks.sweep import parts
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, CheckFailure, Unsupported, one_line
from ampcheck.observe import blame
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.isolation import reset
from ampcheck.observe.overhead import without_overhead
from ampcheck.runner.deviations import Deviation, KnownDeviations, after_deviations
from ampcheck.runner.record import RED, Result, cause_text
from ampcheck.runner.summarize import case_text
from ampcheck.samples import op_database
from ampcheck.spec.case import CELLS, RULES, Case

WARNED = pytest.StashKey[list[warnings.WarningMessage]]()
"""The warnings given while a case ran."""

_OP_WARNINGS = tomllib.loads(Path(__file__).with_name("op_warnings.toml").read_text(encoding="utf-8"))["warning"]

SCENARIO = pytest.StashKey[ScenarioCheck]()
"""The scenario that a case is."""


class Judge:
    """Runs and judges cases on devices, by name, with the deviations that are known of them."""

    def __init__(self, config: pytest.Config, devices: Mapping[str, Device], deviations: KnownDeviations) -> None:
        self._devices = devices
        self._deviations = deviations
        self._defaults = {device.type: device.default_amp for device in devices.values()}
        self._to_load: list[Device] = []
        self._without_deviations = bool(config.option.no_deviations)
        self._supervised = bool(config.option.supervised)
        self._modules = tuple(config.option.device_module)
        self._further = _further(config.option)

    # ---- running a case
    def load_before_first(self, names: Collection[str]) -> None:
        """Note which devices of these names load their backend late, to load each of them before the first case runs.

        Autograd knows the devices that are loaded at its first backward pass, and none that is loaded later.
        """
        self._to_load = [device for device in self._devices.values() if device.backend and device.name in names]

    @contextmanager
    def running(self, item: pytest.Function, case: Case) -> Iterator[None]:
        """Enter around the call of a case: fresh autocast state and the device; then raise a scenario's findings."""
        device = self._devices[case.device]
        while self._to_load:
            with self._to_load.pop().activate():
                pass
        if (reason := device.without_autograd) and RULES[case.rule].autograd:
            raise Unsupported(reason)
        if case.rule == "moves" and (reason := device.new_parameters()):
            raise Unsupported(reason)
        fresh = {**self._defaults, device.type: device.default_amp}  # two devices may be of one type
        reset(fresh)
        try:
            with ExitStack() as stack:
                stack.enter_context(without_overhead())
                item.stash[WARNED] = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")  # a warning decides no verdict
                for row in _OP_WARNINGS:
                    warnings.filterwarnings("ignore", row["text"])
                if "amp" in item.funcargs:
                    item.funcargs["amp"] = stack.enter_context(self._scenario(item).entered(case, device))
                yield
        finally:
            reset(fresh)
            self._end_if_lost(device)

    def _end_if_lost(self, device: Device) -> None:
        """End the process where a device takes no more work, as CUDA after an assertion in a kernel.

        Every case after this one would fail; a supervisor gives this one the blame, and the others a fresh process.
        """
        try:
            device.synchronize()
        except Exception as error:
            text = f"the device takes no more work: {one_line(error)}"
            if not self._supervised:
                pytest.exit(text, returncode=3)
            print(f"what(): {text}", file=sys.__stderr__, flush=True)
            os.abort()

    # ---- judging it
    def judge(self, item: pytest.Function, case: Case, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Turn pytest's outcome of a case into a status, and put the result on the report."""
        if report.when != "call" and call.excinfo is None:
            return
        status, message, differences, error = "pass", "", list[str](), None
        if call.excinfo is not None:
            status, message = status_of(call.excinfo.value, report.when or "call")
            error = raised(call.excinfo.value)
            differences = _differences(call.excinfo.value)
            if noted := _noted(item, differences):  # before the case raised something else
                status = "fail" if status in ("broken", "unsupported") else status
                message = "\n".join([*noted, message])
                differences = [*noted, *differences]
        result, why = self._judged(item, case, status, message, differences, error, seconds=call.duration)
        report.ampcheck = result.filled()  # type: ignore[attr-defined]  # travels from xdist's workers with the report
        if result.cause:  # pytest writes it into its own JUnit file
            item.user_properties.append(("cause", result.cause))
        mark(report, result.status, why, case_text(result, why))

    def dead(self, item: pytest.Function, case: Case, known: Result) -> Result:
        """Judge a case that ended an earlier process, of which this much is known; nothing of it is run."""
        told = known.status, known.message
        return self._judged(item, case, *told, [], None, seconds=known.seconds, cause=known.cause)[0]

    def _judged(
        self,
        item: pytest.Function,
        case: Case,
        status: str,
        message: str,
        differences: list[str],
        error: BaseException | None,
        *,
        seconds: float,
        cause: str = "",
    ) -> tuple[Result, str]:
        """Return the result of a case after deviations, and the reason of its status.

        `cause`: of a case that ended its process; else it is made of the message and the exception.
        """
        shown, why, entries = self._after_deviations(status, message, differences, case)
        details = {} if shown == "pass" else self._details(item, case, message or why, ran=not cause)
        if shown in RED:
            # The op of a scenario is the scenario's name.
            op = case.op if case.op in samples.catalogue() or case.op in op_database.rows() else ""
            details["cause"] = cause or cause_text(shown, message or why, case.rule, op, error)
            details["traceback"] = blame.trimmed(error) if error is not None else ""
        given = item.stash.get(WARNED, [])
        warned = (f"{w.category.__name__}: {' '.join(str(w.message).split())}" for w in given)
        result = Result(
            **case.fields(),
            status=shown,
            seconds=round(seconds, 5),
            deviation=", ".join(entry.id for entry in entries),
            warnings="\n".join(dict.fromkeys(warned)),
            **details,
        )
        return result, why

    def _after_deviations(
        self, status: str, message: str, differences: list[str], case: Case
    ) -> tuple[str, str, tuple[Deviation, ...]]:
        """Return the status after deviations, the reason to show for it, and the deviations it is about."""
        if status == "unsupported":
            return status, message, ()
        entries = self._deviations.baseline(case.key)
        if not self._without_deviations:
            swept = [part.name for part in parts(case)] if case.sample == CELLS else ()
            known = self._deviations.of(case.device, case.name, swept)
            entries = [*(entry.in_region(case.amp) for entry in known), *entries]
        return after_deviations(status, differences, entries, message)

    def _details(self, item: pytest.Function, case: Case, message: str, *, ran: bool) -> dict[str, str]:
        """Return the fields of a result that say how a case differs and how to reproduce it.

        `ran`: False for a case that ended its process; then nothing of it is run here.
        """
        device = self._devices[case.device]
        node, root = item.nodeid, item.config.rootpath
        suites = next((folder for folder in item.path.parents if folder.name == "suites"), None)
        # Elsewhere no conftest.py loads the plugin, and node ids are relative to another folder.
        away = root != item.config.invocation_params.dir or suites is None or suites.parent != root
        if away:
            node = f"{item.path}{node[node.index('::') :]}"
        line = pytest_line(node, device, self._modules, installed=away, further=self._further)
        try:
            kind = check_of(case) or self._scenario(item)
            program = kind.program(case, device, message if ran else "", self._modules, ran=ran and bool(message))
        except Exception as error:  # a result must not be lost because its reproduction cannot be written
            program = f"# This reproduction could not be written: {one_line(error)}"
        return {"node": item.nodeid, "message": message, "pytest": line, "torch": program}

    @staticmethod
    def _scenario(item: pytest.Function) -> ScenarioCheck:
        """Return the scenario of a case, which is made once."""
        if SCENARIO not in item.stash:
            params = {name: value for name, value in item.callspec.params.items() if name != "amp"}
            fixtures = {name: value for name, value in item.funcargs.items() if name not in item.callspec.params}
            item.stash[SCENARIO] = ScenarioCheck(item.function, params, fixtures)
        return item.stash[SCENARIO]


# ---- statuses
def status_of(error: BaseException, when: str) -> tuple[str, str]:
    """Return the status and message of what a case raised: fail, broken, unsupported, or error of the harness itself.

    An exception is an error where ampcheck's own code raised it by itself, or where it is raised outside of the call
    (`when` is pytest's name of the phase) and neither a backend nor PyTorch has a part in it.
    """
    if isinstance(error, CheckFailure):
        return ("broken" if isinstance(error, Broken) else "fail"), str(error)
    if isinstance(error, Unsupported):
        return "unsupported", str(error)
    if lacks_kernel(error):
        return "unsupported", one_line(error)
    whose = blame.raised_by(error)
    if when == "call":
        ours = whose == "ampcheck" and not isinstance(error, AssertionError)
    else:
        ours = whose not in ("backend", "torch")
    return ("error" if ours else "fail"), one_line(error)


def raised(error: BaseException) -> BaseException | None:
    """Return the exception of a case: the raised one, or the one that its failure speaks of. None for none."""
    return error.error if isinstance(error, CheckFailure) else error


def mark(report: pytest.TestReport, status: str, why: str, text: str) -> None:
    """Make a report say a status: deviations are shown as expected failures with the reason `why`."""
    if status in ("deviation", "unsupported"):
        report.outcome = "skipped"
        report.wasxfail = why
    elif status == "fixed":
        report.outcome = "failed"
    if status != "pass":
        report.longrepr = text


def _differences(error: BaseException) -> list[str]:
    """Return each difference from the promise; an exception is one, with its whole text."""
    return error.differences if isinstance(error, CheckFailure) else [f"{type(error).__name__}: {error}"]


def _noted(item: pytest.Function, differences: list[str]) -> list[str]:
    """Return the differences that a scenario had noted before it raised something else."""
    amp = item.funcargs.get("amp")
    return [told for told in amp.differences if told not in differences] if isinstance(amp, DeviceAmp) else []


def _further(option: argparse.Namespace) -> list[str]:
    """Return the options that a line which reproduces one case has to repeat."""
    if not option.nightly:
        return []
    seed = getattr(option, "hypothesis_seed", None)
    return ["--nightly", *([f"--hypothesis-seed={seed}"] if seed is not None else [])]
