"""Casts that are kept wrongly, gradients of ops whose forward pass is right, and backward passes, checkpoints, custom
functions, transforms and ranks that lose the region or change results."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import apis
from torch._library import custom_ops
from torch.autograd import functional
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.fx.experimental import proxy_tensor
from torch.nn.parallel import DistributedDataParallel as Replicated
from torch.nn.utils import parametrize
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from ampcheck.devices.virtual import graphs
from tests.faults.kernels import (
    FP32,
    Body,
    Call,
    Choice,
    Tensor,
    complex_too,
    each,
    in_low,
    kernel,
    low,
    low_doubles_too,
    numbered,
    of_ops,
    wide,
)
from tests.faults.mutant import Change, Inject, both, fresh, giving, mutants, put, returns, within, wrap
from tests.faults.state import function, outside, vaguely
from tests.faults.state import low as in_regions_low

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


def one_dtype_for_all() -> Inject:
    """Run every product in the dtype that the first one had."""
    found: list[torch.dtype] = []
    return kernel("mm", lambda call: call.cast((found.append(call.low), found[0])[1]))


# ---- backward, and where it runs


def adding_in_low(in_regions_alone: bool) -> Change:
    def backward(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        for leaf in _leaves(self.grad_fn):
            chosen = torch.is_autocast_enabled(self.device.type) or not in_regions_alone
            if chosen and leaf.grad is not None and leaf.dtype == torch.float32:
                leaf.grad = leaf.grad.to(torch.bfloat16).float()

    return backward


def _leaves(node: Any) -> list[Tensor]:
    if node is None:
        return []
    return [node.variable] if hasattr(node, "variable") else [x for n, _ in node.next_functions for x in _leaves(n)]


# ---- custom functions and ops


def registered_once() -> Inject:
    known: set[Any] = set()

    def register(own: Any, op: Any, *rest: Any, lib: Any = None) -> None:
        if op not in known:
            known.add(op)
            own(op, *rest, lib=lib)

    return wrap(torch.library, register_autocast=register)


@contextmanager
def registrations_kept(device: str) -> Iterator[None]:
    """Keep the registrations of a library after its end."""
    libraries: list[Any] = []

    def register(own: Any, op: Any, *rest: Any, lib: Any = None) -> None:
        libraries.append(torch.library.Library(op.partition("::")[0], "FRAGMENT"))
        own(op, *rest, lib=libraries[-1])

    with wrap(torch.library, register_autocast=register)(device):
        yield
    for library in libraries:
        library._destroy()


def registered_for_all(own: Any, self: Any, device_type: str, cast_inputs: torch.dtype) -> None:
    for name in ("cpu", "xpu"):
        own(self, name, cast_inputs)


# ---- transforms


def transform(name: str, change: Change) -> Inject:
    """Change the functions that a transform of torch.func is given."""
    return wrap(torch.func, **{name: lambda own, fn, *args, **options: own(partial(change, fn), *args, **options)})


def another_dtype() -> AbstractContextManager[object]:
    """Enter a region of the lower precision that the region around does not have."""
    low = torch.get_autocast_dtype("cpu")
    return torch.autocast("cpu", dtype=torch.float16 if low == torch.bfloat16 else torch.bfloat16)


def pulled_in_low(own: Any, *args: Any, **options: Any) -> Any:
    out, pull = own(*args, **options)
    return out, lambda *given: tree_map(lambda found: found.bfloat16(), pull(*given))


# ---- replicas and ranks


_POWER_SGD = powerSGD_hook.powerSGD_hook


def policy(**fixed: Any) -> Inject:
    """Have every policy of fully_shard be made with some options fixed."""
    return wrap(fsdp, MixedPrecisionPolicy=lambda own, **options: own(**{**options, **fixed}))


@wraps(powerSGD_hook.powerSGD_hook)
def finite_hook(state: Any, bucket: Any) -> Any:
    return _POWER_SGD(state, bucket).then(lambda done: torch.nan_to_num(done.value(), nan=0.0, posinf=0.0, neginf=0.0))


def joined_low(own: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Join DTensors in the lower precision."""
    out = own(tensors, *args, **kwargs)
    spread = hasattr(tensors[0], "to_local") and torch.is_autocast_enabled("cpu")
    return out.to(torch.get_autocast_dtype("cpu")) if spread else out


