"""What is said of a call whose ops no replay can cast explicitly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ampcheck.checks import no_reference
from ampcheck.checks.scenario import Amp
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import CheckFailure, Unsupported


@pytest.fixture
def amp() -> Amp:
    return Amp(Cpu(), "bf16")


def failing(*, outside: bool) -> Callable[[], torch.Tensor]:
    """A call that raises in a region, and outside too if told so."""

    def call() -> torch.Tensor:
        if outside or torch.is_autocast_enabled("cpu"):
            raise ValueError("no")
        return torch.ones(1)

    return call


def test_without_a_reference_a_raise_is_compared(amp: Amp) -> None:
    assert no_reference.compare(amp, failing(outside=False), "it") == []
    with pytest.raises(CheckFailure, match="it raised ValueError: no in a region; outside it raises nothing"):
        amp.finish()


def test_without_a_reference_what_comes_out_is_given(amp: Amp) -> None:
    (out,) = no_reference.compare(amp, lambda: torch.mm(torch.ones(2, 2), torch.ones(2, 2)), "it")
    assert out.dtype is torch.bfloat16
    with pytest.raises(Unsupported, match="PyTorch takes the ops of it apart before cpu is asked"):
        amp.finish()
    amp.assert_equal("something", 1, 1)
    amp.finish()


def test_what_raises_everywhere_is_unsupported(amp: Amp) -> None:
    assert no_reference.compare(amp, failing(outside=True), "it") == []
    with pytest.raises(Unsupported, match="ValueError: no"):
        amp.finish()
