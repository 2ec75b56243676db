"""Summarize runs: what a terminal, a Markdown summary and a JUnit file say of one, what changed between two, a merge.

A total hides that one case broke while another was repaired, so a comparison lists flips. Needs no torch.
"""

import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from shutil import which
from typing import Annotated, Any, TypeVar
from xml.etree import ElementTree as xml

from msgspec import Meta
from tabulate import tabulate

from ampcheck.errors import UsageError
from ampcheck.runner.record import (
    BASELINE,
    MISSING,
    RED,
    SCHEMA,
    STATUSES,
    Result,
    Run,
    RunWriter,
    cause_of,
    counted,
    first_line,
    grouped,
    manifest_hash,
    unmeasured,
)
from ampcheck.spec.case import Shard

K = TypeVar("K")

# ---- one run, for a terminal and as Markdown
SHOWN = 8
"""How many causes are shown with an example; each takes three lines of a terminal's first screen."""
SCREEN = 36
"""The lines that causes may take of a first screen of 40."""
_DETAILED = 20
ROWS = 12
"""The lines of a table that has one for each rule; a longer one has the rules alone in which something is red."""


def verdict(results: Collection[Result], outside: Sequence[str] = ()) -> str:
    """Return what a run found, in a sentence: what is red and where, or that nothing is, and on how many devices.

    `outside`: what makes the run fail beside its cases.
    """
    counts = Counter(result.status for result in results)
    red = [result for result in results if result.status in RED]
    others = [f"{counted(counts['pass'], 'case')} {'passes' if counts['pass'] == 1 else 'pass'}"]
    others += [f"{counted(counts['deviation'], 'known deviation')}"] if counts["deviation"] else []
    others += [f"{counts['unsupported']} unsupported"] if counts["unsupported"] else []
    if red:
        where = ", ".join(dict.fromkeys(result.device for result in red))
        kinds = ", ".join(f"{counts[status]} {status}" for status in RED if counts[status])
        what = f"{counted(len(red), 'case')} {'is' if len(red) == 1 else 'are'} red on {where}: {kinds}"
    else:
        what = f"Nothing is red on {counted(len({result.device for result in results}), 'device')}"
        without = without_passes(results)
        what += f", but no case passed on {', '.join(without)}" if without else ""
    if outside:
        what = what.replace("Nothing", "No case") + f", but the run failed: {outside[0]}" if not red else what
    return f"{what}; {', '.join(others)}."


def statuses(results: Iterable[Result], place: Callable[[Result], K]) -> dict[K, Counter[str]]:
    """Count the statuses of results by place."""
    found: defaultdict[K, Counter[str]] = defaultdict(Counter)
    for result in results:
        found[place(result)][result.status] += 1
    return found


def without_passes(results: Iterable[Result]) -> list[str]:
    """Return the devices on which no case passed."""
    return [device for device, counts in statuses(results, lambda r: r.device).items() if not counts["pass"]]


def nothing_passed(results: Collection[Result]) -> str:
    """Return a sentence that names the devices, and the rules of others, of which no case passed; "" for none."""
    without = without_passes(results)
    counts = statuses(
        results, lambda r: (r.device not in without, "all rules" if r.device in without else r.rule, r.device)
    )
    found = [
        f"{rule} on {device} ({', '.join(f'{count} {status}' for status, count in c.most_common())})"
        for (_, rule, device), c in sorted(counts.items())
        if not c["pass"] and rule != "reports"  # its cases are faults of PyTorch that are reported
    ]
    return f"no case passed of {_some(found)}" if found else ""


def table(results: Collection[Result]) -> str:
    """Return a line per device and rule, a column per status that occurs, and a total; "" for no results.

    Where that takes more than `ROWS` lines, a device has one, and one more for each rule in which a case is red.
    """
    counts = statuses(results, lambda r: (r.device, r.rule))
    if not counts:
        return ""
    total: Counter[str] = sum(counts.values(), Counter())
    used = [status for status in STATUSES if total[status]]
    if len(counts) > ROWS:
        red = {place: c for place, c in counts.items() if any(c[status] for status in RED)}
        counts = {**statuses(results, lambda r: (r.device, "all")), **red}
    rows = [
        [device, rule, sum(c.values()), *(c[s] or "" for s in used)] for (device, rule), c in sorted(counts.items())
    ]
    rows.append(["all", "all", sum(total.values()), *(total[s] for s in used)])
    return str(tabulate(rows, headers=["device", "rule", "cases", *used]))


