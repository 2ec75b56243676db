"""Regions that set, keep or restore the wrong state: methods of `torch.autocast` replaced, or what holds a region."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from tests.faults.mutant import CUDA, MPS, Change, Inject, fresh, giving, mutants, put, returns, then, wrap

autocast = torch.amp.autocast_mode.autocast
TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")
IS, SET, DTYPE, SET_DTYPE = (
    torch.is_autocast_enabled,
    torch.set_autocast_enabled,
    torch.get_autocast_dtype,
    torch.set_autocast_dtype,
)
CACHE, SET_CACHE = torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
INCREMENT, DECREMENT = torch.autocast_increment_nesting, torch.autocast_decrement_nesting


def region(**changes: Change) -> Inject:
    """Replace methods of `torch.autocast`: `init`, `enter`, `exit` or `call`."""
    return wrap(autocast, **{f"__{name}__": change for name, change in changes.items()})


# ---- entering and leaving


PARTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    "enabled": (lambda region: IS(region.device), lambda region, enabled: SET(region.device, enabled)),
    "dtype": (lambda region: DTYPE(region.device), lambda region, dtype: SET_DTYPE(region.device, dtype)),
    "cache-setting": (lambda region: CACHE(), lambda region, enabled: SET_CACHE(enabled)),
}
"""How to read and to set each part of the state."""


def plain(own: Any, *args: Any) -> Any:
    return own(*args)


def keeping(part: str) -> Change:
    """Enter or leave without effect on a part of the state."""
    get, put_back = PARTS[part]

    def change(own: Any, self: Any, *exc: Any) -> Any:
        before = get(self)
        out = own(self, *exc)
        put_back(self, before)
        return out

    return change


def raising(change: Change, otherwise: Change = plain) -> Change:
    """Leave in another way where an exception does."""
    return lambda own, self, *exc: (otherwise if exc[:1] in ((), (None,)) else change)(own, self, *exc)


def set_types(
    enabled: Callable[[Any], bool], names: tuple[str, ...] = TYPES, but_own: bool = False
) -> Callable[[Any], None]:
    """Return an action that enables or disables several device types."""

    def action(region: Any) -> None:
        for name in names:
            if not but_own or name != region.device:
                SET(name, enabled(region))

    return action


def disabling(region: Any) -> None:
    SET(region.device, False)


def enter_keeps_outer_dtype(own: Any, self: Any) -> Any:
    return (keeping("dtype") if IS(self.device) else plain)(own, self)


def enter_twice_disabled(own: Any, self: Any) -> Any:
    """Do nothing where an object is entered again."""
    out = own(self)
    if getattr(self, "entered", False):
        disabling(self)
    self.entered = True
    return out


def exit_changes_exception(own: Any, self: Any, *exc: Any) -> Any:
    own(self, *exc)
    raise RuntimeError("a region failed") from exc[1]


exit_only_without_exception = raising(returns(False))
exit_clears_always = then(lambda _: torch.clear_autocast_cache())


def with_a_stack() -> Inject:
    """Keep a stack of states for each object and thread, as the model does, which mends the known deviations."""
    saved: dict[Any, list[dict[str, Any]]] = {}

    def enter(own: Any, self: Any) -> Any:
        out = own(self)
        names = ("prev", "prev_cache_enabled", "prev_fastdtype")
        saved.setdefault((id(self), threading.get_ident()), []).append({name: getattr(self, name) for name in names})
        return out

    def leave(own: Any, self: Any, *error: Any) -> Any:
        vars(self).update(saved[id(self), threading.get_ident()].pop())
        return own(self, *error)

    return region(enter=enter, exit=leave)


def last_entered_first() -> Inject:
    """Keep what regions found in one list, of which each exit takes the last."""
    found: list[tuple[bool, bool, Any]] = []

    def leave(own: Any, self: Any, *exc: Any) -> Any:
        if found:
            self.prev_cache_enabled, self.prev, self.prev_fastdtype = found.pop()
        return own(self, *exc)

    def note(self: Any) -> None:
        found.append((self.prev_cache_enabled, self.prev, self.prev_fastdtype))

    return region(enter=then(note), exit=leave)


# ---- construction


def swapped(
    own: Any, self: Any, device_type: Any, dtype: Any = None, cache_enabled: Any = None, enabled: Any = True
) -> None:
    own(self, device_type, dtype, enabled, cache_enabled if cache_enabled is not None else True)
    if isinstance(device_type, str):
        self._cache_enabled = not self._cache_enabled


def quietly(own: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return own(*args, **options)


def warning_otherwise(change: Callable[[str], str]) -> Change:
    """Warn in other words."""

    def init(own: Any, *args: Any, **options: Any) -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            own(*args, **options)
        for warning in said:
            warnings.warn(change(str(warning.message)), stacklevel=3)

    return init


def warning_always(own: Any, self: Any, *args: Any, **options: Any) -> None:
    warnings.warn("User provided device_type of 'cuda', but CUDA is not available. Disabling", stacklevel=3)
    own(self, *args, **options)


def vaguely(own: Any, *args: Any, **options: Any) -> Any:
    """Refuse in words that name nothing."""
    try:
        return own(*args, **options)
    except Exception as error:
        raise type(error)("invalid argument") from None


def unsupported(act: Callable[[Any, Any], object]) -> Change:
    """Act on a region and its dtype where that is not a lower precision."""

    def init(own: Any, self: Any, device_type: Any, dtype: Any = None, *args: Any, **options: Any) -> None:
        own(self, device_type, dtype, *args, **options)
        if dtype is not None and dtype.itemsize > 2:
            act(self, dtype)

    return init


def disable(self: Any) -> None:
    self._enabled = False


def refuse(self: Any, dtype: Any) -> None:
    raise RuntimeError(f"{dtype} is not supported")


def refused_although_disabled(
    own: Any, self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    if not enabled and dtype not in (None, torch.float16, torch.bfloat16):
        raise RuntimeError(f"{device_type} autocast does not support {dtype}")
    own(self, device_type, dtype, enabled, cache_enabled)


def unknown_is_cpu(own: Any, self: Any, device_type: Any, *args: Any, **options: Any) -> None:
    try:
        own(self, device_type, *args, **options)
    except (RuntimeError, ValueError):
        own(self, "cpu", *args, **options)


def of_type(name: Callable[[Any], Any]) -> Change:
    """Take a device type for another one."""
    return lambda own, self, device_type, *args, **options: own(self, name(device_type), *args, **options)


# ---- decorating


def calls(body: Callable[..., Any], keep_name: bool = True) -> Change:
    """Decorate a function so that `body(region, function, args, kwargs)` is called in its place."""

    def change(own: Any, self: Any, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return body(self, function, args, kwargs)

        return wraps(function)(call) if keep_name else call

    return change


def entered(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
    with self:
        return function(*args, **kwargs)


def enters_once(own: Any, self: Any, function: Any) -> Any:
    """Decorate a function so that its first call alone runs in the region."""
    decorated, turns = own(self, function), iter([True])
    return wraps(function)(lambda *a, **k: (decorated if next(turns, False) else function)(*a, **k))


def enabling(own: Any, self: Any, function: Any) -> Any:
    self._enabled = True
    return own(self, function)


def decorating_only(kind: Callable[[Any], bool]) -> Change:
    return lambda own, self, function: own(self, function) if kind(function) else function


does_nothing = decorating_only(lambda function: False)
takes_anything = decorating_only(callable)


def leaving_open(kind: type[BaseException]) -> Change:
    """Do nothing where an exception of a kind leaves the region."""
    return lambda own, self, *exc: False if exc[0] is not None and issubclass(exc[0], kind) else own(self, *exc)


def disabled_where(active: Callable[[], object]) -> Inject:
    """Disable a region where something is active."""
    return region(enter=then(lambda self: disabling(self) if active() else None))


ENTER = {
    "enter-ignores-enabled": region(enter=then(lambda self: SET(self.device, True))),
    "enter-returns-nothing": region(enter=giving(lambda _: None)),
    "enter-sets-other-types": region(enter=then(set_types(lambda self: self._enabled, ("cpu", "xpu")))),
    "enter-turns-the-cache-on": region(enter=then(lambda self: SET_CACHE(True))),
    "second-entry-disabled": region(enter=enter_twice_disabled),
}
EXIT = {
    "exit-restores-nothing": region(exit=lambda own, self, *exc: (DECREMENT(), None)[1]),
    "exit-turns-other-types-off": region(exit=then(set_types(lambda self: False, ("cpu", "xpu")))),
}
INIT = {"arguments-in-another-order": region(init=swapped)}

MUTANTS = (
    *mutants("eager/context", {f"exit-keeps-{part}": region(exit=keeping(part)) for part in PARTS}),
    *mutants("eager/context", {f"enter-without-{part}": region(enter=keeping(part)) for part in PARTS}, ("cpu", CUDA)),
    *mutants("eager/context", {**ENTER, **EXIT, **INIT}),
    *mutants("eager/nesting", {"exit-always-disables": region(exit=then(disabling))}),
    *mutants("eager/nesting", {"inner-keeps-outer-dtype": region(enter=enter_keeps_outer_dtype)}, ("cpu", CUDA)),
    *mutants(
        "eager/exceptions",
        {
            "exception-leaves-region-open": region(exit=exit_only_without_exception),
            "exception-changed": region(exit=raising(exit_changes_exception)),
        },
    ),
    *mutants("eager/nesting", {"deviations-mended": fresh(with_a_stack)}),
    *mutants("eager/cache", {"cache-dropped-at-inner-exit": region(exit=exit_clears_always)}),
    *mutants(
        "eager/defaults",
        {
            "default-turns-cache-on": region(
                init=lambda own, self, type_, dtype=None, enabled=True, cache_enabled=None: own(
                    self, type_, dtype, enabled, cache_enabled is not False
                )
            )
        },
    ),
    *mutants(
        "eager/errors",
        {
            "takes-torch-device": region(init=of_type(lambda type_: getattr(type_, "type", type_))),
            "takes-unknown-device-type": region(
                init=of_type(lambda type_: type_ if not isinstance(type_, str) or type_ in TYPES else "cpu")
            ),
            "any-device-type-is-taken": region(init=of_type(lambda type_: type_ if isinstance(type_, str) else "cpu")),
            "unknown-is-cpu": region(init=unknown_is_cpu),
            "refuses-in-vague-words": region(init=vaguely),
            "unsupported-dtype-silent": region(init=quietly),
            "unsupported-dtype-raises": region(init=unsupported(refuse)),
            "refused-although-disabled": region(init=refused_although_disabled),
            "warning-always": region(init=warning_always),
        },
    ),
    *mutants(
        "eager/errors",
        {
            "cuda-float32-disabled": region(
                init=unsupported(lambda self, dtype: disable(self) if dtype is torch.float32 else None)
            )
        },
        [CUDA],
    ),
    *mutants(
        "eager/errors",
        {"warning-lists-others": region(init=warning_otherwise(lambda s: s.replace("torch.bfloat16, ", "")))},
        [MPS],
    ),
    *mutants(
        "eager/decorator",
        {
            "decorator-does-nothing": region(call=does_nothing),
            "decorator-enters-first-call-only": region(call=enters_once),
            "decorator-loses-name-and-result": region(
                call=calls(lambda *given: (entered(*given), None)[1], keep_name=False)
            ),
            "decorator-takes-anything": region(call=takes_anything),
        },
    ),
    *mutants("eager/decorator", {"decorator-ignores-disabled": region(call=enabling)}, ("cpu", CUDA)),
    *mutants(
        "eager/holders",
        {
            "exit-takes-the-last": fresh(last_entered_first),
            "closed-generator-keeps": region(exit=leaving_open(GeneratorExit)),
            "cancelled-task-keeps": region(exit=leaving_open(asyncio.CancelledError)),
            "copy-is-the-object": put(autocast, __copy__=lambda self: self, __deepcopy__=lambda self, memo: self),
            "loaded-region-disabled": put(
                autocast, __setstate__=lambda self, state: vars(self).update(state, _enabled=False)
            ),
            "objects-not-decorated": region(call=decorating_only(inspect.isroutine)),
            "builtins-not-decorated": region(call=decorating_only(lambda function: not inspect.isbuiltin(function))),
        },
    ),
)
