"""Run a program on torch's GradScaler and, call by call, on the model and on plain torch beside it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import torch

from ampcheck.errors import one_line
from ampcheck.programs.scaler.sides import Side, same
from ampcheck.programs.scaler.steps import (
    ELSEWHERE,
    Backward,
    Clip,
    CorruptGrad,
    Load,
    OptimizerStep,
    Pickle,
    Reload,
    ScalerProgram,
    Set,
    Step,
    Unscale,
    Update,
    ZeroGrad,
)
from ampcheck.spec.scaler import READY, Refused, Scaler, float32
from ampcheck.tools.watch import Watch, watch

Tensors: TypeAlias = dict[str, torch.Tensor]
_FLOAT32, _FLOAT64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


class KnownBug(Exception):
    """The program comes to a known deviation of PyTorch, which has its own case; later steps are not compared."""


class _Different(Exception):
    """The first difference, in a sentence."""


class ScalerRun:
    """One program on one device type. `compared`: how many values were compared with the model."""

    def __init__(self, program: ScalerProgram, home: str) -> None:
        self.program = program
        self.home = home
        self.real = Side(program.optimizers, home)
        self.reference = Side(program.optimizers, home)
        self.model = Scaler(**asdict(program.options))
        self.scaler = torch.amp.GradScaler(home, **asdict(program.options))
        self.watching: Watch | None = None
        self.compared = 0
        self._where = "at the start"
        self._guilty: dict[int, list[tuple[int, int, int]]] = {}

    def difference(self) -> str | None:
        """Describe how torch differs from the model in a sentence that names the step, or return None."""
        with ExitStack() as stack:
            stack.callback(self._close)
            self._look()
            try:
                self._state()
                for number, step in enumerate(self.program.steps, 1):
                    self._where = f"step {number}, {step}"
                    self._one(step)
                    self._state()
                    self._gradients()
            except _Different as error:
                seen = f"; the watch says: {self.watching.last}" if self.watching and self.watching.last else ""
                return f"{self._where}: {error}{seen}"
            except KnownBug:
                pass
        return None

    def _look(self) -> None:
        if self.program.watched:
            named = {f"optimizer{n}": optimizer for n, optimizer in enumerate(self.real.optimizers)}
            self.watching = watch(self.scaler, **named)

    def _close(self) -> None:
        if self.watching is not None:
            self.watching.close()

    # ---- comparing

    def _expect(self, what: str, got: object, want: object) -> None:
        self.compared += 1
        if got != want:
            raise _Different(f"{what} is {got}; expected {want}")

    def _tensors(self, what: str, got: Tensors, want: Tensors, eps: float = 0.0) -> None:
        """`eps`: 0 for equal bits; else the tolerance is four times it, or times the dtype's own where that is more."""
        self._expect(f"the set of tensors among {what}", sorted(got), sorted(want))
        for name, value in want.items():
            self.compared += 1
            own = torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
            if not same(got[name], value, eps and 4 * max(eps, own)):
                shown = f"{got[name].tolist()}; expected {value.tolist()}"
                raise _Different(f"{name} of {what} is {shown}")

    def _state(self) -> None:
        self._expect("get_scale()", self.scaler.get_scale(), self.model.scale_value)
        self._expect("state_dict()", self.scaler.state_dict(), self.model.state())
        known = vars(self.scaler).get("_per_optimizer_states", {})
        pairs = [(n, known[id(o)]) for n, o in enumerate(self.real.optimizers) if id(o) in known]
        model = self.model.optimizers
        stages = {n: model[n].stage for n in sorted(model)}  # type: ignore[type-var]  # optimizers are numbers here
        self._expect("the stage of each optimizer", {n: state["stage"].name for n, state in pairs}, stages)
        for number, state in pairs:
            found = {device.type: bool(value.item()) for device, value in state["found_inf_per_device"].items()}
            self._expect(f"found_inf of optimizer {number}", found, model[number].found_inf)

    def _gradients(self) -> None:
        for number in range(len(self.real.optimizers)):
            got, want = (
                {f"gradient {n}": grad.detach().cpu() for n, grad in side.gradients(number)}
                for side in (self.real, self.reference)
            )
            self._tensors(f"optimizer {number}", got, want)

    def _both(self, call: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Return the results of the call and of the model, or None where both refuse."""
        wanted: Any = None
        refused: Refused | None = None
        try:
            wanted = model()
        except Refused as error:
            refused = error
        try:
            got = call()
        except Exception as error:  # whatever torch raises is the finding
            self.compared += 1
            if refused is None:
                raise _Different(f"it raised {one_line(error)}; expected it to run") from error
            if type(error) is not refused.kind or refused.text not in str(error):
                raise _Different(f"it raised {one_line(error)}; expected {refused}") from error
            return None
        self._expect("what it raised", "nothing", "nothing" if refused is None else str(refused))
        return got, wanted

    # ---- steps

    def _one(self, step: Step) -> None:
        match step:
            case Backward():
                self._backward(step)
            case CorruptGrad(optimizer, param, value):
                self.real.corrupt_grad(optimizer, param, value)
                self.reference.corrupt_grad(optimizer, param, value)
            case Unscale(optimizer):
                self._unscale(optimizer)
            case Clip(optimizer):
                self.real.clip(optimizer)
                self.reference.clip(optimizer)
            case OptimizerStep():
                self._optimizer_step(step)
            case Update():
                self._update(step)
            case ZeroGrad(optimizer, set_to_none):
                for side in (self.real, self.reference):
                    side.optimizers[optimizer].zero_grad(set_to_none=set_to_none)
            case Reload():
                self._replace(self._reloaded, self._model_reloaded)
            case Load(scale, tracker):
                state = self.model.state() | {"scale": scale, "_growth_tracker": tracker} if self.model.state() else {}
                self._both(lambda: self.scaler.load_state_dict(dict(state)), lambda: self.model.load(state))
            case Pickle(copied):
                self._replace(
                    lambda: copy.deepcopy(self.scaler) if copied else pickle.loads(pickle.dumps(self.scaler)),
                    self.model.pickled,
                )
            case Set(what, value):
                if self.model.enabled:  # one that is not enabled has no such value; a case of rule misuse has that
                    getattr(self.scaler, f"set_{what}")(value)
                    setattr(self.model, what, value)

    def _replace(self, call: Callable[[], torch.amp.GradScaler], model: Callable[[], Scaler]) -> None:
        made = self._both(call, model)
        if made is not None:
            self._close()
            self.scaler, self.model = made
            self._look()

    def _reloaded(self) -> torch.amp.GradScaler:
        made = torch.amp.GradScaler(self.home, **asdict(replace(ELSEWHERE, enabled=self.program.options.enabled)))
        made.load_state_dict(self.scaler.state_dict())
        return made

    def _model_reloaded(self) -> Scaler:
        made = Scaler(**asdict(replace(ELSEWHERE, enabled=self.program.options.enabled)))
        made.load(self.model.state())
        return made

    def _backward(self, step: Backward) -> None:
        losses = self.real.losses(step.optimizer, step.bad)
        if not losses:
            return
        given: Any = losses[0] if len(losses) == 1 else losses
        both = self._both(lambda: self.scaler.scale(given), self.model.scale)
        if both is None:
            return
        scaled, by = both
        for loss in [scaled] if len(losses) == 1 else scaled:
            loss.backward()
        for loss in self.reference.losses(step.optimizer, step.bad):
            scale = torch.full((), by, dtype=torch.float32, device=loss.device)
            (loss * scale if self.model.enabled else loss).backward()

    def _checked(self, optimizer: int) -> dict[str, bool]:
        """Return for each device whether the gradients are finite now, and remember which are not."""
        self._guilty[optimizer] = [
            (number, int(grad.isinf().sum()), int(grad.isnan().sum()))
            for number, grad in self.reference.gradients(optimizer)
            if not grad.cpu().isfinite().all()
        ]
        return self.reference.finite(optimizer)

    def _unscale_reference(self, optimizer: int) -> None:
        self.reference.multiply(optimizer, float32(1.0 / self.model.current))

    def _ready(self, optimizer: int) -> bool:
        known = self.model.optimizers.get(optimizer)
        return self.model.enabled and not self.model.lazy and (known is None or known.stage == READY)

    def _unscale(self, optimizer: int) -> None:
        finite = self._checked(optimizer) if self._ready(optimizer) else {}
        half = self.reference.half(optimizer)
        ready = self._ready(optimizer)
        done = self._both(
            lambda: self.scaler.unscale_(self.real.optimizers[optimizer]),
            lambda: self.model.unscale(optimizer, finite, half),
        )
        if done is not None and ready:
            self._unscale_reference(optimizer)

    def _optimizer_step(self, step: OptimizerStep) -> None:
        optimizer, fused = step.optimizer, self.program.optimizers[step.optimizer].kind == "fused"
        ready, half = self._ready(optimizer), self.reference.half(optimizer)
        finite = self._checked(optimizer) if ready else {}
        before = self.real.held(optimizer)
        options = {"closure": None} if step.closure else {}
        taken = self._both(
            lambda: self.scaler.step(self.real.optimizers[optimizer], **options),
            lambda: self.model.step(optimizer, finite, half, step.closure, fused),
        )
        unscaled = self.model.enabled and ready and not (half and not fused) and not step.closure
        if unscaled and not (fused and not (taken and taken[1])):
            self._unscale_reference(optimizer)
        stepped = taken is not None and taken[1]
        if stepped:
            self.reference.optimizers[optimizer].step()
        want = self.reference.held(optimizer) if stepped else before
        # A fused optimizer that is skipped makes its state, all zero, which plain torch makes at its first step.
        after = {name: value for name, value in self.real.held(optimizer).items() if name in want or not fused}
        if not stepped:
            self._tensors(f"optimizer {optimizer}, which had no step", after, want)
        else:
            self._tensors(f"optimizer {optimizer} after the step", after, want, _FLOAT32 if fused else _FLOAT64)
        if stepped and fused:
            self._divided(optimizer)
        if taken is not None and self.watching is not None:
            self._watched(optimizer, stepped)

    def _divided(self, optimizer: int) -> None:
        """The gradients of a fused optimizer, which may divide by the scale: its inverse is rounded to float32."""
        pairs = zip(self.real.gradients(optimizer), self.reference.gradients(optimizer), strict=True)
        for (number, got), (_, want) in pairs:
            name = f"gradient {number}"
            self._tensors(f"optimizer {optimizer} after the step", {name: got.cpu()}, {name: want.cpu()}, _FLOAT32)
            want.copy_(got)

    def _watched(self, optimizer: int, stepped: bool) -> None:
        assert self.watching is not None
        last = self.watching.last
        assert last is not None
        self._expect("whether the watch saw the step taken", last.taken, stepped)
        groups = self.program.optimizers[optimizer].groups
        names = [f"group {g}, parameter {n}" for g, group in enumerate(groups) for n in range(len(group))]
        want = sorted((names[number], inf, nan) for number, inf, nan in ([] if stepped else self._guilty[optimizer]))
        got = sorted((culprit.name, culprit.inf, culprit.nan) for culprit in last.culprits)
        self._expect("what the watch names, with its inf and nan", got, want)

    def _update(self, step: Update) -> None:
        checked = [known for known in self.model.optimizers.values() if known.found_inf]
        grows = checked and not any(any(known.found_inf.values()) for known in checked)
        if step.new_scale is None and grows and self.model.tracker + 1 > self.model.growth_interval:
            raise KnownBug("the tracker has passed the interval")
        given: Any = step.new_scale
        if step.as_tensor and given is not None:
            given = torch.full((), given, device=self.home)
        self._both(lambda: self.scaler.update(given), lambda: self.model.update(step.new_scale))
