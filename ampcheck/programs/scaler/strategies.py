"""Random programs of a GradScaler, drawn with Hypothesis; it makes a failing one as small as it can."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ampcheck.programs.scaler.steps import (
    Backward,
    Bad,
    Clip,
    CorruptGrad,
    Load,
    Optimizer,
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

_SCALES = (2.0**16, 2.0**16, 2.0**10, 4.0, 1.0, 2.0**126, 2.0**-20, 1000.0)
_WATCHED = st.sampled_from((True, True, True, False))
_VALUES = st.sampled_from(("inf", "-inf", "nan"))
Steps = st.SearchStrategy[tuple[Step, ...]]


def options() -> st.SearchStrategy[Options]:
    """The arguments of a scaler; most are enabled and grow soon."""
    return st.builds(
        Options,
        st.sampled_from(_SCALES),
        st.sampled_from((2.0, 2.0, 4.0, 1.1, 2.0**40)),
        st.sampled_from((0.5, 0.5, 0.25, 0.3)),
        st.sampled_from((1, 2, 2, 3, 5)),
        st.sampled_from((True,) * 9 + (False,)),
    )


def optimizers(fused: bool = True, sparse: bool = True) -> st.SearchStrategy[Optimizer]:
    """An optimizer of one or two groups; parameters of a fused one are all used, and dense.

    `fused`, `sparse`: whether the device has fused optimizers and sparse gradients.
    """
    kinds = ("sgd", "sgd", "momentum", "adam", "rmsprop", *(("fused", "fused") if fused else ()))

    @st.composite
    def draw_optimizer(draw: st.DrawFn) -> Optimizer:
        kind = draw(st.sampled_from(kinds))
        param = st.builds(
            Param,
            st.sampled_from(("fp32",) * 14 + ("bf16",) * 3 + ("fp64", "fp64", "fp16")),
            st.sampled_from(("home", "home", "home", "cpu")) if kind != "fused" else st.just("home"),
            st.sampled_from(("used",) * 5 + ("frozen", "unused")),
        )
        if kind == "sgd" and sparse:
            param = st.one_of(param, param, param, st.just(Param("fp32", "cpu", "sparse")))
        group = st.lists(param, min_size=1, max_size=3).map(tuple)
        return Optimizer(kind, tuple(draw(st.lists(group, min_size=1, max_size=2))))

    return draw_optimizer()


def _bad(optimizer: Optimizer) -> st.SearchStrategy[Bad]:
    return st.builds(Bad, st.sampled_from(("loss", "forward")), _param(optimizer), _VALUES)


def _param(optimizer: Optimizer) -> st.SearchStrategy[int]:
    # First and last as often as all others.
    count = len(optimizer.params)
    return st.sampled_from((0, count - 1, *range(count)))


def _iteration(chosen: Sequence[Optimizer]) -> Steps:
    """An iteration as it is documented, with something not finite somewhere in it or not."""

    @st.composite
    def draw_iteration(draw: st.DrawFn) -> tuple[Step, ...]:
        steps: list[Step] = []
        for number, optimizer in enumerate(chosen):
            steps.append(ZeroGrad(number, draw(st.booleans())))
            steps.append(Backward(number, draw(st.none() | _bad(optimizer))))
            if draw(st.integers(0, 3)) == 0:
                steps.append(CorruptGrad(number, draw(_param(optimizer)), draw(_VALUES)))
        for number, optimizer in enumerate(chosen):
            how = draw(st.integers(0, 4))
            steps += [(), (Unscale(number),), (Unscale(number), Clip(number)), (), ()][how]
            if how == 1 and draw(st.booleans()):
                steps.append(CorruptGrad(number, draw(_param(optimizer)), draw(_VALUES)))
            steps.append(OptimizerStep(number))
        return (*steps, Update())

    return draw_iteration()


def _any(chosen: Sequence[Optimizer]) -> Steps:
    """One call of any kind, in its place or not."""
    number = st.integers(0, len(chosen) - 1)
    bad = number.flatmap(lambda n: st.builds(Backward, st.just(n), st.none() | _bad(chosen[n])))
    corrupt_grad = number.flatmap(lambda n: st.builds(CorruptGrad, st.just(n), _param(chosen[n]), _VALUES))
    factors = st.one_of(
        st.builds(Set, st.just("growth_factor"), st.sampled_from((2.0, 3.0))),
        st.builds(Set, st.just("backoff_factor"), st.sampled_from((0.5, 0.25))),
        st.builds(Set, st.just("growth_interval"), st.sampled_from((1, 2, 4))),
    )
    step: st.SearchStrategy[Step] = st.one_of(
        bad,
        bad,
        st.builds(Unscale, number),
        st.builds(OptimizerStep, number, st.sampled_from((False, False, False, True))),
        st.builds(OptimizerStep, number),
        st.builds(Update, st.none() | st.sampled_from(_SCALES), st.booleans()),
        st.builds(Update),
        st.builds(ZeroGrad, number, st.booleans()),
        corrupt_grad,
        st.builds(Clip, number),
        st.just(Reload()),
        st.builds(Load, st.sampled_from(_SCALES), st.integers(0, 3)),
        st.builds(Pickle, st.booleans()),
        factors,
    )
    return step.map(lambda one: (one,))


def programs(fused: bool = True, sparse: bool = True, orderly: bool = False) -> st.SearchStrategy[ScalerProgram]:
    """Programs of up to three optimizers.

    `fused`, `sparse`: as for `optimizers`. `orderly`: whole iterations before all, else calls in any order.
    """

    @st.composite
    def draw_program(draw: st.DrawFn) -> ScalerProgram:
        chosen = tuple(draw(st.lists(optimizers(fused, sparse), min_size=1, max_size=3)))
        iteration, one = _iteration(chosen), _any(chosen)
        # Of given lengths, for lists of any length are mostly short.
        if orderly:
            pieces = draw(st.lists(st.one_of(iteration, iteration, one), min_size=3, max_size=5))
        else:
            pieces = [draw(iteration), *draw(st.lists(one, min_size=8, max_size=20))]
        return ScalerProgram(chosen, tuple(step for part in pieces for step in part), draw(options()), draw(_WATCHED))

    return draw_program()