def ran(results: Collection[Result], expected: int, deselected: int, seconds: float) -> str:
    """Return how much of what was expected ran, in a sentence."""
    done = sum(1 for result in results if result.status != "missing")
    more = f"; {deselected} more were not selected" if deselected else ""
    return f"{done} of {expected} cases ran in {seconds:.1f} s{more}"


def case_text(result: Result, why: str = "", reproduced: str = "") -> str:
    """Return what a person reads of a case that is not as promised.

    `why`: the reason of the deviation that speaks of it. `reproduced`: what came of running its plain torch lines.
    """
    parts = [f"{result.key}: {result.status}", *(f"  - {line}" for line in result.message.splitlines())]
    if why and why not in result.message:
        parts.append(f"  ({why})")
    if result.traceback:
        parts += ["", *(f"  {line}" for line in result.traceback.splitlines())]
    if result.pytest:
        parts += ["", "Reproduce it with pytest:", f"  {result.pytest}"]
    if result.torch:
        said = f" ({reproduced})" if reproduced else ""
        parts += [f"or in plain torch{said}:", "", *(f"  {line}" for line in result.torch.splitlines())]
    return "\n".join(parts)


# ---- causes
def examples(results: Iterable[Result]) -> list[Result]:
    """Return the cases that are shown as examples, one for each of the largest causes."""
    return [cause.example for cause in grouped(results)[:SHOWN]]


def _own_pytest() -> list[str]:
    """Say which pytest the commands mean, where the shell has another one or none, as after `make run`."""
    own = Path(sys.executable).with_name("pytest")
    if not own.exists() or which("pytest") == str(own):
        return []
    return [f"        (pytest is {own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own})"]


def causes(results: Collection[Result], reproduced: Mapping[str, str], more: str) -> str:
    """Return a run's causes for a terminal: three lines each, at most a first screen of them; "" if nothing is red.

    Where there is room, the example of the first cause follows in full.

    Args:
        results: of the run.
        reproduced: what came of running an example's plain torch lines, by its key.
        more: the file that has all of it.
    """
    found = grouped(results)
    if not found:
        return ""
    red = sum(len(cause.results) for cause in found)
    lines = [f"{counted(red, 'red case')}, {counted(len(found), 'cause')}, the largest first:"]
    for cause in found[:SHOWN]:
        example = cause.example
        said = reproduced.get(example.key, "")
        lines.append(f"{len(cause.results):>6}  {cause.line()}")
        lines.append(f"        such as {example.key}" + (f"; in plain torch it {said}" if said else ""))
        if example.pytest:
            lines.append(f"        {example.pytest}")
    lines += _own_pytest()
    if len(found) > SHOWN:
        left = sum(len(cause.results) for cause in found[SHOWN:])
        lines.append(f"{left:>6}  cases of {counted(len(found) - SHOWN, 'more cause')}")
    first = found[0].example
    whole = ["", *case_text(first, reproduced=reproduced.get(first.key, "")).splitlines()]
    if len(lines) + len(whole) < SCREEN:
        lines += whole
    if more:
        lines += ["", f"Tracebacks and reproductions in plain torch: {more}"]
    return "\n".join(lines)


def causes_markdown(results: Collection[Result], reproduced: Mapping[str, str]) -> list[str]:
    """Return a run's causes as lines of Markdown: a table, and each example in full behind a line that opens it."""
    found = grouped(results)
    if not found:
        return []
    red = sum(len(cause.results) for cause in found)
    lines = ["", f"### {counted(red, 'red case')}, {counted(len(found), 'cause')}", ""]
    lines += ["| cases | cause | example | plain torch |", "| ---: | --- | --- | --- |"]
    for cause in found[:_DETAILED]:
        example = cause.example
        said = reproduced.get(example.key, "")
        cells = (str(len(cause.results)), markdown(cause.line()), f"`{example.key}`", said)
        lines.append("| " + " | ".join(cells) + " |")
    if len(found) > _DETAILED:
        left = sum(len(cause.results) for cause in found[_DETAILED:])
        lines.append(f"| {left} | {counted(len(found) - _DETAILED, 'more cause')} | | |")
    for cause in found[:SHOWN]:
        example = cause.example
        what = f"{counted(len(cause.results), 'case')}: {markdown(cause.line())}"
        whole = case_text(example, reproduced=reproduced.get(example.key, ""))
        lines += ["", f"<details><summary>{what}</summary>", "", f"<pre>{escape(whole, quote=False)}</pre>", ""]
        lines += ["</details>"]
    return lines


