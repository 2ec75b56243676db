"""Base of the small PrivateUse1 backends of this folder: a device module, two kinds of memory, and kernels.

A backend is a name, a memory and what is special about it:

    BACKEND = Backend("mydevice", Arrays())
    BACKEND.register()
    DEVICES = (Tested(BACKEND),)

PyTorch's CPU kernels compute on the tensors' own memory. Each op that the CPU has a kernel for gets one of its own
under PrivateUse1, so that an op that is left out is missing to the dispatcher, as it is in a backend that lacks it.
Nothing here knows of mutants but `Backend.mutants` and `Backend.copy`, through which tests/faults makes a kernel wrong.
"""

import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch.library import Library, fallthrough_kernel
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

from ampcheck.devices import Device
from ampcheck.register import Registration, register_autocast
from ampcheck.spec.policies import closest, table

aten = torch.ops.aten
KEY = "PrivateUse1"
META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
Kernel = Callable[..., Any]

_ANSWERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "synchronize": lambda device=None: None,  # kernels have ended when they return
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "manual_seed_all": lambda seed: None,  # the CPU's generator draws for the device
    "_is_in_bad_fork": lambda: False,
}


def device_module(name: str, **more: Callable[..., Any]) -> types.ModuleType:
    """The module `torch.<name>` of a backend: one device, which draws from the CPU's generator, without autocast."""
    made = types.ModuleType(f"torch.{name}")
    vars(made).update(_ANSWERS | more)
    return made


