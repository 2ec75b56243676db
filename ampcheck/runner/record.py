"""Record the result of each case in a run file, which is never rewritten, and read run files.

A run file has one JSON object a line: a header, a line per case, a footer. Without a footer the run was interrupted;
what was measured until then is all there. Needs no torch, so that the parent process of `ampcheck run` can use it.
"""

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

from ampcheck.errors import UsageError
from ampcheck.observe.blame import frame
from ampcheck.spec.case import deviation_name
from ampcheck.spec.casting import POLICIES

SCHEMA, OLDER = 2, 1
"""Files of schema 1 call the field `compiler` of a case `executor`."""

STATUSES = ("pass", "fail", "broken", "deviation", "fixed", "unsupported", "error", "crash", "timeout", "missing")
"""What each claims, and what a pass does not claim: docs/using.md. pass: as promised. fail: not as promised. broken:
the op raises or is wrong without autocast, too. deviation: known, still failing. fixed: known, passing now (red: the
entry is stale). unsupported: the device declares that it lacks it, or the dispatcher has no kernel. error: of the
harness. crash: it ended the process. timeout: it hung. missing: in the manifest, not run."""

RED = ("fail", "broken", "fixed", "error", "crash", "timeout", "missing")
"""The statuses that make a run fail."""

BASELINE = "baseline-"
"""Begins the `deviation` of a case that is excused by a baseline; the status that it would have follows."""


@dataclass(frozen=True, slots=True)
class Result:
    """Hold what became of one case. `ampcheck/report/outputs.toml` says what each field is."""

    id: str
    suite: str
    rule: str
    status: Annotated[str, Meta(pattern=f"^({'|'.join(STATUSES)})$", extra_json_schema={"enum": STATUSES})]
    seconds: Annotated[float, Meta(ge=0)]
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

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Result":
        """Return the result that a line of a run file holds, which is also what a child sends."""
        return cls(**{renamed(name): value for name, value in line.items() if name != "kind"})

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


def new_run_file(reports: Path, now: datetime) -> Path:
    """Return the run file of a run that starts now, unless told otherwise."""
    return reports / "runs" / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"


def manifest_hash(keys: Iterable[str]) -> str:
    """Return one value for a set of case keys: equal manifests have equal hashes."""
    return sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


class RunWriter:
    """Writes a run file line by line; each case is on disk when `add` returns."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = JsonlWriter(path, "run file", {"schema": SCHEMA, **header})
        self.path = path
        self._status: dict[str, str] = {}

    def add(self, result: Result) -> None:
        """Append a case. Of a case that is added twice, the later result counts."""
        self._status[result.key] = result.status
        self._file.put("case", result.filled())

    def end(self) -> None:
        """Close the file as it is: of an interrupted run without a footer."""
        self._file.end()

    def close(self, footer: Mapping[str, Any]) -> None:
        """Append the footer; the run is complete."""
        self._file.close({"counts": dict(Counter(self._status.values())), **footer})


def read(path: Path) -> Run:
    """Read a run file.

    A file cut off in the middle is read up to its last whole line and has a `note`. Raises UsageError where it is no
    run file, is of another schema, or is damaged before its last line.
    """
    lines = read_lines(path, "run file", SCHEMA, ("case",), older=(OLDER,))
    results = [_result(path, number, line) for number, line in lines.body]
    return Run(path, lines.header, {result.key: result for result in results}, lines.footer, lines.note)


def _result(path: Path, number: int, line: dict[str, Any]) -> Result:
    try:
        return convert({renamed(name): value for name, value in line.items()}, Result)
    except ValidationError as error:
        raise UsageError(f"{path}, line {number}: not a case: {error}") from error


# ---- files of JSON lines
class JsonlWriter:
    """Writes such a file line by line; each line is on disk when `put` returns.

    Raises UsageError where the file is there already or cannot be made.
    """

    def __init__(self, path: Path, what: str, header: Mapping[str, Any]) -> None:
        self.path, self._what, self._full = path, what, False
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what a full disk does not take must not be tried again as the file is closed.
            self._file = path.open("xb", buffering=0)
        self.put("header", header)

    def put(self, kind: str, line: Mapping[str, Any]) -> None:
        """Append a line. Raises UsageError where the disk does not take it; further lines are then dropped."""
        if not self._full:
            text = json.dumps({"kind": kind, **line}, separators=(",", ":")) + "\n"
            with self._told():
                left = memoryview(text.encode())
                while left:
                    left = left[self._file.write(left) :]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._full = True
            raise UsageError(f"the {self._what} {self.path} cannot be written: {error.strerror}") from error

    def close(self, footer: Mapping[str, Any]) -> None:
        """Append the footer; the file is complete."""
        self.put("footer", footer)
        self.end()

    def end(self) -> None:
        """Close the file."""
        self._file.close()


def output_file(path: str | Path, what: str = "file", *, folders: bool = False) -> Path:
    """Return the path of a file to write, asked before anything is computed for it; all is as it was.

    `folders`: its folders may be missing. Raises UsageError where it cannot be written.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        return path  # who reads a pipe would take its closing for its end
    made = [folder for folder in path.parents if folders and not folder.exists()]
    try:
        if made:
            path.parent.mkdir(parents=True)
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
        for folder in made:
            folder.rmdir()
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be written: {error.strerror}") from error
    return path


