"""The workloads, one file per family. `docs/contributing.md` says how to add one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from ampcheck.bench.core.model import Workload

FAMILIES = ("matmul", "conv", "attention", "recurrent", "policies", "steps", "overhead")
"""The files of this folder that have workloads, in the order in which they are shown and run."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@cache
def catalogue() -> dict[str, Workload]:
    """Every workload by its name, in the order of the families' files. Not to be changed.

    Raises ValueError as `collected` does.
    """
    return collected(w for family in FAMILIES for w in import_module(f"{__name__}.{family}").WORKLOADS)


def collected(workloads: Iterable[Workload]) -> dict[str, Workload]:
    """Workloads by name, in their order.

    Raises ValueError for a name that is there twice, or is anything but lowercase letters, digits and single hyphens.
    """
    out: dict[str, Workload] = {}
    for workload in workloads:
        if not _NAME.fullmatch(workload.name):
            raise ValueError(f"workload {workload.name!r}: a name is lowercase letters, digits and single hyphens")
        if out.setdefault(workload.name, workload) is not workload:
            raise ValueError(f"there are two workloads named {workload.name!r}")
    return out
