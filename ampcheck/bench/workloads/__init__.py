"""The workloads. `docs/contributing.md` says how to add one."""

from functools import cache
from importlib import import_module

from ampcheck.bench.core.model import Workload

FILES = ("ops", "steps", "overhead")
"""The files of this folder that have workloads, in the order in which they are shown and run."""


@cache
def catalogue() -> dict[str, Workload]:
    """Return every workload by its name, in the order of the files. Not to be changed."""
    return {w.name: w for file in FILES for w in import_module(f"{__name__}.{file}").WORKLOADS}
