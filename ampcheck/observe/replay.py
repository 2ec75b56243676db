"""A replay of autocast: run plain torch code outside of a region with the casts that the specification asks for.

The reference for anything made of several ops, such as a module: `torch.autocast` must give the same dtypes and the
same bits. Like the recorder it sits above every decomposition, so an op with a policy is cast once and runs whole, and
a composite op without one is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.observe.recorder import Observation, is_composite, map_tensors, overload, overload_name, parts, tensors
from ampcheck.observe.torch_private import AutoDispatchBelowAutograd, TorchDispatchMode, dispatch_keys, load_dynamo
from ampcheck.register.torch_private import DispatchKey, has_kernel
from ampcheck.spec.casting import POLICIES, Leaf, expect
from ampcheck.spec.torch_dtypes import DTYPES, name_of

CALLERS = ("_transformer_encoder_layer_fwd",)
"""Kernels of a backend, without a policy, that call ops with one: autocast acts inside of them."""
_BACKENDS = tuple(getattr(DispatchKey, name) for name in ("CPU", "CUDA", "XPU", "MPS", "MTIA", "PrivateUse1"))


class Replay(TorchDispatchMode):
    """Casts the arguments of each op with a policy as the specification says, while entered outside of any region.

    `device_type` and `dtype`: of the region that is replayed. `policies`: of the device, by overload.
    """

    def __init__(self, device_type: str, dtype: str, policies: Mapping[str, str]) -> None:
        super().__init__()
        self._type = device_type
        self._dtype = dtype
        self._policies = policies
        self.kernels: list[tuple[str, tuple[str, ...]]] = []
        """Each op with a policy that ran: its overload and the dtypes of its tensor arguments."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = overload_name(func)
        policy = self._policies.get(name)
        if policy not in POLICIES:
            return self._without_policy(func, name, args, kwargs)
        positions = [argument.name for argument in func._schema.arguments]
        place = positions.index("dtype") if "dtype" in positions else len(args)
        chosen = kwargs.get("dtype", args[place] if place < len(args) else None)
        given = [Leaf(name_of(t.dtype), t.device.type == self._type) for t in tensors((args, kwargs))]
        wanted = expect(policy, name, given, self._dtype, dtype_given=chosen is not None)
        if wanted.error:
            raise RuntimeError(wanted.error)
        if wanted.overload == name:
            self.kernels.append((name, wanted.leaves))
        remaining = iter(wanted.leaves)

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(DTYPES[next(remaining)])

        args = map_tensors(args, cast)
        kwargs = {key: map_tensors(value, cast) for key, value in kwargs.items()}
        if wanted.dtype_kwarg:
            args, kwargs["dtype"] = args[:place], DTYPES[wanted.dtype_kwarg]
            if wanted.overload != name:  # the other overload has no defaults
                args += tuple(argument.default_value for argument in func._schema.arguments[len(args) :])
        return overload(wanted.overload)(*args, **kwargs)

    def _without_policy(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in CALLERS and (backend := _backend(func, args)) is not None:
            seen = len(self.kernels)
            with self:
                out = func._op_dk(backend, *args, **kwargs)
            del self.kernels[seen:]  # a recorder does not see inside it either
            return out
        if "::" not in name and is_composite(name):
            with self:
                return parts(func, args, kwargs)
        return func(*args, **kwargs)


def _backend(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the dispatch key of the kernel for the first tensor; None where its backend has none."""
    keys = dispatch_keys(next(tensors(args)))
    key = next(key for key in _BACKENDS if keys.has(key))
    return key if has_kernel(func.name(), key) else None


@contextmanager
def _reported(device_type: str) -> Iterator[None]:
    """Tell Python code that asks whether autocast is on what it would be told inside the region."""
    # Dynamo keeps the functions it folds by their identity as it is imported; it must not meet the ones put in here.
    load_dynamo()

    def enabled(asked: str = "cuda") -> bool:
        return asked == device_type

    with patch("torch.is_autocast_enabled", enabled), patch("torch._C._is_any_autocast_enabled", lambda: True):
        yield


def replay(
    call: Callable[[], Any], device_type: str, dtype: str, policies: Mapping[str, str]
) -> tuple[Observation, list[tuple[str, tuple[str, ...]]]]:
    """Run `call` outside of any region with the casts of one.

    No gradient is recorded: the autograd keys are excluded, so that composite ops arrive whole.

    Returns: its outputs or its error, and each op with a policy that ran, with the dtypes it received.
    """
    seen = Observation()
    mode = Replay(device_type, dtype, policies)
    with AutoDispatchBelowAutograd(), _reported(device_type), mode:
        try:
            seen.outputs = list(tensors(call()))
        except Exception as error:  # the call under test may raise anything, and that is what is to be seen
            seen.error = error
    return seen, mode.kernels