def as_markdown(
    results: Collection[Result],
    verdict: str,
    ended: str,
    about: Collection[str] = (),
    reproduced: Mapping[str, str] | None = None,
    *,
    changes: Iterable[str] = (),
    unreal: Collection[str] = (),
) -> str:
    """Return a run as Markdown, for a job summary or a comment: verdict, changes, counts of each device, causes.

    Args:
        results: of the run.
        verdict: what it found, in a sentence.
        ended: how much ran, in a sentence.
        about: a sentence for each deviation that speaks of no case, and for what went wrong outside of every case.
        reproduced: what came of running an example's plain torch lines, by its key.
        changes: lines on what changed since an earlier run.
        unreal: the devices without values.
    """
    lines = ["## ampcheck", "", f"**{verdict}** {ended}", *changes, ""]
    used = [status for status in STATUSES if any(result.status == status for result in results)]
    lines += ["| device | cases | " + " | ".join(used) + " |", "| --- |" + " ---: |" * (len(used) + 1)]
    for device, found in statuses(results, lambda r: r.device).items():
        note = " (virtual: dtypes and casts only)" if device in unreal else ""
        counts = " | ".join(str(found[status]) for status in used)
        lines.append(f"| {markdown(device)}{note} | {found.total()} | {counts} |")
    lines += ["", f"Note: {markdown(nothing_passed(results))}."] if nothing_passed(results) else []
    lines += causes_markdown(results, reproduced or {})
    lines += ["", *(f"- {markdown(line)}" for line in about)] if about else []
    return "\n".join(lines) + "\n"


def beside(run_file: Path) -> Path:
    """Return the file of a run's Markdown summary."""
    return run_file.with_suffix(".summary.md")


WARNED = 3
"""How many warnings are shown at the end of a run."""
_FOLDED = re.compile(r"(Pending)?(Deprecation|Future)Warning: |UserWarning: .* in beta state\b")
"""Warnings that speak of what the cases call, which is deprecated or new, and not of the device."""


def warned(results: Collection[Result]) -> list[str]:
    """Return a line for each of the commonest warnings that cases gave, with how many cases gave it."""
    counts = Counter(line for result in results for line in result.warnings.splitlines())
    shown = [(line, count) for line, count in counts.most_common() if not _FOLDED.match(line)][:WARNED]
    lines = [f"{counted(count, 'case')} warned of {first_line(line, 120)}" for line, count in shown]
    more = len(counts) - len(shown)
    return [*lines, *([f"{counted(more, 'more kind')} of warnings in the run file"] if more else [])]


