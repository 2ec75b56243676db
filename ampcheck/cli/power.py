"""`ampcheck power`: how many generated faults of PyTorch the cases notice."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ampcheck.cli.common import Subparsers, print_or_write, tell
from ampcheck.errors import UsageError
from ampcheck.runner.record import output_file


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "power",
        help="how many generated faults of PyTorch the cases notice",
        description="Mutate the Python source of PyTorch's automatic mixed precision, one node of its syntax tree at a "
        "time, and the autocast kernels of the devices; run the cases that execute the change until one turns red. "
        "Prints how many mutants are killed, by class and rule, and lists the survivors. An interrupted measurement "
        "goes on.",
    )
    add = parser.add_argument
    add("--device", action="append", default=[], metavar="NAME", help="a device of the cases, by default cpu")
    add("--sample", type=int, default=200, metavar="N", help="how many mutants are drawn; default: 200")
    add("--seed", type=int, default=0, metavar="N", help="the seed they are drawn by; default: 0")
    add("--rule", action="append", default=[], metavar="RULE", help="try the cases of this rule alone; again for more")
    add("--nightly", action="store_true", help="try mutants that no case of every run notices on nightly cases, too")
    add("--most", type=int, default=25, metavar="N", help="how many cases a mutant is tried on; default: 25")
    add(
        "--per-scenario",
        type=int,
        default=1,
        metavar="N",
        help="how many cases of a scenario are tried first, five times as many where it compiles nothing; default: 1",
    )
    add(
        "--work",
        type=Path,
        default=Path("build") / "power",
        metavar="FOLDER",
        help="where results are kept as they come",
    )
    add(
        "--json",
        type=output_file,
        metavar="FILE",
        help="write the figures to a file; ampcheck report shows REPORTS/power.json",
    )
    add(
        "--own",
        action="store_true",
        help="mutate what compares in ampcheck itself instead, each function, and run ampcheck's own tests",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Raises UsageError for an unknown device or rule, and for a number below 1."""
    from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch
    from ampcheck.runner.run import suites_folder  # noqa: PLC0415  # imports torch
    from ampcheck.spec.rules import RULES  # noqa: PLC0415  # imports torch
    from ampcheck.tools.power import measure  # noqa: PLC0415  # imports torch
    from ampcheck.tools.power.process import OWN  # noqa: PLC0415  # imports torch

    for name in ("sample", "most", "per_scenario"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    for rule in args.rule:
        if rule not in RULES:
            raise UsageError(f"there is no rule named {rule!r}; ampcheck manifest lists the cases of each")
    chosen = [] if args.own else select(args.device or ["cpu"], [])
    devices = [OWN] if args.own else [device.name for device in chosen]
    if args.own and not (suites_folder().parent / "tests" / "checks").is_dir():
        raise UsageError("--own needs ampcheck's own tests, which a checkout has; an installed package has none")
    mutants = measure.comparing() if args.own else measure.population(chosen)
    aside = measure.set_aside(mutants)
    never = {outcome.mutant for outcome in aside}
    left = [mutant for mutant in mutants if mutant not in never]
    drawn = left if args.own else measure.draw(left, args.sample, args.seed)
    if args.own:  # what is kept was measured on other code, or with other tests
        for kept in args.work.glob(f"power*-{OWN}-*"):
            kept.unlink()
    most, of_row = (1000, 1000) if args.own else (args.most, args.per_scenario)
    power = measure.Power(devices, args.work, most, of_row, args.rule, nightly=args.nightly)
    of = [*devices, *sorted(args.rule), str(most), str(of_row), *["nightly"] * args.nightly]
    results = args.work / f"power-{'-'.join(of).replace(':', '_')}.jsonl"
    outcomes = aside
    try:
        power.record(tell)
        for outcome in measure.measure(power, drawn, results, tell):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print(measure.text(measure.fields(outcomes, len(mutants), devices)))
        raise
    finally:
        power.close()
    figures = measure.fields(outcomes, len(mutants), devices)
    if args.json is not None:
        print_or_write(json.dumps(figures, indent=2) + "\n", args.json, "file of figures")
    print(measure.text(figures))
    return 0
