"""Reproductions run where ampcheck cannot be imported, and say of each case what the case itself says."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck import samples
from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import ForwardCheck
from ampcheck.checks.program import expression, preamble, pytest_line, written
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import Virtual
from ampcheck.samples.describe import TensorArg, leaves
from ampcheck.samples.tensors import FILLS, host_tensor
from ampcheck.spec.case import Case
from tests.cli_support import ROOT, pytest_here, python

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


@pytest.mark.parametrize("fill", [*FILLS, "integers", "arange", "pivots", "complex"])
def test_values_are_those_of_the_case(fill: str) -> None:
    own = {"integers": "int64", "arange": "int64", "pivots": "int32", "complex": "complex64"}.get(fill)
    for dtype in (own,) if own else ("fp32", "bf16", "fp64", "int64", "bool"):
        for place, shape in enumerate(((3, 3), (2, 4, 4))):
            arg = TensorArg(shape, own, "normal" if fill == "complex" else fill, high=5, seed=3)
            space: dict[str, Any] = {"torch": torch}
            text, needed = expression(arg, dtype, place, known()["cpu"])
            exec(written(known()["cpu"], (), needed, [f"made = {text}"]), space)
            wanted = host_tensor(arg, dtype, place)
            assert space["made"].dtype == wanted.dtype
            assert torch.equal(space["made"], wanted), f"{fill} as {dtype}"


def test_every_fill_of_the_catalogue_has_an_expression() -> None:
    every = (leaf for op in samples.catalogue().values() for sample in op.samples for leaf in leaves(sample))
    for leaf in {(leaf.fill, leaf.dtype, len(leaf.shape)): leaf for leaf in every}.values():
        compile(expression(leaf, leaf.dtype or "fp32", 0, known()["cpu"])[0], leaf.fill, "eval")


def test_a_third_party_is_imported() -> None:
    class Theirs(Device):
        name = token = type = "theirs"
        key = "AutocastPrivateUse1"

        def unavailable(self) -> str | None:
            return None

        def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
            raise NotImplementedError

    device = Theirs()
    lines = preamble(device)
    assert lines[:2] == ["import torch", f"import {__name__}"]
    assert "x.to('theirs') must work" in lines[2]
    module = type(sys)("their_backend")
    module.DEVICES = (device,)  # type: ignore[attr-defined]  # a module takes any attribute
    sys.modules["their_backend"] = module
    try:
        assert preamble(device, ("json", "their_backend"))[1] == "import their_backend"
        module.DEVICES = (Virtual("theirs", "vth", "AutocastPrivateUse1"),)  # type: ignore[attr-defined]
        lines = preamble(module.DEVICES[0], ("their_backend",))
        assert lines.index("import their_backend") < lines.index("fake.__enter__()")  # none starts on fake tensors
    finally:
        del sys.modules["their_backend"]


def test_the_pytest_line_is_quoted_and_runs() -> None:
    node = "suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]"
    line = pytest_line(node, known()["cpu"], ("a b",), further=["--nightly"])
    assert "'suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]'" in line
    assert shlex.split(line) == ["pytest", node, "--device=cpu", "--device-module=a b", "--nightly"]
    code, said = pytest_here(ROOT, *shlex.split(pytest_line(node, known()["cpu"]))[1:], "--no-run-file")
    assert code == 0
    assert "1 passed" in said
