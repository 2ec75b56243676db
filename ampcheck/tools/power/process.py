"""Run cases under mutants in a process of its own: collected once, they run in any order and again.

`python -m ampcheck.tools.power.process DEVICE... [--nightly]` reads lines of JSON and answers each: `cases`, `touched`,
`try`. With `own` in place of devices the cases are ampcheck's own tests of what compares.
"""

import importlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from _pytest.config import _prepareconfig

from ampcheck.observe.isolation import reset
from ampcheck.runner.collect import CASE
from ampcheck.runner.run import suites_folder
from ampcheck.runner.worker import Channel
from ampcheck.tools.power.kernels import KernelMutant, injected
from ampcheck.tools.power.source import UNAPPLIED, SourceMutant, applied, living, path_of

Lines = dict[str, set[int]]
"""By file, the lines that ran."""

_OFF = ("benchmark", "cacheprovider", "faulthandler", "unraisableexception", "threadexception", "xdist")
_QUIET = (*(word for name in _OFF for word in ("-p", f"no:{name}")), "--tb=no", "--capture=no", "-qq", "--collect-only")

OWN = "own"
"""Names ampcheck's own tests where a device is expected."""


class Suites:
    """The cases of the suites on some devices."""

    def __init__(self, devices: Sequence[str], options: Sequence[str] = ()) -> None:
        root = suites_folder()
        ini = Path(__file__).resolve().parents[2] / "pytest.ini"
        told = ["-c", str(ini), f"--rootdir={root.parent}", "-p", "ampcheck.runner.plugin", "--no-run-file"]
        chosen = [f"--device={name}" for name in devices]
        items = self._collected([str(root), *told, *chosen, *options])
        self._items = {item.stash[CASE].key: item for item in items if CASE in item.stash}

    def _collected(self, told: Sequence[str]) -> Sequence[pytest.Item]:
        config = _prepareconfig([*told, *_QUIET], plugins=[self])
        config._do_configure()
        config.pluginmanager.unregister(name="terminalreporter")
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        self._result: Mapping[str, Any] = {}
        return session.items

    def cases(self) -> dict[str, list[str]]:
        """Return of each case its row (its suite and rule, and its scenario if it is one), op and device."""
        of = {key: item.stash[CASE] for key, item in self._items.items()}
        return {key: [_row(self._items[key]), case.op, case.device] for key, case in of.items()}

    def run(self, key: str) -> Mapping[str, Any]:
        """Run a case now, and return its result as a run file has it."""
        self._result = {}
        item = self._items[key]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._result

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._result = getattr(report, "ampcheck", None) or self._result


_IMPORTS = re.compile(
    r"^from ampcheck\.(checks|observe)(\.| import .*\b)"
    r"(amp|backward|closeness|comparisons|compiled|forward|op_database|relations|scenario|sweep)\b",
    re.MULTILINE,
)


class OwnTests(Suites):
    """The tests that import what compares, as cases of the suite "own", whose rules are the files."""

    def __init__(self) -> None:
        root = suites_folder().parent
        files = (file for name in ("checks", "observe") for file in sorted((root / "tests" / name).glob("test_*.py")))
        chosen = [str(file) for file in files if _IMPORTS.search(file.read_text(encoding="utf-8"))]
        items = self._collected([*chosen, "-c", str(root / "pyproject.toml"), f"--rootdir={root}", "--no-run-file"])
        self._items = {f"{OWN}/{item.path.stem}/{item.name}": item for item in items}

    def cases(self) -> dict[str, list[str]]:
        return {key: [key.partition("[")[0], "", OWN] for key in self._items}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or self._result.get("status") != "fail":
            self._result = {"status": "fail" if report.failed else "pass"}


def _row(item: pytest.Item) -> str:
    case = item.stash[CASE]
    return f"{case.suite}/{case.rule}" + ("" if item.get_closest_marker("op_cases") else f"/{case.op}")


class _Forked:
    """The lines that forked processes run, ranks for one: each leaves them in a file when it ends."""

    def __init__(self, lines: Lines, folder: str) -> None:
        self.lines, self.folder = lines, folder
        register_after_fork(self, _Forked.started)

    def started(self) -> None:
        Finalize(self, _Forked.leave, (self.lines, self.folder), exitpriority=0)

    @staticmethod
    def leave(lines: Lines, folder: str) -> None:
        sys.settrace(None)
        told = {file: sorted(found) for file, found in lines.items()}
        Path(folder, str(os.getpid())).write_text(json.dumps(told), encoding="utf-8")


def _touched(suites: Suites, key: str, files: Sequence[str]) -> tuple[str, dict[str, list[int]]]:
    """Run a case and return its status, with the lines of some files that ran."""
    lines: Lines = {file: set() for file in files}

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return inside

    def called(frame: FrameType, event: str, argument: object) -> Any:
        return inside if frame.f_code.co_filename in lines else None

    sys.settrace(called)
    threading.settrace(called)
    try:
        with tempfile.TemporaryDirectory() as folder:
            forked = _Forked(lines, folder)
            result = suites.run(key)
            del forked  # later forks are no longer of this case
            sys.settrace(None)
            for left in Path(folder).iterdir():
                for file, found in json.loads(left.read_text(encoding="utf-8")).items():
                    lines[file].update(found)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return str(result.get("status", "")), {file: sorted(found) for file, found in lines.items() if found}


def _under(
    mutant: SourceMutant | KernelMutant | None, functions: dict[str, list[FunctionType]]
) -> AbstractContextManager[object]:
    """Enter a mutant. `functions`: those that live of each module, which are looked up once."""
    if mutant is None:
        return nullcontext()
    if isinstance(mutant, KernelMutant):
        return injected(mutant)
    if mutant.module not in functions:
        importlib.import_module(mutant.module)
        functions[mutant.module] = living([str(path_of(mutant.module))])
    return applied(mutant, functions[mutant.module])


def mutant_of(fields: Mapping[str, Any]) -> SourceMutant | KernelMutant:
    """Return a mutant from JSON data."""
    return KernelMutant(**fields) if "overload" in fields else SourceMutant(**fields)


def main(devices: Sequence[str]) -> None:
    """Answer until there is nothing more to read."""
    channel = Channel()
    names = [name for name in devices if not name.startswith("--")]
    suites = OwnTests() if names == [OWN] else Suites(names, [name for name in devices if name not in names])
    functions: dict[str, list[FunctionType]] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "cases":
            channel.send({"cases": suites.cases()})
        elif asked["do"] == "touched":
            status, lines = _touched(suites, asked["case"], asked["files"])
            channel.send({"status": status, "lines": lines})
        else:
            mutant = mutant_of(asked["mutant"]) if asked["mutant"] else None
            felt: object = None
            try:
                with _under(mutant, functions) as felt:
                    result = suites.run(asked["case"])
            except ValueError as error:
                result = {"status": UNAPPLIED, "message": str(error)}
            reset({})  # what a case, which a mutant may have misled, left behind
            told = {name: result.get(name, "") for name in ("status", "message")}
            channel.send({**told, "felt": any(felt) if isinstance(felt, list) else True})


if __name__ == "__main__":
    main(sys.argv[1:])
