"""Read autocast lists from C++ source that registers them with the macros of PyTorch's ATen/autocast_mode.h."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import UNKNOWN

_POLICIES = {"lower_precision_fp": "downcast", "fp32": "upcast", "promote": "promote"}
_POLICIES |= {"fp32_set_opt_dtype": "optdtype", "fp32_append_dtype": "append"}
_POLICY = rf"(?:{'|'.join(_POLICIES)})"
_DEPTH = 6
"""How deep macros are expanded in one another; one that names itself would be expanded for ever."""
_IGNORED = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*if 0\b.*?^[ \t]*#[ \t]*e\w+', re.S | re.M)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)$", re.M)
_BLOCK = re.compile(r"TORCH_LIBRARY_IMPL\(\s*(\w+)\s*,\s*(\w+)\s*,\s*\w+\s*\)")
_REGISTRATION = re.compile(
    rf"\bKERNEL\w*\(\s*(?:[\w:]+::\w+,\s*)?(?P<op>\w+)(?:\s*,\s*(?P<overload>\w+))?\s*,\s*(?P<policy>{_POLICY})\s*\)"
    rf'|\bKERNEL\w*\([^";]*?"(?P<name>[\w.]+)"[^;"]*?,\s*(?P<cast>{_POLICY})\s*\)'
    r'|\bm\.impl\([^"]*"(?:aten::)?(?P<impl>[\w.]+)"(?P<kernel>[^;]*);'
    r"|\b(?P<macro>_?[A-Z][A-Z0-9_]{3,})\("
)


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the policy of each aten overload that a file registers, by autocast dispatch key.

    Macros are those of the file and, for the AT_FORALL_ lists, of the installed torch's header. A kernel of the file's
    own is `UNKNOWN`, unless its name says that it bans the op. Both sides of an `#if` are read, but for `#if 0`.
    Raises UsageError for a file that cannot be read, or that registers by a macro that is not understood.
    """
    try:
        text = _plain(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"the C++ source {path} cannot be read: {error.strerror}") from error
    header = _plain((Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8"))
    macros = {name: (given, body) for name, given, body in _DEFINE.findall(header) if name.startswith("AT_FORALL")}
    for name, given, body in _DEFINE.findall(text):
        if not name.startswith("KERNEL") or re.search(rf"\b{_POLICY}\b", body):
            macros[name] = given, body
    call = re.compile(rf"\b({'|'.join(macros)})\(([^()]*)\)")
    text = _DEFINE.sub("", text)
    for _ in range(_DEPTH):
        text = call.sub(lambda found: _expanded(*macros[found[1]], found[2]), text)
    _, *parts = _BLOCK.split(text)
    out: dict[str, dict[str, str]] = {}
    for library, key, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if library == "aten" and key.startswith("Autocast"):
            block, *_ = re.split(r"^\s*\}", body, maxsplit=1, flags=re.M)
            out.setdefault(key, {}).update(_registered(block, path))
    return out


def _plain(text: str) -> str:
    """Return C++ without comments and continued lines."""
    return _IGNORED.sub(lambda found: found[1] or " ", re.sub(r"\\\r?\n", " ", text))


def _expanded(given: str, body: str, args: str) -> str:
    names = [name.strip() for name in given.split(",")]
    values = dict(zip(names, args.split(","), strict=False)) | ({"__VA_ARGS__": args} if names == ["..."] else {})
    return re.sub(r"\w+", lambda word: values.get(word[0], word[0]), body)


def _registered(body: str, path: Path) -> Iterator[tuple[str, str]]:
    for found in _REGISTRATION.finditer(body):
        if found["impl"]:
            cast = re.search(rf"\bCastPolicy::({_POLICY})\b", found["kernel"])
            own = "banned" if re.search(r"_(banned|not_supported)\b", found["kernel"]) else UNKNOWN
            yield found["impl"], _POLICIES[cast[1]] if cast else own
        elif found["macro"]:
            raise UsageError(
                f"{path} registers by the macro {found['macro']}, which cannot be read; what can be is "
                "m.impl, PyTorch's KERNEL_ macros and its AT_FORALL_ lists"
            )
        else:
            name = found["name"] or ".".join(filter(None, (found["op"], found["overload"])))
            yield name, _POLICIES[found["policy"] or found["cast"]]
