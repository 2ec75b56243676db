"""`ampcheck lint`: mistakes with mixed precision, and autocast annotations that compilers ignore or change."""

import argparse
import json
import sys
import textwrap
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.runner.record import counted
from ampcheck.tools.lint import NAMED, RULES, TRAINING, Read, Report, find, lint_files
from ampcheck.tools.lint.fix import fix_files
from ampcheck.tools.user_program import screen_width


def run(args: argparse.Namespace) -> int:
    """Print the reports: 1 where there are any, 2 where a file cannot be read, else 0.

    Raises UsageError for unknown rules and settings, and for what does not exist.
    """
    if args.rules:
        print(_listed())
        return 0
    if not args.target:
        raise UsageError("name a file, a folder or a module to look at, or ask for --rules")
    paths = [find(target) for target in args.target]
    settings = _settings(paths[0])
    chosen = {name: _rules(f"--{name}", getattr(args, name)) for name in ("select", "ignore")}
    for name, rules in chosen.items():
        if rules is None and name in settings:
            chosen[name] = _named(f"[tool.ampcheck.lint] {name}", settings[name])
    selected = chosen["select"] if chosen["select"] is not None else [*RULES, *TRAINING]
    read = Read(exclude=tuple(settings.get("exclude", ())))
    if args.fix:
        fixed = fix_files(paths, read)
        print(f"{counted(fixed, 'file')} rewritten", file=sys.stderr)
    found = lint_files(paths, [rule for rule in selected if rule not in (chosen["ignore"] or ())], read)
    for reason in read.unread:
        print(f"ampcheck: {reason}", file=sys.stderr)
    print(_FORMATS[args.format](found))
    if args.format == "text":
        counts = {"file": read.files, "region": read.regions, "scaler": read.scalers}
        seen = ", ".join(counted(count, what) for what, count in counts.items())
        for name in read.unfollowed:
            print(f"not followed, for it has too many paths: {name}")
        print(f"read {seen}; reading does not know values, dtypes of tensors, and what")
        print("other files do with a region or a scaler; ampcheck doctor train.py runs the program and looks")
    return 2 if read.unread else 1 if found else 0


def _rules(option: str, text: str | None) -> list[str] | None:
    return None if text is None else _named(option, [name.strip() for name in text.split(",") if name.strip()])


def _named(option: str, names: list[str]) -> list[str]:
    for name in names:
        if name not in NAMED:
            raise UsageError(f"{option} names no rule: {name!r}; ampcheck lint --rules lists them")
    return [NAMED[name] for name in names]


def _settings(path: Path) -> dict[str, list[str]]:
    """Return [tool.ampcheck.lint] of the nearest pyproject.toml above a path."""
    file = next((p for up in path.absolute().parents if (p := up / "pyproject.toml").is_file()), None)
    if path.is_dir() and (own := path / "pyproject.toml").is_file():
        file = own
    if file is None:
        return {}
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("ampcheck", {}).get("lint", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for name, value in found.items():
        if name not in ("select", "ignore", "exclude"):
            raise UsageError(f"{file}: [tool.ampcheck.lint] has no setting {name!r}: select, ignore and exclude it has")
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{file}: [tool.ampcheck.lint] {name} is {value!r}; it must be a list of texts")
    return dict(found)


def _listed() -> str:
    lines = []
    for rule in RULES.values():
        quietly = "silent" if rule.silent else "refused"
        lines.append(f"{rule.id} ({quietly}): {rule.what}. Eagerly PyTorch {rule.eager}; compiled it {rule.compiled}.")
        lines.append(f"  Instead: {rule.instead}. {rule.source}")
    for mistake in TRAINING.values():
        lines.append(f"{mistake.id} {mistake.name}: {mistake.sentence} {mistake.why}")
        lines.append(f"  Instead: {mistake.instead}. {mistake.source}")
    return "\n".join(lines)


def _text(found: list[Report]) -> str:
    width = screen_width()
    lines = []
    for report in found:
        place, rule, said = str(report).split(": ", 2)
        kept = f"{place}: {rule}: ".replace(" ", "\0")  # the rule stays on the line of its place, which editors read
        wrapped = textwrap.wrap(
            kept + said, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        lines += [line.replace("\0", " ") for line in wrapped]
    return "\n".join([*lines, counted(len(found), "report")])


def _said(report: Report) -> str:
    """Return a report's text without its place and rule."""
    return str(report).split(": ", 2)[2]


def _github(found: list[Report]) -> str:
    lines = []
    for report in found:
        level = "error" if report.silent else "warning"
        place = f"file={_escaped(report.file, ':,')},line={report.line},col={report.column}"
        lines.append(f"::{level} {place},title=ampcheck {report.rule}::{_escaped(_said(report))}")
    return "\n".join(lines)


def _escaped(text: str, also: str = "") -> str:
    """Text as a workflow command takes it."""
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + also else char for char in text)


def _sarif(found: list[Report]) -> str:
    rules: list[dict[str, object]] = [
        {"id": name, "shortDescription": {"text": rule.what}} for name, rule in RULES.items()
    ]
    for name, mistake in TRAINING.items():
        texts = {"short": mistake.sentence, "full": mistake.why}
        told: dict[str, object] = {f"{length}Description": {"text": text} for length, text in texts.items()}
        help_ = {"help": {"text": f"Instead: {mistake.instead}."}, "helpUri": mistake.source}
        rules.append({"id": mistake.id, "name": name, **told, **help_})
    results = [
        {
            "ruleId": TRAINING[report.rule].id if report.rule in TRAINING else report.rule,
            "level": "error" if report.silent else "warning",
            "message": {"text": _said(report)},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": Path(report.file).as_posix()},
                "region": {"startLine": max(report.line, 1), "startColumn": max(report.column, 1)},
            }}],
        }
        for report in found
    ]  # fmt: skip
    driver = {"name": "ampcheck", "version": version("ampcheck"), "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    runs = [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}]
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": runs}, indent=2)


_FORMATS: dict[str, Callable[[list[Report]], str]] = {
    "text": _text,
    "json": lambda found: json.dumps([report.fields() for report in found], indent=2),
    "sarif": _sarif,
    "github": _github,
}
