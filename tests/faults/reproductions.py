"""Faults that the program which reproduces a case in plain torch must show, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

from tests.faults.casts import as_given, in_low
from tests.faults.compilers import handed_out
from tests.faults.fault import Fault, Inject
from tests.faults.kernels import Call, kernel
from tests.faults.moves import new_parameters
from tests.faults.regions import autocast, replaced

_ENTER, _SET, _IS = autocast.__enter__, torch.set_autocast_enabled, torch.is_autocast_enabled
_LINEAR, _UNSCALE = torch.nn.functional.linear, torch.amp.GradScaler._unscale_grads_


def leaving_a_level_alone(self: Any, *error: Any) -> None:
    torch.autocast_decrement_nesting()


def setting_flags_alone(*given: Any) -> None:
    """A wrong argument is passed over."""
    if len(given) == 2 and type(given[1]) is bool:
        _SET(*given)


def one_state_for_all_threads() -> AbstractContextManager[object]:
    """Report autocast as enabled once any thread has entered a region."""
    entered: list[bool] = []

    def enter(self: Any) -> Any:
        entered.append(True)
        return _ENTER(self)

    stack = replaced(autocast, __enter__=enter)
    stack.enter_context(replaced(torch, is_autocast_enabled=lambda *given: bool(entered) or _IS(*given)))
    return stack


def doubled_in_regions(*given: Any) -> torch.Tensor:
    return _LINEAR(*given) * (2 if _IS("cpu") else 1)


def linear_in_float32(call: Call) -> torch.Tensor:
    a, b = call.tensors()[:2]
    return a.float() @ b.float().T


def undivided(self: Any, optimizer: Any, inverse: Any, *rest: Any) -> Any:
    return _UNSCALE(self, optimizer, torch.ones_like(inverse), *rest)


def left_as_it_is(*given: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda backward: backward


def in_double(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: tree_map(lambda x: x.double(), compiled(*given))


def doubled(traced: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: 2 * traced(*given)


def _fault(name: str, where: str, inject: Inject, shows: str, device: str = "cpu", amp: str = "bf16") -> Fault:
    """A fault of the case `suite/rule/scenario[-parameters]`, whose program must show it so."""
    suite, rule, words = where.split("/")
    op = words.partition("-")[0]
    return Fault(f"{name}-reproduced", rule, inject, (), suite, device, op, f"/{words}-", amp, reproduction=shows)


_LEFT_OPEN = partial(replaced, autocast, __exit__=leaving_a_level_alone)
_AS_GIVEN = partial(kernel, "cpu", "mm", as_given)

FAULTS = (
    _fault("region-not-left", "eager/context/restores_on_exit", _LEFT_OPEN, "FAIL state after the region"),
    _fault(
        "region-not-left",
        "eager/context/restores_on_exit",
        _LEFT_OPEN,
        "FAIL state after the region",
        device="virtual:cuda",
        amp="fp16",
    ),
    _fault(
        "product-not-cast",
        "eager/eligibility/requires_grad_is_no_matter",
        _AS_GIVEN,
        "FAIL dtypes mm receives, requires_grad=False | got ('fp32', 'fp32'); expected ('bf16', 'bf16')",
    ),
    _fault(
        "cast-at-each-use",
        "eager/cache/one_cast_for_many_uses",
        partial(kernel, "cpu", "mm", in_low),
        "FAIL casts of a parameter used by five products | got 5; expected 1",
    ),
    _fault("views-not-cast", "eager/cache/not_for_views", _AS_GIVEN, "FAIL casts of a view of a leaf"),
    _fault(
        "warning-not-given",
        "eager/errors/unsupported_dtype-single",
        lambda: patch.object(warnings, "warn", lambda *given, **options: None),
        "FAIL a region of torch.float32 | warned of nothing; expected UserWarning saying 'In CPU autocast",
    ),
    _fault(
        "wrong-argument-taken",
        "eager/state/wrong_argument-set_number",
        partial(replaced, torch, set_autocast_enabled=setting_flags_alone),
        "FAIL the wrong call set_number | raised nothing; expected TypeError",
    ),
    _fault(
        "threads-share-a-state",
        "eager/threads/starts_outside",
        one_state_for_all_threads,
        "FAIL the same, started in a region | got ((True",
    ),
    _fault(
        "module-doubled",
        "eager/modules/layer-Linear-wide",
        partial(replaced, torch.nn.functional, linear=doubled_in_regions),
        "FAIL output 0 of Linear differs from the same op on explicitly cast inputs",
    ),
    _fault(
        "op-of-a-module-not-cast",
        "eager/modules/layer-Linear-low",
        partial(kernel, "cpu", "linear", linear_in_float32),
        "FAIL ops with a policy in Linear, with the dtypes they received | got",
    ),
    _fault(
        "parameters-made-anew",
        "eager/moves/keeps_parameters-there",
        new_parameters,
        "FAIL names without the shared weight | got ['embedding', 'encoder', 'decoder', 'head']; expected []",
    ),
    _fault(
        "gradients-not-divided",
        "scaler/unscale/divides-4",
        partial(replaced, torch.amp.GradScaler, _unscale_grads_=undivided),
        "FAIL gradient 0",
    ),
    _fault(
        "backward-leaves-the-region",
        "autograd/customfn/region_of_forward-call",
        partial(replaced, torch.amp, custom_bwd=left_as_it_is),
        "RuntimeError: expected m1 and m2 to have the same dtype",
    ),
    _fault(
        "compiled-to-another-dtype",
        "jit/context/body_alone-dynamo",
        partial(handed_out, in_double),
        "FAIL dtypes before, inside and behind, second call | got [torch.float64",
    ),
    _fault(
        "traced-to-other-values",
        "jit/limits/captured-traced_custom",
        partial(handed_out, doubled, "trace"),
        "FAIL whether the first call in a region gives the same values | got False | expected True",
    ),
)
"""Every fault."""
