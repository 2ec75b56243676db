"""Count how much of what a user of torch can call the cases call.

The surface is every public callable of `SPACES`, once, whatever names it has. Those that take and give no tensor,
module, optimizer or loss scaler are not counted; `ampcheck/samples/surface.txt` says which, by kind.
"""

import ast
import inspect
import sys
import tomllib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from tabulate import tabulate

from ampcheck.checks.relations import SHOWN, forms
from ampcheck.runner.run import suites_folder
from ampcheck.samples import op_database, surface
from ampcheck.samples.torch_testing import internal

_TABLE = Path(__file__).with_name("walked.toml")
SPACES: tuple[str, ...] = tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["spaces"])
"""What is walked, below torch."""
HOW = ("op database", "scenario", "program of relations")
"""How something is called: by an op of PyTorch's database in one of its forms, or by name."""
NOT = "not exercised"


def walked() -> Iterator[tuple[object, list[str]]]:
    """Yield each public callable and its names."""
    found: dict[int, tuple[object, list[str]]] = {}  # which hold it, so that no other object gets its identity
    for space in SPACES:
        home = _resolved(space)
        for name in getattr(home, "__all__", None) or [name for name in dir(home) if not name.startswith("_")]:
            # A deprecated name may raise whatever it likes.
            with warnings.catch_warnings(action="ignore"), suppress(Exception):
                value = getattr(home, name)
                own = str(getattr(value, "__module__", None) or "torch").startswith("torch")
                builtin = inspect.isbuiltin(value) or home is torch.Tensor
                if callable(value) and not inspect.ismodule(value) and not name.startswith("_") and (own or builtin):
                    found.setdefault(id(value), (value, []))[1].append(f"{space}.{name}".lstrip("."))
    yield from found.values()


def _resolved(name: str, found: Any = torch) -> Any:
    """Return what a name below torch, or below what is given, is; None where this torch lacks it."""
    for part in filter(None, name.split(".")):
        if not hasattr(found, part) and isinstance(found, ModuleType):
            with suppress(ImportError):
                import_module(f"{found.__name__}.{part}")
        found = getattr(found, part, None)
    return found


def exercised() -> dict[int, tuple[str, object]]:
    """Return how the cases call something, the first way of `HOW`, and the thing, by its identity."""
    found: dict[int, tuple[str, object]] = {}

    def note(how: str, values: Collection[object]) -> None:
        for value in values:
            if value is not None:
                found.setdefault(id(value), (how, value))

    database = internal("common_methods_invocations").op_db
    database = [info for info in database if torch.float32 in info.supported_dtypes("cpu")]
    for info in database:
        note(HOW[0], [info.op, info.method_variant, info.inplace_variant])
    note("scenario", [getattr(torch.optim, name) for name in torch.optim.__all__])  # the scaler's cases are of each
    for path in suites_folder().rglob("*.py"):
        note("scenario", list(_named(ast.parse(path.read_text(encoding="utf-8")))))
    for line in surface.lines():
        if line.kind == ":" and ("NAME" in line.text or _is_called(line)):
            note("program of relations", [_resolved(line.name)])
    for info in database:
        others = [form.function for form in forms(info) if id(form.function) not in found]
        note(HOW[0], [form for form in others if _runs(info, form)])
    return found


def _runs(info: Any, form: Callable[..., object]) -> bool:
    """Return whether a form of an op of the database takes one of its samples, as the relations give it."""
    for sample in op_database.samples(info, "fp32", "cpu", SHOWN):
        with suppress(Exception):  # a form may refuse it in any way
            form(sample.input, *sample.args, **sample.kwargs)
            return True
    return False


