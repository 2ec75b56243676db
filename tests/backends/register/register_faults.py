"""Mistakes planted in `register_autocast`, and the check of this folder that must name each.

tests/register/test_register.py plants each in a process of its own, before anything is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey

from ampcheck.register import casts, hops, kept, kernels, registration


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
    from ampcheck.register import plan

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
            return next((kept for (weight, _), kept in self.items() if weight == place[0]), default)

    plain = kept.Cache.__init__

    def start(self: Any) -> None:
        plain(self)
        self._kept = ByWeight()

    kept.Cache.__init__ = start  # type: ignore[method-assign]


def _cache_ignores_changes() -> None:
    kept.Cache._fresh = lambda self, found, weight: found.weight() is weight  # type: ignore[method-assign]


def _gradients_stay_low() -> None:
    def forward(ctx: Any, weight: Any, holder: Any) -> Any:
        return holder[0]

    kept._Graph.forward = staticmethod(forward)


def _traces_see_kept_casts() -> None:
    kept._foreign = lambda weight: False


FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "operators_stay": (_operators_stay, "check_unregister_restores_everything"),
    "module_stays": (_module_stays, "check_unregister_restores_everything"),
    "nothing_is_rolled_back": (_nothing_is_rolled_back, "check_failure_on_the_way_is_rolled_back"),
    "kernels_are_laid_over_others": (_kernels_are_laid_over_others, "check_kernel_that_is_there"),
    "any_op_takes_any_policy": (_any_op_takes_any_policy, "check_policies_that_do_not_suit"),
    "all_devices_are_excluded": (_all_devices_are_excluded, "check_only_this_key_is_excluded_inside"),
    "an_exception_leaves_the_key_excluded": (
        _an_exception_leaves_the_key_excluded,
        "check_exception_inside_leaves_autocast_on",
    ),
    "defaults_are_lost": (_defaults_are_lost, "check_append_hands_on_what_was_left_out"),
    "doubles_are_eligible": (_doubles_are_eligible, "check_append_hands_on_what_was_left_out"),
    "flex_attention_falls_through": (_flex_attention_falls_through, "check_flex_attention_is_cast"),
    "cache_is_not_cleared": (_cache_is_not_cleared, "check_cache_is_weak_and_cleared"),
    "cache_forgets_the_dtype": (_cache_forgets_the_dtype, "check_cache_keeps_dtypes_apart"),
    "cache_ignores_changes": (_cache_ignores_changes, "check_cache_notices_changes"),
    "gradients_stay_low": (_gradients_stay_low, "check_gradients_of_many_uses_are_summed_in_float32"),
    "traces_see_kept_casts": (_traces_see_kept_casts, "check_traced_programs_hold_their_casts"),
}
"""How each mistake is planted, and the check that fails for it."""
