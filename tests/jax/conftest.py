"""Makes the jax device in pytest's process: `pytest tests/jax` is a session by itself.

PrivateUse1 gets its name once in a process, and a process that has named it is another one for PyTorch: fake CUDA
tensors, fast paths and forks change. So the other tests run without the device, and under xdist each worker makes it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}  # read when JAX and torch start

import jax
import torch

import ampcheck.jax_device  # noqa: F401  # makes the device
from tests.cli_support import LIMIT, ROOT

_ALONE = "AMPCHECK_TESTS_ALONE"


def pytest_configure(config: pytest.Config) -> None:
    # Tests try an op on as many shapes as they can; the session's own filters come after this one, and win.
    config.addinivalue_line("filterwarnings", "ignore:this line compiled:UserWarning")
    # Dynamo's own slips, which say nothing of the device.
    for words in ("The .grad attribute of a Tensor that is not a leaf", ".*Function'> should not be instantiated"):
        config.addinivalue_line("filterwarnings", f"ignore:{words}")
    config.addinivalue_line(
        "markers", "alone(**environment): these tests of a file run in one process that has begun with nothing else"
    )


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file() -> Iterator[None]:
    """Drop what a file compiled: JAX's programs take gigabytes, and Dynamo leaves alone what it compiled too often."""
    yield
    torch.compiler.reset()
    jax.clear_caches()


@pytest.fixture
def value_checks() -> Iterator[None]:
    """Have ops raise what the CPU raises by values, as `torch.jax.set_checks` does."""
    torch.jax.set_checks(True)
    yield
    torch.jax.set_checks(False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Report how a test marked `alone` ended in the process of its file."""
    mark = pyfuncitem.get_closest_marker("alone")
    if mark is None or os.environ.get(_ALONE):
        return None
    nightly = ("--nightly",) if pyfuncitem.config.option.nightly else ()
    ended = _alone(pyfuncitem.path, tuple(mark.kwargs.items()), nightly)
    assert f"::{pyfuncitem.name} PASSED" in ended, ended[-8000:]
    return True


@cache
def _alone(file: Path, settings: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> str:
    """Run the marked tests of a file in a new process; return what pytest says of each, and how the process ended."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:xdist", "-m", "alone", *options, str(file)]
    env = {**os.environ, **dict(settings), _ALONE: "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    return f"{done.stdout}{done.stderr[-2000:]}\nthe process ended with {done.returncode}"
