"""docs/coverage/upstream.md maps upstream tests and reports to cases; every case it names must exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ampcheck.devices.registry import known
from ampcheck.spec.compilers import COMPILERS
from ampcheck.spec.dtypes import FLOATING
from ampcheck.spec.rules import RULES
from tests.cli_support import ROOT, python

PAGE = (ROOT / "docs" / "coverage" / "upstream.md").read_text(encoding="utf-8")


def unknown(text: str, names: set[str]) -> list[str]:
    """A sentence for each row of a table that names a case which does not exist, or names none and says not why."""
    out = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or set(cells[0]) <= {"-", " ", ":"} or cells[1] == "cases":
            continue
        globs = re.findall(r"`([^`]+)`", cells[1])
        out += [f"{cells[0]}: no case matches {glob}" for glob in globs if not any(fnmatch(n, glob) for n in names)]
        if not globs and not cells[2]:
            out.append(f"{cells[0]}: neither a case nor a reason")
    return out


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every case that a run of all devices collects, as `rule/id`."""
    manifest: Path = tmp_path_factory.mktemp("manifest") / "cases"
    python("-m", "pytest", "suites", "--collect-only", "-q", "--no-run-file", f"--write-manifest={manifest}")
    keys = [line.partition("\t")[0] for line in manifest.read_text().splitlines()]
    return {key.partition("/")[2] for key in keys}


def test_every_case_named_exists(names: set[str]) -> None:
    assert unknown(PAGE, names) == []


def test_a_row_that_names_nothing_is_reported() -> None:
    head = "| upstream | cases | note | mutant |\n|---|---|---|---|\n"
    text = f"{head}| test_a | `promote/gone-*` | | |\n| test_b | | | |\n| test_c | | CUDA | |\n"
    assert unknown(text, {"promote/cat-fp32-bf16-cpu"}) == [
        "test_a: no case matches promote/gone-*",
        "test_b: neither a case nor a reason",
    ]


def test_no_word_of_one_rule_or_device_is_in_a_case_of_another(names: set[str]) -> None:
    """So that `pytest suites -k WORD` selects that rule, dtype or device and nothing else."""
    tokens = [*(device.token for device in known().values()), *COMPILERS]
    found = []
    for name in names:
        rule, id_ = name.split("/")
        found += [f"{name} holds {other}" for other in RULES if other != rule and other in id_.lower()]
        own = id_.split("-")[0].lower()
        found += [f"{name} holds {token}" for token in (*FLOATING, *tokens) if token in own]
    assert found == []
