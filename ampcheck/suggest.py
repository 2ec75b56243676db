"""Deviations for the failing cases of a run: which cases, which failure; why is for a person to say.

An entry speaks of `rule/id` and so of every suite. Its globs match the failing cases of its group and no other case of
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
from ampcheck.results import Result, Run

# What differs between two failures of one kind: names of ops, dtypes and numbers.
_VARYING = re.compile(
    r"(?P<op>aten::[\w.]+|torch\.[\w.]+)"
    r"|(?P<dtype>\b(?:fp8e4m3|fp8e5m2|fp16|bf16|fp32|fp64|complex\d+|u?int\d+|bool|None"
    r"|BFloat16|Half|Float|Double|Long|Bool|c10::\w+)\b)"
    r"|(?P<number>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A suggested deviation. `message`: the first line of one of its failures; `count`: how many cases it is for."""

    id: str
    device: str
    cases: tuple[str, ...]
    raises: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Entries, and a sentence for each red case that none of them can speak of."""

    entries: tuple[Entry, ...]
    left: tuple[str, ...]


def suggest(run: Run, devices: Collection[str] = ()) -> Suggestion:
    """Entries for the failing cases of a run, of some devices or of all.

    Raises UsageError for a device of which the run has no case.
    """
    results = list(run.results.values())
    there = sorted({result.device for result in results})
    for name in devices:
        if name not in there:
            raise UsageError(f"{run.path} has no case of device {name!r}; it has {', '.join(there) or 'none'}")
    mine = [result for result in results if not devices or result.device in devices]
    left = [
        f"{r.key}: {r.status}; only a failure can be waived" for r in mine if r.status in ("error", "crash", "timeout")
    ]
    other = {_name(result) for result in results if result.status != "fail"}
    shapes: dict[str, set[str]] = {}
    for result in results:
        shapes.setdefault(_name(result), set()).add(_shape(result.message))
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in (result for result in mine if result.status == "fail"):
        if result.deviation:
            left.append(f"{result.key}: deviation {result.deviation!r} speaks of it, but its raises does not match")
        elif _name(result) in other:
            left.append(
                f"{result.key}: the same case does not fail in another suite, and an entry speaks of every suite"
            )
        elif len(shapes[_name(result)]) > 1:
            left.append(
                f"{result.key}: the same case fails otherwise in another suite, and the first entry would speak of both"
            )
        else:
            groups.setdefault((result.device, result.rule, _shape(result.message)), []).append(result)
    entries: list[Entry] = []
    taken: Counter[str] = Counter()
    for (device, rule, _), members in sorted(groups.items()):
        own = {_name(member) for member in members}
        rest = [result for result in results if _name(result) not in own]
        raises = _raises([member.message for member in members])
        label = _label(rule, members[0].message)
        taken[label] += 1
        unique = label if taken[label] == 1 else f"{label}-{taken[label]}"
        first = members[0].message.partition("\n")[0]
        entries.append(Entry(unique, device, globs(members, rest), raises, first, len(members)))
    return Suggestion(tuple(entries), tuple(left))


def as_toml(suggestion: Suggestion, run: Run) -> str:
    """The entries as a deviations file, which is refused until each has a reason."""
    torch = ".".join(str(run.header.get("versions", {}).get("torch", "2.11")).split("+")[0].split(".")[:2])
    parts = [
        f"# From {run.path.name}. Write the reason of each entry: a file with an empty one is refused.",
        '# link: where it is reported, or "unreported".',
    ]
    parts += [f"# left out: {_one_line(sentence)}" for sentence in suggestion.left]
    for entry in suggestion.entries:
        parts += [
            "",
            f"# {entry.device}, cases: {entry.count}, such as: {_one_line(entry.message)}",
            "[[deviation]]",
            f"id = {_quoted(entry.id)}",
            "cases = [",
            *(f"    {_quoted(glob)}," for glob in entry.cases),
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
    return "\n".join(parts) + "\n"


def globs(wanted: Sequence[Result], other: Iterable[Result]) -> tuple[str, ...]:
    """Globs over `rule/id` that match every wanted case and none of the others, with as few stars as cover them.

    All wanted cases are of one rule and device. Greedy: the glob that covers most comes first, and of two that cover
    the same the one with fewer stars; a case that shares a glob with none stands there by its name.
    """
    rule, token = wanted[0].rule, _token(wanted[0])
    rivals = [result for result in other if result.rule == rule and _token(result) == token]
    rival_names = [_name(result) for result in rivals]
    covered: dict[str, set[str]] = {}
    for mask in _MASKS:
        taken = {_starred(result, mask) for result in rivals}
        for result in wanted:
            if (glob := _starred(result, mask)) not in taken:
                covered.setdefault(glob, set()).add(_name(result))
    # How many cases a glob still adds only shrinks, so one that is best after a second look is the best of all.
    heap = [(-len(names), glob.count("*"), -len(glob), glob) for glob, names in covered.items() if len(names) > 1]
    heapify(heap)
    out: list[str] = []
    left = {_name(result) for result in wanted}
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
    """The name of a case with some of op, sample, inputs and region dtype replaced by a star; never the device."""
    head = result.id.removesuffix(f"-{_token(result)}")
    head = head.removesuffix(f"-{result.amp}").removesuffix(f"-{result.executor}").removesuffix(f"-{result.inputs}")
    op, plus, sample = head.partition("+")
    fields = [op, plus + sample, result.inputs, result.amp]
    op, sample, inputs, amp = ("*" if place in mask else field for place, field in enumerate(fields))
    text = "-".join([op + sample, *filter(None, (inputs, result.executor, amp)), _token(result)])
    while "**" in text or "*-*" in text:
        text = text.replace("**", "*").replace("*-*", "*")
    return f"{result.name.removesuffix(result.id)}{text}"


def _token(result: Result) -> str:
    return result.id.rpartition("-")[2]


def _name(result: Result) -> str:
    return result.name


def _shape(message: str) -> str:
    """The first line of a message with what varies between cases taken out."""
    return _VARYING.sub("…", message.partition("\n")[0])


def _raises(messages: Sequence[str]) -> str:
    """A regular expression for each line of some messages: an entry has to describe every difference of a case."""
    shapes: dict[str, list[str]] = {}
    for line in (line for message in messages for line in message.splitlines() if line.strip()):
        shapes.setdefault(_shape(line), []).append(line)
    # A difference may hold several lines; from its start on, its first one describes it and none of the others can.
    return "|".join("^" + _of_one_shape(lines) for lines in shapes.values())


def _of_one_shape(lines: Sequence[str]) -> str:
    """A regular expression for some lines of one shape, with what they share spelled out."""
    found = [[match[0] for match in _VARYING.finditer(line)] for line in lines]
    fixed = [re.escape(text).replace(r"\ ", " ") for text in _between(lines[0])]
    out = fixed[0]
    for place, text in enumerate(fixed[1:]):
        values = {row[place] for row in found}
        out += re.escape(values.pop()) if len(values) == 1 else r"\S+"
        out += text
    return out


def _between(line: str) -> list[str]:
    """The parts of a line around what varies."""
    out, start = [], 0
    for match in _VARYING.finditer(line):
        out.append(line[start : match.start()])
        start = match.end()
    return [*out, line[start:]]


def _label(rule: str, message: str) -> str:
    words: Iterable[str] = re.findall(r"[a-z]+", _shape(message).lower())
    return "-".join([rule, *list(words)[:4]])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes are TOML's too, but TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
