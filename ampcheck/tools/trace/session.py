"""The trace itself, a function mode for public calls and a dispatch mode for what runs below autocast; its command."""

import argparse
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FunctionType
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from ampcheck.errors import UsageError
from ampcheck.observe.torch_private import DisableTorchFunction
from ampcheck.tools import torch_private as private
from ampcheck.tools import user_program
from ampcheck.tools.trace import report
from ampcheck.tools.trace.recorder import TracedCall, TraceRecorder
from ampcheck.tools.trace.records import OpRecord
from ampcheck.tools.trace.report import SORTS
from ampcheck.tools.trace.sources import forget

_active = threading.local()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OVERRIDE_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class Trace(AbstractContextManager["Trace"]):
    """The result of `trace()`. `ops` holds a record per op, in the program's order, and can be read while it runs."""

    def __init__(self) -> None:
        self.recorder = TraceRecorder()
        self._stack: ExitStack | None = None
        self.ops: list[OpRecord] = self.recorder.ops

    def __enter__(self) -> "Trace":
        if self._stack is not None:
            raise UsageError("this trace was used already; make a new one with ampcheck.trace()")
        if getattr(_active, "trace", None) is not None:
            raise UsageError("a trace runs in this thread already, and one trace cannot hold another")
        forget()
        with ExitStack() as stack:
            # Otherwise the backward of another device runs in another thread, in no order with this one.
            stack.enter_context(one_thread())
            stack.enter_context(patch.object(torch.overrides, "has_torch_function", _overridden))
            stack.callback(self.recorder.finish)
            stack.enter_context(PublicCalls(self.recorder))
            stack.enter_context(self.recorder.kernels)
            stack.callback(setattr, _active, "trace", None)
            _active.trace = self
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stack is not None:
            self._stack.close()

    def table(self, sort: report.Sort = "order", limit: int | None = None, width: int | None = None) -> str:
        """Return a text table, a row per op and place, calls of the same line taken together.

        `sort`: "order" of the program, or most "bytes" or "casts" first. `limit`: at most so many rows; a last line
        then says how many there are. `width`: the most columns; places and modules are cut on the left to fit. Raises
        UsageError for another `sort` or a limit below 1.
        """
        return report.table(self.ops, sort, limit, width)

    def summary(self) -> str:
        """Totals, where most of the casting comes from, and what could be done about it, in text."""
        return report.summary(self.ops)

    def hints(self) -> list[str]:
        """Return hints about the program, a sentence each."""
        return report.hints(self.ops)

    def to_json(self) -> str:
        """Totals, hints and every record as JSON."""
        return report.to_json(self.ops)


def trace() -> Trace:
    """Record every op that runs in a `with` block, and the casts that autocast makes for it.

    Ops of this thread are recorded, those of its backward included; another thread has no trace, as it has no autocast
    region. Results and gradients are what they are without a trace. `torch.compile` runs uncompiled under it.

    Returns: the trace, to enter. Entering raises UsageError inside another trace.
    """
    return Trace()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep autograd on the calling thread. The program's function modes do not see the trace switch it."""
    before = private.is_multithreaded()
    with DisableTorchFunction():
        private.set_multithreaded(False)
    try:
        yield
    finally:
        with DisableTorchFunction():
            private.set_multithreaded(before)


class PublicCalls(TorchFunctionMode):
    """Sees each call into PyTorch before autocast does."""

    def __init__(self, recorder: TraceRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        call = TracedCall(func, args, kwargs)
        # Tensor methods in Python call the method of the base class, which comes back here under the same name.
        repeated = self._recorder.enter(call)
        try:
            # Another function mode sees the call first, as it would without a trace.
            body = python_body(func) if not repeated and not private.function_modes() and _plain(types) else None
            if body is None:
                return func(*args, **kwargs)
            with self:
                return body(*args, **kwargs)
        except Exception as error:
            self._recorder.failed(call, error)
            raise
        finally:
            self._recorder.leave(call)


def python_body(func: Callable[..., object]) -> Callable[..., object] | None:
    """Return a Python function of PyTorch without its check for overrides, so that the calls inside it are seen too.

    None for a function that has none.
    """
    if not isinstance(func, FunctionType):
        return None
    checks = [name for name in _OVERRIDE_CHECKS if name in func.__code__.co_names and name in func.__globals__]
    if not checks:
        return None
    scope = func.__globals__ | dict.fromkeys(checks, _never)
    body = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _plain(types: Iterable[type]) -> bool:
    """Return whether no type overrides `__torch_function__`, by the rule that PyTorch's arguments follow."""
    off = private.disabled_function
    return all(kind in _PLAIN or getattr(kind, "__torch_function__", off) is off for kind in types)


def _never(*args: object) -> bool:
    return False


_has_torch_function = torch.overrides.has_torch_function


def _overridden(args: Iterable[object]) -> bool:
    """`torch.overrides.has_torch_function`, but for the trace's own mode.

    Modules ask it whether they may take their fast path, and must hear what they would without a trace.
    """
    if not _has_torch_function(args):
        return False
    modes = private.function_modes()
    if modes == 1 and isinstance(private.function_mode_at(0), PublicCalls):
        return not _plain(map(type, args))
    return True


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck trace`."""
    out = user_program.Parser(
        "ampcheck trace",
        "Run a script, or a function without arguments, and show what autocast did to each op.",
        "[--sort ORDER] [--limit ROWS] [--against JSON] [--svg FILE] [--json FILE]",
    )
    out.add_argument("--sort", choices=SORTS, default="bytes", help="order of the table's rows (bytes)")
    out.add_argument("--limit", type=int, default=20, metavar="ROWS", help="show at most so many rows (20)")
    out.add_argument("--against", metavar="JSON", type=Path, help="compare with the trace of an earlier --json")
    return out.ended(svg="a picture of the casts by module", json="every record")


def command(argv: list[str]) -> int:
    """Run `ampcheck trace` with its arguments.

    Returns the exit code: the program's own, or 1 where it raised. Raises UsageError for bad arguments, or a program
    that cannot be found or called; nothing ran then.
    """
    options = parser().parse_args(argv)
    if options.limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {options.limit}")
    before = report.read(options.against) if options.against else None
    program = user_program.find(options.target, options.args)
    trace = Trace()
    code = user_program.run(program, trace)
    sys.stdout.flush()
    if before is not None:
        print(report.compared(trace.ops, before))
        print()
    print(trace.summary())
    if trace.ops:
        print()
        print(trace.table(options.sort, options.limit, user_program.screen_width()))
    user_program.write(options.svg, lambda: report.picture(trace.ops))
    user_program.write(options.json, trace.to_json)
    return code
