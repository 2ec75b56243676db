"""Casts that autocast keeps wrongly, and gradients of ops whose forward pass is right."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

from ampcheck.devices.virtual import graphs
from tests.faults.kernels import (
    FP32,
    Body,
    Call,
    Change,
    Choice,
    Tensor,
    each,
    in_low,
    kernel,
    low,
    numbered,
    of_ops,
    wide,
)
from tests.faults.mutant import Inject, both, fresh, mutants, put

# ---- casts that are kept


CONDITIONS: dict[str, Callable[[Tensor], bool]] = {
    "setting": lambda t: torch.is_autocast_cache_enabled(),
    "dtype": lambda t: t.dtype == FP32,
    "leaf": lambda t: t.is_leaf,
    "grad": lambda t: t.requires_grad,
    "view": lambda t: not t._is_view(),
    "inference": lambda t: not torch.is_inference_mode_enabled(),
    "registered": lambda t: not torch._C._is_cached_tensor(t),
}
"""When PyTorch keeps the cast of a tensor."""


def promised_but(*ignored: str) -> Callable[[Tensor], bool]:
    """Keep a cast as PyTorch does, without some of its conditions."""
    return lambda t: all(holds(t) for name, holds in CONDITIONS.items() if name not in ignored)


promised = promised_but()


def by_identity(call: Call, t: Tensor) -> Hashable:
    """Return PyTorch's cache key: the tensor, its dtype, and whether gradients are recorded."""
    return id(t), call.low, torch.is_grad_enabled()


def without_grad_mode(call: Call, t: Tensor) -> Hashable:
    """Let a cast that was made while no gradients are recorded serve later, when they are."""
    return id(t), call.low


def cache(
    keeps: Callable[[Tensor], bool] = promised,
    key: Callable[[Call, Tensor], Hashable] = by_identity,
    clears: bool = True,
    strong: bool = True,
) -> Inject:
    """Give products another cache of casts: PyTorch's own lies in C++.

    `keeps`: whether a cast is cached. `key`: its key. `clears`: whether clearing empties it. `strong`: whether the
    tensor is kept alive, so that its identity is not used again.
    """

    def make() -> Inject:
        cached: dict[Hashable, tuple[Tensor | None, Tensor]] = {}
        clear_own = torch.clear_autocast_cache

        def cast(call: Call, t: Tensor) -> Tensor:
            if not call.eligible(t) or t.dtype == call.low:
                return t
            if not keeps(t):
                return t.to(call.low)
            place = key(call, t)
            if place not in cached:
                cached[place] = (t if strong else None, t.to(call.low))
            return cached[place][1]

        def clear() -> None:
            clear_own()
            if clears:
                cached.clear()

        products = ("mm", "matmul", "baddbmm", "linear")
        return both(*(kernel(op, each(cast)) for op in products), put(torch, clear_autocast_cache=clear))

    return fresh(make)


def detached_casts(call: Call) -> Any:
    """Cast without gradient, as if the cast was kept from a forward under no_grad."""
    with torch.no_grad():
        casts = [t.to(call.low) if call.eligible(t) else t for t in call.tensors()]
    return call.run(lambda place, t: casts[place])


def kept_in_float32() -> Inject:
    """Keep casts of a loss to float32."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def cast(call: Call, t: Tensor) -> Tensor:
        if call.eligible(t) and id(t) not in kept:
            kept[id(t)] = t, t.float()
        return kept[id(t)][1] if call.eligible(t) else t

    return kernel("mse_loss", each(cast))


# ---- gradients: the forward pass is right, what the backward pass makes of it is not


class _Changed(torch.autograd.Function):
    """A tensor as it is, whose gradient is changed on its way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


