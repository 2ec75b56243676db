"""Runs the checks of one file of tests/jax_checks in a process of its own, which makes the device.

PrivateUse1 gets its name once in a process, so no test makes the device in pytest's. The checks of a file share one
process; each is one test, and a process that ends early fails every check it has not come to.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import traceback
import warnings
from functools import cache
from pathlib import Path

from tests.cli_support import LIMIT

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "jax_checks"


def names(module: str) -> list[str]:
    """The checks of a file, read from its source, because importing it would make the device."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@cache
def outcomes(module: str) -> tuple[dict[str, str], str]:
    """Per check that ended, its traceback or ""; and how the process ended."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-X", "faulthandler", str(Path(__file__)), module]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    ended = f"the process ended with {done.returncode}\n{done.stderr[-2000:]}"
    return {line["check"]: line["error"] for line in lines}, ended


def verify(module: str, name: str) -> None:
    """Raises AssertionError with the traceback of a check that failed, or how the process ended before it."""
    ended, how = outcomes(module)
    assert name in ended, f"{name} did not end: {how}"
    assert not ended[name], ended[name]


def _main(module: str) -> None:
    warnings.simplefilter("error")
    checks = importlib.import_module(f"tests.jax_checks.{module}")
    for name in names(module):
        try:
            getattr(checks, name)()
            error = ""
        except BaseException:  # a check may raise anything, and the next one is to run
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
