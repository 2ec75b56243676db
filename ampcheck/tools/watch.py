"""`ampcheck.watch`: which steps a GradScaler took, and where the gradients first went wrong before one it skipped."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.utils.hooks import RemovableHandle

from ampcheck.errors import UsageError
from ampcheck.observe.recorder import tensors


class HasGroups(Protocol):
    """An optimizer, of torch or of anybody else."""

    param_groups: list[dict[str, Any]]


def parameters_of(optimizer: HasGroups) -> list[torch.Tensor]:
    """Return the parameters of all groups."""
    return [param for group in optimizer.param_groups for param in group["params"]]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A gradient's inf and nan, as tensors on its device so that counting them waits for nothing.

    `arrival`: how late its backward pass came to it.
    """

    param: torch.Tensor
    arrival: float
    inf: torch.Tensor
    nan: torch.Tensor
    elements: int


class Watch:
    """The result of `watch`: a context manager that watches until it is closed.

    `steps`: the last ones, oldest first. What was seen stays after the end.
    """

    def __init__(self, scaler: GradScaler, tell: Callable[[WatchedStep], object] | None, keep: int) -> None:
        self.steps: deque[WatchedStep] = deque(maxlen=keep)
        self._scaler = scaler
        self._tell = tell
        self._number = 0
        self._stepping = False
        self._modules: list[tuple[str, torch.nn.Module]] = []
        self._optimizers: dict[int, tuple[str, HasGroups]] = {}  # by id, and held so that no other gets the id
        self._arrivals = itertools.count()
        self._arrived: dict[int, int] = {}
        self._handles: dict[int, RemovableHandle] = {}
        self._counted: dict[int, list[_Counted]] = {}
        self._losses: list[torch.Tensor] = []  # of the iteration: whether one was what _LOSS says
        self._ended = False
        # Put on the instance, so that a subclass's own are called; pickle asks the instance too.
        self._own = {name: getattr(scaler, name) for name in ("scale", "step", "unscale_", "__getstate__")}
        self._put = {"scale": self._scale, "step": self._step, "unscale_": self._unscale}
        self._put["__getstate__"] = self._getstate
        vars(scaler).update(self._put)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching, and leave the scaler as it was before. A second call does nothing."""
        if vars(self._scaler).get("step") == self._step:
            for name in self._put:
                del vars(self._scaler)[name]
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._counted.clear()

    @property
    def last(self) -> WatchedStep | None:
        """The last step; None before the first one."""
        return self.steps[-1] if self.steps else None

    @property
    def skipped(self) -> list[WatchedStep]:
        """Those of `steps` that were not taken."""
        return [step for step in self.steps if not step.taken]

    def __str__(self) -> str:
        skipped = self.skipped
        head = f"{self._number} steps; of the last {len(self.steps)}, {len(skipped)} were skipped"
        return "\n".join([head, *map(str, skipped)])

    def know(self, thing: object, name: str = "") -> None:
        """Take the names of a module's parameters, or that of an optimizer. Raises UsageError for anything else."""
        if isinstance(thing, torch.nn.Module):
            self._modules.append((f"{name}." if name else "", thing))
            self._follow(thing.parameters())
        elif hasattr(thing, "param_groups"):
            optimizer = cast(HasGroups, thing)
            if id(optimizer) not in self._optimizers:
                self._optimizers[id(optimizer)] = name or f"optimizer {len(self._optimizers)}", optimizer
            self._follow(parameters_of(optimizer))
        else:
            raise UsageError(f"watch was given {thing!r}, which is neither a module nor an optimizer")

    # ---- in place of the scaler's methods

    def _getstate(self) -> dict[str, object]:
        return {name: value for name, value in self._own["__getstate__"]().items() if name not in self._put}

    def _scale(self, outputs: object) -> object:
        out = self._own["scale"](outputs)
        if self._ended:
            self._losses, self._ended = [], False
        scale = self._scaler._get_scale_async() if self._scaler.is_enabled() else None
        # Anything else may be a generator, which can be read once.
        if scale is not None and isinstance(outputs, torch.Tensor | list | tuple):
            for loss in tensors(outputs):
                kinds = (loss.isnan(), loss.isinf(), scale.to(loss.device, loss.dtype).isinf())
                self._losses.append(torch.stack([kind.any() for kind in kinds]))
        return out

    def _unscale(self, optimizer: HasGroups) -> None:
        self._own["unscale_"](optimizer)
        if self._scaler.is_enabled() and not self._stepping:
            # Clipping may come next and spread one nan over every gradient: only now is it known where it was.
            self._counted[id(optimizer)] = self._count(optimizer)

    def _step(self, optimizer: HasGroups, *args: object, **kwargs: object) -> object:
        enabled = self._scaler.is_enabled()
        self.know(optimizer)
        counted = self._counted.pop(id(optimizer), None)
        if enabled and self._scaler._per_optimizer_states.get(id(optimizer), {}).get("stage") is not OptState.UNSCALED:
            counted = None  # from an iteration that ended without a step
        called: list[bool] = []
        register = getattr(optimizer, "register_step_post_hook", None)
        handle = register(lambda *_: called.append(True)) if register else None
        self._stepping = True
        try:
            out = self._own["step"](optimizer, *args, **kwargs)
        finally:
            self._stepping = False
            if handle is not None:
                handle.remove()
        # A fused optimizer is called in any case, and the device decides.
        asks = handle is None or getattr(optimizer, "_step_supports_amp_scaling", False)
        taken = not enabled or (bool(called) and not asks)
        self._number += 1
        self._ended = True
        name, _ = self._optimizers[id(optimizer)]
        step = WatchedStep(self._number, name, None if taken else self._evidence(optimizer, counted, asks))
        self.steps.append(step)
        if self._tell is not None and not step.taken:
            self._tell(step)
        return out

    # ---- evidence

    def _count(self, optimizer: HasGroups) -> list[_Counted]:
        out = []
        for param in parameters_of(optimizer):
            if param.grad is not None:
                grad = param.grad.detach()
                grad = grad._values() if grad.is_sparse else grad
                arrival = self._arrived.get(id(param), inf)
                out.append(_Counted(param, arrival, grad.isinf().sum(), grad.isnan().sum(), grad.numel()))
        return out

    def _evidence(self, optimizer: HasGroups, counted: list[_Counted] | None, asks: bool) -> Callable[[], Skip | None]:
        """Return a function that tells why a step was skipped, if it was, from values that nothing changes later.

        `counted`: the gradients as `unscale_` saw them, or None where they are still as they were checked.
        """
        per_device = self._scaler._found_inf_per_device(cast(torch.optim.Optimizer, optimizer))
        found = [value.clone() for value in per_device.values()]
        counts = self._count(optimizer) if counted is None else counted
        scale = self._scaler._get_scale_async()
        then = torch.ones(()) if scale is None else scale.clone()
        losses = self._losses

        def settle() -> Skip | None:
            if asks and not any(value.item() for value in found):
                return None
            names = self._names(optimizer)
            bad = [count for count in counts if count.inf.item() or count.nan.item()]
            bad.sort(key=lambda count: count.arrival)
            culprits = (Culprit(names[id(c.param)], int(c.inf), int(c.nan), c.elements) for c in bad)
            wrong = {what for flags in losses for what, flag in zip(_LOSS, flags.tolist(), strict=True) if flag}
            return then.item(), tuple(culprits), next((what for what in _LOSS if what in wrong), "")

        return settle

    def _names(self, optimizer: HasGroups) -> dict[int, str]:
        names = {
            id(param): f"group {group}, parameter {index}"
            for group, held in enumerate(optimizer.param_groups)
            for index, param in enumerate(held["params"])
        }
        for prefix, module in self._modules:
            names.update({id(param): f"{prefix}{name}" for name, param in module.named_parameters()})
        return names

    def _follow(self, params: Iterable[torch.Tensor]) -> None:
        if self._scaler.is_enabled():
            for param in params:
                if id(param) not in self._handles and param.requires_grad:
                    self._handles[id(param)] = param.register_post_accumulate_grad_hook(self._arrive)

    def _arrive(self, param: torch.Tensor) -> None:
        self._arrived[id(param)] = next(self._arrivals)