class Arrays:
    """Tensors with storages: each storage's Python object holds a flat NumPy array of bytes that every alias shares."""

    guard = True
    """Whether PyTorch's device guard in Python is registered; there is another one if not."""
    everything = True
    """Whether views that PyTorch composes are taken from it: it does so for tensors that have storages."""

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the memory of a tensor."""
        array = tensor.untyped_storage().array
        flat = torch.frombuffer(array, dtype=tensor.dtype) if array.size else torch.empty(0, dtype=tensor.dtype)
        return _with_bits(flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()), tensor)

    def wrap(self, held: torch.Tensor) -> torch.Tensor:
        """A tensor on the memory of a CPU tensor."""
        made = torch._C._acc.create_empty_tensor(tuple(held.size()), held.dtype)
        made.untyped_storage().array = torch.empty(0, dtype=torch.uint8).set_(held.untyped_storage()).numpy()
        return aten.as_strided.default.redispatch(META, made, held.size(), held.stride(), held.storage_offset())

    def view(self, op: Any, args: Any, kwargs: Any) -> Any:
        return op.redispatch(META, *args, **kwargs)

    def resize(self, tensor: torch.Tensor, size: Any, stride: Any) -> None:
        """Give a tensor another size in place; its array grows where it must."""
        storage = tensor.untyped_storage()
        last = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        missing = (last + tensor.storage_offset()) * tensor.dtype.itemsize - storage.array.size
        if missing > 0:
            storage.array = np.concatenate([storage.array, np.zeros(missing, np.uint8)])
        tensor.data = aten.as_strided.default.redispatch(META, tensor, size, stride, tensor.storage_offset())


def _with_bits(held: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    held = torch.conj(held) if tensor.is_conj() else held
    return torch._neg_view(held) if tensor.is_neg() else held


class Backend:
    """A backend under the name PrivateUse1 has in this process.

    `missing`: the ops, by overload or by packet, that it has no kernels for. `fallback`: whether one kernel computes
    every op, in the place of one for each op that the CPU has a kernel for. `more`: composite ops that have a kernel.
    """

    def __init__(
        self,
        name: str,
        memory: Any,
        *,
        missing: Collection[str] = (),
        more: Collection[str] = (),
        fallback: bool = False,
        functions: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.memory = memory
        self.autocast: Registration | None = None
        self.mutants: dict[str, Kernel] = {}
        """By overload, what runs in the place of PyTorch's CPU kernel: `(call, *args, **kwargs)` on CPU tensors."""
        self.copy: Kernel = lambda target, source: target.copy_(source)
        self.functions = functions or {}
        """By packet, the NumPy function that computes it where all tensors are float32."""
        _set_up(name, guard=memory.guard)
        self._others = Library("_", "IMPL")
        if fallback:
            self._others.fallback(self.run, KEY)
        self._aten = Library("aten", "IMPL")
        found = ({} if fallback else self._kernels()) | self._special()
        for name, kernel in (found | {name: _bound(self.run, overload(name)) for name in more}).items():
            if name not in missing and name.partition(".")[0] not in missing:
                self._aten.impl(name, kernel, KEY)
        for lazy in ("Conjugate", "Negative"):  # PyTorch would resolve the bit by a copy, and so for ever
            self._aten.impl("_copy_from", fallthrough_kernel, lazy)

    def _kernels(self) -> dict[str, Kernel]:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key
        names = {*registered("CPU"), *(registered("CompositeExplicitAutograd") if not self.memory.everything else ())}
        found: dict[str, Kernel] = {}
        for full in names:
            namespace, _, name = full.partition("::")
            if namespace != "aten" or name in ("alias", "detach") or re.search("sparse|quantize|mkldnn", name):
                continue
            op = overload(name)
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU") or op.is_view:
                found[name] = _bound(self.run, op)
        return found

    def _special(self) -> dict[str, Kernel]:
        return {name: _bound(self.run, overload(name)) for name in _ON_STORAGES} | {
            "_copy_from": self._copy_from,
            "_copy_from_and_resize": self._copy_from,
            "empty.memory_format": self._empty,
            "empty_strided": self._empty_strided,
            "resize_": self._resize,
            "as_strided_": self._as_strided_,
            "_unsafe_view": lambda tensor, size: self.memory.view(aten.view.default, (tensor, size), {}),
            "native_layer_norm": _bound(self.run, aten.native_layer_norm.default),
            "_thnn_fused_lstm_cell": _fused_lstm_cell,
            "_thnn_fused_gru_cell": _fused_gru_cell,
            "convolution_overrideable": _bound(self.run, aten.convolution.default),
            "convolution_backward_overrideable": self._convolution_backward,
        }

    def register(self, overrides: Mapping[str, str] | None = None, **options: Any) -> Registration:
        """Give the backend autocast, or another one than it has."""
        if self.autocast is not None and self.autocast.active:
            self.autocast.unregister()
        self.autocast = register_autocast(self.name, overrides=overrides, **options)
        return self.autocast

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of the device."""
        return isinstance(value, torch.Tensor) and value.device.type == self.name

    def run(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The kernel of an op: what the CPU computes on the tensors' memory."""
        if "sparse" in op._opname:
            raise NotImplementedError(f"{self.name} has dense tensors only, so it has no {op.name()}")
        if op.is_view:
            return self.memory.view(op, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        ours: dict[int, torch.Tensor] = {}
        outs: dict[int, torch.Tensor] = {}
        hosts: list[torch.Tensor] = []  # kept alive, so that no identity is used twice

        def to_host(value: Any) -> Any:
            if not self.owns(value):
                return value
            hosts.append(held := self.memory.host(value))
            ours[id(held)] = value
            return held

        def to_device(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in ours:
                return self.memory.wrap(value)
            mine = ours[id(value)]
            if id(value) in outs:
                if mine.shape != value.shape:
                    self._resize(mine, value.size(), value.stride())
                self.memory.host(mine).copy_(value)
            return mine

        with torch._C._DisableAutocast():
            args, kwargs = tree_map(to_host, (_as_tensors(op, args), kwargs))
            outputs = {a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info is not None}
            for name in outputs & kwargs.keys():  # a kernel may want one of another size than it found
                mine = ours[id(kwargs[name])]
                kwargs[name] = torch.empty(0, dtype=mine.dtype)
                ours[id(kwargs[name])] = mine
                outs[id(kwargs[name])] = kwargs[name]
            return tree_map(to_device, self._computed(op, args, kwargs))

    def _computed(self, op: Any, args: Any, kwargs: Any) -> Any:
        if mutant := self.mutants.get(_name(op)):
            return mutant(op, *args, **kwargs)
        function, out = self.functions.get(op._opname), kwargs.get("out")
        if function and op._overloadname in ("", "out", "Tensor"):
            given = [x for x in (*args, out) if x is not None]
            if all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in given):
                made = torch.from_numpy(np.asarray(function(*(x.numpy() for x in args))))
                return made if out is None else out.resize_(made.shape).copy_(made)
        return op(*args, **kwargs)

    def _copy_from(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        with torch._C._DisableAutocast():
            held = [self.memory.host(x) if self.owns(x) else x for x in (target, source)]
            self.copy(*held)
        return target

    def _empty(
        self, size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin: Any = None, **given: Any
    ) -> torch.Tensor:
        chosen = {name: value for name, value in given.items() if value is not None}
        stride = torch.empty(size, device="meta", **chosen).stride()
        return self._empty_strided(size, stride, dtype)

    def _empty_strided(self, size: Any, stride: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        dtype = dtype or torch.get_default_dtype()
        with torch._C._DisableAutocast():
            return self.memory.wrap(torch.empty_strided(size, stride, dtype=dtype, device="cpu").zero_())

    def _resize(self, tensor: Any, size: Any, stride: Any = None, *, memory_format: Any = None) -> torch.Tensor:
        if tuple(size) != tuple(tensor.shape) or stride is not None:
            self.memory.resize(tensor, size, stride or torch.empty(size, device="meta").stride())
        return tensor

    def _as_strided_(self, tensor: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
        """Do as PyTorch's own, but do not check the size of the storage, which is empty."""
        tensor.data = self.memory.view(aten.as_strided.default, (tensor, size, stride, offset), {})
        return tensor

    def _convolution_backward(self, grad: Any, x: Any, weight: Any, *options: Any) -> Any:
        *geometry, mask = options
        bias = [weight.shape[0] if not geometry[3] else weight.shape[1] * geometry[5]]
        return self.run(aten.convolution_backward.default, grad, x, weight, bias, *geometry, mask)


_ON_STORAGES = tuple(f"{name}_scatter" for name in ("as_strided", "diagonal", "select", "slice"))
_ON_STORAGES += ("_grid_sampler_2d_cpu_fallback",)
"""Ops that PyTorch makes of others and then reads the storage, which is empty or not to be read."""


def _set_up(name: str, *, guard: bool) -> None:
    """Do as `_setup_privateuseone_for_python_backend`, with PyTorch's guard in Python or without one."""
    torch.utils.rename_privateuse1_backend(name)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch._register_device_module(name, device_module(name))
    torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    if guard:
        torch._C._acc.register_python_privateuseone_device_guard(backend_registration._DummyDeviceGuard())


def overload(name: str) -> Any:
    """The callable of an aten overload such as `sum.dim_IntList`."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(aten, packet), variant or "default")


def _name(op: Any) -> str:
    return str(op.name()).removeprefix("aten::")


def _as_tensors(op: Any, args: Any) -> Any:
    """Make a tensor again of a number that PyTorch made a tensor of, and that a Python kernel gets as a number."""
    if torch._C._should_allow_numbers_as_tensors(op._opname):
        return args
    wide = {int: torch.int64, float: torch.float64, complex: torch.complex128}
    return tuple(
        torch.tensor(value, dtype=wide[type(value)])
        if isinstance(argument.type, torch.TensorType) and type(value) in wide
        else value
        for argument, value in zip(op._schema.arguments, args, strict=False)
    )


def _bound(run: Kernel, op: Any) -> Kernel:
    return lambda *args, **kwargs: run(op, *args, **kwargs)


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


class Tested(Device):
    """A backend as ampcheck sees it. `promised`: the overloads whose policies of CUDA it promises; None for all."""

    key = "AutocastPrivateUse1"

    def __init__(self, backend: Backend, promised: Collection[str] | None = None) -> None:
        self.name = self.token = self.type = backend.name
        self._promised = promised

    def unavailable(self) -> str | None:
        return None

    def policies(self) -> Mapping[str, str]:
        listed = table("AutocastCUDA", closest(torch.__version__))
        return listed if self._promised is None else {o: p for o, p in listed.items() if o in self._promised}
