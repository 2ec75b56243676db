"""The commands about ops: `explain`, what autocast does to one, and `lists`, those of device types side by side."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from ampcheck.cli.common import Subparsers, add_device, add_device_module, remembered
from ampcheck.errors import unknown
from ampcheck.tools.user_program import screen_width


def add_explain(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("explain", help="say what autocast does to an op")
    parser.add_argument(
        "op", metavar="OP", help="e.g. mm, sum.dim_IntList, softmax, torch.softmax, F.linear, Tensor.mm"
    )
    add_device(parser, "for this device, by default for every one that a whole run tests")
    parser.add_argument("--amp-dtype", metavar="DTYPE", help="the region's dtype; by default the device's default")
    parser.add_argument("--inputs", metavar="DTYPES", help="the floating tensors' dtypes, e.g. fp32,fp16")
    parser.set_defaults(run=explain)


def explain(args: argparse.Namespace) -> int:
    """Print it. Raises UsageError for an unknown op, device or dtype, and for dtypes that no overload takes."""
    question = ["explain", args.op, str(args.amp_dtype), str(args.inputs), str(screen_width()), *args.device]
    for line in _explained(args) if args.device_module else remembered(question, lambda: _explained(args)):
        print(line)
    return 0


def _explained(args: argparse.Namespace) -> Iterator[str]:
    from ampcheck.devices.registry import named, promised  # noqa: PLC0415  # imports torch
    from ampcheck.tools.explain import explain as said  # noqa: PLC0415  # imports torch

    devices = [one for one in named(args.device, args.device_module) if args.device or not one.on_request]
    for device in devices:
        promised(device)
    return said(args.op, devices, args.amp_dtype, args.inputs)


_BACKEND = """cuda, cpu, xpu, mps, mtia, maia, which are compared by default; torch_npu, torch_musa, torch_mlu; a device
such as jax; C++ source, FILE.cpp or FILE.cpp:KEY. The others are compared with the first"""


def add_lists(commands: Subparsers) -> None:
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
    parser.set_defaults(run=lists)


def lists(args: argparse.Namespace) -> int:
    """Print them. Raises UsageError for an unknown list, op, policy or version."""
    import torch  # noqa: PLC0415  # takes long

    from ampcheck.spec.policies import closest, versions  # noqa: PLC0415  # beside what imports torch
    from ampcheck.tools import lists as compared  # noqa: PLC0415  # imports torch

    version = args.torch or closest(torch.__version__)
    if version not in versions():
        raise unknown("policy table for torch", version, versions())
    names = args.backend or sorted(compared.TYPES, key="cuda".__ne__)
    found = compared.narrow(compared.load(names, version, args.device_module), args.op, args.policy)
    if args.json:
        differences = [asdict(one) for one in compared.differences(found)]
        print(json.dumps({"torch": version, "lists": [asdict(one) for one in found], "differences": differences}))
    elif args.markdown:
        print(compared.markdown(found, version), end="")
    else:
        if args.op and any(one.policies for one in found):
            print(f"{compared.by_op(found)}\n")
        for line in compared.text(found, version, whole=bool(args.op or args.policy)):
            print(line)
    return 0
