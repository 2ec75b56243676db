"""Random programs of training loops with scalers, run on PyTorch and on `ampcheck.spec.scaler`, and compared."""

import copy
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from hypothesis import strategies as st

from ampcheck.checks.program import Needed, written
from ampcheck.devices.base import Device
from ampcheck.errors import one_line
from ampcheck.observe.closeness import alike
from ampcheck.programs.search import Search
from ampcheck.spec.scaler import READY, Refused, Scaler, float32
from ampcheck.spec.torch_dtypes import DTYPES
from ampcheck.tools.watch import Watch, watch

Lines: TypeAlias = st.SearchStrategy[tuple[str, ...]]

OPTIMIZERS = {
    "sgd": "torch.optim.SGD({}, lr=0.5)",
    "momentum": "torch.optim.SGD({}, lr=0.5, momentum=0.5)",
    "adam": "torch.optim.Adam({}, lr=0.25)",
    "fused": "torch.optim.Adam({}, lr=0.25, fused=True)",
    "rmsprop": "torch.optim.RMSprop({}, lr=0.25, foreach=False)",
}
"""How an optimizer of each kind is made of its groups."""

OTHER_OPTIONS = "init_scale=3.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7"
"""The options of a scaler into which another one's state is loaded."""

_SCALES = (2.0**16, 2.0**16, 2.0**10, 4.0, 1.0, 2.0**126, 2.0**-20, 1000.0)
_VALUES = st.sampled_from(("inf", "-inf", "nan"))


@dataclass(frozen=True, slots=True)
class ScalerProgram:
    """`setup` makes `o0`, `o1`, … of parameters `p0_0`, `p0_1`, …, and `scaler`; `lines` are calls. `watched`: whether
    `ampcheck.watch` looks on."""

    setup: str
    lines: tuple[str, ...]
    watched: bool = True

    def shorter(self) -> "Iterator[ScalerProgram]":
        """Yield the program without each of its lines, the last ones first."""
        for place in reversed(range(len(self.lines))):
            yield replace(self, lines=self.lines[:place] + self.lines[place + 1 :])


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """A parameter of two elements, or a sparse table of three rows of two.

    `device`: its device type. `kind`: "used" in the loss, "frozen", "unused" (it has no gradient) or "sparse" (its
    gradient is).
    """

    device: str
    dtype: str = "fp32"
    kind: str = "used"


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """An optimizer: `kind` is a key of `OPTIMIZERS`; `groups` are its parameters."""

    kind: str
    groups: tuple[tuple[ParameterPlan, ...], ...]

    @property
    def params(self) -> tuple[ParameterPlan, ...]:
        """Return the parameters of all groups."""
        return tuple(param for group in self.groups for param in group)


# ---- text


def setup(plans: Sequence[OptimizerPlan], device: str, options: str) -> str:
    """Return the lines that make optimizers and a scaler."""
    lines = []
    for number, plan in enumerate(plans):
        names = iter([f"p{number}_{place}" for place in range(len(plan.params))])
        for place, param in enumerate(plan.params):
            shape = "(3, 2)" if param.kind == "sparse" else "(2,)"
            made = f"torch.full({shape}, {1.0 + place}, dtype={DTYPES[param.dtype]}, device={param.device!r})"
            frozen = ", requires_grad=False" if param.kind == "frozen" else ""
            lines.append(f"p{number}_{place} = torch.nn.Parameter({made}{frozen})")
        groups = [f'{{"params": [{", ".join([next(names) for _ in group])}]}}' for group in plan.groups]
        lines.append(f"o{number} = " + OPTIMIZERS[plan.kind].format(f"[{', '.join(groups)}]"))
    lines.append(f"optimizers = [{', '.join(f'o{number}' for number in range(len(plans)))}]")
    lines.append(f"scaler = GradScaler({device!r}, {options})")
    return "\n".join(lines)


