"""Run cases of the suites with and without a mutant: collected once in a process, they run as often as asked."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.observe.isolation import reset
from ampcheck.tools.power import process
from tests.cli_support import LIMIT, ROOT
from tests.faults import BY_NAME
from tests.faults.backends import WARNINGS
from tests.faults.mutant import HERE, Mutant, Result
from tests.register import mutants as registration
from tests.reproduce.programs import outcome
from tests.torchscript import mutants as torchscript

Outcome = dict[str, str]
"""What a program prints and what it raises."""
MODULES = {"npy": "numpy_backend"}
"""The modules of devices that are called otherwise."""

KNOWN = {**BY_NAME, **{mutant.name: mutant for mutant in WARNINGS}}
OTHERS = {torchscript.AGREEMENT: torchscript.agreement, registration.REGISTRATION: registration.checks}
"""What runs the cases of rules that no suite has."""

_builtins: list[object] = []
_register = torch.jit._builtins._register_builtin


def _register_and_keep(op: object, name: str) -> None:
    """Keep an op that PyTorch lists by its identity: a custom op ends with its library, and TorchScript would take
    another object that gets the same identity for it ("builtin cannot be used as a value").
    """
    _builtins.append(op)
    _register(op, name)


torch.jit._builtins._register_builtin = _register_and_keep


class Suites(process.Suites):
    """The cases of the suites on some devices, all of which can be collected, until they are let go."""

    def __init__(self, devices: Sequence[str], *options: str) -> None:
        modules = [MODULES.get(name, name) for name in devices if name not in (*HERE, "jax")]
        super().__init__(devices, [*(f"--device-module={name}" for name in modules), *options])

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._config = session.config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        assert not report.failed, report.longreprtext

    def close(self) -> None:
        """Let the collected cases go."""
        self._config._ensure_unconfigure()


class Local:
    """Run cases in this process."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._every_run = Suites(devices)
        self._nightly: dict[str, Suites] = {}

    def run(self, mutant: Mutant | None, device: str, keys: Sequence[str]) -> list[Result]:
        """Return the results of cases under a mutant, or without one."""
        run = self._run(device, keys)
        if mutant is None:
            return run()
        with mutant.inject(device):
            results = run()
        reset({})  # under a mutant nothing may have been able to
        return results

    def _run(self, device: str, keys: Sequence[str]) -> Callable[[], list[Result]]:
        """Return what runs some cases of one rule, which are collected here."""
        ids = [key.split("/", 2)[2] for key in keys]
        if other := OTHERS.get(keys[0].rsplit("/", 1)[0]):
            return lambda: other(device, ids)
        suites = self._of(keys)
        return lambda: [suites.run(key) for key in keys]

    def cases(self) -> dict[str, tuple[str, str]]:
        """Return the device of each case of every run, and its row in the matrix: its scenario or its rule of ops."""
        return {key: (device, row) for key, (row, _, device) in self._every_run.cases().items()}

    def show(self, mutant: Mutant | None, device: str, program: str, file: Path) -> Outcome:
        """Run a program as a file, under a mutant or without one, where ampcheck cannot be imported."""
        absent = patch.dict(sys.modules, {"ampcheck": None, "tests": None})
        with mutant.inject(device) if mutant else nullcontext(), absent:
            return outcome(program, file)

    def _of(self, keys: Sequence[str]) -> Suites:
        """Return where cases are collected: those that only nightly runs have are so by rule, when they are needed."""
        if set(keys) <= set(self.cases()):
            return self._every_run
        _, rule, _ = keys[0].split("/", 2)
        if rule not in self._nightly:
            self._nightly[rule] = Suites(self._devices, "--nightly", f"--rule={rule}")
        return self._nightly[rule]

    def close(self) -> None:
        """Let the collected cases go."""
        for suites in (self._every_run, *self._nightly.values()):
            suites.close()


FOLDERS = (ROOT, ROOT / "tests/backends", ROOT / "tests/backends/register")
_local: Local
"""What runs the cases of a process of `Remote`."""


def _collect(device: str) -> None:
    global _local  # of this process alone
    sys.path[:0] = map(str, FOLDERS)
    if device == "jax":
        import ampcheck.jax_device  # noqa: F401  # makes the device, in this process alone
    _local = Local((device,))


def _call(method: str, mutant: str, *given: Any) -> Any:
    return getattr(_local, method)(KNOWN.get(mutant), *given)


def _cases() -> dict[str, tuple[str, str]]:
    return _local.cases()


class Remote:
    """Run cases of a device in another process, for PrivateUse1 gets its name once in a process."""

    def __init__(self, device: str) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _collect, (device,))
        env = {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS)), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        with patch.dict(os.environ, env):
            self._cases = self._pool.submit(_cases).result(LIMIT)

    def run(self, mutant: Mutant | None, device: str, keys: Sequence[str]) -> list[Result]:
        """Run cases as `Local.run` does."""
        return self._asked("run", mutant, device, list(keys))

    def show(self, mutant: Mutant | None, device: str, program: str, file: Path) -> Outcome:
        """Run a program as `Local.show` does."""
        return self._asked("show", mutant, device, program, file)

    def _asked(self, method: str, mutant: Mutant | None, *given: Any) -> Any:
        return self._pool.submit(_call, method, mutant.name if mutant else "", *given).result(LIMIT)

    def cases(self) -> dict[str, tuple[str, str]]:
        """Return the cases as `Local.cases` does."""
        return self._cases

    def close(self) -> None:
        """End the process at once: taking a device down takes long."""
        with suppress(BrokenProcessPool):
            self._pool.submit(os._exit, 0).result(LIMIT)
        self._pool.shutdown()


class Runners:
    """What runs the cases of each device, made when the first one is needed."""

    def __init__(self) -> None:
        self._made: dict[str, Local | Remote] = {}
        self._unharmed: dict[tuple[str, str], Result] = {}

    def of(self, device: str, keys: Sequence[str] = ()) -> Local | Remote:
        """Return what runs some cases of a device; ranks are forked from a process in which no other device began."""
        place = "" if device in HERE and not any("/ranks/" in key for key in keys) else device
        if place not in self._made:
            self._made[place] = Remote(place) if place else Local(HERE)
        return self._made[place]

    def run(self, mutant: Mutant | None, device: str, keys: Sequence[str]) -> dict[str, Result]:
        """Return the result of each of some cases under a mutant; those without one are from their first run."""
        try:
            if mutant is not None:
                return _by_key(self.of(device, keys).run(mutant, device, keys))
            missing = [key for key in keys if (device, key) not in self._unharmed]
            if missing:
                found = _by_key(self.of(device, missing).run(None, device, missing))
                self._unharmed.update({(device, key): result for key, result in found.items()})
        except (BrokenProcessPool, TimeoutError):
            if ended := self._made.pop(device, None):  # the next mutant gets a new process
                ended.close()
            raise
        return {key: self._unharmed[device, key] for key in keys}

    def again(self, device: str, keys: Sequence[str]) -> dict[str, Result]:
        """Return the results of cases now, without a mutant."""
        return _by_key(self.of(device, keys).run(None, device, keys))

    def ran(self) -> list[tuple[str, str]]:
        """Return the device and the key of each case that has run without a mutant."""
        return list(self._unharmed)

    def close(self) -> None:
        """End every process, and let the cases of this one go."""
        for runner in self._made.values():
            runner.close()


def _by_key(results: Iterable[Result]) -> dict[str, Result]:
    return {f"{result['suite']}/{result['rule']}/{result['id']}": result for result in results}
