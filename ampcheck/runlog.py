"""What a run leaves behind: the header and table on the terminal, the run file, the manifest."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tabulate import tabulate

from ampcheck.devices.registry import absent, select
from ampcheck.errors import UsageError
from ampcheck.ids import parse_key, parse_node
from ampcheck.results import RED, STATUSES, Result, Writer, manifest_hash

if TYPE_CHECKING:
    from ampcheck.session import Session

_PACKAGES = ("ampcheck", "torch", "jax", "torchax", "numpy", "pytest", "hypothesis")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide a result; none is imported for it."""
    out = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def header_lines(config: pytest.Config) -> list[str]:
    """Torch, the devices this run tests, and why others are not there. Raises UsageError for an unknown device."""
    option = config.option
    devices = select(option.device, option.device_module)
    lines = [f"torch {versions().get('torch', '?')}; devices: {', '.join(d.name for d in devices)}"]
    if not option.device:
        lines += [f"without {name}: {reason}" for name, reason in absent(option.device_module).items()]
    return lines


def write_manifest(path: Path, nodes: list[str]) -> None:
    """Write the keys of the cases, one a line, sorted."""
    keys = sorted(parse_node(node).key for node in nodes)
    try:
        path.write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the manifest {path} cannot be written: {error.strerror}") from error


class RunLog:
    """Takes each result as it comes; writes the run file; at the end counts what is missing."""

    def __init__(self, config: pytest.Config, nodes: list[str]) -> None:
        option = config.option
        self.started = time.monotonic()
        self.results: dict[str, Result] = {}
        self.stale: list[str] = []
        # A case that has results from two phases (its call and a broken teardown) counts once, as the worse of them.
        self._expected = {parse_node(node).key: node for node in nodes}
        if option.manifest:
            self._expected |= {key: "" for key in _read_manifest(option.manifest)}
        self._writer: Writer | None = None
        if not option.no_run_file:
            now = datetime.now(timezone.utc)
            name = f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
            path = option.run_file or option.reports / "runs" / name
            self._writer = Writer(path, self._header(config, now))

    def _header(self, config: pytest.Config, now: datetime) -> dict[str, Any]:
        option = config.option
        return {
            "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "command": ["pytest", *config.invocation_params.args],
            "manifest": manifest_hash(self._expected),
            "cases": len(self._expected),
            "seed": 0,
            "nightly": bool(option.nightly),
            "versions": versions(),
            "devices": [
                {"name": d.name, "type": d.type, "key": d.key, "has_values": d.has_values, **d.describe()}
                for d in select(option.device, option.device_module)
            ],
            "absent": absent(option.device_module),
            "machine": {
                "system": platform.system(),
                "release": platform.release(),
                "machine": platform.machine(),
                "cores": os.cpu_count(),
            },
        }

    def take(self, report: pytest.TestReport) -> None:
        """Keep the result a report carries, or make one for a worker process that died under a case."""
        raw = getattr(report, "ampcheck", None)
        if raw is None and report.when == "???":  # how pytest-xdist reports a crashed worker
            raw = {**parse_node(report.nodeid).fields(), "status": "crash", "seconds": 0.0, "message": str(report.longrepr)}
        if raw is None:
            return
        result = Result(**raw)
        self.results[result.key] = result
        if self._writer is not None:
            self._writer.add(result)

    def finish(self, exitstatus: int, session: Session | None) -> int:
        """Write what is missing, and the footer unless the run was interrupted; returns the exit status."""
        interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        if interrupted:
            return exitstatus
        for key, node in self._expected.items():
            if key not in self.results:
                result = Result(**parse_key(key).fields(), status="missing", seconds=0.0, node=node)
                self.results[key] = result
                if self._writer is not None:
                    self._writer.add(result)
        if session is not None and session.whole:
            self.stale = session.waivers.stale(session.names)
        if self._writer is not None:
            self._writer.close({"seconds": round(time.monotonic() - self.started, 3), "stale": self.stale})
        red = self.stale or any(result.status in RED for result in self.results.values())
        return int(pytest.ExitCode.TESTS_FAILED) if red and exitstatus == 0 else exitstatus

    def summarize(self, terminal: Any) -> None:
        """The closing table: a line per device and rule, a column per status that occurs."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for result in self.results.values():
            counts.setdefault((result.device, result.rule), Counter())[result.status] += 1
        if not counts:
            return
        used = [status for status in STATUSES if any(c[status] for c in counts.values())]
        rows = [[device, rule, sum(c.values()), *(c[s] or "" for s in used)] for (device, rule), c in sorted(counts.items())]
        total: Counter[str] = sum(counts.values(), Counter())
        rows.append(["all", "all", sum(total.values()), *(total[s] for s in used)])
        terminal.write_sep("=", "conformance")
        terminal.write_line(tabulate(rows, headers=["device", "rule", "cases", *used]))
        for line in self.stale:
            terminal.write_line(f"stale: {line}", red=True)
        deselected = len(terminal.stats.get("deselected", ()))
        seconds = time.monotonic() - self.started
        done = len(self.results) - total["missing"]
        terminal.write_line(
            f"{done} of {len(self._expected)} cases ran in {seconds:.1f} s; {deselected} more were not selected"
        )
        if self._writer is not None:
            terminal.write_line(f"run file: {self._writer.path}")


def _read_manifest(path: Path) -> list[str]:
    try:
        keys = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the manifest {path} cannot be read: {error}") from error
    for key in keys:
        parse_key(key)
    return keys
