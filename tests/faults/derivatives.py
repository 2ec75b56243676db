"""Wrong results, gradients and states that one scenario of the suite autograd alone can see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import functional
from torch.fx.experimental import proxy_tensor
from torch.nn.utils import parametrizations
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from tests.faults import caches, regions
from tests.faults.casts import in_low
from tests.faults.customfn import backward
from tests.faults.fault import Fault, in_scenario
from tests.faults.gradients import doubled, passed, wide
from tests.faults.kernels import Body, Call, kernel

_PACK = torch.autograd.graph.saved_tensors_hooks.__init__
_GRAD = torch.autograd.grad
_VJP = torch.func.vjp
_JACOBIAN = functional.jacobian
_INVERSE = parametrizations._WeightNorm.right_inverse
_SIGMA = parametrizations._SpectralNorm.forward
_AGAIN = checkpoint._checkpoint_without_reentrant_generator
_REGISTER = torch.library.register_autocast
_APPLY = torch.autograd.Function.apply
Pass = Callable[..., Any]


_fault = partial(in_scenario, "autograd")


def _region(name: str, where: str, says: str, **methods: Pass) -> Fault:
    wrong = {f"__{method}__": body for method, body in methods.items()}
    return _fault(name, where, says, lambda: regions.replaced(regions.autocast, **wrong))


def _op(name: str, where: str, says: str, op: str, body: Body) -> Fault:
    return _fault(name, where, says, lambda: kernel("cpu", op, body))


def _put(name: str, where: str, says: str, owner: Any, attribute: str, wrong: Any) -> Fault:
    return _fault(name, where, says, lambda: patch.object(owner, attribute, wrong))


# ---- autograd


def packing_bytes(self: Any, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
    """Round saved tensors to eight bits."""
    _PACK(self, lambda tensor: pack(tensor.to(torch.float8_e5m2).to(tensor.dtype)), unpack)


def copied(call: Call) -> Any:
    """Saves copies of its arguments, so that nobody notices if they change."""
    return call.run(lambda place, t: t.clone())


def first_doubled(call: Call) -> Any:
    return call.run(lambda place, t: (t * 2 if place == 0 else t).to(call.low))


def batched_backwards(*args: Any, is_grads_batched: bool = False, **options: Any) -> Any:
    """The last of a batch of gradients comes first."""
    found = _GRAD(*args, is_grads_batched=is_grads_batched, **options)
    return tuple(gradient.flip(0) for gradient in found) if is_grads_batched else found


def without_mode(self: Any, *args: Any, **options: Any) -> None:
    """The mode is noted and not turned on."""
    self.prev, self.prev_check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def undivided(self: Any, weight: torch.Tensor) -> torch.Tensor:
    _SIGMA(self, weight)
    return weight


def inverted_in_low(self: Any, weight: torch.Tensor) -> Any:
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
    return tree_map(lambda part: part.to(low), _INVERSE(self, weight))


def applied_outside() -> AbstractContextManager[object]:
    """Run custom functions outside of every region."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return _APPLY.__func__(cls, *args, **kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(apply))


def without_requested_regions(function: Any, preserve: Any, context_fn: Any, *rest: Any, **options: Any) -> Any:
    return _AGAIN(function, preserve, checkpoint.noop_context_fn, *rest, **options)


# ---- custom functions and ops


