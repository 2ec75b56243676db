"""Wrong gradients: the forward pass of an autocast kernel is right, what the backward pass makes of it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ampcheck.devices.virtual import graphs
from tests.faults.fault import Fault
from tests.faults.kernels import Body, Call, outputs, wrong

CPU, CUDA, XPU, MPS, JAX_DEVICE = "cpu", "virtual:cuda", "virtual:xpu", "virtual:mps", "jax"
FP32 = torch.float32

Change = Callable[[torch.Tensor], torch.Tensor]


class _Changed(torch.autograd.Function):
    """A tensor as it is, whose gradient is changed on its way back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(grads[0]), None


def _changed(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    made: torch.Tensor = _Changed.apply(tensor, change)
    return made


class _Computed(torch.autograd.Function):
    """An op computed in one dtype, whose gradient is computed in another."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        *tensors, call, forward, backward = given
        ctx.call, ctx.dtype = call, backward
        ctx.save_for_backward(*tensors)
        return call.cast(forward)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        with torch.enable_grad():
            copies = [t.detach().to(ctx.dtype).requires_grad_() if call.eligible(t) else t for t in tensors]
            out = call.run(lambda place, t: copies[place])
        graphs.backward([out], [grads[0].to(out.dtype)])  # fake tensors know no other
        pairs = zip(copies, tensors, strict=True)
        return *(None if copy.grad is None else copy.grad.to(t.dtype) for copy, t in pairs), None, None, None


def computed(forward: Callable[[Call], torch.dtype], backward: Callable[[Call], torch.dtype]) -> Body:
    """A kernel that computes its op in one dtype and the op's gradient in another."""

    def body(call: Call) -> Any:
        return _Computed.apply(*call.tensors(), call, forward(call), backward(call))

    return body


def low(call: Call) -> torch.dtype:
    return call.low


def wide(call: Call) -> torch.dtype:
    return FP32


def widest(call: Call) -> torch.dtype:
    """Return the dtype that rule promote casts float32 and one lower precision to."""
    found = {t.dtype for t in call.tensors() if call.eligible(t)}
    return FP32 if FP32 in found else call.low


def _with(dtype: Callable[[Call], torch.dtype], change: Callable[[Call, int, torch.Tensor], torch.Tensor]) -> Body:
    """A kernel that casts to `dtype`, with each eligible tensor changed by its place once it is cast."""

    def body(call: Call) -> Any:
        to = dtype(call)
        return call.run(lambda place, t: change(call, place, t.to(to)) if call.eligible(t) else t)

    return body


def detached(place: int | None, dtype: Callable[[Call], torch.dtype] = low) -> Body:
    """No gradient reaches the argument at a place; for None any argument, though copies of them require grad."""
    if place is None:
        return _with(dtype, lambda call, n, t: t.detach().requires_grad_())
    return _with(dtype, lambda call, n, t: t.detach() if n == place else t)


def passed(change: Change, place: int | None = None, dtype: Callable[[Call], torch.dtype] = low) -> Body:
    """The gradient of the cast copy is changed before it passes the cast: at one place, or everywhere."""
    return _with(dtype, lambda call, n, t: _changed(t, change) if place in (None, n) else t)


def rounded(dtype: Callable[[Call], torch.dtype]) -> Body:
    """The gradient goes through the region's dtype on its way back."""
    return _with(dtype, lambda call, n, t: _changed(t, lambda g: g.to(call.low).to(g.dtype)))


def without_a_graph(call: Call) -> Any:
    with torch.no_grad():
        return call.cast(call.low)


def kept_in_low(call: Call) -> Any:
    """Leaves are told that their gradients are of the region's dtype."""
    for t in call.tensors():
        if call.eligible(t) and t.is_leaf and t.requires_grad:
            t.grad_dtype = call.low
    return call.cast(call.low)


def swapped(call: Call) -> Any:
    """Each of two arguments of one shape gets the gradient of the other."""
    first, second = (t.to(widest(call)) for t in call.tensors())
    held = [first + second - second.detach(), second + first - first.detach()]
    copies = [held[0] - first + first.detach(), held[1] - second + second.detach()]
    return call.run(lambda place, t: copies[place])


def of_a_constant(call: Call) -> Any:
    """An argument that has no gradient gets one."""
    last = call.tensors()[-1]
    return outputs(call.cast(FP32), lambda place, t: t + 0 * last.to(FP32).sum())


def refused(call: Call) -> Any:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no gradient under autocast")

    return call.run(lambda place, t: _changed(t.to(call.low), change) if call.eligible(t) else t)


def clamped(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-0.1, 0.1)


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def negated(gradient: torch.Tensor) -> torch.Tensor:
    return -gradient


def averaged(gradient: torch.Tensor) -> torch.Tensor:
    """The mean of the batch where its sum is right."""
    return gradient / 2


def truncated(gradient: torch.Tensor) -> torch.Tensor:
    """Flush small values to zero."""
    return gradient * (gradient.abs() > 0.05)


def fault(name: str, rule: str, device: str, op: str, body: Body, says: str) -> Fault:
    """A fault of the gradient of one op on one device, seen by the suite autograd."""
    return replace(wrong(name, rule, device, op, body, says=(f"aten::{op}", says)), suite="autograd")


_MISSING = "is missing; expected it to be there"
_DIFFERS = "differs from the same op on explicitly cast inputs"

FAULTS = (
    fault("gradient-of-the-copy-only", "downcast", CPU, "mm", detached(None), _MISSING),
    fault("gradient-of-one-factor-missing", "downcast", CPU, "bmm", detached(1), _MISSING),
    fault("gradient-of-bias-missing", "downcast", CPU, "linear", detached(2), f"argument 2 of aten::linear {_MISSING}"),
    fault("gradient-doubled", "downcast", CPU, "addmm", passed(doubled), _DIFFERS),
    fault("gradient-of-weight-negated", "downcast", CPU, "conv2d", passed(negated, 1), "argument 1 of aten::conv2d"),
    fault("gradient-of-bias-averaged", "downcast", CPU, "conv1d", passed(averaged, 2), "argument 2 of aten::conv1d"),
    fault("gradient-clamped", "downcast", CPU, "baddbmm", passed(clamped), _DIFFERS),
    fault("gradient-loses-what-is-small", "downcast", CPU, "prelu", passed(truncated), _DIFFERS),
    fault("gradient-kept-in-low", "downcast", CPU, "addmm", kept_in_low, "is bf16 of shape"),
    fault("gradient-in-float32", "downcast", CPU, "addbmm", computed(low, wide), "ran "),
    fault("gradient-without-a-graph", "downcast", CPU, "matmul", without_a_graph, "that require grad are none"),
    fault("gradient-refused", "downcast", CPU, "conv3d", refused, "no gradient under autocast"),
    fault("gradient-of-float32-in-low", "upcast", CPU, "mse_loss", computed(wide, low), _DIFFERS),
    fault("gradient-of-float32-rounded", "upcast", CPU, "cdist", rounded(wide), _DIFFERS),
    fault("gradient-of-a-constant", "upcast", CPU, "hinge_embedding_loss", of_a_constant, "is there; expected"),
    fault("gradient-of-target-missing", "upcast", CPU, "huber_loss", detached(1, wide), _MISSING),
    fault("gradient-of-promoted-in-low", "promote", CPU, "stack", rounded(widest), _DIFFERS),
    fault("gradients-swapped", "promote", CPU, "cat", swapped, _DIFFERS),
    fault("gradient-of-source-missing", "promote", CPU, "index_copy", detached(2, widest), _MISSING),
    fault("gradient-of-exp-in-low", "upcast", CUDA, "exp", computed(wide, low), "exp fp16"),
    fault("gradient-of-second-vector-missing", "downcast", CUDA, "mv", detached(1), _MISSING),
    fault("gradient-of-atan2-in-low", "promote", CUDA, "atan2", computed(widest, low), "ran "),
    fault("gradient-of-softplus-missing", "upcast", XPU, "softplus", detached(None, wide), _MISSING),
    fault("gradient-of-layer-norm-weight-missing", "upcast", MPS, "layer_norm", detached(1, wide), _MISSING),
)

JAX = (
    fault("jax-gradient-of-the-copy-only", "downcast", JAX_DEVICE, "mm", detached(None), _MISSING),
    fault("jax-gradient-of-one-factor-missing", "downcast", JAX_DEVICE, "bmm", detached(1), _MISSING),
    fault("jax-gradient-doubled", "downcast", JAX_DEVICE, "linear", passed(doubled), _DIFFERS),
    fault("jax-gradient-kept-in-low", "downcast", JAX_DEVICE, "mv", kept_in_low, "is fp16 of shape"),
    fault("jax-gradient-of-float32-in-low", "upcast", JAX_DEVICE, "exp", computed(wide, low), _DIFFERS),
    fault("jax-gradient-of-promoted-in-low", "promote", JAX_DEVICE, "addcmul", rounded(widest), _DIFFERS),
    fault("jax-gradient-of-atan2-in-low", "promote", JAX_DEVICE, "atan2", computed(widest, low), "atan2"),
)
"""Those of the jax device."""