def backward(number: int, plan: OptimizerPlan, where: str = "", bad: int = 0, value: str = "inf") -> tuple[str, ...]:
    """Return the line that scales an optimizer's loss and runs its backward pass; none where no parameter is used.

    `where`: "loss" or "forward", for a value that is not finite in the loss of parameter `bad` or in its product.
    """
    terms: dict[str, list[str]] = {}
    for place, param in enumerate(plan.params):
        if param.kind in ("used", "sparse"):
            used = f"p{number}_{place}"
            if param.kind == "sparse":
                rows = f"torch.tensor([2, 0, 2], device={param.device!r})"
                used = f"torch.nn.functional.embedding({rows}, {used}, sparse=True)"
            first = value if (where, bad) == ("forward", place) else 0.5 + 0.25 * place
            by = f"torch.tensor([{first}, -1.5], dtype={DTYPES[param.dtype]}, device={param.device!r})"
            terms.setdefault(param.device, []).append(f"({used} * {by}).sum()")
    losses = {device: " + ".join(parts) for device, parts in terms.items()}
    if where == "loss" and (device := plan.params[bad].device) in losses:
        losses[device] = f"({losses[device]}) * {value}"
    if len(losses) > 1:
        return (f"[loss.backward() for loss in scaler.scale([{', '.join(losses.values())}])]",)
    return tuple(f"scaler.scale({loss}).backward()" for loss in losses.values())


# ---- drawing


def _plans(device: str, fused: bool, sparse: bool) -> st.SearchStrategy[OptimizerPlan]:
    """Draw an optimizer of one or two groups; parameters of a fused one are all on the device, and dense."""
    kinds = ("sgd", "sgd", "momentum", "adam", "rmsprop", *(("fused", "fused") if fused else ()))

    @st.composite
    def draw_plan(draw: st.DrawFn) -> OptimizerPlan:
        kind = draw(st.sampled_from(kinds))
        param = st.builds(
            ParameterPlan,
            st.sampled_from((device, device, device, "cpu")) if kind != "fused" else st.just(device),
            st.sampled_from(("fp32",) * 14 + ("bf16",) * 3 + ("fp64", "fp64", "fp16")),
            st.sampled_from(("used",) * 5 + ("frozen", "unused")),
        )
        if kind == "sgd" and sparse:
            param = st.one_of(param, param, param, st.just(ParameterPlan("cpu", kind="sparse")))
        group = st.lists(param, min_size=1, max_size=3).map(tuple)
        return OptimizerPlan(kind, tuple(draw(st.lists(group, min_size=1, max_size=2))))

    return draw_plan()


def _options(enabled: bool) -> st.SearchStrategy[str]:
    return st.builds(
        "init_scale={}, growth_factor={}, backoff_factor={}, growth_interval={}, enabled={}".format,
        st.sampled_from(_SCALES),
        st.sampled_from((2.0, 2.0, 4.0, 1.1, 2.0**40)),
        st.sampled_from((0.5, 0.5, 0.25, 0.3)),
        st.sampled_from((1, 2, 2, 3, 5)),
        st.just(enabled),
    )


def _place(plan: OptimizerPlan) -> st.SearchStrategy[int]:
    # First and last as often as all others.
    count = len(plan.params)
    return st.sampled_from((0, count - 1, *range(count)))


def _backward(number: int, plan: OptimizerPlan) -> Lines:
    bad = st.builds(
        backward, st.just(number), st.just(plan), st.sampled_from(("loss", "forward")), _place(plan), _VALUES
    )
    return st.one_of(st.just(backward(number, plan)), bad)


def _corrupt(number: int, plan: OptimizerPlan) -> Lines:
    return st.builds(lambda place, value: (f"corrupt_grad(p{number}_{place}, {value})",), _place(plan), _VALUES)


def _zero(number: int) -> Lines:
    return st.booleans().map(lambda to_none: (f"o{number}.zero_grad(set_to_none={to_none})",))


@st.composite
def _iteration(draw: st.DrawFn, plans: Sequence[OptimizerPlan]) -> tuple[str, ...]:
    """Draw an iteration as it is documented, with something not finite somewhere in it or not."""
    lines: list[str] = []
    for number, plan in enumerate(plans):
        lines += (*draw(_zero(number)), *draw(_backward(number, plan)))
        if draw(st.integers(0, 3)) == 0:
            lines += draw(_corrupt(number, plan))
    for number, plan in enumerate(plans):
        how = draw(st.integers(0, 4))
        if how in (1, 2):
            lines.append(f"scaler.unscale_(o{number})")
        if how == 2:
            lines.append(f"clip(o{number})")
        if how == 1 and draw(st.booleans()):
            lines += draw(_corrupt(number, plan))
        lines.append(f"scaler.step(o{number})")
    return (*lines, "scaler.update()")


