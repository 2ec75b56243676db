"""`ampcheck onboard`: the preflight of one device as a checklist."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Any

from ampcheck.errors import UsageError, unknown
from ampcheck.runner.run import environment
from ampcheck.runner.worker import Channel, Worker


def run(args: argparse.Namespace) -> int:
    """Print the checklist.

    Returns 0 where no step failed, 1 where one did that a run goes on after, 2 where a run would end before its first
    case. Raises UsageError for a device that cannot be used.
    """
    if args.package:
        _write_module(args)
    elif not args.device:
        raise UsageError("onboard needs a DEVICE, or --package with what makes a PrivateUse1 backend")
    worst = 0
    step = "load"
    for event in _events(args.timeout, {"device": args.device, "modules": args.device_module}):
        kind = event["kind"]
        if kind == "refused":
            raise UsageError(event["message"])
        if kind == "device":
            print(f"{args.device}: device type {event['type']!r}, autocast dispatch key {event['key']}\n")
        elif kind == "begin":
            step = event["step"]
        elif kind == "end":
            worst = max(worst, _print(event))
        elif kind == "dead":
            worst = 2
            _print({**event, "step": step, "status": "failed", "ends": True, "expected": "the process goes on"})
        elif kind == "warned":
            for line in event["lines"]:
                print(line)
    modules = "".join(f" --device-module {module}" for module in args.device_module)
    command = f"ampcheck run --smoke --device {args.device}{modules}"
    ending = (
        f"{args.device} is ready: {command}",
        f"A run begins, and its header names what failed: {command}",
        f"A run on {args.device} ends at {step!r}, before its first case.",
    )
    print(f"\n{ending[worst]}")
    return worst


def _write_module(args: argparse.Namespace) -> None:
    """Write the device module of the backend of a package, and go on with its device.

    Raises UsageError where there is none, or the file is there.
    """
    (found,) = islice(_events(args.timeout, {"package": args.package}), 1)
    if found["kind"] != "discovered":
        raise UsageError(found.get("message") or f"importing {args.package}: {found['happened']}")
    path = Path(f"{found['name']}_ampcheck.py")
    if path.exists():
        raise UsageError(f"{path} is there already: give --device-module {path.stem} in place of --package")
    path.write_text(found["module"], encoding="utf-8")
    args.device, args.device_module = found["name"], [path.stem]
    print(f"{path} describes {found['name']}", *(f"note: {note}" for note in found["notes"]), sep="\n", end="\n\n")


def _print(event: dict[str, Any]) -> int:
    """Print a step; returns what it makes of the exit code."""
    print(f"{event['status']:8} {event['step']}: {event['expected']}")
    if event["status"] == "ok":
        return 0
    print(indent(f"got: {event['happened']}", " " * 9))
    if event.get("advice"):
        print(indent(f"next: {event['advice']}", " " * 9))
    return 2 if event["ends"] else int(event["status"] == "failed")


def _events(timeout: float, task: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """Yield the events of a child that examines or finds a device; the last is `dead` where it ended or hung."""
    command = [sys.executable, "-m", "ampcheck.cli.onboard"]
    with Worker(command, environment(1), task) as child:
        try:
            while (event := child.hear(timeout)) is not None:
                yield event
                if event["kind"] in ("refused", "warned"):
                    return
            happened = f"the process ended with {child.reason()}"
        except TimeoutError:
            child.abort()
            happened = f"nothing happened for {timeout:g} s{child.where()}"
        yield {"kind": "dead", "happened": happened}


def examine_device() -> None:
    """Examine the device that standard input names, and answer with an event as each step begins and ends."""
    from ampcheck.devices import preflight, registry  # noqa: PLC0415  # imports torch: the child alone needs it

    task = json.loads(sys.stdin.readline())
    channel = Channel()
    if "package" in task:
        try:
            channel.send({"kind": "discovered", **asdict(preflight.discover(task["package"]))})
        except UsageError as error:
            channel.send({"kind": "refused", "message": str(error)})
        return
    name, modules = task["device"], task["modules"]

    def put(kind: str, **fields: object) -> None:
        channel.send({"kind": kind, **fields})

    def begin(_: object, step: str) -> None:
        put("begin", step=step)

    def end(_: object, finding: preflight.PreflightFinding) -> None:
        put("end", **asdict(finding))

    load = preflight.PreflightFinding("load", "its module is imported and declares a device that this machine can use")
    put("begin", step=load.step)
    try:
        found = registry.known(modules)
        if name not in found:
            put("refused", message=str(unknown("device", name, found)))
            return
        device = found[name]
        wrong = registry.unusable(device)
    except UsageError as error:
        wrong = str(error)
    if wrong:
        put("end", **asdict(replace(load, status=preflight.FAILED, happened=wrong, ends=True)))
    else:
        put("device", type=device.type, key=device.key)
        put("end", **asdict(load))
        for _ in preflight.examine((device,), begin, end):
            pass
    put("warned", lines=registry.warned())


if __name__ == "__main__":
    examine_device()
