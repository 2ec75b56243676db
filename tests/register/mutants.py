"""Mistakes of `register_autocast`, which no case of the suites is about: a check of tests/backends/register must fail.

They are injected into the backend of NumPy arrays of tests/backends.
"""

import json
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from torch._C import DispatchKey

from ampcheck.register import kernels, plan, registration
from ampcheck.tools.power import process
from tests.cli_support import ROOT
from tests.faults.mutant import Inject, Result, both, mutants, put, wrap

DEVICE = "npy"
REGISTRATION = "registration/checks"
"""The suite and the rule of what is run here."""


def checks(device: str, ids: Sequence[str]) -> list[Result]:
    """Run checks of tests/backends/register in copies of this process, so that no registration outlives them."""
    items = [item for item in _checks() if item.name in ids]
    return [_in_a_copy(item) for item in items]


class _Checks(process.Suites):
    """Those checks, collected in this process."""

    def __init__(self) -> None:
        options = ["-o", "python_files=checks_*.py", "-o", "python_functions=check_*", "-p", "register_support"]
        self.items = self._collected([str(ROOT / "tests/backends/register"), "--noconftest", *options])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        assert not report.failed, report.longreprtext


@cache
def _checks() -> Sequence[pytest.Item]:
    items = _Checks().items
    backend().register()  # the plugin takes the registration back
    return items


def _in_a_copy(item: pytest.Item) -> Result:
    read, write = os.pipe()
    if (copy := os.fork()) == 0:
        backend().autocast.unregister()
        with os.fdopen(write, "w", encoding="utf-8") as pipe:
            reports = runtestprotocol(item, log=False, nextitem=None)
            json.dump("\n".join(report.longreprtext for report in reports if report.failed), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        told = pipe.read()
    _, ended = os.waitpid(copy, 0)
    assert told, f"the process of {item.name} ended with {ended}"
    message = json.loads(told)
    suite, rule = REGISTRATION.split("/")
    status = "fail" if message else "pass"
    return {"suite": suite, "rule": rule, "id": item.name, "status": status, "message": message}


def backend() -> Any:
    return import_module("numpy_backend").BACKEND


def written(*changes: tuple[str, str]) -> Inject:
    """Change the source that kernels are made from."""
    text = kernels._TEMPLATE
    for old, new in changes:
        text = text.replace(old, new)
    return put(kernels, _TEMPLATE=text)


_HIGHER = kernels.HigherOrder
MISTAKES = {
    "any-op-takes-any-policy": both(
        put(kernels, optdtype=kernels.upcast), put(plan, _is_optional_dtype=lambda _: True)
    ),
    "all-devices-are-excluded": both(
        written(
            ("try:", "try:\n        exclude(every, True)"),
            ("exclude(key, False)", "exclude(key, False); exclude(every, False)"),
        ),
        wrap(kernels, _made=lambda own, *args: own(*args[:-1], {**args[-1], "every": DispatchKey.AutocastCPU})),
    ),
    "an-exception-leaves-the-key-excluded": written(
        ("        return call", "        out = call"),
        ("    finally:\n        exclude(key, False)", "    finally: pass\n    exclude(key, False)\n    return out"),
    ),
    "flex-attention-falls-through": put(registration, HigherOrder=lambda base: _HIGHER(DispatchKey.AutocastXPU)),
    "gradients-stay-low": put(kernels._Graph, forward=staticmethod(lambda ctx, weight, holder: holder[0])),
}

MUTANTS = mutants({f"{REGISTRATION} {DEVICE}": MISTAKES})
