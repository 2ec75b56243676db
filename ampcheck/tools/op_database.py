"""Compares `ampcheck/samples/op_database.csv` with the op database of the installed torch, or writes it."""

from __future__ import annotations

import argparse
import csv
import warnings
from dataclasses import astuple
from functools import partial
from typing import Any

import torch

from ampcheck.compilers.kinds import Everything
from ampcheck.errors import UsageError
from ampcheck.observe.recorder import observe
from ampcheck.samples import op_database
from ampcheck.samples.op_database import DatabaseRow
from ampcheck.spec.policies import minor
from ampcheck.spec.torch_dtypes import DTYPES

_DTYPES = ("fp32", "bf16", "fp16", "int64", "bool", "complex64")


def current() -> list[DatabaseRow]:
    """The lines the installed torch's database asks for, sorted."""
    found = (_row(info) for info in op_database.database().values())
    return sorted((row for row in found if row is not None), key=lambda row: row.op)


def _row(info: Any) -> DatabaseRow | None:
    dtypes = _dtypes(info)
    overloads = _overloads(info, dtypes[0]) if dtypes else None
    if overloads is None:
        return None
    return DatabaseRow(info.full_name, " ".join(dtypes), " ".join(overloads), minor(torch.__version__))


def _dtypes(info: Any) -> list[str]:
    # Those of other devices depend on the build and the hardware, so that the file would too.
    supported = info.supported_dtypes("cpu")
    return [name for name in _DTYPES if DTYPES[name] in supported]


def _overloads(info: Any, dtype: str) -> list[str] | None:
    """The overloads the first sample's call reaches first, casts left out; None where the CPU refuses the call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in op_database.samples(info, dtype, "cpu", 1):
            seen = observe(partial(info, sample.input, *sample.args, **sample.kwargs), "cpu", Everything())
            return None if seen.error else sorted({call.overload for call in seen.kernels})
    return None


def write() -> int:
    """Put the installed version's lines into the file; returns how many there are."""
    own = current()
    kept = [
        row
        for row in (op_database.read() if op_database.FILE.exists() else [])
        if row.torch != minor(torch.__version__)
    ]
    with op_database.FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(op_database.COLUMNS)
        writer.writerows(astuple(row) for row in sorted((*kept, *own), key=lambda row: (row.op, row.torch)))
    return len(own)


def main(argv: list[str] | None = None) -> int:
    """Compare the file with the installed torch's database, or write it. Returns 1 where they differ, else 0."""
    parser = argparse.ArgumentParser(prog="python -m ampcheck.tools.op_database", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {op_database.FILE.name}")
    args = parser.parse_args(argv)
    try:
        if args.write:
            print(f"{op_database.FILE}: {write()} ops of torch {minor(torch.__version__)}")
            return 0
        own = {row.op: row for row in current()}
    except UsageError as error:
        parser.error(str(error))
    differ = sorted(op for op in {*own, *op_database.rows()} if own.get(op) != op_database.rows().get(op))
    for op in differ:
        print(f"{op}: the file has {op_database.rows().get(op)}; torch {torch.__version__} has {own.get(op)}")
    return int(bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
