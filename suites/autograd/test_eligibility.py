"""Rule eligibility, with gradients: custom_fwd(cast_inputs=...) casts floating tensors, in containers too.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.custom_fwd.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

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


@scenario(kind=CONTAINERS, values=True)
def test_custom_fwd_container(amp: Amp, kind: str) -> None:
    """custom_fwd casts the floating tensors in a container and leaves the rest (amp.html#torch.amp.custom_fwd)."""
    received: list[Any] = []

    class Takes(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, container: Any) -> torch.Tensor:
            received.append(container)
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradient * 2, None

    make = CONTAINERS[kind]
    x, given = amp.rand(2, requires_grad=True), make(amp.rand(2, dtype=amp.dtype), torch.arange(2, device=amp.type))
    with amp.region():
        try:
            Takes.apply(x, given)
        except Exception as error:  # whatever it raises is the finding
            amp.assert_equal(f"what a {kind} raises", f"{type(error).__name__}: {error}", None)
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

    class Takes(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, argument: Any) -> torch.Tensor:
            received.append(argument)
            return x * 2

    given = OTHERS[kind]()
    with amp.region():
        Takes.apply(amp.rand(2), given)
    amp.assert_equal(f"class of a {kind}", type(received[0]).__name__, type(given).__name__)
