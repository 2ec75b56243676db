"""What a run leaves behind: the header and table on the terminal, the run file, the manifest."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.devices.registry import absent, select, warned
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import live_drift
from ampcheck.runner import causes, seeds, summary
from ampcheck.runner.results import RED, Result, RunWriter, manifest_hash, read, renamed, unmeasured
from ampcheck.samples import op_database
from ampcheck.spec.ids import Shard, check_key

NOTES = pytest.StashKey[list[str]]()
"""What the preflight of the devices found that does not end the run, a sentence each."""
_DRIFT_SHOWN = 5
_GONE_SHOWN = 5
_PACKAGES = ("ampcheck", "torch", "jax", "jaxlib", "torchax", "numpy", "pytest", "hypothesis")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result; none is imported for it."""
    out = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def header_lines(config: pytest.Config) -> list[str]:
    """Return torch, the devices tested, and why others are not. Raises UsageError for an unknown device."""
    option = config.option
    devices = select(option.device, option.device_module)
    lines = [f"torch {versions().get('torch', '?')}; devices: {', '.join(d.name for d in devices)}"]
    if option.shard is not None:
        lines[0] += f"; shard {Shard.parse(option.shard)}"
    if not option.device:
        lines += [f"without {name}: {reason}" for name, reason in absent(option.device_module).items()]
    if not op_database.rows():
        lines.append(f"no list of the op database for torch {torch.__version__}: rule fallthrough runs without it")
    found = live_drift()
    lines += [f"drift: {line}" for line in found[:_DRIFT_SHOWN]]
    if len(found) > _DRIFT_SHOWN:
        lines.append(f"drift: {len(found) - _DRIFT_SHOWN} more in the run file")
    return [*lines, *config.stash.get(NOTES, []), *warned()]


Found = Mapping[str, Mapping[str, str]]
"""The cases of a run by key: the fields of each that are known before it runs, its `node` among them."""


def manifest(found: Found) -> str:
    """Return the text of a manifest: a line for each case, sorted, with its key, a tab, and its fields as JSON."""
    lines = []
    for key in sorted(found):
        case = {name: text for name, text in found[key].items() if name not in ("suite", "rule", "id", "node")}
        lines.append(f"{key}\t{json.dumps(case)}\n")
    return "".join(lines)


