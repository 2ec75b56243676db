"""The cases of a site as compact JSON: columns of dictionary indices, run lengths, and texts line by line.

`data.js` has what the pages of cases and of comparisons need of every case and run; `details.js` has the texts of the
newest run, which only the page of one case reads. `app.js` is the other half: it decodes what this encodes.
"""

import json
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ampcheck.report.history import History, expected, names, ran, reproduced, virtual
from ampcheck.runner.record import RED, Result, Run, causes_of
from ampcheck.runner.summarize import devices, unfinished
from ampcheck.spec.case import RULES, Rule, op_token

COLUMNS = ("suite", "rule", "op", "sample", "inputs", "amp", "device", "compiler", "deviation", "cause")
OP_RULES = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "drift", "fallthrough")
"""The rules about single ops, each with a line of its own."""

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""How the pages show statuses, verdicts, changes and areas of rules."""
AREAS = {name: str(row["sentence"]) for name, row in WORDS["area"].items()}
"""The other rules by what they are about, in the order of the first page's grid."""
_AREA_OF_SUITE: dict[str, str] = {suite: name for name, row in WORDS["area"].items() for suite in row.get("suites", ())}
_AREA_OF_RULE: dict[str, str] = {rule: name for name, row in WORDS["area"].items() for rule in row.get("rules", ())}


class Interner:
    """Gives each distinct text a number, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """The texts; the number of each is its place."""
        return list(self._numbers)


def run_names(history: History) -> list[str]:
    """Return a name for each run, newest first."""
    return names(str(run.header.get("started", "")) for run in reversed(history.runs))[::-1]


def union(history: History) -> list[Result]:
    """Every case of any run, as its newest run has it, in the order the columns compress best."""
    found: dict[str, Result] = {}
    for run in reversed(history.runs):
        for key, result in run.results.items():
            if result.status != "missing" or key not in found:
                found[key] = result
    return sorted(found.values(), key=lambda r: (r.suite, r.rule, r.op, r.device, r.sample, r.amp, r.id))


def area(result: Result) -> str:
    """Return the line of the grid that a case belongs to: its rule, where that is about single ops, or its area."""
    if found := _AREA_OF_SUITE.get(result.suite):
        return found
    return result.rule if result.rule in OP_RULES else _AREA_OF_RULE.get(result.rule, "regions")


def cases(history: History, ops: Collection[str]) -> dict[str, Any]:
    """Return the content of `data.js`. `ops`: the overloads that have op cases; every other name is a scenario."""
    results = union(history)
    words = {name: Interner() for name in (*COLUMNS, "token", "area")}
    columns: dict[str, list[int]] = {name: [] for name in words}
    odd: dict[int, str] = {}
    newest = history.newest.results
    causes = causes_of(newest.values())
    for place, result in enumerate(results):
        token = result.id.rpartition("-")[2]
        values = {name: getattr(result, name) for name in COLUMNS}
        now = newest.get(result.key)
        values |= {"token": token, "area": area(result), "cause": causes.get(result.key, "")}
        values |= {"deviation": now.deviation if now else ""}
        for name, column in columns.items():
            column.append(words[name](values[name]))
        parts = (op_token(result.op, result.sample), result.inputs, result.compiler, result.amp, token)
        if "-".join(filter(None, parts)) != result.id:  # `app.js` puts them together so
            odd[place] = result.id
    unreal = set().union(*(virtual(run) for run in history.runs))
    named = words["op"].texts
    return {
        "statuses": [
            {"name": s.name, "letter": s.letter, "mark": s.mark, "label": s.label, "red": s.red} for s in SHOWN.values()
        ],
        "rules": {
            rule.name: {"sentence": rule.sentence, "source": rule.source, "href": source_link(rule, history.newest)}
            for rule in (RULES[name] for name in words["rule"].texts if name in RULES)
        },
        "virtual": sorted(unreal),
        "words": {name: interner.texts for name, interner in words.items()},
        "written": {op: op_token(op) for op in named if op_token(op) != op},
        "scenarios": [number for number, op in enumerate(named) if op not in ops],
        "columns": {name: _packed(column) for name, column in columns.items()},
        "ids": odd,
        "count": len(results),
        "runs": [
            {"name": name, **_run(run, [result.key for result in results])}
            for name, run in zip(run_names(history), history.runs, strict=True)
        ],
    }


def details(history: History) -> dict[str, Any]:
    """Return the content of `details.js`: times, differences, tracebacks and reproductions of cases, by place."""
    newest = history.newest.results
    lines, paragraphs = Interner(), Interner()
    modules = options(history.newest, ("--device-module",))
    out: dict[str, Any] = {"options": modules, "pytest": {}, "reproduced": {}}
    out |= {name: {} for name in ("message", "traceback", "torch")}
    said = reproduced(history.newest)
    times = []
    for place, known in enumerate(union(history)):
        result = newest.get(known.key)
        times.append(round(result.seconds * 1e5) if result else 0)
        if result is None:
            continue
        if known.key in said:
            out["reproduced"][place] = lines(said[known.key])
        for name in ("message", "traceback", "torch"):
            if text := getattr(result, name):
                out[name][place] = [paragraphs(paragraph) for paragraph in text.split("\n\n")]
        if result.pytest:
            out["pytest"][place] = lines(result.pytest.replace(result.id, "\0"))
    # Programs share functions, and functions lines.
    out["paragraphs"] = [[lines(line) for line in text.split("\n")] for text in paragraphs.texts]
    return {**out, "lines": lines.texts, "seconds": times}


def options(run: Run, names: Collection[str]) -> str:
    """Return those options of these names that a run was started with, as a command line has them."""
    found = []
    for header in run.header.get("parts", [run.header]):
        words = [str(word) for word in header.get("command", [])]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word in names:
                found.append(f"{word}={following}")
            elif word.partition("=")[0] in names:
                found.append(word)
    return shlex.join(dict.fromkeys(found))


def source_link(rule: Rule, run: Run) -> str:
    """Return the address of a rule's source: a page, or the file in PyTorch's repository at the run's version."""
    if rule.source.startswith("https://"):
        return rule.source
    torch = str(run.header.get("versions", {}).get("torch", "")).partition("+")[0]
    tag = f"v{torch}" if torch.replace(".", "").isdigit() else "main"
    return f"https://github.com/pytorch/pytorch/blob/{tag}/{rule.source}"


