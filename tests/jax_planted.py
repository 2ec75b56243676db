"""Runs the planted faults of the jax device in a process of its own, which makes the device.

A module of tests/faults has them in its `JAX`: PrivateUse1 gets its name once in a process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

from tests.cli_support import LIMIT

ROOT = Path(__file__).parent.parent


@cache
def outcomes(module: str) -> tuple[dict[str, str], str]:
    """Per fault of a module of tests/faults that was tried, why it was not caught or ""; and how the process ended."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.jax_planted", module]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fault"')]
    ended = f"the process ended with {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return {line["fault"]: line["error"] for line in lines}, ended


def verify(module: str, name: str) -> None:
    """Raises AssertionError where a fault was not caught in the right words, or was not tried."""
    tried, how = outcomes(module)
    assert name in tried, f"{name} was not tried: {how}"
    assert not tried[name], tried[name]


def _main(module: str) -> None:
    import ampcheck.jax_device  # noqa: F401  # makes the device
    from tests.test_planted_faults import Suite, test_is_caught

    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder))
        for fault in importlib.import_module(f"tests.faults.{module}").JAX:
            try:
                test_is_caught(fault, suite)
                error = ""
            except BaseException:  # a fault may end in anything, and the next one is to be tried
                error = traceback.format_exc()
            print("\n" + json.dumps({"fault": fault.name, "error": error}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
