"""Say whose code raised an exception, by the files of its traceback's frames, and keep the frames that matter.

Needs no torch, so that the parent process of `ampcheck run` can use it.
"""

import ast
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from ampcheck.errors import HarnessError

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
    return {"torch": _found(("torch", "functorch")), "runner": _found(_RUNNERS), "library": _found(_LIBRARIES)}


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

    A backend is to blame wherever it has a frame, even if it called ampcheck's recorder back and that raised. Where
    the last frame is ampcheck's, PyTorch's C++, which has no frames, may have raised below it. It is to blame for each
    RuntimeError, as ampcheck raises none: its own mistakes are HarnessErrors, or what Python raises. It is to blame for
    any other exception, such as an IndexError, where the expression that raised calls a function of PyTorch that is not
    written in Python, or indexes or computes with a tensor.
    """
    frames = list(_frames(error))
    if any(whose == "backend" for whose, _ in frames):
        return "backend"
    called_library = bool(frames) and frames[-1][0] == "library"
    while frames and frames[-1][0] == "library":
        frames.pop()
    if not frames:
        return "ampcheck"
    whose = frames[-1][0]
    if whose != "ampcheck" or called_library or isinstance(error, (HarnessError, RecursionError)):
        return whose
    return "torch" if isinstance(error, RuntimeError) or _asks_torch(frames[-1][1]) else whose


def _asks_torch(at: TracebackType) -> bool:
    """Return whether the expression that a frame was in the middle of is evaluated by PyTorch's C++."""
    (last,) = traceback.extract_tb(at, limit=1)
    lines = [line.encode() for line in linecache.getlines(last.filename)[(last.lineno or 1) - 1 : last.end_lineno]]
    if not lines:
        return False
    lines[-1] = lines[-1][: last.end_colno]  # columns are those of bytes
    lines[0] = lines[0][last.colno or 0 :]
    try:
        tree = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:  # a statement, such as `raise`
        return False
    match tree:
        case ast.Call(func=function):
            found = _value(function, at)
            return _of_torch(found) and not hasattr(found, "__code__")
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value):
            return _of_torch(_value(value, at))
        case ast.BinOp(left=left, right=right):
            return _of_torch(_value(left, at)) or _of_torch(_value(right, at))
    return False


def _value(tree: ast.expr, at: TracebackType) -> object:
    """Return what a name, or an attribute of one, is in a frame; None for what would have to be computed."""
    match tree:
        case ast.Name(id=name):
            return at.tb_frame.f_locals.get(name, at.tb_frame.f_globals.get(name))
        case ast.Attribute(value=value, attr=name):
            return getattr(_value(value, at), name, None)
    return None


def _of_torch(found: object) -> bool:
    """Return whether an object is of a class of PyTorch's, or a method of one."""
    classes = (*type(found).__mro__, *type(getattr(found, "__self__", None)).__mro__)
    modules = (getattr(found, "__module__", None), *(kind.__module__ for kind in classes))
    return any(str(module).partition(".")[0] == "torch" for module in modules)


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
