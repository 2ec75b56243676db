"""Compare `ampcheck/samples/op_database.csv` with the op database of the installed torch, or write its lines.

python -m scripts.op_database [--write]
"""

import argparse
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampcheck.compilers.kinds import Everything
from ampcheck.errors import UsageError
from ampcheck.observe.recorder import observe
from ampcheck.samples import op_database
from ampcheck.samples.op_database import DatabaseRow
from ampcheck.spec import versioned
from ampcheck.spec.policies import minor
from ampcheck.spec.torch_dtypes import DTYPES

_DTYPES = ("fp32", "bf16", "fp16", "int64", "bool", "complex64")


def current() -> dict[str, DatabaseRow]:
    """Return the rows of the installed torch's database, by op; an op that the CPU refuses has none."""
    found = (_row(info) for info in op_database.database().values())
    return {row.op: row for row in found if row is not None}


def _row(info: Any) -> DatabaseRow | None:
    # Dtypes of other devices depend on the build and the hardware, so that the file would too.
    supported = info.supported_dtypes("cpu")
    dtypes = [name for name in _DTYPES if DTYPES[name] in supported]
    overloads = _overloads(info, dtypes[0]) if dtypes else None
    if overloads is None:
        return None
    return DatabaseRow(info.full_name, " ".join(dtypes), " ".join(overloads))


def _overloads(info: Any, dtype: str) -> list[str] | None:
    """Return the overloads the first sample's call reaches first, casts left out; None where the CPU refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in op_database.samples(info, dtype, "cpu", 1):
            seen = observe(partial(info, sample.input, *sample.args, **sample.kwargs), "cpu", Everything())
            return None if seen.error else sorted({call.overload for call in seen.kernels})
    return None


def write(path: Path, version: str, found: Mapping[str, DatabaseRow]) -> None:
    """Write the table with other rows for a version. Raises UsageError for an unknown version."""
    tables = dict(op_database.tables())
    if version not in tables:
        raise UsageError(f"torch {version} is in no policy table yet; run python -m scripts.release first")
    tables[version] = found
    rows = {v: {op: (row.dtypes, row.overloads) for op, row in table.items()} for v, table in tables.items()}
    lines = ((op, *row, *versioned.bounds(held, tuple(rows))) for op, row, held in versioned.ranges(rows))
    versioned.write(path, op_database.COLUMNS, lines)


def main(argv: list[str] | None = None) -> int:
    """Compare the file with the installed torch's database, or write it. Return 1 where they differ, else 0."""
    parser = argparse.ArgumentParser(prog="python -m scripts.op_database", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {op_database.FILE.name}")
    args = parser.parse_args(argv)
    try:
        own = current()
        if args.write:
            write(op_database.FILE, minor(torch.__version__), own)
            print(f"{op_database.FILE}: {len(own)} ops of torch {minor(torch.__version__)}")
            return 0
    except UsageError as error:
        parser.error(str(error))
    listed = op_database.rows()
    differ = sorted(op for op in {*own, *listed} if own.get(op) != listed.get(op))
    for op in differ:
        print(f"{op}: the file has {listed.get(op)}; torch {torch.__version__} has {own.get(op)}")
    return int(bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