def _call(plans: Sequence[OptimizerPlan], device: str, enabled: bool) -> Lines:
    """Draw one call of any kind, in its place or not."""
    number, scale = st.integers(0, len(plans) - 1), st.sampled_from(_SCALES)
    setters = [
        *(f"scaler.set_growth_factor({value})" for value in (2.0, 3.0)),
        *(f"scaler.set_backoff_factor({value})" for value in (0.5, 0.25)),
        *(f"scaler.set_growth_interval({value})" for value in (1, 2, 4)),
    ]
    states = "scaler.load_state_dict({{**scaler.state_dict(), 'scale': {}, '_growth_tracker': {}}})"
    texts = (
        st.builds("scaler.unscale_(o{})".format, number),
        st.builds("scaler.step(o{}{})".format, number, st.sampled_from(("", "", "", ", closure=None"))),
        st.builds("scaler.step(o{})".format, number),
        st.one_of(
            st.just("scaler.update()"),
            st.builds("scaler.update({})".format, scale),
            st.builds(f"scaler.update(torch.full((), {{}}, device={device!r}))".format, scale),
        ),
        st.just("scaler.update()"),
        st.builds("clip(o{})".format, number),
        st.just(f"scaler = reload(GradScaler({device!r}, {OTHER_OPTIONS}, enabled={enabled}), scaler)"),
        st.builds(states.format, scale, st.integers(0, 3)),
        st.sampled_from(("scaler = loads(dumps(scaler))", "scaler = deepcopy(scaler)")),
        # One that is not enabled has no such value; a case of rule misuse has that.
        *([st.sampled_from(setters)] if enabled else []),
    )
    return st.one_of(
        number.flatmap(lambda n: _backward(n, plans[n])),
        number.flatmap(lambda n: _backward(n, plans[n])),
        number.flatmap(lambda n: _corrupt(n, plans[n])),
        number.flatmap(_zero),
        *(text.map(lambda text: (text,)) for text in texts),
    )


@st.composite
def programs(draw: st.DrawFn, device: str, *, orderly: bool, fused: bool = True, sparse: bool = True) -> ScalerProgram:
    """Draw a program of up to three optimizers.

    `orderly`: mostly whole iterations, else calls in any order. `fused`, `sparse`: whether the device has fused
    optimizers and sparse gradients.
    """
    plans = draw(st.lists(_plans(device, fused, sparse), min_size=1, max_size=3))
    enabled = draw(st.sampled_from((True,) * 9 + (False,)))
    iteration, call = _iteration(plans), _call(plans, device, enabled)
    # Of given lengths, for lists of any length are mostly short.
    if orderly:
        # st.one_of would choose among the kinds of calls, of which an iteration would be one.
        piece = st.sampled_from((iteration, iteration, call)).flatmap(lambda chosen: chosen)
        pieces = draw(st.lists(piece, min_size=3, max_size=5))
    else:
        pieces = [draw(iteration), *draw(st.lists(call, min_size=8, max_size=20))]
    watched = draw(st.sampled_from((True, True, True, False)))
    text = setup(plans, device, draw(_options(enabled)))
    return ScalerProgram(text, tuple(line for piece in pieces for line in piece), watched)


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
        show = Path(__file__).parent / "templates" / "show.txt"
        lines += [show.read_text(encoding="utf-8"), program.setup]
        for number, line in enumerate(program.lines, 1):
            if number in run.refused:
                line = f"try:\n    {line}\nexcept Exception as error:\n    print('raised', repr(error))"
            lines += [line, f"show({f'{number} {line}'!r})" if number not in run.refused else f"show('{number}')"]
        needed: list[Needed] = [*_CALLED, torch.amp.GradScaler, copy.deepcopy, pickle.dumps, pickle.loads]
        return written(self.device, (), needed, ["\n".join(lines)])
