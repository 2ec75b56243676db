"""Random programs, drawn with Hypothesis; it makes a failing one as small as it can."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ampcheck.programs.steps import (
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

_REGIONS = ("fp16", "bf16", None, "fp32")
_INPUTS = ("fp32", "fp32", LAST, "fp64", "fp16", "bf16")
_WEIGHTS = ("leaf", "leaf2", "frozen", "low")


def options(devices: Sequence[str]) -> st.SearchStrategy[Options]:
    """The arguments of a region of one of some device types."""
    return st.builds(
        Options,
        st.sampled_from(devices),
        st.sampled_from(_REGIONS),
        st.sampled_from((True, True, False)),
        st.sampled_from((None, None, True, False)),
    )


def ops(devices: Sequence[str]) -> st.SearchStrategy[Op]:
    """A call of an op, with input dtypes that its policy accepts."""

    @st.composite
    def draw_op(draw: st.DrawFn) -> Op:
        name = draw(st.sampled_from(tuple(OPS)))
        # binary_cross_entropy has no kernel for the lower precisions on every device.
        inputs = ("fp32",) if name == "bce" else _INPUTS
        count = OPS[name].tensors
        return Op(name, draw(st.sampled_from(devices)), tuple(draw(st.sampled_from(inputs)) for _ in range(count)))

    return draw_op()


def sets(devices: Sequence[str]) -> st.SearchStrategy[Set]:
    """A call of a state function."""
    device = st.sampled_from(devices)
    return st.one_of(
        st.builds(Set, st.just("enabled"), device, st.booleans()),
        st.builds(Set, st.just("dtype"), device, st.sampled_from(("fp16", "bf16"))),
        st.builds(Set, st.just("cache_enabled"), device, st.booleans()),
    )


def programs(devices: Sequence[str], *, steps: int = 4) -> st.SearchStrategy[Program]:
    """Programs over some device types; `steps` bounds how many stand in a row."""
    weights = st.builds(UseWeight, st.sampled_from(devices), st.sampled_from(_WEIGHTS))
    leaves: st.SearchStrategy[Step] = st.one_of(
        ops(devices), weights, sets(devices), st.just(ClearCache()), st.just(Raise())
    )

    def nest(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
        body = st.lists(inner, max_size=steps).map(tuple)
        region = options(devices)
        return st.one_of(
            st.builds(With, region, body),
            st.builds(Decorated, region, body, st.integers(1, 2), st.none() | region),
            st.builds(Reenter, region, body, body),
            st.builds(Generator, region, body, body),
            st.builds(Catch, body),
            st.builds(NoGrad, body),
            st.builds(InferenceMode, body),
            st.builds(Thread, body),
        )

    step = st.recursive(leaves, nest, max_leaves=12)
    return st.lists(step, min_size=1, max_size=steps).map(tuple)


