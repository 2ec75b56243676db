"""Ways in which a compiler can be wrong.

Each is planted where a compiler is entered: it changes what `torch.compile`, `torch.jit.script`, `torch.jit.trace` or
`torch.export` hands out, so eager mode stays right.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.observe.recorder import map_tensors, tensors
from tests.faults.kernels import kernel
from tests.faults.regions import replaced

Function = Callable[..., Any]
Change = Callable[[Function, Function], Function]
"""Makes a wrong program of a right one and of the function it was compiled from."""

_COMPILE, _SCRIPT, _TRACE = torch.compile, torch.jit.script, torch.jit.trace
_MODULE = torch.export.ExportedProgram.module
_ENTER, _EXIT = torch.amp._enter_autocast, torch.amp._exit_autocast


def handed_out(change: Change, compiler: str = "compile") -> AbstractContextManager[object]:
    """Change the programs that a compiler returns."""

    def of(make: Function) -> Function:
        def changed(function: Function | None = None, *args: Any, **options: Any) -> Any:
            if function is None:  # a decorator with options
                return lambda decorated: changed(decorated, **options)
            return change(make(function, *args, **options), function)

        return changed

    if compiler == "export":
        return patch.object(torch.export.ExportedProgram, "module", lambda self: change(_MODULE(self), self))
    where, name, make = {
        "compile": (torch, "compile", _COMPILE),
        "script": (torch.jit, "script", _SCRIPT),
        "trace": (torch.jit, "trace", _TRACE),
    }[compiler]
    return patch.object(where, name, of(make))


def entering(enter: Function) -> AbstractContextManager[object]:
    """Enter the regions of a captured program by `enter`, which returns a context manager or None."""

    def leave(mode: Any = None) -> None:
        if mode is not None:
            _EXIT(mode)

    stack = ExitStack()
    for where in (torch.amp, torch.amp.autocast_mode):
        stack.enter_context(replaced(where, _enter_autocast=enter, _exit_autocast=leave))
    return stack


def results(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Every floating result replaced."""

    def make(compiled: Function, _: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            return map_tensors(
                compiled(*args, **kwargs),
                lambda x: change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
            )

        return call

    return make


def inside(region: Callable[[], AbstractContextManager[object]]) -> Change:
    """Every call made in a region of the fault's own."""

    def make(compiled: Function, _: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            with region():
                return compiled(*args, **kwargs)

        return call

    return make


# ---- what is handed out


def frozen(_: Function, function: Function) -> Function:
    """The first call's autocast state serves every later one, on every thread: no guard on the surroundings."""
    first: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not first:
            first.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        with torch.autocast("cpu", enabled=first[0][0], dtype=first[0][1]):
            return function(*args, **kwargs)

    return call


def frozen_result(compiled: Function, _: Function) -> Function:
    """The first call's result serves every later one with inputs of the same identity."""
    cached: dict[tuple[int, ...], Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        key = tuple(map(id, args))
        if key not in cached:
            cached[key] = compiled(*args, **kwargs)
        return cached[key]

    return call


def frozen_dtypes(compiled: Function, _: Function) -> Function:
    """Programs are kept by the shapes of their inputs: results take the dtypes that the first call's had."""
    cached: list[torch.dtype] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        out = compiled(*args, **kwargs)
        cached.extend(x.dtype for x in tensors(out) if not cached)
        return map_tensors(out, lambda x: x.to(cached[0]))

    return call


def right_once(compiled: Function, _: Function) -> Function:
    """The second call runs without what the first one had cast."""
    calls: list[int] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        out = compiled(*args, **kwargs)
        return out if len(calls) == 1 else map_tensors(out, lambda x: x.float())

    return call


def leaking(compiled: Function, _: Function) -> Function:
    """A region that is entered and never left."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = compiled(*args, **kwargs)
        torch.set_autocast_enabled("cpu", True)
        return out

    return call


def leaking_on_exception(compiled: Function, _: Function) -> Function:
    """A region that an exception does not leave."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except Exception:
            torch.set_autocast_enabled("cpu", True)
            raise

    return call


def undecorated(_: Function, function: Function) -> Function:
    """The compiler looks through a decorated function at what was decorated."""
    compiled: Function = _COMPILE(inspect.unwrap(function), backend="eager")
    return compiled


def other_words(compiled: Function, _: Function) -> Function:
    """A refusal that does not say what to do."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            raise RuntimeError("a graph could not be compiled") from error

    return call


def eager_in_threads(compiled: Function, function: Function) -> Function:
    """The state of the thread that compiled serves other threads."""
    home = threading.get_ident()
    state: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == home:
            state[:] = [(torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))]
            return compiled(*args, **kwargs)
        with torch.autocast("cpu", enabled=state[0][0], dtype=state[0][1]):
            return function(*args, **kwargs)

    return call


class _Backwards(torch.autograd.Function):
    """Identity whose gradient is doubled, as if the backward graph had counted it twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> torch.Tensor:
        doubled: torch.Tensor = grads[0] * 2
        return doubled


def doubled_gradient(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Backwards.apply(x) if x.requires_grad else x
    return out


def detached(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def never_widened(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)


def always_widened(x: torch.Tensor) -> torch.Tensor:
    return x.float()


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


# ---- how regions are entered


def not_at_all(*args: Any) -> None:
    """A region that the compiler drops."""


def unless_inside_another(device: str, dtype: Any = None, enabled: bool = True, cache: Any = None) -> Any:
    return None if torch.is_autocast_enabled(device) else _ENTER(device, dtype, enabled, cache)


def always_on(device: str, dtype: Any = None, enabled: bool = True, cache: Any = None) -> Any:
    return _ENTER(device, dtype, True, cache)


def in_half(device: str, dtype: Any = None, enabled: bool = True, cache: Any = None) -> Any:
    return _ENTER(device, torch.float16, enabled, cache)


@contextmanager
def no_script_pass() -> Iterator[None]:
    """TorchScript's autocast pass off: it ignores regions."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


def first_argument_as_it_is() -> AbstractContextManager[object]:
    """linear's kernel without the cast of its last argument."""
    return kernel("cpu", "linear", lambda call: call.cast(call.low, unless=lambda place, t: place == 2))
