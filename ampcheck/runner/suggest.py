"""Deviations for the failing cases of a run, one a cause: which cases, which failure; why is for a person to say.

An entry speaks of `rule/id` and so of every suite. Its globs match the failing cases of its cause and no other case of
the run; its `raises` matches each of their differences. Its reason is left empty, which the loader refuses.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import translate
from heapq import heapify, heappop, heappush
from itertools import combinations

from ampcheck.errors import UsageError
from ampcheck.runner.causes import normalised, of, varying
from ampcheck.runner.compare import first_line
from ampcheck.runner.results import Result, Run
from ampcheck.runner.summary import counted

ENTRIES, GLOBS = 20, 20
"""How many entries are printed, and how many globs of each, unless all are asked for."""
_SHAPES = 6
"""How many kinds of differences one `raises` describes, unless a single case has more."""


@dataclass(frozen=True, slots=True)
class SuggestedEntry:
    """A suggested deviation. `message`: the first line of one of its failures; `count`: how many cases it is for."""

    id: str
    device: str
    cases: tuple[str, ...]
    raises: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Entries, that for most cases first, and a sentence for each red case that none of them can speak of."""

    entries: tuple[SuggestedEntry, ...]
    left: tuple[str, ...]


def suggest(run: Run, devices: Collection[str] = ()) -> Suggestion:
    """Suggest entries for the failing cases of a run, of some devices or of all.

    Raises UsageError for a device of which the run has no case.
    """
    results = list(run.results.values())
    there = sorted({result.device for result in results})
    for name in devices:
        if name not in there:
            raise UsageError(f"{run.path} has no case of device {name!r}; it has {', '.join(there) or 'none'}")
    mine = [result for result in results if not devices or result.device in devices]
    left = [
        f"{r.key}: {r.status}; only a failure can be a known deviation"
        for r in mine
        if r.status in ("broken", "error", "crash", "timeout")
    ]
    other = {result.name for result in results if result.status != "fail"}
    causes: dict[str, set[str]] = {}
    for result in results:
        causes.setdefault(result.name, set()).add(of(result))
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in (result for result in mine if result.status == "fail"):
        if result.deviation:
            left.append(f"{result.key}: deviation {result.deviation!r} speaks of it, but its raises does not match")
        elif result.name in other:
            left.append(
                f"{result.key}: the same case does not fail in another suite, and an entry speaks of every suite"
            )
        elif len(causes[result.name]) > 1:
            left.append(
                f"{result.key}: the same case fails otherwise in another suite, and the first entry would speak of both"
            )
        else:
            groups.setdefault((result.device, of(result)), []).append(result)
    entries: list[SuggestedEntry] = []
    taken: Counter[str] = Counter()
    for (device, _), found in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        raises, members = _described(found)
        left += [f"{r.key}: it has rarer differences than its entry describes" for r in found if r not in members]
        label = _label(members[0].rule, members[0].message)
        taken[label] += 1
        unique = label if taken[label] == 1 else f"{label}-{taken[label]}"
        first = members[0].message.partition("\n")[0]
        entries.append(SuggestedEntry(unique, device, _of_rules(members, results), raises, first, len(members)))
    return Suggestion(tuple(entries), tuple(left))


def _described(results: Sequence[Result]) -> tuple[str, list[Result]]:
    """Return a regular expression for the differences of results of one cause, and the results it describes wholly.

    It describes the commonest kinds of differences, that of at least one result.
    """
    alike: dict[frozenset[str], list[Result]] = {}
    for result in results:
        alike.setdefault(frozenset(_shape(parts) for parts in _parts(result)), []).append(result)
    shapes: set[str] = set()
    members: list[Result] = []
    for kinds, found in sorted(alike.items(), key=lambda item: -len(item[1])):
        if not members or len(shapes | kinds) <= _SHAPES:
            shapes |= kinds
            members += found
    lines: dict[str, list[list[str]]] = {}
    for result in members:
        for parts in _parts(result):
            lines.setdefault(_shape(parts), []).append(parts)
    return "|".join(map(_raises, lines.values())), members


def _of_rules(members: Sequence[Result], results: Iterable[Result]) -> tuple[str, ...]:
    """Return globs for cases of one device, rule by rule: those of most cases first, names of single cases last."""
    own = {member.name for member in members}
    rest = [result for result in results if result.name not in own]
    by_rule: dict[str, list[Result]] = {}
    for member in members:
        by_rule.setdefault(member.rule, []).append(member)
    found = [glob for _, wanted in sorted(by_rule.items()) for glob in globs(wanted, rest)]
    return tuple(sorted(found, key=lambda glob: "*" not in glob))


