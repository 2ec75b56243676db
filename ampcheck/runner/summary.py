"""Results as text for a terminal or as Markdown: causes, the table of a run, and one case with how to reproduce it.

Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from html import escape
from pathlib import Path

from tabulate import tabulate

from ampcheck.errors import UsageError
from ampcheck.runner.causes import grouped
from ampcheck.runner.compare import markdown
from ampcheck.runner.results import RED, STATUSES, Result

SHOWN = 8
"""How many causes are shown with an example; each takes three lines of a terminal's first screen."""
SCREEN = 36
"""The lines that causes may take of a first screen of 40."""
_DETAILED = 20


def table(results: Collection[Result]) -> str:
    """Return a line per device and rule, a column per status that occurs, and a total; "" for no results."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        counts.setdefault((result.device, result.rule), Counter())[result.status] += 1
    if not counts:
        return ""
    used = [status for status in STATUSES if any(c[status] for c in counts.values())]
    rows = [
        [device, rule, sum(c.values()), *(c[s] or "" for s in used)] for (device, rule), c in sorted(counts.items())
    ]
    total: Counter[str] = sum(counts.values(), Counter())
    rows.append(["all", "all", sum(total.values()), *(total[s] for s in used)])
    return str(tabulate(rows, headers=["device", "rule", "cases", *used]))


def ran(results: Collection[Result], expected: int, deselected: int, seconds: float) -> str:
    """Return how much of what was expected ran, in a sentence."""
    done = sum(1 for result in results if result.status != "missing")
    return f"{done} of {expected} cases ran in {seconds:.1f} s; {deselected} more were not selected"


def counted(count: int, what: str) -> str:
    """Return a number of things in words, e.g. "1 case" or "2 cases"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def text(result: Result, why: str = "", reproduced: str = "") -> str:
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
    if len(found) > SHOWN:
        left = sum(len(cause.results) for cause in found[SHOWN:])
        lines.append(f"{left:>6}  cases of {counted(len(found) - SHOWN, 'more cause')}")
    first = found[0].example
    whole = ["", *text(first, reproduced=reproduced.get(first.key, "")).splitlines()]
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
        whole = text(example, reproduced=reproduced.get(example.key, ""))
        lines += [
            "",
            f"<details><summary>{what}</summary>",
            "",
            f"<pre>{escape(whole, quote=False)}</pre>",
            "",
            "</details>",
        ]
    return lines


def as_markdown(
    results: Collection[Result], ended: str, stale: Collection[str], reproduced: Mapping[str, str], *, whole: bool
) -> str:
    """Return a run as Markdown, for a job summary: verdict, counts of each device, causes.

    Args:
        results: of the run.
        ended: how much ran, in a sentence.
        stale: a sentence for each deviation that speaks of no case, and for what went wrong outside of every case.
        reproduced: what came of running an example's plain torch lines, by its key.
        whole: False for a run that was interrupted.
    """
    red = sum(1 for result in results if result.status in RED)
    parts = [counted(red, "red case")] if red else []
    parts += [counted(len(stale), "line") + " below about the run itself"] if stale else []
    verdict = "; ".join(parts) or "Every case is as promised or a known deviation"
    cut = "" if whole else " The run was interrupted."
    lines = ["## ampcheck", "", f"**{verdict}.**{cut} {ended}.", ""]
    used = [status for status in STATUSES if any(result.status == status for result in results)]
    lines += ["| device | cases | " + " | ".join(used) + " |", "| --- |" + " ---: |" * (len(used) + 1)]
    for device in dict.fromkeys(result.device for result in results):
        statuses = [result.status for result in results if result.device == device]
        counts = " | ".join(str(statuses.count(status)) for status in used)
        lines.append(f"| {markdown(device)} | {len(statuses)} | {counts} |")
    lines += causes_markdown(results, reproduced)
    lines += ["", *(f"- {markdown(line)}" for line in stale)] if stale else []
    return "\n".join(lines) + "\n"


def beside(run_file: Path) -> Path:
    """Return the file of a run's Markdown summary."""
    return run_file.with_suffix(".summary.md")


def write(path: Path, text: str) -> None:
    """Write a summary. Raises UsageError where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the summary {path} cannot be written: {error.strerror}") from error


WARNED = 5
"""How many warnings are shown at the end of a run."""


def warned(results: Collection[Result]) -> list[str]:
    """Return a line for each of the commonest warnings that cases gave, with how many cases gave it."""
    counts = Counter(line for result in results for line in result.warnings.splitlines())
    lines = [f"{counted(count, 'case')} warned of {line}" for line, count in counts.most_common(WARNED)]
    more = len(counts) - WARNED
    return [*lines, *([f"{counted(more, 'more warning')} in the run file"] if more > 0 else [])]
