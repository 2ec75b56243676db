"""A program of a GradScaler as plain torch, to be pasted into a report."""

from __future__ import annotations

from dataclasses import asdict

from ampcheck.devices.base import Device
from ampcheck.programs.scaler.sides import constructor
from ampcheck.programs.scaler.steps import (
    ELSEWHERE,
    Backward,
    Clip,
    CorruptGrad,
    Load,
    OptimizerStep,
    Options,
    Param,
    Pickle,
    Reload,
    ScalerProgram,
    Set,
    Step,
    Unscale,
    Update,
    ZeroGrad,
)
from ampcheck.reproduce import preamble
from ampcheck.spec.torch_dtypes import DTYPES

_HELPERS = """\
def reload(other):  # into a scaler with other options
    other.load_state_dict(scaler.state_dict())
    return other


def load(scale, tracker):
    scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": tracker})


def corrupt_grad(grad, value):
    if grad is not None:
        (grad._values() if grad.is_sparse else grad).view(-1)[0] = value


def clip(optimizer):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    dense = [param for param in params if param.grad is not None and not param.grad.is_sparse]
    torch.nn.utils.clip_grad_norm_(dense, 1.0)


def do(where, call):
    out = None
    try:
        out = call()
    except Exception as error:
        print(where, "raised", repr(error))
    print(where, scaler.state_dict())
    for number, optimizer in enumerate(optimizers):
        states = getattr(scaler, "_per_optimizer_states", {})
        print("   optimizer", number, states[id(optimizer)] if id(optimizer) in states else "")
        for group in optimizer.param_groups:
            for param in group["params"]:
                grad = None if param.grad is None else param.grad.to_dense().tolist()
                print("      ", param.tolist(), "gradient", grad)
    return out"""


def render(program: ScalerProgram, device: Device) -> str:
    """A program as a script that shows the scaler, the parameters and their gradients after each call."""
    lines = ["import copy", "import pickle", "from math import inf, nan", *preamble(device), "", _HELPERS, "", ""]
    home = device.type
    for number, plan in enumerate(program.optimizers):
        names = iter(range(len(plan.params)))
        groups = []
        for group in plan.groups:
            held = []
            for param in group:
                index = next(names)
                lines.append(f"p{number}_{index} = {_parameter(param, index, home)}")
                held.append(f"p{number}_{index}")
            groups.append(f'{{"params": [{", ".join(held)}]}}')
        lines.append(f"groups = [{', '.join(groups)}]")
        lines.append(f"o{number} = {constructor(plan.kind)}")
    lines.append(f"optimizers = [{', '.join(f'o{number}' for number in range(len(program.optimizers)))}]")
    lines.append(f"scaler = {_scaler(program.options, home)}")
    for number, step in enumerate(program.steps, 1):
        if (text := _step(step, program, home)) is not None:
            # A scaler that is made anew takes the place of the old one, unless that was refused.
            new = "scaler = " if isinstance(step, (Reload, Pickle)) else ""
            lines.append(f"{new}do({f'{number} {step}'!r}, lambda: {text}){' or scaler' if new else ''}")
    return "\n".join(lines)


def _scaler(options: Options, home: str) -> str:
    return f"torch.amp.GradScaler({home!r}, {', '.join(f'{name}={value}' for name, value in asdict(options).items())})"


def _place(param: Param, home: str) -> str:
    return home if param.place == "home" else "cpu"


def _parameter(param: Param, index: int, home: str) -> str:
    shape = "(3, 2)" if param.kind == "sparse" else "(2,)"
    made = f"torch.full({shape}, {1.0 + index}, dtype={DTYPES[param.dtype]}, device={_place(param, home)!r})"
    frozen = ", requires_grad=False" if param.kind == "frozen" else ""
    return f"torch.nn.Parameter({made}{frozen})"


def _losses(step: Backward, program: ScalerProgram, home: str) -> list[str]:
    plan, bad, terms = program.optimizers[step.optimizer], step.bad, dict[str, list[str]]()
    for number, param in enumerate(plan.params):
        if param.kind in ("used", "sparse"):
            place, name = _place(param, home), f"p{step.optimizer}_{number}"
            first = bad.value if bad and bad.where == "forward" and bad.param == number else 0.5 + 0.25 * number
            used = name
            if param.kind == "sparse":
                rows = f"torch.tensor([2, 0, 2], device={place!r})"
                used = f"torch.nn.functional.embedding({rows}, {name}, sparse=True)"
            by = f"torch.tensor([{first}, -1.5], dtype={DTYPES[param.dtype]}, device={place!r})"
            terms.setdefault(place, []).append(f"({used} * {by}).sum()")
    losses = {place: " + ".join(parts) for place, parts in terms.items()}
    if bad is not None and bad.where == "loss":
        place = _place(plan.params[bad.param], home)
        if place in losses:
            losses[place] = f"({losses[place]}) * {bad.value}"
    return list(losses.values())


def _step(step: Step, program: ScalerProgram, home: str) -> str | None:
    """The call of a step, or None for one that calls nothing."""
    match step:
        case Backward():
            losses = _losses(step, program, home)
            if len(losses) > 1:
                return f"[loss.backward() for loss in scaler.scale([{', '.join(losses)}])]"
            return f"scaler.scale({losses[0]}).backward()" if losses else None
        case CorruptGrad(optimizer, param, value):
            return f"corrupt_grad(p{optimizer}_{param}.grad, {value})"
        case Unscale(optimizer):
            return f"scaler.unscale_(o{optimizer})"
        case Clip(optimizer):
            return f"clip(o{optimizer})"
        case OptimizerStep(optimizer, closure):
            return f"scaler.step(o{optimizer}{', closure=None' if closure else ''})"
        case Update(None, _):
            return "scaler.update()"
        case Update(new_scale, as_tensor):
            return f"scaler.update({f'torch.full((), {new_scale}, device={home!r})' if as_tensor else new_scale})"
        case ZeroGrad(optimizer, set_to_none):
            return f"o{optimizer}.zero_grad(set_to_none={set_to_none})"
        case Reload():
            options = Options(**{**asdict(ELSEWHERE), "enabled": program.options.enabled})
            return f"reload({_scaler(options, home)})"
        case Load(scale, tracker):
            return f"load({scale}, {tracker})" if program.options.enabled else "scaler.load_state_dict({})"
        case Pickle(copy):
            return "copy.deepcopy(scaler)" if copy else "pickle.loads(pickle.dumps(scaler))"
        case Set(what, value):
            return f"scaler.set_{what}({value})"
