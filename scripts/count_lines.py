"""Count the lines of Python folder by folder, and measure what `tests/test_house.py` holds the package to.

`python scripts/count_lines.py` prints every folder with its lines, and the totals with their limits.
"""

import ast
import csv
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)
ROOT = Path(__file__).parents[1]
COUNTED = ("ampcheck", "suites", "tests", "bench", "scripts", "conftest.py", "setup.py")
LIMITS = {"all": 100_000, "tests": 28_000}
LONG = 60
"""Lines of a function that is too long."""


@dataclass(frozen=True)
class Source:
    """A file of Python. `path`: from the root of the repository."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Return its text."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Return its syntax tree."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Return how many lines it has."""
        return self.text.count("\n")

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """Return its tokens."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    def nodes(self, kind: type[T]) -> list[T]:
        """Return the nodes of a kind."""
        return [node for node in ast.walk(self.tree) if isinstance(node, kind)]


Places = Iterator[tuple[ast.AST, str]]
"""Nodes of a file, each with words for it."""


def sources(*folders: str) -> list[Source]:
    """Return the files of some folders, and files by their names, sorted."""
    found = (path for name in folders for path in ROOT.glob(name if name.endswith(".py") else f"{name}/**/*.py"))
    return [Source(path.relative_to(ROOT)) for path in sorted(found)]


def long_functions(source: Source) -> Places:
    """Find functions of more than `LONG` lines."""
    for function in source.nodes(ast.FunctionDef):
        if (function.end_lineno or function.lineno) - function.lineno >= LONG:
            yield function, function.name


def places(find: Callable[[Source], Places], files: Iterable[Source]) -> list[str]:
    """Return where some files have a concept, each place as file, line and words."""
    return [f"{f.path}:{getattr(node, 'lineno', 1)} {words}".strip() for f in files for node, words in find(f)]


def policy_tables() -> list[str]:
    """Return the CSV files that have a policy for each op."""
    found = []
    for path in sorted((ROOT / "ampcheck").rglob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            columns, *lines = csv.reader(file)
        if {"key", "overload", "policy"} <= set(columns):
            found.append(f"{path.relative_to(ROOT)} {len(lines)} rows")
    return found


def classes_twice(files: Iterable[Source]) -> dict[str, list[str]]:
    """Return the places of each class name that some files have more than once."""
    found: dict[str, list[str]] = defaultdict(list)
    for place in places(lambda source: ((node, node.name) for node in source.nodes(ast.ClassDef)), files):
        where, _, name = place.partition(" ")
        found[name].append(where)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def any_per_thousand(files: Iterable[Source]) -> float:
    """Return how often a thousand lines say `Any`."""
    files = list(files)
    found = sum(token.type == tokenize.NAME and token.string == "Any" for file in files for token in file.tokens)
    return 1000 * found / max(1, sum(file.lines for file in files))


def main() -> int:
    """Print the lines of each folder and the totals; return 1 where a total is over its limit."""
    lines: Counter[str] = Counter()
    for source in sources(*COUNTED):
        for depth in range(1, max(2, min(len(source.path.parts), 3))):
            lines["/".join(source.path.parts[:depth])] += source.lines
    for name in sorted(lines, key=lambda name: (COUNTED.index(name.partition("/")[0]), name)):
        print(f"{lines[name]:{11 if '/' in name else 7}} {name}")
    totals = {"all": sum(lines[top] for top in COUNTED), "tests": lines["tests"]}
    for name, total in totals.items():
        over = f", {total - LIMITS[name]} too many" if total > LIMITS[name] else ""
        print(f"{total:7} {name}: at most {LIMITS[name]}{over}")
    return int(any(total > LIMITS[name] for name, total in totals.items()))


if __name__ == "__main__":
    raise SystemExit(main())
