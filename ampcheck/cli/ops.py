"""The commands about ops and devices, which run no suite.

`explain`: what autocast does to an op. `lists`: the lists of device types side by side. `devices`: every device, and
whether it can be tested here. `torchscript`: how far scripted code agrees with eager autocast, by PyTorch's own pass
and by ours.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ampcheck.cli.common import remembered
from ampcheck.errors import UsageError, unknown
from ampcheck.tools.user_program import screen_width

if TYPE_CHECKING:
    from ampcheck.devices import Device


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


def lists(args: argparse.Namespace) -> int:
    """Print them. Raises UsageError for an unknown list, op, policy or version."""
    import torch  # noqa: PLC0415  # takes long

    from ampcheck.spec.policies import KEY_OF, closest, versions  # noqa: PLC0415  # beside what imports torch
    from ampcheck.tools import lists as compared  # noqa: PLC0415  # imports torch

    version = args.torch or closest(torch.__version__)
    if version not in versions():
        raise unknown("policy table for torch", version, versions())
    names = args.backend or sorted(KEY_OF, key="cuda".__ne__)
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


def devices(args: argparse.Namespace) -> int:
    """Print the table. Raises UsageError for a device that cannot be used, or a malformed deviations file."""
    for line in _listed(args) if args.device_module else remembered(["devices"], lambda: _listed(args), _lasts):
        print(line)
    return 0


def _lasts() -> bool:
    """Return whether another process would find the same devices: a driver may come and go."""
    import torch  # noqa: PLC0415  # takes a second

    return not torch.backends.cuda.is_built()


def _listed(args: argparse.Namespace) -> Iterator[str]:
    from tabulate import tabulate  # noqa: PLC0415  # only this command needs it

    from ampcheck.devices.registry import known, warned  # noqa: PLC0415  # imports torch
    from ampcheck.runner.deviations import JIT, KERNELS, SHARED, load  # noqa: PLC0415  # imports torch

    there = known(args.device_module)
    rows = [_row(device, list(there)) for device in there.values()]
    headers = ["device", "type", "dispatch key", "here", "amp dtypes", "checked", "policies", "deviations", "faults"]
    yield tabulate(rows, headers=headers, disable_numparse=True)
    everywhere = sum(len(load(path)) for path in (SHARED, JIT, KERNELS))
    yield f"\nThe first amp dtype is the default. {everywhere} more deviations are PyTorch's own, on any device."
    yield "A fault is a known one of the device itself, and is not among its deviations."
    yield from warned()


def _row(device: "Device", names: list[str]) -> list[str]:
    from ampcheck.devices.registry import promised, unusable  # noqa: PLC0415  # imports torch
    from ampcheck.runner.deviations import load, named  # noqa: PLC0415  # imports torch

    here, policies = "", "?"
    try:
        here = unusable(device) or "yes"
        policies = str(len(promised(device)))
    except UsageError as error:
        here = here or str(error)
    entries = named(device, load(device.deviations, names)) if device.deviations else []
    faults = sum(entry.kind == "fault" for entry in entries)
    dtypes = sorted(device.amp_dtypes, key=lambda dtype: dtype != device.default_amp)
    checked = "values and dtypes" if device.has_values else "dtypes only"
    about = [device.name, device.type, device.key, here, ", ".join(dtypes), checked, policies]
    return [*about, str(len(entries) - faults), str(faults)]


_DEVICES = ("cpu", "virtual:cuda")
_NOTES = {
    True: "dtypes that kernels received, and values beside eager autocast, bit for bit",
    False: "dtypes that kernels received; fake tensors have no values",
}


def torchscript(args: argparse.Namespace) -> int:
    """Measure, print, and return 1 where our pass differs from eager, else 0.

    Raises UsageError for a device that no program can be rewritten for, and for an overload without a policy.
    """
    from ampcheck.devices.registry import exists, select  # noqa: PLC0415  # imports torch
    from ampcheck.torchscript import OPERATORS, agreement  # noqa: PLC0415  # registers operators
    from ampcheck.torchscript.rewrite import TABLES  # noqa: PLC0415  # imports torch

    chosen = select(args.device or list(_DEVICES), args.device_module)
    for device in chosen:
        if device.type not in TABLES:
            raise UsageError(
                f"TorchScript has no autocast for {device.name!r}; give a device of type {' or '.join(TABLES)}"
            )
    promised = dict.fromkeys(op for device in chosen for op in device.policies())
    if args.op and not (args.op in promised or exists(args.op)):
        raise unknown("op with a policy", args.op, promised)
    print(f"Operators: {OPERATORS}")
    red = False
    for device in chosen:
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
