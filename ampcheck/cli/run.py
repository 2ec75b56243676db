"""`ampcheck run`: the suites on some devices, a crash or a hang costing one case; `ampcheck manifest`: the cases."""

import argparse
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ampcheck.cli.common import INTERRUPTED, Subparsers, declare
from ampcheck.cli.progress import RunProgress
from ampcheck.errors import HarnessError, UsageError
from ampcheck.runner.record import Run, counted, new_run_file, output_file, print_or_write, read
from ampcheck.runner.run import JUDGING, SELECTION, Supervisor, environment, fitting, pytest_command, reproduce
from ampcheck.runner.summarize import RunRecorder, examples

_LEAST = 200
"""Fewer cases than this are done before a further process has started."""


_CASES = {
    "--suite": {"action": "append", "default": [], "metavar": "NAME", "help": "run this suite alone; again for more"},
    **SELECTION,
    "--last-failed": {"metavar": "RUN", "help": "run the cases that are red in this run file alone"},
    "-k": {"dest": "keyword", "metavar": "EXPRESSION", "help": "run the cases whose ids match, as pytest does"},
}
"""The options that choose cases."""


def add(commands: Subparsers) -> None:
    """Declare `ampcheck run`."""
    declare(commands, "run", run, _CASES, JUDGING)


def add_manifest(commands: Subparsers) -> None:
    """Declare `ampcheck manifest`: every case as data."""
    parser = declare(commands, "manifest", manifest, _CASES)
    parser.set_defaults(manifest=None, baseline=None, no_deviations=False, nightly=False)


def manifest(args: argparse.Namespace) -> int:
    """Print or write the cases. Raises UsageError where an option names something unknown."""
    from ampcheck.runner import collect as collecting  # noqa: PLC0415  # imports torch

    print_or_write(collecting.manifest(collect(args).cases), args.out, "manifest")
    return 0


def run(args: argparse.Namespace) -> int:
    """Run the suites.

    Returns 0 where nothing is red, 1 where something is, 3 where the suites could not be run to their end, 130 after
    Ctrl-C. Raises UsageError where an option names something unknown, or a file cannot be written.
    """
    if args.list:
        return _list(args)
    recorder = _recorder(args)
    progress = RunProgress(recorder, args.reports / "runs")
    processes = args.processes or fitting()
    supervisor = Supervisor(
        pytest_command(args),
        environment(processes),
        recorder,
        processes=processes,
        least=0 if args.processes else _LEAST,
        timeout=args.timeout,
        max_red=args.max_red,
        resumed=_interrupted(args.resume) if args.resume else None,
        tick=progress.show,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is kept then, too
    try:
        supervisor.run()
    except KeyboardInterrupt:
        progress.end()
        print(f"interrupted: {recorder.ran()}" if recorder.begun else "interrupted before the first case")
        _print(recorder.write_files())
        return INTERRUPTED
    except HarnessError as error:
        progress.end()
        print(f"ampcheck: {error}", file=sys.stderr)
        _print(recorder.write_files())
        return 3
    progress.end()
    if not recorder.cases:
        raise _nothing(args)
    _reproduce(recorder)
    if args.max_red and recorder.red() >= args.max_red and len(recorder.results) < len(recorder.cases):
        print(f"\nthe run was ended: {recorder.red()} cases are red (--max-red {args.max_red})")
    else:
        recorder.finish()
    print(f"\n{recorder.closing()}")
    _print(recorder.write_files())
    return 1 if recorder.failed() else 0


def collect(args: argparse.Namespace) -> RunRecorder:
    """Collect the cases that the options choose and run none. Raises UsageError like `run`."""
    recorder = RunRecorder(None)
    try:
        Supervisor([*pytest_command(args), "--collect-only"], environment(1), recorder).run()
    except HarnessError as error:
        raise UsageError(str(error)) from error
    if not recorder.cases:
        raise _nothing(args)
    return recorder


def _interrupted(path: Path) -> Run:
    """Read the run to resume. Raises UsageError for one that is complete."""
    found = read(path)
    if found.footer is not None:
        raise UsageError(f"the run {path} was not interrupted: it is complete")
    return found


def _nothing(args: argparse.Namespace) -> UsageError:
    return UsageError(f"no case was selected{f' in shard {args.shard}' if args.shard else ''}")


def _list(args: argparse.Namespace) -> int:
    recorder = collect(args)
    _print(sorted(recorder.cases))
    for line in (*recorder.lines, f"{len(recorder.cases)} cases; {recorder.deselected} more were not selected"):
        print(line, file=sys.stderr)
    return 0


def _recorder(args: argparse.Namespace) -> RunRecorder:
    run_file = args.run_file or new_run_file(args.reports, datetime.now(UTC))
    junit = args.junit or run_file.with_suffix(".xml")
    if run_file.exists():
        raise UsageError(f"the run file {run_file} cannot be written: it exists, and run files are never overwritten")
    output_file(junit, "JUnit file", folders=True)
    output_file(run_file, "run file", folders=True)
    return RunRecorder(run_file, junit, ["ampcheck", *sys.argv[1:]])


def _reproduce(recorder: RunRecorder) -> None:
    """Run the plain torch lines of each cause's example, so that the run says whether they show it."""
    recorder.ended = time.monotonic()
    found = examples(recorder.results.values())
    if found:
        print(f"running the examples of {counted(len(found), 'cause')} in plain torch", file=sys.stderr)
    with suppress(KeyboardInterrupt):  # every case has its result by now
        for key, said in reproduce(found, environment(1)):
            recorder.reproduced[key] = said


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