# ---- one run, as a JUnit file for continuous integration
_TAG = {
    **dict.fromkeys(("fail", "broken", "fixed"), "failure"),
    **dict.fromkeys(("error", "crash", "timeout", "missing"), "error"),
    **dict.fromkeys(("deviation", "unsupported"), "skipped"),
}
"""What a status is in JUnit's words; a case that passed has none of them."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(
    path: Path,
    results: Collection[Result],
    *,
    started: str,
    seconds: float,
    stale: Collection[str],
    reproduced: Mapping[str, str] | None = None,
) -> None:
    """Write the results, one test case each, and one failure for each stale deviation.

    The `type` of a failure or an error is its cause, by which tools group. `started`: when the run began, in ISO form.
    `reproduced`: what came of running a case's plain torch lines, by its key. Raises UsageError where the file cannot
    be written.
    """
    tags = [_TAG.get(result.status, "") for result in results]
    suite = xml.Element(
        "testsuite",
        name="ampcheck",
        tests=str(len(results) + len(stale)),
        failures=str(tags.count("failure") + len(stale)),
        errors=str(tags.count("error")),
        skipped=str(tags.count("skipped")),
        time=f"{seconds:.3f}",
        timestamp=started,
    )
    for result in results:
        where = f"{result.suite}.{result.rule}"
        case = xml.SubElement(suite, "testcase", classname=where, name=result.id, time=f"{result.seconds:.5f}")
        if tag := _TAG.get(result.status):
            line = first_line(f"{result.status}: {result.message}")
            about = {"type": _clean(cause_of(result))} if result.status in RED else {}
            whole = case_text(result, reproduced=(reproduced or {}).get(result.key, ""))
            xml.SubElement(case, tag, about, message=_clean(line)).text = _clean(whole)
    for sentence in stale:
        case = xml.SubElement(suite, "testcase", classname="deviations", name=_clean(sentence), time="0")
        xml.SubElement(case, "failure", message="stale deviation").text = _clean(sentence)
    root = xml.Element("testsuites")
    root.append(suite)
    write_whole(path, xml.tostring(root, encoding="utf-8", xml_declaration=True), "JUnit file")


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write a file whole or not at all, or to a device or a pipe. Raises UsageError where it cannot be written."""
    part = path.with_name(f"{path.name}.part") if path.is_file() or not path.exists() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        if part != path:
            part.replace(path)
    except OSError as error:
        if part != path:
            with suppress(OSError):  # there may be none, or what should be its folder is a file
                part.unlink()
        raise UsageError(f"the {what} {path} cannot be written: {error.strerror}") from error


