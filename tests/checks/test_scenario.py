"""What a scenario is given, takes cells of, says and prints as its program, what its statuses claim, and relations."""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.checks import relations
from ampcheck.checks.amp import Amp
from ampcheck.checks.lowering import arguments, assert_lowered, assert_taken_apart
from ampcheck.checks.product import Product
from ampcheck.checks.program import PrintedSource, Unreproducible
from ampcheck.checks.relations import Form, assert_program, assert_relations, forms
from ampcheck.checks.scenario import DeviceAmp, ScenarioCheck
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, CheckFailure, HarnessError, Unsupported
from ampcheck.observe.dispatcher import recording
from ampcheck.observe.isolation import reset
from ampcheck.runner import judge
from ampcheck.runner.record import Result, read
from ampcheck.samples import op_database
from ampcheck.spec.case import Case
from ampcheck.spec.policies import minor
from ampcheck.tools.power import kernels
from suites.jit.test_faketensor import COMPOSED, MIXED, OPS, PHASES, _called, mixed_calls
from tests.cli_support import PROGRAMS, run_pytest, write_suites


def test_interleaving_gives_turns() -> None:
    amp = DeviceAmp(known()["virtual:cuda"], "fp16")
    found = []

    def worker(name: str, steps: int) -> Iterator[None]:
        for _ in range(steps):
            found.append((name, amp.rand(2).device.type, threading.get_ident()))
            yield

    amp.interleave(lambda: worker("a", 3), lambda: worker("b", 1), lambda: worker("c", 2))
    assert [name for name, _, _ in found] == ["a", "b", "c", "a", "c", "a"]
    assert {device for _, device, _ in found} == {"cuda"}
    assert found[0][2] == found[3][2] != found[1][2]


def test_a_reproduction_has_the_same_tensors() -> None:
    run, program = DeviceAmp(known()["cpu"], "bf16"), Amp("cpu", torch.bfloat16, torch.bfloat16)
    for shape, dtype in (((3, 2), torch.float32), ((4,), torch.float16), ((), torch.float64)):
        assert torch.equal(run.rand(*shape, dtype=dtype), program.rand(*shape, dtype=dtype))


@pytest.mark.parametrize("move", [torch.autocast_increment_nesting, torch.autocast_decrement_nesting])
def test_reset_mends_the_depth(move: Callable[[], int]) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    for _ in range(3):
        move()
    assert amp.depth() != 0
    reset({})
    assert amp.depth() == 0


def test_a_scenario_that_compares_nothing_is_an_error() -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    with pytest.raises(HarnessError, match="the scenario compared nothing"):
        amp.finish()
    amp.assert_equal("one", 1, 1)
    amp.finish()


@pytest.fixture
def blind() -> DeviceAmp:
    """Return what a scenario is given on a device whose ops no replay can cast explicitly."""

    class Blind(Cpu):
        observes_composite_ops = False

    return DeviceAmp(Blind(), "bf16")


def failing(*, outside: bool) -> Callable[[], torch.Tensor]:
    """A call that raises in a region, and outside too if told so."""

    def call() -> torch.Tensor:
        if outside or torch.is_autocast_enabled("cpu"):
            raise ValueError("no")
        return torch.ones(1)

    return call


def test_without_a_reference_a_raise_is_compared(blind: DeviceAmp) -> None:
    assert blind.assert_cast("it", failing(outside=False)) == ([], False)
    with pytest.raises(CheckFailure, match="it raised ValueError: no in a region; outside it raises nothing"):
        blind.finish()


def test_without_a_reference_what_comes_out_is_given(blind: DeviceAmp) -> None:
    (out,), _ = blind.assert_cast("it", lambda: torch.mm(torch.ones(2, 2), torch.ones(2, 2)))
    assert out.dtype is torch.bfloat16
    with pytest.raises(Unsupported, match="PyTorch takes the ops of it apart before cpu is asked"):
        blind.finish()
    blind.assert_equal("something", 1, 1)
    blind.finish()


