"""A trace as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from tabulate import tabulate

from ampcheck.errors import UsageError
from ampcheck.tools.trace.records import CastRecord, OpRecord

Sort = Literal["order", "bytes", "casts"]
SORTS: tuple[str, ...] = get_args(Sort)
_TOP = 5
# A quarter of the number of equal terms after which a sum in that precision stops growing.
_MANY_TERMS = {"bf16": 64, "fp16": 512}


@dataclass(slots=True)
class _Row:
    """The calls of one op at one place that autocast treated alike."""

    first: OpRecord
    calls: int
    casts: list[CastRecord]
    hits: int

    @property
    def bytes(self) -> int:
        return sum(cast.bytes for cast in self.casts)


def _rows(ops: Iterable[OpRecord]) -> list[_Row]:
    rows: dict[tuple[str, ...], _Row] = {}
    for op in ops:
        key = (op.name, op.policy, op.phase, op.module, op.location, str(op.region), op.dtype, op.error)
        row = rows.setdefault(key, _Row(op, 0, [], 0))
        row.calls += 1
        row.casts += op.casts
        row.hits += op.cache_hits
    return list(rows.values())


def table(ops: list[OpRecord], sort: Sort = "order", limit: int | None = None) -> str:
    """See `Trace.table`."""
    if sort not in SORTS:
        raise UsageError(f"a trace cannot be sorted by {sort!r}; it can by {', '.join(SORTS)}")
    if limit is not None and limit < 1:
        raise UsageError(f"the limit must be 1 or more rows, not {limit}")
    rows = _rows(ops)
    keys: dict[str, Callable[[_Row], int]] = {"bytes": lambda row: -row.bytes, "casts": lambda row: -len(row.casts)}
    if sort in keys:
        rows.sort(key=keys[sort])
    cells = [_cells(row) for row in rows[:limit]]
    heads = ("op", "policy", "region", "ran in", "calls", "casts", "from→to", "cast", "cache hits", "module", "line")
    text = tabulate(cells, heads, tablefmt="simple", disable_numparse=True, colalign=("left",) * 4 + ("right",) * 2)
    if limit is not None and len(rows) > limit:
        text += f"\n{limit} of {len(rows)} rows"
    return text


def _cells(row: _Row) -> tuple[str, ...]:
    op = row.first
    changes = Counter(f"{cast.given}→{cast.got}{_BY[cast.origin]}" for cast in row.casts)
    name = op.name if op.phase == "forward" else f"↩ {op.name}"
    return (
        name,
        op.policy,
        str(op.region),
        op.error or op.dtype,
        str(row.calls),
        str(len(row.casts) or ""),
        ", ".join(changes),
        size(row.bytes) if row.casts else "",
        str(row.hits or ""),
        op.module,
        op.location,
    )


_BY = {"autocast": "", "gradient": " (gradient)", "user": " (user)", "op": " (op)"}


def size(count: int) -> str:
    """Write a number of bytes for people: "512 B", "1.5 kB", "2.0 MB"; powers of 1000."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    unit = "B"
    for larger in ("kB", "MB", "GB"):
        if value < 999.95:
            break
        value /= 1000
        unit = larger
    return f"{value:.1f} {unit}"


def totals(ops: list[OpRecord]) -> dict[str, int]:
    """Return the trace in numbers. `casts` and `bytes` are autocast's; `other_casts` the program's and the ops' own."""
    autocasts = [cast for op in ops for cast in op.autocasts]
    ran = Counter(op.ran_in for op in ops)
    return {
        "ops": len(ops),
        "low": ran["low"],
        "float32": ran["float32"],
        "other": ran["other"],
        "none": ran["none"],
        "casts": len(autocasts),
        "gradient_casts": sum(cast.origin == "gradient" for cast in autocasts),
        "bytes": sum(cast.bytes for cast in autocasts),
        "ops_with_casts": sum(bool(op.autocasts) for op in ops),
        "cache_hits": sum(op.cache_hits for op in ops),
        "other_casts": sum(len(op.casts) - len(op.autocasts) for op in ops),
    }


def summary(ops: list[OpRecord]) -> str:
    """See `Trace.summary`."""
    n = totals(ops)
    if not n["ops"]:
        return "no op ran on a tensor"
    share = 100 * n["ops_with_casts"] / n["ops"]
    lines = [
        f"{n['ops']} ops: {n['low']} in low precision, {n['float32']} in float32, {n['other']} in mixed or other "
        f"dtypes, {n['none']} that only cast or are not floating-point",
        f"{n['casts']} casts by autocast, {n['gradient_casts']} of them of gradients: {size(n['bytes'])} read and "
        f"written, for {share:.0f} % of the ops",
        f"{n['cache_hits']} casts saved by the weight cache",
    ]
    if n["other_casts"]:
        lines.append(f"{n['other_casts']} further casts by the program or by ops themselves")
    top = _top_sources(ops)
    if top:
        lines += ["most bytes are cast from:", *(f"  {line}" for line in top)]
    found = hints(ops)
    if found:
        lines += ["hints:", *(f"  {line}" for line in found)]
    return "\n".join(lines)


