"""Run a program again and again, with parts of it in float32, and find the least that has to be."""

import io
import random
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from math import inf
from traceback import walk_stack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ampcheck.errors import UsageError
from ampcheck.observe.closeness import relative_error
from ampcheck.observe.recorder import tensors
from ampcheck.observe.torch_private import DisableTorchFunction, pytree
from ampcheck.samples.torch_private import disable_current_modes
from ampcheck.tools import user_program
from ampcheck.tools.doctor.training import DEVICES
from ampcheck.tools.precision.shadow import Lost, Shadows
from ampcheck.tools.trace import OpRecord, Trace
from ampcheck.tools.trace.recorder import switched
from ampcheck.tools.trace.session import python_body
from ampcheck.tools.trace.sources import Sources

LOW = (torch.float16, torch.bfloat16)
_TO_LOW = ("half", "bfloat16")
_BACKWARD = (torch.Tensor.backward, torch.autograd.grad)

Pair = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the program and its exact values."""


class Keep(TorchFunctionMode):
    """Runs the public calls of some units outside of regions, on float32 arguments and with float32 results.

    `units`: lines and modules as `Sources.unit` names them; None for everything. `lines`: the variables that held
    tensors where a line ran.
    """

    def __init__(self, units: Collection[str] | None) -> None:
        super().__init__()
        self.units = units
        self.sources = Sources()
        self.lines: dict[str, set[str]] = {}
        self.unit = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        if func in _BACKWARD and (body := python_body(func)):
            with self:  # Functions of the program's own make public calls, too
                return body(*args, **kwargs)
        self.unit, frame = self.sources.unit()
        if frame is not None and self.unit not in self.lines:
            held, floats = frame.f_locals.items(), (*LOW, torch.float32)
            self.lines[self.unit] = {name for name, x in held if isinstance(x, torch.Tensor) and x.dtype in floats}
        if self.units is not None and self.unit not in self.units:
            return func(*args, **kwargs)
        if name in _TO_LOW:
            func = torch.Tensor.float
        # What is written in place stays the tensor it is.
        in_place = name.endswith("_") or name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
        if not in_place and any(map(_is_low, pytree.tree_leaves((args, kwargs)))):
            args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        with switched([device for device in DEVICES if torch.is_autocast_enabled(device)], on=False):
            return func(*args, **kwargs)


def _is_low(x: Any) -> bool:
    return x.dtype in LOW if isinstance(x, torch.Tensor) else isinstance(x, torch.dtype) and x in LOW


def _widened(x: Any) -> Any:
    if not _is_low(x):
        return x
    return x.float() if isinstance(x, torch.Tensor) else torch.float32


@dataclass(slots=True)
class Figures:
    """What a run gives.

    `losses`: of each backward pass, or of inference what the outermost modules returned; `exact`: the same in float64.
    Of the step that was looked at: `ops` and what they lost, `outputs` of modules and `gradients` of parameters.
    """

    losses: list[torch.Tensor] = field(default_factory=list)
    exact: list[torch.Tensor] = field(default_factory=list)
    training: bool = False
    code: int = 0
    said: str = ""
    ops: list[tuple[OpRecord, Lost]] = field(default_factory=list)
    outputs: list[tuple[str, list[Pair]]] = field(default_factory=list)
    gradients: dict[str, Pair] = field(default_factory=dict)
    lines: dict[str, set[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    scales: list[float] = field(default_factory=list)

    def distance(self, other: "Figures") -> float:
        """Return how far the losses are from another run's in the worst step; infinite where one is missing."""
        if len(self.losses) < len(other.losses):
            return inf
        pairs = zip(self.losses, other.losses, strict=False)
        return max((relative_error(a, b) if a.shape == b.shape else inf for a, b in pairs), default=0.0)


