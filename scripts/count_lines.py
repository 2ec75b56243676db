"""Count the lines of Python folder by folder, and how often the package has each of its concepts.

    python scripts/count_lines.py [--places]

The first table has every folder with its lines and the totals with their limits. The second has a row for each concept
that the house has once ("one concept in one place"), measured in the syntax tree of the package; `--places` lists what
was counted.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import re
import textwrap
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ampcheck.spec.compilers import COMPILERS

T = TypeVar("T", bound=ast.AST)
ROOT = Path(__file__).parents[1]
COUNTED = ("ampcheck", "suites", "tests", "bench", "scripts")
LIMITS = {"all": 100_000, "tests": 28_000}
LONG = 60
"""Lines of a function that is too long."""
DEVICE_TYPES = {"cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "privateuseone"}
CONTAINERS = {"list", "tuple", "dict", "Sequence", "Mapping"}


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

    def tables(self) -> Iterator[tuple[ast.AST, str, ast.expr]]:
        """Yield the assignments to names of the module: the node, the name and the value."""
        for node in self.tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield node, _name(target), node.value


Places = Iterator[tuple[ast.AST, str]]
"""Nodes of a file, each with words for it."""


def sources(*folders: str) -> list[Source]:
    """Return the files of some folders, sorted."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(path.relative_to(ROOT)) for path in sorted(found)]


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name, or of what is called."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts(source: Source) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the strings that are used as values, so no docstrings, with their nodes."""
    docstrings = {id(node.value) for node in source.nodes(ast.Expr)}
    for node in source.nodes(ast.Constant):
        if isinstance(node.value, str) and id(node) not in docstrings:
            yield node, node.value


# ---- concepts: each function yields the places of a file that have one


def recorders(source: Source) -> Places:
    """Find classes that see ops by themselves, in text too; those that are made of Recorder use its hooks."""
    for node in source.nodes(ast.ClassDef):
        if "TorchDispatchMode" in map(_name, node.bases):
            yield node, node.name
    for constant, text in _texts(source):
        for name in re.findall(r"class (\w+)\(TorchDispatchMode\)", text):
            yield constant, f"{name} (text)"


def closeness(source: Source) -> Places:
    """Find functions that compare floating values within a tolerance, but for kernels, which are ops that do so."""
    for function in source.nodes(ast.FunctionDef):
        if "kernel" not in map(_name, function.decorator_list):
            for call in ast.walk(function):
                if re.fullmatch(r"(torch|np|jnp|torch\.testing)\.(allclose|isclose|assert_close)", _called(call)):
                    yield call, function.name


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def tree_walkers(source: Source) -> Places:
    """Find functions that call themselves on the items of containers to reach tensors."""
    for function in source.nodes(ast.FunctionDef):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        asks = [ast.unparse(call) for call in calls if _name(call) == "isinstance"]
        containers = any(CONTAINERS & set(re.findall(r"\w+", text)) for text in asks)
        if containers and function.name in map(_name, calls) and re.search("Tensor|Array", " ".join(asks)):
            yield function, function.name


def compiler_tables(source: Source) -> Places:
    """Find tables whose keys or values are names of compilers."""
    for node, name, value in source.tables():
        if isinstance(value, ast.Dict):
            for side in (value.keys, value.values):
                texts = [each.value for each in side if isinstance(each, ast.Constant)]
                if len(set(texts) & set(COMPILERS)) >= 3 and len(set(texts) - set(COMPILERS)) < 3:
                    yield node, name


def dtype_tables(source: Source) -> Places:
    """Find tables from device types to dtypes."""
    for node, name, value in source.tables():
        if isinstance(value, ast.Dict):
            keys = {key.value for key in value.keys if isinstance(key, ast.Constant)}
            if len(keys & DEVICE_TYPES) >= 3 and re.search("bf16|bfloat16", ast.unparse(value)):
                yield node, name


def child_protocols(source: Source) -> Places:
    """Find calls that start a process and read what it writes."""
    for node in source.nodes(ast.Call):
        if _called(node) in ("subprocess.Popen", "subprocess.run"):
            read = {"stdout", "capture_output"} & {keyword.arg for keyword in node.keywords}
            if (read and "sys.executable" in source.text) or _name(node) == "Popen":
                yield node, ""


def who_raised(source: Source) -> Places:
    """Find functions that look at the frames of a traceback to say whose an error is."""
    for function in source.nodes(ast.FunctionDef):
        if {"tb_next", "tb_lasti", "walk_tb", "extract_tb"} & set(map(_name, ast.walk(function))):
            yield function, function.name


def reproductions(source: Source) -> Places:
    """Find Python that is kept as text: strings of at least three lines which parse, or which have parts of code."""
    for node, text in _texts(source):
        if text.count("\n") >= 3 and _is_code(text):
            yield node, f"{text.count(chr(10))} lines"


