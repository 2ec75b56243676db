"""What each status of a scenario claims (docs/using.md), and whose an exception is."""

from pathlib import Path

import pytest

from ampcheck.devices.base import Device
from ampcheck.errors import Broken, CheckFailure, Unsupported
from ampcheck.runner import judge
from ampcheck.runner.record import Result, read
from tests.cli_support import run_pytest, write_suites

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

@scenario(dtypes="default", then=["", "bmm", "cache"])
def test_loss(amp, then):
    with amp.region():
        loss = torch.nn.functional.l1_loss(amp.rand(2, 2, dtype=amp.dtype), amp.rand(2, 2, dtype=amp.dtype))
        product = torch.bmm(amp.rand(1, 2, 2), amp.rand(1, 2, 2))
    amp.assert_equal("l1_loss", loss.dtype, torch.float32)
    if then == "bmm":
        amp.assert_equal("bmm beside l1_loss", product.dtype, amp.dtype)
    if then == "cache":
        amp.assert_equal("cache after l1_loss", torch.is_autocast_cache_enabled(), True)

@scenario(dtypes="default")
def test_raised(amp):
    with amp.region():
        if torch.nn.functional.l1_loss(*[amp.rand(2, dtype=amp.dtype)] * 2).dtype == amp.dtype:
            raise TypeError("l1_loss")
    amp.assert_equal("it", 1, 1)
"""

FAULTY = f"""
import sys
sys.path.insert(0, {str(BACKENDS)!r})
import partial, torch

class Region(torch.autocast):
    def __exit__(self, *raised):
        super().__exit__(*raised)
        torch.set_autocast_cache_enabled(False)

partial.register(bmm="upcast")
(DEVICE,) = DEVICES = partial.DEVICES
DEVICE.autocast = lambda dtype=None, **options: Region(DEVICE.type, dtype=getattr(torch, dtype or "", None), **options)
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Result]:
    """The results of those scenarios, by suite, device, and name with parameter."""
    folder = tmp_path_factory.mktemp("scenarios")
    write_suites(folder, {f"{suite}/test_state.py": SCENARIOS for suite in ("eager", "scaler")})
    options = ("--import-mode=importlib", f"--rootdir={folder}", "--device=cpu", "-p", "ampcheck.runner.plugin")
    (folder / "mine.py").write_text(FAULTY, encoding="utf-8")
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