def test_what_raises_everywhere_is_unsupported(blind: DeviceAmp) -> None:
    assert blind.assert_cast("it", failing(outside=True)) == ([], False)
    with pytest.raises(Unsupported, match="ValueError: no"):
        blind.finish()


def warning(text: str = "") -> Callable[[], int]:
    """A call that gives a warning, if it has a text, and returns 3."""
    return lambda: (warnings.warn(text, stacklevel=1) if text else None, 3)[1]


ONE, LOW_STATE, OFF_STATE = torch.ones(1), (True, torch.bfloat16, True), (False, torch.bfloat16, True)
ASSERTED: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "near": ("assert_close", (ONE, ONE + 1e-6), ""),
    "far": ("assert_close", (ONE, ONE + 1e-3), "it: differs by 0.0005; at most 1e-05 is expected"),
    "at the limit": ("assert_close", (ONE, ONE * 3, 0.5), ""),
    "absent": ("assert_close", (None, ONE), "it: there is none"),
    "other dtype": ("assert_close", (ONE, ONE.double()), "it: got [1] torch.float32; expected [1]"),
    "other shape": ("assert_close", (ONE, ONE[None]), "it: got [1] torch.float32; expected [1, 1]"),
    "identical": ("assert_identical", (ONE, ONE.clone()), ""),
    "none of both": ("assert_identical", (None, None), ""),
    "a little off": ("assert_identical", (ONE, ONE + 1e-6), "it: differs by"),
    "nan": ("assert_identical", (ONE * torch.nan, ONE), "it: differs by nan"),
    "in float64": ("assert_identical", (ONE, ONE.double()), "it: got [1] torch.float32; expected [1]"),
    "one more": ("assert_identical", (ONE, ONE[None]), "it: got [1] torch.float32; expected [1, 1]"),
    "none": ("assert_identical", (None, ONE), "whether there is a it: got False"),
    "wanted none": ("assert_identical", (ONE, None), "whether there is a it: got True; expected False"),
    "equal": ("assert_equal", ("a", "a"), ""),
    "unequal": ("assert_equal", ("a", torch.half), "it: got 'a'; expected torch.float16"),
    "state": ("assert_state", (LOW_STATE, 1), ""),
    "other state": ("assert_state", (OFF_STATE,), "state it: got (True, "),
    "other depth": ("assert_state", (LOW_STATE, 0), "nesting depth it: got 1; expected 0"),
    "raises": ("assert_raises", (ValueError, "no", failing(outside=True)), ""),
    "raises otherwise": (
        "assert_raises",
        (KeyError, "no", failing(outside=True)),
        "it: raised ValueError 'no'; expected KeyError",
    ),
    "says otherwise": (
        "assert_raises",
        (ValueError, "yes", failing(outside=True)),
        "it: raised ValueError 'no'; expected it to say 'yes'",
    ),
    "raises nothing": ("assert_raises", (ValueError, "no", int), "it: raised nothing; expected ValueError saying 'no'"),
    "warns": ("assert_warns", (UserWarning, "no", warning("so no")), ""),
    "warns otherwise": (
        "assert_warns",
        (FutureWarning, "no", warning("no")),
        "it: warned of UserWarning 'no'; expected FutureWarning saying 'no'",
    ),
    "warns in other words": (
        "assert_warns",
        (UserWarning, "yes", warning("no")),
        "it: warned of UserWarning 'no'; expected UserWarning saying 'yes'",
    ),
    "warns of nothing": (
        "assert_warns",
        (UserWarning, "yes", warning()),
        "it: warned of nothing; expected UserWarning saying 'yes'",
    ),
    "quiet": ("assert_no_warning", (warning(),), ""),
    "not quiet": ("assert_no_warning", (warning("no"),), "it: warned of UserWarning 'no'; expected no warning"),
    "noted": ("note", (["it is wrong", "so is this"],), "it is wrong"),
    "nothing noted": ("note", ([],), ""),
}
"""By name, a comparison in a region of bfloat16, and how what it notes starts; "" where all is right."""


