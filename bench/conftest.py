"""One thread everywhere, before any library has made its pool, and what pytest-benchmark says of the machine."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ampcheck.bench.core import machine
from ampcheck.bench.run.group import environment

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.update(environment(THREADS))
torch.set_num_threads(THREADS)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add what decides a figure: processor, instruction sets, threads, precision settings, load."""
    machine_info["ampcheck"] = machine.describe()
