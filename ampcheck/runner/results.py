"""Run files: one JSON object a line: a header, a line per case, a footer. Never rewritten.

Without a footer the run was interrupted; what was measured until then is all there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.runner import jsonl
from ampcheck.spec.case import deviation_name

SCHEMA, OLDER = 2, 1
"""Files of schema 1 call the field `compiler` of a case `executor`."""

STATUSES = ("pass", "fail", "broken", "deviation", "fixed", "unsupported", "error", "crash", "timeout", "missing")
"""What each claims, and what a pass does not claim: docs/using.md. pass: as promised. fail: not as promised. broken:
the op raises or is wrong without autocast, too. deviation: known, still failing. fixed: known, passing now (red: the
entry is stale). unsupported: the device declares that it lacks it, or the dispatcher has no kernel. error: of the
harness. crash: it ended the process. timeout: it hung. missing: in the manifest, not run."""

RED = ("fail", "broken", "fixed", "error", "crash", "timeout", "missing")
"""The statuses that make a run fail."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case.

    `id` is unique within `suite` and `rule`. `node` is its pytest node id. `message`: each difference, a line each.
    `deviation`: the ids of the deviations that it is about, with ", " between. `pytest` and `torch`: how to reproduce
    it, as a pytest line and as plain torch. `seconds`: wall time of the case. `compiler`: what ran it, "" where its
    suite runs all in one way. `cause`: one text for all cases that are red for one reason (`ampcheck.runner.causes`).
    `traceback`: of what was raised, from the first frame outside of ampcheck on. `warnings`: those given while it ran,
    a line each; they decide nothing.
    """

    id: str
    suite: str
    rule: str
    status: str
    seconds: float
    op: str = ""
    amp: str = ""
    device: str = ""
    inputs: str = ""
    sample: str = ""
    node: str = ""
    message: str = ""
    deviation: str = ""
    pytest: str = ""
    torch: str = ""
    compiler: str = ""
    cause: str = ""
    traceback: str = ""
    warnings: str = ""

    @property
    def name(self) -> str:
        """Return what deviations call it."""
        return deviation_name(self.suite, self.rule, self.id, self.compiler)

    @property
    def key(self) -> str:
        """Return the case's name across runs: `suite/rule/id`."""
        return f"{self.suite}/{self.rule}/{self.id}"

    def filled(self) -> dict[str, Any]:
        """Return the fields that say something, by name."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) != ""}


_FIELDS = tuple(f.name for f in fields(Result))


def renamed(name: str) -> str:
    """Return the name of a field, which may have the name of schema 1."""
    return "compiler" if name == "executor" else name


def unmeasured(case: Mapping[str, str], status: str, **fields: Any) -> Result:
    """Return the result of a case that crashed, hung or did not run.

    `case`: its fields that are known before it runs (`Case.fields`, and its `node`). `fields`: further ones.
    """
    return Result(**{"seconds": 0.0, **case, "status": status, **fields})


@dataclass(slots=True)
class Run:
    """A run file that was read. `footer` is None for an interrupted run; `note` says what is wrong with its end."""

    path: Path
    header: dict[str, Any]
    results: dict[str, Result] = field(default_factory=dict)
    footer: dict[str, Any] | None = None
    note: str = ""

    def counts(self) -> Counter[str]:
        """Return how many cases have each status."""
        return Counter(result.status for result in self.results.values())


def manifest_hash(keys: Iterable[str]) -> str:
    """Return one value for a set of case keys: equal manifests have equal hashes."""
    return sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


class RunWriter:
    """Writes a run file line by line; each case is on disk when `add` returns."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = jsonl.JsonlWriter(path, "run file", {"schema": SCHEMA, **header})
        self.path = path
        self._status: dict[str, str] = {}

    def add(self, result: Result) -> None:
        """Append a case. Of a case that is added twice, the later result counts."""
        self._status[result.key] = result.status
        self._file.put("case", result.filled())

    def close(self, footer: Mapping[str, Any]) -> None:
        """Append the footer; the run is complete."""
        self._file.close({"counts": dict(Counter(self._status.values())), **footer})


def read(path: Path) -> Run:
    """Read a run file.

    A file cut off in the middle is read up to its last whole line and has a `note`. Raises UsageError where it is no
    run file, is of another schema, or is damaged before its last line.
    """
    lines = jsonl.read(path, "run file", SCHEMA, ("case",), older=(OLDER,))
    results = [_result(path, number, line) for number, line in lines.body]
    return Run(path, lines.header, {result.key: result for result in results}, lines.footer, lines.note)


_KINDS: dict[str, tuple[type, ...]] = {"seconds": (int, float)}


def _result(path: Path, number: int, line: dict[str, Any]) -> Result:
    line = {renamed(k): v for k, v in line.items()}
    try:
        result = Result(**{k: v for k, v in line.items() if k != "kind"})
    except TypeError as error:
        raise UsageError(f"{path}, line {number}: not a case: {error}") from error
    wrong = [k for k, value in line.items() if not isinstance(value, _KINDS.get(k, str))]
    if wrong:
        raise UsageError(f"{path}, line {number}: not a case: {', '.join(wrong)} of the wrong type")
    if result.status not in STATUSES:
        raise UsageError(f"{path}, line {number}: unknown status {result.status!r}")
    return result
