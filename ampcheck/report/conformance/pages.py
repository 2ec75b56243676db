"""Fill each page with plain values made from the runs, so that templates only lay them out."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode

from ampcheck.errors import UsageError
from ampcheck.report.conformance.data import SHOWN, Status, facts, number, run_names
from ampcheck.report.history import History, expected, is_red, ran, reproduced, stale, virtual
from ampcheck.runner import summarize as comparing
from ampcheck.runner.deviations import Deviation
from ampcheck.runner.record import Cause, Result, Run, first_line, grouped
from ampcheck.runner.summarize import (
    GROUPS,
    Comparison,
    causes_markdown,
    compare,
    devices,
    interrupted,
    markdown,
    nothing_passed,
    without_passes,
)
from ampcheck.spec.rules import RULES

NAV = {
    "Health": "index.html",
    "Matrix": "matrix.html",
    "Deviations": "deviations.html",
    "Compare": "compare.html",
    "About": "about.html",
}

_CAUSES = 20
"""The first page shows this many causes."""

_COUNTED = ("device", "key", "cells", "reachable", "each_run", "nightly")
"""What the first page shows of `ampcheck coverage`."""

_DESCRIBED = ("name", "token", "type", "key", "has_values")


@dataclass(frozen=True, slots=True)
class Tally:
    """A row of a table of counts."""

    name: str
    counts: Counter[str]
    sentence: str = ""

    @property
    def total(self) -> int:
        """All cases of the row."""
        return self.counts.total()


def case_href(key: str) -> str:
    """Return the address of a case's page."""
    return "case.html#" + quote(key, safe="/+")


def matrix_href(filters: Mapping[str, str]) -> str:
    """Return the address of the matrix with some filters set."""
    return "matrix.html#" + urlencode(filters)


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number,
    "case_href": case_href,
    "matrix_href": matrix_href,
    "first_line": first_line,
    "capitalize_first": lambda text: text[:1].upper() + text[1:],
}


def common(history: History) -> dict[str, object]:
    """Return the values of every page."""
    return {
        "run": _summary(history.newest, run_names(history)[0]),
        "statuses": SHOWN,
        "unreal": set().union(*(virtual(run) for run in history.runs)),
        "left_out": history.left_out,
        "absent": history.newest.header.get("absent", {}),
        "drift": history.newest.header.get("drift", []),
        "torch": history.newest.header.get("versions", {}).get("torch", "of unknown version"),
    }


def health(history: History) -> dict[str, object]:
    """Return the first page: what changed, how much ran, what needs a person."""
    newest, previous = history.newest, history.previous
    rows = [
        {**_summary(run, name), "counts": run.counts()}
        for run, name in zip(history.runs, run_names(history), strict=True)
    ]
    named = {id(run): row for run, row in zip(history.runs, rows, strict=True)}
    before = named[id(previous)] if previous else None
    causes = grouped(newest.results.values())
    ever = Counter[str]()
    for run in history.runs:
        ever += run.counts()
    state, verdict = judged(newest)
    return {
        "state": state,
        "verdict": verdict,
        "comparison": comparing.compare(previous, newest) if previous else None,
        "previous": before,
        "passed_over": rows.index(before) - 1 if before else 0,
        "compare_href": "compare.html#" + urlencode({"a": before["name"], "b": rows[0]["name"]}) if before else "",
        "groups": comparing.GROUPS,
        "meaning": comparing.MEANING,
        "used": used(newest.counts()),
        "ever": used(ever),
        "by_device": _by_device(newest.results.values(), devices(newest)),
        "by_rule": _by_rule(newest),
        "causes": [_cause(cause, reproduced(newest)) for cause in causes[:_CAUSES]],
        "more_causes": len(causes[_CAUSES:]),
        "red": sum(len(cause.results) for cause in causes),
        "stale": stale(newest),
        "history": rows,
    }