def as_toml(suggestion: Suggestion, run: Run, *, whole: bool = False) -> str:
    """Return the entries as a deviations file, which is refused until each has a reason.

    `whole`: print every entry and glob; otherwise the largest, and how many more there are.
    """
    torch = ".".join(str(run.header.get("versions", {}).get("torch", "2.11")).split("+")[0].split(".")[:2])
    parts = [
        f"# From {run.path.name}. Write the reason of each entry: a file with an empty one is refused.",
        '# link: where it is reported, or "unreported".',
    ]
    why: dict[str, list[str]] = {}
    for sentence in suggestion.left:
        key, _, reason = sentence.partition(": ")
        why.setdefault(reason, []).append(key)
    for reason, keys in why.items():
        such = f", such as {keys[0]}" if len(keys) > 1 else f": {keys[0]}"
        parts.append(f"# left out, {counted(len(keys), 'case')}{such}: {_one_line(reason)}")
    for entry in suggestion.entries if whole else suggestion.entries[:ENTRIES]:
        cases = entry.cases if whole else entry.cases[:GLOBS]
        more = len(entry.cases) - len(cases)
        parts += [
            "",
            f"# {entry.device}, cases: {entry.count}, such as: {first_line(_one_line(entry.message))}",
            "[[deviation]]",
            f"id = {_quoted(entry.id)}",
            "cases = [",
            *(f"    {_quoted(glob)}," for glob in cases),
            *([f"    # {counted(more, 'more glob')}: --all prints them"] if more else []),
            "]",
            'kind = "deviation"',
            'reason = ""',
            'link = "unreported"',
            f"raises = {_quoted(entry.raises)}",
            f'torch = ">={torch}"',
            f'added = "{date.today():%Y-%m-%d}"',
        ]
    if not suggestion.entries:
        parts.append("# No case fails that an entry could speak of.")
    rest = () if whole else suggestion.entries[ENTRIES:]
    if rest:
        count = counted(sum(entry.count for entry in rest), "case")
        parts += ["", f"# {counted(len(rest), 'more cause')} of {count}: --all prints them"]
    return "\n".join(parts) + "\n"


def globs(wanted: Sequence[Result], other: Iterable[Result]) -> tuple[str, ...]:
    """Return globs over `rule/id` that match every wanted case and no other, with as few stars as cover them.

    All wanted cases are of one rule and device. Greedy: the glob that covers most comes first, and of two that cover
    the same the one with fewer stars; a case that shares a glob with none stands there by its name.
    """
    rule, token = wanted[0].rule, _token(wanted[0])
    rivals = [result for result in other if result.rule == rule and _token(result) == token]
    rival_names = [result.name for result in rivals]
    covered: dict[str, set[str]] = {}
    for mask in _MASKS:
        taken = {_starred(result, mask) for result in rivals}
        for result in wanted:
            if (glob := _starred(result, mask)) not in taken:
                covered.setdefault(glob, set()).add(result.name)
    # How many cases a glob still adds only shrinks, so one that is best after a second look is the best of all.
    heap = [(-len(names), glob.count("*"), -len(glob), glob) for glob, names in covered.items() if len(names) > 1]
    heapify(heap)
    out: list[str] = []
    left = {result.name for result in wanted}
    while heap:
        gain, *rest, glob = heappop(heap)
        adds = len(covered[glob] & left)
        if adds < 2:
            continue
        if adds != -gain:
            heappush(heap, (-adds, *rest, glob))  # type: ignore[misc]  # the two numbers in between
        elif not any(map(re.compile(translate(glob)).match, rival_names)):  # a star also reaches across dashes
            out.append(glob)
            left -= covered[glob]
    return (*out, *sorted(left))


_FIELDS = 4
_MASKS = [mask for count in range(1, _FIELDS + 1) for mask in combinations(range(_FIELDS), count)]


def _starred(result: Result, mask: Collection[int]) -> str:
    """Return the name of a case with some of op, sample, inputs and region dtype starred; never the device."""
    head = result.id.removesuffix(f"-{_token(result)}")
    head = head.removesuffix(f"-{result.amp}").removesuffix(f"-{result.compiler}").removesuffix(f"-{result.inputs}")
    op, plus, sample = head.partition("+")
    fields = [op, plus + sample, result.inputs, result.amp]
    op, sample, inputs, amp = ("*" if place in mask else field for place, field in enumerate(fields))
    text = "-".join([op + sample, *filter(None, (inputs, result.compiler, amp)), _token(result)])
    while "**" in text or "*-*" in text:
        text = text.replace("**", "*").replace("*-*", "*")
    return f"{result.name.removesuffix(result.id)}{text}"


def _token(result: Result) -> str:
    return result.id.rpartition("-")[2]


def _parts(result: Result) -> list[list[str]]:
    """Return each line of a result's message in parts: text shared by all cases, and between it what varies."""
    out = []
    for line in result.message.splitlines() or [""]:
        parts, start = [], 0
        for match in varying(result.op).finditer(line):
            parts += [line[start : match.start()], match[0]]
            start = match.end()
        out.append([*parts, line[start:]])
    return out


def _shape(parts: Sequence[str]) -> str:
    """Return what lines of one kind share."""
    return "\0".join(parts[::2])


def _raises(lines: Sequence[Sequence[str]]) -> str:
    """Return a regular expression for some lines of one shape, in parts, with what they share spelled out."""
    columns = [set(column) for column in zip(*lines, strict=True)]
    return "".join(re.escape(one.pop()).replace(r"\ ", " ") if len(one) == 1 else ".+?" for one in columns)


def _label(rule: str, message: str) -> str:
    words: Iterable[str] = re.findall(r"[a-z]+", normalised(message.partition("\n")[0]).lower())
    return "-".join([rule, *list(words)[:4]])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(text: str) -> str:
    """Return a TOML string: JSON's escapes are TOML's too, but TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