@pytest.mark.parametrize("name", ASSERTED)
def test_what_a_comparison_notes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    compare, given, said = ASSERTED[name]
    run, program = DeviceAmp(known()["cpu"], "bf16"), Amp("cpu", torch.bfloat16, torch.bfloat16)
    for amp in (run, program):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            getattr(amp, compare)("it", *given)
    assert run.looked_at
    assert bool(run.differences) == bool(program.differences) == bool(said)
    assert not said or str(run.differences[0]).startswith(said)
    lines = capsys.readouterr().out.splitlines()
    # The program of a case prints each comparison: ok or FAIL, what it is about, and what was found.
    assert ("FAIL" in "".join(lines)) == bool(said)
    assert all(line.startswith(("ok  ", "FAIL")) for line in lines)
    assert "ok  " in "".join(lines) or said


@pytest.mark.parametrize("amp", [DeviceAmp(known()["cpu"], "bf16"), Amp("cpu", torch.bfloat16, torch.bfloat16)])
def test_a_thread_is_outside_of_a_region(amp: Amp) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        amp.thread(lambda: amp.assert_state("now", OFF_STATE, 0))
    assert amp.differences == []


@pytest.mark.parametrize("depth", [None, 0])
def test_a_depth_is_compared_where_one_is_given(depth: int | None) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    amp.assert_state("now", OFF_STATE, depth)
    assert (amp.looked_at, amp.differences) == (2 if depth is None else 3, [])


def product(device: str = "cpu") -> torch.Tensor:
    return torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device))


def raising_later() -> Callable[[], torch.Tensor]:
    """A call that raises from the second time on, which is the first without explicit casts."""
    calls: list[int] = []

    def call() -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("no")
        return torch.ones(1)

    return call


CAST: dict[str, tuple[str, Callable[[], object], str, bool, str]] = {
    "right": ("cpu", product, "", True, ""),
    "no policy": ("cpu", lambda: torch.relu(torch.ones(2)), "", False, ""),
    "other value": ("cpu", product, kernels.QUARTER, True, "output 0 of it differs from the same op"),
    "other dtype": ("cpu", product, "wrong dtype", True, "output 0 of it is fp64"),
    "other casts": ("cpu", product, kernels.DROPPED, True, "ops with a policy in it, with the dtypes they received"),
    "raises inside": ("cpu", raising_later, "", False, "it raised ValueError: no; the same call on explicit"),
    "raises anywhere": ("cpu", failing(outside=True), "", False, ""),
    "right without values": ("virtual:cuda", lambda: product("cuda"), "", True, ""),
    "appended": ("virtual:cuda", lambda: torch.norm(torch.ones(2, device="cuda")), "", True, ""),
    "raises anywhere without values": ("virtual:cuda", failing(outside=True), "", False, "it ran no op with a policy"),
}
"""By name, a device, a call, how its kernel is changed, whether an op with a policy ran, and what is noted first."""


@pytest.mark.parametrize("name", CAST)
def test_a_call_in_a_region_is_compared_with_explicit_casts(name: str) -> None:
    device, call, change, decided, said = CAST[name]
    call = raising_later() if call is raising_later else call  # it counts its calls
    amp = DeviceAmp(known()[device], "bf16")
    mutant = kernels.KernelMutant("cpu", "cpu", "AutocastCPU", "mm", "downcast", change)
    with amp.activate(), kernels.injected(mutant) if change else nullcontext():
        assert amp.assert_cast("it", call)[1] is decided
    assert str(amp.differences[0] if amp.differences else "").startswith(said)
    assert bool(amp.differences) == bool(said)


class Backend(Cpu):
    """A backend that runs composite ops whole, and may round elsewhere than their parts."""

    key = "AutocastPrivateUse1"


