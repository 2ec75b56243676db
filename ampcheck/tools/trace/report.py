"""A trace as text and as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from msgspec import convert
from tabulate import tabulate

from ampcheck.errors import UsageError, one_line
from ampcheck.runner.record import first_line
from ampcheck.tools import user_program
from ampcheck.tools.trace.records import CastRecord, OpRecord

_Key = TypeVar("_Key")
Sort = Literal["order", "bytes", "casts"]
SORTS: tuple[str, ...] = get_args(Sort)
_TOP = 3
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


def table(ops: list[OpRecord], sort: Sort = "order", limit: int | None = None, width: int | None = None) -> str:
    """See `Trace.table`. `width`: the most columns; places and modules are cut on the left to fit."""
    if sort not in SORTS:
        raise UsageError(f"a trace cannot be sorted by {sort!r}; it can by {', '.join(SORTS)}")
    if limit is not None and limit < 1:
        raise UsageError(f"the limit must be 1 or more rows, not {limit}")
    rows = _rows(ops)
    if sort != "order":
        rows.sort(key=lambda row: -row.bytes if sort == "bytes" else -len(row.casts))
    # By bytes and casts, what makes the model and what updates its weights is no row of its own.
    shown = [x for x in rows if sort == "order" or x.casts or x.first.region.enabled or x.first.error][:limit]
    cells = [_cells(row) for row in shown]
    if width is not None:
        for row in cells:
            row["module"] = row["module"].partition(".")[2] or row["module"]
            row["op"] = first_line(row["op"], _PLACE)
            row["from→to"] = first_line(row["from→to"], _PLACE)
            row["line"] = user_program.end(row["line"].rpartition("/")[2], _PLACE)
    text = _grid(cells)
    if width is not None and (over := max(map(len, text.splitlines())) - width) > 0:
        most = max(max(len(row["module"]) for row in cells) - over, _PLACE // 2)
        text = _grid([{**row, "module": user_program.end(row["module"], most)} for row in cells])
        text = "\n".join(first_line(line, width) for line in text.splitlines())
    left = Counter[str]()
    for other in (row for row in rows if row not in shown):
        left[other.first.name] += other.calls
    if left:
        names = ", ".join(f"{name} {count}" for name, count in left.most_common(_TOP))
        text += f"\n{len(shown)} of {len(rows)} rows; the others: {names}{', …' if len(left) > _TOP else ''}"
    return text


_PLACE = 20
"""The most characters of an op, of the dtypes of casts, and of a file and line where the width is limited."""


def _grid(cells: list[dict[str, str]]) -> str:
    """Lay out rows without the columns that are empty, or that say one region of all."""
    same = {name for name in ("region", "cache hits") if len({row[name] for row in cells}) == 1}
    one = f"all in region {cells[0]['region']}\n" if "region" in same else ""
    heads = [name for name in cells[0] if name not in same]
    aligned = ["right" if name in ("calls", "casts") else "left" for name in heads]
    rows = [[row[name] for name in heads] for row in cells]
    return one + tabulate(rows, heads, tablefmt="simple", disable_numparse=True, colalign=aligned)


def _cells(row: _Row) -> dict[str, str]:
    op = row.first
    changes = Counter(f"{cast.given}→{cast.got}{_BY[cast.origin]}" for cast in row.casts)
    return {
        "op": op.name if op.phase == "forward" else f"↩ {op.name}",
        "policy": op.policy if op.policy != "fallthrough" else "-",
        "region": str(op.region),
        "ran in": op.error or op.dtype,
        "calls": str(row.calls),
        "casts": str(len(row.casts) or ""),
        "from→to": ", ".join(changes),
        "cast": size(row.bytes) if row.casts else "",
        "cache hits": str(row.hits or ""),
        "module": op.module,
        "line": op.location,
    }


_BY = {"autocast": "", "gradient": "", "user": " (user)", "op": " (op)"}


def size(count: int) -> str:
    """Write a number of bytes for people: "512 B", "1.5 kB", "2.0 MB"; powers of 1000."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if value >= 999.95:
            value, unit = value / 1000, larger
    return f"{value:.1f} {unit}"


