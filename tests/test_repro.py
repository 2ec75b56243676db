"""Reproductions run where ampcheck cannot be imported, and say of each case what the case itself says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.cases import Case, op_cases
from ampcheck.devices.registry import known
from ampcheck.repro import of_op
from ampcheck.torch_dtypes import DTYPES
from ampcheck.verdict import check_op

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "repro_programs.py"


def _run(programs: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, str]]:
    """What each program prints and raises, without ampcheck."""
    given, got = folder / "programs.json", folder / "results.json"
    given.write_text(json.dumps(programs), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(PROGRAMS), str(given), str(got)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, str]] = json.loads(got.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The program of every scenario and of many op cases, and whether the case finds something."""
    path = tmp_path_factory.mktemp("made") / "made.json"
    line = ["suites", "--device=cpu", "--device=virtual:cuda", "--collect-only", "-qq", "--no-run-file"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *line, "-p", "tests.repro_programs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "REPRO_PROGRAMS": str(path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


HELD = "suites/eager/"
"""The suite whose programs say what their cases say. Of the others', about a tenth does not yet."""


def test_each_says_what_its_case_says(made: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    own = {name: given for name, given in made.items() if name.startswith(HELD) and "test_programs" not in name}
    assert len(own) > 1000
    assert sum(given["differs"] for given in own.values()) > 30
    ours = re.compile(r"ampcheck(?!_|\.jax_device)")  # the device is what a case on it needs
    assert not [name for name, given in own.items() if ours.search(given["program"])]
    wrong = []
    for name, got in _run(own, tmp_path).items():
        red = "FAIL" in got["printed"] or bool(got["raised"])
        if red != own[name]["differs"] or not (red or got["printed"].startswith(("ok  ", "     raised"))):
            wrong.append(
                f"{name}: the case differs: {own[name]['differs']}\n{got['printed'][-500:]}{got['raised'][-800:]}"
            )
    assert not wrong, f"{len(wrong)} of {len(own)}:\n" + "\n".join(wrong[:8])


def test_programs_that_are_written_down_run_and_drawn_ones_say_why_not(
    made: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    own = {name: given for name, given in made.items() if "eager/test_programs" in name}
    for name, got in _run(own, tmp_path).items():
        assert not got["raised"], f"{name}: {got['raised']}"
        drawn = "run it with the pytest line" in own[name]["program"]
        assert drawn == ("test_random" in name), own[name]["program"]
        assert drawn or "at the end" in got["printed"]


_EXIT = """\
import torch
before = torch.autocast.__exit__
torch.autocast.__exit__ = lambda self, *given: torch.autocast_decrement_nesting() and None
def undo():
    torch.autocast.__exit__ = before
"""
_MM = """\
import torch
library = torch.library.Library("aten", "IMPL")
def kernel(a, b):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return torch.mm(BODY)
library.impl("mm", kernel, "AutocastCPU", allow_override=True)
undo = library._destroy
"""
_QUIET = """\
import warnings
before, warnings.warn = warnings.warn, lambda *given, **more: None
def undo():
    warnings.warn = before
"""
_SET = """\
import torch
before = torch.set_autocast_enabled
torch.set_autocast_enabled = lambda *given: before(*given) if len(given) == 2 and type(given[1]) is bool else None
def undo():
    torch.set_autocast_enabled = before
"""
_SHARED = """\
import torch
before = torch.is_autocast_enabled, torch.autocast.__enter__
state = []
torch.is_autocast_enabled = lambda *given: bool(state) or before[0](*given)
def enter(self):
    state.append(1)
    return before[1](self)
torch.autocast.__enter__ = enter
def undo():
    torch.is_autocast_enabled, torch.autocast.__enter__ = before
"""
_LOSS = """\
import torch
before, enabled = torch.nn.functional.linear, torch.is_autocast_enabled
torch.nn.functional.linear = lambda *given: before(*given) * (2 if enabled("cpu") else 1)
def undo():
    torch.nn.functional.linear = before
"""
PLANTED = {
    "a region that does not restore": (
        "context.py::test_restores_on_exit[bf16-cpu]",
        _EXIT,
        "FAIL state after the region",
    ),
    "the same on a virtual device": (
        "context.py::test_restores_on_exit[fp16-vcu]",
        _EXIT,
        "FAIL state after the region",
    ),
    "a product that is not cast": (
        "eligibility.py::test_requires_grad_is_no_matter[bf16-cpu]",
        _MM.replace("BODY", "a, b"),
        "FAIL dtypes mm receives, requires_grad=False | got ('fp32', 'fp32') | expected ('bf16', 'bf16')",
    ),
    "a cast that is made twice": (
        "cache.py::test_one_cast_for_many_uses[bf16-cpu]",
        _MM.replace("BODY", "a.bfloat16(), b.bfloat16()"),
        "FAIL casts of a parameter used by five products | got 5 | expected 1",
    ),
    "copies": ("cache.py::test_not_for_views[bf16-cpu]", _MM.replace("BODY", "a, b"), "FAIL casts of a view of a leaf"),
    "a warning that is not given": (
        "errors.py::test_unsupported_dtype[single-bf16-cpu]",
        _QUIET,
        "FAIL a region of torch.float32 | warned [] | expected UserWarning In CPU autocast",
    ),
    "a wrong argument that is taken": (
        "state.py::test_wrong_argument[set_number-bf16-cpu]",
        _SET,
        "FAIL the wrong call set_number | raised None | expected TypeError",
    ),
    "a state that threads share": (
        "threads.py::test_starts_outside[bf16-cpu]",
        _SHARED,
        "FAIL the same, started in a region | got ((True",
    ),
    "a module whose values are wrong": (
        "modules.py::test_layer[Linear-wide-bf16-cpu]",
        _LOSS,
        "FAIL whether outputs of Linear have the bits",
    ),
    "a module whose op is not cast": (
        "modules.py::test_layer[Linear-low-bf16-cpu]",
        _MM.replace('"mm"', '"linear"')
        .replace("a, b)", "a, b, c)")
        .replace("torch.mm(BODY)", "a.float() @ b.float().T"),
        "FAIL listed ops that ran in Linear | got",
    ),
}


def test_wrong_behaviour_is_seen(made: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    programs = {}
    for what, (end, plant, _) in PLANTED.items():
        name = f"suites/eager/test_{end}"
        assert not made[name]["differs"], f"{name} differs without the plant"
        programs[what] = {"program": made[name]["program"], "plant": plant}
    found = _run({**programs, "nothing planted any more": {"program": programs["copies"]["program"]}}, tmp_path)
    for what, (_, _, line) in PLANTED.items():
        assert line in found[what]["printed"], f"{what}: {found[what]}"
    assert "FAIL" not in found["nothing planted any more"]["printed"]


def _case(overload: str, inputs: str, device: str = "cpu", amp: str = "bf16", sample: str = "", rule: str = "") -> Case:
    own = known()[device]
    rule = rule or own.policies().get(overload, "fallthrough")
    every = (case for case in op_cases(own, rule, only=overload))
    return next(c for c in every if (c.inputs, c.amp, c.sample) == (inputs, amp, sample))


_KERNEL = "argument 0 of aten::mm was given as fp32 and reached the kernel as fp32; expected bf16 (rule downcast)"
_DTYPE = "output 0 of aten::mm is fp32; expected bf16"
_FAR = "output 0 of aten::mm is 1 away from the float64 result; expected at most 0.1"


@pytest.mark.parametrize(
    ("message", "body", "line"),
    [
        (_KERNEL, "a, b", "FAIL dtypes it received | got ['fp32', 'fp32'] | expected ['bf16', 'bf16']"),
        (
            _DTYPE,
            "a, b",
            "FAIL dtypes of the outputs, or what was raised | got [torch.float32] | expected [torch.bfloat16]",
        ),
        ("differs from the same op", "a.bfloat16() * 2, b.bfloat16()", "FAIL whether they have the bits"),
        (_FAR, "a.bfloat16() * 2, b.bfloat16()", "FAIL distance to the float64 result, at most"),
    ],
    ids=["kernel", "dtype", "bits", "accuracy"],
)
def test_an_op_shows_the_difference_that_was_found(message: str, body: str, line: str, tmp_path: Path) -> None:
    program = of_op(_case("mm", "fp32"), known()["cpu"], message)
    assert ("Recorder" in program) == (message == _KERNEL)
    assert len(program.splitlines()) < (90 if message == _KERNEL else 55)
    broken = {"program": program, "plant": _MM.replace("BODY", body)}
    found = _run({"broken": broken, "right": {"program": program}}, tmp_path)
    assert line in found["broken"]["printed"], found["broken"]
    assert "ok  " in found["right"]["printed"]
    assert "FAIL" not in found["right"]["printed"]


def test_a_refused_op_that_runs_is_seen(tmp_path: Path) -> None:
    program = of_op(_case("binary_cross_entropy", "fp32", "virtual:cuda", "fp16"), known()["virtual:cuda"], "ran")
    lacking = program.replace("with torch.autocast('cuda', dtype=torch.float16):", "with torch.no_grad():")
    found = _run({"right": {"program": program}, "wrong": {"program": lacking}}, tmp_path)
    assert found["right"]["printed"].startswith("ok  ")
    assert found["wrong"]["printed"].startswith("FAIL whether it raises an error that names binary_cross_entropy_with")


@pytest.mark.parametrize(
    ("overload", "sample", "written"),
    [("matmul", "operator", "a @ b"), ("mm", "method", "a.mm(b)"), ("mm", "", "torch.ops.aten.mm.default(a, b)")],
)
def test_calls_are_written_as_people_write_them(overload: str, sample: str, written: str) -> None:
    assert f"def call(a, b):\n    return {written}\n" in of_op(_case(overload, "fp32", sample=sample), known()["cpu"])


def test_a_case_that_ended_its_process_is_not_run_to_reproduce_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*given: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr("ampcheck.repro.expected.replay", crash)
    program = of_op(_case("matmul", "fp32"), known()["cpu"], ran=False)
    assert program.endswith("with torch.autocast('cpu', dtype=torch.bfloat16):\n    print(call(*inputs()))")


def test_a_failing_case_shows_its_difference(tmp_path: Path) -> None:
    """A known deviation, as a run tells it."""
    device = known()["virtual:cuda"]
    case = _case("dot", "bf16", "virtual:cuda", "fp16")
    differences = check_op(case, device)
    assert differences
    found = _run({"it": {"program": of_op(case, device, "\n".join(differences))}}, tmp_path)
    assert "FAIL whether the kernel of aten::dot ran" in found["it"]["printed"]
    assert DTYPES[case.amp] is torch.float16
