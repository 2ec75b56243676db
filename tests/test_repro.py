"""Reproductions run where ampcheck cannot be imported, and say of each case what the case itself says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck import ops
from ampcheck.cases import Case, op_cases
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.inputs import FILLS, host_tensor
from ampcheck.ops.describe import TensorArg
from ampcheck.repro import of_op, of_scenario, preamble, pytest_line
from ampcheck.repro.source import Unreproducible, plain
from ampcheck.repro.values import EXPRESSIONS, SEEDED, expression
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


def test_each_says_what_its_case_says(made: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    own = {name: given for name, given in made.items() if "test_programs" not in name}  # those print what they see
    assert len(own) > 1000
    assert sum(given["differs"] for given in own.values()) > 30
    assert not [name for name, given in own.items() if "ampcheck" in given["program"].replace("ampcheck_", "")]
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
    own = {name: given for name, given in made.items() if "test_programs" in name}
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


@pytest.mark.parametrize("fill", [*FILLS, "integers", "arange", "pivots", "complex"])
def test_values_are_those_of_the_case(fill: str) -> None:
    assert set(EXPRESSIONS) == set(FILLS)
    own = {"integers": "int64", "arange": "int64", "pivots": "int32", "complex": "complex64"}.get(fill)
    for dtype in (own,) if own else ("fp32", "bf16", "fp64", "int64", "bool"):
        for place, shape in enumerate(((3, 3), (2, 4, 4))):
            arg = TensorArg(shape, own, "normal" if fill == "complex" else fill, high=5, seed=3)
            space: dict[str, Any] = {"torch": torch}
            exec(f"{SEEDED}\nmade = {expression(arg, dtype, place, known()['cpu'])}", space)
            wanted = host_tensor(arg, dtype, place)
            assert space["made"].dtype == wanted.dtype
            assert torch.equal(space["made"], wanted), f"{fill} as {dtype}"


def test_every_fill_of_the_catalogue_has_an_expression() -> None:
    from ampcheck.ops.describe import leaves

    every = [leaf for op in ops.catalogue().values() for sample in op.samples for leaf in leaves(sample)]
    for leaf in every:
        compile(expression(leaf, leaf.dtype or "fp32", 0, known()["cpu"]), leaf.fill, "eval")


MODULE = '''
"""A suite file."""
import math
from pathlib import Path, PurePath
from ampcheck.observe import observe
from ampcheck.torch_dtypes import name_of
import pytest

ONE: int = 1
CHOICE = {"a": (ONE, lambda x: math.pi), "b": (2, lambda x: Path(x))}
UNUSED = PurePath("é")


class Held:
    """Kept for its field."""

    value: "list[int]" = 3


def helper(amp: object, *rest: int, other: str = "a -> b") -> "tuple[int, ...]":
    """Dropped."""

    @wraps_nothing
    def inner(x: int) -> int:
        """Kept."""
        return x

    return inner(Held.value) + ONE  # type: ignore[no-any-return]  # dropped too


def wraps_nothing(call: object) -> object:
    return call


@pytest.mark.parametrize("kind", list(CHOICE))
def test_it(amp: object, kind: str) -> None:
    """What it does.

    More of it.
    """
    # é: a comment stays
    found, call = CHOICE[kind]
    amp.expect(name_of(found), helper(amp, 1), __file__)


def test_other(amp: object) -> None:
    observe(amp, CHOICE)
'''


def _module(folder: Path) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    path = folder / "test_given.py"
    path.write_text(MODULE.replace('@pytest.mark.parametrize("kind", list(CHOICE))\n', ""), encoding="utf-8")
    spec = spec_from_file_location("test_given", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_is_made_plain(tmp_path: Path) -> None:
    found = plain(_module(tmp_path).test_it, {"kind": "a"}, {"name_of"})
    assert found.comment == "What it does."
    assert found.imports == ["import math"]
    assert found.foreign == {"name_of"}
    assert found.helpers == [
        "ONE = 1",
        "CHOICE = {'a': (ONE, lambda x: math.pi)}",
        "class Held:\n    value: object = 3",
        'def helper(amp, *rest, other = "a -> b"):\n    @wraps_nothing\n    def inner(x):\n        """Kept."""\n'
        "        return x\n\n    return inner(Held.value) + ONE",
        "def wraps_nothing(call):\n    return call",
    ]
    assert found.code == (
        "def test_it(amp, kind):\n    # é: a comment stays\n    found, call = CHOICE[kind]\n"
        "    amp.expect(name_of(found), helper(amp, 1), (lambda: 0).__code__.co_filename)"
    )
    assert len(plain(_module(tmp_path).test_it, {}, {"name_of"}).imports) == 2  # without a choice all of it


def test_what_plain_torch_lacks_is_said(tmp_path: Path) -> None:
    module = _module(tmp_path)
    with pytest.raises(Unreproducible, match="observe of ampcheck"):
        plain(module.test_other, {}, ())
    text = of_scenario(module.test_other, known()["cpu"], torch.bfloat16)
    assert "# This scenario needs observe of ampcheck.observe, for which plain torch has nothing" in text
    exec(text, {})
    text = of_scenario(module.test_it, known()["cpu"], torch.bfloat16, {"kind": object()})
    assert "needs the object that pytest gives it" in text


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
    module.DEVICES = (device,)  # type: ignore[attr-defined]
    sys.modules["their_backend"] = module
    try:
        assert preamble(device, ("json", "their_backend"))[1] == "import their_backend"
    finally:
        del sys.modules["their_backend"]


def test_the_pytest_line_is_quoted_and_runs() -> None:
    node = "suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]"
    line = pytest_line(node, known()["cpu"], ("a b",), further=["--nightly"])
    assert "'suites/eager/test_errors.py::test_refused[unknown-bf16-cpu]'" in line
    assert shlex.split(line) == ["pytest", node, "--device=cpu", "--device-module=a b", "--nightly"]
    ran = f"{sys.executable} -m {pytest_line(node, known()['cpu'])} --no-run-file"
    done = subprocess.run(ran, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "1 passed" in done.stdout, done.stdout[-1500:]


def test_a_failing_case_shows_its_difference(tmp_path: Path) -> None:
    """A known deviation, as a run tells it."""
    device = known()["virtual:cuda"]
    case = _case("dot", "bf16", "virtual:cuda", "fp16")
    differences = check_op(case, device)
    assert differences
    found = _run({"it": {"program": of_op(case, device, "\n".join(differences))}}, tmp_path)
    assert "FAIL whether the kernel of aten::dot ran" in found["it"]["printed"]
    assert DTYPES[case.amp] is torch.float16
