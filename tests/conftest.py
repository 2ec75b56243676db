"""What a session of the tests needs before its first test, and the folder that tests of several rooms run in."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, the current one. What a program changes of `sys` and imports from there is taken back."""
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Enter the emulated device once where tests use it: autograd's engine knows no device that came after it began."""
    if any(item.path.stem in ("test_preflight", "test_emulated", "test_cuda") for item in session.items):
        from ampcheck.devices.registry import known  # noqa: PLC0415  # loads torch

        device = known()["emulated:cuda"]
        if device.unavailable() is None:
            with device.activate():
                pass
