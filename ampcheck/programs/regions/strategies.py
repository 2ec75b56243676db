"""Random programs, drawn with Hypothesis; it makes a failing one as small as it can."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ampcheck.programs.regions.steps import (
    LAST,
    OPS,
    Catch,
    ClearCache,
    Decorated,
    Generator,
    InferenceMode,
    NoGrad,
    Op,
    Options,
    Program,
    Raise,
    Reenter,
    Set,
    Step,
    Thread,
    UseWeight,
    With,
)

_INPUTS = ("fp32", "fp32", LAST, "fp64", "fp16", "bf16")

Steps = st.SearchStrategy[Step]


def _one_of(*weighted: tuple[int, Steps]) -> Steps:
    """One of some strategies, each as often as its number says; `st.one_of` would count the parts of nested ones."""
    return st.sampled_from([each for weight, each in weighted for _ in range(weight)]).flatmap(lambda chosen: chosen)


def options(
    devices: Sequence[str], dtypes: Sequence[str | None] = ("fp16", "bf16", None, "fp32")
) -> st.SearchStrategy[Options]:
    """The arguments of a region of one of some device types; most are enabled and of the first type."""
    return st.builds(
        Options,
        _mostly_first(devices),
        st.sampled_from(dtypes),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((None, None, True, False)),
    )


def _mostly_first(devices: Sequence[str]) -> st.SearchStrategy[str]:
    return st.sampled_from((devices[0], devices[0], *devices))


def ops(devices: Sequence[str]) -> st.SearchStrategy[Op]:
    """A call of an op."""

    @st.composite
    def draw_op(draw: st.DrawFn) -> Op:
        name = draw(st.sampled_from(tuple(OPS)))
        # binary_cross_entropy has no kernel for the lower precisions on every device.
        inputs = ("fp32",) if name == "bce" else _INPUTS
        count = OPS[name].tensors
        return Op(name, draw(_mostly_first(devices)), tuple(draw(st.sampled_from(inputs)) for _ in range(count)))

    return draw_op()


def sets(devices: Sequence[str]) -> st.SearchStrategy[Set]:
    """A call of a state function."""
    device = _mostly_first(devices)
    return st.one_of(
        st.builds(Set, st.just("enabled"), device, st.booleans()),
        st.builds(Set, st.just("dtype"), device, st.sampled_from(("fp16", "bf16"))),
        st.builds(Set, st.just("cache_enabled"), device, st.booleans()),
    )


def programs(devices: Sequence[str]) -> st.SearchStrategy[Program]:
    """Programs of every kind of step over some device types, the first of them before all."""
    weights = st.builds(UseWeight, _mostly_first(devices), st.sampled_from(("leaf", "leaf2", "frozen", "low")))
    leaves = _one_of(
        (8, ops(devices)), (4, weights), (3, sets(devices)), (1, st.just(ClearCache())), (1, st.just(Raise()))
    )
    return _program(leaves, options(devices))


def weight_programs(devices: Sequence[str]) -> st.SearchStrategy[Program]:
    """Programs about the weight cache: products with two weights, in regions that mostly have the same dtype."""
    use = st.builds(UseWeight, _mostly_first(devices), st.sampled_from(("leaf", "leaf", "leaf2", "frozen")))
    cache = st.builds(Set, st.just("cache_enabled"), st.just(devices[0]), st.booleans())
    leaves = _one_of((12, use), (1, cache), (1, st.just(ClearCache())), (1, st.just(Raise())))
    return _program(leaves, options(devices, (None, None, None, "bf16")))


_DEPTH = 3


def _program(leaves: Steps, region: st.SearchStrategy[Options]) -> st.SearchStrategy[Program]:
    # By levels and not with st.recursive, which draws mostly programs without any region.
    step = leaves
    for level in range(_DEPTH):
        body: st.SearchStrategy[Program] = st.lists(step, min_size=1, max_size=4).map(tuple)
        step = _one_of(
            (6 if level < _DEPTH - 1 else 1, leaves),
            (4, st.builds(With, region, body)),
            (1, st.builds(Decorated, region, body, st.integers(1, 2), st.none() | region)),
            (1, st.builds(Reenter, region, body, body)),
            (1, st.builds(Generator, region, body, body)),
            (1, st.builds(Catch, body)),
            (1, st.builds(NoGrad, body)),
            (1, st.builds(InferenceMode, body)),
            (1, st.builds(Thread, body)),
        )
    return st.lists(step, min_size=1, max_size=3).map(tuple)
