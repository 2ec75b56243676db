"""Count the lines of Python room by room, and measure how often the package has each of its concepts.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = ("ampcheck", "suites", "tests", "bench")
LIMITS = {"package, suites, tests, bench": 95_000, "tests": 28_000}
LONG = 60
"""Lines of a function that is too long."""
_DEVICE_TYPES = {"cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "privateuseone"}
_CONTAINERS = {"list", "tuple", "dict", "Sequence", "Mapping"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Source:
    """A file of Python."""

    path: Path
    """From the root of the repository."""

    @cached_property
    def text(self) -> str:
        """Return its text."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Return its syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return every node of its syntax tree."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """Return how many lines it has."""
        return self.text.count("\n")

    def tokens(self) -> list[tokenize.TokenInfo]:
        """Return its tokens."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    def at(self, node: ast.AST, what: str = "") -> str:
        """Return the place of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 1)} {what}".strip()

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function and method."""
        yield from (node for node in self.nodes if isinstance(node, _FUNCTIONS))


def sources(*folders: str) -> list[Source]:
    """Return the files of some folders, sorted."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(path.relative_to(ROOT)) for path in sorted(found) if ".venv" not in path.parts[0]]


def room(path: Path) -> str:
    """Return the folder that a file is counted in: a package's or a suite's own, `tests/x`, else the top folder."""
    depth = 2 if path.parts[0] in ("ampcheck", "suites", "tests") and len(path.parts) > 2 else 1
    return "/".join(path.parts[:depth])


# ---- concepts: each function returns the places where the package has one


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name, or of what is called."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts(source: Source) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the strings that are used as values, so no docstrings, with their nodes."""
    said = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node, node.value


def recorders(package: Iterable[Source]) -> list[str]:
    """Find subclasses of TorchDispatchMode, direct and indirect, and those in text."""
    classes = [(source, node) for source in package for node in source.nodes if isinstance(node, ast.ClassDef)]
    modes, found = {"TorchDispatchMode"}, dict[str, None]()
    for _ in range(5):  # a subclass of a subclass may come first
        for source, node in classes:
            if any(_name(base) in modes for base in node.bases):
                modes.add(node.name)
                found[source.at(node, node.name)] = None
    as_text = re.compile(r"class (\w+)\(TorchDispatchMode\)")
    for source in package:
        for constant, text in _texts(source):
            found.update((source.at(constant, f"{name} (text)"), None) for name in as_text.findall(text))
    return list(found)


def closeness(package: Iterable[Source]) -> list[str]:
    """Find modules that compare floating values within a tolerance."""
    calls = {"allclose", "isclose", "assert_close"}
    return [
        str(source.path)
        for source in package
        if any(isinstance(node, ast.Call) and _name(node) in calls for node in source.nodes)
        or any(isinstance(node, ast.arg) and node.arg in ("rtol", "atol") for node in source.nodes)
    ]


def tree_walkers(package: Iterable[Source]) -> list[str]:
    """Find functions that call themselves on the items of containers to reach tensors."""
    found = []
    for source in package:
        for function in source.functions():
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            itself = any(_name(call) == function.name for call in calls)
            asks = [ast.unparse(call) for call in calls if _name(call) == "isinstance"]
            containers = any(_CONTAINERS & set(re.findall(r"\w+", text)) for text in asks)
            if itself and containers and any("Tensor" in text or "Array" in text for text in asks):
                found.append(source.at(function, function.name))
    return found


