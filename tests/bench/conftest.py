"""Files that make steps of a user's own, for the tests of advice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STEPS = """
import ampcheck, torch
from torch import nn
answer = 42
@ampcheck.step
def marked():
    return nn.Linear(2, 2), (torch.ones(1, 2),), None
def raises():
    raise LookupError("no such data\\nat all")
def needs(path):
    return None
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts, the current one; what is imported from it is forgotten afterwards."""
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "two.py").write_text(STEPS + "@ampcheck.step\ndef other(): pass\nalias = other\n")
    (tmp_path / "unmarked.py").write_text("answer = 42\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
