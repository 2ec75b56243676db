"""Each function that is the lowering of an op says the types of its parameters: arrays, numbers, sequences."""

from __future__ import annotations

import ast
from pathlib import Path

import ampcheck

FOLDER = Path(ampcheck.__file__).parent / "jax_device" / "lowerings"


def _lowered(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Call) and isinstance(d.func, ast.Name) and d.func.id == "lower" for d in node.decorator_list
    )


def test_no_parameter_is_of_any_type() -> None:
    found, count = [], 0
    for path in sorted(FOLDER.glob("*.py")):
        for node in filter(_lowered, ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
            assert isinstance(node, ast.FunctionDef)
            count += 1
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            types = {a.arg: ast.unparse(a.annotation) if a.annotation else "Any" for a in given}
            types["return"] = ast.unparse(node.returns) if node.returns else "Any"
            found += [f"{path.name}:{node.lineno}: {name}: {type_}" for name, type_ in types.items() if "Any" in type_]
    assert count > 150
    assert not found
