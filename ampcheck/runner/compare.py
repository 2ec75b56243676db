"""Compare two runs case by case, and merge the runs of one night.

A total hides that one case broke while another was repaired, so a comparison lists flips.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from ampcheck.errors import UsageError
from ampcheck.runner.results import RED, SCHEMA, Result, Run, manifest_hash
from ampcheck.spec.ids import Shard

_NAMED = 8
"""How many missing shards are named."""

GROUPS = ("regressed", "fixed", "changed", "removed", "added")
"""The groups of a comparison, in the order in which a reader needs them."""

MEANING = {
    "regressed": "not red before, red now; or passed before, and does not now",
    "fixed": "red before, not red now; or passes now, and did not",
    "changed": "another status, as bad as before",
    "removed": "only in the earlier run",
    "added": "only in the later run",
}


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
    common: int
    still_red: int
    regressed: tuple[Change, ...]
    fixed: tuple[Change, ...]
    changed: tuple[Change, ...]
    removed: tuple[Change, ...]
    added: tuple[Change, ...]
    notes: tuple[str, ...] = ()

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
        parts = [f"from {self.a}", f"to   {self.b}", self.sentence(), *(f"note: {note}" for note in self.notes)]
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
        return heading, ["device", "rule", "status", "cases"], [[*what, n] for what, n in sorted(counts.items())]


def first_line(text: str, width: int = 200) -> str:
    """Return the first line of a message, cut to what fits a line of a terminal or a cell of a table."""
    line = text.partition("\n")[0]
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


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


def interrupted(run: Run) -> bool:
    """Return whether the run, or one it was merged of, ended before its last case."""
    return run.footer is None


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
        name = _group(before, after)
        if name:
            groups[name].append(_change(before, after))
    still = sum(1 for key in common if _red(a.results[key]) and _red(b.results[key]))
    return Comparison(
        describe(a), describe(b), len(common), still, **{k: tuple(v) for k, v in groups.items()}, notes=_notes(a, b)
    )


def _red(result: Result) -> bool:
    return result.status in RED


def _group(before: Result | None, after: Result | None) -> str:
    if before is None or after is None:
        return "added" if before is None else "removed"
    worse = _badness(after) - _badness(before)
    if worse:
        return "regressed" if worse > 0 else "fixed"
    return "changed" if before.status != after.status else ""


def _badness(result: Result) -> int:
    """Return 0 for a pass, 1 for a case that is not red but shows no promise kept, 2 for a red one."""
    return 2 if _red(result) else 0 if result.status == "pass" else 1


def _change(before: Result | None, after: Result | None) -> Change:
    shown = before or after  # a missing case knows only its name, so the earlier result tells the device better
    assert shown is not None  # a key of neither run is never asked for
    return Change(
        shown.key,
        shown.device,
        shown.rule,
        before.status if before else "",
        after.status if after else "",
        (after.message if after else "") or (before.message if before else ""),
    )


def _notes(a: Run, b: Run) -> tuple[str, ...]:
    notes = []
    for run, what in ((a, "earlier"), (b, "later")):
        if interrupted(run):
            notes.append(f"the {what} run was interrupted ({run.note}), so cases it lacks may only not have run")
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
    if not lacking and not any(interrupted(run) for run in runs):
        footers = [run.footer or {} for run in runs]
        out.footer = {
            "kind": "footer",
            "counts": dict(out.counts()),
            "seconds": round(sum(footer.get("seconds", 0.0) for footer in footers), 3),
            "stale": _distinct(line for footer in footers for line in footer.get("stale", [])),
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


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
