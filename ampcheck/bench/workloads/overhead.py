"""Workloads of autocast's overhead, almost without arithmetic: entering a region, ops, the weight cache, the scaler."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F

from ampcheck.bench.core.model import OverheadWorkload, Workload
from ampcheck.bench.torch_private import parse_key
from ampcheck.register.torch_private import DispatchKeySet, ExcludeDispatchKeyGuard, backend_name

Variants = Mapping[str, Callable[[], object]]

OPS = 50
"""The ops in a region of the `op-…` workloads, so many that entering it is a small part: 2 µs beside 50 ops."""

USES = 8
"""The uses of the weight of `weight-cache` in its region."""

LOW = torch.bfloat16


def _region(device: str, **settings: Any) -> torch.autocast:
    return torch.autocast(device, dtype=LOW, **settings)


def _enter(device: str) -> Variants:
    """Make a region without ops. `nested` is two regions; `decorator` a call of a decorated empty function."""
    kept = _region(device)

    def none() -> None:
        with nullcontext():
            pass

    def fresh() -> None:
        with _region(device):
            pass

    def reused() -> None:
        with kept:
            pass

    def nothing() -> None:
        pass

    def nested() -> None:
        with _region(device), _region(device):
            pass

    def disabled() -> None:
        with _region(device, enabled=False):
            pass

    return {
        "none": none,
        "fresh": fresh,
        "reused": reused,
        "decorator": _region(device)(nothing),
        "nested": nested,
        "disabled": disabled,
    }


def _repeated(region: Callable[[], AbstractContextManager[Any]], op: Callable[[], object]) -> Callable[[], object]:
    def run() -> Any:
        with torch.no_grad(), region():
            for _ in range(OPS):
                out = op()
        return out

    return run


def _around(device: str, op: Callable[..., object], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Make `OPS` calls of an op of two tensors without gradient, outside of a region and inside of one."""
    x, y = (torch.ones(16, 16, dtype=dtype, device=device) for _ in range(2))
    call = lambda: op(x, y)  # noqa: E731
    return {"outside": _repeated(nullcontext, call), "inside": _repeated(partial(_region, device), call)}


def _op_with_cast(device: str) -> Variants:
    """Make a product of two float32 tensors, each of which is cast at each op; `by-hand` casts without a region."""
    by_hand = _around(device, lambda x, y: torch.mm(x.to(LOW), y.to(LOW)), torch.float32)["outside"]
    return {**_around(device, torch.mm, torch.float32), "by-hand": by_hand}


@cache
def _library(key: str) -> torch.library.Library:
    """Two ops that add a tensor to itself; one has a Python kernel on an autocast key, which casts nothing."""
    library = torch.library.Library("ampcheck_bench", "FRAGMENT")
    autocast = DispatchKeySet(parse_key(key))
    for name in (f"{key}_none", f"{key}_python"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: torch.add(x, x), "CompositeImplicitAutograd")
    op = getattr(torch.ops.ampcheck_bench, f"{key}_python")

    def kernel(x: torch.Tensor) -> Any:
        with ExcludeDispatchKeyGuard(autocast):
            return op(x)

    library.impl(f"{key}_python", kernel, key)
    return library


def _op_python_kernel(device: str) -> Variants:
    """Make an op in a region, with no autocast kernel, and with one in Python, as a backend's own op may have."""
    third = device == backend_name()
    key = "AutocastPrivateUse1" if third else f"Autocast{device.upper()}"
    _library(key)
    x = torch.ones(16, 16, device=device)

    def calling(variant: str) -> Callable[[], object]:
        op = getattr(torch.ops.ampcheck_bench, f"{key}_{variant}").default
        return _repeated(lambda: _region(device), lambda: op(x))

    return {variant: calling(variant) for variant in ("none", "python")}


def _compile_toggle(device: str) -> Variants:
    """Two calls of a function compiled by Dynamo alone: both in a region, or one of them in a disabled one.

    Dynamo guards on autocast's state, so the second has two programs and looks for the right one at each call.
    """
    x = torch.ones(16, 16, device=device)

    def steady() -> Any:
        with _region(device):
            alike(x)
        with _region(device):
            return alike(x)

    def toggled() -> Any:
        with _region(device, enabled=False):  # as dear to enter as the other
            changing(x)
        with _region(device):
            return changing(x)

    # One function object each, as Dynamo keeps the programs with a function's code.
    alike: Callable[[torch.Tensor], Any] = torch.compile(lambda x: torch.add(x, x), backend="eager", dynamic=False)
    changing: Callable[[torch.Tensor], Any] = torch.compile(lambda x: torch.add(x, x), backend="eager", dynamic=False)
    return {"steady": steady, "toggled": toggled}


def _weight_cache(device: str) -> Variants:
    """Make `USES` uses of a float32 weight, cast once or at each use. The data has the region's dtype already."""
    weight = torch.ones(256, 256, device=device, requires_grad=True)
    x = torch.ones(16, 256, dtype=LOW, device=device)

    def using(cached: bool) -> Callable[[], object]:
        def run() -> Any:
            with _region(device, cache_enabled=cached):
                for _ in range(USES):
                    out = F.linear(x, weight)
            return out.detach()

        return run

    return {"on": using(True), "off": using(False)}


def _scaler_step(device: str) -> Variants:
    """Make an update of eight parameters, without and with unscaling, looking for infinities, and the new scale.

    The scale is 1 and stays so: each call unscales the same gradients once more.
    """

    def optimizer() -> torch.optim.SGD:
        parameters = [torch.ones(64, 64, device=device, requires_grad=True) for _ in range(8)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        return torch.optim.SGD(parameters, lr=1e-6)

    plainly, scaled = optimizer(), optimizer()
    scaler = torch.amp.GradScaler(device, init_scale=1.0, growth_interval=2**31 - 1)
    scaler.scale(torch.ones((), device=device))  # makes the scale on the device, which a step needs

    def plain() -> Any:
        plainly.step()
        return plainly.param_groups[0]["params"][-1].detach()

    def with_scaler() -> Any:
        scaler.step(scaled)
        scaler.update()
        return scaled.param_groups[0]["params"][-1].detach()

    return {"plain": plain, "scaler": with_scaler}


def _overhead(name: str, make: Callable[[str], Variants], samples: int) -> OverheadWorkload:
    """Make a workload of `samples`: how many ops, uses or regions a call has, so that the cost of one can be told."""
    quick = name in ("region-enter", "op-with-cast")
    return OverheadWorkload(name=name, family="overhead", policy="", make=make, samples=samples, quick=quick)


WORKLOADS: tuple[Workload, ...] = (
    _overhead("region-enter", _enter, 1),
    _overhead("op-without-cast", partial(_around, op=torch.mm, dtype=LOW), OPS),
    _overhead("op-fallthrough", partial(_around, op=torch.add, dtype=torch.float32), OPS),
    _overhead("op-with-cast", _op_with_cast, OPS),
    _overhead("op-python-kernel", _op_python_kernel, OPS),
    _overhead("compile-toggle", _compile_toggle, 2),
    _overhead("weight-cache", _weight_cache, USES),
    _overhead("scaler-step", _scaler_step, 1),
)
