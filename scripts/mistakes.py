"""Write docs/mistakes, the pages of the catalogue of mistakes with mixed precision: `python -m scripts.mistakes`.

`--measure` first runs `lint` and `doctor` on every program with a mistake and on every right one, and keeps how many
they find of each rule in docs/mistakes/programs.csv: a minute or two.
"""

import csv
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from ampcheck import doctor
from ampcheck.tools.catalogue import COSTS, RULES, MistakeRule, as_diff, mended
from ampcheck.tools.doctor import Doctor, Enough
from ampcheck.tools.lint import TRAINING, lint_source

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "mistakes"
PROGRAMS = ROOT / "tests" / "programs_with_mistakes"
FIGURES = PAGES / "programs.csv"
REPORTS = ROOT / "docs" / "lint_packages.csv"
FIELDS = ("rule", "wrong", "lint", "doctor", "right", "silent")


@dataclass(frozen=True, slots=True)
class Program:
    """A program in a user's style. `of`: its rule, or "right" or "complete". `also`: what follows from `mistakes`."""

    name: str
    of: str
    text: str
    mistakes: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()

    def must(self, how: str) -> frozenset[str]:
        """Return the rules that have to be found by reading, "static", or by running, "dynamic"."""
        return frozenset(rule for rule in self.mistakes if how in RULES[rule].found)

    def read(self) -> set[str]:
        """Return the rules that lint reports."""
        return {report.rule for report in lint_source(self.text, self.name, list(TRAINING))}

    def run(self, file: Path) -> Doctor:
        """Return what doctor saw of the program, which is written to a file."""
        file.write_text(self.text, encoding="utf-8")
        with patch.object(sys, "argv", [str(file)]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with doctor(steps=20) as watching, suppress(Enough):
                runpy.run_path(str(file), run_name="__main__")
        return watching


def programs() -> list[Program]:
    """Return the examples of the catalogue, the files of tests/programs_with_mistakes, and what is right instead."""
    texts = {f"{rule.name}-0": rule.example for rule in RULES.values()}
    texts |= {file.stem: file.read_text(encoding="utf-8") for file in sorted(PROGRAMS.rglob("*.py"))}
    out = []
    for name, text in texts.items():
        rule = name.rpartition("-")[0]
        told = {
            kind: set(", ".join(re.findall(f"^# {kind}: (.*)", text, re.M)).split(", "))
            for kind in ("mistakes", "also")
        }
        mistakes = (told["mistakes"] | {rule}) - {"", "right"}
        out.append(Program(name, rule or "complete", text, frozenset(mistakes), frozenset(told["also"] - {""})))
        if mended(text) != text:
            out.append(Program(f"{name}-mended", rule, mended(text)))
    return out


def measure(of: Iterable[Program]) -> list[dict[str, str]]:
    """Return a row a rule: how many programs have the mistake, who finds it, and how many mended ones are silent."""
    found: dict[str, dict[str, int]] = {name: dict.fromkeys(FIELDS[1:], 0) for name in (*RULES, "right")}
    with tempfile.TemporaryDirectory() as folder:
        for program in of:
            lint = program.read()
            seen = {one.rule for one in program.run(Path(folder) / f"{program.name.replace('-', '_')}.py").findings}
            for rule in program.mistakes:
                found[rule]["wrong"] += 1
                found[rule]["lint"] += rule in lint
                found[rule]["doctor"] += rule in seen
            if not program.mistakes:
                found[program.of]["right"] += 1
                found[program.of]["silent"] += lint | seen <= program.also
    return [{"rule": name} | {key: str(count) for key, count in row.items()} for name, row in found.items()]


_SYMPTOMS = """\
| what you see | look at |
|---|---|
| The loss is nan, or becomes so | [My loss is nan](nan.md): AMP024, AMP023, AMP025, AMP022, AMP026, AMP027 |
| The loss does not fall | AMP010, AMP018, AMP001, AMP002, AMP003 |
| Training is not faster than in float32 | AMP015, AMP016, AMP009, AMP028, AMP035, AMP036 |
| Results are worse than in float32 | AMP008, AMP021, AMP007, AMP019, AMP020, AMP005, AMP034, AMP037, AMP038 |
| "Attempting to unscale FP16 gradients" | AMP017 |
| "unscale_() has already been called" | AMP004 |
| Dtypes mix in the backward pass of an own function | AMP012, AMP013, AMP014 |
| bfloat16 or float16? | [bfloat16 or float16](bf16_or_fp16.md): AMP008, AMP009 |
| A weight is used under `no_grad`, then trained, in one region | no rule: torch 2.13 keeps gradients (pytorch#165068) |
| Attention in mixed dtypes is slow | no rule: outside of regions it is refused, a region casts all of it |
| A GRU in mixed dtypes is slow | no rule: the CPU has no fused kernel for it, on CUDA a region casts all of it |
"""

_GENERATED = (
    "<!-- Generated by `python -m scripts.mistakes` from ampcheck/tools/catalogue/rules.toml; do not edit. -->\n"
)
_BY = {"static": "`ampcheck lint`", "dynamic": "`ampcheck doctor`"}


def _linked(text: str) -> str:
    return re.sub(r"\bAMP\d{3}\b", r"[\g<0>](\g<0>.md)", text)


_INDEX = """\
# Mistakes with mixed precision

{generated}
`ampcheck doctor train.py` finds these in a run and says where, `ampcheck lint train.py` finds some by reading; see
[Using ampcheck](../using.md#doctor).

{symptoms}
The programs are the examples of the pages and [those in users' style](../../tests/programs_with_mistakes), among them
whole scripts with several mistakes. They have {wrong} mistakes: of {static} that reading can find `lint` finds {lint},
of {dynamic} that a run can show `doctor` finds {doctor}. Of {right} right programs both are silent on {silent};
{mended} of them are programs with a mistake, mended. `python -m scripts.mistakes --measure` prints
[the figures](programs.csv). On the source of {packages} packages {false} of {reports} reports of `lint` are false:
[the table](../lint_packages.csv).
"""
_COLUMNS = "| rule | | programs | lint | doctor | mended | silent |\n|---|---|---|---|---|---|---|\n"


def index(figures: list[dict[str, str]]) -> str:
    """Return the page that leads to those of the rules."""
    by = {row["rule"]: row for row in figures}
    found = {kind: [by[name] for name, rule in RULES.items() if kind in rule.found] for kind in _BY}
    sums = {name: sum(int(row[name]) for row in figures) for name in FIELDS[1:]}
    sums |= {kind: sum(int(row["wrong"]) for row in rows) for kind, rows in found.items()}
    sums |= {"mended": sums["right"] - int(by["right"]["right"])}
    with REPORTS.open(encoding="utf-8", newline="") as file:
        reports = list(csv.DictReader(file))
    verdicts = [row["verdict"] for row in reports if row["rule"]]
    sums |= {
        "packages": len({row["package"] for row in reports}),
        "reports": len(verdicts),
        "false": verdicts.count("false"),
    }
    symptoms = re.sub(r"\bAMP\d{3}\b", r"[\g<0>](\g<0>.md)", _SYMPTOMS)
    parts = [_INDEX.format(generated=_GENERATED, symptoms=symptoms, **sums)]
    for cost in COSTS:
        parts.append(f"\n## {cost.capitalize()}\n\n{_COLUMNS}")
        for rule in (one for one in RULES.values() if one.costs == cost):
            row = by[rule.name]
            lint, watched = (
                row[tool] if row in found[kind] else "" for kind, tool in zip(_BY, FIELDS[2:], strict=False)
            )
            figured = " | ".join((row["wrong"], lint, watched, row["right"], row["silent"]))
            parts.append(f"| [{rule.id}]({rule.id}.md) {rule.name} | {rule.sentence} | {figured} |\n")
    return "".join(parts)


def page(rule: MistakeRule) -> str:
    """Return the page of a rule."""
    by = " and ".join(_BY[how] for how in rule.found)
    return (
        f"# {rule.id} {rule.name}\n\n{_GENERATED}\n**{rule.sentence}** {rule.why}\n\nInstead: {rule.instead}.\n\n"
        f"```diff\n{as_diff(rule.example)}```\n\n"
        f"It costs: {rule.costs}. Found by {by}. [Source]({rule.source}) · [all mistakes](README.md)\n"
    )


def main(argv: list[str]) -> None:
    """Write the pages."""
    if argv == ["--measure"]:
        rows = measure(programs())
        with FIGURES.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        for row in rows:
            print(" ".join(f"{key} {value}" for key, value in row.items()))
    with FIGURES.open(encoding="utf-8", newline="") as file:
        figures = list(csv.DictReader(file))
    (PAGES / "README.md").write_text(index(figures), encoding="utf-8")
    for rule in RULES.values():
        (PAGES / f"{rule.id}.md").write_text(page(rule), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
