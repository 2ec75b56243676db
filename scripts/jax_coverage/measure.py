"""One op, one way: its samples run there and on the CPU, and compared."""

import copy
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ampcheck.observe.torch_private import TorchDispatchMode, pytree
from scripts.jax_coverage import judge
from scripts.jax_coverage.invariants import INVARIANTS, indices_as_values
from scripts.jax_coverage.samples import HOST_ARGUMENTS, UNINITIALISED, name_of, samples, seed, tolerances
from scripts.jax_coverage.ways import Way

_DRAWS, _ELEMENTS = 24, 512  # draws of a random op: at least as many, and enough for as many elements
_MISSING = re.compile(r"(\S+) has no kernel on the jax device|Operator with name (\S+) has no lowering")


class _Seeded(TorchDispatchMode):
    """Notes whether an op draws random numbers."""

    random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _fresh(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf), tree)


def _called(op: Any, given: Any) -> Any:
    return op(given[0], *given[1], **given[2])


def measure(
    op: Any, way: Way, limit: int, dtype: torch.dtype = torch.float32, kind: str = "plain"
) -> Iterator[str | None]:
    """Yield why each of the op's samples does not agree, "" where it does, None where the CPU does not compute it."""
    rtol, atol = tolerances(op, dtype)
    for sample in samples(op, limit, dtype, kind):
        given = (sample.input, sample.args, sample.kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed(name_of(op))
            try:
                with _Seeded() as seeded:
                    expected = _called(op, _fresh(given))
            except Exception:
                yield None
                continue
            yield _reason(op, sample, way, expected, seeded.random, (rtol, atol))


def _reason(op: Any, sample: Any, way: Way, expected: Any, random: bool, bounds: tuple[float, float]) -> str:
    name, given = name_of(op), (sample.input, sample.args, sample.kwargs)

    def there() -> Any:
        fresh = _fresh(given)
        stays = way.host_arguments and name in HOST_ARGUMENTS
        moved = (way.there(fresh[0]), *fresh[1:]) if stays else way.there(fresh)
        with way.around(moved):
            return _called(op, moved)

    try:
        seed(name)
        actual = way.back(there())
        if name in INVARIANTS:
            invariant = INVARIANTS[name]
            loose = tuple(max(b, 1e-3) for b in bounds) if random else tuple(max(b, 1e-4) for b in bounds)
            if shapes := judge.difference(actual, expected, *bounds, values=False):
                return shapes
            return judge.difference(invariant(sample, actual), invariant(sample, expected), *loose)
        if name.split(".")[0] in UNINITIALISED:
            return judge.difference(actual, expected, *bounds, values=False)
        if random:
            return _random(op, given, way, expected, there, bounds)
        found = judge.difference(actual, expected, *bounds)
        if found:
            return _unless_tied(name, sample, actual, expected, bounds, found)
        if not way.caches:
            return ""
        second = way.back(there())  # what a second call does may come from a cache
        found = judge.difference(second, actual, 0.0, 0.0)
        return f"a second call gives another result: {found}" if found else ""
    except Exception as error:
        return describe(error)


def _unless_tied(name: str, sample: Any, actual: Any, expected: Any, bounds: tuple[float, float], found: str) -> str:
    mine, theirs = (indices_as_values(name, sample, out) for out in (actual, expected))
    if mine is actual:
        return found
    return judge.difference(mine, theirs, *bounds) and found


def _random(op: Any, given: Any, way: Way, expected: Any, there: Any, bounds: tuple[float, float]) -> str:
    elements = min(
        (v.numel() for _, v in judge.leaves(expected) if isinstance(v, torch.Tensor) and v.numel()), default=1
    )
    draws = max(_DRAWS, min(_ELEMENTS // elements, 128))
    theirs, mine = [], []
    for draw in range(draws):
        seed(name_of(op), draw)
        theirs.append(_called(op, _fresh(given)))
        seed(name_of(op), draw)
        mine.append(way.back(there()))
    if not any(judge.difference(other, theirs[0], 0.0, 0.0) for other in theirs[1:]):
        return judge.difference(mine[0], theirs[0], *bounds)  # asked for nothing random, such as dropout of 0
    return judge.distribution(mine, theirs)


def describe(error: BaseException) -> str:
    """Return the error in one line; a missing overload by its name."""
    text = " ".join(str(error).split())
    if found := _MISSING.search(text):
        return f"no kernel: {found[1] or found[2]}"
    return f"{type(error).__name__}: {text[:300]}"
