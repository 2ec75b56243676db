"""Rule exceptions: an exception leaves a region unchanged, and the state from before the region is back.

Parts: exceptions in the body; ops that raise; decorators and construction; cached casts; `return`. Stacks, generators
and tasks: `suites/eager/test_holders.py`. Source: `__exit__` of torch/amp/autocast_mode.py.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch

from ampcheck.checks.training import plain_function
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("exceptions")

RAISED = {
    "value": ValueError("planned"),
    "interrupt": KeyboardInterrupt("planned"),
    "exit": SystemExit(3),
    "stop": StopIteration("planned"),
    "generator": GeneratorExit("planned"),
    "group": ExceptionGroup("planned", [ValueError("one"), KeyError("two")]),
    "memory": MemoryError("planned"),
}
"""Exceptions of every branch of the hierarchy."""


def _expect_state_outside(amp: Amp, what: str) -> None:
    amp.assert_state(what, (False, amp.default, True), 0)


def _expect_to_come_out(amp: Amp, planned: BaseException, call: Callable[[], object]) -> None:
    """Note where a call raises something else than an exception itself, and where it leaves a state behind."""
    try:
        call()
    except BaseException as error:  # whatever comes out is what is to be seen
        amp.assert_equal("whether the same exception came out", error is planned, True)
    else:
        amp.assert_equal("what came out", "nothing", type(planned).__name__)
    _expect_state_outside(amp, "after the exception")


@scenario(kind=RAISED)
def test_leaves_the_region(amp: Amp, kind: str) -> None:
    """Whatever is raised comes out unchanged and the state is restored (autocast_mode.py: __exit__ returns False)."""

    def call() -> None:
        with amp.region(cache_enabled=False):
            raise RAISED[kind]

    _expect_to_come_out(amp, RAISED[kind], call)


# ---- ops that raise
@scenario()
def test_op_raises(amp: Amp) -> None:
    """An op that refuses its arguments, cast already, leaves the state as it is (autocast_mode.h, a guard)."""
    with amp.region():
        call = partial(torch.mm, amp.rand(2, 2), amp.rand(3, 3))
        amp.assert_raises("a product of wrong shapes", RuntimeError, "", call)
        amp.assert_state("after the op", (True, amp.dtype, True))
    _expect_state_outside(amp, "after the region")


@scenario(types=("cuda", "xpu", "mtia"))
def test_refused_op(amp: Amp) -> None:
    """An op that autocast refuses leaves the region in force (autocast_mode.cpp, binary_cross_entropy_banned)."""
    loss = torch.nn.functional.binary_cross_entropy
    with amp.region():
        said = "unsafe to autocast"
        amp.assert_raises("the refused loss", RuntimeError, said, lambda: loss(amp.rand(2), amp.rand(2)))
        amp.assert_state("after it", (True, amp.dtype, True))
    _expect_state_outside(amp, "after the region")


@scenario(values=True)
def test_kernel_raises_in_backward(amp: Amp) -> None:
    """An error in backward, inside a region, leaves the state as it is (autocast_mode.py)."""

    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise KeyError("planned")

    x = amp.rand(2, 2, requires_grad=True)
    with amp.region():
        call = plain_function(lambda ctx, x: x * 2, backward).apply
        amp.assert_raises("backward", KeyError, "planned", lambda: call(x).sum().backward())
        amp.assert_equal("state after it", amp.state(), (True, amp.dtype, True))
    _expect_state_outside(amp, "after the region")


# ---- decorators, construction
@scenario(kind=RAISED, dtypes="default")
def test_leaves_a_decorated_function(amp: Amp, kind: str) -> None:
    """An exception leaves a decorated function unchanged, and the state is restored (autocast_decorator)."""

    @amp.region(amp.other, cache_enabled=False)
    def function() -> None:
        raise RAISED[kind]

    def call() -> None:
        with amp.region():
            try:
                function()
            finally:
                amp.assert_equal("state in the caller's region", amp.state(), (True, amp.dtype, True))

    _expect_to_come_out(amp, RAISED[kind], call)


# ---- cached casts
@scenario()
def test_outermost_region_drops_casts(amp: Amp) -> None:
    """An exception that leaves the outermost region drops its casts, one that leaves an inner region does not."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    use = partial(amp.casts, lambda: torch.mm(x, weight), weight)
    with suppress(KeyError), amp.region():
        amp.assert_equal("casts at first", use(), 1)
        with suppress(KeyError), amp.region():
            raise KeyError
        amp.assert_equal("casts after an exception left the inner region", use(), 0)
        raise KeyError
    with amp.region():
        amp.assert_equal("casts after an exception left the outermost region", use(), 1)


@scenario()
def test_op_that_raises_keeps_casts(amp: Amp) -> None:
    """An op that raises leaves the cache unchanged (autocast_mode.cpp, cached_cast)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    with amp.region():
        amp.casts(lambda: torch.mm(x, weight), weight)
        amp.observe(lambda: torch.mm(amp.rand(3, 3), weight))
        amp.assert_equal("casts after an op raised", amp.casts(lambda: torch.mm(x, weight), weight), 0)


# ---- other ways out of a region
@scenario()
def test_return(amp: Amp) -> None:
    """return out of the body ends the region (Python's with statement)."""

    def returns() -> torch.dtype:
        with amp.region():
            return amp.probe()

    amp.assert_equal("dtype a product runs in", returns(), amp.dtype)
    _expect_state_outside(amp, "after the return")
