"""Rule context, with gradients: custom_bwd runs a backward pass with the autocast state of its forward pass.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.custom_fwd and #torch.amp.custom_bwd.
"""

from typing import Any

import pytest
import torch

from ampcheck.checks.training import custom_function
from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("context")


@scenario(forward=named(kept=True, dropped=False), values=True)
def test_custom_bwd_settings(amp: Amp, forward: bool) -> None:
    """custom_bwd runs backward with the autocast state of forward (amp.html#torch.amp.custom_bwd).

    The state is what a region saves and sets: enabled, dtype and cache_enabled. Backward is called in a region of
    another one.
    """
    seen: list[tuple[bool, torch.dtype, bool]] = []

    def double(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(amp.state())
        return x * 2

    x = amp.rand(2, requires_grad=True)
    with amp.region(cache_enabled=forward):
        out = custom_function(amp.type, double, double).apply(x)
    with amp.region(amp.other, enabled=False, cache_enabled=not forward):
        before = amp.state()
        out.sum().backward()
        amp.assert_equal("state after backward", amp.state(), before)
    for what, at in (("enabled", 0), ("dtype", 1), ("cache_enabled", 2)):
        amp.assert_equal(f"{what} in backward", seen[1][at], seen[0][at])


@scenario(values=True)
def test_custom_fwd_with_setup_context(amp: Amp) -> None:
    """custom_fwd and custom_bwd work where setup_context is separate from forward (torch.autograd.Function)."""
    seen: list[bool] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type)
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            pass

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled(amp.type))
            return gradient * 2

    x = amp.rand(2, requires_grad=True)
    try:
        with amp.region():
            out = Twice.apply(x)
        out.sum().backward()
    except AttributeError as error:
        amp.assert_equal("what the function raises", f"AttributeError: {error}", None)
    else:
        amp.assert_equal("enabled in backward", seen, [True])
