"""What red cases have in common: one text for all that are red for one reason, and groups.

Needs no torch, so that the parent process of `ampcheck run` and the reports can use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ampcheck.observe.blame import frame
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
