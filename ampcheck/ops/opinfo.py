"""The ops of PyTorch's own op database, as cases of the rule fallthrough.

Importing the database takes seconds, so the names lie in `opinfo.csv` and samples are made when a case runs. A line is
an OpInfo that the CPU has: `op`, the database's full name; `dtypes`, those it has samples in; `overloads`, what a call
of it reaches first; `torch`, the minor version all this is of.

    python -m ampcheck.ops.opinfo --write

writes the lines of the installed version and keeps those of others.
"""

from __future__ import annotations

import argparse
import csv
import random
import warnings
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.cases import Case
from ampcheck.errors import UsageError
from ampcheck.spec.policies import minor
from ampcheck.torch_dtypes import DTYPES

if TYPE_CHECKING:
    from ampcheck.devices import Device

FILE = Path(__file__).with_suffix(".csv")
SAMPLE = "database"
"""The sample name of these cases; no op of the catalogue has a sample of that name."""

_DTYPES = ("fp32", "bf16", "fp16", "int64", "bool", "complex64")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the file; lists are separated by blanks."""

    op: str
    dtypes: str
    overloads: str
    torch: str


COLUMNS = tuple(field.name for field in fields(Row))


@cache
def rows(version: str | None = None) -> dict[str, Row]:
    """The lines of a torch minor version, by op; of the installed one where none is given."""
    wanted = version or minor(torch.__version__)
    return {row.op: row for row in _read() if row.torch == wanted}


def _read() -> list[Row]:
    with FILE.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != COLUMNS:
            raise ValueError(f"{FILE.name}: the first line must be {','.join(COLUMNS)}")
        return [Row(*line) for line in reader]


def cases(device: Device, suite: str = "eager") -> Iterator[Case]:
    """The database's cases on a device: each op that is not just one with a policy, in float32 and a lower precision.

    An op whose samples are not floating gets one case in the first dtype they have. Runs no op.
    """
    policies = device.policies()
    for row in rows().values():
        overloads = row.overloads.split()
        if overloads and all(overload in policies for overload in overloads):
            continue
        there = row.dtypes.split()
        chosen = [dtype for dtype in ("fp32", device.default_amp) if dtype in there] or there[:1]
        for inputs in chosen:
            yield Case(suite, "fallthrough", row.op, SAMPLE, inputs, device.default_amp, device.name, device.token)


@cache
def database() -> dict[str, Any]:
    """PyTorch's OpInfos by full name. Takes seconds the first time. Raises UsageError where they cannot be imported."""
    from ampcheck.upstream import internal

    return {info.full_name: info for info in internal("common_methods_invocations").op_db}


def samples(info: Any, dtype: str, device_type: str, count: int) -> list[Any]:
    """The first samples of an OpInfo, the same ones at each call."""
    state = random.getstate()
    random.seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        # `info.sample_inputs` would look through the call stack and seed every device for each sample.
        made = list(islice(info.sample_inputs_func(info, device_type, DTYPES[dtype], False), count))
    random.setstate(state)
    return made


def current() -> list[Row]:
    """The lines the installed torch's database asks for, sorted."""
    found = (_row(info) for info in database().values())
    return sorted((row for row in found if row is not None), key=lambda row: row.op)


def _row(info: Any) -> Row | None:
    dtypes = _dtypes(info)
    overloads = _overloads(info, dtypes[0]) if dtypes else None
    if overloads is None:
        return None
    return Row(info.full_name, " ".join(dtypes), " ".join(overloads), minor(torch.__version__))


def _dtypes(info: Any) -> list[str]:
    # Those of other devices depend on the build and the hardware, so that the file would too.
    supported = info.supported_dtypes("cpu")
    return [name for name in _DTYPES if DTYPES[name] in supported]


class _Every:
    """A collection that has everything in it."""

    def __contains__(self, item: object) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(())


def _overloads(info: Any, dtype: str) -> list[str] | None:
    """The overloads the first sample's call reaches first, casts left out; None where the CPU refuses the call."""
    from ampcheck.observe import observe

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(info, dtype, "cpu", 1):
            seen = observe(partial(info, sample.input, *sample.args, **sample.kwargs), "cpu", _Every())
            return None if seen.error else sorted({call.overload for call in seen.kernels})
    return None


def write() -> int:
    """Put the installed version's lines into the file; returns how many there are."""
    own = current()
    kept = [row for row in (_read() if FILE.exists() else []) if row.torch != minor(torch.__version__)]
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(row) for row in sorted((*kept, *own), key=lambda row: (row.op, row.torch)))
    return len(own)


def main(argv: list[str] | None = None) -> int:
    """Compare the file with the installed torch's database, or write it. Returns 1 where they differ, else 0."""
    parser = argparse.ArgumentParser(prog="python -m ampcheck.ops.opinfo", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    args = parser.parse_args(argv)
    try:
        if args.write:
            print(f"{FILE}: {write()} ops of torch {minor(torch.__version__)}")
            return 0
        own = {row.op: row for row in current()}
    except UsageError as error:
        parser.error(str(error))
    differ = sorted(op for op in {*own, *rows()} if own.get(op) != rows().get(op))
    for op in differ:
        print(f"{op}: the file has {rows().get(op)}; torch {torch.__version__} has {own.get(op)}")
    return int(bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
