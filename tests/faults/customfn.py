"""Decorators of autograd functions, and autocast rules of custom ops, that cast or restore the wrong thing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch
from torch._library import custom_ops

from tests.faults.fault import Fault
from tests.faults.regions import replaced

_CAST = torch.amp.autocast_mode._cast
_FORWARD = torch.amp.custom_fwd
_OP_CAST = custom_ops._cast
_REGISTER = custom_ops.CustomOpDef.register_autocast
Pass = Callable[..., Any]
Forward = Callable[[Pass, str, Any, tuple[Any, ...], dict[str, Any]], Any]


def _fault(name: str, only: str, *says: str, where: Any = torch.amp, device: str = "cpu", **wrong: Any) -> Fault:
    """A fault that the cases which `only` chooses must catch."""

    def inject() -> AbstractContextManager[object]:
        return replaced(where, **wrong)

    return Fault(name, "customfn", inject, says, "autograd", device, only=only)


def forward(call: Forward) -> Pass:
    """A custom_fwd that notes the state as PyTorch's does and then calls forward in its own way."""

    def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: torch.dtype | None = None) -> Any:
        if fwd is None:
            return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

        @wraps(fwd)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            args[0]._dtype = torch.get_autocast_dtype(device_type)
            args[0]._fwd_used_autocast = torch.is_autocast_enabled(device_type) and cast_inputs is None
            return call(fwd, device_type, cast_inputs, args, kwargs)

        return decorated

    return custom_fwd


def backward(call: Forward) -> Pass:
    """A custom_bwd that calls backward in its own way."""

    def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
        if bwd is None:
            return partial(custom_bwd, device_type=device_type)

        @wraps(bwd)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            return call(bwd, device_type, None, args, kwargs)

        return decorated

    return custom_bwd


def _off(type_: str) -> Any:
    return torch.autocast(type_, enabled=False)


def _casts(type_: str, dtype: Any) -> bool:
    return dtype is not None and torch.is_autocast_enabled(type_)


