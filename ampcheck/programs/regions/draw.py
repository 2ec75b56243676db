"""Random programs of regions, as text: a function `program(amp)` that calls the methods of `Torch`."""

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from ampcheck.spec.torch_dtypes import DTYPES

Lines: TypeAlias = st.SearchStrategy[tuple[str, ...]]
Texts: TypeAlias = st.SearchStrategy[str]

OPS = {
    "torch.mm": 2,
    "torch.nn.functional.mse_loss": 2,
    "torch.atan2": 2,
    "torch.cat": 2,
    "torch.sum": 1,
    "torch.mul": 2,
    "torch.nn.functional.binary_cross_entropy": 2,
}
"""The ops of programs, and how many tensors each takes. They meet every policy but append, on some device."""

_DEPTH = 3


def indented(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a block."""
    return tuple(f"    {line}" for line in lines)


def program(lines: Sequence[str]) -> str:
    """Return the text of a program of some lines."""
    return "\n".join(("def program(amp):", *indented(lines)))


def programs(devices: Sequence[str]) -> Texts:
    """Draw programs of every kind of step over some device types, the first of them before all."""
    weights = _weight(_mostly_first(devices), ("leaf", "leaf2", "frozen", "low"))
    leaves = _weighted(
        (8, _ops(devices)), (4, weights), (3, _setters(devices)), (1, _line("amp.clear_cache()")), (1, _RAISE)
    )
    return _program(leaves, _region(devices, ("fp16", "bf16", None, "fp32")))


def weight_programs(devices: Sequence[str]) -> Texts:
    """Draw programs about the weight cache: products with weights, in regions that mostly have the same dtype."""
    use = _weight(_mostly_first(devices), ("leaf", "leaf", "leaf2", "frozen"))
    cache = st.booleans().map(lambda on: (f"amp.set_cache_enabled({on})",))
    leaves = _weighted((12, use), (1, cache), (1, _line("amp.clear_cache()")), (1, _RAISE))
    return _program(leaves, _region(devices, (None, None, None, "bf16")))


def _line(text: str) -> Lines:
    return st.just((text,))


_RAISE = _line("raise PlannedError")


def _weighted(*weighted: tuple[int, Lines]) -> Lines:
    # st.one_of would count the parts of nested strategies.
    return st.sampled_from([each for weight, each in weighted for _ in range(weight)]).flatmap(lambda chosen: chosen)


def _mostly_first(devices: Sequence[str]) -> Texts:
    return st.sampled_from((devices[0], devices[0], *devices)).map(repr)


def _region(devices: Sequence[str], dtypes: Sequence[str | None]) -> Texts:
    def text(device: str, dtype: str | None, enabled: bool, cache_enabled: bool | None) -> str:
        named = {"dtype": dtype and DTYPES[dtype], "enabled": enabled and None, "cache_enabled": cache_enabled}
        return f"amp.autocast({', '.join([device, *(f'{k}={v}' for k, v in named.items() if v is not None)])})"

    return st.builds(
        text,
        _mostly_first(devices),
        st.sampled_from(dtypes),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((None, None, True, False)),
    )


def _new(device: str, dtype: str) -> str:
    return f"amp.last({device})" if dtype == "last" else f"amp.new({device}, {DTYPES[dtype]})"


@st.composite
def _ops(draw: st.DrawFn, devices: Sequence[str]) -> tuple[str, ...]:
    op, device = draw(st.sampled_from(tuple(OPS))), draw(_mostly_first(devices))
    # binary_cross_entropy has no kernel for the lower precisions on every device.
    dtypes = ("fp32",) if "entropy" in op else ("fp32", "fp32", "last", "fp64", "fp16", "bf16")
    inputs = [_new(device, draw(st.sampled_from(dtypes))) for _ in range(OPS[op])]
    return (f"amp.op({device}, {op}, {', '.join(inputs)})",)


def _weight(device: Texts, names: Sequence[str]) -> Lines:
    def text(device: str, name: str) -> tuple[str, ...]:
        return (f"amp.op({device}, torch.mm, {_new(device, 'fp32')}, amp.weight({device}, {name!r}))",)

    return st.builds(text, device, st.sampled_from(names))


def _setters(devices: Sequence[str]) -> Lines:
    device, dtype = _mostly_first(devices), st.sampled_from(("fp16", "bf16"))
    return st.one_of(
        st.builds(lambda device, on: (f"amp.set_enabled({device}, {on})",), device, st.booleans()),
        st.builds(lambda device, dtype: (f"amp.set_dtype({device}, {DTYPES[dtype]})",), device, dtype),
        st.booleans().map(lambda on: (f"amp.set_cache_enabled({on})",)),
    )


def _program(leaves: Lines, region: Texts) -> Texts:
    # By levels and not with st.recursive, which draws mostly programs without any region. A name has the number of its
    # level, so that no block takes a name from the block around it.
    step = leaves
    for level in range(_DEPTH):
        body = st.lists(step, min_size=1, max_size=4).map(lambda steps: sum(steps, ()))
        step = _weighted(
            (6 if level < _DEPTH - 1 else 1, leaves),
            (4, st.builds(lambda region, body: (f"with {region}:", *indented(body)), region, body)),
            (1, _decorated(f"f{level}", region, body)),
            (1, _reentered(f"r{level}", region, body)),
            (1, _generator(f"g{level}", region, body)),
            (1, body.map(lambda body: ("try:", *indented(body), "except PlannedError:", "    amp.caught()"))),
            (1, body.map(lambda body: ("with amp.no_grad():", *indented(body)))),
            (1, body.map(lambda body: ("with amp.inference_mode():", *indented(body)))),
            (1, _thread(f"t{level}", body)),
        )
    return st.lists(step, min_size=1, max_size=3).map(lambda steps: program(sum(steps, ())))


def _decorated(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a function that is decorated here and called once or twice, perhaps in another region."""

    def text(region: str, body: Sequence[str], calls: int, around: str | None) -> tuple[str, ...]:
        called = (f"{name}()",) * calls
        made = f"@{region}", f"def {name}():", *indented(body)
        return (*made, f"with {around}:", *indented(called)) if around else (*made, *called)

    return st.builds(text, region, body, st.integers(1, 2), st.none() | region)


def _reentered(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a region object that is entered twice in turn."""

    def text(region: str, first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
        return f"{name} = {region}", f"with {name}:", *indented(first), f"with {name}:", *indented(second)

    return st.builds(text, region, body, body)


def _generator(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a generator that is suspended inside a region, and is closed whatever is raised meanwhile."""

    def text(region: str, body: Sequence[str], between: Sequence[str]) -> tuple[str, ...]:
        made = f"def {name}():", *indented((f"with {region}:", *indented((*body, "yield"))))
        loop = f"for _ in {name}_steps:", *indented(between)
        return (*made, f"with closing({name}()) as {name}_steps:", *indented(loop))

    return st.builds(text, region, body, body)


def _thread(name: str, body: Lines) -> Lines:
    look = "amp.look('in a new thread')"
    return body.map(lambda body: (f"def {name}():", *indented((look, *body)), f"amp.in_thread({name})"))
