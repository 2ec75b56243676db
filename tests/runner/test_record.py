"""Run files that are cut, damaged or none, and causes: what their texts leave out, and the groups of red cases."""

import re
import resource
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.errors import UsageError
from ampcheck.observe import recorder as observe
from ampcheck.runner.record import MISSING, Result, RunWriter, cause_of, cause_text, grouped, normalised, read
from tests.cli_support import refused
from tests.observe.test_recorder import kernel, raised_from
from tests.report import made_runs

TABLE = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))

# ---- run files


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A small whole run file."""
    return made_runs.write(tmp_path / "whole.jsonl", list(map(made_runs.make, ("mm", "bmm", "addmm"))))


def test_a_run_file_cut_anywhere_in_its_last_line_is_read(whole: Path, tmp_path: Path) -> None:
    text = whole.read_text()
    assert read(whole).note == ""
    cut = tmp_path / "cut.jsonl"
    for keep, found, note in ((3, 2, "line 4 is cut off"), (2, 2, "the run was interrupted")):
        lines = text.splitlines(keepends=True)
        cut.write_text("".join(lines[:3]) + (lines[3][:40] if keep == 3 else ""))
        run_ = read(cut)
        assert (len(run_.results), run_.note, run_.footer) == (found, note, None)


@pytest.mark.parametrize(("old", "new", "sentence"), TABLE["damage"])
def test_a_damaged_run_file_is_refused(
    old: str, new: str, sentence: str, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = whole.with_name("damaged.jsonl")
    path.write_text(re.sub(old, lambda _: new, whole.read_text(), count=1))
    before = path.read_bytes()
    assert sentence in refused(capsys, "compare", str(whole), str(path))
    assert sentence in refused(capsys, "deviations", "suggest", str(path))
    assert sentence in refused(capsys, "report", str(path), f"--out={whole.parent / 'site'}")
    assert not (whole.parent / "site").exists()
    assert path.read_bytes() == before


# ---- normalised texts


@pytest.mark.parametrize(("one", "other"), TABLE["alike"])
def test_what_varies_between_cases_is_left_out(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), TABLE["apart"])
def test_what_tells_reasons_apart_is_kept(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


# ---- causes of a case


def test_the_cause_of_an_exception_names_the_backends_innermost_frame() -> None:
    error = raised_from(lambda: observe.map_tensors(torch.ones(2), lambda _: kernel("mm")))
    assert cause_text("fail", "aten::mm raised", "downcast", "mm", error) == (
        "fail: RuntimeError: … is wrong (test_recorder.py in kernel)"
    )
    assert cause_text("broken", "aten::mm raised", "downcast", "mm", error).startswith("broken: RuntimeError: …")


def test_what_raised_inside_of_a_compiled_program_is_on_the_last_line() -> None:
    error = RuntimeError("The following operation failed:\n  File x, line 3\nRuntimeError: no kernel for mm")
    assert cause_text("fail", "x", "downcast", "mm", error) == "fail: RuntimeError: RuntimeError: no kernel for …"


# ---- groups


def result(name: str, status: str = "fail", **fields: Any) -> Result:
    return made_runs.make(name, status, device="mine", rule="downcast", **fields)


def test_groups_come_in_order_of_size_with_the_shortest_program_as_example() -> None:
    small = [result("a", cause="fail: small", torch="one")]
    large = [result("b", cause="fail: large", torch="three"), result("c", cause="fail: large", torch="two")]
    green = [result("d", "pass"), result("e", "deviation", cause="fail: large")]
    found = grouped([*small, *large, *green])
    assert [(cause.text, len(cause.results), cause.example.op) for cause in found] == [
        ("fail: large", 2, "c"),
        ("fail: small", 1, "a"),
    ]


def test_a_run_file_without_causes_has_them_from_its_messages() -> None:
    old = [result(op, message=f"argument {n} of aten::{op} was given as fp32") for n, op in enumerate(("mm", "bmm"))]
    (cause,) = grouped([*old, result("x", "pass")])
    assert cause.text == "fail: argument … of … was given as … (rule downcast)"
    assert cause_of(result("gone", "missing")) == MISSING


def test_after_a_full_disk_nothing_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    writer = RunWriter(path, {"devices": [{"name": "cpu"}], "versions": {"torch": "2.13.0"}})
    case = made_runs.make("mm", message="m" * 1000)
    writer.add(case)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(UsageError, match=r"the run file \S+ cannot be written: File too large"):
            writer.add(replace(case, id="bmm-fp32-bf16-cpu"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.add(replace(case, id="dot-fp32-bf16-cpu"))  # there is room again, and half a line before it
    writer.close({"seconds": 1.0})
    assert list(read(path).results) == [case.key]
