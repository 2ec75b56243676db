"""Fill each page with plain values made from the runs, so that templates only lay them out."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote, urlencode

from ampcheck.errors import UsageError
from ampcheck.report.conformance.data import AREAS, OP_RULES, SHOWN, Status, area, facts, number, options, run_names
from ampcheck.report.history import History, expected, ran, reproduced, stale, virtual
from ampcheck.runner import summarize as comparing
from ampcheck.runner.deviations import Deviation
from ampcheck.runner.record import Cause, Result, Run, counted, first_line, grouped
from ampcheck.spec.case import RULES
from ampcheck.tools.user_program import drawn

_CAUSES = 20
"""The first page shows this many causes, the first few in full."""

_CHOOSING = ("--suite", "--device", "--op", "--rule", "--amp-dtype", "--compiler", "--last-failed", "-k")
"""The options that take one value and leave cases out."""

_COUNTED = ("device", "key", "cells", "reachable", "each_run", "nightly")
"""What the first page shows of `ampcheck coverage`."""

_DESCRIBED = ("name", "token", "type", "key", "has_values")


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
    "shorten": lambda text: shorten(text, 400, placeholder=" …"),
    "capitalize_first": lambda text: text[:1].upper() + text[1:],
    "shell": lambda words: shlex.join(map(str, words)),
}


def common(history: History) -> dict[str, object]:
    """Return the values of every page."""
    absent: dict[str, list[str]] = {}
    for name, reason in history.newest.header.get("absent", {}).items():
        absent.setdefault(reason, []).append(name)
    return {
        "run": _summary(history.newest, run_names(history)[0]),
        "statuses": SHOWN,
        "unreal": set().union(*(virtual(run) for run in history.runs)),
        "left_out": history.left_out,
        "absent": absent,
        "drift": history.newest.header.get("drift", []),
        "torch": history.newest.header.get("versions", {}).get("torch", "of unknown version"),
    }


def devices_page(history: History) -> dict[str, object]:
    """Return the first page: a card for each device, what is wrong and since when, rules by devices, what changed."""
    newest, previous = history.newest, history.previous
    before = next((row for run, row in zip(history.runs, runs(history), strict=True) if run is previous), None)
    causes = grouped(newest.results.values())
    state, verdict = judged(newest)
    results = list(newest.results.values())
    names = [*dict.fromkeys([*comparing.devices(newest), *(result.device for result in results)])]
    cards = sorted((_card(name, newest) for name in names), key=lambda card: _ORDER.index(card["state"]))
    shown = [str(card["name"]) for card in cards]
    return {
        "state": state,
        "verdict": verdict,
        "chosen": ("--smoke " if newest.header.get("smoke") else "") + options(newest, _CHOOSING),
        "go_on": SHOWN["missing"].todo if comparing.unfinished(newest) else "",
        "cards": cards,
        "grid": _grid(results, shown, areas=True),
        "rules": _grid(results, shown, areas=False),
        "comparison": comparing.compare(previous, newest) if previous else None,
        "previous": before,
        "passed_over": history.runs.index(previous) - 1 if previous else 0,
        "compare_href": "compare.html#" + urlencode({"a": before["name"], "b": run_names(history)[0]})
        if before
        else "",
        "groups": comparing.GROUPS,
        "meaning": comparing.MEANING,
        "causes": [_cause(cause, reproduced(newest), history) for cause in causes[:_CAUSES]],
        "more_causes": len(causes[_CAUSES:]),
        "red": sum(len(cause.results) for cause in causes),
        "stale": stale(newest),
        "notes": outside(newest),
        "runs": len(history.runs),
    }


def runs(history: History) -> list[dict[str, object]]:
    """Return a row for each run: when, with which torch, on what, how far, and its counts."""
    named = zip(history.runs, run_names(history), strict=True)
    return [{**_summary(run, name), "counts": run.counts(), "state": judged(run)[0]} for run, name in named]


def history_page(history: History) -> dict[str, object]:
    """Return the runs, and the statuses that occur in any of them."""
    return {"history": runs(history), "ever": used(sum((run.counts() for run in history.runs), Counter()))}


_ORDER = ("red", "grey", "amber", "green")
"""The states of cards, in the order in which they are shown."""


def _card(name: str, run: Run) -> dict[str, object]:
    """Return a device's answer: whether it keeps its promises, in a sentence, with the rules that it does not keep."""
    results = [result for result in run.results.values() if result.device == name]
    counts = Counter(result.status for result in results)
    red = [result for result in results if SHOWN[result.status].red]
    wrong = [result for result in red if result.status in ("fail", "broken", "crash", "timeout")]
    broken = list(dict.fromkeys(result.rule for result in wrong))
    tested = {result.rule for result in results if result.status != "missing"}
    if wrong:
        state, sentence = "red", f"Does not keep {len(broken)} of {_counted(len(tested), 'rule')}"
    elif red:
        kinds = ", ".join(f"{number(counts[status.name])} {status.label}" for status in used(counts) if status.red)
        state, sentence = "red", f"Keeps the rules that were measured, but needs a person: {kinds}"
    elif comparing.unfinished(run):
        state, sentence = "grey", "Nothing is wrong so far"
    elif not counts["pass"]:
        state, sentence = "grey", "Nothing is known: no case passed"
    elif counts["deviation"] > counts["pass"]:
        state, sentence = "amber", "Differs from PyTorch in most cases, in ways that are known"
    else:
        but = ", but for known deviations" if counts["deviation"] else ""
        state, sentence = "green", f"Keeps its promises{but}"
    shown = [(status, counts[status.name]) for status in used(counts)]
    return {"name": name, "state": state, "sentence": sentence, "broken": broken, "counts": shown}


