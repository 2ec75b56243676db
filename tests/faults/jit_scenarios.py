"""Compilers that are wrong in one way, each seen by one scenario of the suite jit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from tests.faults import compilers as wrong
from tests.faults.compilers import Change, entering, handed_out, inside, results
from tests.faults.fault import Fault, Inject, in_scenario
from tests.faults.limits import silent_decorator

_EXPORT = torch.export.export


def _fault(name: str, where: str, says: str, inject: Inject) -> Fault:
    return in_scenario("jit", f"jit-{name}", where, says, inject)


def _dropped(where: str, says: str) -> Fault:
    """Regions that the compiler drops."""
    return _fault("region-dropped", where, says, lambda: entering(wrong.not_at_all))


def _out(name: str, where: str, says: str, change: Change, compiler: str = "compile") -> Fault:
    return _fault(name, where, says, lambda: handed_out(change, compiler))


def _widened(where: str, says: str, compiler: str = "compile") -> Fault:
    """A compiled program whose results are float32."""
    return _out("result-widened", where, says, results(wrong.always_widened), compiler)


def _unscripted(where: str, says: str) -> Fault:
    """TorchScript without its autocast pass."""
    return _fault("region-dropped-by-script", where, says, wrong.no_script_pass)


def outside() -> AbstractContextManager[object]:
    return torch.autocast("cpu", enabled=False)


def drawing_once_more(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """The program draws a number that eager mode does not."""

    def call(*args: Any) -> Any:
        torch.rand(1)
        return compiled(*args)

    return call


def turning_the_cache_off(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """Compiling turns the cache off and leaves it so."""
    torch.set_autocast_cache_enabled(False)
    return compiled


@contextmanager
def left_open() -> Iterator[None]:
    """An exception while a program is exported leaves autocast on."""

    def export(*args: Any, **options: Any) -> Any:
        try:
            return _EXPORT(*args, **options)
        except Exception:
            torch.set_autocast_enabled("cpu", True)
            raise

    with patch.object(torch.export, "export", export):
        yield


_LEAKING, _OUTSIDE, _DOUBLE = wrong.leaking, inside(outside), results(torch.Tensor.double)

FAULTS = (
    _unscripted("context/body_alone_in_a_source", "dtypes before, inside and behind, "),
    _dropped("context/parts_of_a_composite_op", "dtypes, as in eager mode: got [torch.float32, torch.float32]"),
    _widened("context/static_called_in_and_out", "dtype in a region: got torch.float32", "trace"),
    _out("called-outside", "context/captured_outside_called_inside", "dtype in a region: got", _OUTSIDE, "export"),
    _widened("context/graph_break_in_a_called_function", "dtypes: got [torch.float32, torch.float32]"),
    _out("state-left-on", "context/graph_break_where_the_region_ends", "state after it: got (True", _LEAKING),
    _widened("context/dtypes_in_the_graph", "dtypes it returns: got [torch.float32, torch.float32]", "export"),
    _out("decided-otherwise", "context/decision_by_a_dtype", "in eager mode: got torch.float64", _DOUBLE, "export"),
    _dropped("context/captured_twice", "dtypes of the second export: got [torch.float32"),
    _widened("decorator/taken_then_decorated", "dtype decorated: got torch.float32"),
    _dropped("decorator/decorated_helper", "dtypes: got [torch.float32, torch.float32, torch.float32"),
    _out("state-left-on", "decorator/decorated_method_with_a_break", "state after it: got (True", _LEAKING),
    _fault(
        "disabled-region-on",
        "decorator/decorated_disabled",
        "dtypes in it and behind: got [torch.bfloat16",
        lambda: entering(wrong.always_on),
    ),
    _fault("decorator-without-mark", "decorator/decorated_in_a_source", "scripting it: raised", silent_decorator),
    _dropped("defaults/arguments_by_place_and_name", "dtypes: got [torch.float32"),
    _dropped("defaults/amp_spelling", "dtype: got torch.float32"),
    _out("state-left-on", "exceptions/caught_inside", "state after it: got (True", _LEAKING),
    _fault("state-left-by-export", "exceptions/raised_while_captured", "state after it: got (True", left_open),
    _unscripted("nesting/three_deep_in_a_source", "dtypes on the way in and out: got [torch.float32"),
    _out(
        "called-outside",
        "nesting/disabled_captured_outside_called_in_a_region",
        "dtypes inside and behind: got [torch.float32, torch.float32]",
        _OUTSIDE,
        "export",
    ),
    _fault(
        "always-half", "nesting/one_region_a_turn", "turn by turn: got [torch.float16", lambda: entering(wrong.in_half)
    ),
    _widened("nesting/compiled_calls_compiled", "dtypes inside and behind: got [torch.float32"),
    _out("draws-once-more", "programs/random_numbers", "its numbers: differs", drawing_once_more),
    _widened("programs/any_size", "dtypes for size 3: got (torch.float32"),
    _out(
        "kept-across-dtypes",
        "programs/other_input_dtypes",
        "dtype of float64 by float64: got torch.bfloat16",
        wrong.frozen_dtypes,
    ),
    _dropped("programs/compiled_generator", "dtypes, as in eager mode: got [torch.float32"),
    _out("decided-otherwise", "state/enabled_asked_inside", "branches taken: got [torch.float64", _DOUBLE),
    _widened("state/dtype_asked_inside", "dtypes inside and behind: got [torch.float32"),
    _out("state-left-on", "state/reuse_asked_inside", "state after it: got (True", _LEAKING),
    _out("cache-turned-off", "state/compiling_leaves_state", "state after compiling", turning_the_cache_off),
    _widened("cache/tracing_with_the_cache_off", "dtype: got torch.float32", "trace"),
    _out("gradient-twice", "cache/gradient_of_two_uses", "gradient: differs", results(wrong.doubled_gradient)),
    _widened("limits/tracing_in_a_region", "dtype in a region: got torch.float32", "trace"),
    _widened("limits/captured", "gives: got ['fp32']", "export"),
    _unscripted("parity/drawn_for_jit", "dtypes"),
)
