"""`ampcheck explain`: what autocast will do to an op."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ampcheck.cli.common import Subparsers, add_device, remembered


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("explain", help="say what autocast does to an op")
    parser.add_argument(
        "op", metavar="OP", help="e.g. mm, sum.dim_IntList, softmax, torch.softmax, F.linear, Tensor.mm"
    )
    add_device(parser, "for this device, by default for every one")
    parser.add_argument("--amp-dtype", metavar="DTYPE", help="the region's dtype; by default the device's default")
    parser.add_argument("--inputs", metavar="DTYPES", help="the floating tensors' dtypes, e.g. fp32,fp16")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print it. Raises UsageError for an unknown op, device or dtype, and for dtypes that no overload takes."""
    question = ["explain", args.op, str(args.amp_dtype), str(args.inputs), *args.device]
    for line in _lines(args) if args.device_module else remembered(question, lambda: _lines(args)):
        print(line)
    return 0


def _lines(args: argparse.Namespace) -> Iterator[str]:
    from ampcheck.devices.registry import named, promised  # noqa: PLC0415  # imports torch
    from ampcheck.tools.explain import explain  # noqa: PLC0415  # imports torch

    devices = named(args.device, args.device_module)
    for device in devices:
        promised(device)
    return explain(args.op, devices, args.amp_dtype, args.inputs)
