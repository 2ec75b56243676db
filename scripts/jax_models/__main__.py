"""`python -m scripts.jax_models`: train models on the jax device and on the CPU, and compare their losses.

Each row is in the run file as soon as it is measured. A process for each model and dtype, so that one that ends or
hangs costs a row.
"""

import argparse
import dataclasses
import importlib.util
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.runner import record as records
from ampcheck.runner.record import versions
from ampcheck.runner.worker import Worker
from scripts.jax_models.models import MODELS
from scripts.jax_models.training import DTYPES, TORCHAX, WAYS, Row

SCHEMA, WHAT = "models-1", "file of trained models"
COMMAND = (sys.executable, "-m", "scripts.jax_models.training")


def main(argv: list[str] | None = None) -> int:
    """Measure or read rows, and print the table.

    Returns 0 where every row of this package's device that was measured agrees, 1 where one does not, 2 for bad input,
    130 after Ctrl-C.
    """
    options = _parser().parse_args(argv)
    try:
        rows, header, interrupted = read(options.table) if options.table else _measured(options)
    except UsageError as error:
        print(f"ampcheck: {error}", file=sys.stderr)
        return 2
    print(table(rows, header))
    if interrupted:
        return 130
    return int(any(row.verdict in ("differs", "raises") and row.way not in TORCHAX for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.jax_models", description=__doc__)
    option = parser.add_argument
    option("--models", default=",".join(MODELS), metavar="NAMES", help=f"by default {','.join(MODELS)}")
    option("--dtypes", default=",".join(DTYPES), metavar="NAMES", help=f"by default {','.join(DTYPES)}")
    option("--ways", default=",".join(WAYS), metavar="NAMES", help=f"by default {','.join(WAYS)}")
    option("--seconds", type=float, default=900.0, help="at most so long for one row (900)")
    option("--run-file", type=Path, metavar="FILE", help="by default reports/models/TIME.jsonl")
    option("--table", type=Path, nargs="+", metavar="FILE", help="print the table of run files, of equal rows the last")
    return parser


def _measured(options: argparse.Namespace) -> tuple[list[Row], dict[str, Any], bool]:
    """Measure what the options choose; return the rows, the header, and whether it was interrupted."""
    models = _chosen("model", options.models, MODELS)
    dtypes, ways = _chosen("dtype", options.dtypes, DTYPES), _chosen("way", options.ways, WAYS)
    now = datetime.now(UTC)
    header = _header(now, {MODELS[name].library for name in models})
    path = options.run_file or Path("reports/models") / f"{now:%Y%m%d-%H%M%S}.jsonl"
    writer = records.JsonlWriter(path, WHAT, {"schema": SCHEMA, **header})
    print(f"{WHAT}: {path}", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, keep what was measured
    rows: list[Row] = []

    def took(row: Row) -> None:
        rows.append(row)
        writer.put("row", dataclasses.asdict(row))
        print(f"{row.model} {row.dtype} {row.way}: {row.verdict} {row.reason[:300]}".rstrip(), file=sys.stderr)

    interrupted = False
    try:
        for dtype in dtypes:
            for name in models:
                for own in (set(ways) - set(TORCHAX), set(ways) & set(TORCHAX)):  # a process has one device "jax"
                    measure(name, dtype, [way for way in ways if way in own], options.seconds, took)
    except KeyboardInterrupt:
        interrupted = True
    writer.close({"interrupted": interrupted})
    return rows, header, interrupted


def _chosen(what: str, given: str, known: Iterable[str]) -> list[str]:
    names = given.split(",")
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    return names


def _header(now: datetime, libraries: Iterable[str]) -> dict[str, Any]:
    """Describe the machine and the versions."""
    there = {name: version(name) for name in sorted(libraries) if importlib.util.find_spec(name)}
    return {
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "versions": {**versions(), **there},
        "machine": {"machine": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
    }


def measure(name: str, dtype: str, ways: Sequence[str], seconds: float, took: Callable[[Row], None]) -> None:
    """Measure a model in a dtype, each way; `took` is given each row. A process that ends or hangs costs one row."""
    library, left = MODELS[name].library, list(ways)
    if not importlib.util.find_spec(library):
        for way in left:
            took(Row(name, dtype, way, reason=f"{library} is not installed: pip install 'ampcheck[models]'"))
        return
    while left:
        with Worker([*COMMAND, name, dtype, *left]) as worker:
            reason = f"it took over {seconds:g} s"
            with suppress(TimeoutError):
                while left and (said := worker.hear(seconds)) is not None:
                    took(Row(**said))
                    left.pop(0)
                reason = f"the process ended with {worker.reason()}" if left else ""
            if left:
                took(Row(name, dtype, left.pop(0), "raises", reason))


def read(paths: Sequence[Path]) -> tuple[list[Row], dict[str, Any], bool]:
    """Read run files: their rows, of equal ones the last, the last header with all versions, and False."""
    rows: dict[tuple[str, str, str], Row] = {}
    named: dict[str, str] = {}
    for path in paths:
        lines = records.read_lines(path, WHAT, SCHEMA, ("row",))
        for number, line in lines.body:
            try:
                row = Row(**{name: value for name, value in line.items() if name != "kind"})
            except TypeError as error:
                raise UsageError(f"{path}, line {number}: not a row: {error}") from error
            rows[row.model, row.dtype, row.way] = row
        named |= lines.header["versions"]
    return list(rows.values()), {**lines.header, "versions": named}, False


def table(rows: Sequence[Row], header: Mapping[str, Any]) -> str:
    """Return a Markdown table for each dtype, and what did not agree with its reason."""
    found = {(row.model, row.dtype, row.way): row for row in rows}
    named = ", ".join(f"{name} {value}" for name, value in header["versions"].items() if name not in _HARNESS)
    machine = header["machine"]
    parts = [f"Measured {header['started'][:10]} with {named}, on {machine['cores']} cores of load {machine['load']}."]
    for dtype in (name for name in DTYPES if any(row.dtype == name for row in rows)):
        tried = {row.way for row in rows if row.dtype == dtype and row.verdict != "not measured"}
        ways = [way for way in WAYS if way in tried]
        parts.append(f"\n| {dtype} | | CPU, ms | {' | '.join(ways)} |\n|---|---|---|{'---|' * len(ways)}")
        for model in (name for name in MODELS if any(found.get((name, dtype, way)) for way in WAYS)):
            own = [found.get((model, dtype, way)) for way in ways]
            cpu = next((f"{row.cpu_later * 1e3:.0f}" for row in own if row and row.cpu_later is not None), "")
            cells = " | ".join(_cell(row) for row in own)
            parts.append(f"| `{model}` | {MODELS[model].kind} | {cpu} | {cells} |")
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row)
    parts += ["", *(f"- {_named(own)}: {shorten(reason, 320, placeholder=' …')}" for reason, own in reasons.items())]
    return "\n".join(parts).rstrip()


def _named(rows: Sequence[Row]) -> str:
    """Return the models of rows, those with the same dtypes and ways together: ``gpt2, llama (fp32 jit, bf16 jit)``."""
    settings: dict[str, list[str]] = {}
    for row in rows:
        settings.setdefault(row.model, []).append(f"{row.dtype} {row.way}")
    models: dict[str, list[str]] = {}
    for model, own in settings.items():
        models.setdefault(", ".join(own), []).append(model)
    return "; ".join(
        f"{'all models' if len(own) == len(MODELS) else ', '.join(own)} ({setting})" for setting, own in models.items()
    )


_HARNESS = ("python", "ampcheck", "jaxlib", "numpy", "pytest", "hypothesis")


def _cell(row: Row | None) -> str:
    """Return the largest difference, seconds of the first step and milliseconds of a later one."""
    if row is None:
        return ""
    if row.difference is None or row.first is None or row.later is None:
        return row.verdict if row.verdict == "not measured" else f"**{row.verdict}**"
    shown = f"{row.difference:.0e}; {row.first:.0f} s, {row.later * 1e3:.0f} ms"
    if row.reason and row.verdict == "agrees":
        return f"{shown}, eagerly"
    return shown if row.verdict == "agrees" else f"**{row.verdict}**: {shown}"


if __name__ == "__main__":
    sys.exit(main())
