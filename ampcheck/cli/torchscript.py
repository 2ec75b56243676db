"""`ampcheck torchscript`: how far scripted code agrees with eager autocast, by PyTorch's own pass and by ours."""

import argparse

from ampcheck.cli.common import Subparsers, add_device_module
from ampcheck.errors import UsageError, unknown

_DEVICES = ("cpu", "virtual:cuda")
_NOTES = {
    True: "dtypes that kernels received, and values beside eager autocast, bit for bit",
    False: "dtypes that kernels received; fake tensors have no values",
}


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "torchscript",
        help="how far scripted code under autocast does what eager code does",
        description="Script a region around each overload with a policy and run it in each dtype assignment, once with "
        "PyTorch's own pass and once with that of ampcheck.torchscript. Ends with 1 where ours differs from eager.",
    )
    parser.add_argument(
        "--device", action="append", default=[], metavar="NAME", help=f"of {', '.join(_DEVICES)}; by default both"
    )
    add_device_module(parser)
    parser.add_argument("--op", metavar="OVERLOAD", help="this one, e.g. sum.dim_IntList, with what differs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, and return 1 where our pass differs from eager, else 0.

    Raises UsageError for a device that no program can be rewritten for, and for an overload without a policy.
    """
    from ampcheck.devices.registry import exists, select  # noqa: PLC0415  # imports torch
    from ampcheck.torchscript import OPERATORS, agreement  # noqa: PLC0415  # registers operators
    from ampcheck.torchscript.programs import TABLES  # noqa: PLC0415  # imports torch

    devices = select(args.device or list(_DEVICES), args.device_module)
    for device in devices:
        if device.type not in TABLES:
            raise UsageError(
                f"TorchScript has no autocast for {device.name!r}; give a device of type {' or '.join(TABLES)}"
            )
    promised = dict.fromkeys(op for device in devices for op in device.policies())
    if args.op and not (args.op in promised or exists(args.op)):
        raise unknown("op with a policy", args.op, promised)
    print(f"Operators: {OPERATORS}")
    red = False
    for device in devices:
        found = list(agreement.measure(device, only=args.op))
        if args.op and not found:
            print(f"\n{device.name}: {args.op} has no policy")
            continue
        print(f"\n{device.name}, {_NOTES[device.has_values]}; {sum(one.cases for one in found)} programs\n")
        print(agreement.table(found))
        differing = [one for one in found if not one.agrees(agreement.OURS)]
        red = red or bool(differing)
        print("".join(map(agreement.details, found if args.op else differing)), end="")
    return int(red)