def states(path: Path) -> dict[str, object]:
    """Read what `ampcheck coverage --json` wrote. Raises UsageError where it is no such file."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        rows = [{name: row[name] for name in _COUNTED} for row in read["devices"]]
        others = [sum(row.get("not_passed", {}).values()) for row in read["devices"]]
        rows = [{**row, "others": other} for row, other in zip(rows, others, strict=True)]
        total = {name: sum(row[name] for row in rows) for name in _COUNTED[2:]}
        return {"torch": read["torch"], "ran": read.get("ran", False), "rows": rows, "total": total}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of counts; write one with ampcheck coverage --json {path}") from error


def power(path: Path) -> dict[str, object]:
    """Read what `ampcheck power --json` wrote. Raises UsageError where it is no such file."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        counted = ("killed", "nightly", "mutants")
        rows = [{name: row[name] for name in ("name", *counted)} for row in read["modules"]]
        counts = {name: read[name] for name in ("torch", "devices", *counted, "generated", "survivors")}
        return {**counts, "rows": rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of figures; write one with ampcheck power --json {path}") from error


def deviations(history: History, entries: Sequence[Deviation]) -> dict[str, object]:
    """Every deviation with the newest run's cases that hit it; those that no entry here explains come last."""
    hits: dict[str, list[Result]] = {}
    for result in history.newest.results.values():
        for name in filter(None, result.deviation.split(", ")):
            hits.setdefault(name, []).append(result)
    rows = []
    for entry in entries:
        about = {name: getattr(entry, name) for name in ("id", "kind", "reason", "link", "raises", "torch", "added")}
        found = hits.get(entry.id, [])
        mine = [result for result in found if entry.covers(result.name)]
        hits[entry.id] = [result for result in found if not entry.covers(result.name)]
        about |= {"cases": entry.cases, "but": entry.but, "only": entry.devices}
        rows.append({**about, "file": _short(entry.file), **_hit(mine)})
    for name, results in sorted((name, results) for name, results in hits.items() if results):
        reason = "The run names this entry, but none here covers these cases: it is another package's, or was changed."
        rows.append({"id": name, "kind": "unknown", "reason": reason, "link": "", "file": "", **_hit(results)})
    return {"entries": rows}


def about(history: History) -> dict[str, object]:
    """Versions, devices, machine and command of the newest run, file by file."""
    run = history.newest
    alone = {**run.header, "file": run.path.name, "note": run.note, "ran": ran(run)}
    parts = []
    for header in run.header.get("parts", [alone]):
        machine = header.get("machine", {})
        parts.append(
            {
                "file": header["file"],
                "note": header["note"],
                "ran": header["ran"],
                "cases": header.get("cases", 0),
                "started": header.get("started", ""),
                "command": shlex.join(map(str, header.get("command", []))),
                "manifest": header.get("manifest", ""),
                "seed": header.get("seed", ""),
                "nightly": header.get("nightly", False),
                "schema": header.get("schema", ""),
                "versions": header.get("versions", {}),
                "machine": ", ".join(f"{name}: {value}" for name, value in machine.items()),
            }
        )
    shown = [
        {
            "name": device["name"],
            "type": device.get("type", ""),
            "key": device.get("key", ""),
            "has_values": device.get("has_values", True),
            "text": ", ".join(f"{name}: {value}" for name, value in device.items() if name not in _DESCRIBED),
        }
        for device in run.header.get("devices", [])
    ]
    return {"parts": parts, "devices": shown}


def judged(run: Run) -> tuple[str, str]:
    """Return a run's colour and its sentence: green, red, or grey where it tells too little."""
    if interrupted(run):
        return "grey", "The run was interrupted."
    if not ran(run):
        return "grey", "Nothing was measured."
    if not is_red(run):
        if without := without_passes(run.results.values()):
            return "grey", f"Nothing is red, but no case passed on {', '.join(without)}."
        return "green", "Every case is as promised or a known deviation."
    red = sum(1 for result in run.results.values() if SHOWN[result.status].red)
    parts = [f"{number(red)} {'case needs' if red == 1 else 'cases need'} a person"] if red else []
    globs = len(stale(run))
    parts += [f"{number(globs)} stale deviation {'glob' if globs == 1 else 'globs'}"] if globs else []
    return "red", "; ".join(parts) + "."


def _cause(cause: Cause, said: Mapping[str, str]) -> dict[str, object]:
    return {
        "text": cause.line().removeprefix(f"{cause.example.status}: "),
        "status": cause.example.status,
        "count": len(cause.results),
        "href": matrix_href({"cause": cause.text}),
        "rows": [row for row in _by_device(cause.results, ()) if row.total],
        "example": cause.example,
        "said": said.get(cause.example.key, ""),
    }


def used(counts: Counter[str]) -> list[Status]:
    """Return the statuses that occur, in their usual order."""
    return [status for name, status in SHOWN.items() if counts[name]]


def _summary(run: Run, name: str) -> dict[str, object]:
    return {"name": name, "on": _on(run), **facts(run)}


def _on(run: Run) -> str:
    """Return a run's devices in few words, e.g. "cpu, 4 virtual devices"."""
    unreal = virtual(run)
    names = [name for name in devices(run) if name not in unreal]
    if unreal:
        names.append(f"{len(unreal)} virtual device{'' if len(unreal) == 1 else 's'}")
    return ", ".join(names) or "no device"


def _by_device(results: Iterable[Result], first: Sequence[str]) -> list[Tally]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in first}
    for result in results:
        counts.setdefault(result.device, Counter())[result.status] += 1
    return [Tally(name, count) for name, count in counts.items()]


def _by_rule(run: Run) -> list[Tally]:
    counts: dict[str, Counter[str]] = {}
    for result in run.results.values():
        counts.setdefault(result.rule, Counter())[result.status] += 1
    order = [*RULES, *sorted(counts.keys() - RULES.keys())]
    return [
        Tally(name, counts[name], RULES[name].sentence if name in RULES else "") for name in order if name in counts
    ]


def _hit(results: Sequence[Result]) -> dict[str, object]:
    rows = [row for row in _by_device(results, ()) if row.total]
    return {
        "hits": sorted(result.key for result in results),
        "devices": rows,
        "used": used(sum((row.counts for row in rows), Counter())),
    }