def _grid(results: Sequence[Result], names: Sequence[str], *, areas: bool) -> list[dict[str, Any]]:
    """Return a line for each rule, or each area of rules, with a cell for each device; those with red cases first."""
    cells: dict[str, dict[str, Counter[str]]] = {}
    for result in results:
        line = area(result) if areas else result.rule
        cells.setdefault(line, {}).setdefault(result.device, Counter())[result.status] += 1
    order = [*OP_RULES, *AREAS] if areas else [*RULES, *sorted(cells.keys() - RULES.keys())]
    out = []
    for line in (line for line in order if line in cells):
        filters = {"area": line} if areas else {"rule": line}
        row = [_cell(name, cells[line].get(name, Counter()), filters) for name in names]
        sentence = AREAS.get(line, "") or (RULES[line].sentence if line in RULES else "")
        red = any(cell["state"] == "red" for cell in row)
        out.append({"name": line, "sentence": sentence, "cells": row, "red": red})
    return sorted(out, key=lambda line: not line["red"])


def _cell(device: str, counts: Counter[str], filters: Mapping[str, str]) -> dict[str, Any]:
    """Return what a device does about a rule: the worst status, and how many cases have it."""
    total = counts.total()
    red = sum(count for status, count in counts.items() if SHOWN[status].red)
    if red:
        state, mark, what, status, amount = "red", "✗", "red", "red", red
    elif counts["deviation"]:
        state, mark, what, status, amount = "amber", "≠", "known deviation", "deviation", counts["deviation"]
    elif counts["pass"]:
        state, mark, what, status, amount = "green", "✓", "as promised", "", counts["pass"]
    else:
        state, mark, what, status, amount = "grey", "∅" if total else "–", "unsupported", "", total
    href = matrix_href({**filters, "device": device, **({"status": status} if status else {})})
    return {"state": state, "mark": mark, "what": what, "amount": amount, "total": total, "href": href}


def _since(cause: Cause, history: History) -> str:
    """Say since which run cases of a cause are red, and when they last were not."""
    keys = [result.key for result in cause.results]
    first = history.newest
    for run in history.runs[1:]:
        mine = [run.results[key] for key in keys if key in run.results and run.results[key].status != "missing"]
        if mine and not any(SHOWN[result.status].red for result in mine):
            return f"{_when(first)}; not red on {_when(run, beside=first)}"
        first = run if mine else first
    if len(history.runs) == 1:
        return f"{_when(first)}, the only run here"
    return f"{_when(first)}, the first run here that has {'it' if len(keys) == 1 else 'them'}"


def _when(run: Run, beside: Run | None = None) -> str:
    """Return when a run began and with which torch, which is left out where it is that of the run `beside`."""
    about, other = facts(run), facts(beside)["torch"] if beside else ""
    started = str(about["started"]).replace("T", " ")[:16]
    return started if about["torch"] == other else f"{started}, torch {about['torch']}"


def _counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def states(path: Path) -> dict[str, object]:
    """Read what `ampcheck coverage --json` wrote. Raises UsageError where it is no such file."""

    def made(read: Any) -> dict[str, object]:
        rows = [{name: row[name] for name in _COUNTED} for row in read["devices"]]
        for row, device in zip(rows, read["devices"], strict=True):
            row["others"] = sum(device.get("not_passed", {}).values())
        total = {name: sum(row[name] for row in rows) for name in _COUNTED[2:]}
        about = {name: read.get(name) for name in ("ran", "surface")}
        return {**about, "torch": read["torch"], "rows": rows, "total": total}

    return _figures(path, "counts", "coverage", made)


def power(path: Path) -> dict[str, object]:
    """Read what `ampcheck power --json` wrote. Raises UsageError where it is no such file."""
    counted = ("killed", "nightly", "mutants")

    def made(read: Any) -> dict[str, object]:
        rows = [{name: row[name] for name in ("name", *counted)} for row in read["modules"]]
        counts = {name: read[name] for name in ("torch", "devices", *counted, "generated", "survivors")}
        return {**counts, "rows": rows}

    return _figures(path, "figures", "power", made)


