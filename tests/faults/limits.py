"""A linter that is blind or loses places, compilers that treat regions wrongly, a refusal that says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.compilers import kinds
from ampcheck.compilers.kinds import Compiled, Compiler
from ampcheck.tools.lint import cases, compare
from ampcheck.tools.lint.rules import Diagnostic
from tests.faults.fault import Fault, Inject

_LINT, _CHECK = cases.lint_source, cases.check_scripted
_DECORATE: Any = torch.amp.autocast_mode.autocast_decorator

# ---- the linter


def _found(name: str, case: str, inject: Inject, *says: str) -> Fault:
    return Fault(name, "limits", inject, says, "jit", only=f"found and {case}")


def _linter(name: str, case: str, change: Callable[[list[Diagnostic]], list[Diagnostic]], *says: str) -> Fault:
    """Return a fault of the linter's reports, which the linter's test of a case must notice."""
    return _found(name, case, lambda: patch.object(cases, "lint_source", lambda *args: change(_LINT(*args))), *says)


def _blind(rule: str, case: str) -> Fault:
    says = ("rules that the linter reports", repr(rule))
    return _linter(f"lint-misses-{rule}", case, lambda found: [one for one in found if one.rule != rule], *says)


_CASES = {
    "decorator": "annotated_function",
    "enabled-not-constant": "enabled_at_run_time",
    "dtype-not-constant": "dtype_at_run_time",
    "bound": "bound_and_entered",
    "object-elsewhere": "object_of_the_file",
    "disabled-in-script": "jit_found and disabled",
    "dtype-in-script": "dtype_in_a_region",
    "unsupported-dtype": "wide_dtype",
    "device-in-script": "foreign_device",
    "policies-in-script": "exponential",
    "left-to-python": "forked",
    "query-in-script": "asked_by_type",
    "state-change": "set_by_call",
    "traced-callee": "jit_found and traced_callee",
    "lost-in-trace": "traced_disabled",
    "scripted-callee": "scripted_callee",
    "lost-in-fx": "fx_region",
    "default-dtype": "export_region",
    "query-frozen": "export_asking",
    "custom-fwd": "export_custom",
}

# ---- check_scripted


def sees_nothing() -> AbstractContextManager[object]:
    return patch.object(compare, "_differences", lambda *args: iter(()))


def loses_files() -> AbstractContextManager[object]:
    def check(*args: Any, **options: Any) -> list[Diagnostic]:
        return [replace(one, file="", line=0) for one in _CHECK(*args, **options)]

    return patch.object(cases, "check_scripted", check)


# ---- torch


def silent_decorator() -> AbstractContextManager[object]:
    """A decorated function carries no mark for TorchScript."""

    def decorate(*args: Any) -> Callable[..., Any]:
        made = _DECORATE(*args)
        del made.__script_unsupported
        return made

    return patch.object(torch.amp.autocast_mode, "autocast_decorator", decorate)


# ---- compilers


def _compiler(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]], *says: str) -> Fault:
    """A compiler that is wrong in one way; a random program must show it."""

    def make(function: Callable[..., Any], inputs: Sequence[Any]) -> Compiled:
        return Compiled(change(function))

    def inject() -> AbstractContextManager[object]:
        return patch.dict(kinds.COMPILERS, {"traced": Compiler(make)})

    return Fault(name, "parity", inject, says, "jit", only="drawn and traced-")


@contextmanager
def _patched_enter(enter: Callable[[Any], Any], leave: Callable[..., Any]) -> Iterator[None]:
    kind = torch.autocast
    with patch.object(kind, "__enter__", enter), patch.object(kind, "__exit__", leave):
        yield


_ENTER, _EXIT = torch.autocast.__enter__, torch.autocast.__exit__


def drops(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with _patched_enter(lambda self: self, lambda self, *exc: False):
            return function(*args)

    return call


def drops_disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: Any) -> Any:
        return _ENTER(self) if self._enabled else self

    def leave(self: Any, *exc: Any) -> Any:
        return _EXIT(self, *exc) if self._enabled else False

    def call(*args: Any) -> Any:
        with _patched_enter(enter, leave):
            return function(*args)

    return call


def leaks(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        out = function(*args)
        torch.set_autocast_enabled("cpu", True)
        return out

    return call


def widens(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: tuple(tensor.float() for tensor in function(*args))


def rounds(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: tuple(tensor.bfloat16().to(tensor.dtype) for tensor in function(*args))


def forgets(function: Callable[..., Any]) -> Callable[..., Any]:
    """Right the first time it is called, without its regions afterwards."""
    made = [function]

    def call(*args: Any) -> Any:
        now, made[0] = made[0], drops(function)
        return now(*args)

    return call


def refuses(function: Callable[..., Any]) -> Callable[..., Any]:
    raise RuntimeError("autocast is not supported")


FAULTS = (
    *(_blind(rule, case) for rule, case in _CASES.items()),
    _linter(
        "lint-without-lines",
        "wide_dtype",
        lambda found: [replace(one, line=0) for one in found],
        "reports without a line",
    ),
    _linter(
        "lint-without-advice", "wide_dtype", lambda found: [replace(one, instead="") for one in found], "or advice"
    ),
    _linter(
        "lint-cries-wolf",
        "concatenated",
        lambda found: [replace(one, rule="bound", compiler="script") for one in found],
        "rules that the linter reports",
        "'bound'",
    ),
    _found("check-sees-nothing", "wide_dtype", sees_nothing, "whether check_scripted finds a difference"),
    _found("check-loses-places", "wide_dtype", loses_files, "differences without a line"),
    Fault(
        "decorator-without-mark",
        "limits",
        silent_decorator,
        ("first call outside of regions gives: got ['fp32']",),
        "jit",
        only="jit and annotated_function and not found",
    ),
    _compiler("compiler-drops-regions", drops, "dtypes"),
    _compiler("compiler-drops-disabled-regions", drops_disabled, "dtypes"),
    _compiler("compiler-leaves-autocast-on", leaks, "state"),
    _compiler("compiler-widens-results", widens, "dtypes"),
    _compiler("compiler-rounds-results", rounds, "result 0 is"),
    _compiler("compiler-forgets-after-a-call", forgets, "in the second call"),
    _compiler("compiler-refuses", refuses, "compiling raised"),
)
"""The faults of rules limits and parity."""
