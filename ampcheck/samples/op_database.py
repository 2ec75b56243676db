"""The ops of PyTorch's own op database.

Importing the database takes seconds, so the names lie in `op_database.csv` and samples are made when a case runs. A
line is an OpInfo that the CPU has: `op`, the database's full name; `dtypes`, those it has samples in; `overloads`, what
a call of it reaches first; `torch`, the minor version all this is of.

    python -m ampcheck.tools.op_database --write

writes the lines of the installed version and keeps those of others.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ampcheck.samples.torch_testing import internal
from ampcheck.spec.policies import minor
from ampcheck.spec.torch_dtypes import DTYPES

FILE = Path(__file__).with_suffix(".csv")
SAMPLE = "database"
"""The sample name of these cases; no op of the catalogue has a sample of that name."""


@dataclass(frozen=True, slots=True)
class DatabaseRow:
    """A line of the file; lists are separated by blanks."""

    op: str
    dtypes: str
    overloads: str
    torch: str


COLUMNS = tuple(field.name for field in fields(DatabaseRow))


@cache
def rows(version: str | None = None) -> dict[str, DatabaseRow]:
    """Return the lines of a torch minor version, by op; of the installed one where none is given."""
    wanted = version or minor(torch.__version__)
    return {row.op: row for row in read() if row.torch == wanted}


def read() -> list[DatabaseRow]:
    """Return the lines of every version."""
    with FILE.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != COLUMNS:
            raise ValueError(f"{FILE.name}: the first line must be {','.join(COLUMNS)}")
        return [DatabaseRow(*line) for line in reader]


@cache
def database() -> dict[str, Any]:
    """Return PyTorch's OpInfos by full name; the first call takes seconds. Raises UsageError without them."""

    return {info.full_name: info for info in internal("common_methods_invocations").op_db}


def samples(info: Any, dtype: str, device_type: str, count: int, *, grad: bool = False) -> list[Any]:
    """Return the first samples of an OpInfo, the same ones at each call.

    `grad`: the tensors that the op has derivatives of require grad.
    """
    state = random.getstate()
    random.seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        # `info.sample_inputs` would look through the call stack and seed every device for each sample.
        made = list(islice(info.sample_inputs_func(info, device_type, DTYPES[dtype], grad), count))
    random.setstate(state)
    return made
