"""Backward passes that run elsewhere, keep or lose too much, hooks that are told something else, and weights that are
computed wrongly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.utils import parametrize

from tests.faults.casts import low_doubles_too
from tests.faults.eligibility import complex_too
from tests.faults.fault import Fault, Inject
from tests.faults.gradients import computed, detached, low, passed
from tests.faults.kernels import Body, Call, kernel
from tests.faults.regions import replaced

_BACKWARD, _GRAD = torch.Tensor.backward, torch.autograd.grad
_HOOK = torch.Tensor.register_hook
_NO_GRAD = torch.no_grad.__enter__
_PACK = torch.autograd.graph.saved_tensors_hooks.__init__
_COMPUTE = parametrize.ParametrizationList.forward
_EMBEDDING = torch.nn.functional.embedding


def _fault(name: str, inject: Inject, only: str, *says: str, device: str = "cpu") -> Fault:
    """A fault that the cases which `only` chooses must catch."""
    return Fault(name, "autodiff", inject, says, "autograd", device, only=only)


def _method(name: str, only: str, *says: str, where: Any = torch.Tensor, device: str = "cpu", **wrong: Any) -> Fault:
    return _fault(name, lambda: replaced(where, **wrong), only, *says, device=device)


def _op(name: str, body: Body, only: str, *says: str, op: str = "mm", device: str = "cpu") -> Fault:
    """A fault of an op's autocast kernel."""
    return _fault(name, lambda: kernel(device, op, body), only, *says, device=device)


# ---- backward, and where it runs


