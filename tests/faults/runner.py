"""Runs the cases of faults: the suites are collected once in a process, and their cases run as often as faults ask."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.observe.isolation import reset
from ampcheck.runner.collect import CASE
from tests.cli_support import LIMIT
from tests.faults import preflight, registration, torchscript_pass
from tests.faults.collecting import OPTIONS, ROOT, collected
from tests.faults.fault import REFUSED, Fault, Result
from tests.reproduce.programs import outcome

_OPTIONS = (
    *("-c", str(ROOT / "ampcheck/pytest.ini"), f"--rootdir={ROOT}", "-p", "ampcheck.runner.plugin", "--no-run-file"),
)
"""As `ampcheck run` calls pytest."""
_NUMBERS = count()
_OTHERS = {source.SUITE: source.results for source in (torchscript_pass, preflight, registration)}
"""Where results are from that no suite has."""


_builtins: list[object] = []
_register = torch.jit._builtins._register_builtin


def _register_and_keep(op: object, name: str) -> None:
    """Keep an op that PyTorch lists by its identity: a custom op ends with its library, and TorchScript would take
    another object that gets the same identity for it ("builtin cannot be used as a value").
    """
    _builtins.append(op)
    _register(op, name)


torch.jit._builtins._register_builtin = _register_and_keep


class Suites:
    """The cases of the suites on some devices, collected in this process and run in it, in any order and again."""

    def __init__(self, *options: str) -> None:
        """`options`: those that choose devices, of pytest."""
        self._results: list[Result] = []
        self._config, items = collected([str(ROOT / "suites"), *_OPTIONS, *options], self)
        self._items: dict[tuple[str, str], list[pytest.Item]] = {}
        for item in items:
            if case := item.stash.get(CASE, None):
                self._items.setdefault((case.device, case.suite), []).append(item)

    def close(self) -> None:
        """Let the collected cases go."""
        self._config._ensure_unconfigure()

    def of(self, fault: Fault) -> list[pytest.Item]:
        """The cases that run under a fault."""
        return [item for item in self._items[fault.device, fault.suite] if fault.picks(item.stash[CASE])]

    def run(self, items: Iterable[pytest.Item]) -> list[Result]:
        """The results of cases now."""
        self._results = []
        for item in items:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._results

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "ampcheck"):
            self._results.append(report.ampcheck)


class Runner:
    """Runs faults in this process, on devices that the options choose."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._suites: dict[bool, Suites] = {}
        self._unharmed: dict[pytest.Item, list[Result]] = {}

    def run(self, fault: Fault) -> tuple[list[Result], list[Result]]:
        """The results of a fault's cases without it, of each from its first run, and then with it."""
        if fault.statuses == REFUSED:
            with fault.inject():
                return [], self._refused()
        if results := _OTHERS.get(fault.suite):
            unharmed = results(fault)
            with fault.inject():
                return unharmed, results(fault)
        items = self.cases(fault)
        suites = self._suites[fault.nightly]
        for item in items:
            if item not in self._unharmed:
                self._unharmed[item] = suites.run([item])
        with fault.inject():
            harmed = suites.run(items)
            if fault.reproduction:
                harmed = [{**result, "shown": _shown(result.get("torch", ""))} for result in harmed]
        reset({})  # under the fault nothing may have been able to
        return [result for item in items for result in self._unharmed[item]], harmed

    def rerun(self, fault: Fault) -> list[Result]:
        """The results of a fault's cases now, when it is not planted."""
        if results := _OTHERS.get(fault.suite):
            return results(fault)
        return self._suites[fault.nightly].run(self.cases(fault)) if fault.statuses != REFUSED else []

    def close(self) -> None:
        """Let the collected cases go."""
        for suites in self._suites.values():
            suites.close()

    def cases(self, fault: Fault) -> list[pytest.Item]:
        """The cases that run under a fault."""
        if fault.nightly not in self._suites:
            self._suites[fault.nightly] = Suites(
                *self._options, *(["--nightly", "--rule=fallthrough", "--rule=downcast"] * fault.nightly)
            )
        return self._suites[fault.nightly].of(fault)

    def _refused(self) -> list[Result]:
        """Return the exit code, as a status, and the output of a run that must not begin."""
        out = io.StringIO()
        case = str(ROOT / "suites/eager")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = pytest.main([case, *_OPTIONS, *OPTIONS, *self._options, "--rule=downcast", "--op=mm"])
        return [{"status": "refused" if code == 2 else f"exit code {int(code)}", "message": out.getvalue()}]


def _shown(program: str) -> str:
    """Return a program's output and error in this process, without access to ampcheck."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(sys.modules, {"ampcheck": None, "tests": None}):
        got = outcome(program, Path(folder) / f"program{next(_NUMBERS)}.py")
    return got["printed"] + got["raised"]


class Remote:
    """Runs the faults of a device in another process, for PrivateUse1 gets its name once in a process."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        folders = (ROOT, ROOT / "tests/backends", ROOT / "tests/backends/register")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.child", device],
            cwd=ROOT,
            env={**env, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, fault: Fault) -> tuple[list[Result], list[Result]]:
        """As `Runner.run`."""
        unharmed, harmed = self._ask("run", fault)
        return unharmed, harmed

    def rerun(self, fault: Fault) -> list[Result]:
        """As `Runner.rerun`."""
        found: list[Result] = self._ask("rerun", fault)
        return found

    def close(self) -> None:
        """End the process."""
        self._child.communicate(timeout=LIMIT)
        self._errors.close()

    def _ask(self, what: str, fault: Fault) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        timer = threading.Timer(LIMIT, self._child.kill)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps([what, fault.name]), file=self._child.stdin, flush=True)
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-3000:]
            raise AssertionError(f"the process of {self._device} ended with {self._child.wait()}\n{said}")
        return json.loads(line)


class Runners:
    """A runner for each device, made when the first fault asks for it."""

    def __init__(self, here: Sequence[str]) -> None:
        """`here`: devices whose faults run in this process."""
        self._here = tuple(here)
        self._made: dict[str, Runner | Remote] = {}
        self.ran: dict[tuple[str, str, str], Fault] = {}

    def of(self, fault: Fault) -> Runner | Remote:
        """Return the runner of a fault."""
        place = "" if fault.device in self._here else fault.device
        if place not in self._made:
            self._made[place] = Remote(place) if place else Runner(*chosen(*self._here))
        return self._made[place]

    def run(self, fault: Fault) -> None:
        """Run a fault's cases without it and with it, and raise AssertionError unless they judge it rightly."""
        self.ran[fault.device, fault.suite, fault.rule] = fault
        try:
            unharmed, harmed = self.of(fault).run(fault)
        except AssertionError:
            self._made.pop(fault.device, None)  # the process ended; the next fault gets a new one
            raise
        fault.judge(unharmed, harmed)

    def close(self) -> None:
        """End every process, and let the cases of this one go."""
        for runner in self._made.values():
            runner.close()


def chosen(*devices: str) -> list[str]:
    """The options that choose devices."""
    return [f"--device={device}" for device in devices]