def _clean(value: str) -> str:
    """Return text without the characters that no XML file may hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)


# ---- a run as it begins
def stale_lines(judged: Sequence[Mapping[str, Sequence[str]]]) -> list[str]:
    """Return a sentence for each glob of a deviation that no case matches in any process that judged it.

    `judged`: of each process, the unmatched globs of each deviation, by its file and id.
    """
    found = {(entry, glob): None for one in judged for entry, globs in one.items() for glob in globs}
    return [
        f"{entry}: no case matches {glob!r}"
        for entry, glob in found
        if all(glob in one[entry] for one in judged if entry in one)
    ]


def choice_lines(smoke: Sequence[tuple[int, int]], red_in: Path | str | None, gone: Sequence[str]) -> list[str]:
    """Return what `--smoke` and `--last-failed` chose, in sentences.

    Args:
        smoke: of each process, how many cases a smoke run chose of how many.
        red_in: the run file whose red cases run.
        gone: those of them that this run lacks.
    """
    lines = []
    if smoke:
        chosen, whole = (sum(numbers) for numbers in zip(*smoke, strict=True))
        lines.append(f"smoke: {chosen} of {whole} cases")
    if gone:
        lines.append(
            f"not in this run: {len(gone)} of the red cases of {red_in} no longer exist, or other options leave "
            f"them out: {_some(gone)}"
        )
    return lines


# ---- a run as it goes
class RunRecorder:
    """Keeps the results of one run: each is in the run file when `take` returns, and in the other files at the end.

    Args:
        run_file: must not exist yet; None for no files at all.
        junit_file: None for no JUnit file.
        command: what the user typed, where the header that `begin` is given does not say it.
    """

    def __init__(self, run_file: Path | None, junit_file: Path | None = None, command: Sequence[str] = ()) -> None:
        self.results: dict[str, Result] = {}
        self.log: list[Result] = []
        """Every result in the order it came."""
        self.cases: Mapping[str, Mapping[str, str]] = {}
        """The fields of each case that are known before it runs, by key; see `ampcheck.runner.collect.Found`."""
        self.nodes: Mapping[str, Mapping[str, str]] = {}
        """The same by node id."""
        self.lines: list[str] = []
        """What the start of the run says of it."""
        self.stale: list[str] = []
        """A sentence for each known deviation that speaks of no case."""
        self.notes: list[str] = []
        """What went wrong outside of every case."""
        self.reproduced: dict[str, str] = {}
        """What came of running the plain torch lines of some red cases, by their keys."""
        self.baselines: Mapping[str, Sequence[str]] = {}
        """The keys of the cases of baselines, by file."""
        self.deselected = 0
        self.run_file = run_file
        self.junit_file = junit_file
        self.complete = False
        """Whether every case has a result."""
        self.ended: float | None = None
        """When the last case ended, on the same clock as `time.monotonic`."""
        self._clock = time.monotonic()
        self._header: Mapping[str, Any] = {}
        self._command = list(command)
        self._writer: RunWriter | None = None
        self._red: set[str] = set()

    @property
    def processes(self) -> int:
        """Return how many processes run the cases."""
        return int(self._header.get("processes", 1))

    @property
    def begun(self) -> bool:
        """Return whether the cases are known, and the run file is there."""
        return bool(self._header)

    @property
    def seconds(self) -> float:
        """Return the time since the run was begun, up to `ended`."""
        return (self.ended or time.monotonic()) - self._clock

    def begin(self, header: Mapping[str, Any], cases: Mapping[str, Mapping[str, str]]) -> None:
        """Make the run file, now that the cases are known. Raises UsageError where it cannot be written."""
        rules = Counter(key.rpartition("/")[0] for key in cases)
        self._header = {
            **header,
            "rules": dict(sorted(rules.items())),
            **({"command": self._command} if self._command else {}),
        }
        self.notes += [note for note in header.get("preflight", ()) if note.startswith("failed")]
        self.cases = cases
        self.nodes = {case["node"]: case for case in cases.values() if "node" in case}
        if cases and self.run_file is not None:
            self._writer = RunWriter(self.run_file, self._header)

    def take(self, result: Result) -> None:
        """Keep a result. Of a case that has two, as where its teardown breaks, the later counts."""
        self.results[result.key] = result
        (self._red.add if result.status in RED else self._red.discard)(result.key)
        self.log.append(result)
        if self._writer is not None:
            self._writer.add(result)

    def finish(self) -> None:
        """Write what is missing, and the footer."""
        for key, case in self.cases.items():
            if key not in self.results:
                self.take(unmeasured(case, "missing", cause=MISSING))
        if self._writer is not None:
            further = {"notes": self.notes, "reproduced": self.reproduced}
            footer = {"seconds": round(self.seconds, 3), "stale": self.stale}
            self._writer.close({**footer, **{name: value for name, value in further.items() if value}})
        self.complete = True

    def write_files(self) -> Iterator[str]:
        """Write the summary and the JUnit file of the run, and yield a line that names each file, the run file first.

        Raises UsageError where one cannot be written.
        """
        if self._writer is not None:
            self._writer.end()
        if self.run_file is None or not self.begun:
            return
        yield f"run file: {self.run_file}"
        results, about = list(self.results.values()), [*self.stale, *self.notes]
        path = beside(self.run_file)
        ended = f"{self.ran()}.{'' if self.complete else ' The run was interrupted.'}"
        text = as_markdown(results, verdict(results, about), ended, about, self.reproduced)
        write_whole(path, text.encode(), "summary")
        yield f"summary: {path}"
        if self.junit_file is not None:
            started, seconds = str(self._header["started"]), self.seconds
            write_junit(
                self.junit_file, results, started=started, seconds=seconds, stale=about, reproduced=self.reproduced
            )
            yield f"JUnit: {self.junit_file}"

    def red(self) -> int:
        """Return how many cases are red so far."""
        return len(self._red)

    def failed(self) -> bool:
        """Return whether anything makes the run fail: a red case, a stale deviation, or what went wrong outside."""
        return bool(self._red or self.stale or self.notes)

    def ran(self) -> str:
        """Return how much ran, in a sentence."""
        return ran(self.results.values(), len(self.cases), self.deselected, self.seconds)

    def closing(self) -> str:
        """Return what a terminal shows at the end: the verdict, causes, a table, and what the run itself met."""
        results = self.results.values()
        parts = [verdict(results, [*self.stale, *self.notes]), ""]
        more = str(beside(self.run_file)) if self.run_file else ""
        parts += [f"{causes(results, self.reproduced, more)}\n"] if self._red else []
        parts += [table(results), *filter(None, [nothing_passed(results)]), *warned(results)]
        parts += [*(f"stale: {line}" for line in self.stale), *(f"note: {line}" for line in self.notes)]
        for file, keys in self.baselines.items():
            parts += self._of_baseline(file, keys)
        return "\n".join([*parts, self.ran()])

    def _of_baseline(self, file: str, keys: Sequence[str]) -> list[str]:
        """Return sentences about the cases of a baseline, by what became of them."""
        here = {key: self.results[key] for key in keys if key in self.results}
        same = [key for key, result in here.items() if result.deviation.startswith(BASELINE)]
        other = [key for key, result in here.items() if result.status in RED and result.status != "missing"]
        mended = [key for key, result in here.items() if result.status not in RED and key not in same]
        absent = [key for key in keys if key not in here or here[key].status == "missing"]
        return [
            f"baseline {file}: {counted(len(found), 'case')} {'are' if found[1:] else 'is'} {words}: {_some(found)}"
            for found, words in (
                (same, "failing as it says"),
                (other, "failing in another way than the baseline says"),
                (mended, "not red any more, to be taken out of it"),
                (absent, "not in this run"),
            )
            if found
        ]


_NAMED_CASES = 5


def _some(keys: Sequence[str]) -> str:
    more = len(keys) - _NAMED_CASES
    return ", ".join(keys[:_NAMED_CASES]) + (f", and {more} more" if more > 0 else "")


# ---- two runs, and many
_NAMED = 8
"""How many missing shards are named."""

MEANING = {
    "regressed": "not red before, red now; or passed before, and does not now",
    "fixed": "red before, not red now; or passes now, and did not",
    "changed": "another status, as bad as before",
    "removed": "only in the earlier run",
    "added": "only in the later run",
}
"""The groups of a comparison, in the order in which a reader needs them."""
GROUPS = tuple(MEANING)


@dataclass(frozen=True, slots=True)
class Change:
    """One case that the runs do not agree on. `before` or `after` is "" where that run does not have it."""

    key: str
    device: str
    rule: str
    before: str
    after: str
    message: str = ""

    @property
    def words(self) -> str:
        """Return the change as text, e.g. "pass → fail"."""
        return f"{self.before or 'absent'} → {self.after or 'absent'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs over their common cases. `a`, `b`: the earlier and the later run in words; `notes` limit it."""

    a: str
    b: str
    common: Annotated[int, Meta(ge=0)]
    still_red: Annotated[int, Meta(ge=0)]
    regressed: tuple[Change, ...]
    fixed: tuple[Change, ...]
    changed: tuple[Change, ...]
    removed: tuple[Change, ...]
    added: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Return whether the later run has less than half of the earlier one's cases, so that no flip says little."""
        return len(self.removed) > self.common

    @property
    def unchanged(self) -> int:
        """Return how many common cases have the same status in both runs."""
        return self.common - len(self.regressed) - len(self.fixed) - len(self.changed)

    def group(self, name: str) -> tuple[Change, ...]:
        """Return the changes of one of `GROUPS`."""
        found: tuple[Change, ...] = getattr(self, name)
        return found

    def sentence(self) -> str:
        """Return the comparison in one line."""
        counts = ", ".join(f"{len(self.group(name))} {name}" for name in GROUPS)
        return f"{self.common} common cases: {counts}; {self.unchanged} unchanged, {self.still_red} of them red"

    def as_text(self) -> str:
        """Return the comparison for a terminal: flips one by one, added and removed cases as counts."""
        parts = [f"from {self.a}", f"to   {self.b}", *(f"note: {note}" for note in self.notes), self.sentence()]
        for name in GROUPS:
            if self.group(name):
                heading, headers, rows = self._table(name)
                parts += ["", f"{heading}:", tabulate(rows, headers=headers, disable_numparse=True)]
        return "\n".join(parts)

    def as_markdown(self) -> str:
        """Return the comparison for a pull request or a job summary, with the content of `as_text`."""
        parts = [f"From {markdown(self.a)} to {markdown(self.b)}.", "", self.sentence() + "."]
        parts += [f"\nNote: {markdown(note)}." for note in self.notes]
        for name in GROUPS:
            if self.group(name):
                heading, headers, rows = self._table(name)
                parts += ["", f"### {heading[0].upper()}{heading[1:]}", ""]
                parts += ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
                parts += ["| " + " | ".join(markdown(str(cell)) for cell in row) + " |" for row in rows]
        return "\n".join(parts) + "\n"

    def as_json(self) -> str:
        """Return the whole comparison as JSON: the fields of this class and `unchanged`."""
        return json.dumps({**asdict(self), "unchanged": self.unchanged}, indent=1)

    def _table(self, name: str) -> tuple[str, list[str], list[list[object]]]:
        changes = self.group(name)
        heading = f"{name} ({len(changes)}): {MEANING[name]}"
        if name in ("regressed", "fixed", "changed"):
            rows: list[list[object]] = [[c.key, c.words, first_line(c.message)] for c in changes]
            return heading, ["case", "status", "difference"], rows
        counts = Counter((c.device, c.rule, c.after or c.before) for c in changes)
        listed: list[list[object]] = [[*what, n] for what, n in sorted(counts.items())]
        if len(listed) > ROWS:
            largest = counts.most_common(ROWS - 1)
            rest = counts.total() - sum(n for _, n in largest)
            listed = [*([*what, n] for what, n in largest), [f"{len(listed) - len(largest)} more", "", "", rest]]
        return heading, ["device", "rule", "status", "cases"], listed


