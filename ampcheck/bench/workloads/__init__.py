"""The workloads, one file per family. `docs/contributing.md` says how to add one."""

from functools import cache
from importlib import import_module

from ampcheck.bench.core.model import Workload

FAMILIES = ("matmul", "conv", "attention", "recurrent", "policies", "steps", "overhead")
"""The files of this folder that have workloads, in the order in which they are shown and run."""


@cache
def catalogue() -> dict[str, Workload]:
    """Return every workload by its name, in the order of the families' files. Not to be changed."""
    return {w.name: w for family in FAMILIES for w in import_module(f"{__name__}.{family}").WORKLOADS}
