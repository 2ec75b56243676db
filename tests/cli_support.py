"""Helpers for the tests of the command line: run it in a process of its own, and small devices to run it on."""

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from ampcheck.cli import main

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = tomllib.loads((ROOT / "tests" / "programs.toml").read_text(encoding="utf-8"))
"""What tests write and start, by the test file and a name."""

LIMIT = 1800
"""Seconds that a test waits for a process or an event: it ends a test that hangs and judges none that is slow."""

MODULE = PROGRAMS["cli_support-module"]

ENTRY = {
    "id": "one",
    "cases": ["downcast/*"],
    "kind": "deviation",
    "reason": "Because.",
    "link": "unreported",
    "raises": "x",
    "torch": ">=2.11",
    "added": "2026-11-20",
}
"""A known deviation."""


def toml(*entries: dict[str, object]) -> str:
    """A deviations file."""
    return "\n".join(
        "[[deviation]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items())
        for entry in entries
    )


def write_suites(folder: Path, files: Mapping[str, str]) -> None:
    """Write suite files of those texts, by their paths below `suites`."""
    for name, text in files.items():
        path = folder / "suites" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "suites" / "__init__.py").touch()


_PLUGINS_OFF = [
    word for name in ("benchmark", "faulthandler", "threadexception", "unraisableexception", "xdist")
    for word in ("-p", f"no:{name}")
]  # fmt: skip
"""Plugins of the tests' own session that a second one in its process would disturb."""


def workflow(name: str) -> str:
    """The text of a workflow of GitHub."""
    return (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")


def jobs(name: str) -> dict[str, list[str]]:
    """The scripts of a workflow's steps, by job, in its order."""
    bodies = re.finditer(
        r"^  ([\w-]+):\n((?:    .*\n|  #.*\n|\n)+)", workflow(name).partition("\njobs:\n")[2], re.MULTILINE
    )
    step = re.compile(r"^( *)(?:- )?run: (?:([|>])-?\n((?:\1  .*\n|\n)+)|(.+)\n)", re.MULTILINE)
    return {body[1]: [_script(*found.groups()[1:]) for found in step.finditer(body[2])] for body in bodies}


def _script(style: str | None, block: str | None, line: str) -> str:
    """The text that YAML makes of a block or a line."""
    if block is None:
        return line
    text = textwrap.dedent(block)
    return " ".join(text.split("\n")) if style == ">" else text


def environment() -> dict[str, str]:
    """The environment of a child: this ampcheck, wherever the current folder is."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def interrupted(
    folder: Path, *arguments: str, when: Callable[[], bool], by: signal.Signals = signal.SIGINT
) -> tuple[int, str]:
    """Run ampcheck until `when` is true and interrupt it as Ctrl-C does. Returns its exit code and what it printed."""
    command = [sys.executable, "-c", PROGRAMS["cli_support-listen"], sys.executable, "-m", "ampcheck", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environment(), text=True, **pipes) as process:
        deadline = time.monotonic() + LIMIT
        while not when() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(by)
        out, _ = process.communicate(timeout=LIMIT)
    return process.returncode, out


def ended(
    command: list[str], folder: Path = ROOT, *, code: int | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with an exit code or, for None, however it did, with this ampcheck."""
    env = {**environment(), **env}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def python(*arguments: object, folder: Path = ROOT, **env: str) -> str:
    """Run Python, which must end well, with this ampcheck; return what it printed."""
    return ended([sys.executable, *map(str, arguments)], folder, code=0, **env).stdout


def collected(folder: Path, *options: str) -> dict[str, dict[str, str]]:
    """The fields of every case that a run of all devices of this machine collects, by key."""
    path = folder / "manifest"
    python("-m", "pytest", "suites", "--collect-only", "-q", "--no-run-file", f"--write-manifest={path}", *options)
    cases = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return {key: json.loads(fields) for key, fields in cases}


def run(folder: Path, *arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
    """`ampcheck` in a process of its own, in a folder outside of the repository."""
    return ended([sys.executable, "-m", "ampcheck", *arguments], folder, code=code)


def run_pytest(folder: Path, *arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
    """Plain pytest, as a user of the repository types it, with the suites by their place."""
    settings = (f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"))
    return ended([sys.executable, "-m", "pytest", "-q", *settings, *arguments], folder, code=code)


def pytest_here(folder: Path, *arguments: str) -> tuple[int, str]:
    """Plain pytest as `run_pytest`, in this process, which has torch. Returns its exit code and what it printed.

    What it imports of suites, which may be others than the repository's, is forgotten at the end.
    """
    before, printed = Path.cwd(), io.StringIO()
    settings = (f"--rootdir={folder}", "-c", str(ROOT / "pyproject.toml"), "--import-mode=importlib", "--capture=no")
    kept = _forget_suites()
    os.chdir(folder)
    try:
        with redirect_stdout(printed), redirect_stderr(printed), mock.patch("sys.path", [*sys.path]):
            code = pytest.main(["-q", *settings, *_PLUGINS_OFF, "-p", "ampcheck.runner.plugin", *arguments])
    finally:
        os.chdir(before)
        _forget_suites()
        sys.modules.update(kept)
    return int(code), printed.getvalue()


def _forget_suites() -> dict[str, ModuleType]:
    """Take the modules of suites out of those that are imported, and return them."""
    # Where `inspect` saw the file of one, it asks the next one of that name for its file, which a folder has not.
    vars(inspect)["_filesbymodname"].pop("suites", None)
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "suites"}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command line prints in this process; asserts its exit code."""
    assert main.main(arguments) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which the command line refuses its arguments; asserts that it is one, and exit code 2."""
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ampcheck: ")
    assert err.count("\n") == 1
    return err.removeprefix("ampcheck: ").rstrip("\n")