def markdown(text: str) -> str:
    """Escape text so that Markdown and the HTML within it show it as it is."""
    for char in "\\`*_[]|#":
        text = text.replace(char, "\\" + char)
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())


def describe(run: Run) -> str:
    """Return a run in a few words: when, with which torch, on which devices."""
    torch = run.header.get("versions", {}).get("torch", "of unknown version")
    return f"{run.header.get('started', 'an unknown time')}, torch {torch}, {', '.join(devices(run)) or 'no device'}"


def devices(run: Run) -> list[str]:
    """Return the names of the devices a run was made for, in its order."""
    return [device["name"] for device in run.header.get("devices", [])]


def unfinished(run: Run) -> str:
    """Say in what way a run is not whole, "" where it is: it was interrupted, or shards of it are missing."""
    if run.footer is not None:
        return ""
    cut = any(part["note"] for part in run.header.get("parts", [{"note": run.note}]))
    lacking = run.header.get("lacking", [])
    return "; ".join([*(["the run was interrupted"] if cut or not lacking else []), *lacking])


def compare(a: Run, b: Run) -> Comparison:
    """Compare an earlier run with a later one, over the cases both have.

    Returns: every case that differs, in order of its key. Raises UsageError where the runs have no device or no case in
    common, so that nothing is not taken for no change. (A run file of another schema is refused when it is read.)
    """
    ours, theirs = devices(a), devices(b)
    if not set(ours) & set(theirs):
        had, has = (", ".join(names) or "none" for names in (ours, theirs))
        raise UsageError(f"the runs share no device: {a.path} has {had}, {b.path} has {has}")
    common = a.results.keys() & b.results.keys()
    if not common:
        raise UsageError(
            f"the runs share no case: {a.path} has {len(a.results)} cases, {b.path} has {len(b.results)} others"
        )
    groups: dict[str, list[Change]] = {name: [] for name in GROUPS}
    for key in sorted(a.results.keys() | b.results.keys()):
        before, after = a.results.get(key), b.results.get(key)
        if name := _group(before, after):
            groups[name].append(_change(before, after))
    still = sum(1 for key in common if a.results[key].status in RED and b.results[key].status in RED)
    return Comparison(
        describe(a), describe(b), len(common), still, **{k: tuple(v) for k, v in groups.items()}, notes=_notes(a, b)
    )


