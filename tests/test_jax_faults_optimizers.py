"""The scaler suite catches planted faults on jax too, in a process of its own, since making the device changes one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

import pytest

from tests import test_planted_faults as here
from tests.faults.optimizers import JAX_FAULTS

ROOT = Path(__file__).parents[1]


@cache
def outcomes() -> tuple[dict[str, str], str]:
    """Per fault that was looked for, why it was not caught or ""; and how the process ended."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "faulthandler", str(Path(__file__))]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fault"')]
    ended = f"the process ended with {done.returncode}\n{done.stderr[-2000:]}"
    return {line["fault"]: line["error"] for line in lines}, ended


@pytest.mark.parametrize("name", [fault.name for fault in JAX_FAULTS])
def test_is_caught_on_jax(name: str) -> None:
    found, ended = outcomes()
    assert name in found, f"{name} was not come to: {ended}"
    assert not found[name], found[name]


def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        suite = here.Suite(Path(folder))
        for fault in JAX_FAULTS:
            try:
                here.test_is_caught(fault, suite)
                error = ""
            except BaseException:  # one that is not caught may end in any way, and the next is to be looked for
                error = traceback.format_exc()
            print("\n" + json.dumps({"fault": fault.name, "error": error}), flush=True)


if __name__ == "__main__":
    _main()
