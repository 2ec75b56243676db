"""Write docs/api.md: what users import, with its signatures and docstrings. `python -m scripts.api_page` writes it.

The files are read, not imported: one of them makes the jax device.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from ampcheck.errors import UsageError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PUBLIC: dict[str, list[str]] = _TABLE["public"]
Definition = ast.FunctionDef | ast.ClassDef


def page() -> str:
    """Return the text of the page."""
    parts = [_TABLE["head"]]
    for module, names in PUBLIC.items():
        parts.append(f"## `{module}`\n")
        for name in names:
            node = definition(module, name)
            parts.append(_entry(f"{module}.{name}", node, "###"))
            if isinstance(node, ast.ClassDef):
                parts += [_entry(one.name, one, "####") for one in _methods(node)]
    return "\n".join(parts)


def definition(module: str, name: str) -> Definition:
    """Return a function or a class of a module, or of the module that it takes it from. Raises UsageError for none."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, Definition)
            and node.name == name
            and "overload" not in map(ast.unparse, node.decorator_list)
        ):
            return node
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return definition(node.module, name)
    raise UsageError(f"{module} has no {name}; mend scripts/api_page.toml")


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
            yield one


def _entry(name: str, node: Definition, level: str) -> str:
    docstring = ast.get_docstring(node)
    if docstring is None:
        raise UsageError(f"{name} has no docstring, which docs/api.md is made of")
    if isinstance(node, ast.FunctionDef):
        plain = "property" in map(ast.unparse, node.decorator_list)
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        name += "" if plain else f"({re.sub(r'^(self|cls)(, |$)', '', ast.unparse(node.args))}){returns}"
    return f"{level} `{name}`\n\n{_markdown(inspect.cleandoc(docstring))}\n"


def _markdown(text: str) -> str:
    """Turn the indented names of a section such as `Args:` into a list; other indented lines are code as they are."""
    text = re.sub(
        r"^(?:Args|Attributes|Raises):\n(?:    .*\n?|\n)+",
        lambda section: (
            re.sub(r"^    ", "", re.sub(r"^    (?=\S)", "    - ", section[0], flags=re.M), flags=re.M)
            .replace(":\n", ":\n\n", 1)
            .rstrip("\n")
            + "\n\n"
        ),
        text,
        flags=re.MULTILINE,
    )
    return text.rstrip("\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