def totals(ops: list[OpRecord]) -> dict[str, int]:
    """Return the trace in numbers. `casts` and `bytes` are autocast's; `other_casts` the program's and the ops' own."""
    autocasts = [cast for op in ops for cast in op.autocasts]
    ran = Counter(op.ran_in for op in ops)
    return {
        "ops": len(ops),
        **{name: ran[name] for name in ("low", "float32", "other", "none")},
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
        f"{n['casts']} casts by autocast, {n['gradient_casts']} of them of gradients: {size(n['bytes'])} read and "
        f"written, for {share:.0f} % of the {n['ops']} ops",
        f"{n['low']} ops in low precision, {n['float32']} in float32, {n['other']} mixed or in other dtypes, "
        f"{n['none']} without floats; {n['cache_hits']} casts saved by the weight cache",
    ]
    if n["other_casts"]:
        lines.append(f"{n['other_casts']} further casts by the program or by ops themselves")
    for head, found in (("hints:", hints(ops)), ("most bytes are cast from:", _top_sources(ops))):
        lines += [head, *(f"  {line}" for line in found)] if found else []
    return "\n".join(line for text in lines for line in user_program.wrapped(text))


def _top_sources(ops: list[OpRecord]) -> list[str]:
    def label(op: OpRecord, cast: CastRecord) -> str:
        at = f" at {op.location}" if op.location and cast.kind in ("input", "activation") else ""
        return f"{cast.kind} {cast.source}{at}" if cast.origin == "autocast" else f"{cast.source}{at}"

    found = _tally((label(op, cast), cast) for op in ops for cast in op.autocasts)
    return [f"{label}: {times(count)}, {size(moved)}" for label, count, moved in found[:_TOP]]


def _tally(casts: Iterable[tuple[_Key, CastRecord]]) -> list[tuple[_Key, int, int]]:
    """Return how many casts have each key, and their bytes, those with the most bytes first."""
    found: dict[_Key, list[int]] = {}
    for key, cast in casts:
        found.setdefault(key, []).append(cast.bytes)
    return sorted(((key, len(moved), sum(moved)) for key, moved in found.items()), key=lambda one: -one[2])