@pytest.mark.parametrize(
    ("device", "calls", "differences"), [(known()["cpu"], 3, 1), (known()["virtual:cuda"], 2, 0), (Backend(), 3, 0)]
)
def test_a_call_is_made_once_more_as_a_user_makes_it(device: Device, calls: int, differences: int) -> None:
    """By explicit casts, watched, and, where there are values, as it is."""
    amp, numbers = DeviceAmp(device, "bf16"), count(1)
    with amp.activate():
        amp.assert_cast("it", lambda: torch.full((2,), 1.0 + (next(numbers) == 3)))
    assert (next(numbers) - 1, len(amp.differences)) == (calls, differences)


def test_a_program_says_that_nothing_warned(capsys: pytest.CaptureFixture[str]) -> None:
    Amp("cpu", torch.bfloat16, torch.bfloat16).assert_no_warning("it", lambda: None)
    assert capsys.readouterr().out == "ok   it | warned of nothing; expected no warning\n"


def test_a_call_may_raise_what_it_raises_with_explicit_casts() -> None:
    program = Amp("cpu", torch.bfloat16, torch.bfloat16)
    assert program.assert_cast("it", failing(outside=True)) == ([], False)
    with pytest.raises(SystemExit, match="it raised no; it raises that without autocast, too"):
        Amp("cpu", torch.bfloat16, torch.bfloat16).assert_cast("it", failing(outside=True), runs=True)


def test_a_call_that_has_to_run_ends_the_scenario() -> None:
    with pytest.raises(Broken, match="it raises that without autocast, too"):
        DeviceAmp(known()["cpu"], "bf16").assert_cast("it", failing(outside=True), runs=True)
    amp = DeviceAmp(known()["cpu"], "bf16")
    amp.assert_cast("it", raising_later(), runs=True)
    assert len(amp.differences) == 1


BACKENDS = Path(__file__).parents[1] / "backends"
NO_KERNEL = "Could not run 'aten::mm.out' with arguments from the '{}' backend"


@pytest.mark.parametrize(
    ("whose", "when", "error", "status"),
    [
        ("ampcheck", "call", ValueError("x"), "error"),
        ("ampcheck", "call", AssertionError("x"), "fail"),
        ("suites", "call", ValueError("x"), "fail"),
        ("backend", "call", ValueError("x"), "fail"),
        ("ampcheck", "setup", AssertionError("x"), "error"),
        ("suites", "setup", ValueError("x"), "error"),
        ("backend", "setup", ValueError("x"), "fail"),
        ("torch", "teardown", ValueError("x"), "fail"),
        ("ampcheck", "setup", Broken(["x"]), "broken"),
        ("ampcheck", "call", CheckFailure(["x"]), "fail"),
        ("ampcheck", "call", Unsupported("x"), "unsupported"),
        # what PyTorch says for a backend that lacks something
        ("torch", "call", NotImplementedError("convolution_overrideable not implemented. You are"), "unsupported"),
        ("torch", "call", NotImplementedError("You should register `PrivateUse1HooksInterface`by"), "unsupported"),
        ("torch", "call", NotImplementedError("layer_overrideable not implemented"), "fail"),
        ("torch", "call", RuntimeError("You should register `PrivateUse1HooksInterface`by"), "fail"),
        ("torch", "call", NotImplementedError(NO_KERNEL.format("PrivateUse1")), "unsupported"),
        ("torch", "call", NotImplementedError(NO_KERNEL.format("AutocastPrivateUse1")), "fail"),
    ],
)
def test_whose_it_is(whose: str, when: str, error: Exception, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge.blame, "raised_by", lambda _: whose)
    with pytest.raises(type(error)) as caught:
        raise error
    assert judge.status_of(caught.value, when)[0] == status


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("\"erfinv\" not implemented for 'BFloat16'", True),
        ("\"erfinv\" not implemented for 'Half'", False),
        ("\"erfinv\" not implemented for 'Float'", False),
        ("\"erfinv\" not implemented for 'Long'", False),
        ("mine: unsupported ScalarType BFloat16", True),
        ("mine: Unsupported ScalarType: Double", True),
        ("something else", False),
    ],
)
def test_a_dtype_that_a_device_does_not_claim_may_be_refused(text: str, refused: bool) -> None:
    class Half(Device):
        amp_dtypes = ("fp16",)

        def unavailable(self) -> None:
            return None

    assert Half().refuses(RuntimeError(text)) is refused


