"""Where the installed suites are, and the pytest command and environment that run them from anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import ampcheck
from ampcheck import seeds
from ampcheck.errors import UsageError

_PACKAGE = Path(ampcheck.__file__).resolve().parent


def folder() -> Path:
    """The folder of the suites: inside an installed package, beside it in a checkout.

    Raises UsageError where it is in neither.
    """
    for place in (_PACKAGE / "suites", _PACKAGE.parent / "suites"):
        if (place / "eager").is_dir():
            return place
    raise UsageError(f"the suites are neither in {_PACKAGE} nor beside it; install ampcheck again")


def names() -> list[str]:
    """The suites there are."""
    return sorted(path.name for path in folder().iterdir() if any(path.glob("test_*.py")))


def command(args: argparse.Namespace) -> list[str]:
    """The pytest command line for the options of `ampcheck run`. Raises UsageError for an unknown suite."""
    root = folder()
    for name in args.suite:
        if name not in names():
            raise UsageError(f"there is no suite named {name!r}; there are {', '.join(names())}")
    out = [sys.executable, "-m", "pytest", "-c", str(_PACKAGE / "pytest.ini"), f"--rootdir={root.parent}"]
    out += [f"--confcutdir={root}", "-p", "ampcheck.plugin", "-q", "--no-header", "--tb=no"]
    out += ["--capture=sys"]  # what a dying process says below Python stays in its log
    for option in ("device", "device_module", "op", "rule", "executor", "amp_dtype", "deviations"):
        out += [f"--{option.replace('_', '-')}={value}" for value in getattr(args, option)]
    if args.keyword is not None:
        out += ["-k", args.keyword]
    if args.manifest is not None:
        out += [f"--manifest={args.manifest}"]
    if args.unwaive:
        out += ["--unwaive"]
    if args.smoke:
        out += ["--smoke"]
    if args.nightly:
        out += ["--nightly", f"--hypothesis-seed={seeds.of_programs(True)}"]  # the same one in every child
    return [*out, *([str(root / name) for name in dict.fromkeys(args.suite)] or [str(root)])]


def environment(processes: int) -> dict[str, str]:
    """The environment of a child: it finds this ampcheck and the user's modules, and shares the cores."""
    env = dict(os.environ)
    env.pop("PYTEST_ADDOPTS", None)
    here = _PACKAGE.parent
    # A folder of installed packages is on the path anyway, and must not come before the standard library.
    own = [] if here.name in ("site-packages", "dist-packages") else [str(here)]
    env["PYTHONPATH"] = os.pathsep.join([*own, os.getcwd(), *filter(None, [env.get("PYTHONPATH", "")])])
    if processes > 1:
        env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    return env
