"""Reproductions run where ampcheck cannot be imported, and say of each case what the case itself says."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import ForwardCheck
from ampcheck.devices.registry import known
from ampcheck.spec.case import Case
from tests.cli_support import python

CHECK = ForwardCheck()
PROGRAMS = Path(__file__).parent / "programs.py"
IN_WORDS = re.compile(r"::test_(every_transition|random|drawn|drawn_for_jit|any_form|jit_found|found_in_captures)\[")
"""Cases that draw programs, try many ops or ask ampcheck's linter: words stand for a program that shows nothing."""
FIRST = re.compile(r"eager/test_programs\.py::test_known\[")
"""Cases that end with the first difference, which their programs show first."""
NAMES = re.compile(r"::(?!test_layer\[|test_as_without_one\[SGD-fused)")
"""Cases whose programs give each difference the name the case gives it; ops and layers are looked at in other ways, and
what comes of memory that nobody filled (`fused-momentum-after-skipped-step`) differs."""


def _run(programs: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, str]]:
    """What each program prints and raises, without ampcheck."""
    given, got = folder / "programs.json", folder / "results.json"
    given.write_text(json.dumps(programs), encoding="utf-8")
    python("-I", PROGRAMS, given, got, folder=folder)
    found: dict[str, dict[str, str]] = json.loads(got.read_text(encoding="utf-8"))
    return found


def _made(path: Path) -> dict[str, dict[str, Any]]:
    """The programs of scenarios and of op cases of all suites, and what each case finds."""
    options = ("--device=cpu", "--device=virtual:cuda", "--collect-only", "-qq", "--no-run-file")
    python("-m", "pytest", "suites", *options, "-p", "tests.reproduce.programs", REPRO_PROGRAMS=str(path))
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _wrong(name: str, given: Mapping[str, Any], got: Mapping[str, str]) -> str:
    """How what a program says differs from what its case says, in words; "" where it does not."""
    said, raised = got["printed"], got["raised"]
    failed = [line.removeprefix("FAIL ").partition(" | ")[0] for line in said.splitlines() if line.startswith("FAIL ")]
    in_words = "run it with the pytest line" in given["program"]
    if in_words:
        return "" if IN_WORDS.search(name) else "it has no program"
    if re.search(r"^\s*(import|from) ampcheck", given["program"], re.MULTILINE):
        return "it imports ampcheck"
    if given["raised"] == "Unsupported" and not raised:
        return "" if said.startswith("not judged: ") else "it does not say why nothing is judged"
    expected = {"": "", "Unsupported": "SystemExit"}.get(given["raised"], given["raised"])
    if expected not in raised or (raised and not expected):
        return f"it raised {raised[-800:] or 'nothing'}; expected {expected or 'nothing'}"
    if expected:
        return ""
    if FIRST.search(name):
        failed = failed[:1]
    if not failed and not given["differences"]:
        return "" if said.startswith(("ok  ", "     raised")) else "it says nothing"
    named = [w for w in failed if any(line.startswith((f"{w}: ", f"{w} is ")) for line in given["differences"])]
    same = named == failed and len(failed) == len(given["differences"])
    alike = same if NAMES.search(name) and not IN_WORDS.search(name) else bool(failed) == bool(given["differences"])
    return "" if alike else f"it says {failed}; the case says {given['differences']}"


@pytest.mark.nightly
def test_each_says_what_its_case_says(tmp_path: Path) -> None:
    """One test for all of it, for what is made would be made again by each process that has a part of it."""
    made = _made(tmp_path / "made.json")
    ran = _run(made, tmp_path)

    wrong = {name: why for name, given in made.items() if (why := _wrong(name, given, ran[name]))}
    assert not wrong, f"{len(wrong)} of {len(made)}:\n" + "\n".join(f"{k}: {v}" for k, v in [*wrong.items()][:8])
    for suite, programs, reds in (("eager", 1350, 60), ("autograd", 570, 36), ("scaler", 450, 27), ("jit", 510, 105)):
        own = [given for name, given in made.items() if name.startswith(f"suites/{suite}/")]
        assert len(own) > programs
        assert sum(bool(given["differences"] or given["raised"]) for given in own) > reds


def _case(overload: str, inputs: str, sample: str = "") -> Case:
    every = op_cases(known()["cpu"], "downcast", only=overload)
    return next(case for case in every if (case.inputs, case.amp, case.sample) == (inputs, "bf16", sample))


@pytest.mark.parametrize(
    ("overload", "sample", "written"),
    [("matmul", "operator", "a @ b"), ("mm", "method", "a.mm(b)"), ("mm", "", "torch.ops.aten.mm.default(a, b)")],
)
def test_calls_are_written_as_people_write_them(overload: str, sample: str, written: str) -> None:
    assert f"def call(a, b):\n    return {written}\n" in CHECK.program(
        _case(overload, "fp32", sample=sample), known()["cpu"]
    )
