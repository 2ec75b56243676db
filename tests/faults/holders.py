"""Regions that mind who holds them, how their holder ends, or what kind of callable they decorate."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from tests.faults.fault import Fault, Inject
from tests.faults.regions import autocast, exit_always_disables, replaced, then

_ENTER, _EXIT, _CALL = autocast.__enter__, autocast.__exit__, autocast.__call__


def _exit_unless(kind: type[BaseException]) -> Any:
    """Return an `__exit__` that does nothing where an exception of a kind leaves the region."""

    def wrong(self: Any, *exc: Any) -> Any:
        return False if exc[0] is not None and issubclass(exc[0], kind) else _EXIT(self, *exc)

    return wrong


def last_entered_first() -> AbstractContextManager[object]:
    """Regions of a thread keep what they found in one list, and each exit takes the last of it."""
    found: list[tuple[bool, bool, Any]] = []

    def enter(self: Any) -> Any:
        out = _ENTER(self)
        found.append((self.prev_cache_enabled, self.prev, self.prev_fastdtype))
        return out

    def leave(self: Any, *exc: Any) -> Any:
        if found:
            self.prev_cache_enabled, self.prev, self.prev_fastdtype = found.pop()
        return _EXIT(self, *exc)

    return replaced(autocast, __enter__=enter, __exit__=leave)


def copies_are_itself() -> AbstractContextManager[object]:
    """A copy of a region object is the object."""
    stack = ExitStack()
    for name in ("__copy__", "__deepcopy__"):
        setattr(autocast, name, lambda self, memo=None: self)
        stack.callback(delattr, autocast, name)
    return stack


def loaded_disabled() -> AbstractContextManager[object]:
    """A region object that is loaded is disabled."""

    def put(self: Any, state: dict[str, Any]) -> None:
        vars(self).update(state, _enabled=False)

    stack = ExitStack()
    autocast.__setstate__ = put  # type: ignore[attr-defined]  # the class has none
    stack.callback(delattr, autocast, "__setstate__")
    return stack


def _functions_only(self: Any, function: Any) -> Any:
    return _CALL(self, function) if inspect.isroutine(function) else function


def _python_functions_only(self: Any, function: Any) -> Any:
    return function if inspect.isbuiltin(function) else _CALL(self, function)


def _once(self: Any, function: Any) -> Any:
    """Decorate a function so that its second call runs outside of the region."""
    decorated, calls = _CALL(self, function), iter([True])
    return lambda *args, **options: (decorated if next(calls, False) else function)(*args, **options)


def _forgotten(self: Any, function: Any) -> Any:
    """Decorate a function so that a region which was made disabled is enabled."""
    self._enabled = True
    return _CALL(self, function)


def fault(name: str, says: str, only: str, inject: Inject | None = None, **wrong: Any) -> Fault:
    """A fault that the cases whose ids hold `only` catch."""
    return Fault(name, "holders", inject or (lambda: replaced(autocast, **wrong)), (says,), only=only)


FAULTS = (
    fault("exit-takes-the-last", "in one region still: got", "/overlap and crossed", last_entered_first),
    fault("exit-disables", "in one region still: got (False, ", "/overlap", __exit__=exit_always_disables),
    fault(
        "exit-drops-casts",
        "casts of a weight in one region still: got 1; expected 0",
        "/overlap",
        __exit__=then(_EXIT, lambda _: torch.clear_autocast_cache()),
    ),
    fault("closed-generator-keeps", "after the holder: got", "/end", __exit__=_exit_unless(GeneratorExit)),
    fault("cancelled-task-keeps", "after the holder: got", "/end", __exit__=_exit_unless(asyncio.CancelledError)),
    fault("copy-is-the-object", "after both: got", "/overlap and copied", copies_are_itself),
    fault("loaded-region-disabled", "in both: got (False, ", "/overlap and pickled", loaded_disabled),
    fault("objects-not-decorated", "what the body sees in call 0", "/body", __call__=_functions_only),
    fault(
        "builtins-not-decorated", "what the body sees in call 0: got 'fp32'", "builtin", __call__=_python_functions_only
    ),
    fault("second-call-outside", "what the body sees in call 1", "/body", __call__=_once),
    fault("decorator-enables", "what the body sees in call 0: got ((True, ", "/body", __call__=_forgotten),
    fault("random-takes-the-last", "state after step", "/random", last_entered_first),
)
