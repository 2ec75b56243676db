"""Errors at run time that leave autocast's state changed, or that nobody hears of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from tests.faults import compilers as wrong
from tests.faults.compilers import Function, handed_out
from tests.faults.fault import Fault, Inject

_AFTER = "state after the first error: got"


def _fault(name: str, inject: Inject, says: str, op: str = "value_that_fails", **chosen: str) -> Fault:
    return Fault(name, "failures", inject, (says,), "jit", op=op, **chosen)


def on_error(change: Callable[[], object]) -> Inject:
    """Compiled functions that change the state when they raise."""

    def make(compiled: Function, _: Function) -> Function:
        def call(*args: Any) -> Any:
            try:
                return compiled(*args)
            except Exception:
                change()
                raise

        return call

    return lambda: handed_out(make)


def swallowing(compiled: Function, _: Function) -> Function:
    """An error gives the result of the call before."""
    last: list[Any] = []

    def call(*args: Any) -> Any:
        try:
            last[:] = [compiled(*args)]
        except RuntimeError:  # that of a singular matrix is one
            pass
        except IndexError:
            pass
        return last[0]

    return call


def broken_by_an_error(compiled: Function, _: Function) -> Function:
    """After an error, products come in float32."""
    failed: list[bool] = []

    def call(*args: Any) -> Any:
        try:
            out = compiled(*args)
        except Exception:
            failed.append(True)
            raise
        return (out[0].float(), *out[1:]) if failed and isinstance(out, tuple) else out

    return call


def backward_that_leaves() -> AbstractContextManager[object]:
    """A backward pass that raises leaves autocast on."""
    own = torch.Tensor.backward

    def backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
        try:
            own(self, *args, **options)
        except Exception:
            torch.set_autocast_enabled("cpu", True)
            raise

    return patch.object(torch.Tensor, "backward", backward)


FAULTS = (
    _fault("error-leaves-it-on", on_error(lambda: torch.set_autocast_enabled("cpu", True)), _AFTER, compiler="aot"),
    _fault(
        "error-leaves-a-dtype",
        on_error(lambda: torch.set_autocast_dtype("cpu", torch.float16)),
        _AFTER,
        compiler="aot",
    ),
    _fault("error-leaves-a-count", on_error(torch.autocast_increment_nesting), _AFTER, compiler="aot"),
    _fault(
        "error-turns-the-cache-off",
        on_error(lambda: torch.set_autocast_cache_enabled(not torch.is_autocast_cache_enabled())),
        _AFTER,
        compiler="aot",
    ),
    _fault("error-not-raised", lambda: handed_out(swallowing), "that fails: raised nothing", compiler="aot"),
    _fault(
        "float32-after-an-error",
        lambda: handed_out(broken_by_an_error),
        "dtype of the product, second turn: got torch.float32",
        compiler="aot",
    ),
    _fault("export-leaves-it-on", lambda: handed_out(wrong.leaking_on_exception, "export"), _AFTER, compiler="strict"),
    _fault("backward-leaves-it-on", backward_that_leaves, _AFTER, "place_that_fails", compiler="aot"),
    _fault(
        "forward-leaves-it-on",
        on_error(lambda: torch.set_autocast_enabled("cpu", True)),
        _AFTER,
        "place_that_fails",
        compiler="aot",
    ),
)
