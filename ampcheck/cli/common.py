"""Declare commands and their options, which are in `commands.toml`; remember answers; tell how far a command is."""

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from ampcheck.runner.record import output_file, versions

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


Run: TypeAlias = Callable[[argparse.Namespace], int]
"""What a command does: it returns the exit code."""

_COMMANDS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)


def declare(
    commands: Subparsers, name: str, run: Run | None = None, *more: Mapping[str, Mapping[str, Any]]
) -> argparse.ArgumentParser:
    """Declare a command, or an action of one as "COMMAND ACTION".

    `run`: what it does; None for one that has actions alone. `more`: options that come before its own.
    """
    about = _COMMANDS[name]
    parser = commands.add_parser(name.rpartition(" ")[2], help=about["help"], description=about.get("description"))
    exclusive = about.get("exclusive", ())
    group = parser.add_mutually_exclusive_group() if exclusive else parser
    own = {option: _read(option, words) for option, words in about.get("options", {}).items()}
    for options in (*more, own):
        for option, words in options.items():
            (group if option in exclusive else parser).add_argument(option, **words)
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def _read(option: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return an option of the table as argparse takes it."""
    found = deepcopy({**_COMMANDS["shared"].get(option, {}), **words})
    if "type" in found:
        found["type"] = _TYPES[found["type"]]
    if found.pop("hidden", False):
        found["help"] = argparse.SUPPRESS
    return found


_ANSWERS = 1000
"""How many answers are kept; then all are forgotten."""


def remembered(
    question: Sequence[str], ask: Callable[[], Iterable[str]], lasts: Callable[[], bool] = lambda: True
) -> list[str]:
    """Return what `ask` returns, without the second that torch takes to load where an earlier process has asked.

    An answer is forgotten when a file of ampcheck, torch, or a version of what decides results changes. Devices of
    other packages can say something else any time, so that nothing is remembered where there are some.

    Args:
        question: the command and its options.
        ask: loads torch.
        lasts: whether the answer can be remembered, asked after `ask`.
    """
    torch = find_spec("torch")
    if "torch" in sys.modules or torch is None or torch.origin is None or entry_points(group="ampcheck.devices"):
        return list(ask())
    file = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ampcheck" / "answers.json"
    own = [path for path in Path(__file__).parents[1].rglob("*") if path.suffix in (".py", ".csv", ".toml")]
    files = [(str(path), path.stat().st_mtime_ns) for path in (*sorted(own), Path(torch.origin))]
    stamp = sha256(repr([files, versions(), sys.path[1:]]).encode()).hexdigest()
    key = json.dumps(question)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        answers: dict[str, list[str]] = kept["answers"] if kept["stamp"] == stamp else {}
        if key in answers:
            return answers[key]
    except (OSError, ValueError, KeyError, TypeError):  # none was kept, or the file is damaged
        answers = {}
    lines = list(ask())
    if lasts():
        answers = {**(answers if len(answers) < _ANSWERS else {}), key: lines}
        with suppress(OSError):  # a disk that is full, or a home that cannot be written
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"stamp": stamp, "answers": answers}), encoding="utf-8")
            part.replace(file)
    return lines


def tell(line: str) -> None:
    """Write a line of progress to the standard error stream."""
    print(line, file=sys.stderr, flush=True)


def seconds(text: str) -> float:
    """Return a positive number of seconds. Raises ValueError for anything else."""
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def count(text: str) -> int:
    """Return a number of things, one or more. Raises ValueError for anything else."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def processes(text: str) -> int:
    """Return a number of processes, 0 for "auto". Raises ValueError for anything else."""
    return 0 if text == "auto" else count(text)


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "count": count,
    "processes": processes,
    "seconds": seconds,
    "path": Path,
    "output file": output_file,
}
"""What an option's text becomes, by the words of `commands.toml`."""
