"""docs/coverage/upstream.md maps upstream tests and reports to cases; every case it names must exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from ampcheck.devices.registry import known
from ampcheck.spec.case import Case
from ampcheck.spec.compilers import COMPILERS
from ampcheck.spec.dtypes import FLOATING
from ampcheck.spec.rules import RULES
from tests.cli_support import ROOT
from tests.faults import FAULTS, Fault
from tests.faults.reported import REPORTS, Report

PAGE = (ROOT / "docs" / "coverage" / "upstream.md").read_text(encoding="utf-8")
PARTS = {"Eager mode": 150, "Gradients": 55, "GradScaler": 50, "Compilers": 65}
"""The parts of the page, and how many rows each has at least."""
BROUGHT_BACK = 60
"""For how many rows at least a fault brings back what they are about."""
BROUGHT_BACK_IN = {"Eager mode": 25, "Gradients": 12, "GradScaler": 12, "Compilers": 11}
"""The same by part."""


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


def row_of(report: Report, text: str) -> str | None:
    """Return the first column of the row that names a report and its cases."""
    for upstream, globs, _ in rows(text):
        if report.upstream in (upstream, *upstream.split(", ")) and report.cases in globs:
            return upstream
    return None


def untrue(reports: Sequence[Report], text: str, faults: Mapping[str, Fault], cases: Sequence[Case]) -> list[str]:
    """A sentence for each report that no row names as it does, and each fault that runs other cases or none."""
    out = []
    for report in reports:
        fault = report.fault if isinstance(report.fault, Fault) else faults.get(report.fault)
        name = f"{report.upstream}, {report.cases}"
        if row_of(report, text) is None:
            out.append(f"{name}: no row has both")
        if fault is None or fault.id not in faults:
            out.append(f"{name}: {report.fault} is not a fault")
            continue
        picked = [f"{case.rule}/{case.id}" for case in cases if fault.picks(case)]
        if not picked:
            out.append(f"{name}: {fault.id} runs no case")
        out += [f"{name}: {fault.id} runs {case}" for case in picked if not fnmatch(case, report.cases)][:1]
        if fault.statuses != ("fail",):
            out.append(f"{name}: {fault.id} need not turn a case red")
    return out


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    manifest = tmp_path_factory.mktemp("manifest") / "cases"
    command = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-q", "--no-run-file"]
    subprocess.run([*command, f"--write-manifest={manifest}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return [_case(line) for line in manifest.read_text().splitlines()]


def _case(line: str) -> Case:
    """Return the case that a line of a manifest is about."""
    key, _, known_before = line.partition("\t")
    suite, rule, _ = key.split("/")
    empty = dict.fromkeys(("op", "sample", "inputs", "amp", "device", "compiler"), "")
    case = Case(suite, rule, token=key.rpartition("-")[2], **{**empty, **json.loads(known_before)})
    assert case.key == key
    return case


@pytest.fixture(scope="session")
def case_names(cases: list[Case]) -> set[str]:
    return {f"{case.rule}/{case.id}" for case in cases}


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


def test_what_is_brought_back_turns_named_cases_red(cases: list[Case]) -> None:
    """`tests/faults/test_faults.py` runs these faults."""
    assert untrue(REPORTS, PAGE, {fault.id: fault for fault in FAULTS}, cases) == []
    count = len({row_of(report, PAGE) for report in REPORTS})
    assert count >= BROUGHT_BACK
    for part, least in BROUGHT_BACK_IN.items():
        text = PAGE.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
        assert len({row_of(report, text) for report in REPORTS} - {None}) >= least, part
    assert f"For {count} rows a test brings the behaviour back" in PAGE.replace("\n", " ")


def test_a_report_that_is_not_in_the_page_or_runs_other_cases_is_named() -> None:
    head = "| upstream | cases | note |\n|---|---|---|\n"
    text = f"{head}| test_a, test_b | `cache/off-*` | |\n"
    off, on = (Case("eager", "cache", op, "", "", "bf16", "cpu", "cpu") for op in ("off", "on"))
    right = Fault("right", "cache", nullcontext, (), op="off")
    wide, silent = replace(right, name="wide", op=""), replace(right, name="silent", statuses=("pass",))
    faults = {fault.id: fault for fault in (right, wide, silent)}

    def found(upstream: str, glob: str, fault: Fault | str, *cases: Case) -> list[str]:
        return untrue([Report(upstream, glob, fault)], text, faults, cases or (off, on))

    assert found("test_b", "cache/off-*", right) == []
    assert found("test_b", "cache/off-*", "cpu-right") == []
    assert found("test_c", "cache/off-*", right) == ["test_c, cache/off-*: no row has both"]
    assert found("test_a", "cache/o*", right) == ["test_a, cache/o*: no row has both"]
    assert found("test_a", "cache/off-*", wide) == ["test_a, cache/off-*: cpu-wide runs cache/on-bf16-cpu"]
    assert found("test_a", "cache/off-*", right, on) == ["test_a, cache/off-*: cpu-right runs no case"]
    assert found("test_a", "cache/off-*", silent) == ["test_a, cache/off-*: cpu-silent need not turn a case red"]
    assert found("test_a", "cache/off-*", "cpu-gone") == ["test_a, cache/off-*: cpu-gone is not a fault"]


def test_no_word_of_one_rule_or_device_stands_in_a_case_of_another(case_names: set[str]) -> None:
    """So that `pytest suites -k WORD` selects that rule, dtype or device and nothing else."""
    tokens = [*(device.token for device in known().values()), *COMPILERS]
    found = []
    for name in case_names:
        rule, id_ = name.split("/")
        found += [f"{name} holds {other}" for other in RULES if other != rule and other in id_.lower()]
        own = id_.split("-")[0].lower()
        found += [f"{name} holds {token}" for token in (*FLOATING, *tokens) if token in own]
    assert found == []
