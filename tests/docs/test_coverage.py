"""docs/coverage/upstream.md maps upstream tests and reports to cases; every case it names must exist."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from ampcheck.devices.registry import known
from ampcheck.spec.dtypes import FLOATING
from ampcheck.spec.executors import EXECUTORS
from ampcheck.spec.rules import RULES
from tests.cli_support import ROOT

PAGE = (ROOT / "docs" / "coverage" / "upstream.md").read_text(encoding="utf-8")
PARTS = {"Eager mode": 150, "Gradients": 55, "GradScaler": 50, "Compilers": 65}
"""The parts of the page, and how many rows each has at least."""


def rows(text: str) -> list[tuple[str, list[str], str]]:
    """(upstream, case globs, note) of each table row below a header."""
    out = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or set(cells[0]) <= {"-", " ", ":"} or cells[1] == "cases":
            continue
        out.append((cells[0], re.findall(r"`([^`]+)`", cells[1]), cells[2]))
    return out


def unknown(text: str, names: set[str]) -> list[str]:
    """A sentence for each row that names a case which does not exist, or names none and says not why."""
    out = []
    for upstream, globs, note in rows(text):
        out += [f"{upstream}: no case matches {glob}" for glob in globs if not any(fnmatch(n, glob) for n in names)]
        if not globs and not note:
            out.append(f"{upstream}: neither a case nor a reason")
    return out


@pytest.fixture(scope="session")
def case_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    manifest = tmp_path_factory.mktemp("manifest") / "cases"
    command = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-q", "--no-run-file"]
    subprocess.run([*command, f"--write-manifest={manifest}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {line.split("\t")[0].split("/", 1)[1] for line in manifest.read_text().splitlines()}


@pytest.mark.parametrize("part", PARTS)
def test_every_case_named_exists(part: str, case_names: set[str]) -> None:
    text = PAGE.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
    assert unknown(text, case_names) == []
    assert len(rows(text)) >= PARTS[part]


def test_every_row_is_in_a_part() -> None:
    assert PAGE.count("\n## ") == len(PARTS)
    assert rows(PAGE.partition("\n## ")[0]) == []


def test_a_row_that_names_nothing_is_reported() -> None:
    head = "| upstream | cases | note |\n|---|---|---|\n"
    text = f"{head}| test_a | `promote/gone-*` | |\n| test_b | | |\n| test_c | | CUDA |\n"
    assert unknown(text, {"promote/cat-fp32-bf16-cpu"}) == [
        "test_a: no case matches promote/gone-*",
        "test_b: neither a case nor a reason",
    ]


def test_no_word_of_one_rule_or_device_stands_in_a_case_of_another(case_names: set[str]) -> None:
    """So that `pytest suites -k WORD` selects that rule, dtype or device and nothing else."""
    tokens = [*(device.token for device in known().values()), *EXECUTORS]
    found = []
    for name in case_names:
        rule, id_ = name.split("/")
        found += [f"{name} holds {other}" for other in RULES if other != rule and other in id_.lower()]
        own = id_.split("-")[0].lower()
        found += [f"{name} holds {token}" for token in (*FLOATING, *tokens) if token in own]
    assert found == []
