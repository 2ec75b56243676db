"""The commands that read run files: `compare`, `report` and `deviations`."""

import argparse
import os

from ampcheck.cli.common import Subparsers, declare
from ampcheck.errors import UsageError
from ampcheck.runner.record import output_file, print_or_write, read
from ampcheck.runner.summarize import compare, merge


def run_compare(args: argparse.Namespace) -> int:
    """Print the comparison; return 1 where a case regressed.

    Raises UsageError for a run file that cannot be read, and for runs with nothing in common. Where nothing regressed
    and the later run lacks most cases of the earlier one, the UsageError comes after the comparison.
    """
    found = compare(read(args.a), read(args.b))
    print({"text": found.as_text, "markdown": found.as_markdown, "json": found.as_json}[args.format]())
    if found.partial and not found.regressed:
        raise UsageError(f"{args.b} lacks {len(found.removed)} cases of {args.a}; only {found.common} were compared")
    return 1 if found.regressed else 0


FOLDERS = ("runs", "published", "bench", "published/bench")
"""Where files lie below the folder of reports: those of conformance, then those of benchmarks."""
FIGURES = ("coverage.json", "power.json", "power-own.json")
"""What `ampcheck coverage`, `power` and `power --own` wrote with `--json`, in that folder or below `published`."""


def run_report(args: argparse.Namespace) -> int:
    """Build the site and print its first page. Raises UsageError where there is no file, or one that cannot be read."""
    # PyTorch's C++ warns on stderr of each deprecated op that the page of ops looks at; it reads the level at import.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ampcheck.report import build  # noqa: PLC0415  # imports torch and jinja2

    folders = [args.reports / part for part in FOLDERS]
    runs = args.runs or sorted(path for folder in folders for path in folder.glob("*.jsonl"))
    if not runs:
        raise UsageError(
            f"there is no run file in {folders[0]} or {folders[1]}, and no benchmark file in {folders[2]} or"
            f" {folders[3]}; make one with ampcheck run or ampcheck bench"
        )
    figures = (
        next((path for path in (args.reports / name, args.reports / "published" / name) if path.exists()), None)
        for name in FIGURES
    )
    out = args.out or args.reports / "site"
    output_file(out / "index.html", "page", folders=True)
    print(build(runs, out, *figures))
    return 0


def add_deviations(commands: Subparsers) -> None:
    """Declare the command."""
    for parser in (
        declare(commands, "deviations"),
        commands.add_parser("waivers"),  # its name until 0.2, which no help lists
    ):
        actions = parser.add_subparsers(metavar="ACTION", required=True)
        declare(actions, "deviations suggest", run_suggest)
        declare(actions, "deviations baseline", run_baseline)


def run_suggest(args: argparse.Namespace) -> int:
    """Print the entries. Raises UsageError for a run file that cannot be read, or a device that it does not have."""
    found = read(args.run_file)
    from ampcheck.runner.deviations import as_toml, suggest  # noqa: PLC0415  # imports torch

    print(as_toml(suggest(found, args.device), found, whole=args.all), end="")
    return 0


def run_baseline(args: argparse.Namespace) -> int:
    """Print or write the baseline. Raises UsageError as `run_suggest` does, and where the file cannot be written."""
    found = merge([read(path) for path in args.run_files])
    from ampcheck.runner.deviations import as_baseline  # noqa: PLC0415  # imports torch

    print_or_write(as_baseline(found, args.device), args.out, "baseline")
    return 0
