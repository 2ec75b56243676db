"""List the ops of PyTorch's own op database, and make samples of them.

Importing the database takes seconds, so its ops lie in `op_database.csv` and samples are made when a case runs. A line
is an OpInfo that the CPU has: `op`, the database's full name; `dtypes`, those it has samples in; `overloads`, which a
call of it reaches first; `since` and `until`, the torch minor versions this is of. `python -m scripts.op_database`
compares the lines with the installed torch, or writes them.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ampcheck.samples.torch_testing import internal
from ampcheck.spec import versioned
from ampcheck.spec.policies import minor, versions
from ampcheck.spec.torch_dtypes import DTYPES

FILE = Path(__file__).with_suffix(".csv")
COLUMNS = ("op", "dtypes", "overloads", "since", "until")
SAMPLE = "database"
"""The sample name of these cases; no op of the catalogue has a sample of that name."""


@dataclass(frozen=True, slots=True)
class DatabaseRow:
    """An op of one version; lists are separated by blanks."""

    op: str
    dtypes: str
    overloads: str


def rows(version: str | None = None) -> Mapping[str, DatabaseRow]:
    """Return the rows of a torch minor version, by op; of the installed one where none is given."""
    return tables().get(version or minor(torch.__version__), {})


@cache
def tables() -> Mapping[str, Mapping[str, DatabaseRow]]:
    """Return the rows of each version."""
    found: dict[str, dict[str, DatabaseRow]] = {version: {} for version in versions()}
    for line in versioned.read(FILE, COLUMNS, versions()):
        for version in line.versions:
            found[version][line.fields["op"]] = DatabaseRow(**line.fields)
    return found


@cache
def database() -> dict[str, Any]:
    """Return PyTorch's OpInfos by full name; the first call takes seconds. Raises UsageError without them."""

    return {info.full_name: info for info in internal("common_methods_invocations").op_db}


def spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers below `count`, evenly spread, the first and the last among them."""
    chosen = min(count, most)
    return sorted({round(k * (count - 1) / max(chosen - 1, 1)) for k in range(chosen)})


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
