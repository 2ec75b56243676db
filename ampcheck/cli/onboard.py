"""`ampcheck onboard`: the preflight of one device as a checklist."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ampcheck.cli.common import add_device_module, seconds
from ampcheck.errors import UsageError
from ampcheck.runner.suites import environment

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers
    from ampcheck.runner.supervisor.child import Child

_POLL = 0.03


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("onboard", help="check step by step whether a device is ready for a run")
    parser.add_argument("device", metavar="DEVICE", help="the device")
    add_device_module(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=120.0, metavar="SECONDS", help="what a step may take; default: 120"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the checklist.

    Returns 0 where no step failed, 1 where one did that a run goes on after, 2 where a run would end before its first
    case. Raises UsageError for a device that cannot be used.
    """
    worst = 0
    step = "load"
    for event in _events(args.device, args.device_module, args.timeout):
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
    ending = (
        f"{args.device} is ready: ampcheck run --device {args.device}",
        f"A run on {args.device} begins, and its header names what failed.",
        f"A run on {args.device} ends at {step!r}, before its first case.",
    )
    print(f"\n{ending[worst]}")
    return worst


def _print(event: dict[str, Any]) -> int:
    """Print a step; returns what it makes of the exit code."""
    print(f"{event['status']:8} {event['step']}: {event['expected']}")
    if event["status"] == "ok":
        return 0
    print(indent(f"got: {event['happened']}", " " * 9))
    if event.get("advice"):
        print(indent(f"next: {event['advice']}", " " * 9))
    return 2 if event["ends"] else int(event["status"] == "failed")


def _events(device: str, modules: list[str], timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a child that examines a device; the last one is `dead` where it ended or hung in a step."""
    from ampcheck.runner.supervisor.child import Child

    with TemporaryDirectory(prefix="ampcheck-") as folder:
        events, log = Path(folder, "events.jsonl"), Path(folder, "log")
        command = [sys.executable, "-X", "faulthandler", "-m", "ampcheck.devices.preflight", str(events), device]
        child = Child([*command, *modules], environment(1), events, log)
        try:
            yield from _followed(child, timeout)
        finally:
            child.kill()
            child.close()


def _followed(child: Child, timeout: float) -> Iterator[dict[str, Any]]:
    since = time.monotonic()
    while True:
        status = child.status  # before the events, so that none is written after the last look at them
        for event in child.events():
            since = time.monotonic()
            yield event
            if event["kind"] in ("refused", "warned"):
                return
        if status is not None:
            yield {"kind": "dead", "happened": f"the process ended with {child.how()}"}
            return
        if time.monotonic() - since > timeout:
            child.abort()
            yield {"kind": "dead", "happened": f"nothing happened for {timeout:g} s{child.where()}"}
            return
        time.sleep(_POLL)
