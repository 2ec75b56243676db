"""Rule decorator, compiled: `ampcheck.spec.rules` says what it promises."""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("decorator")


@scenario(values=True, dtypes="default")
def test_recursion_compiled(amp: Amp) -> None:
    """torch.compile takes a decorated function that calls itself (pytorch#114845: autocast as a decorator)."""

    @torch.compile(backend="eager")
    @amp.region()
    def walk(x: torch.Tensor, depth: int) -> torch.Tensor:
        return torch.mm(x, x) if depth == 0 else walk(x, depth - 1)

    x = amp.rand(2, 2)
    try:
        found = str(walk(x, 2).dtype)
    except AssertionError as error:
        found = f"AssertionError: {error}"
    finally:
        torch._dynamo.reset()
    amp.expect("dtype of the compiled function's result", found, str(amp.dtype))
    amp.expect("state after it", amp.state(), (False, amp.default, True))
