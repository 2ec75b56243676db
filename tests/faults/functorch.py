"""Transforms of torch.func that lose the region, change what comes out, or leave the state changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import apis
from torch.autograd import forward_ad
from torch.nn.utils import stateless

from tests.faults.fault import Fault, Inject

_VMAP = apis.vmap_impl


def off() -> AbstractContextManager[object]:
    return torch.autocast("cpu", enabled=False)


def other() -> AbstractContextManager[object]:
    low = torch.get_autocast_dtype("cpu")
    return torch.autocast("cpu", dtype=torch.float16 if low == torch.bfloat16 else torch.bfloat16)


def _within(around: Inject, function: Any) -> Any:
    """The function, called within `around`."""

    def within(*args: Any, **options: Any) -> Any:
        with around():
            return function(*args, **options)

    return within


def inside(name: str, around: Inject) -> AbstractContextManager[object]:
    """A transform of which the function is called within `around`."""
    transform = getattr(torch.func, name)

    def changed(function: Any, *args: Any, **options: Any) -> Any:
        return transform(_within(around, function), *args, **options)

    return patch.object(torch.func, name, changed)


def after(name: str, done: Callable[[Any], Any]) -> AbstractContextManager[object]:
    """A transform of which the transformed function gives what `done` makes of its result."""
    transform = getattr(torch.func, name)

    def changed(function: Any, *args: Any, **options: Any) -> Any:
        transformed = transform(function, *args, **options)
        return lambda *given: done(transformed(*given))

    return patch.object(torch.func, name, changed)


def mapping(change: Callable[..., Any]) -> AbstractContextManager[object]:
    """Replace vmap by `change`, which is called with the arguments of PyTorch's."""
    return patch.object(apis, "vmap_impl", change)


def mapped_outside(function: Any, *rest: Any, **options: Any) -> Any:
    return _VMAP(_within(off, function), *rest, **options)


def _mapped_backwards(*args: Any, **options: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda tensor: tensor.flip(0), _VMAP(*args, **options))


def _drawn_alike(function: Any, in_dims: Any, out_dims: Any, randomness: str, *rest: Any, **options: Any) -> Any:
    return _VMAP(function, in_dims, out_dims, "same", *rest, **options)


def _never_refused(function: Any, in_dims: Any, out_dims: Any, randomness: str, *rest: Any, **options: Any) -> Any:
    return _VMAP(function, in_dims, out_dims, "different", *rest, **options)


def leave_on(found: Any) -> Any:
    torch.set_autocast_enabled("cpu", True)
    return found


def _without_tangent() -> AbstractContextManager[object]:
    return patch.object(forward_ad, "make_dual", lambda tensor, tangent, *, level=None: tensor)


def _own_parameters() -> AbstractContextManager[object]:
    """A functional call that computes with what the module has."""

    def call(module: Any, given: Any, args: Any, kwargs: Any = None, **options: Any) -> Any:
        return module(*args, **(kwargs or {}))

    return patch.object(stateless, "_functional_call", call)


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the scenarios whose names hold `only` catch."""
    return Fault(name, "functorch", inject, (says,), "autograd", only=only)


FAULTS = (
    fault("grad-outside-of-regions", lambda: inside("grad", off), "states it ran in", "/derivative and around"),
    fault("jvp-outside-of-regions", lambda: inside("jvp", off), "states it ran in", "/derivative and jvp"),
    fault("grad-in-other-dtype", lambda: inside("grad", other), "states it ran in", "/derivative and grad"),
    fault("jacobian-in-low-dtype", lambda: after("jacrev", torch.Tensor.bfloat16), "bfloat16", "/derivative and jac"),
    fault("grad-leaves-on", lambda: after("grad", leave_on), "state and depth after", "/derivative and inside"),
    fault("vmap-outside-of-regions", lambda: mapping(mapped_outside), "state and dtypes inside", "/mapped"),
    fault("vmap-swaps-slices", lambda: mapping(_mapped_backwards), "gradients: differs", "gradients_per_sample"),
    fault("vmap-draws-alike", lambda: mapping(_drawn_alike), "patterns", "/randomness"),
    fault("vmap-refuses-no-draw", lambda: mapping(_never_refused), "randomness", "randomness_refused"),
    fault("dual-without-tangent", _without_tangent, "whether there is a tangent", "weight_with_a_tangent"),
    fault("call-with-own-parameters", _own_parameters, "comes out with other parameters", "other_parameters"),
    fault("functionalized-outside", lambda: inside("functionalize", off), "dtype: got", "functionalized"),
)

_ON_JAX = (
    "jacobian-in-low-dtype",
    "vmap-swaps-slices",
    "vmap-draws-alike",
    "vmap-refuses-no-draw",
    "dual-without-tangent",
    "call-with-own-parameters",
)
JAX = tuple(fault.on_jax() for fault in FAULTS if fault.name in _ON_JAX)
"""Those that the jax device must notice, too."""