@pytest.mark.parametrize(
    ("status", "before", "after", "text"),
    [
        ("pass", "passed", "passed", None),
        ("fail", "failed", "failed", "said"),
        ("fixed", "passed", "failed", "said"),
        ("deviation", "failed", "skipped", "said"),
        ("unsupported", "failed", "skipped", "said"),
        ("broken", "failed", "failed", "said"),
    ],
)
def test_what_pytest_makes_of_a_status(status: str, before: str, after: str, text: str | None) -> None:
    report = pytest.TestReport("node", ("file", 0, "case"), {}, before, None, "call")  # type: ignore[arg-type]
    judge.mark(report, status, "known", "said")
    assert (report.outcome, report.longrepr) == (after, text)
    assert getattr(report, "wasxfail", None) == ("known" if after == "skipped" else None)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Result]:
    """The results of those scenarios, by suite, device, and name with parameter."""
    folder = tmp_path_factory.mktemp("scenarios")
    write_suites(folder, {f"{suite}/test_state.py": PROGRAMS["scenario-scenarios"] for suite in ("eager", "scaler")})
    options = ("--import-mode=importlib", f"--rootdir={folder}", "--device=cpu", "-p", "ampcheck.runner.plugin")
    (folder / "mine.py").write_text(PROGRAMS["scenario-faulty"].format(path=str(BACKENDS)), encoding="utf-8")
    run_pytest(folder, "suites", *options, "--device=partial", "--device-module=mine", "--run-file=run.jsonl")
    return {(r.suite, r.device, r.op + r.inputs): r for r in read(folder / "run.jsonl").results.values()}


def test_a_scenario_that_raises_without_autocast_too_is_broken(judged: dict[tuple[str, str, str], Result]) -> None:
    assert {
        name: r.status for (suite, device, name), r in judged.items() if (suite, device) == ("eager", "partial")
    } == {
        "on_the_backend": "broken",
        "refused": "unsupported",
        "on_the_cpu_too": "fail",
        "in_a_region": "fail",
        "otherwise_in_a_region": "fail",
        "noted_before": "fail",
        "assertedAssertionError": "fail",
        "loss": "unsupported",
        "lossbmm": "fail",
        "losscache": "fail",
        "raised": "unsupported",
    }
    said = judged["eager", "partial", "on_the_backend"].message
    assert said == "it raised ValueError: a bug; it raises that without autocast, too"
    told = {judged["eager", "partial", name].message for name in ("loss", "raised")}
    assert told == {"partial does not promise policies that the case needs: l1_loss"}
    # There is no autocast in what a scaler promises, and the CPU is PyTorch's own.
    assert judged["scaler", "partial", "on_the_backend"].status == "fail"
    assert judged["eager", "cpu", "on_the_cpu_too"].status == "fail"


@pytest.fixture(autouse=True)
def _left_as_found() -> Iterator[None]:
    """Put autocast's state back: a program may end inside a region, as its scenario does."""
    yield
    reset({})


def _program(module: str, name: str, **params: object) -> str:
    """Return the program of a scenario that did not run here."""
    case = Case("eager", "context", name, "", "", "bf16", "cpu", "cpu")
    function = getattr(import_module(f"suites.eager.{module}"), f"test_{name}")
    return ScenarioCheck(function, params).program(case, known()["cpu"], ran=False)


