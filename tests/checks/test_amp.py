"""What `amp` does for a scenario in threads, and that its state is mended between scenarios."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import CheckFailure, HarnessError, Unsupported
from ampcheck.observe.isolation import reset


def test_depth_and_threads() -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    with amp.region(), amp.region(enabled=False):
        assert amp.depth() == 2
        assert amp.thread(amp.depth) == 0
    assert amp.depth() == 0
    with pytest.raises(KeyError, match="planned"):
        amp.thread(lambda: {}["planned"])


def test_exact_takes_no_difference() -> None:
    one = torch.tensor([1.0])
    for got, want, said in (
        (one, one.clone(), ""),
        (None, None, ""),
        (one, one + 1e-6, "value: differs by"),
        (one, one.double(), "expected [1] torch.float64"),
        (one, one[None], "expected [1, 1]"),
        (one * torch.nan, one, "value: differs by nan"),
        (None, one, "whether there is a value: got False"),
    ):
        amp = DeviceAmp(known()["cpu"], "bf16")
        amp.assert_identical("value", got, want)
        assert amp.looked_at == 1
        assert said in "".join(amp.differences)
        assert bool(said) == bool(amp.differences)


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
