"""Rule eligibility, with gradients: custom_fwd(cast_inputs=...) casts floating tensors, in containers too.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.custom_fwd.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from ampcheck.checks.training import custom_function
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("eligibility")


class _Pair(NamedTuple):
    one: Any
    two: Any


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda one, two: (one, two),
    "list": lambda one, two: [one, two],
    "dict": lambda one, two: {"one": one, "two": two},
    "named": _Pair,
}


def _taking(amp: Amp, received: list[Any]) -> Any:
    """Return a custom function that notes its second argument."""

    def forward(ctx: Any, x: torch.Tensor, argument: Any) -> torch.Tensor:
        received.append(argument)
        return x * 2

    return custom_function(amp.type, forward, lambda ctx, gradient: (gradient * 2, None), cast_inputs=torch.float32)


@scenario(kind=CONTAINERS, values=True)
def test_custom_fwd_container(amp: Amp, kind: str) -> None:
    """custom_fwd casts the floating tensors in a container and leaves the rest (amp.html#torch.amp.custom_fwd)."""
    received: list[Any] = []
    x = amp.rand(2, requires_grad=True)
    given = CONTAINERS[kind](amp.rand(2, dtype=amp.dtype), torch.arange(2, device=amp.type))
    with amp.region():
        raised = amp.outcome(_taking(amp, received).apply, x, given)
    if isinstance(raised, str):
        amp.assert_equal(f"what a {kind} raises", raised, None)
        return
    got = list(received[0].values() if kind == "dict" else received[0])
    amp.assert_equal("class of the container", type(received[0]).__name__, type(given).__name__)
    amp.assert_equal("dtypes in the container", [tensor.dtype for tensor in got], [torch.float32, torch.int64])


OTHERS: dict[str, Callable[[], Any]] = {
    "layers": lambda: torch.nn.Sequential(torch.nn.Identity()),
    "ordered": lambda: OrderedDict(one=1),
    "queue": lambda: deque([1]),
    "range": lambda: range(2),
    "set": lambda: {1},
    "size": lambda: torch.Size([1]),
    "text": lambda: "one",
}


@scenario(kind=OTHERS, values=True)
def test_custom_fwd_other_argument(amp: Amp, kind: str) -> None:
    """custom_fwd affects floating tensors alone, so an argument that holds none stays what it is (amp.html)."""
    received: list[Any] = []
    given = OTHERS[kind]()
    with amp.region():
        _taking(amp, received).apply(amp.rand(2), given)
    amp.assert_equal(f"class of a {kind}", type(received[0]).__name__, type(given).__name__)