def test_a_program_has_what_its_scenario_uses(capsys: pytest.CaptureFixture[str]) -> None:
    text = _program("test_eligibility", "low_and_wide", op="mv")
    for part in (
        "LOW_AND_WIDE = {'mv': lambda low, wide: torch.mv(wide, low[0])}\n",  # of a dictionary, the entry of the case
        'def test_low_and_wide(amp: Amp, op: str) -> None:\n    """A result of a region and a float32 tensor do not',
        "def outcome(self, call, *given, whole = False):\n        try:\n",  # without annotations and docstring
        "        except Exception as error:  # the call under test may raise anything\n",
    ):
        assert part in text
    for part in ("pytest", "ampcheck", "isclose", "DeviceAmp", "def interleave"):
        assert part not in text
    exec(text, {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith(("ok  ", "FAIL"))


def test_a_program_has_what_the_specification_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = _program("test_holders", "overlap", first="coroutine", second="by_hand", order="crossed", region="same")
    assert "def _overlap_seen(amp, *given):\n    return amp.promises[('_overlap_seen', *given)]\n" in text
    assert "('_overlap_seen', 'crossed', 'same'): [" in text
    assert "class _Model" not in text
    exec(text, {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("ok  ")


def test_what_plain_torch_lacks_is_said() -> None:
    source = PrintedSource("suites.eager.test_eligibility")
    with pytest.raises(Unreproducible, match=r"\w+ of ampcheck\.checks"):
        source.add("test_any_form")
    text = _program("test_eligibility", "any_form", form="leaf")
    assert "# This scenario needs" in text
    assert ", for which plain torch has nothing" in text
    exec(text, {"__name__": "__main__"})
    text = _program("test_eligibility", "low_and_wide", op=object())
    assert "needs the object that pytest gives it" in text


DIMENSIONS = {"policy": ("a", "b", "c"), "mode": ("d", "e"), "at": ("f", "g", "h", "i"), "how": ("j", "k")}


def pairs(cells: list[tuple[str, ...]]) -> set[tuple[tuple[int, str], ...]]:
    return {pair for cell in cells for pair in combinations(enumerate(cell), 2)}


def test_the_chosen_cells_hold_every_pair_and_are_few() -> None:
    product = Product(DIMENSIONS)
    assert len(product.reachable) == product.size == 48
    assert pairs(product.chosen) == pairs(product.reachable)
    assert len(product.chosen) <= 14  # 12 are the least: 3 policies with 4 places


def test_a_cell_that_cannot_be_has_its_reason_and_is_never_chosen() -> None:
    product = Product(
        DIMENSIONS,
        {"no b in e": lambda cell: (cell["policy"], cell["mode"]) == ("b", "e"), "no k": lambda c: c["how"] == "k"},
    )
    assert set(product.unreachable.values()) == {"no b in e", "no k"}
    assert product.unreachable[("b", "e", "f", "j")] == "no b in e"
    assert not set(product.chosen) & set(product.unreachable)
    assert pairs(product.chosen) == pairs(product.reachable)
    assert product.sentence() == (f"Product: 48 cells; {len(product.chosen)} in each run, 20 nightly, 28 unreachable.")


def test_one_dimension_is_chosen_whole() -> None:
    assert Product({"policy": ("a", "b")}).chosen == [("a",), ("b",)]


def test_a_nightly_product_has_cells_in_nightly_runs_alone() -> None:
    product = Product({"policy": ("a", "b")}, nightly=True)
    assert (product.chosen, product.reachable) == ([], [("a",), ("b",)])
    assert product.sentence() == "Product: 2 cells; 0 in each run, 2 nightly, 0 unreachable."


Patch = Callable[[pytest.MonkeyPatch], None]


def _off_where(wrong: Callable[[torch.autocast], bool]) -> Patch:
    """Return a patch by which the regions of which `wrong` is true as they are entered are off."""
    enter: Callable[[torch.autocast], Any] = torch.autocast.__enter__

    def entered(region: torch.autocast) -> Any:
        region._enabled &= not wrong(region)
        return enter(region)

    return lambda patch: patch.setattr(torch.autocast, "__enter__", entered)


class Widened(TorchDispatchMode):
    """Gives results of kernels in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})).float()


WRONG: dict[str, Patch] = {
    "decorator": lambda patch: patch.setattr(torch.autocast, "__call__", lambda self, function: function),
    "region entered again": _off_where(lambda _: torch.is_autocast_enabled("cpu")),
    "region without a cache": _off_where(lambda region: not region._cache_enabled),
    "thread": _off_where(lambda _: threading.current_thread() is not threading.main_thread()),
    "checkpoint": lambda patch: patch.setattr(relations, "checkpoint", lambda call, *_, **__: call(nullcontext)),
    "dispatch mode": lambda patch: patch.setattr(relations, "FlopCounterMode", lambda **_: Widened()),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_way_that_differs_is_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_program(amp, "a @ b")
    assert amp.differences == []
    WRONG[way](monkeypatch)
    assert_program(amp, "a @ b")
    said = f"{way} of sample 0: gave torch.float32[4, 4]; the other way gave torch.bfloat16[4, 4]"
    assert said in amp.differences


OFF = torch.autocast("cpu", enabled=False)


def _doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x, *rest).mul_(2 if torch.is_autocast_enabled("cpu") else 1)


@pytest.mark.parametrize(
    ("op", "given", "form", "wrong", "said"),
    [
        ("matmul", "wide", "operator", OFF, "operator of sample 0: gave torch.float32"),
        ("matmul", "low", "operator", OFF, "operator of sample 0: raised RuntimeError"),
        ("linalg.det", "wide", "det", _doubled, "det of sample 0: is off by 1"),
        ("mul", "wide", "Tensor.mul_", _doubled, "in_place Tensor.mul_ of sample 0: is off by 1"),
    ],
)
def test_a_form_that_differs_is_named(
    op: str, given: str, form: str, wrong: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form is a sibling of the op itself: an alias, an operator, a call in place."""

    def planted(info: Any) -> list[Form]:
        return [one._replace(function=wrong(one.function)) if one.name == form else one for one in forms(info)]

    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_relations(amp, op, given)
    assert amp.differences == []
    monkeypatch.setattr(relations, "forms", planted)
    assert_relations(amp, op, given)
    assert [text for text in amp.differences if text.startswith(said)]


def test_what_overflows_is_named_but_where_large_terms_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "fp16")
    assert_relations(amp, "nn.functional.conv_transpose2d", "large")
    assert amp.differences == []
    relu = amp.op_info("nn.functional.relu")
    right = relu.op
    monkeypatch.setattr(relu, "op", lambda *x: right(*x) * (torch.inf if torch.is_autocast_enabled("cpu") else 1))
    assert_relations(amp, "nn.functional.relu", "large")
    assert [text for text in amp.differences if text.startswith("accuracy of output 0 of sample 3: gave inf")]


LOW, WIDE = torch.bfloat16, torch.float32
GIVEN = [("low", True), ("first", False), ("bounds", False)]


def _amp() -> DeviceAmp:
    return DeviceAmp(known()["cpu"], "bf16")


def test_tensors_of_a_call_are_in_the_precision_that_is_asked_for() -> None:
    amp = _amp()
    sample = amp.op_samples(amp.op_info("addmm"), WIDE, 1)[0]
    dtypes = {kind: [x.dtype for x in arguments(sample, kind, LOW)[0]] for kind in ("wide", "low", "first", "others")}
    assert dtypes == {
        "wide": [WIDE, WIDE, WIDE],
        "low": [LOW, LOW, LOW],
        "first": [LOW, WIDE, WIDE],
        "others": [WIDE, LOW, LOW],
    }


def test_bounds_are_beside_the_numbers_of_a_call() -> None:
    amp = _amp()
    sample = amp.op_samples(amp.op_info("nn.functional.threshold"), WIDE, 12)[-1]
    (x, bound, _), _ = arguments(sample, "bounds", LOW)
    nearest = torch.tensor(bound, dtype=LOW)
    above, below = (torch.nextafter(nearest, torch.tensor(way, dtype=LOW)) for way in (float("inf"), -float("inf")))
    assert nearest.item() != bound
    assert {nearest.item(), above.item(), below.item()} <= set(x.flatten().tolist())


WRONG_PARTS: dict[str, tuple[Callable[..., Any], str]] = {
    "value": (lambda x, y: 1.1 * (x * x + y * y).sqrt(), "results of sample 0, low, in a region: is off by"),
    "dtype": (lambda x, y: (x.float() ** 2 + y.float() ** 2).sqrt(), "results of sample 0, low, in a region: gave"),
    "raised": (torch.Tensor.bmm, "results of sample 0, low, in a region: raised"),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_a_wrong_decomposition_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decomposition, said = WRONG_PARTS[wrong]

    def never_wide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * x + y * y).sqrt() if x.dtype == WIDE else decomposition(x, y)

    monkeypatch.setattr(relations, "decompositions", lambda: {torch.ops.aten.hypot.default: never_wide})
    amp = _amp()
    assert_taken_apart(amp, "hypot", GIVEN, 1)
    assert [text for text in amp.differences if text.startswith(said)]


def test_a_more_exact_decomposition_is_none_the_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right one: a sum of squares in float64."""
    exact = {torch.ops.aten.hypot.default: lambda x, y: (x.double() ** 2 + y.double() ** 2).sqrt().to(x.dtype)}
    monkeypatch.setattr(relations, "decompositions", lambda: exact)
    amp = _amp()
    assert_taken_apart(amp, "hypot", [("low", False)], 2)
    assert amp.differences == []
    assert amp.looked_at


@pytest.mark.parametrize("always", [False, True])
def test_what_inductor_refuses_in_the_lower_precision_alone_is_named(
    always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*inputs: torch.Tensor) -> None:
        if always or LOW in {x.dtype for x in inputs}:
            raise RuntimeError("no such kernel")

    amp = _amp()
    monkeypatch.setattr(amp, "compiled", lambda *_, **__: refuses)
    if always:
        with pytest.raises(Unsupported, match="Inductor raises RuntimeError for mean, in float32, too"):
            assert_lowered(amp, "mean")
        return
    assert_lowered(amp, "mean")
    assert amp.differences == ["mean in Inductor, which takes it in float32: raised RuntimeError: no such kernel"]


CPU = known()["cpu"]
OWN = minor(torch.__version__) == "2.13"
"""The list is of this version: others have other kernels and derivatives."""


def _reaches(op: str, number: int, given: str = "wide") -> set[str]:
    """Return the overloads with a policy whose kernels a sample of an op enters, forward and backward."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), recording([CPU.key]) as entered:
        warnings.simplefilter("ignore")
        for phase in PHASES:
            _called(DeviceAmp(CPU, "bf16"), op, given, phase, "real", number)
    return {overload for _, overload in entered} & CPU.policies().keys()


def test_an_op_that_is_made_of_none_reaches_no_kernel() -> None:
    assert (_reaches("sin", 0), _reaches("mm", 0)) == (set(), {"mm"})


@pytest.mark.nightly
@pytest.mark.skipif(not OWN, reason="the list is of torch 2.13")
def test_the_list_is_whole() -> None:
    """Each other op of the database has a policy, is composed by PyTorch's tests, or reaches no kernel with one."""
    found = {}
    for name, row in op_database.rows().items():
        overloads = row.overloads.split()
        own = overloads and all(overload in CPU.policies() for overload in overloads)
        if own or name in COMPOSED:
            continue
        for number in range(4):
            if _reaches(name, number):
                found[name] = number
                break
    assert found == OPS


@pytest.mark.nightly
@pytest.mark.skipif(not OWN, reason="the list is of torch 2.13")
@pytest.mark.filterwarnings("ignore")  # ops of the database warn of many things
def test_the_list_of_ops_that_refuse_two_dtypes_is_whole() -> None:
    strided = [name for name in op_database.rows() if not name.startswith("sparse.")]
    assert [name for name in sorted(strided) if mixed_calls(DeviceAmp(CPU, "bf16"), name)] == list(MIXED)
