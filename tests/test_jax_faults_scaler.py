"""The scaler suite catches faults planted in GradScaler on the jax device too.

Making the device changes a process for good, so all faults share one of their own, which this file is the program of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.fault import Fault
from tests.faults.scaler import JAX_FAULTS

ROOT = Path(__file__).parent.parent


@cache
def outcomes() -> tuple[dict[str, str], str]:
    """Per fault that was tried, what is wrong with how it was caught, or ""; and how the process ended."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__))]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fault"')]
    return {line["fault"]: line["error"] for line in lines}, f"it ended with {done.returncode}\n{done.stderr[-2000:]}"


@pytest.mark.skipif(find_spec("torchax") is None, reason="the jax device needs torchax")
@pytest.mark.parametrize("fault", JAX_FAULTS, ids=lambda fault: fault.name)
def test_is_caught(fault: Fault) -> None:
    tried, how = outcomes()
    assert fault.name in tried, f"{fault.name} was not tried: {how}"
    assert not tried[fault.name], tried[fault.name]


def _main() -> None:
    from tests.test_planted_faults import Suite
    from tests.test_planted_faults import test_is_caught as caught

    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder))
        for fault in JAX_FAULTS:
            try:
                caught(fault, suite)
                error = ""
            except BaseException:  # a fault may end pytest in any way, and the next one is to be tried
                error = traceback.format_exc()
            print(json.dumps({"fault": fault.name, "error": error}), flush=True)


if __name__ == "__main__":
    _main()
