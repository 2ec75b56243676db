"""The commands that measure the cases: `coverage`, `power` and `entered`."""

import argparse
import json

from ampcheck.cli.common import tell
from ampcheck.errors import UsageError
from ampcheck.runner.record import print_or_write
from ampcheck.spec.case import RULES


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
