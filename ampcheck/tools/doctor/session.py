"""A run under the doctor: what of PyTorch is watched, and which steps are observed kernel by kernel."""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampcheck.errors import UsageError
from ampcheck.observe.torch_private import DisableTorchFunction
from ampcheck.tools import user_program
from ampcheck.tools.doctor.findings import Finding, Findings, screen
from ampcheck.tools.doctor.kernels import KernelWatch, Seen, thread_watch
from ampcheck.tools.doctor.training import DEVICES, Training
from ampcheck.tools.torch_private import current_dispatch_mode
from ampcheck.tools.trace.session import one_thread
from ampcheck.tools.trace.sources import Sources

OBSERVED_FIRST = 5
"""How many steps are observed from the first one on. A scale needs a few steps to settle."""


class Doctor(AbstractContextManager["Doctor"]):
    """The result of `doctor()`: watches the program until its `with` block ends.

    `findings`: ranked, the dearest first. `steps`: how many an optimizer was asked for.
    """

    def __init__(self, every: int, last: int) -> None:
        self.steps = 0
        self._every, self._last = every, last
        self._found = Findings()
        self._seen = Seen()
        self._sources = Sources(packages=False)
        self._kernels = KernelWatch(self._found, self._seen, self._sources)
        self._training = Training(self._found, self._kernels, self._seen)
        self._stack: ExitStack | None = None
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self._began = 0.0
        self._inside = 0

    def __enter__(self) -> "Doctor":
        if self._stack is not None:
            raise UsageError("this doctor was used already; make a new one with ampcheck.doctor()")
        with ExitStack() as stack:
            # Otherwise the backward pass of another device runs in a thread that no dispatch mode sees.
            stack.enter_context(one_thread())
            for change in self._changes():
                stack.enter_context(change)
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._optimizer_ended).remove)
            stack.callback(self._training.close)
            stack.callback(self._observe, on=False)
            self._stack = stack.pop_all()
        self._observe(on=True)
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching, and leave PyTorch as it was before. A second call does nothing."""
        if self._stack is not None:
            self._stack.close()

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, the dearest first."""
        return self._found.ranked()

    def __str__(self) -> str:
        return self.screen()

    def screen(self, *, everything: bool = False) -> str:
        """Return the answer as text of one screen; all findings where `everything` is asked for."""
        return screen(self.findings, self._ran(), everything=everything)

    def _ran(self) -> str:
        seen = f"{self.steps} steps, {len(self._times[True])} of them observed"
        if self._times[True][1:] and self._times[False]:
            slower = median(self._times[True][1:]) / max(median(self._times[False]), 1e-9)
            seen += f", which took {slower:.1f} times as long"
        return f"Watched {seen}."

    # ---- which steps are observed

    def _observe(self, *, on: bool) -> None:
        """Enter or leave the dispatch mode. Where the program is in a mode of its own, leave it as it is."""
        if on == self._training.observing:
            return
        if on:
            self._kernels.mode.__enter__()
        elif current_dispatch_mode() is not self._kernels.mode:
            return
        else:
            self._kernels.mode.__exit__(None, None, None)
        self._training.observing = on

    def _next_step(self) -> None:
        """End a step: an optimizer was asked for one."""
        now = time.perf_counter()
        self._times[self._training.observing].append(now - self._began)
        self.steps += 1
        self._found.step = self.steps + 1
        if self._last and self.steps >= self._last:
            raise user_program.Enough
        self._kernels.begin()
        self._observe(on=self.steps < OBSERVED_FIRST or self.steps % self._every == 0)
        self._began = time.perf_counter()

    # ---- what is watched

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        with self._aside():
            self._name(optimizer)
            self._training.optimizer_begins(optimizer)

    def _optimizer_ended(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        with self._aside():
            self._training.optimizer_ended(optimizer)
        if not self._inside:
            self._next_step()

    def _name(self, optimizer: torch.optim.Optimizer) -> None:
        for number, group in enumerate(optimizer.param_groups):
            names = group.get("param_names") or [f"group {number}, parameter {n}" for n in range(len(group["params"]))]
            for name, parameter in zip(names, group["params"], strict=False):
                self._kernels.parameters.setdefault(id(parameter), self._sources.named(parameter) or name)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run the doctor's own ops unobserved."""
        with DisableTorchFunction(), self._kernels.unobserved():
            yield

    def _changes(self) -> Iterator[AbstractContextManager[object]]:
        training, aside = self._training, self._aside

        def before(told: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
            def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
                def watched(*args: Any, **kwargs: Any) -> Any:
                    with aside():
                        told(*args, **kwargs)
                    return original(*args, **kwargs)

                return watched

            return wrap

        def step(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                with aside():
                    self._name(optimizer)
                    training.steps(scaler, optimizer)
                self._inside += 1
                try:
                    out = original(scaler, optimizer, *args, **kwargs)
                finally:
                    self._inside -= 1
                    with aside():
                        training.stepped(scaler, optimizer)
                self._next_step()
                return out

            return watched

        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(
                region: Any, device_type: str, dtype: Any = None, enabled: bool = True, *rest: Any, **kw: Any
            ) -> None:
                original(region, device_type, dtype, enabled, *rest, **kw)
                with aside():
                    training.region(region, device_type, dtype, enabled)

            return watched

        def applied(original: Any) -> Any:
            def watched(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
                with aside():
                    training.function(cls, args)
                try:
                    return original.__func__(cls, *args, **kwargs)
                finally:
                    training.function_ended(cls)

            return classmethod(watched)

        def clipped(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                parameters = _listed(parameters)  # a generator can be read once
                with aside():
                    training.clipped(parameters)
                return original(parameters, *args, **kwargs)

            return watched

        def recurrent(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(module: torch.nn.LSTM, *args: Any, **kwargs: Any) -> Any:
                fused = self._kernels.fused
                out = original(module, *args, **kwargs)
                x = kwargs.get("input", *args[:1])
                if isinstance(x, torch.Tensor):
                    with aside():
                        training.recurred(x, fused=self._kernels.fused > fused)
                return out

            return watched

        def started(thread: threading.Thread) -> None:
            place, original = self._kernels.place(), thread.run

            def watched() -> None:
                del vars(thread)["run"]
                with thread_watch(self._found, place):
                    original()

            if any(torch.is_autocast_enabled(device) for device in DEVICES):
                vars(thread)["run"] = watched  # a subclass may have a `run` of its own

        yield _wrapped(threading.Thread, "start", before(started))
        for kind in (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention):
            yield _wrapped(kind, "forward", before(training.encoded))
        yield _wrapped(torch.nn.LSTM, "__call__", recurrent)  # TorchScript reads `forward`
        yield _everywhere(torch.nn.functional.rms_norm, before(training.normalized)(torch.nn.functional.rms_norm))
        yield _wrapped(GradScaler, "scale", before(lambda scaler, *_: training.scaled(scaler)))
        yield _wrapped(GradScaler, "unscale_", before(training.unscaled))
        yield _wrapped(GradScaler, "update", before(lambda scaler, *_, **__: training.updated(scaler)))
        yield _wrapped(GradScaler, "step", step)
        yield _wrapped(torch.amp.autocast, "__init__", made)
        yield _wrapped(
            torch.amp.autocast, "__enter__", before(lambda x: training.entered(x.device) if x._enabled else None)
        )
        for kind in vars(lr_scheduler).values():
            if isinstance(kind, type) and "step" in vars(kind):
                yield _wrapped(kind, "step", before(lambda *_, **__: training.scheduled()))
        yield _wrapped(torch.autograd, "backward", before(lambda roots, *_, **__: training.backward(_listed(roots))))
        yield patch.object(torch.autograd.Function, "apply", applied(vars(torch.autograd.Function)["apply"]))
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
            original = getattr(torch.nn.utils, name)
            yield _everywhere(original, clipped(original))


def _listed(given: Any) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _wrapped(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    return patch.object(owner, name, wrap(getattr(owner, name)))


@contextmanager
def _everywhere(original: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a function in every module that holds it: many programs import it by name."""
    scopes = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    held = [(scope, name) for scope in scopes for name, value in list(scope.items()) if value is original]
    for scope, name in held:
        scope[name] = replacement
    try:
        yield
    finally:
        for scope, name in held:
            scope[name] = original


def doctor(*, every: int = 50, steps: int = 0) -> Doctor:
    """Watch a training program and find what is wrong with its mixed precision.

    The first steps and each `every`th one after them are observed kernel by kernel; of the others only the order of
    calls is. Results are what they are without it.

    Args:
        every: observe one of so many steps after the first ones.
        steps: end the program after so many, by an exception; 0 for none.

    Raises UsageError for numbers below 1, or below 0.
    """
    if every < 1:
        raise UsageError(f"every is {every}; it must be 1 or more steps")
    if steps < 0:
        raise UsageError(f"steps is {steps}; it must be 0 or more")
    return Doctor(every, steps)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck doctor`."""
    out = user_program.Parser(
        "ampcheck doctor",
        "Run some steps of a training program and say what is wrong with its mixed precision.",
        "[--steps N] [--every N] [--all] [--json FILE]",
    )
    out.add_argument(
        "--steps", type=int, default=20, metavar="N", help="end the program after N steps (20); 0: let it end by itself"
    )
    out.add_argument(
        "--every", type=int, default=50, metavar="N",
        help=f"observe one of N steps kernel by kernel after the first {OBSERVED_FIRST} (50)",
    )  # fmt: skip
    out.add_argument("--all", action="store_true", help="show every finding in full, not one screen")
    return out.ended(json="every finding")


def command(argv: list[str]) -> int:
    """Run `ampcheck doctor` with its arguments.

    Returns the exit code: the program's own where it failed, else 1 where something is wrong and 0 where nothing is.
    Raises UsageError for bad arguments, or a program that cannot be found or called; nothing ran then.
    """
    options = parser().parse_args(argv)
    watching = doctor(every=options.every, steps=options.steps)
    code = user_program.run(user_program.find(options.target, options.args), watching)
    sys.stdout.flush()
    print(watching.screen(everything=options.all))
    found = {"schema": 1, "steps": watching.steps, "findings": [one.fields() for one in watching.findings]}
    user_program.write(options.json, lambda: json.dumps(found, indent=1))
    return code or int(bool(watching.findings))