def _figures(path: Path, what: str, command: str, made: Callable[[Any], dict[str, object]]) -> dict[str, object]:
    try:
        return made(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of {what}; write one with ampcheck {command} --json {path}") from error


def deviations(history: History, entries: Sequence[Deviation]) -> dict[str, object]:
    """Return the deviations by the file that has them, with the newest run's cases that hit them, most cases first.

    Those that no entry here explains come last.
    """
    hits: dict[str, list[Result]] = {}
    for result in history.newest.results.values():
        for name in filter(None, result.deviation.split(", ")):
            hits.setdefault(name, []).append(result)
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        about = {name: getattr(entry, name) for name in ("id", "kind", "reason", "link", "raises", "torch", "added")}
        found = hits.get(entry.id, [])
        mine = [result for result in found if entry.covers(result.name)]
        hits[entry.id] = [result for result in found if not entry.covers(result.name)]
        # Without the folders of the machine that the site was built on.
        file = Path(entry.file).name if Path(entry.file).is_absolute() else entry.file
        about |= {"cases": entry.cases, "but": entry.but, "only": entry.devices, "file": file}
        groups.setdefault(_library(entry.file), []).append({**about, **_hit(mine)})
    reason = "The run names this entry, but none here covers these cases: it is another package's, or was changed."
    unknown = {"kind": "unknown", "reason": reason, "link": "", "file": "", "raises": ""}
    left = sorted((name, results) for name, results in hits.items() if results)
    if left:
        groups["Not explained here"] = [{**unknown, "id": name, **_hit(results)} for name, results in left]
    named: set[str] = set()
    for rows in groups.values():
        rows.sort(key=lambda row: (-len(row["hits"]), row["id"]))
        for row in rows:
            row["first"] = row["id"] not in named  # entries of several files can have one id, which a page has once
            named.add(row["id"])
    return {"deviations": groups}


def _library(file: str) -> str:
    """Name the part of PyTorch or the device that a deviations file is about."""
    path = Path(file)
    match path.parts:
        case "ampcheck", "devices", device, _:
            return f"The device {device}"
        case "ampcheck", "devices", _:
            known = {"deviations": "PyTorch on every device", "kernels": "PyTorch's autocast kernels"}
            return known.get(path.stem, "PyTorch's compilers")
    return path.name


def about(history: History) -> dict[str, object]:
    """Versions, devices, machine and command of the newest run, file by file."""
    run = history.newest
    alone = {**run.header, "file": run.path.name, "note": run.note, "ran": ran(run)}
    parts, devices = run.header.get("parts", [alone]), run.header.get("devices", [])
    return {"parts": parts, "devices": devices, "described": _DESCRIBED}


def judged(run: Run) -> tuple[str, str]:
    """Return a run's colour and its sentence: red, else grey where it tells too little, else green."""
    red = [result for result in run.results.values() if SHOWN[result.status].red]
    where = ", ".join(dict.fromkeys(result.device for result in red))
    parts = [f"{_counted(len(red), 'case')} {'is' if len(red) == 1 else 'are'} red on {where}"] if red else []
    parts += [f"{_counted(len(outside(run)), 'thing')} went wrong outside of the cases"] if outside(run) else []
    parts += [f"{_counted(len(stale(run)), 'pattern')} of known deviations without a case"] if stale(run) else []
    if parts:
        return "red", "; ".join(filter(None, [*parts, comparing.unfinished(run)])) + "."
    if comparing.unfinished(run):
        return "grey", f"Nothing is red so far; {comparing.unfinished(run)}."
    if not ran(run):
        return "grey", "Nothing was measured."
    if without := comparing.without_passes(run.results.values()):
        return "grey", f"Nothing is red, but no case passed on {', '.join(without)}."
    return "green", "Every case is as promised or a known deviation."


def outside(run: Run) -> list[str]:
    """Return the run's sentences about what went wrong outside of every case."""
    return list((run.footer or {}).get("notes", []))


def _cause(cause: Cause, said: Mapping[str, str], history: History) -> dict[str, object]:
    example = cause.example
    rules = dict.fromkeys(result.rule for result in cause.results)
    promise = RULES[example.rule].sentence if example.rule in RULES else ""
    return {
        "text": cause.line().removeprefix(f"{example.status}: "),
        "status": example.status,
        "count": len(cause.results),
        "href": matrix_href({"cause": cause.text}),
        "devices": list(dict.fromkeys(result.device for result in cause.results)),
        "rules": list(rules),
        "since": _since(cause, history),
        "promise": promise if example.status in ("fail", "crash", "timeout") else "",
        "todo": SHOWN[example.status].todo,
        "example": example,
        "said": said.get(example.key, ""),
    }


def used(counts: Counter[str]) -> list[Status]:
    """Return the statuses that occur, in their usual order."""
    return [status for name, status in SHOWN.items() if counts[name]]


def _summary(run: Run, name: str) -> dict[str, object]:
    return {"name": name, "on": _on(run), **facts(run)}


def _on(run: Run) -> str:
    """Return a run's devices in few words, e.g. "cpu, 4 virtual devices"."""
    unreal = virtual(run)
    names = [name for name in comparing.devices(run) if name not in unreal]
    if unreal:
        names.append(counted(len(unreal), "virtual device"))
    return ", ".join(names) or "no device"


def _hit(results: Sequence[Result]) -> dict[str, object]:
    found = dict.fromkeys(result.device for result in results)
    return {"hits": sorted(result.key for result in results), "devices": list(found)}


LABEL = "ampcheck"
COLORS = {"green": "#2f7d43", "red": "#b3261e", "grey": "#6b7280"}
_LISTED = 20


def exports(history: History) -> dict[str, str]:
    """Return the exports of a site, by file name."""
    newest, previous = history.newest, history.previous
    comparison = comparing.compare(previous, newest) if previous else None
    return {
        "badge.svg": svg(newest),
        "badge.json": shields(newest),
        "summary.md": summary(newest, comparison),
        "changes.json": comparison.as_json() if comparison else "{}",
    }


def message(run: Run) -> tuple[str, str]:
    """Return the badge's text and colour, red cases first. Cases on virtual devices are counted, and named as such."""
    color = judged(run)[0]
    counts = run.counts()
    red = sum(count for status, count in counts.items() if SHOWN[status].red)
    parts = [f"{number(red)} red"] if red else []
    parts += [f"{number(len(stale(run)))} stale"] if stale(run) else []
    if comparing.unfinished(run):
        return " · ".join([*parts, f"incomplete: {number(ran(run))} of {number(expected(run))} ran"]), color
    if not ran(run):
        return " · ".join([*parts, "not measured"]), color
    unreal = virtual(run)
    of_virtual = sum(1 for r in run.results.values() if r.status == "pass" and r.device in unreal)
    parts.append(f"{number(counts['pass'])} as promised" + (f" ({number(of_virtual)} virtual)" if of_virtual else ""))
    parts += [_counted(counts["deviation"], "known deviation")] if counts["deviation"] else []
    if without := comparing.without_passes(run.results.values()):
        parts.append(f"none on {', '.join(without)}")
    return " · ".join(parts), color


def shields(run: Run) -> str:
    """Return the JSON of a shields.io endpoint badge."""
    text, color = message(run)
    return json.dumps({"schemaVersion": 1, "label": LABEL, "message": text, "color": COLORS[color]}, indent=1) + "\n"


def svg(run: Run) -> str:
    """Return the badge as an SVG that needs no font but a sans-serif one."""
    text, color = message(run)
    wide = {"left": _width(LABEL) + 12, "right": _width(text) + 12}
    return drawn(Path(__file__).with_name("badge.svg"), label=LABEL, text=text, color=COLORS[color], **wide)


def summary(run: Run, comparison: comparing.Comparison | None = None) -> str:
    """Return a run as Markdown, with what changed since an earlier one."""
    cut = "" if run.note == comparing.unfinished(run) else f" {comparing.markdown(run.note)}."
    ended = f"{number(ran(run))} of {number(expected(run))} cases ran.{cut}"
    changes: list[str] = []
    if comparison:
        flips = ", ".join(f"{number(len(comparison.group(name)))} {name}" for name in comparing.GROUPS)
        changes += ["", f"Since {comparing.markdown(comparison.a)}: {flips}; {number(comparison.unchanged)} unchanged."]
        changes += [f"\nNote: {comparing.markdown(note)}." for note in comparison.notes]
        said = [(f"`{c.key}` {c.words}", first_line(c.message)) for c in comparison.regressed]
        changes += _listed("Regressed", [f"{words}: {comparing.markdown(line)}" for words, line in said])
    told = judged(run)[1], ended, stale(run), reproduced(run)
    return comparing.as_markdown(run.results.values(), *told, changes=changes, unreal=virtual(run))


def _listed(heading: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    left = [f"- and {number(len(lines) - _LISTED)} more"] if len(lines) > _LISTED else []
    return ["", f"### {heading}", "", *(f"- {line}" for line in lines[:_LISTED]), *left]


def _width(text: str) -> int:
    """About how wide a text is in 11 px Verdana."""
    narrow, wide = "fijlrt.,:;·'()I|! \N{NO-BREAK SPACE}", "mwMW%@"
    return round(sum(4.2 if char in narrow else 10.5 if char in wide else 7.0 for char in text))
