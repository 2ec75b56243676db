"""`ampcheck lists`: the autocast lists of device types side by side."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ampcheck.cli.common import Subparsers, add_device_module
from ampcheck.errors import unknown

_BACKEND = """cuda, cpu, xpu, mps, mtia, maia, which are compared by default; torch_npu, torch_musa, torch_mlu; a device
such as jax; C++ source, FILE.cpp or FILE.cpp:KEY. The others are compared with the first"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("lists", help="compare the autocast lists of device types")
    parser.add_argument("backend", nargs="*", metavar="BACKEND", help=_BACKEND)
    add_device_module(parser)
    parser.add_argument("--torch", metavar="VERSION", help="of PyTorch's tables; by default the installed torch's")
    parser.add_argument("--op", help="one op, e.g. softmax")
    parser.add_argument("--policy", help="the overloads that have it in some list, e.g. promote")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print lists and differences as JSON")
    shape.add_argument("--markdown", action="store_true", help="print a page with every overload")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print them. Raises UsageError for an unknown list, op, policy or version."""
    import torch  # noqa: PLC0415  # takes long

    from ampcheck.spec.policies import closest, versions  # noqa: PLC0415  # beside what imports torch
    from ampcheck.tools import lists  # noqa: PLC0415  # imports torch

    version = args.torch or closest(torch.__version__)
    if version not in versions():
        raise unknown("policy table for torch", version, versions())
    names = args.backend or sorted(lists.TYPES, key="cuda".__ne__)
    found = lists.narrow(lists.load(names, version, args.device_module), args.op, args.policy)
    if args.json:
        differences = [asdict(one) for one in lists.differences(found)]
        print(json.dumps({"torch": version, "lists": [asdict(one) for one in found], "differences": differences}))
    elif args.markdown:
        print(lists.markdown(found, version), end="")
    else:
        if args.op and any(one.policies for one in found):
            print(f"{lists.by_op(found)}\n")
        for line in lists.text(found, version, whole=bool(args.op or args.policy)):
            print(line)
    return 0