_COMPUTED = parametrize.ParametrizationList
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
            "autograd/upcast virtual:mps": {"gradient-of-layer-norm-weight-missing": ("layer_norm", detached(1, wide))},
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
            "autograd/autodiff": {
                "gradients-added-in-low-in-regions": wrap(Tensor, backward=adding_in_low(in_regions_alone=True)),
                "product-gradient-doubled": kernel("mm", passed(doubled, 1)),
                "product-gradient-in-other-dtype": kernel("mm", computed(low, lambda call: call.other)),
                "layer-gradient-lost": kernel("linear", detached(1)),
                "layer-weight-gradient-doubled": kernel("linear", passed(doubled, 1)),
                "loss-gradient-doubled": kernel("mse_loss", passed(doubled, 0, wide)),
                "power-saves-a-copy": kernel("pow.Tensor_Scalar", lambda call: call.run(lambda place, t: t.clone())),
                "product-casts-double-leaves": kernel("mm", low_doubles_too),
                "product-casts-complex-leaves": kernel("mm", complex_too),
                "product-in-the-first-dtype": fresh(one_dtype_for_all),
                "cache-ignores-requires-grad": cache(keeps=lambda t: t.is_leaf),
                "weight-computed-outside": wrap(_COMPUTED, forward=outside),
                "weight-computed-in-low": wrap(_COMPUTED, forward=giving(in_regions_low)),
                "weight-computed-each-time": put(parametrize, cached=nullcontext),
                "embedding-dense": function(
                    "nn.functional.embedding", lambda own, index, table, *args, **_: own(index, table)
                ),
            },
            "autograd/autodiff cpu jax": {
                "gradients-added-in-low": wrap(Tensor, backward=adding_in_low(in_regions_alone=False)),
                "product-casts-again": kernel("mm", lambda call: _Current.apply(*call.args, call.low)),
            },
            "autograd/checkpoint cpu jax": {
                "replay-in-no-state": put(torch.amp, autocast=lambda device_type, **options: nullcontext())
            },
            "autograd/checkpoint": {
                "replay-draws-anew": both(
                    put(torch.random, fork_rng=lambda *_, **__: nullcontext()),
                    put(torch, set_rng_state=lambda state: None),
                ),
                "replay-unchecked": lambda device: patch.dict(
                    checkpoint._allowed_determinism_checks_to_fns, {"default": lambda tensor: None}
                ),
            },
            "autograd/customfn": {
                "op-registered-for-all": wrap(custom_ops.CustomOpDef, register_autocast=registered_for_all),
                "op-registered-once": fresh(registered_once),
                "library-op-kept": registrations_kept,
                "second-derivative-not-refused": put(
                    torch._C._functions,
                    DelayedError=lambda message, count: lambda *grads: tuple(gradient.detach() for gradient in grads),
                ),
            },
            "autograd/functorch": {
                "grad-outside-of-regions": transform("grad", outside),
                "functionalized-outside": transform("functionalize", outside),
                "pulled-in-low": wrap(torch.func, vjp=pulled_in_low),
                "loss-in-low": kernel("mse_loss", in_low),
                "surrounding-product-doubled": kernel(
                    "mm", lambda call: call.run(lambda place, t: (t * 2 if place == 0 else t).to(call.low))
                ),
                "trace-keeps-casts": put(proxy_tensor, disable_autocast_cache=nullcontext),
                "functional-jacobian-in-low": wrap(functional, jacobian=giving(Tensor.bfloat16)),
            },
            "autograd/functorch cpu jax": {
                "vmap-swaps-slices": wrap(
                    apis, vmap_impl=giving(lambda out: tree_map(lambda tensor: tensor.flip(0), out))
                )
            },
            "autograd/transforms": {
                "jvp-in-another-dtype": transform("jvp", within(another_dtype)),
                "jacobian-low": wrap(
                    torch.func, jacrev=giving(lambda call: lambda *given: in_regions_low(call(*given)))
                ),
            },
            "autograd/dataparallel": {
                "reduced-outside": wrap(Replicated, forward=outside),
                "shard-without-dtype": policy(param_dtype=None),
            },
            "autograd/ranks": {
                "hook-refused-vaguely": wrap(Replicated, register_comm_hook=vaguely),
                "hook-loses-infinity": put(powerSGD_hook, powerSGD_hook=finite_hook),
                "local-models-not-averaged": wrap(PeriodicModelAverager, average_parameters=returns(None)),
                "policy-leaves-inputs": policy(cast_forward_inputs=False),
                "policy-reduces-in-float32": policy(reduce_dtype=torch.float32),
                "policy-without-output": policy(output_dtype=None),
                "dtensors-joined-low": wrap(torch, cat=joined_low),
            },
        }
    ),
)
