"""Random programs of a GradScaler, as text: optimizers and a scaler, then one call a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hypothesis import strategies as st

from ampcheck.spec.torch_dtypes import DTYPES

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
