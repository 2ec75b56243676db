"""Rewrites of torch.cuda.amp, torch.cpu.amp and of questions for the state, at the positions that ast gives."""

import ast
import re
import tokenize
from collections.abc import Collection
from itertools import accumulate
from pathlib import Path

from ampcheck.tools.lint.names import OLD_OPTIONS, Names, region
from ampcheck.tools.lint.static import Read, texts
from ampcheck.tools.lint.training import CUDA, DEPRECATED, VERSION, guarded

_QUESTIONS = {
    "torch.get_autocast_cpu_dtype": ("get_autocast_dtype", "cpu"),
    "torch.get_autocast_gpu_dtype": ("get_autocast_dtype", "cuda"),
    "torch.is_autocast_cpu_enabled": ("is_autocast_enabled", "cpu"),
    "torch.is_autocast_enabled": ("is_autocast_enabled", "cuda"),
}
"""Functions without arguments, and the one that is given the device type that each asks for."""


def fix_files(paths: Collection[Path], read: Read) -> int:
    """Rewrite files in place and return how many changed. Those that `read` excludes stay."""
    changed = 0
    for file, text in texts(paths, Read(exclude=read.exclude)):
        fixed = fix_source(text)
        if fixed != text:
            with file.open("rb") as opened:
                encoding, _ = tokenize.detect_encoding(opened.readline)
            newline = "\r\n" if b"\r\n" in file.read_bytes() else "\n"
            file.write_text(fixed, encoding=encoding, newline=newline)
            changed += 1
    return changed


def fix_source(text: str) -> str:
    """Return the text with torch.amp in place of what it replaced.

    The text stays as it is where a use is no call, or is meant for an older torch.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    names = Names(tree)
    starts = [0, *accumulate(map(len, text.encode().splitlines(keepends=True)))]
    edits: list[tuple[int, int, str]] = []  # in bytes, as ast counts columns

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return starts[node.lineno - 1] + node.col_offset, end

    def insert(position: int, new: str) -> None:
        edits.append((position, position, new))

    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    decorators = {one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or names.dotted(node) not in DEPRECATED:
            continue
        dotted = names.dotted(node)
        if (node not in called and node not in decorators) or guarded(names, node, VERSION):
            return text
        if ast.unparse(node).startswith("torch."):
            edits.append((*span(node), f"torch.amp.{dotted.rpartition('.')[2]}"))
        if node in decorators and node not in called:
            insert(span(node)[1], f'(device_type="{dotted.split(".")[1]}")')
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and names.dotted(node.func) in DEPRECATED:
            _, device, _, name = names.dotted(node.func).split(".")
            if name == "autocast":
                for option, argument in zip(OLD_OPTIONS, node.args, strict=False):
                    insert(span(argument)[0], f"{option}=")
            opening = text.encode().index(b"(", span(node.func)[1]) + 1
            first = f'"{device}"' if name in ("autocast", "GradScaler") else f'device_type="{device}"'
            if name.startswith("custom") and node.args:
                return text
            insert(opening, first + (", " if node.args or node.keywords else ""))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            start, end = span(node)
            old = text.encode()[start:end].decode()
            new = re.sub(r"\btorch\.(cuda|cpu)\.amp\b", "torch.amp", old)
            new = re.sub(r"^from torch\.(cuda|cpu) import amp\b", "from torch import amp", new)
            if new != old and _whole(node):
                edits.append((start, end, new))
            elif new != old and isinstance(node, ast.ImportFrom):
                return text
        if isinstance(node, ast.Call) and _asks_rightly(names, node):
            assert isinstance(node.func, ast.Attribute)
            named, device = _QUESTIONS[names.dotted(node.func)]
            end = span(node.func)[1]
            if (empty := re.match(rb"\(\s*\)", text.encode()[end:])) is not None:
                edits.append((end - len(node.func.attr), end + len(empty[0]), f'{named}("{device}")'))
    out = text.encode()
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1] != edit[0]), reverse=True):
        out = out[:start] + new.encode() + out[end:]
    return out.decode()


def _asks_rightly(names: Names, call: ast.Call) -> bool:
    """Return whether a call asks for the state of a device type that it does not name, but that is meant.

    Where another one may be meant the call stays: it is the mistake state-of-cuda, which naming "cuda" would hide.
    """
    name = names.dotted(call.func)
    if name not in _QUESTIONS or not isinstance(call.func, ast.Attribute) or guarded(names, call, VERSION):
        return False
    if _QUESTIONS[name][1] == "cpu" or guarded(names, call, CUDA):
        return True
    made = [one for node in ast.walk(names.tree) if isinstance(node, ast.Call) and (one := region(names, node))]
    return bool(made) and all(one.device.constant and one.device.value == "cuda" for one in made)


def _whole(node: ast.Import | ast.ImportFrom) -> bool:
    """Return whether torch.amp has all that a statement imports."""
    if isinstance(node, ast.Import):
        return len(node.names) == 1
    known = {"autocast", "GradScaler", "custom_fwd", "custom_bwd", "amp", "autocast_mode", "grad_scaler"}
    return all(alias.name in known for alias in node.names) and (node.module != "torch.cuda" or len(node.names) == 1)
