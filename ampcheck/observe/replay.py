"""A replay of autocast: run plain torch code outside of a region with the casts that the specification asks for.

The reference for anything made of several ops, such as a module: `torch.autocast` must give the same dtypes and the
same bits. Like the recorder it sits above every decomposition, so an op with a policy is cast once and runs whole, and
a composite op without one is taken apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import torch

from ampcheck.observe.recorder import (
    Observation,
    Recorder,
    attempt,
    is_composite,
    map_tensors,
    overload,
    overload_name,
    parts,
    tensors,
)
from ampcheck.observe.torch_private import AutoDispatchBelowAutograd, dispatch_keys, load_dynamo
from ampcheck.register.torch_private import DispatchKey, OpOverload, has_kernel
from ampcheck.spec.casting import POLICIES, Leaf, expect
from ampcheck.spec.torch_dtypes import DTYPES, name_of

CALLERS = ("_transformer_encoder_layer_fwd",)
"""Kernels of a backend, without a policy, that call ops with one: autocast acts inside of them."""
_BACKENDS = tuple(getattr(DispatchKey, name) for name in ("CPU", "CUDA", "XPU", "MPS", "MTIA", "PrivateUse1"))


class Casting(NamedTuple):
    """What autocast makes of a call of an op.

    `overload`: the op whose kernel runs. `dtypes`: of each tensor that it receives, None for one of another device
    type. `dtype`: the `dtype=` that is filled in. `refusal`: a part of the message where the call must be refused.
    """

    overload: str
    dtypes: tuple[torch.dtype | None, ...]
    dtype: torch.dtype | None = None
    refusal: str = ""


class CastRule(Protocol):
    """Says what autocast makes of a call of an overload, whose tensors have the dtypes `given`."""

    def __call__(self, overload: str, given: Sequence[torch.dtype | None], *, dtype_given: bool) -> Casting: ...


def casting(
    policy: str,
    overload: str,
    given: Sequence[torch.dtype | None],
    dtype: torch.dtype,
    *,
    enabled: bool = True,
    dtype_given: bool = False,
) -> Casting:
    """Return what the specification says of a call; see `ampcheck.spec.casting.expect`.

    `given`: the dtype of each tensor argument, None for one of another device type.
    """
    leaves = [Leaf(name_of(own or torch.float32), own is not None) for own in given]
    wanted = expect(policy, overload, leaves, name_of(dtype), enabled=enabled, dtype_given=dtype_given)
    dtypes = tuple(DTYPES[name] if own else None for own, name in zip(given, wanted.leaves, strict=True))
    filled = DTYPES[wanted.dtype_kwarg] if wanted.dtype_kwarg else None
    return Casting(wanted.overload, dtypes, filled, wanted.error or "")


class Replay(Recorder):
    """Cast the arguments of each op with a policy while entered outside of any region.

    `device_type`: of the region that is replayed. `policies`: of the device, by overload. `casts`: says what they ask
    for.
    """

    def __init__(self, device_type: str, policies: Mapping[str, str], casts: CastRule) -> None:
        super().__init__(self._replayed)
        self._type = device_type
        self._policies = policies
        self._casts = casts
        self.kernels: list[tuple[str, tuple[str, ...]]] = []
        """Each op with a policy that ran: its overload and the dtypes of its tensor arguments."""

    def _replayed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = overload_name(func)
        policy = self._policies.get(name)
        if policy not in POLICIES:
            return self._without_policy(func, name, args, kwargs)
        positions = [argument.name for argument in func._schema.arguments]
        place = positions.index("dtype") if "dtype" in positions else len(args)
        chosen = kwargs.get("dtype", args[place] if place < len(args) else None)
        given = [t.dtype if t.device.type == self._type else None for t in tensors((args, kwargs))]
        wanted = self._casts(name, given, dtype_given=chosen is not None)
        if wanted.refusal:
            raise RuntimeError(wanted.refusal)
        if wanted.overload == name:
            pairs = zip(wanted.dtypes, tensors((args, kwargs)), strict=True)
            self.kernels.append((name, tuple(name_of(dtype or tensor.dtype) for dtype, tensor in pairs)))
        remaining = iter(wanted.dtypes)

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(next(remaining) or tensor.dtype)

        args = map_tensors(args, cast)
        kwargs = {key: map_tensors(value, cast) for key, value in kwargs.items()}
        if wanted.dtype:
            args, kwargs["dtype"] = args[:place], wanted.dtype
            if wanted.overload != name:  # the other overload has no defaults
                args += tuple(argument.default_value for argument in func._schema.arguments[len(args) :])
        return overload(wanted.overload)(*args, **kwargs)

    def _without_policy(self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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


def _backend(func: OpOverload, args: tuple[Any, ...]) -> DispatchKey | None:
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


def by_policies(policies: Mapping[str, str], dtype: torch.dtype) -> CastRule:
    """Return what says how a region of a dtype casts by some policies."""

    def casts(overload: str, given: Sequence[torch.dtype | None], *, dtype_given: bool) -> Casting:
        return casting(policies[overload], overload, given, dtype, dtype_given=dtype_given)

    return casts


def replay(
    call: Callable[[], Any], device_type: str, policies: Mapping[str, str], casts: CastRule
) -> tuple[Observation, list[tuple[str, tuple[str, ...]]]]:
    """Run `call` outside of any region with the casts of one; see `Replay` for the arguments.

    No gradient is recorded: the autograd keys are excluded, so that composite ops arrive whole.

    Returns: its outputs or its error, and each op with a policy that ran, with the dtypes it received.
    """
    seen = Observation()
    mode = Replay(device_type, policies, casts)
    with AutoDispatchBelowAutograd(), _reported(device_type), mode:
        out, seen.error = attempt(call)
    seen.outputs = list(tensors(out))
    return seen, mode.kernels