def disabling(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    _BACKWARD(self, *args, **kwargs)
    torch.set_autocast_enabled(self.device.type, False)


def outside(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    with torch.autocast(self.device.type, enabled=False):
        _BACKWARD(self, *args, **kwargs)


def in_a_region(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Run backward in another region."""
    with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
        _BACKWARD(self, *args, **kwargs)


def with_the_default_dtype(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Run backward enabled as the caller, but in a default dtype, as PyTorch's worker threads once did."""
    type_, dtype = self.device.type, torch.get_autocast_dtype(self.device.type)
    torch.set_autocast_dtype(type_, torch.float64)
    try:
        _BACKWARD(self, *args, **kwargs)
    finally:
        torch.set_autocast_dtype(type_, dtype)


def with_options(**wrong: Any) -> Callable[..., None]:
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        _BACKWARD(self, *args, **{**kwargs, **wrong})

    return backward


def in_low_sums(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Gradients are added up in the lower precision."""
    _BACKWARD(self, *args, **kwargs)
    for leaf in _leaves(self.grad_fn):
        if leaf.grad is not None and leaf.dtype == torch.float32:
            leaf.grad = leaf.grad.to(torch.bfloat16).float()


def _leaves(node: Any) -> list[torch.Tensor]:
    if node is None:
        return []
    return [node.variable] if hasattr(node, "variable") else [x for n, _ in node.next_functions for x in _leaves(n)]


def also_accumulating(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    found = _GRAD(outputs, inputs, *args, **{**kwargs, "retain_graph": True})
    torch.autograd.backward(outputs)
    return found


def without_create_graph(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    found = _GRAD(outputs, inputs, *args, **{**kwargs, "retain_graph": True})
    return tuple(part.detach().requires_grad_() for part in found)


# ---- kernels whose backward is wrong


class _Current(torch.autograd.Function):
    """A product whose backward casts its arguments again, as they are by then."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.kept, ctx.dtype = (a, b), dtype
        return torch.mm(a.to(dtype), b.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        a, b = (t.detach().to(ctx.dtype) for t in ctx.kept)
        return torch.mm(grads[0], b.t()), torch.mm(a.t(), grads[0]), None


def cast_again(call: Call) -> Any:
    return _Current.apply(*call.args, call.low)


def scaled_back(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def one_dtype_for_all() -> AbstractContextManager[object]:
    """Every product runs in the dtype that the first one had."""
    first: list[torch.dtype] = []

    def body(call: Call) -> Any:
        first.append(call.low)
        return call.cast(first[0])

    return kernel("cpu", "mm", body)


# ---- hooks and modes


def hook(change: Callable[[torch.Tensor, Callable[[torch.Tensor], Any]], Any]) -> Callable[..., Any]:
    """Return a method that registers `change(gradient, hook)` in place of a hook."""
    return lambda self, given: _HOOK(self, lambda gradient: change(gradient, given))


def without_region(gradient: torch.Tensor, given: Callable[[torch.Tensor], Any]) -> Any:
    with torch.autocast(gradient.device.type, enabled=False):
        return given(gradient)


told_float32 = hook(lambda gradient, given: (given(gradient.float()), None)[1])
hook_without_region = hook(without_region)
hook_ignored = hook(lambda gradient, given: (given(gradient), None)[1])


def hook_too_early(self: torch.Tensor, given: Callable[[torch.Tensor], Any]) -> Any:
    return _HOOK(self, lambda gradient: given(self))


def packing_float32(self: Any, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
    _PACK(self, lambda tensor: (pack(tensor.float()), tensor.dtype), lambda packed: unpack(packed[0]).to(packed[1]))


def no_grad_without_autocast(self: Any) -> None:
    _NO_GRAD(self)
    torch.set_autocast_enabled("cpu", False)


def anomaly_without_autocast(self: Any) -> None:
    torch.set_autocast_enabled("cpu", False)


def ignored(self: Any, mode: bool) -> None:
    self.prev = torch._C._is_multithreading_enabled()


# ---- computed weights and gradients of another kind


def computed_outside(self: Any) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return _COMPUTE(self)


def computed_in_low(self: Any) -> torch.Tensor:
    made = _COMPUTE(self)
    return made.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else made


def with_its_own(module: torch.nn.Module, given: Any, args: tuple[Any, ...], *rest: Any, **kwargs: Any) -> Any:
    return module(*args)


def dense(index: torch.Tensor, table: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _EMBEDDING(index, table)


_HOOKS = torch.autograd.graph.saved_tensors_hooks

FAULTS = (
    _method("backward-turns-autocast-off", "where_it_is_called", "state after backward", backward=disabling),
    _method("backward-outside", "what_a_hook_sees", "state and dtype of a product in two hooks", backward=outside),
    _method("backward-in-a-region", "what_a_hook_sees and outside", "in two hooks", backward=in_a_region),
    _method("backward-in-default-dtype", "what_a_hook_sees", "torch.float64", backward=with_the_default_dtype),
    _method(
        "backward-always-retains", "twice", "a third time: raised nothing", backward=with_options(retain_graph=True)
    ),
    _method(
        "backward-never-retains", "twice", "RuntimeError", "a second time", backward=with_options(retain_graph=False)
    ),
    _method("gradients-added-in-low", "micro_batches or small_steps", "gradient", backward=in_low_sums),
    _method(
        "backward-for-every-leaf",
        "chosen_leaves",
        "whether x has a gradient: got True",
        backward=with_options(inputs=None),
    ),
    _method(
        "grad-sets-grad", "instead_of_method", "whether .grad is set", where=torch.autograd, grad=also_accumulating
    ),
    _method(
        "grad-without-graph",
        "double_backward",
        "whether x has a second derivative",
        where=torch.autograd,
        grad=without_create_graph,
    ),
    _op("product-gradient-doubled", passed(scaled_back, 1), "as_by_hand and product", "gradient of w"),
    _op("product-gradient-lost", detached(1), "as_by_hand and layer", "gradient of w", op="linear"),
    _op("product-once-differentiable", computed(low, low), "double_backward", "RuntimeError"),
    _op("product-casts-again", cast_again, "changed_after_forward", "gradient of the input: differs by"),
    _op("product-casts-double-leaves", low_doubles_too, "dtype_of_the_leaf", "dtype of the product", "torch.float64"),
    _op("product-casts-complex-leaves", complex_too, "complex_leaf", "torch.complex64"),
    _fault("product-in-the-first-dtype", one_dtype_for_all, "backward_in_turns", "gradient of three steps in"),
    _method("hook-told-float32", "tensor_hook_dtype", "dtypes of gradients", register_hook=told_float32),
    _method("hook-without-region", "hook_that_computes", "dtypes of a product", register_hook=hook_without_region),
    _method("hook-ignored", "hook_that_replaces", "gradient of the leaf: differs", register_hook=hook_ignored),
    _method(
        "post-accumulate-hook-too-early",
        "accumulated",
        "dtype of .grad at each call: got [None",
        register_post_accumulate_grad_hook=hook_too_early,
    ),
    _method(
        "packed-as-float32",
        "/saved and not computed and not elsewhere",
        "dtypes saved",
        where=_HOOKS,
        __init__=packing_float32,
    ),
    _method(
        "no-grad-ends-autocast", "grad_mode", "state in both", where=torch.no_grad, __enter__=no_grad_without_autocast
    ),
    _method(
        "anomaly-ends-autocast",
        "anomaly_detection",
        "gradient: differs",
        where=torch.autograd.set_detect_anomaly,
        __enter__=anomaly_without_autocast,
    ),
    _method(
        "weight-computed-outside",
        "computed_by_a_product",
        "dtype of the computed weight: got torch.float32",
        where=parametrize.ParametrizationList,
        forward=computed_outside,
    ),
    _method(
        "weight-computed-in-low",
        "weight_in_and_outside",
        "computed weight: got",
        where=parametrize.ParametrizationList,
        forward=computed_in_low,
    ),
    _method("weight-computed-each-time", "computed_once", "computed once", where=parametrize, cached=nullcontext),
    _method("call-with-own-weights", "swapped_for_a_call", "gradient", where=torch.func, functional_call=with_its_own),
    _method("embedding-dense", "sparse_gradient", "layout of", where=torch.nn.functional, embedding=dense),
)

JAX = (
    _method("jax-backward-outside", "what_a_hook_sees and same", "in two hooks", device="jax", backward=outside),
    _method(
        "jax-backward-in-a-region", "what_a_hook_sees and outside", "in two hooks", device="jax", backward=in_a_region
    ),
    _method("jax-gradients-added-in-low", "small_steps", "sum of the gradients", device="jax", backward=in_low_sums),
    _op("jax-product-gradient-lost", detached(1), "as_by_hand and product", "gradient of w", device="jax"),
    _op("jax-product-casts-again", cast_again, "changed_after_forward", "gradient of the input", device="jax"),
    _method("jax-hook-told-float32", "tensor_hook_dtype", "of gradients", device="jax", register_hook=told_float32),
    _method(
        "jax-backward-in-its-own-thread",
        "in_the_calling_thread",
        "state and depth a hook sees",
        device="jax",
        where=torch.autograd.grad_mode.set_multithreading_enabled,
        __init__=ignored,
        __exit__=lambda self, *error: None,
        __enter__=lambda self: None,
    ),
)
"""Those of the jax device."""