def _tables(package: Iterable[Source]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the assignments to names of modules: the place with the name, and the value."""
    for source in package:
        for node in source.tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    yield source.at(node, _name(target)), node.value


def compiler_tables(package: Iterable[Source]) -> list[str]:
    """Find tables of modules that are named for compilers or executors and have entries."""
    return [
        place
        for place, value in _tables(package)
        if re.search(r" _?(COMPILERS|EXECUTORS)$", place) and isinstance(value, (ast.Dict, ast.Tuple))
    ]


def dtype_tables(package: Iterable[Source]) -> list[str]:
    """Find tables of modules from device types to dtypes."""
    found = []
    for place, value in _tables(package):
        if isinstance(value, ast.Dict):
            keys = {key.value for key in value.keys if isinstance(key, ast.Constant)}
            text = ast.unparse(value)
            if len(keys & _DEVICE_TYPES) >= 3 and re.search(r"bf16|bfloat16", text):
                found.append(place)
    return found


def child_protocols(package: Iterable[Source]) -> list[str]:
    """Find modules that start a process and read what it writes."""
    found = []
    for source in package:
        for node in source.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run"):
                read = {"stdout", "capture_output"} & {keyword.arg for keyword in node.keywords}
                if (read and "sys.executable" in source.text) or _name(node) == "Popen":
                    found.append(str(source.path))
    return sorted(set(found))


def excuses(package: Iterable[Source]) -> list[str]:
    """Find modules of the runner that read or write which failing cases are excused."""
    words = ("deviations", "baseline", "suggest", "waiver")
    return [str(s.path) for s in package if "runner" in s.path.parts and s.path.stem.startswith(words)]


def who_raised(package: Iterable[Source]) -> list[str]:
    """Find functions that look at the frames or the bytecode of a traceback to say whose an error is."""
    marks = {"tb_next", "tb_lasti", "walk_tb", "extract_tb"}
    return [
        source.at(function, function.name)
        for source in package
        for function in source.functions()
        if marks & {_name(node) for node in ast.walk(function)}
    ]


def reproductions(package: Iterable[Source]) -> list[str]:
    """Find Python that is kept as text: strings of at least three lines which parse, or which have parts of code."""
    found = []
    for source in package:
        for node, text in _texts(source):
            if text.count("\n") >= 3 and _is_code(text):
                found.append(source.at(node, f"{text.count(chr(10))} lines"))
    return found


def _is_code(text: str) -> bool:
    try:
        body = ast.parse(textwrap.dedent(text.strip("\n"))).body
    except SyntaxError:
        return re.search(r"^[ck |]*(def|class|import|from) \w+", text, re.MULTILINE) is not None
    return any(isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)) for node in body)


def interpreters(package: Iterable[Source]) -> list[str]:
    """Find functions of random programs that tell at least three kinds of steps apart with `match`."""
    return [
        source.at(function, function.name)
        for source in package
        if "programs" in source.path.parts
        for function in source.functions()
        if any(isinstance(node, ast.Match) and len(node.cases) >= 3 for node in ast.walk(function))
    ]


def policy_tables(package: Iterable[Source]) -> list[str]:
    """Find the CSV files that have a policy for each op."""
    del package
    found = []
    for path in sorted((ROOT / "ampcheck").rglob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            columns, *lines = csv.reader(file)
        if {"key", "overload", "policy"} <= set(columns):
            found.append(f"{path.relative_to(ROOT)} {len(lines)} rows")
    return found


CONCEPTS: dict[str, tuple[Callable[[Iterable[Source]], list[str]], str]] = {
    "recorders (TorchDispatchMode), in text too": (recorders, "1 with hooks"),
    "modules that say what is close": (closeness, "1 of named tolerances"),
    "walkers of a tree of tensors": (tree_walkers, "0: torch.utils._pytree"),
    "tables of compilers": (compiler_tables, "1"),
    "tables of default dtypes": (dtype_tables, "1 in spec"),
    "modules that start and read processes (child protocols)": (child_protocols, "1"),
    "ways to excuse a case": (excuses, "1"),
    "functions that ask a traceback who raised": (who_raised, "1, by frames"),
    "texts of Python (reproductions)": (reproductions, "0: the check's source"),
    "interpreters of random programs": (interpreters, "0: state machines"),
    "policy tables": (policy_tables, "1 of 732 rows"),
}


# ---- style: figures for a thousand lines


def classes_twice(package: Iterable[Source]) -> dict[str, list[str]]:
    """Return the places of each class name that the package has more than once."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in package:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(source.at(node))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def any_per_thousand(files: Iterable[Source]) -> float:
    """Return how often a thousand lines say `Any`."""
    files = list(files)
    said = sum(token.type == tokenize.NAME and token.string == "Any" for file in files for token in file.tokens())
    return 1000 * said / max(1, sum(file.lines for file in files))


def comments_per_thousand(files: Iterable[Source]) -> float:
    """Return how many comments a thousand lines have, those for linters left out."""
    files = list(files)
    comments = [t.string for file in files for t in file.tokens() if t.type == tokenize.COMMENT]
    said = sum(not re.match(r"# *(noqa|type:)", comment) for comment in comments)
    return 1000 * said / max(1, sum(file.lines for file in files))


def imports_inside(files: Iterable[Source]) -> list[str]:
    """Return the imports inside of functions."""
    return [
        source.at(node, ast.unparse(node))
        for source in files
        for node in {
            id(inner): inner
            for function in source.functions()
            for inner in ast.walk(function)
            if isinstance(inner, (ast.Import, ast.ImportFrom))
        }.values()
    ]


def long_functions(files: Iterable[Source]) -> list[str]:
    """Return the functions of more than `LONG` lines."""
    return [
        source.at(function, function.name)
        for source in files
        for function in source.functions()
        if (function.end_lineno or function.lineno) - function.lineno + 1 > LONG
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print both tables; return 1 where a total is over its limit."""
    parser = argparse.ArgumentParser(description="Count lines of Python and concepts of the package.")
    parser.add_argument("--places", action="store_true", help="list what was counted")
    args = parser.parse_args(arguments)
    over = print_rooms()
    print_concepts(sources("ampcheck"), places=args.places)
    return int(over)


def print_rooms() -> bool:
    """Print the lines of each folder and the totals; return whether a total is over its limit."""
    rooms: Counter[str] = Counter()
    for source in sources(*COUNTED, "scripts"):
        rooms[room(source.path)] += source.lines
    tops = {top: sum(n for name, n in rooms.items() if name.split("/")[0] == top) for top in (*COUNTED, "scripts")}
    for top, lines in tops.items():
        print(f"{lines:7} {top}")
        for name in sorted(name for name in rooms if name.startswith(f"{top}/")):
            print(f"{rooms[name]:11} {name}")
    totals = {"package, suites, tests, bench": sum(tops[top] for top in COUNTED), "tests": tops["tests"]}
    for name, total in totals.items():
        over = f", {total - LIMITS[name]} too many" if total > LIMITS[name] else ""
        print(f"{total:7} {name}: at most {LIMITS[name]}{over}")
    return any(total > LIMITS[name] for name, total in totals.items())


def print_concepts(package: Sequence[Source], *, places: bool) -> None:
    """Print how often the package has each concept, and `places` where."""
    device = [source for source in package if "jax_device" in source.path.parts]
    print("\n| concept | now | target |\n|---|---|---|")
    shown = {concept: find(package) for concept, (find, _) in CONCEPTS.items()}
    for concept, (_, target) in CONCEPTS.items():
        print(f"| {concept} | {len(shown[concept])} | {target} |")
    twice = classes_twice(package)
    shown["class names twice"] = [f"{name}: {', '.join(found)}" for name, found in twice.items()]
    inside = shown["imports inside of functions"] = imports_inside(package)
    long = shown[f"functions over {LONG} lines"] = long_functions(package)
    print(f"| class names twice | {len(twice)} | 0 |")
    print(f"| `Any` per 1000 lines | {any_per_thousand(package):.0f} | 15 |")
    print(f"| `Any` per 1000 lines of jax_device | {any_per_thousand(device):.0f} | 30 |")
    print(f"| comments per 1000 lines | {comments_per_thousand(package):.0f} | 57 to 133 elsewhere |")
    print(f"| imports inside of functions | {len(inside)} | those for start-up |")
    print(f"| functions over {LONG} lines | {len(long)} | 5 |")
    for concept, found in shown.items() if places else ():
        print(f"\n{concept}", *found, sep="\n  ")


if __name__ == "__main__":
    raise SystemExit(main())
