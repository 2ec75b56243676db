"""Compiled functions that miss a change of a setting, or compile anew for settings that they have seen."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch

from tests.faults import compilers as wrong
from tests.faults.compilers import Function, handed_out, results
from tests.faults.fault import Fault, Inject


def _fault(name: str, inject: Inject, says: str, only: str = "", compiler: str = "dynamo") -> Fault:
    return Fault(name, "guards", inject, (says,), "jit", op="set_and_asked", only=only, compiler=compiler)


def anew_each_time(compiled: Function, function: Function) -> Function:
    """A guard that no call passes."""

    def call(*args: Any) -> Any:
        torch._dynamo.reset()
        return compiled(*args)

    return call


def keyed_by(*queries: Function) -> Inject:
    """`torch.compile` that runs the function in the settings of the first call with the same answers to some questions.

    It compiles for each of them, as a backend of its own would.
    """

    def of(function: Function, backend: Any = None, **_: Any) -> Function:
        programs: dict[tuple[object, ...], tuple[bool, torch.dtype]] = {}

        def call(*args: Any) -> Any:
            key = tuple(query() for query in queries)
            if key not in programs:
                backend.graphs += 1
                programs[key] = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            enabled, dtype = programs[key]
            with torch.autocast("cpu", enabled=enabled, dtype=dtype):
                return function(*args)

        return call

    return lambda: patch.object(torch, "compile", of)


def with_new_graphs(compiled: Function, _: Function) -> Function:
    """Each change of the dtype of autocast compiles, whether it is on or off."""
    seen: list[torch.dtype] = []

    def call(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        if seen and dtype != seen[-1]:
            torch._dynamo.reset()
        seen.append(dtype)
        return compiled(*args)

    return call


def not_compiled(function: Function, **_: Any) -> Function:
    """`torch.compile` that gives back the function."""
    return function


def _on() -> bool:
    return torch.is_autocast_enabled("cpu")


def _dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


_ANEW = "for settings that were there before: got"
FAULTS = (
    _fault("no-guard", keyed_by(), "dtypes with enabled changed once: got", "enabled-off"),
    _fault("no-guard-on-the-dtype", keyed_by(_on), "dtypes with dtype changed once: got", "nothing-dtype-", "aot"),
    _fault("no-guard-on-the-switch", keyed_by(_dtype), "dtypes with enabled changed once: got", "enabled-off"),
    _fault("compiles-each-time", lambda: handed_out(anew_each_time), f"graphs compiled again, {_ANEW} 1"),
    _fault(
        "compiles-for-a-dtype-not-used", lambda: handed_out(with_new_graphs), "graphs compiled with dtype", "-dtype-off"
    ),
    _fault("runs-eagerly", lambda: patch.object(torch, "compile", not_compiled), "graphs compiled at first: none"),
    _fault("answers-in-float32", lambda: handed_out(results(wrong.always_widened)), "dtypes at first: got"),
    _fault("region-left-on", lambda: handed_out(wrong.leaking), "dtypes again: got", "nothing-enabled-off"),
)
