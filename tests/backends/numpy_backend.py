"""A PrivateUse1 backend whose tensors are NumPy arrays, with autocast from one call of `register_autocast`.

It stands for the backends that call is made for: of ampcheck it uses that call and the device class. Its tensors are
plain `torch.Tensor`s; their storage's Python object holds the values, a flat NumPy array of bytes that every alias
shares. NumPy computes what it has a function for; the rest runs in PyTorch's CPU kernels on the arrays' own memory.

The environment variable NPY_BASE is the base of the registration, "cuda" unless it says "cpu". NPY_FAULT plants a
mistake in it: "drop" gives linear no kernel, "policy" sends exp to the lower precision, "uncached" keeps no casts,
"stale" keeps them whatever happens to the weight.
"""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ampcheck.devices import Device
from ampcheck.register import kept, register_autocast
from ampcheck.spec.policies import closest, table

NAME = "npy"
BASE = os.environ.get("NPY_BASE", "cuda")
FAULT = os.environ.get("NPY_FAULT", "")
aten = torch.ops.aten
META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


class _Module(types.ModuleType):
    """What PyTorch asks of `torch.npy`. `get_amp_supported_dtype` comes from `register_autocast`."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """The CPU's generator draws for the device."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False


_setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Module(f"torch.{NAME}"))


def _span(size: Any, stride: Any) -> int:
    """How many elements of a storage a tensor reaches over."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def _new(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on a new array."""
    made = torch._C._acc.create_empty_tensor(tuple(size), dtype)
    made.untyped_storage().array = np.zeros(_span(size, stride) * dtype.itemsize, np.uint8)
    return aten.as_strided.default.redispatch(META, made, size, stride, 0)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the memory of a tensor's array."""
    array = tensor.untyped_storage().array
    flat = torch.frombuffer(array, dtype=tensor.dtype) if array.size else torch.empty(0, dtype=tensor.dtype)
    held = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    held = torch.conj(held) if tensor.is_conj() else held
    return torch._neg_view(held) if tensor.is_neg() else held


def _device(held: torch.Tensor) -> torch.Tensor:
    """A tensor on an array of its own with a CPU tensor's values and strides."""
    made = _new(held.size(), held.stride(), held.dtype)
    _host(made).copy_(held)
    return made


def _resize(tensor: torch.Tensor, size: Any, stride: Any = None, *, memory_format: Any = None) -> torch.Tensor:
    """Give a tensor another size in place; its array grows where it must."""
    if tuple(size) == tuple(tensor.shape) and stride is None:
        return tensor
    stride = stride or torch.empty(size, device="meta").stride()
    storage = tensor.untyped_storage()
    missing = (_span(size, stride) + tensor.storage_offset()) * tensor.dtype.itemsize - storage.array.size
    if missing > 0:
        storage.array = np.concatenate([storage.array, np.zeros(missing, np.uint8)])
    tensor.data = aten.as_strided.default.redispatch(META, tensor, size, stride, tensor.storage_offset())
    return tensor


