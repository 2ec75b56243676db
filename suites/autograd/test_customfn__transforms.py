"""Rule customfn: a torch.autograd.Function under torch.vmap, torch.func.grad and forward-mode differentiation.

`ampcheck.spec.rules` says what the rule promises; https://docs.pytorch.org/docs/2.13/notes/extending.func.html where
no case names a source.
"""

import warnings
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("customfn")


@scenario(values=True)
def test_under_vmap(amp: Amp) -> None:
    """A function with a vmap rule of its own, or a generated one, is mapped in its region (torch.func's notes)."""
    seen: list[Any] = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            low = x.to(gradient.dtype)
            product: torch.Tensor = gradient @ low.t() + low.t() @ gradient
            return product

        @staticmethod
        def vmap(info: Any, dims: tuple[int, ...], x: torch.Tensor) -> tuple[torch.Tensor, int]:
            seen.append(amp.state()[:2])
            return torch.bmm(x, x), 0

    class Generated(Own):
        generate_vmap_rule = True
        vmap = torch.autograd.Function.vmap  # as if it had none

    xs = amp.rand(4, 3, 3)
    with amp.region():
        want = torch.stack([torch.mm(x, x) for x in xs])
        for function in (Own, Generated):
            amp.exact(f"{function.__name__} mapped over four", torch.vmap(function.apply)(xs), want)
        gradient = torch.func.grad(lambda x: Own.apply(x).float().sum())(xs[0])
    amp.expect("state in the vmap rule", seen, [(True, amp.dtype)])
    amp.expect("dtype of a gradient by torch.func.grad", gradient.dtype, torch.float32)


@scenario(values=True)
def test_forward_mode(amp: Amp) -> None:
    """A jvp rule runs in the region forward was called in, and its tangent has the result's dtype (forward_ad)."""
    seen: list[Any] = []

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.x = x
            return torch.mm(x, x)

        @staticmethod
        def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
            seen.append(amp.state()[:2])
            return torch.mm(tangent, ctx.x) + torch.mm(ctx.x, tangent)

    x, forward_ad = torch.ones(2, 2, device=amp.type), torch.autograd.forward_ad
    with forward_ad.dual_level(), amp.region(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch loads its decompositions with torch.jit
        out = forward_ad.unpack_dual(Square.apply(forward_ad.make_dual(x, torch.ones_like(x))))
        amp.expect("state in the jvp rule", seen, [(True, amp.dtype)])
        amp.expect("dtype of the tangent", getattr(out.tangent, "dtype", None), amp.dtype)
        amp.expect("tangent", None if out.tangent is None else amp.values(out.tangent), [[4.0, 4.0], [4.0, 4.0]])
