"""What `amp` does for a scenario in threads, and that its state is mended between scenarios."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from ampcheck.checks.scenario import Amp
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset


def test_depth_and_threads() -> None:
    amp = Amp(known()["cpu"], "bf16")
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
        amp = Amp(known()["cpu"], "bf16")
        amp.assert_identical("value", got, want)
        assert amp.looked_at == 1
        assert said in "".join(amp.differences)
        assert bool(said) == bool(amp.differences)


def test_interleaving_gives_turns() -> None:
    amp = Amp(known()["virtual:cuda"], "fp16")
    found = []

    def worker(name: str) -> Iterator[None]:
        for _ in range(2):
            found.append((name, amp.rand(2).device.type, threading.get_ident()))
            yield

    amp.interleave(lambda: worker("a"), lambda: worker("b"))
    assert [name for name, _, _ in found] == ["a", "b", "a", "b"]
    assert {device for _, device, _ in found} == {"cuda"}
    assert found[0][2] == found[2][2] != found[1][2]


@pytest.mark.parametrize("move", [torch.autocast_increment_nesting, torch.autocast_decrement_nesting])
def test_reset_mends_the_depth(move: Callable[[], int]) -> None:
    amp = Amp(known()["cpu"], "bf16")
    for _ in range(3):
        move()
    assert amp.depth() != 0
    reset({})
    assert amp.depth() == 0


def test_a_scenario_that_compares_nothing_is_an_error() -> None:
    amp = Amp(known()["cpu"], "bf16")
    with pytest.raises(RuntimeError, match="the scenario compared nothing"):
        amp.finish()
    amp.assert_equal("one", 1, 1)
    amp.finish()