class ProgramRun(AbstractContextManager["ProgramRun"]):
    """One run of the program.

    Args:
        steps: how many losses end it.
        keep: the units in float32; None for all.
        look: the step that is looked at, from 1 on, which ends it; 0 for none.
        wide: whether that step is in float32 throughout.
        exact: whether the whole is computed in float64 beside.
        training: whether a step is a backward pass, or a call of an outermost module; None where nobody knows yet.
        scale: the first scale of a GradScaler; 0 for the program's.
    """

    def __init__(
        self,
        steps: int,
        keep: Collection[str] | None = (),
        *,
        look: int = 0,
        wide: bool = False,
        exact: bool = False,
        training: bool | None = None,
        scale: float = 0.0,
    ) -> None:
        self.figures = Figures()
        self._steps, self._look, self._wide, self._training = steps, look, wide, training
        self._keep = Keep(keep)
        self._shadows = Shadows() if exact else None
        self._outputs: list[Pair] = []
        self._stack, self._modes = ExitStack(), ExitStack()
        self._inside: list[torch.nn.Module] = []
        self._roots: dict[int, torch.nn.Module] = {}
        self._scaled: tuple[object, object] = (None, None)
        self._in_backward = self._looking = False
        self._first_scale = scale

    def __enter__(self) -> "ProgramRun":
        enter = self._stack.enter_context
        enter(patch.object(torch.autograd, "backward", self._backward(torch.autograd.backward)))
        enter(patch.object(GradScaler, "scale", self._scale(GradScaler.scale)))
        self._stack.callback(register_module_forward_pre_hook(self._begins).remove)
        self._stack.callback(register_module_forward_hook(self._ended, always_call=True).remove)
        enter(torch.compiler.set_stance("force_eager"))
        enter(self._modes)
        self._modes.enter_context(self._shadows or nullcontext())
        self._modes.enter_context(self._keep)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        found = self.figures
        found.training = bool(found.losses)
        if not found.training:
            found.losses, found.exact = [x for x, _ in self._outputs], [x for _, x in self._outputs]
        found.lines = self._keep.lines
        if self._look and self._shadows:
            found.ops = self._shadows.settle()

    def _look_closely(self) -> None:
        """Begin the step that is looked at, where no function mode is in the middle of a call."""
        trace = Trace()
        self._modes.close()
        self._shadows = self._modes.enter_context(Shadows(trace, lambda: self._keep.unit))
        self._modes.enter_context(trace)
        self._modes.enter_context(self._keep)  # sees a call first, and the trace what it makes of it
        self._looking = True
        if self._wide:
            self._keep.units = None

    def _step_ended(self, step: int) -> None:
        if self._looking:
            with DisableTorchFunction(), disable_current_modes():
                for root in self._roots.values():
                    for name, parameter in root.named_parameters():
                        if parameter.grad is not None:
                            path = f"{type(root).__name__}.{name}"
                            self.figures.gradients[path] = self._pair(parameter.grad)
        if step >= (self._look or self._steps):
            raise user_program.Enough

    def _pair(self, x: torch.Tensor) -> Pair:
        x = x.detach()
        return x.double(), self._shadows.exact(x) if self._shadows else x.double()

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._first_scale and not self.figures.scales:
                scaler.update(self._first_scale)
                scaled = original(scaler, outputs)
            self.figures.scales.append(scaler.get_scale())
            self._scaled = scaled, outputs
            return scaled

        return scale

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_backward:  # called by itself, through a function mode
                return original(roots, *args, **kwargs)
            self._in_backward = True
            with DisableTorchFunction(), disable_current_modes():
                loss = next(tensors(self._scaled[1] if roots is self._scaled[0] else roots)).sum()
                real, exact = self._pair(loss)
                self.figures.losses.append(real.reshape(1))
                self.figures.exact.append(exact.reshape(1))
            if len(self.figures.losses) == self._steps and not self._look:
                raise user_program.Enough
            try:
                (python_body(original) or original)(roots, *args, **kwargs)
            finally:
                self._in_backward = False
            self._step_ended(len(self.figures.losses))

        return backward

    def _begins(self, module: torch.nn.Module, _: object) -> None:
        if self._look and not self._inside and not self._looking:
            done = len(self._outputs if self._training is False else self.figures.losses)
            if done + 1 == self._look:
                self._look_closely()
        if not self._inside and id(module) not in self._roots:
            self._roots[id(module)] = module
            self.figures.variables.setdefault(type(module).__name__, _variable(module))
        self._inside.append(module)

    def _ended(self, module: torch.nn.Module, _: object, output: object) -> None:
        if module not in self._inside:
            return
        while self._inside.pop() is not module:  # those that raised
            pass
        with DisableTorchFunction(), disable_current_modes():
            made = [x for x in tensors(output) if x.is_floating_point()]
            if self._looking:
                root = self._inside[0] if self._inside else module
                self.figures.outputs.append((self._keep.sources.path(root, module), [self._pair(x) for x in made]))
            if self._inside or self._training or self.figures.losses or any(x.requires_grad for x in made):
                return
            pairs = [self._pair(x.flatten()) for x in made]
            if pairs:
                self._outputs.append((torch.cat([x for x, _ in pairs]), torch.cat([x for _, x in pairs])))
                self._step_ended(len(self._outputs))