def _is_code(text: str) -> bool:
    try:
        body = ast.parse(textwrap.dedent(text.strip("\n"))).body
    except SyntaxError:
        return re.search(r"^[ck |]*(def|class|import|from) \w+", text, re.MULTILINE) is not None
    code = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    return any(isinstance(node, code) for node in body)


def imports_inside(source: Source) -> Places:
    """Find imports inside of functions."""
    for node in {n: None for f in source.nodes(ast.FunctionDef) for n in ast.walk(f)}:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, ast.unparse(node)


def long_functions(source: Source) -> Places:
    """Find functions of more than `LONG` lines."""
    for function in source.nodes(ast.FunctionDef):
        if (function.end_lineno or function.lineno) - function.lineno >= LONG:
            yield function, function.name


CONCEPTS: dict[str, tuple[Callable[[Source], Places], str]] = {
    "recorders (TorchDispatchMode), in text too": (recorders, "1 with hooks"),
    "functions that say what is close": (closeness, "1 of named tolerances"),
    "walkers of a tree of tensors": (tree_walkers, "0: torch.utils._pytree"),
    "tables of compilers": (compiler_tables, "1"),
    "tables of default dtypes": (dtype_tables, "1 in spec"),
    "calls that start and read processes (child protocols)": (child_protocols, "1"),
    "functions that ask a traceback who raised": (who_raised, "1, by frames"),
    "texts of Python (reproductions)": (reproductions, "0: the check's source"),
    "imports inside of functions": (imports_inside, "those for start-up"),
    f"functions over {LONG} lines": (long_functions, "5"),
}


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


def per_thousand(files: Iterable[Source], kind: int, text: str) -> float:
    """Return how many tokens of a kind a thousand lines have that match a pattern."""
    files = list(files)
    found = sum(t.type == kind and re.match(text, t.string) is not None for file in files for t in file.tokens)
    return 1000 * found / max(1, sum(file.lines for file in files))


def any_per_thousand(files: Iterable[Source]) -> float:
    """Return how often a thousand lines say `Any`."""
    return per_thousand(files, tokenize.NAME, "Any$")


def main(arguments: list[str] | None = None) -> int:
    """Print both tables; return 1 where a total is over its limit."""
    parser = argparse.ArgumentParser(description="Count lines of Python and concepts of the package.")
    parser.add_argument("--places", action="store_true", help="list what was counted")
    args = parser.parse_args(arguments)
    over = print_folders()
    print_concepts(sources("ampcheck"), listed=args.places)
    return int(over)


def print_folders() -> bool:
    """Print the lines of each folder and the totals; return whether a total is over its limit."""
    lines: Counter[str] = Counter()
    for source in sources(*COUNTED):
        for depth in range(1, min(len(source.path.parts), 3)):
            lines["/".join(source.path.parts[:depth])] += source.lines
    for name in sorted(lines, key=lambda name: (COUNTED.index(name.partition("/")[0]), name)):
        print(f"{lines[name]:{11 if '/' in name else 7}} {name}")
    totals = {"all": sum(lines[top] for top in COUNTED), "tests": lines["tests"]}
    for name, total in totals.items():
        over = f", {total - LIMITS[name]} too many" if total > LIMITS[name] else ""
        print(f"{total:7} {name}: at most {LIMITS[name]}{over}")
    return any(total > LIMITS[name] for name, total in totals.items())


def print_concepts(package: list[Source], *, listed: bool) -> None:
    """Print how often the package has each concept, and if asked where."""
    found = {concept: (places(find, package), target) for concept, (find, target) in CONCEPTS.items()}
    found["policy tables"] = policy_tables(), "1 of 732 rows"
    found["class names twice"] = [f"{n}: {', '.join(where)}" for n, where in classes_twice(package).items()], "0"
    device = [source for source in package if "jax_device" in source.path.parts]
    print("\n| concept | now | target |\n|---|---|---|")
    for concept, (where, target) in found.items():
        print(f"| {concept} | {len(where)} | {target} |")
    print(f"| `Any` per 1000 lines | {any_per_thousand(package):.0f} | 15 |")
    print(f"| `Any` per 1000 lines of jax_device | {any_per_thousand(device):.0f} | 30 |")
    comments = per_thousand(package, tokenize.COMMENT, r"#(?! *(noqa|type:))")
    print(f"| comments per 1000 lines | {comments:.0f} | 57 to 133 elsewhere |")
    for concept, (where, _) in found.items() if listed else ():
        print(f"\n{concept}", *where, sep="\n  ")


if __name__ == "__main__":
    raise SystemExit(main())
