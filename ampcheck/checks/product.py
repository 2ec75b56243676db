"""Products: every combination of the parameters of a scenario, those that cannot be, and a small choice for each run.

    CALLS = Product({"policy": ("downcast", "upcast"), "mode": ("train", "eval")})

    @scenario(CALLS)
    def test_same_dtype(amp, policy, mode): ...

A run takes the cells of `chosen`, which hold every pair of values, and none of a product that is `nightly`; one with
`--nightly` takes all of `reachable`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
Cell = tuple[str, ...]
Pair = tuple[int, str, int, str]


@dataclass(frozen=True)
class Product:
    """All combinations of the values of some dimensions.

    `dimensions`: the values of each, by its name, which is the parameter of the scenario. `without`: for each reason
    why a cell cannot be, whether it speaks of a cell, which it gets as a mapping from dimension to value. `nightly`:
    only nightly runs take cells of it.
    """

    dimensions: Mapping[str, Sequence[str]]
    without: Mapping[str, Callable[[Mapping[str, str]], bool]] | None = None
    nightly: bool = False

    @cached_property
    def unreachable(self) -> dict[Cell, str]:
        """Return the cells that cannot be, each with the first reason."""
        found = {}
        for cell in product(*self.dimensions.values()):
            named = dict(zip(self.dimensions, cell, strict=True))
            reason = next((reason for reason, speaks in (self.without or {}).items() if speaks(named)), None)
            if reason is not None:
                found[cell] = reason
        return found

    @cached_property
    def reachable(self) -> list[Cell]:
        """Return all other cells."""
        return [cell for cell in product(*self.dimensions.values()) if cell not in self.unreachable]

    @cached_property
    def chosen(self) -> list[Cell]:
        """Return a few cells that hold every pair of values which a reachable cell holds, the same ones each time.

        Our own, since the ids of a run's cases must not change with the version of a library.
        """
        picked = covering({cell: _pairs(cell) for cell in ([] if self.nightly else self.reachable)})
        return sorted(picked, key=self.reachable.index)

    @property
    def size(self) -> int:
        """Return the number of all cells, with those that cannot be."""
        return len(self.reachable) + len(self.unreachable)

    def cells(self, function: F) -> F:
        """Run a scenario, whose parameters are the dimensions, once for each cell that the run takes."""
        marked: F = pytest.mark.product(self)(function)
        return marked

    def sentence(self) -> str:
        """Return the figures of the product, as its page in `docs/coverage/` says them."""
        return (
            f"Product: {self.size} cells; {len(self.chosen)} in each run, {len(self.reachable)} nightly, "
            f"{len(self.unreachable)} unreachable."
        )


Wanted = str | Collection[str] | Callable[[str], bool]


def where(**wanted: Wanted) -> Callable[[Mapping[str, str]], bool]:
    """Return whether a cell has, in each dimension, the value, one of the values, or one that `other_than` takes."""

    def takes(wanted: Wanted, value: str) -> bool:
        if callable(wanted):
            return wanted(value)
        return value == wanted if isinstance(wanted, str) else value in wanted

    return lambda cell: all(takes(each, cell[name]) for name, each in wanted.items())


def other_than(*values: str) -> Callable[[str], bool]:
    """Return whether a value is none of these; see `where`."""
    return lambda value: value not in values


def label(cell: Cell) -> str:
    """Return a cell's part of the id of its case."""
    return "-".join(cell)


def _pairs(cell: Cell) -> set[Pair]:
    """Return the pairs of values that a cell holds; of a single dimension, its value with itself."""
    values = list(enumerate(cell))
    several = values if len(values) > 1 else [*values, *values]
    return {(i, a, j, b) for (i, a), (j, b) in combinations(several, 2)}


def covering(held: Mapping[T, Iterable[Hashable]]) -> list[T]:
    """Return a few keys that together hold every value which a key holds.

    Takes the key with the most values that are still missing, the first of several, over and over, as greedy covering
    arrays do.
    """
    bits: dict[Hashable, int] = {}  # a set of values is a number with a bit for each, which is ten times as fast
    left = {key: sum(bits.setdefault(value, 1 << len(bits)) for value in set(values)) for key, values in held.items()}
    missing = (1 << len(bits)) - 1
    picked = []
    while missing:
        best = max(left, key=lambda key: left[key].bit_count())
        picked.append(best)
        missing &= ~left.pop(best)
        left = {key: rest for key, values in left.items() if (rest := values & missing)}
    return picked