def _variable(module: torch.nn.Module) -> str:
    """Return the variable that holds a module where it was called; "model" where none does."""
    for frame, _ in walk_stack(sys._getframe(2)):
        for name, value in (*frame.f_locals.items(), *frame.f_globals.items()):
            own = name.isidentifier() and name != "self"
            if value is module and own and not frame.f_code.co_filename.startswith(torch.__path__[0]):
                return name
    return "model"


class Program:
    """A program that can be run again. `runs`: how often it was."""

    def __init__(self, target: str, args: list[str], steps: int, tell: Callable[[str], None]) -> None:
        self._target, self._args, self.steps, self._tell = target, args, steps, tell
        self.runs = 0
        self.training: bool | None = None
        self.scale = 0.0
        self._found: dict[frozenset[str], Figures] = {}

    def run(self, what: str, keep: Collection[str] | None = (), *, quiet: bool = True, **how: Any) -> Figures:
        """Run it from its start; see `ProgramRun`. `what`: said to the user."""
        self._tell(f"run {self.runs + 1}: {what}")
        self.runs += 1
        before, argv, path = set(sys.modules), sys.argv, list(sys.path)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        said = io.StringIO()
        run = ProgramRun(self.steps, keep, training=self.training, scale=self.scale, **how)
        with redirect_stdout(said) if quiet else nullcontext(), redirect_stderr(said) if quiet else nullcontext():
            try:
                code = user_program.run(user_program.find(self._target, self._args), run)
            finally:
                sys.argv, sys.path[:] = argv, path
                for name in set(sys.modules) - before:
                    file = getattr(sys.modules[name], "__file__", None) or "-packages"
                    if not any(part in file for part in ("-packages", "ampcheck", f"{sys.base_prefix}/lib")):
                        del sys.modules[name]
        run.figures.code, run.figures.said = code, said.getvalue()
        return run.figures

    def kept(self, units: Iterable[str]) -> Figures:
        """Return the losses with some units in float32."""
        chosen = frozenset(units)
        if chosen not in self._found:
            self._found[chosen] = self.run(f"{len(chosen)} modules or lines in float32", chosen)
        return self._found[chosen]


def least(units: Sequence[str], enough: Callable[[list[str]], bool]) -> list[str] | None:
    """Return a list of units that is enough, and of which none can be left out; None where even all are not enough.

    Each is found by bisection: the shortest beginning of `units` that is enough together with those found ends in it.
    """
    if not enough([*units]):
        return None
    found: list[str] = []
    left = units
    while not enough(found):
        low, high = 0, len(left)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough([*found, *left[:middle]]) else (middle, high)
        found, left = [*found, left[high - 1]], left[: high - 1]
    for unit in found[:-1]:
        without = [one for one in found if one != unit]
        found = without if enough(without) else found
    return found


def checked(figures: Figures, what: str) -> Figures:
    """Return figures of a run. Raises UsageError where the program raised in it, or gave nothing to compare."""
    if figures.code and not figures.losses:
        raise UsageError(f"the program failed {what}: {(figures.said.splitlines() or ['see above'])[-1]}")
    if not figures.losses:
        raise UsageError("the program ran no backward pass and called no module, so there is nothing to compare")
    return figures
