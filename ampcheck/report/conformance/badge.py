"""A run for other pages: an SVG badge, the JSON that shields.io reads, a Markdown job summary, what changed as JSON."""

from __future__ import annotations

import json
from html import escape

from ampcheck.report.conformance.data import SHOWN, number
from ampcheck.report.conformance.pages import judged, used
from ampcheck.report.history import History, expected, ran, reproduced, stale, virtual
from ampcheck.runner.record import Run, first_line
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

LABEL = "ampcheck"
COLORS = {"green": "#2f7d43", "red": "#b3261e", "grey": "#6b7280"}
_LISTED = 20


def files(history: History) -> dict[str, str]:
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
