"""Write docs/private_api.md: the private names of torch that ampcheck uses, from the files `torch_private.py`.

`python -m scripts.private_api` writes it. The files are read, not imported: one of them makes the jax device.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ampcheck.errors import UsageError

PACKAGE = Path(__file__).parents[1] / "ampcheck"
FILE = "torch_private.py"
PAGE = PACKAGE.parent / "docs" / "private_api.md"

_HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


class Name(NamedTuple):
    """A private name. `ours`: the name it has in ampcheck, empty for an attribute. `when`: how it is looked up."""

    path: str
    ours: str
    need: str
    when: str


class File(NamedTuple):
    """A `torch_private.py`: its package, what does not work without its names, and the names."""

    package: str
    without: str
    names: tuple[Name, ...]


_WHEN = {
    "take": "",
    "call": "at the call",
    "module": "at the call",
    "package": "at the call",
    "attributes": "attribute",
    "optional": "attribute, if there",
}


def files() -> list[File]:
    """Every `torch_private.py`, the lowest layer first."""
    found = {path.parent.name: path for path in PACKAGE.rglob(FILE)}
    order = ("spec", "register", "jax_device", "samples", "observe", "torchscript", "tools", "bench")
    if set(found) != set(order):
        raise UsageError(f"{FILE} is in {', '.join(sorted(found))}; scripts/private_api.py lists {order}")
    return [read(found[name]) for name in order]


def read(path: Path) -> File:
    """Read the names that a `torch_private.py` declares. Raises UsageError for one that is not written as a literal."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and node.value is not None:
            ours[node.value] = target.id
    made = next(call for call, name in ours.items() if name == "NAMES" and isinstance(call, ast.Call))
    about = {k.arg: ast.literal_eval(k.value) for k in made.keywords}
    names: list[Name] = []
    for call in ast.walk(tree):
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and isinstance(method, ast.Attribute) and method.attr in _WHEN:
            names += _declared(path, call, method.attr, ours.get(call, ""))
    return File(ast.literal_eval(made.args[0]), about["without"], tuple(sorted(names)))


def _declared(path: Path, call: ast.Call, method: str, ours: str) -> Iterator[Name]:
    try:
        given = [ast.literal_eval(argument) for argument in call.args]
        named = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg != "of"}
    except ValueError as error:
        raise UsageError(f"{path}:{call.lineno}: names and reasons are written as literals") from error
    if "need" in named:
        for attribute in given[1:]:
            yield Name(f"{given[0]}.{attribute}", "", named["need"], _WHEN[method])
    else:
        yield Name(given[0], ours, given[1], _WHEN[method])


def page() -> str:
    """Return the text of docs/private_api.md."""
    parts = [_HEAD]
    for file in files():
        parts.append(f"## `{file.package}`\n\nOf {len(file.names)} names: {file.without}.\n")
        rows = [f"| `{n.path}` | {f'`{n.ours}`' if n.ours else ''} | {n.need} | {n.when} |" for n in file.names]
        parts.append("\n".join(["| of torch | here | needed for | how |", "|---|---|---|---|", *rows]))
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
