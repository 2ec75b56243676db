"""The command line `ampcheck`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TypeAlias

from ampcheck.cli import bench, files, gpu, lint, measures, onboard, ops, run
from ampcheck.cli.common import INTERRUPTED, Run, Subparsers, declare
from ampcheck.errors import UsageError
from ampcheck.runner.record import versions

Declaration: TypeAlias = Callable[[Subparsers], object]


def _plain(**runs: Run) -> list[Declaration]:
    """Return what declares commands of which `commands.toml` says all."""
    return [partial(declare, name=name, run=run) for name, run in runs.items()]


_COMMANDS: tuple[Declaration, ...] = (
    *_plain(devices=ops.devices, onboard=onboard.run, explain=ops.explain, lists=ops.lists),
    *(run.add, run.add_manifest),
    *_plain(report=files.run_report, compare=files.run_compare),
    files.add_deviations,
    *_plain(coverage=measures.coverage, power=measures.power, entered=measures.entered),
    *_plain(lint=lint.run, torchscript=ops.torchscript),
    bench.add,
    *_plain(gpu=gpu.run),
)

_OF_PROGRAMS = {"doctor": "doctor.session", "precision": "precision", "trace": "trace"}
"""Commands that run a program, and what has their function `command`. argparse would take the program's arguments for
its own; the modules import torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 for all well, 1 for something red, 2 for bad input."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] and argv[0] in _OF_PROGRAMS:
        return _guarded(lambda: import_module(f"ampcheck.tools.{_OF_PROGRAMS[argv[0]]}").command(argv[1:]))
    return _guarded(lambda: _run(argv))


def _run(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if getattr(args, "device_module", None):
        sys.path.insert(0, os.getcwd())  # a device module beside the user is found, as `python -m` would find it
    code: int = args.run(args)
    return code


def _guarded(work: object) -> int:
    try:
        code: int = work()  # type: ignore[operator]  # one of the two functions above
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"ampcheck: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ampcheck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `ampcheck manifest | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Version(argparse.Action):
    """Print the versions that a run file has in its header, one a line, and end."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        found = versions()
        print("\n".join(f"{name} {found[name]}" for name in sorted(found, key=lambda name: name != "ampcheck")))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ampcheck", description="Does automatic mixed precision on a PyTorch device do what PyTorch promises?"
    )
    parser.add_argument("--version", action=_Version, help="print the versions of ampcheck and of what decides results")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in _COMMANDS:
        add(commands)
    for name, what in (
        ("doctor", "run some steps of a training program and say what is wrong with its mixed precision"),
        ("precision", "run a program again and again, and say what of it has to be in float32"),
        ("trace", "run a program and show what autocast did to each of its ops"),
    ):
        commands.add_parser(name, help=what, add_help=False)
    return parser
