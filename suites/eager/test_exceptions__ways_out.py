"""Rule exceptions, of other ways out of a region: `ampcheck.spec.rules` says what it promises."""

from collections.abc import Generator
from unittest.mock import patch

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("exceptions")


def _restored(amp: Amp, what: str) -> None:
    amp.expect(f"state {what}", amp.state(), (False, amp.default, True))
    amp.expect(f"nesting depth {what}", amp.depth(), 0)
    amp.expect(f"dtype a product runs in {what}", amp.probe(), torch.float32)


def _returns(amp: Amp) -> torch.dtype:
    with amp.region():
        return amp.probe()


@scenario()
def test_return(amp: Amp) -> None:
    """return out of the body ends the region (Python's with statement)."""
    amp.expect("dtype a product runs in", _returns(amp), amp.dtype)
    _restored(amp, "after the return")


@scenario()
def test_break_and_continue(amp: Amp) -> None:
    """break and continue out of the body end the region (Python's with statement)."""
    for turn in range(4):
        with amp.region():
            amp.expect("nesting depth in the body", amp.depth(), 1)
            if turn == 1:
                continue
            if turn == 2:
                break
        amp.expect(f"state after turn {turn}", amp.state(), (False, amp.default, True))
    amp.expect("turn of the break", turn, 2)
    _restored(amp, "after the loop")


def _held(amp: Amp) -> Generator[torch.dtype, None, None]:
    with amp.region():
        yield amp.probe()
        yield amp.probe()


@scenario()
def test_generator_closed(amp: Amp) -> None:
    """A generator that is closed in a region leaves it (Python: GeneratorExit is raised at the yield)."""
    made = _held(amp)
    amp.expect("dtype a product runs in", next(made), amp.dtype)
    made.close()
    _restored(amp, "after close")


@scenario()
def test_generator_dropped(amp: Amp) -> None:
    """A generator that is dropped in a region leaves it (CPython closes it at once)."""
    made = _held(amp)
    amp.expect("dtype a product runs in", next(made), amp.dtype)
    lost: list[str] = []
    with patch("sys.unraisablehook", lambda error: lost.append(repr(error.exc_value))):
        del made
    amp.expect("exceptions on the way out that nobody gets", lost, [])
    _restored(amp, "after the generator is gone")


@scenario()
def test_thrown_into_a_generator(amp: Amp) -> None:
    """An exception thrown into a generator leaves the region in it (Python's generators)."""
    made = _held(amp)
    next(made)
    planned = KeyError("planned")
    try:
        made.throw(planned)
    except KeyError as error:
        amp.expect("whether the same exception came out", error is planned, True)
    _restored(amp, "after throw")
