"""The commands that measure the cases: `coverage`, `power` and `entered`."""

import argparse
import json
from pathlib import Path

from ampcheck.cli.common import Subparsers, add_device, tell
from ampcheck.errors import UsageError
from ampcheck.runner.record import output_file, print_or_write
from ampcheck.spec.case import RULES


def add_coverage(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "coverage",
        help="how many states of the ops with a policy the cases reach",
        description="Count the cells of overload, dispatch key, mix of dtypes, gradient mode, layout and compiler: "
        "those that cannot be, with the reasons, those that the cases of every run and of a nightly run reach, and the "
        "open ones.",
    )
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="run files: count the cells whose case passed")
    add_device(parser, "a device to count on, by default every one that this machine has")
    what = "plant each of five faults into so many random cells and print which are noticed; counts nothing"
    add("--try", dest="tries", type=int, metavar="CELLS", help=what)
    add("--seed", type=int, default=0, help="of the random cells of --try, by default 0")
    what = "count which of torch's public callables the cases call, list the others, and count nothing else"
    add("--surface", action="store_true", help=what)
    add("--open", action="store_true", help="list what is open, by overload and compiler")
    what = "write the counts to a file; ampcheck report shows REPORTS/coverage.json"
    add("--json", type=output_file, metavar="FILE", help=what)
    parser.set_defaults(run=coverage)


def coverage(args: argparse.Namespace) -> int:
    """Count and print. Raises UsageError for an unknown device and a file that is no run file."""
    from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch
    from ampcheck.observe.dispatcher import replaceable  # noqa: PLC0415  # imports torch
    from ampcheck.runner.record import read  # noqa: PLC0415  # imports torch
    from ampcheck.tools.coverage import cells, faults, surface  # noqa: PLC0415  # imports torch

    if args.surface:
        print(surface.count().table(args.open))
        return 0
    if args.tries is not None:
        for device in select(args.device, args.device_module):
            if args.device or replaceable(device.key):
                print(f"{device.name}: {faults.table(faults.tried(device, args.tries, args.seed, tell), args.seed)}")
            else:
                tell(f"{device.name} is left out: faults cannot be planted into its kernels")
        return 0
    statuses = None
    if args.runs:
        statuses = {result.key: result.status for path in args.runs for result in read(path).results.values()}
    counted = [cells.count(device, statuses) for device in select(args.device, args.device_module)]
    if args.json is not None:
        fields = {**cells.fields(counted, statuses is not None), "surface": surface.count().fields()}
        print_or_write(json.dumps(fields, indent=2) + "\n", args.json, "file of counts")
    print(cells.table(counted, args.open, statuses is not None))
    return 0


def add_power(commands: Subparsers) -> None:
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
    what = "where results are kept as they come"
    add("--work", type=Path, default=Path("build") / "power", metavar="FOLDER", help=what)
    what = "write the figures to a file; ampcheck report shows REPORTS/power.json"
    add("--json", type=output_file, metavar="FILE", help=what)
    what = "mutate what compares in ampcheck itself instead, each function, and run ampcheck's own tests"
    add("--own", action="store_true", help=what)
    parser.set_defaults(run=power)


def power(args: argparse.Namespace) -> int:
    """Measure and print. Raises UsageError for an unknown device or rule, and for a number below 1."""
    from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch
    from ampcheck.runner.run import suites_folder  # noqa: PLC0415  # imports torch
    from ampcheck.tools.power import measure  # noqa: PLC0415  # imports torch
    from ampcheck.tools.power.process import OWN  # noqa: PLC0415  # imports torch

    for name in ("sample", "most"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(args, name)}")
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
    most, of_row = (1000, 1000) if args.own else (args.most, 1)
    trial = measure.Power(devices, args.work, most, of_row, args.rule, nightly=args.nightly)
    of = [*devices, *sorted(args.rule), str(most), str(of_row), *["nightly"] * args.nightly]
    results = args.work / f"power-{'-'.join(of).replace(':', '_')}.jsonl"
    outcomes = aside
    try:
        trial.record(tell)
        for outcome in measure.measure(trial, drawn, results, tell):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print(measure.text(measure.fields(outcomes, len(mutants), devices)))
        raise
    finally:
        trial.close()
    figures = measure.fields(outcomes, len(mutants), devices)
    if args.json is not None:
        print_or_write(json.dumps(figures, indent=2) + "\n", args.json, "file of figures")
    print(measure.text(figures))
    return 0


def add_entered(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "entered",
        help="which autocast kernels the op cases really enter",
        description="Put a recorder in place of every registered autocast kernel, run the op cases and PyTorch's own "
        "lists, and print what each entered. Ends with 1 where the op cases miss an overload.",
    )
    add_device(parser, "a device to measure on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=entered)


def entered(args: argparse.Namespace) -> int:
    """Measure, print, and return 1 where the op cases miss an overload, else 0.

    Raises UsageError for an unknown device, and for one whose key no policies are registered under.
    """
    from ampcheck.devices.registry import known, select, unusable  # noqa: PLC0415  # imports torch
    from ampcheck.spec.policies import KEYS  # noqa: PLC0415  # imports torch
    from ampcheck.tools.coverage import kernels  # noqa: PLC0415  # imports torch

    names = args.device or [d.name for d in known(args.device_module).values() if d.key in KEYS and not unusable(d)]
    devices = select(names, args.device_module)
    suite, lists = kernels.by_suite(devices, tell), kernels.by_upstream_lists(devices, tell)
    rows = {device.name: (mine, theirs) for device, mine, theirs in zip(devices, suite, lists, strict=True)}
    print(json.dumps(kernels.fields(rows), indent=2) if args.json else kernels.table(rows))
    return int(any(mine.missed for mine in suite))