def write_manifest(path: Path, found: Found) -> None:
    """Write a manifest. Raises UsageError where that cannot be done."""
    try:
        path.write_text(manifest(found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the manifest {path} cannot be written: {error.strerror}") from error


class Choice:
    """The cases that `--shard` and `--red-in` leave in a run; every case where neither is given.

    Raises UsageError for a malformed shard, and for a run file that cannot be read or has no red case.
    """

    def __init__(self, option: Any) -> None:
        self._shard = Shard.parse(option.shard) if option.shard is not None else None
        self._file: Path | None = option.red_in
        self._red: frozenset[str] | None = None
        if self._file is not None:
            self._red = frozenset(result.key for result in read(self._file).results.values() if result.status in RED)
            if not self._red:
                raise UsageError(f"the run file {self._file} has no red case, so there is none to run again")

    def has(self, key: str) -> bool:
        """Return whether a case is to run."""
        return (self._shard is None or self._shard.has(key)) and (self._red is None or key in self._red)

    def gone(self, found: Collection[str]) -> list[str]:
        """Return a sentence about red cases of the run file that are not among those found; none where all are."""
        keys = sorted(key for key in self._red or () if self.has(key) and key not in found)
        if not keys:
            return []
        more = f", and {len(keys) - _GONE_SHOWN} more" if len(keys) > _GONE_SHOWN else ""
        return [
            f"not in this run: {len(keys)} of the red cases of {self._file} no longer exist, or other options leave "
            f"them out: {', '.join(keys[:_GONE_SHOWN])}{more}"
        ]


def expected(config: pytest.Config, found: Found, choice: Choice) -> Found:
    """Return the cases that must run: those collected, and those of the manifest.

    Of the manifest, the cases that `choice` leaves out are not expected.
    """
    if not config.option.manifest:
        return dict(found)
    listed = _read_manifest(config.option.manifest)
    return {**{key: case for key, case in listed.items() if choice.has(key)}, **found}


def header(config: pytest.Config, cases: Iterable[str], now: datetime) -> dict[str, Any]:
    """Return the header of a run file for the cases of those keys."""
    option = config.option
    cases = list(cases)
    return {
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": ["pytest", *config.invocation_params.args],
        "manifest": manifest_hash(cases),
        "cases": len(cases),
        **({"shard": str(Shard.parse(option.shard))} if option.shard is not None else {}),
        "seed": seeds.of_programs(option.nightly, getattr(option, "hypothesis_seed", None)),
        "nightly": bool(option.nightly),
        "smoke": bool(option.smoke),
        "versions": versions(),
        "devices": [
            {"name": d.name, "token": d.token, "type": d.type, "key": d.key, "has_values": d.has_values, **d.describe()}
            for d in select(option.device, option.device_module)
        ],
        "absent": absent(option.device_module),
        "preflight": config.stash.get(NOTES, []),
        "drift": live_drift(),
        "machine": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def check_files(config: pytest.Config) -> None:
    """Raise UsageError for a manifest that cannot be used, or a run file that is there already."""
    option = config.option
    if option.manifest:
        _read_manifest(option.manifest)
    if option.run_file and option.run_file.exists():
        raise UsageError(f"the run file {option.run_file} cannot be written: File exists")


def run_file_path(reports: Path, now: datetime) -> Path:
    """Return the run file of a run that starts now, unless told otherwise."""
    return reports / "runs" / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"


class RunLog:
    """Takes each result as it comes; writes the run file; at the end counts what is missing."""

    def __init__(self, config: pytest.Config, found: Found) -> None:
        option, choice = config.option, Choice(config.option)
        self.started = time.monotonic()
        self.results: dict[str, Result] = {}
        self.stale: list[str] = []
        self._whole = False
        self._expected = expected(config, found, choice)
        self._gone = choice.gone(found)
        self._nodes = {case["node"]: case for case in found.values()}
        self._writer: RunWriter | None = None
        if not option.no_run_file:
            now = datetime.now(UTC)
            path = option.run_file or run_file_path(option.reports, now)
            self._writer = RunWriter(path, header(config, self._expected, now))

    def take(self, report: pytest.TestReport) -> None:
        """Keep the result a report carries, or make one for a worker process that died under a case."""
        raw = getattr(report, "ampcheck", None)
        if raw is not None:
            self._add(Result(**raw))
        elif str(report.when) == "???":  # how pytest-xdist reports a crashed worker
            message, node = str(report.longrepr), report.nodeid
            case = self._nodes[node]
            cause = causes.text("crash", message.partition(" while running ")[0], case["rule"])
            self._add(unmeasured(case, "crash", message=message, cause=cause))

    def _add(self, result: Result) -> None:
        # A case that has results from two phases, its call and a broken teardown, counts as the later says.
        self.results[result.key] = result
        if self._writer is not None:
            self._writer.add(result)

    def finish(self, exitstatus: int, stale: Iterable[str]) -> int:
        """Write what is missing, and the footer unless the run was interrupted.

        `stale`: a sentence for each deviation that speaks of no case. Returns the exit status.
        """
        interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        if interrupted:
            return exitstatus
        for key, case in self._expected.items():
            if key not in self.results:
                self._add(unmeasured(case, "missing", cause=causes.MISSING))
        self.stale = list(stale)
        if self._writer is not None:
            self._writer.close({"seconds": round(time.monotonic() - self.started, 3), "stale": self.stale})
        self._whole = True
        red = self.stale or any(result.status in RED for result in self.results.values())
        return int(pytest.ExitCode.TESTS_FAILED) if red and exitstatus == 0 else exitstatus

    def summarize(self, terminal: Any) -> None:
        """Print the causes, then the closing table: a line per device and rule, a column per status that occurs.

        The Markdown summary is written beside the run file.
        """
        if not self.results:
            return
        results = self.results.values()
        deselected = len(terminal.stats.get("deselected", ()))
        ended = summary.ran(results, len(self._expected), deselected, time.monotonic() - self.started)
        more = ""
        if self._writer is not None:
            path = summary.beside(self._writer.path)
            summary.write(path, summary.as_markdown(results, ended, self.stale, {}, whole=self._whole))
            more = str(path)
        terminal.write_sep("=", "conformance")
        if found := summary.causes(results, {}, more):
            terminal.write_line(f"{found}\n")
        terminal.write_line(summary.table(results))
        for line in summary.warned(results):
            terminal.write_line(line)
        for line in self.stale:
            terminal.write_line(f"stale: {line}", red=True)
        for line in self._gone:
            terminal.write_line(line)
        terminal.write_line(ended)
        if self._writer is not None:
            terminal.write_line(f"run file: {self._writer.path}")


def _read_manifest(path: Path) -> dict[str, dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the manifest {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        key, _, fields = line.partition("\t")
        if not key:
            continue
        named = dict(zip(("suite", "rule", "id"), check_key(key).split("/"), strict=True))
        try:
            found[key] = {**named, **{renamed(k): v for k, v in json.loads(fields or "{}").items()}}
            unmeasured(found[key], "missing")
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the manifest {path}, line {number}: {fields!r} are no fields of a case: {error}"
            ) from error
    return found