def watch(
    scaler: GradScaler,
    *given: torch.nn.Module | torch.optim.Optimizer,
    tell: Callable[[WatchedStep], object] | None = None,
    keep: int = 1000,
    **named: torch.nn.Module | torch.optim.Optimizer,
) -> Watch:
    """Watch the steps of a GradScaler: which were taken, and for the others which gradients went wrong first.

    Args:
        scaler: a `torch.amp.GradScaler` or an instance of a subclass, on any device, enabled or not.
        given: modules, whose parameters are then called by their names, and optimizers, which are numbered. Without
            them a parameter is called by its group and index.
        tell: is called with each step that was skipped, right after it; `print` will do. A fused optimizer decides on
            the device, so that this waits for it at every step.
        keep: of how many steps the record is kept.
        named: modules and optimizers with a name; a module's comes before those of its parameters.

    Returns: what holds the steps. It watches until its `close()`, or to the end of its `with` statement.

    Raises UsageError for a scaler that is no GradScaler or is watched already, for a `keep` below 1, and for what is
    neither a module nor an optimizer.
    """
    if not isinstance(scaler, GradScaler):
        raise UsageError(f"watch was given {scaler!r}, which is not a torch.amp.GradScaler")
    if isinstance(getattr(vars(scaler).get("step"), "__self__", None), Watch):
        raise UsageError("this GradScaler is watched already; close the other watch first")
    if keep < 1:
        raise UsageError(f"keep is {keep}; it is how many steps are kept, at least 1")
    watching = Watch(scaler, tell, keep)
    try:
        for name, thing in (*(("", thing) for thing in given), *named.items()):
            watching.know(thing, name)
    except UsageError:
        watching.close()
        raise
    return watching


