"""Backward passes, hooks, custom functions, checkpoints and transforms that lose the region or change results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import apis
from torch._library import custom_ops
from torch.autograd import forward_ad, functional
from torch.fx.experimental import proxy_tensor
from torch.nn.utils import parametrizations, parametrize, stateless
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from tests.faults.gradients import cache as another_cache
from tests.faults.gradients import cast_again, computed, detached, doubled, one_dtype_for_all, passed
from tests.faults.kernels import complex_too, in_low, kernel, low, low_doubles_too, wide
from tests.faults.modules import low as in_regions_low
from tests.faults.modules import off, outside
from tests.faults.mutant import CPU, JAX, Change, Inject, both, fresh, giving, mutants, put, returns, then, within, wrap
from tests.faults.regions import SET, SET_DTYPE

Tensor = torch.Tensor
Pass = Callable[..., Any]
_APPLY = torch.autograd.Function.apply
_HOOKS = torch.autograd.graph.saved_tensors_hooks


def disable(_: object = None) -> None:
    SET("cpu", False)


# ---- backward, and where it runs


def in_a_region(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
    with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
        own(self, *args, **kwargs)


def out_of_regions(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
    with off(self.device.type):
        own(self, *args, **kwargs)


def with_the_default_dtype(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
    """Run backward enabled as the caller, but in a default dtype, as PyTorch's worker threads once did."""
    type_, dtype = self.device.type, torch.get_autocast_dtype(self.device.type)
    SET_DTYPE(type_, torch.float64)
    try:
        own(self, *args, **kwargs)
    finally:
        SET_DTYPE(type_, dtype)


