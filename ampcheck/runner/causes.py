"""What red cases have in common: one text for all that are red for one reason, the frames of who raised, and groups.

Needs no torch, so that the parent process of `ampcheck run` and the reports can use it.
"""

from __future__ import annotations

import dis
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from ampcheck.runner.results import RED, Result

# ---- normalised messages

_VARYING = (
    r"(?P<op>\b(?:aten|prims?|torch\.ops)::[\w.]+|\btorch\.(?!Size\b)[\w.]*\w|\"\w+\"(?= not implemented for))"
    r"|(?P<shape>(?:torch\.Size)?[\[(]\s*(?:-?\d+\s*(?:,\s*-?\d+\s*)*,?)?\s*[\])]|\b\d+x\d+(?:x\d+)*\b)"
    r"|(?P<address>\b0x[0-9a-fA-F]+)"
    r"|(?P<dtype>\b(?:fp8e4m3|fp8e5m2|fp16|bf16|fp32|fp64|complex\d+|u?int\d+|b?float\d+|bool|None"
    r"|(?:CPU|CUDA|PrivateUse1)?(?:BFloat16|Half|Float|Double|Long|Int|Short|Char|Byte|Bool)(?:Type|Tensor)?"
    r"|c10::\w+)\b)"
    r"|(?P<index>(?<=[A-Za-z]):\d+\b)"
    r"|(?P<number>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
)


@cache
def varying(op: str) -> re.Pattern[str]:
    """Return what differs between two failures of one kind: ops, shapes, addresses, dtypes, device indices and numbers.

    `op`: the overload of the case, or ""; its name is found where it is a word of a text, too.
    """
    name = op.partition(".")[0].rstrip("_")
    own = rf"(?<![\w.:]){re.escape(name)}_?(?:\.\w+)?(?!\w)|" if name else ""
    return re.compile(own + _VARYING)


_FOLDER = re.compile(r"(?<![\w/.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'\":]+[/\\])+")
_RUN = re.compile(r"…(?:[\s,'\"=]+…)+")
_RULE = re.compile(r"\s*\(rule \w+: (?:[^()]|\([^()]*\))*\)")
_VALUES = re.compile(r": got .+; expected .+")
_INNER = re.compile(r"\w*(?:Error|Exception): \S")
_MOST = 300

MISSING = "missing: the manifest lists it, but it did not run"
"""The cause of every case that is missing."""


def normalised(text: str, op: str = "") -> str:
    """Return a text as one line, with "…" for what varies between cases; `op` as for `varying`."""
    text = _FOLDER.sub("", " ".join(text.split()))
    text = _RUN.sub("…", varying(op).sub("…", text))
    return text if len(text) <= _MOST else f"{text[:_MOST]} …"


def text(
    status: str, message: str, rule: str, op: str = "", error: BaseException | None = None, where: str = ""
) -> str:
    """Return the cause of a red case.

    Args:
        status: of the case.
        message: its differences, a line each.
        rule: its rule, which belongs to the cause where nothing was raised.
        op: its overload.
        error: what was raised, where something was.
        where: the frame of the backend that ended the process, where one did.
    """
    if error is None:
        first = _RULE.sub("", message.partition("\n")[0]).strip()
        found = normalised(_VALUES.sub(": got …; expected …", first), op) or "no message"
        place = where or ("" if status in ("crash", "timeout", "fixed") else f"rule {rule}")
    else:
        lines = str(error).strip().splitlines()
        # TorchScript and Dynamo put what was raised inside of their program on the last line.
        inner = lines[-1].strip() if len(lines) > 1 and _INNER.match(lines[-1].strip()) else str(error)
        found = normalised(f"{type(error).__name__}: {inner}", op)
        place = frame(error)
    return f"{status}: {found}" + (f" ({place})" if place else "")


# ---- whose a frame is