def _group(before: Result | None, after: Result | None) -> str:
    if before is None or after is None:
        return "added" if before is None else "removed"
    worse = _badness(after) - _badness(before)
    if worse:
        return "regressed" if worse > 0 else "fixed"
    return "changed" if before.status != after.status else ""


def _badness(result: Result) -> int:
    """Return 0 for a pass, 1 for a case that is not red but shows no promise kept, 2 for a red one."""
    return 2 if result.status in RED else 0 if result.status == "pass" else 1


def _change(before: Result | None, after: Result | None) -> Change:
    shown = before or after  # a missing case knows only its name, so the earlier result tells the device better
    assert shown is not None  # a key of neither run is never asked for
    was, now = (result.status if result else "" for result in (before, after))
    messages = [result.message for result in (after, before) if result and result.message]
    return Change(shown.key, shown.device, shown.rule, was, now, *messages[:1])


def _notes(a: Run, b: Run) -> tuple[str, ...]:
    notes = []
    if 2 * min(len(a.results), len(b.results)) < max(len(a.results), len(b.results)):
        notes.append(
            f"the runs differ in what they select: the earlier has {len(a.results)}, the later {len(b.results)} cases"
        )
    for run, what in ((a, "earlier"), (b, "later")):
        if unfinished(run):
            notes.append(f"the {what} run is incomplete ({run.note}), so cases it lacks may only not have run")
    for run, other, what in ((a, b, "earlier"), (b, a, "later")):
        if only := [name for name in devices(run) if name not in devices(other)]:
            notes.append(f"only the {what} run has {', '.join(only)}")
    before, after = (run.header.get("versions", {}).get("torch") for run in (a, b))
    if before != after:
        notes.append(f"torch went from {before} to {after}")
    return tuple(notes)


