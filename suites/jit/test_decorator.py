"""Rule decorator, compiled: a decorated function runs in its region on every call, compiled or inside.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; cases name the upstream test or issue they come
from.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO, TRACEABLE

pytestmark = pytest.mark.rule("decorator")


@scenario(values=True, dtypes="default")
def test_recursion_compiled(amp: Amp) -> None:
    """torch.compile takes a decorated function that calls itself (pytorch#114845: autocast as a decorator)."""

    @torch.compile(backend="eager")
    @amp.region()
    def walk(x: torch.Tensor, depth: int) -> torch.Tensor:
        return torch.mm(x, x) if depth == 0 else walk(x, depth - 1)

    x = amp.rand(2, 2)
    found = str(amp.outcome(lambda: walk(x, 2).dtype, whole=True))
    amp.assert_equal("dtype of the compiled function's result", found, str(amp.dtype))
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


# ---- through each compiler


@scenario(compiler=TRACEABLE)
def test_decorated_then_taken(amp: Amp, compiler: str) -> None:
    """A decorated function that is compiled runs in its region on every call (upstream test_autocast_decorator)."""

    @torch.autocast(amp.type, dtype=amp.dtype)
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    x, taken = amp.compiled_with_matrix(compiler, program)
    for call in ("first", "second"):
        amp.assert_equal(f"dtype, {call} call", taken(x).dtype, amp.dtype)
        amp.assert_equal(f"state after the {call} call", amp.state(), (False, amp.default, True))


@scenario(compiler=[name for name in TRACEABLE if name != "packaged"])
def test_taken_then_decorated(amp: Amp, compiler: str) -> None:
    """A compiled function that is decorated runs in the region on every call, as itself it does not."""
    x, taken = amp.compiled_with_matrix(compiler, lambda x: torch.mm(x, x))
    decorated = amp.region()(taken)
    for _ in range(2):
        amp.assert_equal("dtype decorated", decorated(x).dtype, amp.dtype)
        amp.assert_equal("dtype undecorated", taken(x).dtype, torch.float32)


@scenario(compiler=TRACEABLE)
def test_decorated_helper(amp: Amp, compiler: str) -> None:
    """Decorated functions that a compiled one calls run in their own regions, and what is between them in none."""

    @torch.autocast(amp.type, dtype=amp.dtype)
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    @amp.region(amp.other)
    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    x, taken = amp.compiled_with_matrix(compiler, lambda x: (first(x), torch.mm(x, x), second(x), first(x)))
    amp.assert_equal("dtypes", [y.dtype for y in taken(x)], [amp.dtype, torch.float32, amp.other, amp.dtype])


@scenario(compiler=DYNAMO)
def test_decorated_method_with_a_break(amp: Amp, compiler: str) -> None:
    """A decorated method of a compiled module runs in its region behind a graph break, too."""
    kind, low = amp.type, amp.dtype

    class Net(torch.nn.Module):
        @torch.autocast(kind, dtype=low)
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.mm(x, x)
            torch._dynamo.graph_break()
            return y, torch.mm(x, x)

    x, taken = amp.compiled_with_matrix(compiler, Net(), fullgraph=False)
    for _ in range(2):
        amp.assert_equal("dtypes before and behind the break", [y.dtype for y in taken(x)], [low, low])
        amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=DYNAMO)
def test_decorated_disabled(amp: Amp, compiler: str) -> None:
    """A function decorated with a disabled region is off in a region around the compiled function that calls it."""

    @torch.autocast(amp.type, enabled=False)
    def off(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    x, taken = amp.compiled_with_matrix(compiler, lambda x: (off(x), torch.mm(x, x)))
    with amp.region():
        amp.assert_equal("dtypes in it and behind", [y.dtype for y in taken(x)], [torch.float32, amp.dtype])
    amp.assert_equal("dtypes outside", [y.dtype for y in taken(x)], [torch.float32, torch.float32])
