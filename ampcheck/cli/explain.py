"""`ampcheck explain`: what autocast will do to an op."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ampcheck.cli.common import add_device
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers
    from ampcheck.devices import Device

_PARTS = "It is composite, so what comes out depends on the ops it is made of; ampcheck trace shows them."
_NONE = (
    "has no policy under any dispatch key, so autocast lets it fall through to its kernel as if there were no region."
)


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
    from ampcheck.devices.registry import named, promised
    from ampcheck.spec.dtypes import LOW
    from ampcheck.tools import explain

    if args.amp_dtype is not None and args.amp_dtype not in LOW:
        raise UsageError(f"there is no region dtype named {args.amp_dtype!r}; there are {', '.join(LOW)}")
    inputs = explain.floating_names(args.inputs) if args.inputs is not None else ()
    devices = named(args.device, args.device_module)
    for device in devices:
        promised(device)
    found = explain.resolve(args.op)
    if len(found.overloads) > 1:
        print(f"{args.op} means {len(found.overloads)} overloads: {', '.join(found.overloads)}")
    if found.how:
        print(f"({found.how})")
    refused = []
    for overload in found.overloads:
        try:
            lines = _overload(overload, devices, args.amp_dtype, inputs)
        except UsageError as error:  # another overload may take as many tensors
            refused.append(error)
        else:
            print("\n".join(["", *lines]))
    if len(refused) == len(found.overloads):
        raise refused[0]
    return 0


def _overload(overload: str, devices: list[Device], amp: str | None, inputs: tuple[str, ...]) -> list[str]:
    from tabulate import tabulate

    from ampcheck.tools import explain

    out = [f"aten::{overload}", ""]
    keys = explain.keys(overload, devices)
    if all(policy == "fallthrough" for _, policy, _ in keys):
        groups = {("fallthrough", amp or devices[0].default_amp): devices}
        out[0] += f" {_NONE}"
    else:
        out.append(tabulate(keys, headers=["dispatch key", "policy", "source"]))
        groups = {}
        for device in devices:
            policy = device.policies().get(overload, "fallthrough")
            groups.setdefault((policy, amp or device.default_amp), []).append(device)
    for (policy, dtype), members in groups.items():
        out += ["", *_group(overload, policy, dtype, members, inputs)]
    return out


def _group(overload: str, policy: str, dtype: str, members: list[Device], inputs: tuple[str, ...]) -> list[str]:
    """Describe an op on devices that share a policy and a region's dtype."""
    from tabulate import tabulate

    from ampcheck.observe.recorder import is_composite
    from ampcheck.spec.rules import RULES
    from ampcheck.tools import explain

    where = ", ".join(device.name for device in members)
    rule = RULES[policy]
    out = [f"On {where}, in a region of {dtype}: {policy}: {rule.sentence}.", f"  {rule.source}", ""]
    if policy == "fallthrough" and is_composite(overload):
        out.append(f"  {_PARTS}")
    else:
        rows = explain.effects(overload, policy, members[0], dtype, inputs)
        headers = ["given", "the kernel gets", "and", "comes out"]
        shown = [
            [_dtypes(e.given), _dtypes(e.kernel) if e.out != "nothing" else "-", e.also or "-", e.out] for e in rows
        ]
        out += [f"  {line}" for line in tabulate(shown, headers=headers).splitlines()]
    for deviation, count in explain.deviations(overload, policy, members).items():
        cases = "case" if count == 1 else "cases"
        out += ["", f"  Known deviation {deviation.id!r} ({count} {cases}): {deviation.reason} {deviation.link}"]
    return out


def _dtypes(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "no tensor"