_PACKAGE = Path(__file__).resolve().parents[1]
_UNDER_TEST = tuple(str(_PACKAGE / part) for part in ("jax_device", "register"))
"""Parts of this package that are a backend under test or its autocast kernels."""
_SUITES = (str(_PACKAGE / "suites"), str(_PACKAGE.parent / "suites"))
_RUNNERS = ("pytest", "_pytest", "pluggy", "xdist", "hypothesis")
_LIBRARIES = ("numpy", "jax", "jaxlib")
"""Libraries that ampcheck itself calls, and backends do: a frame of theirs says nothing of who is to blame."""


@cache
def _places() -> dict[str, tuple[str, ...]]:
    """Return the folders and files of the packages that are told apart, by owner. None of them is imported."""
    return {
        "torch": _found(("torch", "functorch")),
        "runner": _found(_RUNNERS),
        "library": _found(_LIBRARIES),
    }


def _found(names: Iterable[str]) -> tuple[str, ...]:
    specs = [spec for name in names if (spec := find_spec(name))]
    return tuple(
        str(Path(place))
        for spec in specs
        for place in (spec.submodule_search_locations or [spec.origin or ""])
        if place
    )


@cache
def owner(file: str) -> str:
    """Return whose code a file is: "case", "ampcheck", "torch", "runner" (pytest's), "library", or else "backend".

    Code without a file is a program that a case made, or Python's own.
    """
    if not file or file.startswith("<"):
        return "library" if file.startswith("<frozen") else "case"
    if _inside(file, _UNDER_TEST):
        return "backend"
    if _inside(file, _SUITES):
        return "case"
    if _inside(file, (str(_PACKAGE),)):
        return "ampcheck"
    for name, places in _places().items():
        if _inside(file, places):
            return name
    installed = re.search(r"[/\\](?:site|dist)-packages[/\\]", file)
    standard = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"])
    return "library" if _inside(file, standard) and not installed else "backend"


def _inside(file: str, places: Sequence[str]) -> bool:
    return any(file == place or file.startswith((place + "/", place + "\\")) for place in places)


def _frames(error: BaseException) -> Iterator[tuple[str, TracebackType]]:
    """Yield the frames of a traceback, the outermost first, each with its owner."""
    at = error.__traceback__
    while at is not None:
        yield owner(at.tb_frame.f_code.co_filename), at
        at = at.tb_next


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from or while handling."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


def frame(error: BaseException) -> str:
    """Return the backend's innermost frame as "file.py in function"; "" where an exception's chain has none."""
    for one in chain(error):
        own = [at for whose, at in _frames(one) if whose == "backend"]
        if own:
            code = own[-1].tb_frame.f_code
            return f"{Path(code.co_filename).name} in {code.co_qualname}"
    return ""


def raised_by(error: BaseException) -> str:
    """Return who raised an exception: "backend", "torch", "case", "runner" (pytest), or "ampcheck" by itself.

    A backend is where it has a frame anywhere, even if it called ampcheck's recorder back and that raised.
    """
    frames = list(_frames(error))
    if any(whose == "backend" for whose, _ in frames):
        return "backend"
    called_library = bool(frames) and frames[-1][0] == "library"
    while frames and frames[-1][0] == "library":
        frames.pop()
    whose = frames[-1][0] if frames else "ampcheck"
    if whose == "ampcheck" and not called_library and frames and _raised_by_torch(error, frames[-1][1]):
        return "torch"
    return whose


def _raised_by_torch(error: BaseException, at: TracebackType) -> bool:
    """Return whether what a frame of ampcheck called, and has no frame of its own, is PyTorch's C++.

    PyTorch's C++ raises RuntimeError unless it chose another kind; of the others it is to blame where the expression
    that raised has a value of PyTorch's in it.
    """
    code = at.tb_frame.f_code
    if dis.opname[code.co_code[at.tb_lasti]] in ("RAISE_VARARGS", "RERAISE", "LOAD_ASSERTION_ERROR"):
        return False
    if isinstance(error, RuntimeError):
        return True
    known = {**at.tb_frame.f_globals, **at.tb_frame.f_locals}
    return any(_of_torch(known.get(name)) for name in re.findall(r"[A-Za-z_]\w*", _expression(at)))