def without_graph(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return bwd(*args, **kwargs)


def materialized(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A gradient that is not there is zero, although the function asked for None."""
    return bwd(args[0], *(torch.zeros(()) if gradient is None else gradient for gradient in args[1:]), **kwargs)


def no_refusal(message: str, count: int) -> Any:
    """Return no graph in place of refusing a second derivative."""
    return lambda *gradients: tuple(gradient.detach() for gradient in gradients)


def registered_for_region(op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> Any:
    """Register the region's dtype in place of the requested one."""
    return _REGISTER(op, device_type, torch.bfloat16, lib=lib)


def registered_once() -> AbstractContextManager[object]:
    """A second registration is dropped without a word."""
    known: set[Any] = set()

    def register(op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> None:
        if op not in known:
            known.add(op)
            _REGISTER(op, device_type, cast_inputs, lib=lib)

    return patch.object(torch.library, "register_autocast", register)


@contextmanager
def kept() -> Iterator[None]:
    """Keep the registrations of a library after its end."""
    libraries: list[Any] = []

    def register(op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> None:
        libraries.append(torch.library.Library(op.partition("::")[0], "FRAGMENT"))
        _REGISTER(op, device_type, cast_inputs, lib=libraries[-1])

    with patch.object(torch.library, "register_autocast", register):
        yield
    for library in libraries:
        library._destroy()


# ---- transforms


def pulled_in_low(*args: Any, **options: Any) -> Any:
    out, pull = _VJP(*args, **options)
    return out, lambda *given: tree_map(lambda found: found.bfloat16(), pull(*given))


def jacobian_in_low(*args: Any, **options: Any) -> Any:
    return _JACOBIAN(*args, **options).bfloat16()


_HOOKS = torch.autograd.graph.saved_tensors_hooks
_EXIT = regions.exit_only_without_exception

FAULTS = (
    _region("hook-leaves-region-open", "autodiff/left_open_in_a_hook", "state after backward: got", exit=_EXIT),
    _put(
        "saved-as-bytes", "autodiff/saved_elsewhere", "gradient of the leaf: differs", _HOOKS, "__init__", packing_bytes
    ),
    _op(
        "loss-gradient-doubled",
        "autodiff/low_leaf_in_float32_op",
        "gradient: differs",
        "mse_loss",
        passed(doubled, 0, wide),
    ),
    _op(
        "power-saves-a-copy",
        "autodiff/changed_where_it_is_saved_itself",
        "backward: raised nothing",
        "pow.Tensor_Scalar",
        copied,
    ),
    _fault(
        "cache-ignores-requires-grad",
        "autodiff/frozen_and_thawed",
        "does a result require grad, frozen: got True",
        lambda: caches.cache(keeps=lambda call, t: t.is_leaf),
    ),
    _put(
        "anomaly-mode-stays-off",
        "autodiff/anomaly_names_the_op",
        "raised nothing",
        torch.autograd.set_detect_anomaly,
        "__init__",
        without_mode,
    ),
    _put(
        "spectral-norm-undivided",
        "autodiff/spectral_norm",
        "whether the largest singular value is 1: got False",
        parametrizations._SpectralNorm,
        "forward",
        undivided,
    ),
    _put(
        "inverse-in-low",
        "autodiff/registered_in_a_region",
        "torch.bfloat16",
        parametrizations._WeightNorm,
        "right_inverse",
        inverted_in_low,
    ),
    _put("batch-backwards", "autodiff/batched_gradients", "differs", torch.autograd, "grad", batched_backwards),
    _op("layer-weight-gradient-doubled", "autodiff/recurrent", "gradient of weight", "linear", passed(doubled, 1)),
    _put(
        "requested-regions-dropped",
        "checkpoint/around_by_request",
        "states and dtypes: got [((True, torch.float16, True)",
        checkpoint,
        "_checkpoint_without_reentrant_generator",
        without_requested_regions,
    ),
    _fault("function-applied-outside", "customfn/undecorated", "in forward: got", applied_outside),
    _put(
        "bwd-without-graph",
        "customfn/second_derivative",
        "does not require grad",
        torch.amp,
        "custom_bwd",
        backward(without_graph),
    ),
    _put(
        "bwd-materializes",
        "customfn/not_materialized",
        "which gradients are None, and which are needed: got",
        torch.amp,
        "custom_bwd",
        backward(materialized),
    ),
    _put(
        "library-op-casts-to-low",
        "customfn/cast_to",
        "dtype of what was",
        torch.library,
        "register_autocast",
        registered_for_region,
    ),
    _fault(
        "op-registered-once",
        "customfn/registered_again",
        "dtype after it was registered again: got torch.bfloat16",
        registered_once,
    ),
    _fault(
        "library-op-kept", "customfn/forgotten_with_its_library", "dtype of a new op of its name: got torch.bf", kept
    ),
    _put(
        "second-derivative-not-refused",
        "customfn/once_differentiable",
        "expected it to say 'once_differentiable'",
        torch._C._functions,
        "DelayedError",
        no_refusal,
    ),
    _region("inner-region-not-off", "functorch/inner_region_off", "products", enter=regions.enter_cannot_disable),
    _region("inner-region-as-outer", "functorch/inner_region_other", "products", enter=regions.enter_keeps_outer_dtype),
    _put(
        "pulled-in-low",
        "functorch/pulled_outside",
        "dtypes of the result: got {torch.bf",
        torch.func,
        "vjp",
        pulled_in_low,
    ),
    _op("loss-in-low", "functorch/loss_in_float32", "dtype of the loss: got ([torch.bfloat16]", "mse_loss", in_low),
    _op(
        "surrounding-product-doubled",
        "functorch/weight_of_the_surroundings",
        "gradient of the weight: got",
        "mm",
        first_doubled,
    ),
    _region("transform-leaves-region-open", "functorch/what_it_raises", "state and depth afterwards: got", exit=_EXIT),
    _put(
        "trace-keeps-casts",
        "functorch/same_graph_again",
        "the second graph: got",
        proxy_tensor,
        "disable_autocast_cache",
        nullcontext,
    ),
    _put("batch-backwards-mapped", "functorch/batched_gradients", "differs", torch.autograd, "grad", batched_backwards),
    _put("jacobian-in-low", "functorch/jacobian", "dtype: got torch.bfloat16", functional, "jacobian", jacobian_in_low),
)
