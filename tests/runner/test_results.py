"""Run files that are cut, damaged or none: read as far as they are sound, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ampcheck.runner import record as results
from tests.cli_support import refused


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A small whole run file."""
    path = tmp_path / "whole.jsonl"
    writer = results.RunWriter(path, {"devices": [{"name": "cpu"}], "versions": {"torch": "2.13.0"}})
    for op in ("mm", "bmm", "addmm"):
        fields = {"suite": "eager", "rule": "downcast", "op": op, "inputs": "fp32", "amp": "bf16", "device": "cpu"}
        writer.add(results.Result(id=f"{op}-fp32-bf16-cpu", status="pass", seconds=0.1, **fields))
    writer.close({"seconds": 1.0, "stale": []})
    return path


def test_a_run_file_cut_anywhere_in_its_last_line_is_read(whole: Path, tmp_path: Path) -> None:
    text = whole.read_text()
    assert results.read(whole).note == ""
    cut = tmp_path / "cut.jsonl"
    for keep, found, note in ((3, 2, "line 4 is cut off"), (2, 2, "the run was interrupted")):
        lines = text.splitlines(keepends=True)
        cut.write_text("".join(lines[:3]) + (lines[3][:40] if keep == 3 else ""))
        run_ = results.read(cut)
        assert (len(run_.results), run_.note, run_.footer) == (found, note, None)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda lines: [*lines[:2], "{{{", *lines[3:]], "line 3: not JSON"),
        (lambda lines: [*lines[:2], "[1]", *lines[3:]], "line 3: not an object"),
        (lambda lines: [*lines[:2], '{"kind":"case"}', *lines[3:]], "line 3: not a case"),
        (lambda lines: [*lines[:2], lines[2].replace('"pass"', '"good"'), *lines[3:]], "line 3: unknown status 'good'"),
        (lambda lines: [*lines[:2], lines[2].replace("0.1", '"x"'), *lines[3:]], "line 3: not a case: seconds of the"),
        (lambda lines: [*lines[:2], '{"kind":"poem"}', *lines[3:]], "line 3: kind is 'poem'; expected case or footer"),
        (lambda lines: lines[1:], "is not a run file: its first line is not a header"),
        (lambda lines: ["hello", "world"], "line 1: not JSON"),
        (lambda lines: [], "is empty"),
        (lambda lines: [lines[0].replace('"schema":2', '"schema":9'), *lines[1:]], "has schema 9; this ampcheck reads"),
    ],
)
def test_a_damaged_run_file_is_refused(
    damage: Callable[[list[str]], list[str]], sentence: str, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = whole.with_name("damaged.jsonl")
    path.write_text("".join(f"{line}\n" for line in damage(whole.read_text().splitlines())))
    before = path.read_bytes()
    assert sentence in refused(capsys, "compare", str(whole), str(path))
    assert sentence in refused(capsys, "deviations", "suggest", str(path))
    assert sentence in refused(capsys, "report", str(path), f"--out={whole.parent / 'site'}")
    assert not (whole.parent / "site").exists()
    assert path.read_bytes() == before


def test_what_is_no_text_or_not_there(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff\xfe")
    assert "is not a run file" in refused(capsys, "compare", str(whole), str(tmp_path / "picture"))
    assert "cannot be read: No such file" in refused(capsys, "compare", str(whole), str(tmp_path / "gone"))
    assert "cannot be read: Is a directory" in refused(capsys, "deviations", "suggest", str(tmp_path))


def test_no_run_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "report", f"--reports={tmp_path}").startswith("there is no run file in ")
