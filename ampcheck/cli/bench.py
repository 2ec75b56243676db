"""`ampcheck bench`: float32 beside the lower precisions, timed in turns, their precision checked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli import bench_actions
from ampcheck.cli.common import add_compiler, add_device
from ampcheck.cli.progress import Progress

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time float32 and the lower precisions side by side")
    add_device(parser, "a device, by default every one with values; tpu-v5e and its like are estimates")
    option = parser.add_argument
    option("--quick", action="store_true", help="one process and five rounds of a few workloads, within three minutes")
    option("--filter", action="append", default=[], metavar="PATTERN", help="workloads of these names; again for more")
    add_compiler(parser, "eager, graph, compile or jit; again for more")
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--reports", type=Path, default=Path("reports"), metavar="FOLDER", help="where files go; default: reports")
    option("--run-file", type=Path, metavar="FILE", help="the file; by default REPORTS/bench/TIME.jsonl")
    option("--list", action="store_true", help="show the groups and measure none")
    parser.set_defaults(run=run)
    bench_actions.add(parser.add_subparsers(metavar="ACTION"))


def run(args: argparse.Namespace) -> int:
    """Measure, and print the table and a summary.

    Returns 0 where everything that was measured counts, but for known gaps, 1 where something does not or nothing was
    measured, 130 after Ctrl-C. Raises UsageError where an option names something unknown, or a file cannot be written.
    """
    from ampcheck.bench import session  # noqa: PLC0415  # imports torch
    from ampcheck.bench.core.table import table  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.outcome import summary  # noqa: PLC0415  # imports torch

    options = session.BenchOptions(
        devices=args.device,
        modules=args.device_module,
        filters=args.filter,
        compilers=args.compiler,
        quick=args.quick,
        threads=args.threads,
        reports=args.reports,
        run_file=args.run_file,
    )
    chosen = session.choose(options)
    if args.list:
        print("\n".join(chosen.keys))
        return 0
    progress = Progress()
    outcome = session.measure(options, chosen, progress.text, lambda text: print(f"ampcheck: {text}", file=sys.stderr))
    progress.end()
    shown = [group for group in outcome.groups if group.key not in outcome.left_out]
    print(table(shown) if shown else "nothing was measured")
    if outcome.left_out:
        mode = options.mode
        print(
            f"left out, as --{mode.name} ends within {mode.budget:.0f} s: {', '.join(outcome.left_out)}; "
            "--filter chooses others, and a run without --quick has the time for all"
        )
    if shown:
        print(f"\n{summary(shown, outcome.platforms)}")
    print(f"benchmark file: {outcome.path}")
    if outcome.interrupted:
        return 130
    return 0 if outcome.counts else 1