def print_or_write(text: str, out: Path | None, what: str) -> None:
    """Write a text to a file, or print it where there is none. Raises UsageError where the file cannot be written."""
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the {what} {out} cannot be written: {error.strerror}") from error


@dataclass(slots=True)
class Lines:
    """What a file holds: the header, the lines between with their numbers, the footer if it has one.

    `note` says what is wrong with its end, "" if nothing.
    """

    header: dict[str, Any]
    body: list[tuple[int, dict[str, Any]]]
    footer: dict[str, Any] | None
    note: str


def read_lines(
    path: Path, what: str, schema: int | str, kinds: tuple[str, ...], older: tuple[int | str, ...] = ()
) -> Lines:
    """Read a file, up to its last whole line where it was cut off.

    Args:
        what: what it should be, for messages, e.g. "run file".
        schema: what its header must say.
        kinds: the kinds of lines it may have between header and footer.
        older: other schemas that the caller can read.

    Raises UsageError where it is no such file, is of another schema, or is damaged before its last line.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a {what}: {error.reason} at byte {error.start}") from error
    found: Lines | None = None
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if found is None or number < len(texts):
                raise UsageError(f"{path}, line {number}: not JSON, so this is not a complete {what}") from error
            found.note = f"line {number} is cut off"
            break
        if found is None:
            found = Lines(_header(path, what, schema, older, line), [], None, "")
        elif not isinstance(line, dict):
            raise UsageError(f"{path}, line {number}: not an object, so this is not a complete {what}")
        elif line.get("kind") in kinds:
            found.body.append((number, line))
        elif line.get("kind") == "footer":
            found.footer = line
        else:
            wanted = ", ".join(kinds)
            raise UsageError(f"{path}, line {number}: kind is {line.get('kind')!r}; expected {wanted} or footer")
    if found is None:
        raise UsageError(f"{path} is empty")
    if found.footer is None and not found.note:
        found.note = "the run was interrupted"
    return found


def _header(path: Path, what: str, schema: int | str, older: tuple[int | str, ...], line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line.get("kind") != "header":
        raise UsageError(f"{path} is not a {what}: its first line is not a header")
    if line.get("schema") not in (schema, *older):
        raise UsageError(f"{path} has schema {line.get('schema')!r}; this ampcheck reads schema {schema}")
    return line


# ---- causes: one text for all red cases that are red for one reason
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


def cause_text(
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


def cause_of(result: Result) -> str:
    """Return the cause of a red result, which a run file of an earlier version does not hold."""
    missing = MISSING if result.status == "missing" else ""
    return result.cause or missing or cause_text(result.status, result.message, result.rule, result.op)


_OF_OPS = frozenset((*POLICIES, "fallthrough"))
"""The rules whose cases are each of one op."""
_ROOTS = 10
"""More ops than this with a wrong policy have something in common, which their own causes tell better."""
_NAMED_OP = re.compile(r"\baten::([\w.]*\w)")
_DTYPE = re.compile(r"\b(torch\.)?(b?float16|float32|float64|bf16|fp16|fp32|fp64)\b")


def causes_of(results: Iterable[Result]) -> dict[str, str]:
    """Return the cause of each red case among some results, by its key.

    Where few ops of a device do not follow their policy, each is the one cause of all its cases, and of the scenarios
    that differ in dtypes and name the op, in what they say or in their plain torch lines. Scenarios of a rule that
    differ in dtypes and name none of these ops are one more cause.
    """
    red = [result for result in results if result.status in RED]
    plain = {result.key: cause_of(result) for result in red}
    wrong: dict[tuple[str, str], list[Result]] = {}
    for result in red:
        if result.rule in _OF_OPS and result.status == "fail" and plain[result.key].endswith(f"(rule {result.rule})"):
            named = _NAMED_OP.search(result.message)  # a case of the op database fails by an op that it is made of
            wrong.setdefault((result.device, named[1] if named else result.op), []).append(result)
    if not 0 < len(wrong) <= _ROOTS:
        return plain
    out = dict(plain)
    for (device, op), cases in wrong.items():
        example = min(cases, key=lambda r: (r.op != op, r.suite != "eager", bool(r.compiler), r.key))
        said = _RULE.sub("", example.message.partition("\n")[0]).strip()
        text = f"fail: aten::{op} on {device}: {said} (rule {example.rule})"
        word = re.compile(rf"\b{re.escape(op.partition('.')[0])}\b")
        for result in red:
            if result.device != device or out[result.key] != plain[result.key]:
                continue
            hangs = result.rule not in _OF_OPS and word.search(result.message + result.torch)
            if result in cases or ((hangs or result.op == op) and _DTYPE.search(result.message)):
                out[result.key] = text
    for result in red:
        rule = f"(rule {result.rule})"
        loose = result.rule not in _OF_OPS and out[result.key] == plain[result.key] and plain[result.key].endswith(rule)
        if loose and (result.device in {device for device, _ in wrong}) and _DTYPE.search(result.message):
            out[result.key] = f"fail: other dtypes on {result.device}, perhaps by one of these ops {rule}"
    return out if len(set(out.values())) <= len(set(plain.values())) else plain


def grouped(results: Iterable[Result]) -> list[Cause]:
    """Return the causes of the red cases among some results, that of most cases first."""
    results = list(results)
    texts, found = causes_of(results), dict[str, list[Result]]()
    for result in results:
        if result.status in RED:
            found.setdefault(texts[result.key], []).append(result)
    causes = [Cause(text, tuple(members)) for text, members in found.items()]
    return sorted(causes, key=lambda cause: (-len(cause.results), cause.text))


# ---- what a header says of the run itself
_PACKAGES = ("ampcheck", "torch", "jax", "jaxlib", "torchax", "numpy", "pytest", "hypothesis")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result; none is imported for it."""
    out = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


FIXED_SEED = 5
"""The seed of every run that is not nightly, so that such runs draw the same programs."""


def seed_of_programs(nightly: bool, given: str | int | None = None) -> int:
    """Return the seed of a run: `FIXED_SEED`; with `--nightly` that of `--hypothesis-seed`, else the date."""
    if not nightly:
        return FIXED_SEED
    if given is None:
        return int(f"{datetime.now(UTC):%Y%m%d}")
    return int(given) if str(given).isdigit() else sum(map(ord, str(given)))


# ---- words
def counted(count: int, what: str) -> str:
    """Return a number of things in words, e.g. "1 case" or "2 cases"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def first_line(text: str, width: int = 200) -> str:
    """Return the first line of a message, cut to what fits a line of a terminal or a cell of a table."""
    line = text.partition("\n")[0]
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"
