"""Runs the faults of `backend_faults.py` on a backend of this folder, all in this process.

    python planting.py opaque results.json

The suites are collected once, by pytest and through `--device` and `--device-module` as a user names a device. Then
each fault is planted, its cases run, and the backend put right again. The cases of all faults run before the first
fault, among others, and after the last one.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from backend_faults import FAULTS, Fault, Subject

ROOT = Path(__file__).resolve().parents[2]
_PLUGINS = ("benchmark", "cacheprovider", "faulthandler", "unraisableexception", "threadexception", "xdist", "logging")
MAIN = ("eager/*-fp32-fp16-*",)
CONTROL = (
    "eager/cache/*",
    "eager/eligibility/every_spelling_of_powers-*",
    "eager/modules/layer-*Loss-low-*",
    "eager/fallthrough/binary_cross_entropy_with_logits+posweight-*",
    "eager/fallthrough/norm.Scalar-*",
)
"""Cases that the right kernels pass, too: what a partial list once turned red. Of `MAIN`, main samples alone."""
OPTIONS = [
    *(word for plugin in _PLUGINS for word in ("-p", f"no:{plugin}")),
    *("-c", str(ROOT / "ampcheck/pytest.ini"), f"--rootdir={ROOT}", "-p", "ampcheck.runner.plugin", "--tb=no"),
]
"""As `ampcheck run` calls pytest."""


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Whether a case is of one of the patterns."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


class Planter:
    """A pytest plugin that runs the collected cases under each fault in place of once each."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.found: dict[str, list[dict[str, str]]] = {}
        self._items: dict[str, pytest.Item] = {}
        self._results: list[dict[str, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        cases = session.config.pluginmanager.get_plugin("ampcheck-run").session
        self._items = {cases.key(item): item for item in session.items}
        faults = [fault for fault in FAULTS if fault.cases and self.subject.name in fault.backends]
        wanted = dict.fromkeys(key for fault in faults for key in self._of(fault))
        most = [key for key in self._items if matches(key, CONTROL) or ("+" not in key and matches(key, MAIN))]
        self.found["right"] = self._run(dict.fromkeys((*wanted, *most)))
        for fault in faults:
            with fault.plant(self.subject):
                self.found[fault.name] = self._run(self._of(fault))
        self.found["right again"] = self._run(wanted)
        return True

    def _of(self, fault: Fault) -> list[str]:
        return [key for key in self._items if matches(key, fault.cases)]

    def _run(self, keys: Iterable[str]) -> list[dict[str, str]]:
        self._results = []
        for key in keys:
            item = self._items[key]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._results

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "ampcheck"):
            self._results.append(report.ampcheck)


def refused(subject: Subject, fault: Fault) -> list[dict[str, str]]:
    """How a run ends that the fault lets not begin: its exit code as a status, and what it printed."""
    out = io.StringIO()
    case = f"{ROOT}/suites/eager/test_downcast.py"
    with fault.plant(subject), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = pytest.main([case, *OPTIONS, *chosen(subject.name), "--op=mm", "--no-run-file", "-q"])
    return [{"status": "refused" if code == 2 else f"exit code {int(code)}", "message": out.getvalue()}]


def chosen(name: str) -> list[str]:
    """The options that choose a device of this folder."""
    return [f"--device={name}", f"--device-module={name}"]


def main(name: str, target: Path) -> None:
    """Write what became of every fault on a backend to a file."""
    module = import_module(name)
    subject = Subject(name, module.BACKEND, module.DEVICES[0], module.register)
    planter = Planter(subject)
    rules = sorted({tuple(pattern.split("/")[:2]) for fault in FAULTS for pattern in fault.cases})
    files = [str(path) for suite, rule in rules for path in sorted((ROOT / "suites" / suite).glob(f"test_{rule}*.py"))]
    code = pytest.main([*files, *OPTIONS, *chosen(name), "--no-run-file", "-q", "--capture=no"], plugins=[planter])
    found = dict(planter.found)
    if found:  # a collection that failed has said why
        for fault in FAULTS:
            if not fault.cases and name in fault.backends:
                found[fault.name] = refused(subject, fault)
    target.write_text(json.dumps({"code": int(code), "found": found}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
