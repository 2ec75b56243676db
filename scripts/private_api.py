"""Write docs/private_api.md: the private names of torch that ampcheck uses, from their table.

`python -m scripts.private_api` writes it. A `torch_private.py` is read, not imported: one of them makes the jax device.
"""

import re
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.spec.private_names import table

PACKAGE = Path(__file__).parents[1] / "ampcheck"
FILE = "torch_private.py"
PAGE = PACKAGE.parent / "docs" / "private_api.md"

_HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_WHEN = {
    "take": "",
    **dict.fromkeys(("call", "module", "package"), "at the call"),
    "attribute": "attribute",
    "optional": "attribute, if there",
}
_TAKEN = re.compile(r"^ *(\w+)(?:: .*)? = NAMES\.\w+\(\s*\"(\S+)\"", re.MULTILINE)
_WITHOUT = re.compile(r'PrivateNames\(\s*"ampcheck\.\w+",\s*without="([^"]+)"')


def files() -> dict[str, Path]:
    """Return every `torch_private.py` by its package, the lowest layer first."""
    found = {path.parent.name: path for path in PACKAGE.rglob(FILE)}
    order = dict.fromkeys(name.package for name in table())
    if set(found) != set(order):
        raise UsageError(f"{FILE} is in {', '.join(sorted(found))}; the table has {', '.join(order)}")
    return {package: found[package] for package in order}


def taken(file: Path) -> dict[str, str]:
    """Return the names that a `torch_private.py` gives to those of torch, by their paths."""
    return {path: ours for ours, path in _TAKEN.findall(file.read_text(encoding="utf-8"))}


def page() -> str:
    """Return the text of docs/private_api.md."""
    parts = [_HEAD]
    for package, file in files().items():
        ours = taken(file)
        names = sorted((n for n in table() if n.package == package), key=lambda name: name.path)
        (without,) = _WITHOUT.findall(file.read_text(encoding="utf-8"))
        parts.append(f"## `ampcheck.{package}`\n\nOf {len(names)} names: {without}.\n")
        here = {n.path: f"`{ours[n.path]}`" if n.path in ours else "" for n in names}
        rows = [f"| `{n.path}` | {here[n.path]} | {n.need} | {_WHEN[n.how]} |" for n in names]
        parts.append("\n".join(["| of torch | here | needed for | how |", "|---|---|---|---|", *rows]))
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
