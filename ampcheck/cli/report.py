"""`ampcheck report`: the static site of some run files and benchmark files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ampcheck.cli.common import Subparsers
from ampcheck.errors import UsageError
from ampcheck.runner.record import output_file

FOLDERS = ("runs", "published", "bench", "published/bench")
"""Where files lie below the folder of reports: those of conformance, then those of benchmarks."""
FIGURES = ("coverage.json", "power.json", "power-own.json")
"""What `ampcheck coverage`, `power` and `power --own` wrote with `--json`, in that folder or below `published`."""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("report", help="build the site of some run files and benchmark files")
    what = "run files and benchmark files; all under REPORTS by default"
    parser.add_argument("runs", nargs="*", type=Path, metavar="FILE", help=what)
    parser.add_argument("--reports", type=Path, default=Path("reports"), metavar="FOLDER", help="default: reports")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the site goes; by default REPORTS/site")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
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
