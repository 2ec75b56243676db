"""`ampcheck bench`: float32 beside the lower precisions, timed in turns; its actions verify, export and advise."""

import argparse
import json
import subprocess
import sys

from ampcheck.cli.common import INTERRUPTED, Subparsers, declare, tell
from ampcheck.cli.progress import Progress


def add(commands: Subparsers) -> None:
    """Declare the command and its actions."""
    actions = declare(commands, "bench", run).add_subparsers(metavar="ACTION")
    for name, action in (("verify", verify), ("export", export), ("advise", advise)):
        declare(actions, f"bench {name}", action)


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


def verify(args: argparse.Namespace) -> int:
    """Run `ampcheck.bench.run.verify` with one thread. Returns 0 where every promise holds, else 1."""
    from ampcheck.bench.run.measure import environment  # noqa: PLC0415  # imports torch

    command = [sys.executable, "-m", "ampcheck.bench.run.verify"]
    return subprocess.run(command, env=environment(1), check=False).returncode


def export(args: argparse.Namespace) -> int:
    """Print the file. Raises UsageError for one that cannot be read."""
    from ampcheck.bench.run import exports  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.runfile import read  # noqa: PLC0415  # imports torch

    writers = {
        "markdown": exports.as_markdown,
        "csv": exports.as_csv,
        "pytest-benchmark": exports.pytest_benchmark_json,
        "smaller-is-better": exports.smaller_is_better,
    }
    print(writers[args.format](read(args.file)))
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