def _named(tree: ast.Module) -> Iterator[object]:
    """Yield what the code of a suite file calls, or hands on, of torch."""
    known: dict[str, object] = {}
    for line in tree.body:
        home = f"{line.module}." if isinstance(line, ast.ImportFrom) else ""
        for alias in line.names if isinstance(line, ast.Import | ast.ImportFrom) else ():
            path = f"{home}{alias.name}" if alias.asname or home else alias.name.partition(".")[0]
            if path.partition(".")[0] == "torch":
                known[alias.asname or alias.name.partition(".")[0]] = _resolved(path[6:])
    hints = {id(part) for node in ast.walk(tree) for hint in _hints(node) for part in ast.walk(hint)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in hints:
            root, _, rest = ast.unparse(node).partition(".")
            yield _resolved(rest, known.get(root))


def _hints(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the annotations of a node, and what is compared with `isinstance`: nothing is called there."""
    for name in ("annotation", "returns"):
        if isinstance(found := getattr(node, name, None), ast.AST):
            yield found
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        yield node


def _is_called(line: surface.SurfaceLine) -> bool:
    """Tell whether a program calls what it does not name, or an instance of it."""
    wanted, seen = _resolved(line.name), False
    if wanted is None:
        return False
    code = getattr(inspect.unwrap(wanted), "__code__", None)

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal seen
        if event == "call":
            held = [frame.f_locals.get(name) for name in frame.f_code.co_varnames[:1]]
            mine = isinstance(wanted, type) and any(isinstance(x, wanted) or x is wanted for x in held)
            seen = seen or frame.f_code is code or mine
        elif event == "c_call":
            seen = seen or arg is wanted

    given = surface.inputs(lambda *shape: torch.rand(shape) + 0.05)
    sys.setprofile(profile)
    try:
        result = surface.evaluate(line.text, given)
    finally:
        sys.setprofile(None)
    results = result if isinstance(result, tuple) else (result,)
    return seen or (isinstance(wanted, type) and any(isinstance(x, wanted) for x in results))


@dataclass(frozen=True, slots=True)
class Surface:
    """What the cases call of the public callables of the installed torch.

    `rows`: by space and way of `HOW`, or "not exercised", how many. `missing`, `apart`: by reason, the names of those
    that no case calls, and of those that are not counted.
    """

    rows: dict[str, dict[str, int]]
    missing: dict[str, list[str]]
    apart: dict[str, list[str]]

    def sentence(self) -> str:
        """Return the one figure."""
        total = sum(sum(row.values()) for row in self.rows.values())
        share = 1 - sum(map(len, self.missing.values())) / total
        version, others = torch.__version__.partition("+")[0], sum(map(len, self.apart.values()))
        return (
            f"The cases call {share:.1%} of the {total} public callables of torch {version} that take or give tensors, "
            f"modules, optimizers or loss scalers. {others} others take and give none and are not counted."
        )

    def fields(self) -> dict[str, object]:
        """Return the figure and what is not exercised as JSON data, which `ampcheck report` shows."""
        return {"sentence": self.sentence(), "missing": self.missing}

    def table(self, list_open: bool, style: str = "simple") -> str:
        """Return the figure, the ways by space, and what is not exercised. `list_open`: what is not counted, too."""
        columns = [*HOW, NOT]
        body = [[space, *(row.get(how, 0) for how in columns)] for space, row in self.rows.items()]
        body.append(["all", *map(sum, zip(*(row[1:] for row in body), strict=True))])
        lists = [f"- Not exercised ({why}): {', '.join(names)}" for why, names in self.missing.items()]
        if list_open:
            lists += [f"- Not counted ({why}): {', '.join(names)}" for why, names in self.apart.items()]
        return "\n\n".join([self.sentence(), tabulate(body, ["space", *columns], style), "\n".join(lists)])


def count() -> Surface:
    """Count the surface of the installed torch."""
    with warnings.catch_warnings(action="ignore"):  # what is deprecated is called, too
        reached = exercised()
    reasons = [line for line in surface.lines() if line.kind != ":"]
    rows: dict[str, Counter[str]] = {space or "torch": Counter() for space in SPACES}
    missing, apart = defaultdict(list), defaultdict(list)
    for value, names in walked():
        how, _ = reached.get(id(value), (NOT, None))
        if how == NOT:
            line = next((x for x in reasons if any(_fits(name, x.name) for name in names)), None)
            if line is not None and line.kind == "!":
                apart[line.text].append(names[0])
                continue
            missing[line.text if line else "nothing calls it"].append(names[0])
        rows[names[0].rpartition(".")[0] or "torch"][how] += 1
    held = ({why: sorted(names) for why, names in sorted(found.items())} for found in (missing, apart))
    return Surface({space: dict(row) for space, row in rows.items() if row}, *held)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a name fits a pattern, in which a * stands for any letters within one part of a dotted name."""
    return name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
