"""One thread everywhere, before any library has made its pool, and what pytest-benchmark says of the machine."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.bench.core import machine
from ampcheck.bench.run.measure import environment

PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))
"""What benchmarks start, by the file and a name."""
ROOT = Path(__file__).parent.parent
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.update(environment(THREADS))
torch.set_num_threads(THREADS)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add what decides a figure: processor, instruction sets, threads, precision settings, load."""
    machine_info["ampcheck"] = machine.describe()


def measured(source: str, **more: str) -> Any:
    """Return what a fresh process with one thread prints last, as JSON. `more`: of its environment."""
    env = {**environment(1), "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Return a function that writes a line of figures, also where pytest keeps what is printed."""

    def write(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="")

    return write
