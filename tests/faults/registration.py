"""Mistakes of `register_autocast`, and the check of tests/backends/register that must fail for each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol
from torch._C import DispatchKey

from ampcheck.register import casts, hops, kernels, plan, registration, weight_cache
from tests.faults.collecting import ROOT, collected
from tests.faults.fault import Fault, Result

DEVICE, SUITE = "npy-registration", "registration"


def _operators_stay() -> None:
    hops.HigherOrder.unregister = lambda self: None  # type: ignore[method-assign]


def _module_stays() -> None:
    plain = registration._state_supported

    def stays(*args: Any) -> Callable[[], None]:
        plain(*args)
        return lambda: None

    registration._state_supported = stays


def _nothing_is_rolled_back() -> None:
    registration.Registration._run_undo = lambda self: self._undo.clear()  # type: ignore[method-assign]


def _kernels_are_laid_over_others() -> None:
    registration._check_free = lambda made: None


def _any_op_takes_any_policy() -> None:
    kernels.optdtype = kernels.upcast
    plan._is_optional_dtype = lambda argument: True


def _all_devices_are_excluded() -> None:
    kernels._TEMPLATE = kernels._TEMPLATE.replace("try:", "try:\n        exclude(every, True)").replace(
        "exclude(key, False)", "exclude(key, False); exclude(every, False)"
    )
    plain = kernels._made
    every = {"every": DispatchKey.AutocastCPU}
    kernels._made = lambda op, call, signature, body, bound: plain(op, call, signature, body, {**bound, **every})


def _an_exception_leaves_the_key_excluded() -> None:
    kernels._TEMPLATE = kernels._TEMPLATE.replace("        return call", "        out = call").replace(
        "    finally:\n        exclude(key, False)", "    finally: pass\n    exclude(key, False)\n    return out"
    )


def _defaults_are_lost() -> None:
    plain = kernels._add

    def without(out: Any, argument: Any, name: str, handed_on: str) -> None:
        plain(out, argument, name, handed_on)
        out.defaults = dict.fromkeys(out.defaults, 1)

    kernels._add = without


def _doubles_are_eligible() -> None:
    casts._DOUBLE = torch.float32


def _flex_attention_falls_through() -> None:
    plain = hops.HigherOrder
    registration.HigherOrder = lambda base: plain(DispatchKey.AutocastXPU)


def _cache_is_not_cleared() -> None:
    registration._clear_with_torch = lambda cache: lambda: None


def _cache_forgets_the_dtype() -> None:
    class ByWeight(dict):  # type: ignore[type-arg]
        def get(self, place: Any, default: Any = None) -> Any:
            return next((cast for (weight, _), cast in self.items() if weight == place[0]), default)

    plain = weight_cache.Cache.__init__

    def start(self: Any) -> None:
        plain(self)
        self._casts = ByWeight()

    weight_cache.Cache.__init__ = start  # type: ignore[method-assign]


def _cache_ignores_changes() -> None:
    weight_cache.Cache._fresh = lambda self, found, weight: found.weight() is weight  # type: ignore[method-assign]


def _gradients_stay_low() -> None:
    def forward(ctx: Any, weight: Any, holder: Any) -> Any:
        return holder[0]

    weight_cache._Graph.forward = staticmethod(forward)


def _traces_see_kept_casts() -> None:
    weight_cache._foreign = lambda weight: False


@contextmanager
def _injected(mistake: Callable[[], None]) -> Iterator[None]:
    """A mistake, and whatever it replaced put back."""
    classes = (hops.HigherOrder, registration.Registration, weight_cache.Cache, weight_cache._Graph)
    before = [
        (owner, dict(vars(owner))) for owner in (casts, hops, weight_cache, kernels, plan, registration, *classes)
    ]
    mistake()
    try:
        yield
    finally:
        for owner, held in before:
            for name, value in held.items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)


def results(fault: Fault) -> list[Result]:
    """Run the check of a fault in a copy of this process, so that no registration outlives it."""
    items = [item for item in _checks() if item.name == fault.op]
    read, write = os.pipe()
    if (copy := os.fork()) == 0:
        with os.fdopen(write, "w", encoding="utf-8") as pipe:
            reports = [report for item in items for report in runtestprotocol(item, log=False, nextitem=None)]
            json.dump([[report.failed, report.longreprtext] for report in reports], pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        told = pipe.read()
    _, ended = os.waitpid(copy, 0)
    assert told, f"the process of {fault.op} ended with {ended}"
    failed = [text for was, text in json.loads(told) if was]
    return [{"id": fault.op, "status": "fail" if failed else "pass", "message": "\n".join(failed)}]


@cache
def _checks() -> list[pytest.Item]:
    """The checks of tests/backends/register, collected. None of them runs in this process itself."""
    options = ["-o", "python_files=checks_*.py", "-o", "python_functions=check_*", "-p", "register_support"]
    return collected([str(ROOT / "tests/backends/register"), "--noconftest", *options])[1]


FAULTS = tuple(
    Fault(name, SUITE, partial(_injected, mistake), (), SUITE, DEVICE, op=check)
    for name, mistake, check in (
        ("operators-stay", _operators_stay, "check_unregister_restores_everything"),
        ("module-stays", _module_stays, "check_unregister_restores_everything"),
        ("nothing-is-rolled-back", _nothing_is_rolled_back, "check_failure_on_the_way_is_rolled_back"),
        ("kernels-are-laid-over-others", _kernels_are_laid_over_others, "check_kernel_that_is_there"),
        ("any-op-takes-any-policy", _any_op_takes_any_policy, "check_policies_that_do_not_suit"),
        ("all-devices-are-excluded", _all_devices_are_excluded, "check_only_this_key_is_excluded_inside"),
        (
            "an-exception-leaves-the-key-excluded",
            _an_exception_leaves_the_key_excluded,
            "check_exception_inside_leaves_autocast_on",
        ),
        ("defaults-are-lost", _defaults_are_lost, "check_append_hands_on_what_was_left_out"),
        ("doubles-are-eligible", _doubles_are_eligible, "check_append_hands_on_what_was_left_out"),
        ("flex-attention-falls-through", _flex_attention_falls_through, "check_flex_attention_is_cast"),
        ("cache-is-not-cleared", _cache_is_not_cleared, "check_cache_is_weak_and_cleared"),
        ("cache-forgets-the-dtype", _cache_forgets_the_dtype, "check_cache_keeps_dtypes_apart"),
        ("cache-ignores-changes", _cache_ignores_changes, "check_cache_notices_changes"),
        ("gradients-stay-low", _gradients_stay_low, "check_gradients_of_many_uses_are_summed_in_float32"),
        ("traces-see-kept-casts", _traces_see_kept_casts, "check_traced_programs_hold_their_casts"),
    )
)
"""Every mistake, and the check that must fail for it."""
