"""Options that several commands share."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from ampcheck.runner.record import versions

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_device(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--device` and `--device-module`."""
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help=f"{what}; again for more")
    add_device_module(parser)


def add_device_module(parser: argparse.ArgumentParser) -> None:
    """Add `--device-module`."""
    parser.add_argument(
        "--device-module", action="append", default=[], metavar="MODULE", help="a module that defines DEVICES"
    )


def add_compiler(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--compiler`, and its old name `--executor`, which no help lists."""
    add = parser.add_argument
    add("--compiler", action="append", default=[], metavar="NAME", help=what)
    add("--executor", action="append", dest="compiler", help=argparse.SUPPRESS)


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
