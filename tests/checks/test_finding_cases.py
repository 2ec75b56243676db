"""The cases of the findings: each says what is wrong with torch as it is, and nothing where that is mended."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.runner.deviations import KnownDeviations, after_deviations

CPU = known()["cpu"]
AUTOCAST = torch.amp.autocast_mode.autocast
FORWARD, CAST = torch.amp.custom_fwd, torch.amp.autocast_mode._cast


# ---- torch mended


def nothing_kept() -> AbstractContextManager[object]:
    """Regions that keep no casts: slower, and right."""
    make = CPU.autocast
    return patch.object(CPU, "autocast", lambda *args, **options: make(*args, **{**options, "cache_enabled": False}))


def refusing() -> AbstractContextManager[object]:
    """A register_autocast that refuses ops that change their arguments."""

    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("an op that changes its arguments cannot be autocast")

    return patch.object(torch.library, "register_autocast", refuse)


def named_tuples() -> AbstractContextManager[object]:
    """A custom_fwd that rebuilds a named tuple from its fields."""

    def cast(value: Any, *how: Any) -> Any:
        return type(value)(*(cast(item, *how) for item in value)) if hasattr(value, "_fields") else CAST(value, *how)

    return patch.object(torch.amp.autocast_mode, "_cast", cast)


def containers_alone() -> AbstractContextManager[object]:
    """A custom_fwd that looks into lists, tuples and plain dicts alone."""

    def cast(value: Any, *how: Any) -> Any:
        return CAST(value, *how) if type(value) in (list, tuple, dict, torch.Tensor) else value

    return patch.object(torch.amp.autocast_mode, "_cast", cast)


def nothing_enabled() -> AbstractContextManager[object]:
    """Regions that cast nothing, where ops in it are what they are outside."""
    make = CPU.autocast
    return patch.object(CPU, "autocast", lambda *args, **options: make(*args, **{**options, "enabled": False}))


def whole_state() -> AbstractContextManager[object]:
    """A custom_fwd and custom_bwd that carry cache_enabled too."""

    def custom_fwd(*, device_type: str) -> Callable[[Any], Any]:
        def decorate(forward: Any) -> Any:
            def keeping(ctx: Any, *args: Any) -> Any:
                ctx.kept = torch.is_autocast_cache_enabled()
                return forward(ctx, *args)

            return FORWARD(keeping, device_type=device_type)

        return decorate

    def custom_bwd(*, device_type: str) -> Callable[[Any], Any]:
        def decorate(backward: Any) -> Any:
            def restoring(ctx: Any, *args: Any) -> Any:
                with torch.autocast(device_type, ctx._dtype, ctx._fwd_used_autocast, ctx.kept):
                    return backward(ctx, *args)

            return restoring

        return decorate

    stack = ExitStack()
    stack.enter_context(patch.object(torch.amp, "custom_fwd", custom_fwd))
    stack.enter_context(patch.object(torch.amp, "custom_bwd", custom_bwd))
    return stack


def without_a_context() -> AbstractContextManager[object]:
    """A custom_fwd that marks nothing, and a custom_bwd that enters a region."""

    def custom_bwd(*, device_type: str) -> Callable[[Any], Any]:
        return torch.autocast(device_type)

    stack = ExitStack()
    stack.enter_context(patch.object(torch.amp, "custom_fwd", lambda *, device_type: lambda forward: forward))
    stack.enter_context(patch.object(torch.amp, "custom_bwd", custom_bwd))
    return stack


def a_region_a_call() -> AbstractContextManager[object]:
    """A decorator that makes a region for each call, and a compiler that takes it."""

    def call(self: Any, function: Any) -> Any:
        @functools.wraps(function)
        def decorated(*args: Any, **options: Any) -> Any:
            with AUTOCAST(self.device, self.fast_dtype, self._enabled, self._cache_enabled):
                return function(*args, **options)

        return decorated

    stack = ExitStack()
    stack.enter_context(patch.object(AUTOCAST, "__call__", call))
    stack.enter_context(patch.object(torch, "compile", lambda **options: lambda function: function))
    return stack


def inner_that_widens() -> AbstractContextManager[object]:
    """A torch.inner that promotes."""
    calls = import_module("suites.eager.test_eligibility").LOW_AND_WIDE
    return patch.dict(calls, inner=lambda low, wide: torch.inner(low.float(), wide))


CASES: dict[str, tuple[Callable[[], AbstractContextManager[object]], dict[str, Any]]] = {
    "eager/cache/inner_region_of_another_dtype": (nothing_kept, {}),
    "eager/cache/other_dtype_set_inside": (nothing_kept, {}),
    "eager/cache/other_dtype_in_a_thread": (nothing_kept, {}),
    "eager/cache/layer_in_two_dtypes": (nothing_kept, {}),
    "eager/cache/changed_weight-in_place": (nothing_kept, {"change": "in_place"}),
    "eager/cache/changed_weight-loaded": (nothing_kept, {"change": "loaded"}),
    "eager/cache/changed_weight-replaced": (nothing_kept, {"change": "replaced"}),
    "eager/cache/after_a_fake_mode": (nothing_kept, {}),
    "autograd/cache/gradient_of_many_uses": (nothing_kept, {}),
    "autograd/cache/training_inside_a_region-disabled": (nothing_kept, {"outer": "disabled"}),
    "autograd/cache/training_inside_a_region-elsewhere": (nothing_kept, {"outer": "elsewhere"}),
    "autograd/context/custom_bwd_settings-kept": (whole_state, {"forward": True}),
    "autograd/context/custom_bwd_settings-dropped": (whole_state, {"forward": False}),
    "autograd/context/custom_fwd_with_setup_context": (without_a_context, {}),
    "autograd/eligibility/custom_fwd_container-named": (named_tuples, {"kind": "named"}),
    "autograd/eligibility/custom_fwd_other_argument-layers": (containers_alone, {"kind": "layers"}),
    "autograd/eligibility/custom_fwd_other_argument-ordered": (containers_alone, {"kind": "ordered"}),
    "eager/eligibility/custom_op_that_mutates": (refusing, {}),
    "eager/eligibility/custom_op_with_keyword": (refusing, {}),
    "eager/eligibility/eight_bits_that_widen": (nothing_enabled, {}),
    "eager/eligibility/under_vmap-linear_bias": (nothing_enabled, {"op": "linear_bias"}),
    "eager/eligibility/under_vmap-cross_entropy": (nothing_enabled, {"op": "cross_entropy"}),
    "eager/eligibility/attention_under_vmap": (nothing_enabled, {}),
    "eager/eligibility/low_and_wide-inner": (inner_that_widens, {"op": "inner"}),
    "jit/decorator/recursion_compiled": (a_region_a_call, {}),
}
"""What mends torch for each case, and the parameters of its scenario."""


def found(case: str, parameters: dict[str, Any]) -> list[str]:
    """Every difference that a scenario finds on the CPU."""
    suite, rule, name = case.partition("-")[0].split("/")
    amp = DeviceAmp(CPU, "bf16")
    reset({})
    try:
        getattr(import_module(f"suites.{suite}.test_{rule}"), f"test_{name}")(amp, **parameters)
    finally:
        reset({})
    return amp.differences


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"it mends functions of torch 2.13, this is {torch.__version__}"
)
@pytest.mark.parametrize("case", CASES)
def test_the_finding_is_named_and_nothing_once_it_is_mended(case: str) -> None:
    mend, parameters = CASES[case]
    name = case.partition("/")[2]
    entries = [entry.in_region("bf16") for entry in KnownDeviations([CPU]).of("cpu", f"{name}-bf16-cpu")]
    assert entries
    assert after_deviations("fail", found(case, parameters), entries)[0] == "deviation"
    with mend():
        assert found(case, parameters) == []
