"""Where the installed suites are, and the pytest command and environment that run them from anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.runner import seeds
from ampcheck.spec.ids import Shard

_PACKAGE = Path(__file__).resolve().parents[1]

_NEEDED = 2 * 2**30
"""Bytes of memory that a process may need, with torch and JAX loaded."""


def folder() -> Path:
    """Return the folder of the suites: inside an installed package, beside it in a checkout.

    Raises UsageError where it is in neither.
    """
    for place in (_PACKAGE / "suites", _PACKAGE.parent / "suites"):
        if (place / "eager").is_dir():
            return place
    raise UsageError(f"the suites are neither in {_PACKAGE} nor beside it; install ampcheck again")


def by_name(name: str) -> str:
    """Return the path of a suite, or of a file of one, from its module name; "" where there is none.

    "ampcheck.suites.eager" is a folder. A node id may follow the name of a file:
    "ampcheck.suites.eager.test_ops::test_promote".
    """
    module, colons, rest = name.partition("::")
    head, *parts = module.removeprefix("ampcheck.").split(".")
    if head != "suites" or not module.startswith("ampcheck."):
        return ""
    path = folder().joinpath(*parts)
    found = path if path.is_dir() else path.with_suffix(".py")
    return f"{found}{colons}{rest}" if found.exists() else ""


def names() -> list[str]:
    """Return the suites there are."""
    return sorted(path.name for path in folder().iterdir() if any(path.rglob("test_*.py")))


def command(args: argparse.Namespace) -> list[str]:
    """Return the pytest command line for options of `ampcheck run`. Raises UsageError for an unknown suite or shard."""
    root = folder()
    for name in args.suite:
        if name not in names():
            raise UsageError(f"there is no suite named {name!r}; there are {', '.join(names())}")
    out = [sys.executable, "-m", "pytest", "-c", str(_PACKAGE / "pytest.ini"), f"--rootdir={root.parent}"]
    out += [f"--confcutdir={root}", "-p", "ampcheck.runner.plugin", "-q", "--no-header", "--tb=no"]
    out += ["--capture=sys"]  # what a dying process says below Python stays in its log
    for option in ("device", "device_module", "op", "rule", "compiler", "amp_dtype", "deviations"):
        out += [f"--{option.replace('_', '-')}={value}" for value in getattr(args, option)]
    if args.shard is not None:
        out += [f"--shard={Shard.parse(args.shard)}"]
    if args.last_failed is not None:
        out += [f"--red-in={args.last_failed}"]
    if args.keyword is not None:
        out += ["-k", args.keyword]
    if args.manifest is not None:
        out += [f"--manifest={args.manifest}"]
    if args.no_deviations:
        out += ["--no-deviations"]
    if args.smoke:
        out += ["--smoke"]
    if args.nightly:
        out += ["--nightly", f"--hypothesis-seed={seeds.of_programs(True)}"]  # the same one in every child
    return [*out, *([str(root / name) for name in dict.fromkeys(args.suite)] or [str(root)])]


def environment(processes: int) -> dict[str, str]:
    """Return the environment of a child: it finds this ampcheck and the user's modules, and shares the cores."""
    env = dict(os.environ)
    env.pop("PYTEST_ADDOPTS", None)
    here = _PACKAGE.parent
    # A folder of installed packages is on the path anyway, and must not come before the standard library.
    own = [] if here.name in ("site-packages", "dist-packages") else [str(here)]
    env["PYTHONPATH"] = os.pathsep.join([*own, os.getcwd(), *filter(None, [env.get("PYTHONPATH", "")])])
    if processes > 1:
        env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    return env


def fitting(cores: int | None = None, memory: int | None = None) -> int:
    """Return how many processes the machine can run side by side: one per core, as far as memory suffices.

    `cores`, `memory` in bytes: what is free to use, by default what this machine says.
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if memory is None:
        memory = _free_memory()
    return max(1, cores if memory is None else min(cores, memory // _NEEDED))


def _free_memory() -> int | None:
    """Return the free memory in bytes, within the limit of a container; None where Linux is not asked."""
    found = []
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        found.append(int(rows["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # not in a container, or one without a limit, which reads "max"
        pass
    return max(0, min(found))
