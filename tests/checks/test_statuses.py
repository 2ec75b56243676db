"""What each status of an op case claims (docs/using.md), by kernels made wrong on the device under test alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.checks import forward
from ampcheck.checks.call import plan
from ampcheck.checks.forward import check_forward
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import Broken, CheckFailure, Unsupported
from ampcheck.runner import judge
from ampcheck.runner.record import Result, read
from ampcheck.spec.case import Case
from tests.cli_support import run_pytest

BACKENDS = Path(__file__).parents[1] / "backends"
Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
mm = torch.ops.aten.mm.default
CASE = Case("eager", "downcast", "mm", "", "bf16", "bf16", "cpu", "cpu")


def in_region() -> bool:
    return torch.is_autocast_enabled("cpu")


def low(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 or in_region()


def raising(error: Exception) -> Kernel:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise error

    return kernel


def zeroing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = mm(x, y)
    x.zero_()
    return out


calls = count()
KERNELS: dict[str, tuple[Kernel, str, str]] = {
    "raises always": (raising(RuntimeError("kernel failed")), "broken", "RuntimeError: kernel failed; it raises that"),
    "raises another class": (raising(AttributeError("no x")), "broken", "AttributeError: no x; it raises that without"),
    "raises in low precision": (
        lambda x, y: raising(IndexError("oops"))(x, y) if low(x) else mm(x, y),
        "broken",
        "IndexError: oops; it raises that without autocast, too",
    ),
    "raises in a region": (
        lambda x, y: raising(RuntimeError("oops"))(x, y) if in_region() else mm(x, y),
        "fail",
        "raised RuntimeError: oops; the same call on explicitly cast inputs succeeds",
    ),
    "claims that there is no kernel": (
        raising(NotImplementedError("Could not run 'aten::mm' with arguments from the 'CPU' backend.")),
        "broken",
        "Could not run 'aten::mm'",
    ),
    "has no kernel": (
        raising(NotImplementedError("Could not run 'aten::_mps_convolution' with arguments from the 'CPU' backend.")),
        "unsupported",
        "Could not run",
    ),
    "refuses as declared": (
        raising(RuntimeError("\"addmm_impl_cpu_\" not implemented for 'BFloat16'")),
        "unsupported",
        "not implemented for",
    ),
    "wrong everywhere": (lambda x, y: mm(x, y) * 1.02, "broken", "it is wrong without autocast, too"),
    "wrong sign": (lambda x, y: -mm(x, y), "broken", "the float64 result on the CPU; it is wrong without"),
    "wrong in a region": (lambda x, y: mm(x, y) * (1.02 if in_region() else 1), "fail", "expected the same bits"),
    "wrong for large values": (
        lambda x, y: mm(x, y).clamp(-10, 10),
        "broken",
        "on large inputs: output 0 of aten::mm is",
    ),
    "wrong for what is not contiguous": (
        lambda x, y: mm(x if x.is_contiguous() else x.reshape(-1).view(x.shape) * 2, y),
        "broken",
        "on strided inputs: output 0",
    ),
    "writes to its input": (zeroing, "broken", "argument 0 of aten::mm holds other values after the call; it is only"),
    "of another shape": (lambda x, y: mm(x, y)[:1], "broken", "has shape (1, 5); expected (3, 5)"),
    "of another dtype": (lambda x, y: mm(x, y).double(), "broken", "is fp64; expected"),
    "of other strides": (lambda x, y: mm(x, y).t().contiguous().t(), "broken", "has strides (1, 3)"),
    "of other strides in a region": (
        lambda x, y: mm(x, y).t().contiguous().t() if in_region() else mm(x, y),
        "fail",
        "has strides (1, 3)",
    ),
    "of other strides outside alone": (
        lambda x, y: mm(x, y) if in_region() else mm(x, y).t().contiguous().t(),
        "pass",
        "",
    ),
    "other values each time": (lambda x, y: mm(x, y) * (1 + next(calls)), "broken", "does not repeat"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, status, says = KERNELS[name]
    assert outcome() == ("pass", "")
    monkeypatch.setattr(forward, "function", lambda op, sample: kernel)
    monkeypatch.setattr(forward, "cast_call", cast_call(kernel))
    seen = watched()
    monkeypatch.setattr(forward, "watch", lambda case, device, todo: seen)
    got, said = outcome()
    assert (got, says in said) == (status, True), said


def cast_call(kernel: Kernel) -> Any:
    real = forward.cast_call

    def cast(todo: Any, args: Any, kwargs: Any) -> Any:
        return kernel, *real(todo, args, kwargs)[1:]

    return cast


def watched() -> Any:
    """What the recorder sees of the right kernel: autocast does its part for each of the wrong ones."""
    todo = plan(CASE, Cpu())
    args, _ = forward.build(todo.sample, todo.dtypes, Cpu())
    with Cpu().autocast("bf16"):
        return Cpu().observe(lambda: mm(*args), {"mm"}, args)


def outcome() -> tuple[str, str]:
    try:
        differences = check_forward(CASE, Cpu())
    except Broken as error:
        return "broken", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except CheckFailure as error:
        return "fail", str(error)
    return ("fail" if differences else "pass"), "\n".join(differences)


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
    ],
)
def test_whose_an_exception_is(
    whose: str, when: str, error: Exception, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge.blame, "raised_by", lambda _: whose)
    with pytest.raises(type(error)) as caught:
        raise error
    assert judge.status_of(caught.value, when)[0] == status


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


SCENARIOS = """
import pytest
import torch
from ampcheck.runner.suite import scenario