def _expression(at: TracebackType) -> str:
    """Return the source of the expression that raised in a frame; "" where it is not known."""
    code = at.tb_frame.f_code
    first, last, start, end = list(code.co_positions())[at.tb_lasti // 2]
    if first is None or last is None:
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    if first == last:
        return lines[0].encode()[start:end].decode(errors="ignore")
    return "".join(lines)


def _of_torch(value: Any) -> bool:
    """Return whether a value is PyTorch's: a tensor, a module, class or function of it, or a list of such."""
    if isinstance(value, (tuple, list)):
        return any(map(_of_torch, value))
    kinds = (*type(value).__mro__, *(value.__mro__ if isinstance(value, type) else ()))
    own = getattr(value, "__self__", None)  # of a function that C++ wrote
    names = [getattr(kind, "__module__", "") for kind in (*kinds, own, value)] + [getattr(value, "__name__", "")]
    return any(isinstance(name, str) and name.partition(".")[0] == "torch" for name in names)


# ---- tracebacks

_MOST_FRAMES = 40
_MOST_TEXT = 8000


def trimmed(error: BaseException) -> str:
    """Return the traceback of an exception and of those it was raised from, without the frames that lead to the case.

    The first frame is the first outside of ampcheck and pytest, or the line of a scenario that made the call. At most
    40 frames of each exception and 8000 characters are kept, the innermost frames among them.
    """
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    waiting = [whole]
    while waiting:
        part = waiting.pop()
        frames = list(part.stack)[_first([owner(summary.filename) for summary in part.stack]) :]
        part.stack = traceback.StackSummary.from_list(frames[:10] + frames[10:][-(_MOST_FRAMES - 10) :])
        waiting += [inner for inner in (part.__cause__, part.__context__) if inner is not None]
    text = "".join(whole.format()).rstrip()
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[: _MOST_TEXT // 4]}\n  […]\n{text[-_MOST_TEXT * 3 // 4 + 10 :]}"


def _first(owners: Sequence[str]) -> int:
    """Return the place of the first frame to keep."""
    for place, whose in enumerate(owners):
        if whose in ("backend", "torch"):
            return place - 1 if place and owners[place - 1] == "case" else place
    if owners and owners[-1] == "case":
        return len(owners) - 1
    return next((place for place, whose in enumerate(owners) if whose in ("case", "ampcheck")), 0)


# ---- groups


@dataclass(frozen=True, slots=True)
class Cause:
    """The red cases of one reason. `example`: the one whose reproduction is shortest."""

    text: str
    results: tuple[Result, ...]

    def line(self, width: int = 200) -> str:
        """Return the text, its message cut where it is wider than a line of a terminal or a cell of a table may be."""
        said, opened, place = self.text.rpartition(" (") if self.text.endswith(")") else (self.text, "", "")
        room = width - len(opened + place)
        return (said if len(said) <= room else f"{said[: room - 1].rstrip()}…") + opened + place

    @property
    def example(self) -> Result:
        return min(self.results, key=lambda r: (not r.torch, bool(r.compiler), len(r.torch), r.key))


def of(result: Result) -> str:
    """Return the cause of a red result, which a run file of an earlier version does not hold."""
    missing = MISSING if result.status == "missing" else ""
    return result.cause or missing or text(result.status, result.message, result.rule, result.op)


def grouped(results: Iterable[Result]) -> list[Cause]:
    """Return the causes of the red cases among some results, that of most cases first."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.status in RED:
            found.setdefault(of(result), []).append(result)
    causes = [Cause(text, tuple(members)) for text, members in found.items()]
    return sorted(causes, key=lambda cause: (-len(cause.results), cause.text))
