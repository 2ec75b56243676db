"""Executes: runs each case apart from the others, and a scenario that raised once more without autocast."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.checks.parity import simulate_cuda
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.errors import CheckFailure, Unsupported
from ampcheck.observe.isolation import reset
from ampcheck.runner.collect import CASE, function_of
from ampcheck.spec.rules import RULES
from ampcheck.spec.torch_dtypes import name_of

WARNED = pytest.StashKey[list[warnings.WarningMessage]]()
"""The warnings given while a case ran."""

# PyTorch warns once a process when a deprecated op is called; calling each of them is what the cases are for.
_OP_WARNINGS = (
    r"(?s).*(chain_matmul|frobenius_norm|nuclear_norm|cholesky|qr|lu|lu_solve|triangular_solve|svd)\b.* deprecated",
    # stft asks for a window, and is right without one.
    "A window was not provided",
    # Half-precision complex is experimental; fft in half precision makes it on fake tensors.
    "ComplexHalf support is experimental",
    # layer_norm on the CPU warns where weight and input differ in dtype, which the mixed inputs of a case do.
    "(?s).*mixed d?type",
    # The backward pass of a loss resizes its output where the arguments were broadcast.
    "(?s)An output with one or more elements was resized",
)

_JUDGED = (CheckFailure, Unsupported, AssertionError)
"""Exceptions that say of themselves what they mean."""


class Execution:
    """Runs the cases of one run on its devices, given by name."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self._devices = devices
        self._defaults = {device.type: device.default_amp for device in devices.values()}
        self._to_load: list[Device] = []

    def load_before_first(self, items: list[pytest.Item]) -> None:
        """Note the backends of the collected cases, to load each of them before the first case runs.

        Autograd knows the devices that are loaded at its first backward pass, and none that is loaded later.
        """
        used = {item.stash[CASE].device for item in items if CASE in item.stash}
        self._to_load = [device for device in self._devices.values() if device.backend and device.name in used]

    @contextmanager
    def running(self, item: pytest.Item) -> Iterator[None]:
        """Enter around the call of a case: fresh autocast state and the device; then raise a scenario's findings."""
        case = item.stash[CASE]
        device = self._devices[case.device]
        amp = None
        given: dict[str, Any] = function_of(item).funcargs
        if "amp" in given:
            amp = given["amp"] = DeviceAmp(*given["amp"])
        while self._to_load:
            with self._to_load.pop().activate():
                pass
        if (reason := device.without_autograd) and RULES[case.rule].autograd:
            raise Unsupported(reason)
        if case.rule == "moves" and (reason := device.new_parameters()):
            raise Unsupported(reason)
        reset(self._defaults)
        try:
            with ExitStack() as stack:
                item.stash[WARNED] = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")  # a warning decides no verdict
                for text in _OP_WARNINGS:
                    warnings.filterwarnings("ignore", text)
                if amp:
                    stack.enter_context(device.activate())
                if amp and case.compiler:
                    stack.enter_context(simulate_cuda(device))
                    stack.enter_context(quiet())
                try:
                    yield
                except Exception as error:
                    if amp and case.suite in ("eager", "autograd") and not isinstance(error, _JUDGED):
                        _repeat_without_autocast(function_of(item), amp, error)
                    raise
            if amp:
                amp.finish()
        finally:
            reset(self._defaults)


def _repeat_without_autocast(item: pytest.Function, amp: DeviceAmp, error: Exception) -> None:
    """Run a scenario that raised on a backend once more, there and on the CPU, with regions that do nothing.

    Raises Broken, or Unsupported, as `DeviceAmp.refused` does, if the backend alone raises the same then.
    """
    if amp.type == "cpu" or not amp.device.has_values:
        return
    off: Any = {"__init__": lambda self, *_, **__: None, "__enter__": lambda self: self, "__exit__": lambda *_: None}

    def outside(device: Device) -> Exception | None:
        given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        reset({device.type: device.default_amp})
        # A device's region may be of another class than torch.autocast.
        region = patch.object(device, "autocast", lambda *_, **__: torch.autocast(device.type))
        try:
            with patch.multiple(torch.autocast, **off), region:
                item.obj(**{**given, "amp": DeviceAmp(device, name_of(amp.dtype))})
        except Exception as raised:
            return raised
        return None

    same = outside(amp.device)
    if type(same) is type(error) and str(same) == str(error) and outside(known()["cpu"]) is None:
        amp.refused(error, "it")
