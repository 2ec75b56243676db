"""Rule exceptions, compiled: an exception that leaves a region in a compiled function restores the former state.

Source: `__exit__` of torch/amp/autocast_mode.py; cases name the upstream issue they come from.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO, GUARDED

pytestmark = pytest.mark.rule("exceptions")


@scenario(compiler=GUARDED)
def test_raised_in_the_body(amp: Amp, compiler: str) -> None:
    """An exception that leaves a region of a compiled function leaves no state behind."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor, fails: bool) -> torch.Tensor:
        with torch.autocast(kind, dtype=low):
            y = torch.mm(x, x)
            if fails:
                raise ValueError("raised in the body")
        return y

    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, program, x, True, fullgraph=False)
    for _ in range(2):
        amp.assert_raises("the call that fails", ValueError, "raised in the body", lambda: compiled(x, True))
        amp.assert_equal("state after it", (*amp.state(), amp.depth()), (False, amp.default, True, 0))
        amp.assert_equal("dtype of a product outside", torch.mm(x, x).dtype, torch.float32)
        amp.assert_equal("dtype of the call that does not fail", compiled(x, False).dtype, low)


@scenario(compiler=DYNAMO)
def test_caught_inside(amp: Amp, compiler: str) -> None:
    """An exception caught by the compiled function itself ends the region it leaves and no other."""
    kind, low, other = amp.type, amp.dtype, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            try:
                with torch.autocast(kind, dtype=other):
                    raise ValueError("caught")
            except ValueError:
                inner = torch.mm(x, x)
        return inner, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    for _ in range(2):
        amp.assert_equal("dtypes in the outer region and behind", [y.dtype for y in compiled(x)], [low, torch.float32])
        amp.assert_equal("state after it", (*amp.state(), amp.depth()), (False, amp.default, True, 0))


@scenario(compiler=["export", "strict", "traced"])
def test_raised_while_captured(amp: Amp, compiler: str) -> None:
    """An exception while a program is captured is the program's own, and leaves no state behind (pytorch#153202)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=low):
            y = torch.mm(x, x)
            raise ValueError("raised while captured")
        return y

    x = amp.rand(2, 2)
    amp.assert_raises("capturing", Exception, "raised while captured", lambda: amp.compiled(compiler, program, x))
    amp.assert_equal("state after it", (*amp.state(), amp.depth()), (False, amp.default, True, 0))
    amp.assert_equal("dtype of a product outside", torch.mm(x, x).dtype, torch.float32)