def casting_nothing(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _casts(type_, dtype):
        return fwd(*args, **kwargs)
    with _off(type_):
        return fwd(*args, **kwargs)


def casting_anywhere(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if dtype is None:
        return fwd(*args, **kwargs)
    with _off(type_):
        return fwd(*_CAST(args, type_, dtype), **_CAST(kwargs, type_, dtype))


def casting_with_autocast_on(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fwd(*_CAST(args, type_, dtype), **kwargs) if _casts(type_, dtype) else fwd(*args, **kwargs)


def casting_the_first(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _casts(type_, dtype):
        return fwd(*args, **kwargs)
    with _off(type_):
        return fwd(*_CAST(args[:2], type_, dtype), *args[2:], **kwargs)


def dropping_keywords(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop keyword arguments of a call without casts."""
    if dtype is None:
        return fwd(*args)
    return casting_anywhere(fwd, type_, dtype if _casts(type_, dtype) else None, args, kwargs)


def casting_everything(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _casts(type_, dtype):
        return fwd(*args, **kwargs)
    with _off(type_):
        return fwd(*(x.to(dtype) if isinstance(x, torch.Tensor) else x for x in args), **kwargs)


def casting_the_result(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = casting_anywhere(fwd, type_, dtype if _casts(type_, dtype) else None, args, kwargs)
    return out.to(torch.get_autocast_dtype(type_)) if _casts(type_, dtype) else out


def left_open(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Without a with statement, so that an exception leaves autocast off."""
    if not _casts(type_, dtype):
        return fwd(*args, **kwargs)
    torch.set_autocast_enabled(type_, False)
    out = fwd(*_CAST(args, type_, dtype), **kwargs)
    torch.set_autocast_enabled(type_, True)
    return out


def of_any_type(fwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = next(arg for arg in args if isinstance(arg, torch.Tensor))
    return casting_anywhere(fwd, tensor.device.type, dtype, args, kwargs)


def as_the_caller(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return bwd(*args, **kwargs)


def always_on(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.autocast(type_, dtype=args[0]._dtype):
        return bwd(*args, **kwargs)


def always_off(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _off(type_):
        return bwd(*args, **kwargs)


def in_the_callers_dtype(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Enable backward as forward but in the caller's dtype, as PyTorch did until 2.0 (pytorch#87979)."""
    with torch.autocast(type_, enabled=args[0]._fwd_used_autocast, dtype=torch.get_autocast_dtype(type_)):
        return bwd(*args, **kwargs)


def given_float32(bwd: Pass, type_: str, dtype: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.autocast(type_, enabled=args[0]._fwd_used_autocast, dtype=args[0]._dtype):
        return bwd(args[0], *(gradient.float() for gradient in args[1:]), **kwargs)


def without_name(fwd: Any = None, **options: Any) -> Any:
    if fwd is None:
        return partial(without_name, **options)
    decorated = _FORWARD(fwd, **options)
    return lambda *args, **kwargs: decorated(*args, **kwargs)


def registered_nowhere(self: Any, device_type: str, cast_inputs: torch.dtype) -> None:
    """Registering is forgotten."""


def registered_for_low(self: Any, device_type: str, cast_inputs: torch.dtype) -> Any:
    return _REGISTER(self, device_type, torch.bfloat16)


def registered_for_all(self: Any, device_type: str, cast_inputs: torch.dtype) -> None:
    for name in ("cpu", "xpu"):
        _REGISTER(self, name, cast_inputs)


def op_casts_no_list(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    return tuple(_OP_CAST(x, device_type, dtype) if isinstance(x, torch.Tensor) else x for x in value)


def op_casts_detached(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    cast = _OP_CAST(value, device_type, dtype)
    return cast.detach() if isinstance(value, torch.Tensor) else cast


_OP = custom_ops.CustomOpDef
FAULTS = (
    _fault("fwd-casts-nothing", "cast_inputs and not outside", "same dtype", custom_fwd=forward(casting_nothing)),
    _fault("fwd-casts-outside", "cast_inputs_outside", "in forward: got", custom_fwd=forward(casting_anywhere)),
    _fault(
        "fwd-leaves-autocast-on",
        "cast_inputs and not outside",
        "in forward: got ((True",
        custom_fwd=forward(casting_with_autocast_on),
    ),
    _fault("fwd-casts-the-first", "cast_inputs and low", "same dtype", custom_fwd=forward(casting_the_first)),
    _fault(
        "fwd-casts-everything", "never_cast", "dtypes and values in forward", custom_fwd=forward(casting_everything)
    ),
    _fault(
        "fwd-drops-keywords",
        "with_keywords",
        "is what is not to be cast the same: got False",
        custom_fwd=forward(dropping_keywords),
    ),
    _fault("fwd-forgets-keywords", "with_keywords", "a tensor: got", custom_fwd=forward(casting_with_autocast_on)),
    _fault(
        "fwd-casts-the-result", "one_inside_another", "dtype of the result: got", custom_fwd=forward(casting_the_result)
    ),
    _fault("fwd-left-open", "that_raises", "state and depth after it: got", custom_fwd=forward(left_open)),
    _fault("fwd-of-any-device-type", "another_device_type", "in both passes", custom_fwd=forward(of_any_type)),
    _fault("fwd-loses-its-name", "names_are_kept", "name of forward: got '<lambda>'", custom_fwd=without_name),
    _fault("bwd-as-the-caller", "region_of_forward", "same dtype", custom_bwd=backward(as_the_caller)),
    _fault("bwd-always-on", "cast_inputs", "in backward: got ((True", custom_bwd=backward(always_on)),
    _fault("bwd-always-off", "region_of_forward", "same dtype", custom_bwd=backward(always_off)),
    _fault(
        "bwd-in-the-callers-dtype",
        "region_of_forward",
        "in backward: got ((True",
        custom_bwd=backward(in_the_callers_dtype),
    ),
    _fault("bwd-given-float32", "region_of_forward", "in backward: got", custom_bwd=backward(given_float32)),
    _fault(
        "op-not-registered", "registered_by", "dtype of the result", where=_OP, register_autocast=registered_nowhere
    ),
    _fault("op-registered-for-all", "two_device_types", "in regions", where=_OP, register_autocast=registered_for_all),
    _fault("op-registered-for-low", "registered_by", "of the result", where=_OP, register_autocast=registered_for_low),
    _fault("op-casts-no-list", "lists_and_options", "a list and None", where=torch.library, _cast=op_casts_no_list),
    _fault(
        "op-casts-detached", "gradient_of_an_op", "does not require grad", where=custom_ops, _cast=op_casts_detached
    ),
)

JAX = (
    _fault(
        "jax-fwd-casts-nothing",
        "cast_inputs and wide and keyword",
        "same dtype",
        device="jax",
        custom_fwd=forward(casting_nothing),
    ),
    _fault(
        "jax-bwd-as-the-caller",
        "region_of_forward and keyword",
        "same dtype",
        device="jax",
        custom_bwd=backward(as_the_caller),
    ),
    _fault(
        "jax-op-not-registered",
        "registered_by",
        "dtype of the result",
        device="jax",
        where=_OP,
        register_autocast=registered_nowhere,
    ),
)
"""Those of the jax device."""