def script(name: str, value: Mapping[str, Any]) -> str:
    """Return a value as a script file that a page opened from disk can load."""
    return f"window.{name} = {json.dumps(value, separators=(',', ':'))};\n"


def _packed(column: Sequence[int]) -> list[Any]:
    """Return a column as it is, or as pairs of value and length where that is shorter: `["v", …]` or `["r", …]`."""
    pairs = [number for value, same in groupby(column) for number in (value, sum(1 for _ in same))]
    return ["r", *pairs] if len(pairs) < len(column) else ["v", *column]


def letters(names: Iterable[str], by_name: Mapping[str, str]) -> str:
    """Statuses or verdicts as one letter each, with a count behind a letter that repeats; "" for an absent one."""
    pairs = ((by_name.get(name, "."), sum(1 for _ in same)) for name, same in groupby(names))
    return "".join(letter + (str(length) if length > 1 else "") for letter, length in pairs)


def facts(run: Run) -> dict[str, Any]:
    """Return what pages and scripts say of a run: when and with which torch it ran, and how far."""
    return {
        "started": str(run.header.get("started", "")),
        "torch": str(run.header.get("versions", {}).get("torch", "")),
        "ran": ran(run),
        "expected": expected(run),
        "unfinished": unfinished(run),
        "note": run.note,
    }


def _run(run: Run, keys: Sequence[str]) -> dict[str, Any]:
    found = run.results
    file = ", ".join(part["file"] for part in run.header.get("parts", [{"file": run.path.name}]))
    statuses = letters((found[key].status if key in found else "" for key in keys), _LETTERS)
    return {**facts(run), "file": file, "devices": devices(run), "statuses": statuses}


@dataclass(frozen=True, slots=True)
class Status:
    """A status or verdict as readers see it. `mark` is beside the colour, so that none is told by colour alone."""

    name: str
    mark: str
    label: str
    meaning: str
    letter: str = ""
    todo: str = ""

    @property
    def red(self) -> bool:
        """Return whether it makes a run fail."""
        return self.name in RED

    @property
    def style(self) -> str:
        """Return its name as part of a CSS class."""
        return self.name.replace(" ", "-")


SHOWN = {name: Status(name, **words) for name, words in WORDS["status"].items()}
"""Every status of `ampcheck.runner.record.STATUSES`, by name, in that order."""
VERDICTS = {name: Status(name, **words) for name, words in WORDS["verdict"].items()}
"""Every verdict of `ampcheck.bench.core.model.VERDICTS`, and "first", by name, in that order."""
_LETTERS = {status.name: status.letter for status in SHOWN.values()}


def number(count: int) -> str:
    """Return a count with its thousands apart, e.g. "12 034" (with a no-break space)."""
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")