def times(count: int) -> str:
    """ "once", "twice", "7 times"."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def hints(ops: list[OpRecord]) -> list[str]:
    """See `Trace.hints`."""
    kinds = (_nonfinite, _stale, _summed_low, _repeated, _inputs, _kept_wide, _errors)
    return [hint for kind in kinds for hint in kind(ops)]


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


def recast(casts: Iterable[CastRecord]) -> Iterator[tuple[list[CastRecord], str]]:
    """Yield the casts of each tensor that stayed what it was between two steps and was cast again, and why it was."""
    groups: dict[tuple[int, int, str], list[CastRecord]] = {}
    for cast in casts:
        if cast.origin == "autocast" and cast.kind in ("weight", "frozen", "view", "buffer"):
            groups.setdefault((cast.key, cast.version, cast.got), []).append(cast)
    for found in groups.values():
        if len(found) > 1:
            yield found, found[-1].cacheable or "the region that its copy was cached for had ended"


def _repeated(ops: list[OpRecord]) -> list[str]:
    again = recast(cast for op in ops for cast in op.casts)
    found = _tally(((casts[0].kind, casts[0].source, why), cast) for casts, why in again for cast in casts)
    nouns = {"weight": "weight", "frozen": "parameter", "view": "views of weight", "buffer": "buffer"}
    of_reason: dict[str, list[str]] = {}
    for (kind, source, why), count, moved in found:
        of_reason.setdefault(why, []).append(f"{count} casts of {nouns[kind]} {source} ({size(moved)})")
    return [
        f"{first}{f' and those of {len(others)} more' if others else ''}: {why}"
        for why, (first, *others) in of_reason.items()
    ]


def _inputs(ops: list[OpRecord]) -> list[str]:
    pairs = ((op, cast) for op in ops for cast in op.casts if cast.got == op.region.dtype)
    inputs = ((op, cast) for op, cast in pairs if cast.origin == "autocast" and cast.kind == "input")
    found = _tally(((op.name, op.location, cast.given, cast.got), cast) for op, cast in inputs)
    return [
        f"the input of {name} at {place} is cast {given}→{got} {times(count)} ({size(moved)}): give it as {got}"
        for (name, place, given, got), count, moved in [one for one in found if one[1] > 1][:_TOP]
    ]


def _kept_wide(ops: list[OpRecord]) -> list[str]:
    found = Counter(op.name for op in ops if op.region.enabled and op.policy in ("upcast", "optdtype", "append"))
    listed = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in found.most_common())
    return [f"ops in float32 by policy: {listed}"] if found else []


def _errors(ops: list[OpRecord]) -> list[str]:
    return [f"{op.name} at {op.location} raised {op.error}" for op in ops if op.error]


def by_module(ops: Iterable[OpRecord]) -> dict[str, tuple[int, int]]:
    """Return the casts by autocast in each module and below, and their bytes; of the whole program under ""."""
    found: dict[str, tuple[int, int]] = {"": (0, 0)}
    for op in ops:
        parts = op.module.split(".") if op.module else []
        for path in ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]:
            count, moved = found.get(path, (0, 0))
            found[path] = count + len(op.autocasts), moved + sum(cast.bytes for cast in op.autocasts)
    return found


def compared(ops: list[OpRecord], before: list[OpRecord]) -> str:
    """Say how this trace differs from an earlier one of the same program: in all, and by op, module and phase."""
    now, then = (_by_op(side) for side in (ops, before))
    changed: dict[str, list[str]] = {}
    for key in sorted(now | then, key=lambda key: -abs(now.get(key, _NOTHING)[1] - then.get(key, _NOTHING)[1])):
        (casts, moved, ran), (had, did, was) = now.get(key, _NOTHING), then.get(key, _NOTHING)
        texts = [f"{had} → {casts} casts, {size(did)} → {size(moved)}"] * ((casts, moved) != (had, did))
        texts += [f"ran in {was or 'nothing'} → {ran or 'nothing'}"] * (ran != was)
        if texts:
            name = f"{'↩ ' * (key[2] == 'backward')}{key[0]}: {', '.join(texts)}"
            changed.setdefault(name, []).append(key[1])
    a, b = totals(before), totals(ops)
    lines = [f"before → now: {a['casts']} → {b['casts']} casts by autocast, {size(a['bytes'])} → {size(b['bytes'])}"]
    for name, modules in [*changed.items()][:_MOST_CHANGES]:
        more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
        lines.append(f"  {name}{f', in {modules[0]}' if modules[0] else ''}{more}")
    if len(changed) > _MOST_CHANGES:
        lines.append(f"  and {len(changed) - _MOST_CHANGES} further changes")
    return "\n".join(line for text in lines for line in user_program.wrapped(text)) if changed else "no op differs"


_MOST_CHANGES = 12
_NOTHING = (0, 0, "")


def _by_op(ops: Iterable[OpRecord]) -> dict[tuple[str, str, str], tuple[int, int, str]]:
    found: dict[tuple[str, str, str], tuple[int, int, str]] = {}
    for op in ops:
        key = op.name, op.module, op.phase
        casts, moved, ran = found.get(key, _NOTHING)
        dtypes = dict.fromkeys([*filter(None, ran.split(", ")), op.dtype or "no floats"])
        cast = sum(one.bytes for one in op.autocasts)
        found[key] = casts + len(op.autocasts), moved + cast, ", ".join(dtypes)
    return found


def picture(ops: list[OpRecord]) -> str:
    """Return an SVG: a bar a module below that of its parent, as wide as its share of the bytes that are cast."""
    found, bars = by_module(ops), []
    at = {"": 0.0}  # where the next child of a module begins
    for path, (count, moved) in found.items():
        parent, _, name = path.rpartition(".")
        x, wide = at[parent] if path else 0.0, 1000 * moved / (found[""][1] or 1)
        at[parent], at[path] = (x + wide if path else 0.0), x
        told = f"{path or 'all'}: {times(count) if count else 'no casts'}, {size(moved)}"
        level = path.count(".") + 1 if path else 0
        bars.append({"x": x, "wide": wide, "level": level, "label": name or "all", "told": told})
    return user_program.drawn(Path(__file__).with_name("picture.svg"), bars=bars, all=size(found[""][1]))


def read(path: Path) -> list[OpRecord]:
    """Return the ops of a file that `to_json` made. Raises UsageError for another file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return convert(data["ops"], list[OpRecord])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of ampcheck trace --json: {one_line(error)}") from error


def to_json(ops: list[OpRecord]) -> str:
    """See `Trace.to_json`."""
    data = {"schema": 1, "totals": totals(ops), "hints": hints(ops), "ops": [op.data() for op in ops]}
    return json.dumps(data, indent=1)