class _Computed(torch.autograd.Function):
    """An op computed in one dtype, whose gradient is computed in another."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        *tensors, call, forward, backward = given
        ctx.call, ctx.dtype = call, backward
        ctx.save_for_backward(*tensors)
        return call.cast(forward)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        with torch.enable_grad():
            copies = [t.detach().to(ctx.dtype).requires_grad_() if call.eligible(t) else t for t in tensors]
            out = call.run(lambda place, t: copies[place])
        graphs.backward([out], [grads[0].to(out.dtype)])  # fake tensors know no other
        pairs = zip(copies, tensors, strict=True)
        return *(None if copy.grad is None else copy.grad.to(t.dtype) for copy, t in pairs), None, None, None


class _Current(torch.autograd.Function):
    """A product whose backward casts its arguments again, as they are by then."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.kept, ctx.dtype = (a, b), dtype
        return torch.mm(a.to(dtype), b.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = (t.detach().to(ctx.dtype) for t in ctx.kept)
        return torch.mm(grads[0], b.t()), torch.mm(a.t(), grads[0]), None


def changed(tensor: Tensor, change: Change) -> Tensor:
    made: Tensor = _Changed.apply(tensor, change)
    return made


def computed(forward: Choice, backward: Choice) -> Body:
    """Compute an op in one dtype and the op's gradient in another."""
    return lambda call: _Computed.apply(*call.tensors(), call, forward(call), backward(call))


def promoted(call: Call) -> torch.dtype:
    """Return the dtype that rule promote casts float32 and one lower precision to."""
    return FP32 if any(t.dtype == FP32 for t in call.tensors() if call.eligible(t)) else call.low


def cast_then(dtype: Choice, change: Callable[[Call, int, Tensor], Tensor]) -> Body:
    """Cast to `dtype`, and change each eligible tensor by its place once it is cast."""

    def body(call: Call) -> Any:
        wanted = dtype(call)
        return call.run(lambda place, t: change(call, place, t.to(wanted)) if call.eligible(t) else t)

    return body


def detached(place: int | None, dtype: Choice = low) -> Body:
    """Let no gradient reach the argument at a place; for None any argument, though copies of them require grad."""
    if place is None:
        return cast_then(dtype, lambda call, n, t: t.detach().requires_grad_())
    return cast_then(dtype, lambda call, n, t: t.detach() if n == place else t)


def passed(change: Change, place: int | None = None, dtype: Choice = low) -> Body:
    """Change the gradient of the cast copy before it passes the cast: at one place, or everywhere."""
    return cast_then(dtype, lambda call, n, t: changed(t, change) if place in (None, n) else t)


def rounded(dtype: Choice) -> Body:
    """Pass the gradient through the region's dtype on its way back."""
    return cast_then(dtype, lambda call, n, t: changed(t, lambda g: g.to(call.low).to(g.dtype)))


def without_a_graph(call: Call) -> Any:
    with torch.no_grad():
        return call.cast(call.low)


def kept_in_low(call: Call) -> Any:
    """Tell leaves that their gradients are of the region's dtype."""
    for t in call.tensors():
        if call.eligible(t) and t.is_leaf and t.requires_grad:
            t.grad_dtype = call.low
    return call.cast(call.low)


def of_a_constant(call: Call) -> Any:
    """Give a gradient to an argument that has none."""
    constant = call.tensors()[-1]
    return numbered(call.cast(FP32), lambda place, t: t + 0 * constant.to(FP32).sum())


def no_gradient(gradient: Tensor) -> Tensor:
    raise RuntimeError("no gradient under autocast")


def doubled(gradient: Tensor) -> Tensor:
    return gradient * 2


def cast_again(call: Call) -> Any:
    return _Current.apply(*call.args, call.low)


def one_dtype_for_all() -> Inject:
    """Run every product in the dtype that the first one had."""
    found: list[torch.dtype] = []
    return kernel("mm", lambda call: call.cast((found.append(call.low), found[0])[1]))


MUTANTS = (
    *of_ops(
        {
            "autograd/downcast cpu jax": {"gradient-of-the-copy-only": ("mm", detached(None))},
            "autograd/downcast": {
                "gradient-kept-in-low": ("addmm", kept_in_low),
                "gradient-without-a-graph": ("matmul", without_a_graph),
                "gradient-refused": ("conv3d", passed(no_gradient)),
            },
            "autograd/upcast": {"gradient-of-a-constant": ("hinge_embedding_loss", of_a_constant)},
            "autograd/upcast virtual:cuda jax": {"gradient-of-exp-in-low": ("exp", computed(wide, low))},
            "autograd/upcast virtual:xpu": {"gradient-of-softplus-missing": ("softplus", detached(None, wide))},
            "autograd/upcast virtual:mps": {
                "gradient-of-layer-norm-weight-missing": ("layer_norm", detached(1, wide)),
            },
            "autograd/promote": {"gradient-of-promoted-in-low": ("stack", rounded(promoted))},
        }
    ),
    *mutants(
        {
            "eager/cache": {
                "casts-to-float32-kept": fresh(kept_in_float32),
                "cache-never-used": cache(keeps=lambda t: False),
                "cache-never-cleared": cache(clears=False),
                "cache-ignores-setting": cache(keeps=promised_but("setting")),
                "cache-of-low-leaves": cache(keeps=promised_but("dtype")),
                "cache-of-results": cache(keeps=promised_but("leaf")),
                "cache-without-grad": cache(keeps=promised_but("grad")),
                "cache-of-views": cache(keeps=promised_but("view", "leaf")),
                "cache-in-inference-mode": cache(keeps=promised_but("inference"), key=without_grad_mode),
                "cache-grows-without-grad": cache(
                    key=lambda call, t: by_identity(call, t) if torch.is_grad_enabled() else object()
                ),
                "cache-by-address": cache(
                    key=lambda call, t: (t.data_ptr(), call.low, torch.is_grad_enabled()), strong=False
                ),
                "cast-at-each-use": kernel("mm", in_low),
            },
            "autograd/cache": {
                "cache-ignores-grad-mode": cache(key=without_grad_mode),
                "cast-loses-gradient": kernel("mm", detached_casts),
            },
        }
    ),
)