def _top_sources(ops: list[OpRecord]) -> list[str]:
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for op in ops:
        for cast in op.autocasts:
            at = f" at {op.location}" if op.location and cast.kind in ("input", "activation") else ""
            label = f"{cast.kind} {cast.source}{at}" if cast.origin == "autocast" else f"{cast.source}{at}"
            count[label] += 1
            moved[label] += cast.bytes
    return [f"{label}: {times(count[label])}, {size(number)}" for label, number in moved.most_common(_TOP)]


def times(count: int) -> str:
    """ "once", "twice", "7 times"."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def hints(ops: list[OpRecord]) -> list[str]:
    """See `Trace.hints`."""
    return [
        *_nonfinite(ops),
        *_stale(ops),
        *_summed_low(ops),
        *_repeated(ops),
        *_inputs(ops),
        *_kept_wide(ops),
        *_errors(ops),
    ]


def _nonfinite(ops: list[OpRecord]) -> list[str]:
    first = next((op for op in ops if op.nonfinite), None)
    if first is None:
        return []
    where = f" at {first.location}" if first.location else ""
    returned = f"returned {first.nonfinite}, in {first.out}"
    return [f"{first.name}{where} is the first op that {returned}: see ampcheck doctor"]


def _stale(ops: list[OpRecord]) -> list[str]:
    found = Counter((name, op.location) for op in ops for name in op.stale)
    return [
        f"weight {name} was changed in place inside the region, but the op at {place} got the copy that the weight "
        f"cache made before ({times(count)}): end the region before weights are changed"
        for (name, place), count in found.items()
    ]


def _summed_low(ops: list[OpRecord]) -> list[str]:
    """Weights whose gradient is a sum of so many terms that the lower precision cannot hold it."""
    found: dict[tuple[str, str], int] = {}
    for op in ops:
        for cast in op.casts:
            if cast.origin == "autocast" and cast.uses >= _MANY_TERMS.get(cast.got, cast.uses + 1):
                found[cast.source, cast.got] = max(cast.uses, found.get((cast.source, cast.got), 0))
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return [
        f"weight {source} is used {times(uses)} through one cached copy, so that many terms of its gradient are summed "
        f"in {got}; cache_enabled=False sums them in float32"
        for (source, got), uses in ordered[:_TOP]
    ]


def _repeated(ops: list[OpRecord]) -> list[str]:
    """Tensors that stay what they are between two steps, and were cast more than once all the same."""
    groups: dict[tuple[int, int, str], list[CastRecord]] = {}
    for op in ops:
        for cast in op.casts:
            if cast.origin == "autocast" and cast.kind in ("weight", "frozen", "view", "buffer"):
                groups.setdefault((cast.key, cast.version, cast.got), []).append(cast)
    merged: dict[tuple[str, str, str], list[int]] = {}
    for casts in groups.values():
        if len(casts) > 1:
            why = casts[-1].cacheable or "the region that its copy was cached for had ended"
            total = merged.setdefault((casts[0].kind, casts[0].source, why), [0, 0])
            total[0] += len(casts)
            total[1] += sum(cast.bytes for cast in casts)
    nouns = {"weight": "weight", "frozen": "parameter", "view": "views of weight", "buffer": "buffer"}
    ordered = sorted(merged.items(), key=lambda item: -item[1][1])
    return [
        f"{count} casts of {nouns[kind]} {source} ({size(moved)}): {why}"
        for (kind, source, why), (count, moved) in ordered[:_TOP]
    ]


def _inputs(ops: list[OpRecord]) -> list[str]:
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for op in ops:
        for cast in op.casts:
            if cast.origin == "autocast" and cast.kind == "input" and cast.got == op.region.dtype:
                total = found.setdefault((op.name, op.location, cast.given, cast.got), [0, 0])
                total[0] += 1
                total[1] += cast.bytes
    ordered = sorted(((key, value) for key, value in found.items() if value[0] > 1), key=lambda item: -item[1][1])
    return [
        f"the input of {name} at {place} is cast {given}→{got} {times(count)} ({size(moved)}): give it as {got}"
        for (name, place, given, got), (count, moved) in ordered[:_TOP]
    ]


def _kept_wide(ops: list[OpRecord]) -> list[str]:
    found = Counter(op.name for op in ops if op.region.enabled and op.policy in ("upcast", "optdtype", "append"))
    listed = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in found.most_common())
    return [f"ops in float32 by policy: {listed}"] if found else []


def _errors(ops: list[OpRecord]) -> list[str]:
    return [f"{op.name} at {op.location} raised {op.error}" for op in ops if op.error]


def to_json(ops: list[OpRecord]) -> str:
    """See `Trace.to_json`."""
    data = {"schema": 1, "totals": totals(ops), "hints": hints(ops), "ops": [op.data() for op in ops]}
    return json.dumps(data, indent=1)
