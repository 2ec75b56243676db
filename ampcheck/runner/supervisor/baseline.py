"""Baseline files: the red cases of a run, each with how it fails, which later runs may have without being red.

    # from 20261122T101500Z-42.jsonl, 1 red case
    eager/downcast/mm-fp32-fp16-mydevice: fail
      - argument 0 of aten::mm was given as fp32 and reached the kernel as fp32; expected fp16

A case that fails in another way is red. No entry needs a reason or a link: that is what deviations are for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.runner.compare import merge
from ampcheck.runner.results import RED, Result, Run
from ampcheck.spec.ids import check_key

STATUSES = tuple(status for status in RED if status != "missing")
"""What a case of a baseline can be: a case that did not run was not seen to fail in any way."""

_ID = "baseline-"
"""Begins the deviation id of a case that the baseline has; its status follows."""

_HEAD = re.compile(rf"(?P<key>\S+): (?P<status>{'|'.join(STATUSES)})")
_SHOWN = 5

_VARIES = re.compile(
    r"0x[0-9a-fA-F]+"  # an address
    r"|(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?(?![\w.])"  # a measured value
    r"|(?<= is )\d+\b|(?<= to )\d+\b|(?<= most )\d+\b"  # one that was printed without a fraction
    r"|(?<=:)\d+\b"  # the line of a source file
)
"""What differs between two failures of one case that fails for one reason."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline file that was read. `cases`: the status and message of each case, by `suite/rule/id`."""

    path: Path
    cases: Mapping[str, tuple[str, str]]

    def judged(self, result: Result) -> Result:
        """Make a red result a known deviation where the baseline has this case with this failure."""
        if self.cases.get(result.key, ("", "")) != (result.status, _normal(result.status, result.message)):
            return result
        return replace(result, status="deviation", deviation=_ID + result.status)

    def lines(self, results: Mapping[str, Result]) -> list[str]:
        """Return sentences about the cases of the baseline that ended otherwise in a run with those results."""
        here = {key: results[key] for key in self.cases if key in results}
        mended = [key for key, r in here.items() if r.status not in RED and not r.deviation.startswith(_ID)]
        same = [key for key, result in here.items() if result.deviation.startswith(_ID)]
        other = [key for key, result in here.items() if result.status in STATUSES]
        absent = [key for key in self.cases if key not in here or here[key].status == "missing"]
        return [
            f"baseline {self.path}: {_cases(keys)} {words}: {_some(keys)}"
            for keys, words in (
                (same, "failing as it says"),
                (other, "failing in another way than the baseline says"),
                (mended, "not red any more, to be taken out of it"),
                (absent, "not in this run"),
            )
            if keys
        ]


def load(path: Path) -> Baseline:
    """Read a baseline file. Raises UsageError where it cannot be read or is malformed."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"the baseline {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a baseline: {error.reason} at byte {error.start}") from error
    found: dict[str, tuple[str, list[str]]] = {}
    messages: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if messages is not None and line.startswith("  -"):
            messages.append(line[4:])
            continue
        head = _HEAD.fullmatch(line.rstrip())
        if head is None:
            raise UsageError(
                f'{path}, line {number}: expected "suite/rule/id: STATUS", with a STATUS of {", ".join(STATUSES)}, '
                f'or "  - " and a line of the failure'
            )
        key = check_key(head["key"])
        if key in found:
            raise UsageError(f"{path}, line {number}: {key} occurs more than once")
        messages = []
        found[key] = head["status"], messages
    return Baseline(path, {key: (status, _normal(status, "\n".join(text))) for key, (status, text) in found.items()})


def text(runs: Sequence[Run], devices: Collection[str] = ()) -> str:
    """Return the red cases of some runs, of some devices or of all, as a baseline file.

    A case that an earlier baseline had is in it too. Raises UsageError for a device of which no run has a case.
    """
    run = merge(runs)
    names = sorted({result.device for result in run.results.values()})
    for name in devices:
        if name not in names:
            raise UsageError(f"no run has a case of device {name!r}; there are cases of {', '.join(names) or 'none'}")
    parts = []
    for key, result in sorted(run.results.items()):
        status = result.deviation.removeprefix(_ID) if result.deviation.startswith(_ID) else result.status
        if status in STATUSES and (not devices or result.device in devices):
            parts += [f"{key}: {status}", *(f"  - {line}".rstrip() for line in result.message.split("\n"))]
    count = sum(1 for line in parts if not line.startswith(" "))
    note = f"; {run.note}" if run.note else ""
    sources = ", ".join(run.path.name for run in runs)
    head = f"# from {sources}, {count} red case{'' if count == 1 else 's'}{note}"
    return "\n".join([head, *parts]) + "\n"


def _normal(status: str, message: str) -> str:
    """Return what two failures of one case have in common where their reason is one."""
    if status in ("crash", "timeout"):
        message = message.partition("; it was in ")[0]  # the frames differ from run to run
    return "\n".join(_VARIES.sub("…", line.rstrip()) for line in message.split("\n")).strip()


def _cases(keys: Sequence[str]) -> str:
    return f"{len(keys)} case is" if len(keys) == 1 else f"{len(keys)} cases are"


def _some(keys: Sequence[str]) -> str:
    more = f", and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