pytestmark = pytest.mark.rule("state")

@scenario(dtypes="default")
def test_on_the_backend(amp):
    with torch.autocast(amp.type, amp.dtype), amp.region():
        if amp.type != "cpu":
            raise ValueError("a bug")

@scenario(dtypes="default")
def test_refused(amp):
    if amp.type != "cpu":
        raise NotImplementedError("Could not run 'aten::_mps_convolution' with arguments from the 'CPU' backend.")

@scenario(dtypes="default")
def test_on_the_cpu_too(amp):
    raise ValueError("a bug")

@scenario(dtypes="default")
def test_in_a_region(amp):
    with torch.autocast(amp.type, amp.dtype, True):
        if torch.is_autocast_enabled(amp.type):
            raise ValueError("a bug")

@scenario(dtypes="default")
def test_otherwise_in_a_region(amp):
    with amp.region():
        if amp.type != "cpu":
            raise ValueError(str(torch.is_autocast_enabled(amp.type)))

@scenario(dtypes="default")
def test_noted_before(amp):
    if amp.type != "cpu":
        amp.assert_equal("it", 1, 2)
        raise ValueError("a bug")

@pytest.mark.parametrize("that", [AssertionError])
@scenario(dtypes="default")
def test_asserted(amp, that):
    if amp.type != "cpu":
        raise that("it is not so")
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Result]:
    """The results of those scenarios, by suite, device and name."""
    folder = tmp_path_factory.mktemp("scenarios")
    for suite in ("eager", "scaler"):
        (folder / "suites" / suite).mkdir(parents=True)
        (folder / "suites" / suite / "test_state.py").write_text(SCENARIOS, encoding="utf-8")
    (folder / "suites" / "__init__.py").touch()
    options = ("--import-mode=importlib", f"--rootdir={folder}", "--device=cpu", "-p", "ampcheck.runner.plugin")
    (folder / "mine.py").write_text(f"import sys\nsys.path.insert(0, {str(BACKENDS)!r})\nfrom partial import DEVICES\n")
    run_pytest(folder, "suites", *options, "--device=partial", "--device-module=mine", "--run-file=run.jsonl")
    return {(r.suite, r.device, r.op): r for r in read(folder / "run.jsonl").results.values()}


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
        "asserted": "fail",
    }
    said = judged["eager", "partial", "on_the_backend"].message
    assert said == "it raised ValueError: a bug; it raises that without autocast, too"
    # There is no autocast in what a scaler promises, and the CPU is PyTorch's own.
    assert judged["scaler", "partial", "on_the_backend"].status == "fail"
    assert judged["eager", "cpu", "on_the_cpu_too"].status == "fail"


class Unreachable(Cpu):
    """A device that bfloat16 cannot be copied to."""

    def __init__(self, text: str) -> None:
        self.text = text

    def tensor(self, arg: Any, dtype: str, position: int) -> torch.Tensor:
        if dtype == "bf16":
            raise TypeError(self.text)
        return super().tensor(arg, dtype, position)


def test_inputs_that_cannot_be_made_are_broken() -> None:
    with pytest.raises(Broken, match="the inputs of aten::mm cannot be made on cpu: TypeError: no bfloat16"):
        check_forward(CASE, Unreachable("no bfloat16"))
    with pytest.raises(Unsupported, match="not implemented for"):
        check_forward(CASE, Unreachable("copy not implemented for 'BFloat16'"))
