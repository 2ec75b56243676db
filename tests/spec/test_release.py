"""The table of a new torch: what is taken over, what the header decides, what a person is asked."""

from pathlib import Path

import pytest
import torch

from ampcheck.spec import policies
from ampcheck.spec.policies import KEYS, covered, minor, rows, versions
from ampcheck.spec.torch_private import registered
from scripts.release import HEADER, Release, listed, release, write
from tests.cli_support import PROGRAMS

VERSION = "2.99.1+cpu"
MACROS = Path(__file__).with_name("autocast_mode.h").read_text(encoding="utf-8")
ROWS = PROGRAMS["release-rows"]
LIVE = {"AutocastCPU": {"exp", "sqrth"}, "AutocastCUDA": {"exp", "mm", "pow.Tensor_Scalar"}}


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of a version before."""
    (tmp_path / "policies.csv").write_text(ROWS)
    (tmp_path / "releases.csv").write_text("torch,read\n2.98,sources\n")
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    return tmp_path


def made(**changed: object) -> Release:
    arguments: dict[str, object] = {"live": LIVE, "header": listed(MACROS), "given": {}, "passed": ()}
    return release(VERSION, **{**arguments, **changed})  # type: ignore[arg-type]


def test_a_version_is_added_to_the_table(tables: Path) -> None:
    write(made(given={"sqrth": "upcast"}, passed={("AutocastCUDA", "exp")}), tables)
    assert (tables / "policies.csv").read_text() == PROGRAMS["release-added"]
    assert "2.99,2.99.1+cpu: dispatcher and include/ATen/autocast_mode.h\n" in (tables / "releases.csv").read_text()
    assert versions() == ("2.98", "2.99")


def test_the_installed_torch_is_as_the_table_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table that is shipped, made once more: nothing is asked and no line changes."""
    monkeypatch.undo()
    assert covered(torch.__version__), f"torch {torch.__version__} has no table: python -m scripts.release"
    live = {key: registered(key) for key in KEYS}
    found = release(torch.__version__, live, listed(HEADER.read_text(encoding="utf-8")), {})
    assert (found.questions, found.rows) == ((), rows(minor(torch.__version__)))
    (tmp_path / "again").mkdir()
    again = write(found, tmp_path / "again")
    assert again.read_text() == (policies.TABLES / "policies.csv").read_text()