def adding_in_low(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
    own(self, *args, **kwargs)
    for leaf in _leaves(self.grad_fn):
        if leaf.grad is not None and leaf.dtype == torch.float32:
            leaf.grad = leaf.grad.to(torch.bfloat16).float()


def adding_in_low_in_regions(own: Any, self: Tensor, *args: Any, **kwargs: Any) -> None:
    if torch.is_autocast_enabled(self.device.type):
        adding_in_low(own, self, *args, **kwargs)
    else:
        own(self, *args, **kwargs)


def _leaves(node: Any) -> list[Tensor]:
    if node is None:
        return []
    return [node.variable] if hasattr(node, "variable") else [x for n, _ in node.next_functions for x in _leaves(n)]


def with_options(**wrong: Any) -> Change:
    return lambda own, self, *args, **kwargs: own(self, *args, **{**kwargs, **wrong})


def also_accumulating(own: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    found = own(outputs, inputs, *args, **{**kwargs, "retain_graph": True})
    torch.autograd.backward(outputs)
    return found


def without_create_graph(own: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    found = own(outputs, inputs, *args, **{**kwargs, "retain_graph": True})
    return tuple(part.detach().requires_grad_() for part in found)


def batched_backwards(own: Any, *args: Any, is_grads_batched: bool = False, **options: Any) -> Any:
    """Put the last of a batch of gradients first."""
    found = own(*args, is_grads_batched=is_grads_batched, **options)
    return tuple(gradient.flip(0) for gradient in found) if is_grads_batched else found


def hook(change: Callable[[Tensor, Callable[[Tensor], Any]], Any]) -> Inject:
    """Register `change(gradient, hook)` in place of a hook."""
    return wrap(Tensor, register_hook=lambda own, self, given: own(self, lambda gradient: change(gradient, given)))


def without_region(gradient: Tensor, given: Callable[[Tensor], Any]) -> Any:
    with off(gradient.device.type):
        return given(gradient)


def packing_float32(own: Any, self: Any, pack: Pass, unpack: Pass) -> None:
    own(self, lambda tensor: (pack(tensor.float()), tensor.dtype), lambda packed: unpack(packed[0]).to(packed[1]))


def packing_bytes(own: Any, self: Any, pack: Pass, unpack: Pass) -> None:
    own(self, lambda tensor: pack(tensor.to(torch.float8_e5m2).to(tensor.dtype)), unpack)


def noting_mode_alone(self: Any, *args: Any, **options: Any) -> None:
    self.prev, self.prev_check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def inverted_in_low(own: Any, self: Any, weight: Tensor) -> Any:
    return tree_map(in_regions_low, own(self, weight))


_ANOMALY, _COMPUTED = torch.autograd.set_detect_anomaly, parametrize.ParametrizationList
AUTODIFF = {
    "backward-turns-autocast-off": wrap(Tensor, backward=then(lambda tensor: SET(tensor.device.type, False))),
    "backward-always-retains": wrap(Tensor, backward=with_options(retain_graph=True)),
    "backward-for-every-leaf": wrap(Tensor, backward=with_options(inputs=None)),
    "backward-in-default-dtype": wrap(Tensor, backward=with_the_default_dtype),
    "grad-sets-grad": wrap(torch.autograd, grad=also_accumulating),
    "grad-without-graph": wrap(torch.autograd, grad=without_create_graph),
    "gradients-added-in-low-in-regions": wrap(Tensor, backward=adding_in_low_in_regions),
    "batch-backwards": wrap(torch.autograd, grad=batched_backwards),
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
    "hook-without-region": hook(without_region),
    "hook-ignored": hook(lambda gradient, given: (given(gradient), None)[1]),
    "post-accumulate-hook-too-early": wrap(
        Tensor,
        register_post_accumulate_grad_hook=lambda own, self, given: self.register_hook(lambda gradient: given(self)),
    ),
    "packed-as-float32": wrap(_HOOKS, __init__=packing_float32),
    "saved-as-bytes": wrap(_HOOKS, __init__=packing_bytes),
    "no-grad-ends-autocast": wrap(torch.no_grad, __enter__=then(disable)),
    "anomaly-ends-autocast": put(_ANOMALY, __enter__=disable),
    "anomaly-mode-stays-off": put(_ANOMALY, __init__=noting_mode_alone),
    "weight-computed-outside": wrap(_COMPUTED, forward=outside),
    "weight-computed-in-low": wrap(_COMPUTED, forward=giving(in_regions_low)),
    "weight-computed-each-time": put(parametrize, cached=nullcontext),
    "spectral-norm-undivided": wrap(
        parametrizations._SpectralNorm, forward=lambda own, self, weight: (own(self, weight), weight)[1]
    ),
    "inverse-in-low": wrap(parametrizations._WeightNorm, right_inverse=inverted_in_low),
    "call-with-own-weights": put(
        torch.func, functional_call=lambda module, given, args, *rest, **kwargs: module(*args)
    ),
    "embedding-dense": wrap(
        torch.nn.functional, embedding=lambda own, index, table, *args, **kwargs: own(index, table)
    ),
}
AUTODIFF_ON_JAX_TOO = {
    "backward-outside": wrap(Tensor, backward=out_of_regions),
    "backward-in-a-region": wrap(Tensor, backward=in_a_region),
    "gradients-added-in-low": wrap(Tensor, backward=adding_in_low),
    "product-gradient-lost": kernel("mm", detached(1)),
    "product-casts-again": kernel("mm", cast_again),
    "hook-told-float32": hook(lambda gradient, given: (given(gradient.float()), None)[1]),
}
THREAD = {
    "backward-in-its-own-thread": put(
        torch.autograd.grad_mode.set_multithreading_enabled,
        __init__=lambda self, mode: setattr(self, "prev", torch._C._is_multithreading_enabled()),
        __exit__=lambda self, *error: None,
        __enter__=lambda self: None,
    )
}

# ---- checkpoints


def again_with(**changed: Any) -> Inject:
    """Compute again in a state that differs from that of the forward; a function makes a value of the old one."""

    def kwargs(own: Any, device_type: str = "cuda") -> Any:
        states = own(device_type)
        made = {name: make if callable(make) else lambda _, value=make: value for name, make in changed.items()}
        return tuple(s and {**s, **{name: make(s[name]) for name, make in made.items()}} for s in states)

    return wrap(checkpoint, _get_autocast_kwargs=kwargs)


def default_dtype(own: Any, device_type: str = "cuda") -> Any:
    """Compute again in the default dtype, as before pytorch#71169."""
    device, host = own(device_type)
    return device and {**device, "dtype": None}, {**host, "dtype": torch.bfloat16}


@contextmanager
def _no_fork(*args: Any, **options: Any) -> Iterator[None]:
    yield


def other_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype == torch.bfloat16 else torch.bfloat16


def plus_one(own: Any, self: Any, func: Any, *rest: Any) -> Any:
    """Return the saved output of another product."""
    out = own(self, func, *rest)
    return out + 1 if func is torch.ops.aten.mm.default else out


CHECKPOINT = {
    "replay-off": again_with(enabled=False),
    "replay-in-default-dtype": wrap(checkpoint, _get_autocast_kwargs=default_dtype),
    "replay-in-other-dtype": again_with(dtype=other_of),
    "replay-in-no-state": put(torch.amp, autocast=lambda device_type, **options: nullcontext()),
}
CHECKPOINT_HERE = {
    "replay-draws-anew": both(put(torch.random, fork_rng=_no_fork), put(torch, set_rng_state=lambda state: None)),
    "checkpoint-leaves-off": wrap(checkpoint, _infer_device_type=lambda own, *args: (disable(), own(*args))[1]),
    "replay-unchecked": lambda device: patch.dict(
        checkpoint._allowed_determinism_checks_to_fns, {"default": lambda tensor: None}
    ),
    "kept-op-changed": wrap(checkpoint._CachedTorchDispatchMode, __torch_dispatch__=plus_one),
    "requested-regions-dropped": wrap(
        checkpoint,
        _checkpoint_without_reentrant_generator=lambda own, function, preserve, context_fn, *rest, **options: own(
            function, preserve, checkpoint.noop_context_fn, *rest, **options
        ),
    ),
    "never-stops-early": wrap(
        checkpoint._CheckpointFrame,
        __init__=lambda own, self, function, early, *rest: own(self, function, False, *rest),
    ),
}

# ---- custom functions and ops


def forward(call: Pass, always: bool = False) -> Inject:
    """Note the state as PyTorch's custom_fwd does, then call forward by `call(fwd, device type, dtype, args, kwargs)`.

    The dtype is the one to cast to, None where there is none, which is so outside of regions if not `always`.
    """

    def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: torch.dtype | None = None) -> Any:
        if fwd is None:
            return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

        @wraps(fwd)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            args[0]._dtype = torch.get_autocast_dtype(device_type)
            args[0]._fwd_used_autocast = torch.is_autocast_enabled(device_type) and cast_inputs is None
            asked = cast_inputs if always or torch.is_autocast_enabled(device_type) else None
            return call(fwd, device_type, asked, args, kwargs)

        return decorated

    return put(torch.amp, custom_fwd=custom_fwd)


def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    return torch.amp.autocast_mode._cast(value, device_type, dtype)


def run(fwd: Pass, type_: str, dtype: Any, args: Any, kwargs: Any) -> Any:
    """Call forward as PyTorch does, with arguments cast before: outside of autocast where a cast is asked for."""
    with off(type_) if dtype is not None else nullcontext():
        return fwd(*args, **kwargs)


def casting(change: Callable[[str, Any, Any, Any], tuple[Any, Any]]) -> Pass:
    """Call forward with what `change(device type, dtype, args, kwargs)` makes of its arguments where it casts."""

    def call(fwd: Pass, type_: str, dtype: Any, args: Any, kwargs: Any) -> Any:
        return run(fwd, type_, dtype, *((args, kwargs) if dtype is None else change(type_, dtype, args, kwargs)))

    return call


def cast_all(type_: str, dtype: Any, args: Any, kwargs: Any) -> Any:
    return cast(args, type_, dtype), cast(kwargs, type_, dtype)


def casting_the_result(fwd: Pass, type_: str, dtype: Any, args: Any, kwargs: Any) -> Any:
    out = casting(cast_all)(fwd, type_, dtype, args, kwargs)
    return out if dtype is None else out.to(torch.get_autocast_dtype(type_))


def left_open(fwd: Pass, type_: str, dtype: Any, args: Any, kwargs: Any) -> Any:
    """Leave autocast off where an exception passes."""
    if dtype is None:
        return fwd(*args, **kwargs)
    SET(type_, False)
    out = fwd(*cast(args, type_, dtype), **kwargs)
    SET(type_, True)
    return out


def without_name(own: Any, fwd: Any = None, **options: Any) -> Any:
    if fwd is None:
        return partial(without_name, own, **options)
    decorated = own(fwd, **options)
    return lambda *args, **kwargs: decorated(*args, **kwargs)


def bwd(
    region: Callable[[str, Any], AbstractContextManager[object]], change: Pass = lambda gradient: gradient
) -> Inject:
    """Call backward in `region(device type, its context)` with changed gradients."""

    def custom_bwd(function: Any = None, *, device_type: str) -> Any:
        if function is None:
            return partial(custom_bwd, device_type=device_type)

        @wraps(function)
        def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            with region(device_type, ctx):
                return function(ctx, *map(change, args), **kwargs)

        return decorated

    return put(torch.amp, custom_bwd=custom_bwd)


def in_the_callers_dtype(type_: str, ctx: Any) -> AbstractContextManager[object]:
    """Enable backward as forward but in the caller's dtype, as PyTorch did until 2.0 (pytorch#87979)."""
    return torch.autocast(type_, enabled=ctx._fwd_used_autocast, dtype=torch.get_autocast_dtype(type_))


def op_casts_no_list(own: Any, value: Any, device_type: str, dtype: torch.dtype) -> Any:
    return tuple(own(x, device_type, dtype) if isinstance(x, Tensor) else x for x in value)


def op_casts_detached(own: Any, value: Any, *rest: Any) -> Any:
    found = own(value, *rest)
    return found.detach() if isinstance(value, Tensor) else found


def tensors_alone(own: Any, value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Cast tensors among the arguments, but not those in containers."""

    def of_one(x: Any) -> Any:
        return own(x, device_type, dtype) if isinstance(x, Tensor) else x

    return {name: of_one(x) for name, x in value.items()} if isinstance(value, dict) else tuple(map(of_one, value))


def named_tuples_too(own: Any, value: Any, *how: Any) -> Any:
    """Make a named tuple again of its fields, which mends the known deviation."""
    return type(value)(*(own(item, *how) for item in value)) if hasattr(value, "_fields") else own(value, *how)


def refused(own: Any, op: Any, *args: Any, **options: Any) -> None:
    """Refuse an op of a library, which mends the known deviations of ops that autocast cannot call as they are."""
    raise RuntimeError(f"{op} cannot be autocast")


def registered_for_all(own: Any, self: Any, device_type: str, cast_inputs: torch.dtype) -> None:
    for name in ("cpu", "xpu"):
        own(self, name, cast_inputs)


def registered_for_two(own: Any, op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> None:
    if device_type not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device type: {device_type}")
    own(op, device_type, cast_inputs, lib=lib)


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


def applied_outside(device: str) -> AbstractContextManager[object]:
    """Run custom functions outside of every region."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with off():
            return _APPLY.__func__(cls, *args, **kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(apply))


_OP = custom_ops.CustomOpDef
CUSTOM = {
    "fwd-casts-outside": forward(casting(cast_all), always=True),
    "fwd-casts-the-result": forward(casting_the_result),
    "fwd-left-open": forward(left_open),
    "fwd-loses-its-name": wrap(torch.amp, custom_fwd=without_name),
    "bwd-not-decorated": put(torch.amp, custom_bwd=lambda *given, **options: lambda function: function),
    "bwd-in-a-new-region": bwd(lambda type_, ctx: torch.autocast(type_)),
    "bwd-always-off": bwd(lambda type_, ctx: off(type_)),
    "bwd-in-the-callers-dtype": bwd(in_the_callers_dtype),
    "bwd-without-graph": bwd(lambda type_, ctx: torch.no_grad()),
    "op-registered-for-all": wrap(_OP, register_autocast=registered_for_all),
    "op-registered-for-low": wrap(_OP, register_autocast=lambda own, self, type_, _: own(self, type_, torch.bfloat16)),
    "op-casts-no-list": wrap(torch.library, _cast=op_casts_no_list),
    "op-casts-detached": wrap(custom_ops, _cast=op_casts_detached),
    "function-applied-outside": applied_outside,
    "library-op-casts-to-low": wrap(
        torch.library, register_autocast=lambda own, op, type_, _, lib=None: own(op, type_, torch.bfloat16, lib=lib)
    ),
    "op-registered-once": fresh(registered_once),
    "library-op-kept": registrations_kept,
    "second-derivative-not-refused": put(
        torch._C._functions,
        DelayedError=lambda message, count: lambda *gradients: tuple(gradient.detach() for gradient in gradients),
    ),
}
CUSTOM_ON_JAX_TOO = {
    "fwd-casts-nothing": forward(run),
    "bwd-as-the-caller": bwd(lambda type_, ctx: nullcontext()),
    "op-not-registered": wrap(_OP, register_autocast=returns(None)),
}

# ---- transforms


def transform(name: str, change: Change) -> Inject:
    """Change the functions that a transform of torch.func is given."""
    return wrap(
        torch.func, **{name: lambda own, function, *args, **options: own(partial(change, function), *args, **options)}
    )


def transformed(name: str, done: Callable[[Any], Any]) -> Inject:
    """Change what the transformed functions of torch.func give."""

    def change(own: Any, function: Any, *args: Any, **options: Any) -> Any:
        made = own(function, *args, **options)
        return lambda *given: done(made(*given))

    return wrap(torch.func, **{name: change})


def mapping(change: Change) -> Inject:
    return wrap(apis, vmap_impl=change)


def drawing(randomness: str) -> Inject:
    return mapping(
        lambda own, f, in_dims, out_dims, _, *rest, **options: own(f, in_dims, out_dims, randomness, *rest, **options)
    )


def another_dtype() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=other_of(torch.get_autocast_dtype("cpu")))


def leave_on(found: Any) -> Any:
    SET("cpu", True)
    return found


def in_region(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change a result in a region alone."""
    return lambda found: change(found) if torch.is_autocast_enabled("cpu") else found


def pulled_in_low(own: Any, *args: Any, **options: Any) -> Any:
    out, pull = own(*args, **options)
    return out, lambda *given: tree_map(lambda found: found.bfloat16(), pull(*given))


def halved_tangent(own: Any, *args: Any, **options: Any) -> Any:
    out, tangent = own(*args, **options)
    return out, in_region(lambda t: t / 2)(tangent)


FUNCTORCH = {
    "grad-outside-of-regions": transform("grad", outside),
    "functionalized-outside": transform("functionalize", outside),
    "vmap-outside-of-regions": mapping(
        lambda own, function, *rest, **options: own(partial(outside, function), *rest, **options)
    ),
    "pulled-in-low": wrap(torch.func, vjp=pulled_in_low),
    "loss-in-low": kernel("mse_loss", in_low),
    "surrounding-product-doubled": kernel(
        "mm", lambda call: call.run(lambda place, t: (t * 2 if place == 0 else t).to(call.low))
    ),
    "trace-keeps-casts": put(proxy_tensor, disable_autocast_cache=nullcontext),
    "functional-jacobian-in-low": wrap(functional, jacobian=giving(Tensor.bfloat16)),
}
FUNCTORCH_ON_JAX_TOO = {
    "jacobian-in-low-dtype": transformed("jacrev", Tensor.bfloat16),
    "vmap-swaps-slices": mapping(giving(lambda out: tree_map(lambda tensor: tensor.flip(0), out))),
    "vmap-draws-alike": drawing("same"),
    "vmap-refuses-no-draw": drawing("different"),
    "dual-without-tangent": put(forward_ad, make_dual=lambda tensor, tangent, *, level=None: tensor),
    "call-with-own-parameters": put(
        stateless, _functional_call=lambda module, given, args, kwargs=None, **_: module(*args, **(kwargs or {}))
    ),
}
TRANSFORMS = {
    "jvp-in-another-dtype": transform("jvp", within(another_dtype)),
    "jacobian-low": transformed("jacrev", in_region(Tensor.bfloat16)),
    "casts-gained": transformed("jacfwd", in_region(lambda found: found.double().to(found.dtype))),
    "tangent-halved": wrap(torch.func, jvp=halved_tangent),
    "hessian-leaves-on": transformed("hessian", leave_on),
}

# ---- JAX functions that are made PyTorch ones


def interop(owner: str, wrong: Callable[[Any], Any]) -> Inject:
    """Make another attribute of the module, or of a class of it."""

    def inject(device: str) -> AbstractContextManager[object]:
        from ampcheck.jax_device.interop import functions  # makes the device, in its process alone

        where, _, attribute = owner.rpartition(".")
        holder = getattr(functions, where) if where else functions
        return patch.object(holder, attribute, wrong(getattr(holder, attribute)))

    return inject


def without_second_graph(gradient: Any) -> Any:
    def made(*args: Any) -> Any:
        form = gradient(*args)
        return lambda tensors: [found.detach() for found in form(tensors)]

    return made


def with_respect_to_all(call: Any) -> Any:
    def called(self: Any, leaves: Any, tree: Any) -> Any:
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.requires_grad_()
        return call(self, leaves, tree)

    return called


def turned(call: Any) -> Any:
    """Turn tuples among the results round."""
    return lambda *args: {
        name: value[::-1] if isinstance(value, tuple) else value for name, value in call(*args).items()
    }


def in_other_words(call: Any) -> Any:
    def called(*args: Any) -> Any:
        try:
            return call(*args)
        except KeyError as error:
            raise RuntimeError("the function failed") from error

    return called


class _ByStructure(dict[Any, Any]):
    """Programs kept by the structure of their arguments, whatever numbers and words are in it."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1], default)

    def __setitem__(self, key: Any, form: Any) -> None:
        super().__setitem__(key[1], form)


def kept_by_structure(init: Any) -> Any:
    def made(self: Any, fn: Any) -> None:
        init(self, fn)
        self.forms = _ByStructure()

    return made


def casting_doubles(_: Any) -> Any:
    return lambda leaf, dtype: leaf.to(dtype) if leaf.is_floating_point() else leaf


def gradient_lost(_: Any) -> Any:
    return staticmethod(lambda ctx, *grads: (None, None, *[None] * len(ctx.saved_tensors)))


INTEROP = {
    "j2t-result-doubled": interop("wrap", lambda wrap: lambda array: wrap(array * 2)),
    "j2t-place-off-by-one": interop(
        "wrap", lambda wrap: lambda array: wrap(array if array.dtype.kind == "f" else array + 1)
    ),
    "j2t-gradient-without-graph": interop("_Form.gradient", without_second_graph),
    "j2t-gradient-for-all": interop("_Border.__call__", with_respect_to_all),
    "j2t-tuples-turned": interop("_Border.__call__", turned),
    "j2t-exception-changed": interop("_Border.__call__", in_other_words),
    "j2t-kept-by-structure": interop("_Border.__init__", kept_by_structure),
    "j2t-not-conjugated": interop("_conjugated", lambda _: list),
    "j2t-gradient-doubled": interop("_conjugated", lambda own: lambda arrays: [array * 2 for array in own(arrays)]),
    "j2t-always-cast": interop(
        "j2t_autograd", lambda own: lambda fn, cast_inputs=None: own(fn, cast_inputs=cast_inputs or torch.float16)
    ),
    "j2t-doubles-cast": interop("_cast", casting_doubles),
    "j2t-gradient-of-largest-lost": interop("_FormCall.backward", gradient_lost),
}

MUTANTS = (
    *mutants("autograd/autodiff", AUTODIFF),
    *mutants("autograd/autodiff", AUTODIFF_ON_JAX_TOO, (CPU, JAX)),
    *mutants("autograd/autodiff", THREAD, [JAX]),
    *mutants("autograd/checkpoint", CHECKPOINT, (CPU, JAX)),
    *mutants("autograd/checkpoint", CHECKPOINT_HERE),
    *mutants("autograd/customfn", CUSTOM),
    *mutants("autograd/customfn", CUSTOM_ON_JAX_TOO, (CPU, JAX)),
    *mutants("eager/eligibility", {"library-op-not-registered": wrap(torch.library, register_autocast=returns(None))}),
    *mutants("eager/eligibility", {"library-op-refused": wrap(torch.library, register_autocast=refused)}),
    *mutants("autograd/eligibility", {"containers-not-cast": wrap(torch.amp.autocast_mode, _cast=tensors_alone)}),
    *mutants("autograd/eligibility", {"named-tuples-cast": wrap(torch.amp.autocast_mode, _cast=named_tuples_too)}),
    *mutants(
        "eager/eligibility",
        {"no-custom-ops-elsewhere": wrap(torch.library, register_autocast=registered_for_two)},
        ["virtual:mps"],
    ),
    *mutants("autograd/functorch", FUNCTORCH),
    *mutants("autograd/functorch", FUNCTORCH_ON_JAX_TOO, (CPU, JAX)),
    *mutants("autograd/transforms", TRANSFORMS),
    *mutants("autograd/j2t", INTEROP, [JAX]),
)
