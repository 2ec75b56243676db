"""What `amp` does for a scenario in threads, and that its state is mended between scenarios."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, CheckFailure, HarnessError, Unsupported
from ampcheck.observe.isolation import reset
from ampcheck.tools.power import kernels


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


ONE, LOW, OFF = torch.ones(1), (True, torch.bfloat16, True), (False, torch.bfloat16, True)
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
    "state": ("assert_state", (LOW, 1), ""),
    "other state": ("assert_state", (OFF,), "state it: got (True, "),
    "other depth": ("assert_state", (LOW, 0), "nesting depth it: got 1; expected 0"),
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
        amp.thread(lambda: amp.assert_state("now", OFF, 0))
    assert amp.differences == []


@pytest.mark.parametrize("depth", [None, 0])
def test_a_depth_is_compared_where_one_is_given(depth: int | None) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    amp.assert_state("now", OFF, depth)
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
