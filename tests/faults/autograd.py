"""Backward passes, checkpoints, custom functions, transforms and ranks that lose the region or change results."""

from collections.abc import Callable, Iterator
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

from tests.faults.gradients import cache as another_cache
from tests.faults.gradients import cast_again, computed, detached, doubled, one_dtype_for_all, passed
from tests.faults.kernels import complex_too, in_low, kernel, low, low_doubles_too, wide
from tests.faults.mutant import Change, Inject, both, fresh, giving, mutants, put, returns, within, wrap
from tests.faults.state import function, outside, vaguely
from tests.faults.state import low as in_regions_low

Tensor = torch.Tensor


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


def giving_low_in_regions(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: in_regions_low(call(*given))


def pulled_in_low(own: Any, *args: Any, **options: Any) -> Any:
    out, pull = own(*args, **options)
    return out, lambda *given: tree_map(lambda found: found.bfloat16(), pull(*given))


# ---- replicas and ranks


_POWER_SGD = powerSGD_hook.powerSGD_hook


def policy(**fixed: Any) -> Inject:
    """Have every policy of fully_shard be made with some options fixed."""
    return wrap(fsdp, MixedPrecisionPolicy=lambda own, **options: own(**{**options, **fixed}))


def without_infinity(done: Any) -> torch.Tensor:
    """Give finite gradients in place of those that are not."""
    return torch.nan_to_num(done.value(), nan=0.0, posinf=0.0, neginf=0.0)


@wraps(powerSGD_hook.powerSGD_hook)
def finite_hook(state: Any, bucket: Any) -> Any:
    return _POWER_SGD(state, bucket).then(without_infinity)


def joined_low(own: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Join DTensors in the lower precision."""
    out = own(tensors, *args, **kwargs)
    spread = hasattr(tensors[0], "to_local") and torch.is_autocast_enabled("cpu")
    return out.to(torch.get_autocast_dtype("cpu")) if spread else out


_COMPUTED = parametrize.ParametrizationList
MUTANTS = mutants(
    {
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
            "cache-ignores-requires-grad": another_cache(keeps=lambda t: t.is_leaf),
            "weight-computed-outside": wrap(_COMPUTED, forward=outside),
            "weight-computed-in-low": wrap(_COMPUTED, forward=giving(in_regions_low)),
            "weight-computed-each-time": put(parametrize, cached=nullcontext),
            "embedding-dense": function(
                "nn.functional.embedding", lambda own, index, table, *args, **_: own(index, table)
            ),
        },
        "autograd/autodiff cpu jax": {
            "gradients-added-in-low": wrap(Tensor, backward=adding_in_low(in_regions_alone=False)),
            "product-casts-again": kernel("mm", cast_again),
        },
        "autograd/checkpoint cpu jax": {
            "replay-in-no-state": put(torch.amp, autocast=lambda device_type, **options: nullcontext()),
        },
        "autograd/checkpoint": {
            "replay-draws-anew": both(
                put(torch.random, fork_rng=lambda *_, **__: nullcontext()), put(torch, set_rng_state=lambda state: None)
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
            "vmap-swaps-slices": wrap(apis, vmap_impl=giving(lambda out: tree_map(lambda tensor: tensor.flip(0), out))),
        },
        "autograd/transforms": {
            "jvp-in-another-dtype": transform("jvp", within(another_dtype)),
            "jacobian-low": wrap(torch.func, jacrev=giving(giving_low_in_regions)),
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
)
