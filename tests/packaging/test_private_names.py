"""No module of ampcheck uses a private name of another one."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "ampcheck").rglob("*.py"))


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def uses(source: str) -> list[int]:
    """The lines on which a module imports a private name of ampcheck, or asks a module of ampcheck for one."""
    tree, modules, lines = ast.parse(source), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ampcheck":
            lines += [node.lineno for name in node.names if private(name.name)]
            modules |= {
                name.asname or name.name
                for name in node.names
                if (ROOT / str(node.module).replace(".", "/") / f"{name.name}.py").exists()
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            lines += [node.lineno] * private(node.attr)
    return lines


def test_private_names_stay_where_they_are() -> None:
    assert [f"{path}:{line}" for path in FILES for line in uses(path.read_text(encoding="utf-8"))] == []


def test_a_use_is_seen() -> None:
    assert uses("from ampcheck.runner.results import _FIELDS") == [1]
    assert uses("from ampcheck.runner import results\nresults._FIELDS, results.FIELDS, other._FIELDS") == [2]