def merge(runs: Sequence[Run]) -> Run:
    """Make one run of several, e.g. of one machine with a GPU and one without.

    Of a case that several runs have, the later run's result is kept, but `missing` replaces no result of a case that
    ran. The header holds the earliest start, every device, and each run's own header under `parts`; there is a footer
    only if every part has one and no shard is missing. Raises UsageError for no runs.
    """
    if not runs:
        raise UsageError("there is no run to merge")
    runs = sorted(runs, key=lambda run: str(run.header.get("started", "")))
    lacking = _lacking(runs)
    if len(runs) == 1 and not lacking:
        return runs[0]
    results: dict[str, Result] = {}
    for run in runs:
        for key, result in run.results.items():
            if result.status != "missing" or key not in results:
                results[key] = result
    out = Run(runs[0].path, _merged_header(runs, len(results)), results)
    out.note = "; ".join([*(f"{run.path.name}: {run.note}" for run in runs if run.note), *lacking])
    if lacking:
        out.header["lacking"] = lacking
    elif not any(unfinished(run) for run in runs):
        footers = [run.footer or {} for run in runs]
        out.footer = {
            "kind": "footer",
            "counts": dict(out.counts()),
            "seconds": round(sum(footer.get("seconds", 0.0) for footer in footers), 3),
            "stale": list(dict.fromkeys(line for footer in footers for line in footer.get("stale", []))),
            "reproduced": {key: said for footer in footers for key, said in footer.get("reproduced", {}).items()},
        }
        if all("shard" in run.header for run in runs):  # together they are the run that was divided
            out.header["manifest"] = manifest_hash(results)
    return out


def _merged_header(runs: Sequence[Run], found: int) -> dict[str, Any]:
    headers = [run.header for run in runs]
    manifests = {header.get("manifest"): header.get("cases", 0) for header in headers}
    named: dict[str, Any] = {}
    for header in headers:
        named |= {device["name"]: device for device in header.get("devices", [])}
    gone = {name: why for header in headers for name, why in header.get("absent", {}).items() if name not in named}
    last = {name: value for name, value in headers[-1].items() if name != "shard"}
    return {
        **last,
        "kind": "header",
        "schema": SCHEMA,
        "started": headers[0].get("started", ""),
        "cases": max(sum(manifests.values()), found),  # parts of one manifest each expect all of it
        "manifest": ",".join(sorted(str(manifest) for manifest in manifests)),
        "devices": list(named.values()),
        "absent": gone,
        "parts": [{**run.header, "file": run.path.name, "note": run.note, "ran": len(run.results)} for run in runs],
    }


def _lacking(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each number of shards of which some, but not all, are among the runs."""
    found: dict[int, set[int]] = {}
    for run in runs:
        if "shard" in run.header:
            shard = Shard.parse(str(run.header["shard"]))
            found.setdefault(shard.count, set()).add(shard.number)
    out = []
    for count, there in sorted(found.items()):
        left = sorted(set(range(1, count + 1)) - there)
        names = ", ".join(map(str, left)) if len(left) <= _NAMED else f"{len(left)} of them"
        if left:
            out.append(f"of {count} shards, {names} {'is' if len(left) == 1 else 'are'} missing")
    return out