def _short(file: str) -> str:
    """Return a deviations file without the folders of the machine the site was built on."""
    package = Path(__file__).parents[3]
    path = Path(file)
    return str(path.relative_to(package)) if path.is_relative_to(package) else path.name


LABEL = "ampcheck"
COLORS = {"green": "#2f7d43", "red": "#b3261e", "grey": "#6b7280"}
_LISTED = 20


def exports(history: History) -> dict[str, str]:
    """Return the exports of a site, by file name."""
    newest, previous = history.newest, history.previous
    comparison = compare(previous, newest) if previous else None
    return {
        "badge.svg": svg(newest),
        "badge.json": shields(newest),
        "summary.md": summary(newest, comparison),
        "changes.json": comparison.as_json() if comparison else "{}",
    }


def message(run: Run) -> tuple[str, str]:
    """Return the badge's text and colour. Cases on virtual devices are counted, and named as such."""
    if interrupted(run):
        return f"interrupted: {number(ran(run))} of {number(expected(run))} ran", "grey"
    if not ran(run):
        return "not measured", "grey"
    counts = run.counts()
    unreal = virtual(run)
    passed = counts["pass"]
    of_virtual = sum(1 for r in run.results.values() if r.status == "pass" and r.device in unreal)
    text = f"{number(passed)} as promised"
    if of_virtual:
        text += f" ({number(of_virtual)} virtual)"
    if known := counts["deviation"]:
        text += f" · {number(known)} known deviation{'' if known == 1 else 's'}"
    red = sum(count for status, count in counts.items() if SHOWN[status].red)
    if red:
        text += f" · {number(red)} red"
    if stale(run):
        text += f" · {number(len(stale(run)))} stale"
    if without := without_passes(run.results.values()):
        text += f" · none on {', '.join(without)}"
    return text, judged(run)[0]


def shields(run: Run) -> str:
    """Return the JSON of a shields.io endpoint badge."""
    text, color = message(run)
    return json.dumps({"schemaVersion": 1, "label": LABEL, "message": text, "color": COLORS[color]}, indent=1) + "\n"


def svg(run: Run) -> str:
    """Return the badge as an SVG that needs no font but a sans-serif one."""
    text, color = message(run)
    left, right = _width(LABEL) + 12, _width(text) + 12
    whole = f"{LABEL}: {text}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(whole)}"><title>{escape(whole)}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#3f454d"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLORS[color]}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="6" y="14" textLength="{left - 12}">{escape(LABEL)}</text>'
        f'<text x="{left + 6}" y="14" textLength="{right - 12}">{escape(text)}</text></g></svg>\n'
    )


def summary(run: Run, comparison: Comparison | None = None) -> str:
    """Return a run as Markdown, for a job summary or a comment: verdict, changes, counts, causes."""
    _, verdict = judged(run)
    cut = f" {markdown(run.note)}." if interrupted(run) else ""
    parts = ["## ampcheck", "", f"**{verdict}**{cut} {number(ran(run))} of {number(expected(run))} cases ran."]
    if comparison:
        flips = ", ".join(f"{number(len(comparison.group(name)))} {name}" for name in GROUPS)
        parts += ["", f"Since {markdown(comparison.a)}: {flips}; {number(comparison.unchanged)} unchanged."]
        parts += [f"\nNote: {markdown(note)}." for note in comparison.notes]
        parts += _listed(
            "Regressed", [f"`{c.key}` {c.words}: {markdown(first_line(c.message))}" for c in comparison.regressed]
        )
    parts += ["", *_counts(run)]
    if without := nothing_passed(run.results.values()):
        parts += ["", f"Note: {markdown(without)}."]
    parts += causes_markdown(run.results.values(), reproduced(run))
    parts += _listed("Stale deviations", [markdown(line) for line in stale(run)])
    return "\n".join(parts) + "\n"


def _counts(run: Run) -> list[str]:
    shown = used(run.counts())
    unreal = virtual(run)
    lines = [
        "| device | cases | " + " | ".join(f"{s.mark} {s.label}" for s in shown) + " |",
        "| --- |" + " ---: |" * (len(shown) + 1),
    ]
    names = dict.fromkeys([*devices(run), *(result.device for result in run.results.values())])
    for name in names:
        statuses = [result.status for result in run.results.values() if result.device == name]
        note = " (virtual: dtypes and casts only)" if name in unreal else ""
        cells = [number(statuses.count(status.name)) for status in shown]
        lines.append(f"| {markdown(name)}{note} | {number(len(statuses))} | " + " | ".join(cells) + " |")
    return lines


def _listed(heading: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    left = [f"- and {number(len(lines) - _LISTED)} more"] if len(lines) > _LISTED else []
    return ["", f"### {heading}", "", *(f"- {line}" for line in lines[:_LISTED]), *left]


def _width(text: str) -> int:
    """About how wide a text is in 11 px Verdana."""
    narrow, wide = "fijlrt.,:;·'()I|! \N{NO-BREAK SPACE}", "mwMW%@"
    return round(sum(4.2 if char in narrow else 10.5 if char in wide else 7.0 for char in text))
