"""Runs of `ampcheck run` on the backends of this folder, in a process each, as their authors would start them."""

import os
import subprocess
import sys
from pathlib import Path

from ampcheck.runner.record import RED, Result, read
from tests.cli_support import ROOT, ended

FOLDER = Path(__file__).parent


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the backends on its path."""
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}", "PYTHONPYCACHEPREFIX": str(folder / "cache")}
    return ended([sys.executable, *arguments], folder, **paths, **environment)


def run(folder: Path, module: str, device: str, *selection: str, **environment: str) -> dict[str, Result]:
    """Return the results of suite eager on a backend."""
    target = folder / "run.jsonl"
    options = [f"--device={device}", f"--device-module={module}", "--suite=eager", f"--run-file={target}", *selection]
    done = start(folder, "-m", "ampcheck", "run", *options, **environment)
    assert target.exists(), done.stdout + done.stderr
    return read(target).results


def red(results: dict[str, Result]) -> list[Result]:
    return [result for result in results.values() if result.status in RED]


def passed(results: dict[str, Result]) -> list[Result]:
    return [result for result in results.values() if result.status == "pass"]
