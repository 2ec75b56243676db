"""`ampcheck bench`: float32 beside the lower precisions, timed in turns; its actions verify, export and advise."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from ampcheck.cli.common import INTERRUPTED, Subparsers, add_compiler, add_device, add_device_module, tell
from ampcheck.cli.progress import Progress
from ampcheck.runner.record import output_file


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time float32 and the lower precisions side by side")
    add_device(parser, "a device, by default every one with values; tpu-v5e, cuda-h100 and their like are estimates")
    option = parser.add_argument
    option("--quick", action="store_true", help="one process and five rounds of a few workloads, within three minutes")
    option("--filter", action="append", default=[], metavar="PATTERN", help="workloads of these names; again for more")
    add_compiler(parser, "eager, graph, compile or jit; again for more")
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--reports", type=Path, default=Path("reports"), metavar="FOLDER", help="where files go; default: reports")
    option("--run-file", type=Path, metavar="FILE", help="the file; by default REPORTS/bench/TIME.jsonl")
    option("--resume", type=Path, metavar="FILE", help="go on with an interrupted run, whose groups the new file has")
    option("--list", action="store_true", help="show the groups and measure none")
    parser.set_defaults(run=run)
    _add_actions(parser.add_subparsers(metavar="ACTION"))


def run(args: argparse.Namespace) -> int:
    """Measure, and print the table and a summary.

    Returns 0 where everything that was measured counts, but for known gaps, 1 where something does not or nothing was
    measured, 130 after Ctrl-C. Raises UsageError where an option names something unknown, or a file cannot be written.
    """
    from ampcheck.bench import session  # noqa: PLC0415  # imports torch
    from ampcheck.bench.core.table import table  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.summary import summary  # noqa: PLC0415  # imports torch

    same = {name: getattr(args, name) for name in ("quick", "threads", "reports", "run_file", "resume")}
    options = session.BenchOptions(args.device, args.device_module, args.filter, args.compiler, **same)
    chosen = session.choose(options)
    if args.list:
        print("\n".join(chosen.keys))
        return 0
    progress = Progress()
    outcome = session.measure(options, chosen, progress.text, lambda text: tell(f"ampcheck: {text}"))
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
    return INTERRUPTED if outcome.interrupted else int(not outcome.counts)


FORMATS = ("markdown", "csv", "pytest-benchmark", "smaller-is-better")


def _add_actions(actions: Subparsers) -> None:
    parser = actions.add_parser("verify", help="measure the measuring: the same variant twice, a ratio by another tool")
    parser.set_defaults(run=verify)
    parser = actions.add_parser("export", help="print a benchmark file in another format")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--format", choices=FORMATS, default="markdown")
    parser.set_defaults(run=export)
    parser = actions.add_parser("advise", help="time a step of your own in each variant and say what pays")
    what = "MODULE:FUNCTION | FILE.py:FUNCTION | FILE.py"
    option = parser.add_argument
    option(
        "step", metavar=what, help="a function that returns (model, inputs, loss); of a file, the one that is marked"
    )
    option("--device", default="cpu", metavar="NAME", help="default: cpu")
    add_compiler(parser, "compile or jit, beside eager; again for both")
    option("--quick", action="store_true", help="one process and five rounds")
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--trace", type=output_file, metavar="FILE", help="write the trace there as JSON")
    option("--json", type=output_file, metavar="FILE", help="write everything that was found there as JSON")
    add_device_module(parser)
    parser.set_defaults(run=advise)


def verify(args: argparse.Namespace) -> int:
    """Run `ampcheck.bench.run.verify` with one thread. Returns 0 where every promise holds, else 1."""
    from ampcheck.bench.run.measure import environment  # noqa: PLC0415  # imports torch

    command = [sys.executable, "-m", "ampcheck.bench.run.verify"]
    return subprocess.run(command, env=environment(1), check=False).returncode


def export(args: argparse.Namespace) -> int:
    """Print the file. Raises UsageError for one that cannot be read."""
    from ampcheck.bench.run import exports  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.runfile import read  # noqa: PLC0415  # imports torch

    writers = (exports.as_markdown, exports.as_csv, exports.pytest_benchmark_json, exports.smaller_is_better)
    print(writers[FORMATS.index(args.format)](read(args.file)))
    return 0


def advise(args: argparse.Namespace) -> int:
    """Print the advice, and write the files. Raises UsageError where the step cannot be loaded or run."""
    from ampcheck.bench.advise import advice  # noqa: PLC0415  # imports torch
    from ampcheck.tools import user_program  # noqa: PLC0415  # imports torch

    how = {"compilers": args.compiler, "modules": args.device_module, "quick": args.quick, "threads": args.threads}
    found = advice.advise(args.step, args.device, **how, tell=tell)
    print(found.text())
    user_program.write(args.trace, lambda: found.found.trace or "null")
    user_program.write(args.json, lambda: json.dumps(found.data(), indent=1))
    return 0
