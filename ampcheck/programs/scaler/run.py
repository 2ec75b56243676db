"""Run a program on torch's GradScaler and, line by line, on a reference in plain torch, and compare the two."""

import copy
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from ampcheck.checks.program import Needed, written
from ampcheck.devices.base import Device
from ampcheck.errors import one_line
from ampcheck.observe.closeness import alike
from ampcheck.programs.scaler.draw import ScalerProgram, programs
from ampcheck.programs.search import Search
from ampcheck.spec.scaler import READY, Refused, Scaler, float32
from ampcheck.tools.watch import Watch, watch

Tensors: TypeAlias = dict[str, torch.Tensor]
Optimizer: TypeAlias = torch.optim.Optimizer
_FLOAT32, _FLOAT64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


class KnownBug(Exception):
    """The program comes to a known deviation of PyTorch, which has its own case; later lines are not compared."""


class _Different(Exception):
    """The first difference, in a sentence."""


@dataclass
class ReferenceScaler:
    """A GradScaler in plain torch: the model decides, and gradients are scaled and unscaled here.

    `took_step`: whether the last call of `step` did one. `culprits`: for each optimizer, the number of each parameter
    whose gradient was not finite when it was checked, with its counts of inf and nan.
    """

    model: Scaler
    took_step: bool = False
    culprits: dict[Optimizer, list[tuple[int, int, int]]] = field(default_factory=dict)

    def scale(self, outputs: torch.Tensor | list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        by = self.model.scale()
        if isinstance(outputs, list):
            return [self._scaled(one, by) for one in outputs]
        return self._scaled(outputs, by)

    def _scaled(self, loss: torch.Tensor, by: float) -> torch.Tensor:
        return loss * torch.full((), by, dtype=torch.float32, device=loss.device) if self.model.enabled else loss

    def _checks(self, optimizer: Optimizer) -> bool:
        """Return whether the next call on an optimizer checks and unscales its gradients."""
        known = self.model.optimizers.get(optimizer)
        return self.model.enabled and not self.model.lazy and (known is None or known.stage == READY)

    def _finite(self, optimizer: Optimizer) -> dict[str, bool]:
        """Return for each device with gradients of an optimizer whether all are finite, and note which are not."""
        found: dict[str, bool] = {}
        self.culprits[optimizer] = []
        for place, grad in gradients(optimizer):
            finite = bool(grad.cpu().isfinite().all())
            found[grad.device.type] = found.get(grad.device.type, True) and finite
            if not finite:
                self.culprits[optimizer].append((place, int(grad.isinf().sum()), int(grad.isnan().sum())))
        return found

    def _multiply(self, optimizer: Optimizer) -> None:
        by = float32(1.0 / self.model.current)
        if by != 1.0:
            for _, grad in gradients(optimizer):
                wide = grad if grad.dtype == torch.float64 else grad.float()
                grad.copy_(wide * torch.full((), by, dtype=torch.float32, device=grad.device))

    def unscale_(self, optimizer: Optimizer) -> None:
        checks = self._checks(optimizer)
        self.model.unscale(optimizer, self._finite(optimizer) if checks else {}, _half(optimizer))
        if checks:
            self._multiply(optimizer)

    def step(self, optimizer: Optimizer, **closure: None) -> None:
        self.took_step = False
        checks, fused = self._checks(optimizer), is_fused(optimizer)
        finite = self._finite(optimizer) if checks else {}
        taken = self.model.step(optimizer, finite, _half(optimizer), bool(closure), fused)
        if checks and (taken or not fused):  # a fused optimizer unscales in its step
            self._multiply(optimizer)
        if taken:
            optimizer.step()
        self.took_step = taken

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        checked = [known for known in self.model.optimizers.values() if known.found_inf]
        grows = checked and not any(any(known.found_inf.values()) for known in checked)
        if new_scale is None and grows and self.model.tracker + 1 > self.model.growth_interval:
            raise KnownBug("the tracker has passed the interval")
        self.model.update(None if new_scale is None else float(new_scale))

    def state_dict(self) -> dict[str, float]:
        return self.model.state()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.model.load(state)

    def pickled(self) -> "ReferenceScaler":
        return ReferenceScaler(self.model.pickled())

    def set_growth_factor(self, value: float) -> None:
        self.model.growth_factor = value

    def set_backoff_factor(self, value: float) -> None:
        self.model.backoff_factor = value

    def set_growth_interval(self, value: int) -> None:
        self.model.growth_interval = value


def parameters(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """Return the parameters of all groups of an optimizer."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def gradients(optimizer: Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the gradients there are, with the parameter's number; of sparse ones the values."""
    for number, tensor in enumerate(parameters(optimizer)):
        if tensor.grad is not None:
            yield number, tensor.grad._values() if tensor.grad.is_sparse else tensor.grad


def held(optimizer: Optimizer) -> Tensors:
    """Return a copy on the CPU of every parameter of an optimizer and of every tensor of its state, by name."""
    out: dict[str, object] = {f"parameter {number}": tensor for number, tensor in enumerate(parameters(optimizer))}
    for number, entries in optimizer.state_dict()["state"].items():
        out.update({f"{key} of parameter {number}": value for key, value in entries.items() if value is not None})
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in out.items()}


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's one kernel unscales, too."""
    return bool(optimizer.defaults.get("fused"))


def _half(optimizer: Optimizer) -> bool:
    return any(grad.dtype == torch.float16 for _, grad in gradients(optimizer))


class ScalerRun:
    """Runs one program. `compared`: how many values were compared. `refused`: the lines that the reference refuses."""

    def __init__(self, program: ScalerProgram) -> None:
        self.program = program
        shared: dict[str, Any] = {"torch": torch, "inf": torch.inf, "nan": torch.nan}
        shared |= {function.__name__: function for function in _CALLED}
        self._torch = shared | {"GradScaler": torch.amp.GradScaler, "deepcopy": copy.deepcopy}
        self._torch |= {"dumps": pickle.dumps, "loads": pickle.loads}
        self._plain = shared | {"GradScaler": lambda device, **options: ReferenceScaler(Scaler(**options))}
        self._plain |= dict.fromkeys(("deepcopy", "dumps"), ReferenceScaler.pickled) | {"loads": lambda made: made}
        for names in (self._torch, self._plain):
            exec(program.setup, names)
        self.compared = 0
        self.refused: set[int] = set()
        self._watch: Watch | None = None

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """Return torch's scaler."""
        made: torch.amp.GradScaler = self._torch["scaler"]
        return made

    @property
    def reference(self) -> ReferenceScaler:
        """Return the reference."""
        made: ReferenceScaler = self._plain["scaler"]
        return made

    def _optimizers(self) -> list[tuple[Optimizer, Optimizer]]:
        return list(zip(self._torch["optimizers"], self._plain["optimizers"], strict=True))

    def difference(self) -> str | None:
        """Describe how torch differs from the reference in a sentence that names the line, or return None."""
        where = "at the start"
        self._look()
        try:
            self._state()
            for number, line in enumerate(self.program.lines, 1):
                where = f"step {number}, {line}"
                self._line(number, line)
                self._state()
                self._gradients()
        except _Different as error:
            seen = f"; the watch says: {self._watch.last}" if self._watch and self._watch.last else ""
            return f"{where}: {error}{seen}"
        except KnownBug:
            pass
        finally:
            self._close()
        return None

    def _look(self) -> None:
        if self.program.watched:
            named: dict[str, Any] = {f"optimizer{n}": optimizer for n, (optimizer, _) in enumerate(self._optimizers())}
            self._watch = watch(self.scaler, **named)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _line(self, number: int, line: str) -> None:
        """Run a line on both sides: both must raise the same or nothing."""
        stepped = re.match(r"scaler\.step\(o(\d)", line)
        before = held(self._optimizers()[int(stepped[1])][0]) if stepped else {}
        scaler, refused = self.scaler, ""
        try:
            exec(line, self._plain)
        except Refused as error:
            refused = str(error)
            kind, text = error.kind, error.text
            self.refused.add(number)
        try:
            exec(line, self._torch)
        except Exception as error:  # whatever torch raises is the finding
            self.compared += 1
            if not refused:
                raise _Different(f"it raised {one_line(error)}; expected it to run") from error
            if type(error) is not kind or text not in str(error):
                raise _Different(f"it raised {one_line(error)}; expected {refused}") from error
        else:
            self._expect("what it raised", "nothing", refused or "nothing")
        if self.scaler is not scaler:
            self._close()
            self._look()
        if stepped:
            self._stepped(int(stepped[1]), before, bool(refused))

    # ---- comparing

    def _expect(self, what: str, got: object, want: object) -> None:
        self.compared += 1
        if got != want:
            raise _Different(f"{what} is {got}; expected {want}")

    def _tensors(self, what: str, got: Tensors, want: Tensors, eps: float = 0.0) -> None:
        """Compare tensors: 0 for equal bits, else within four times `eps`, or the dtype's own where that is more."""
        self._expect(f"the set of tensors among {what}", sorted(got), sorted(want))
        for name, value in want.items():
            self.compared += 1
            own = torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
            if not alike(got[name], value, eps and 4 * max(eps, own)):
                raise _Different(f"{name} of {what} is {got[name].tolist()}; expected {value.tolist()}")

    def _state(self) -> None:
        model = self.reference.model
        self._expect("get_scale()", self.scaler.get_scale(), model.scale_value)
        self._expect("state_dict()", self.scaler.state_dict(), model.state())
        known = vars(self.scaler).get("_per_optimizer_states", {})
        pairs = list(enumerate(self._optimizers()))
        stages = {n: model.optimizers[o].stage for n, (_, o) in pairs if o in model.optimizers}
        seen = {n: known[id(o)]["stage"].name for n, (o, _) in pairs if id(o) in known}
        self._expect("the stage of each optimizer", seen, stages)
        for number, (optimizer, other) in pairs:
            if number in stages:
                infs = known[id(optimizer)]["found_inf_per_device"]
                found = {device.type: bool(value.item()) for device, value in infs.items()}
                self._expect(f"found_inf of optimizer {number}", found, model.optimizers[other].found_inf)

    def _gradients(self) -> None:
        for number, pair in enumerate(self._optimizers()):
            got, want = ({f"gradient {n}": g.detach().cpu() for n, g in gradients(side)} for side in pair)
            self._tensors(f"optimizer {number}", got, want)

    def _stepped(self, number: int, before: Tensors, refused: bool) -> None:
        optimizer, other = self._optimizers()[number]
        taken, fused = self.reference.took_step and not refused, is_fused(optimizer)
        want = held(other) if taken else before
        # A fused optimizer that is skipped makes its state, all zero, which plain torch makes at its first step.
        after = {name: value for name, value in held(optimizer).items() if name in want or not fused}
        if taken:
            self._tensors(f"optimizer {number} after the step", after, want, _FLOAT32 if fused else _FLOAT64)
        else:
            self._tensors(f"optimizer {number}, which had no step", after, want)
        if taken and fused:  # it may divide by the scale, whose inverse is rounded to float32
            for (place, got), (_, wanted) in zip(gradients(optimizer), gradients(other), strict=True):
                name = f"gradient {place}"
                self._tensors(f"optimizer {number} after the step", {name: got.cpu()}, {name: wanted.cpu()}, _FLOAT32)
                wanted.copy_(got)
        if self._watch is not None and not refused:
            self._watched(optimizer, other, taken)

    def _watched(self, optimizer: Optimizer, other: Optimizer, taken: bool) -> None:
        assert self._watch is not None
        last = self._watch.last
        assert last is not None
        self._expect("whether the watch saw the step taken", last.taken, taken)
        groups = optimizer.param_groups
        names = [f"group {g}, parameter {n}" for g, group in enumerate(groups) for n in range(len(group["params"]))]
        culprits = [] if taken else self.reference.culprits[other]
        want = sorted((names[place], inf, nan) for place, inf, nan in culprits)
        got = sorted((culprit.name, culprit.inf, culprit.nan) for culprit in last.culprits)
        self._expect("what the watch names, with its inf and nan", got, want)


class HasState(Protocol):
    """A scaler, by its state."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state_dict: dict[str, float], /) -> None: ...


S = TypeVar("S", bound=HasState)


def reload(other: S, scaler: S) -> S:
    """Return a scaler with other options into which the state of one was loaded."""
    other.load_state_dict(scaler.state_dict())
    return other


def corrupt_grad(param: torch.nn.Parameter, value: float) -> None:
    """Write a value into the first element of a gradient, where there is one; a sparse one set to zero has none."""
    if param.grad is not None:
        (param.grad._values() if param.grad.is_sparse else param.grad).view(-1)[:1] = value


def clip(optimizer: torch.optim.Optimizer) -> None:
    """Clip the norm of an optimizer's gradients that are not sparse."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    dense = [param for param in params if param.grad is not None and not param.grad.is_sparse]
    torch.nn.utils.clip_grad_norm_(dense, 1.0)


_CALLED = (reload, corrupt_grad, clip)
"""The functions that programs call. A reproduction prints their source, so they need torch alone."""


EXAMPLES = 50
COMPILED = 12
"""How many programs on a device that compiles each op for each set of shapes and dtypes."""
NIGHTLY = 2000


class ScalerExplorer:
    """Draws programs for a device, runs each, and compares. `compared`: how many values were compared so far."""

    def __init__(self, device: Device, search: Search = Search()) -> None:  # noqa: B008  # frozen
        self.device = device
        self.search = search
        self.compared = 0

    def difference(self, program: ScalerProgram) -> str | None:
        """Describe how torch differs from the reference on a program in a sentence, or return None."""
        run = ScalerRun(program)
        try:
            return run.difference()
        except Exception as error:  # a call on the scaler is caught where it is made
            return f"running the program raised {one_line(error)}; expected it to run"
        finally:
            self.compared += run.compared

    def explore(self, *, orderly: bool) -> tuple[str, ScalerProgram] | None:
        """Return the difference on a random program, made smaller, and that program; None without a difference.

        `orderly`: as for `draw.programs`.
        """
        drawn = programs(self.device.type, orderly=orderly)
        examples = EXAMPLES if self.device.database else COMPILED
        return self.search.first_difference(
            self.difference, drawn, examples=examples, nightly=NIGHTLY, smaller=ScalerProgram.shorter
        )

    def script(self, program: ScalerProgram) -> str:
        """Return a program in plain torch that shows the scaler, the parameters and their gradients after each line."""
        run = ScalerRun(program)
        difference = run.difference()
        lines = [f"# It finds: {difference}"] if difference else []
        lines += [_SHOW, program.setup]
        for number, line in enumerate(program.lines, 1):
            if number in run.refused:
                line = f"try:\n    {line}\nexcept Exception as error:\n    print('raised', repr(error))"
            lines += [line, f"show({f'{number} {line}'!r})" if number not in run.refused else f"show('{number}')"]
        needed: list[Needed] = [*_CALLED, torch.amp.GradScaler, copy.deepcopy, pickle.dumps, pickle.loads]
        return written(self.device, (), needed, ["\n".join(lines)])


_SHOW = """\
from math import inf, nan


def show(where):
    print(where, scaler.state_dict())
    for number, optimizer in enumerate(optimizers):
        print("   optimizer", number, getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), ""))
        for group in optimizer.param_groups:
            for param in group["params"]:
                grad = None if param.grad is None else param.grad.to_dense().tolist()
                print("      ", param.tolist(), "gradient", grad)

"""