def _as_strided_(tensor: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    """What PyTorch's own does but for asking its storage, which is empty, whether there is room."""
    tensor.data = aten.as_strided.default.redispatch(META, tensor, size, stride, offset)
    return tensor


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


_FUNCTIONS = {
    aten.exp.out: np.exp,
    aten.log.out: np.log,
    aten.neg.out: np.negative,
    aten.sin.out: np.sin,
    aten.maximum.out: np.maximum,
    aten.mul.out: np.multiply,
    aten.mm.out: np.matmul,
    aten.bmm.out: np.matmul,
}
"""Ops NumPy computes, where all tensors are float32: it rounds the lower precisions its own way."""


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every op of the device."""
    if "sparse" in op._opname:
        raise NotImplementedError(f"{NAME} has dense tensors only, so it has no {op.name()}")
    if op.is_view:
        return op.redispatch(META, *args, **kwargs)
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    outs = {a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info is not None}
    ours: dict[int, torch.Tensor] = {}

    def to_host(value: Any) -> Any:
        if not _on_device(value):
            return value
        held = _host(value)
        ours[id(held)] = value
        return held

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in ours:
            return _device(value)
        mine = ours[id(value)]
        if value.data_ptr() != _host(mine).data_ptr():  # an out=
            _host(_resize(mine, value.size(), value.stride())).copy_(value)
        return mine

    with torch._C._DisableAutocast():
        held_args, held_kwargs = tree_map(to_host, (args, kwargs))
        for name in outs & held_kwargs.keys():  # a kernel may want one of another size than it found
            held_kwargs[name] = torch.empty(0, dtype=held_kwargs[name].dtype)
            ours[id(held_kwargs[name])] = kwargs[name]
        return tree_map(to_device, _compute(op, held_args, held_kwargs))


def _compute(op: Any, args: Any, kwargs: Any) -> Any:
    """What an op gives for CPU tensors."""
    function, out = _FUNCTIONS.get(op), kwargs.get("out")
    if function and all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in (*args, out)):
        made = torch.from_numpy(np.asarray(function(*(x.numpy() for x in args))))
        return out.resize_(made.shape).copy_(made)
    return op(*args, **kwargs)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    with torch._C._DisableAutocast():
        held = [_host(x) if _on_device(x) else x for x in (source, target)]
        held[1].copy_(held[0])
    return target


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin: Any = None, **format: Any) -> Any:
    shape = torch.empty(size, device="meta", **{k: v for k, v in format.items() if v is not None})
    return _new(size, shape.stride(), dtype or torch.get_default_dtype())


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
    return _new(size, stride, dtype or torch.get_default_dtype())


def _fused_lstm_cell(gates: Any, hidden: Any, cell: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, ...]:
    both = gates + hidden + (0 if b_ih is None else b_ih + b_hh)
    take, forget, value, show = both.chunk(4, 1)
    cell = forget.sigmoid() * cell + take.sigmoid() * value.tanh()
    return show.sigmoid() * cell.tanh(), cell, both


def _fused_gru_cell(gates: Any, hidden: Any, state: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, ...]:
    left = (gates if b_ih is None else gates + b_ih).chunk(3, 1)
    right = (hidden if b_hh is None else hidden + b_hh).chunk(3, 1)
    reset, keep = (left[0] + right[0]).sigmoid(), (left[1] + right[1]).sigmoid()
    value = (left[2] + reset * right[2]).tanh()
    return value + keep * (state - value), torch.cat([reset, keep, value, state, right[2]], 1)


def _convolution(*args: Any) -> torch.Tensor:
    return _run(aten.convolution.default, *args)


def _convolution_backward(grad: Any, x: Any, weight: Any, *options: Any) -> Any:
    *geometry, mask = options
    bias = [weight.shape[0] if not geometry[3] else weight.shape[1] * geometry[5]]
    return _run(aten.convolution_backward.default, grad, x, weight, bias, *geometry, mask)


_everything = Library("_", "IMPL")
_everything.fallback(_run, "PrivateUse1")
_aten = Library("aten", "IMPL")
for _name, _kernel in {
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "resize_": _resize,
    "as_strided_": _as_strided_,
    "_thnn_fused_lstm_cell": _fused_lstm_cell,
    "_thnn_fused_gru_cell": _fused_gru_cell,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}.items():
    _aten.impl(_name, _kernel, "PrivateUse1")
for _lazy in ("Conjugate", "Negative"):  # PyTorch would resolve the bit by a copy, and so for ever
    _aten.impl("_copy_from", fallthrough_kernel, _lazy)

AUTOCAST = register_autocast(
    NAME,
    base=BASE,
    overrides={"drop": {"aten::linear": "fallthrough"}, "policy": {"aten::exp": "downcast"}}.get(FAULT),
)
if FAULT == "uncached":
    kept._foreign = lambda weight: True
if FAULT == "stale":
    kept.Cache._fresh = lambda self, found, weight: found.weight() is weight


class Npy(Device):
    """The backend as ampcheck sees it."""

    name = NAME
    token = NAME
    type = NAME
    key = "AutocastPrivateUse1"
    deviations = Path(__file__).with_suffix(".toml")

    def unavailable(self) -> str | None:
        return None

    def policies(self) -> Any:
        return table({"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}[BASE], closest(torch.__version__))


DEVICES = (Npy(),)
