"""Mistakes of `register_autocast`, and of a backend before its first case, which no case of the suites is about.

The first must fail a check of tests/backends/register, the second a step of the preflight. Both are injected into the
backend of NumPy arrays of tests/backends.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from _pytest.runner import runtestprotocol
from torch._C import DispatchKey

from ampcheck.devices.preflight import PreflightFinding, examine
from ampcheck.devices.registry import known
from ampcheck.register import casts, hops, kernels, plan, registration
from tests.cli_support import ROOT
from tests.faults.collecting import Result, collected
from tests.faults.mutant import Inject, both, mutants, put, wrap

DEVICE = "npy"
REGISTRATION, PREFLIGHT = "registration/checks", "preflight/steps"
"""The suites and rules of what is run here."""


# ---- registration


def checks(device: str, ids: Sequence[str]) -> list[Result]:
    """Run checks of tests/backends/register in copies of this process, so that no registration outlives them."""
    items = [item for item in _checks() if item.name in ids]
    return [_in_a_copy(item) for item in items]


@cache
def _checks() -> list[pytest.Item]:
    options = ["-o", "python_files=checks_*.py", "-o", "python_functions=check_*", "-p", "register_support"]
    items = collected([str(ROOT / "tests/backends/register"), "--noconftest", *options])[1]
    backend().register()  # the plugin takes the registration back, which the preflight's mutants need in any order
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
    return _result(REGISTRATION, item.name, message, "fail" if message else "pass")


def _result(rule: str, name: str, message: str, status: str) -> Result:
    suite, rule = rule.split("/")
    return {"suite": suite, "rule": rule, "id": name, "status": status, "message": message}


def written(*changes: tuple[str, str]) -> Inject:
    """Change the source that kernels are made from."""
    text = kernels._TEMPLATE
    for old, new in changes:
        text = text.replace(old, new)
    return put(kernels, _TEMPLATE=text)


_HIGHER = hops.HigherOrder
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
    "gradients-stay-low": put(casts._Graph, forward=staticmethod(lambda ctx, weight, holder: holder[0])),
}


# ---- preflight


def steps(device: str, ids: Sequence[str]) -> list[Result]:
    """Return the findings of steps of the preflight."""
    found = [finding for _, finding in examine((known(("numpy_backend",))[DEVICE],))]
    return [_result(PREFLIGHT, f.step, f.text, _status(f)) for f in found if f.step in ids]


def _status(finding: PreflightFinding) -> str:
    return "pass" if finding.status == "ok" else finding.status + ", the run ends" * finding.ends


def backend() -> Any:
    return import_module("numpy_backend").BACKEND


def computing(after: Callable[[Any, Any], object]) -> Inject:
    """Call `after` with every op and its result."""

    def inject(device: str) -> Any:
        right = backend()._computed

        def computed(op: Any, args: Any, kwargs: Any) -> Any:
            out = right(op, args, kwargs)
            after(op, out)
            return out

        return patch.object(backend(), "_computed", computed)

    return inject


def one_more(name: str) -> Inject:
    """Let an op give one more than it should."""
    return computing(lambda op, out: out.add_(1) if op._opname == name else None)


def refused(*names: str) -> Inject:
    """Let some ops have no kernel."""

    def refuse(op: Any, out: Any) -> None:
        if op._opname in names:
            raise NotImplementedError(f"no kernel of {op._opname} yet")

    return computing(refuse)


LACKING = {
    "only-fp16": lambda _: patch.object(torch.npy, "get_amp_supported_dtype", lambda: [torch.float16], create=True),
    "no-scaler-kernels": refused("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"),
    "no-generator": refused("uniform_"),
    "wrong-add": one_more("add"),
    "wrong-mul": one_more("mul"),
    "other-index": lambda device: patch.object(type(torch.npy), "current_device", staticmethod(lambda: 3)),
}

MUTANTS = (*mutants(REGISTRATION, MISTAKES, [DEVICE]), *mutants(PREFLIGHT, LACKING, [DEVICE]))