@dataclass(frozen=True, slots=True)
class Culprit:
    """A parameter whose gradient was not finite when it was checked: its name, and how many of its elements were what.

    Of a sparse gradient the elements it holds are counted.
    """

    name: str
    inf: int
    nan: int
    elements: int

    def __str__(self) -> str:
        bad = ", ".join(f"{count} {what}" for count, what in ((self.inf, "inf"), (self.nan, "nan")) if count)
        return f"{self.name} ({bad} of {self.elements})"


_TOLD = 2
"""How many parameters are named after the first one: a nan early in the backward pass reaches every one after it."""

_LOSS = ("nan", "inf", "in a dtype that cannot hold the scale")
"""What a loss can be that its backward pass makes no finite gradients of, the first that holds."""

Skip: TypeAlias = tuple[float, tuple[Culprit, ...], str]


class WatchedStep:
    """One `scaler.step(optimizer)`. `number`: from 1 on, over all optimizers of the watch. `optimizer`: its name."""

    def __init__(self, number: int, optimizer: str, settle: Callable[[], Skip | None] | None) -> None:
        self.number = number
        self.optimizer = optimizer
        self._settle = settle

    @cached_property
    def _skip(self) -> Skip | None:
        settle, self._settle = self._settle, None  # which holds tensors
        return settle() if settle else None

    @property
    def taken(self) -> bool:
        """Return whether the parameters were updated. With a fused optimizer the first call waits for the device."""
        return self._skip is None

    @property
    def scale(self) -> float | None:
        """The scale at a step that was skipped; None for one that was taken."""
        return self._skip[0] if self._skip else None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The parameters whose gradients were not finite, in the order in which the backward pass reached them.

        Gradients that came from no backward pass since the watch began come last, in the optimizer's order.
        """
        return self._skip[1] if self._skip else ()

    @property
    def loss(self) -> str:
        """Return what a loss of a skipped step was before its backward pass, or "".

        It is "nan", "inf", or "in a dtype that cannot hold the scale".
        """
        return self._skip[2] if self._skip else ""

    def __str__(self) -> str:
        if self.taken:
            return f"step {self.number} of {self.optimizer} was taken"
        head = f"step {self.number} of {self.optimizer} was skipped at scale {self.scale:g}"
        if self.loss:
            where = "; `ampcheck doctor` names the op" if self.loss != _LOSS[-1] else ""
            return f"{head}: the loss was {self.loss}, before any gradient{where}"
        first, *others = [str(culprit) for culprit in self.culprits] or ["no gradient of its own"]
        more = f" and {len(others) - _TOLD} more" if len(others) > _TOLD else ""
        then = f", then in {', '.join(others[:_TOLD])}{more}" if others else ""
        return f"{head}: first in {first}{then}"
