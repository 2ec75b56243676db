"""PyTorch's own autocast lists and op database, read without what importing them changes in a process.

The lists are in `torch.testing._internal.autocast_test_lists`; `test/test_autocast.py`, `test/test_cuda.py` and
`test/test_xpu.py` of PyTorch run them. Here each entry is called the way those files call it, as a function of a
module and as a method, with a recorder in place of every kernel. The files' tests of recurrent nets are not lists and
are not run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.observe.kernel_override import recording, replaceable
from ampcheck.register.torch_private import nn_functions
from ampcheck.samples.torch_testing import internal
from ampcheck.tools.coverage.kernels import Entered, registrations
from ampcheck.tools.torch_private import linalg_functions

_PLACES: dict[str, object] = {"torch": torch, "nn": nn_functions, "linalg": linalg_functions, "methods": None}

# What the third element of a list's rows is to the file that runs them: keyword arguments, a flag to leave the row
# out, the arguments for float16, the dtype of the output, or the module. einsum's row has its tensors where
# test_cuda.py and test_xpu.py look for the flag.
_CPU = {
    "torch_expect_builtin_promote": "fp16 arguments",
    "methods_expect_builtin_promote": "fp16 arguments",
    "torch_16": "kwargs",
    "nn_16": "kwargs",
    "torch_fp32": "kwargs",
    "nn_fp32": "kwargs",
    "torch_need_autocast_promote": "fp16 arguments",
}
_CUDA = {
    "torch_expect_builtin_promote": "dtype",
    "methods_expect_builtin_promote": "dtype",
    "torch_fp16": "skip",
    "nn_fp16": "kwargs",
    "linalg_fp16": "kwargs",
    "methods_fp16": "kwargs",
    "torch_fp32": "kwargs",
    "nn_fp32": "kwargs",
    "methods_fp32": "kwargs",
    "torch_need_autocast_promote": "kwargs",
    "banned": "module",
}
_XPU = {"torch_fp16": "skip", "torch_need_autocast_promote": "kwargs", "torch_expect_builtin_promote": "dtype"}
_XPU_LEFT_OUT = ("gru_cell", "lstm_cell")  # test_xpu.py names them as not implemented there


@dataclass(frozen=True, slots=True)
class ListedCall:
    """One call of a list: a function of `module` and a method of Tensor, whichever there are, in a region of `amp`."""

    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    module: object
    amp: str

    def run(self, device: Device) -> None:
        """Call it both ways, each in a new region; a kernel that refuses was entered all the same."""
        with device.autocast(self.amp), suppress(Exception):
            if self.module is not None and hasattr(self.module, self.op):
                getattr(self.module, self.op)(*self.args, **self.kwargs)
        with device.autocast(self.amp), suppress(Exception):
            if hasattr(torch.Tensor, self.op):
                getattr(self.args[0], self.op)(*self.args[1:], **self.kwargs)


def entries(device: Device) -> list[ListedCall]:
    """Return the calls PyTorch's files make on a device's type; none where no file runs the lists on it.

    The device must be entered. Raises UsageError where this torch has no such lists.
    """
    if device.type not in ("cpu", "cuda", "xpu"):
        return []
    module = internal("autocast_test_lists")
    made = module.AutocastCPUTestLists if device.type == "cpu" else module.AutocastTestLists
    with torch.random.fork_rng(devices=[]):  # they draw their values as they are made
        torch.manual_seed(0)
        lists = made(torch.device(device.type))
    wanted = {"cpu": _CPU, "cuda": _CUDA, "xpu": _XPU}[device.type]
    out: list[ListedCall] = []
    for name, third in wanted.items():
        if not hasattr(lists, name):
            raise UsageError(f"the autocast lists of torch {torch.__version__} have no list {name}")
        for row in getattr(lists, name):
            out += _entries(row, _PLACES.get(name.partition("_")[0]), third, device.type)
    return out


def _entries(row: tuple[Any, ...], module: object, third: str, device_type: str) -> Iterator[ListedCall]:
    op, args, *rest = row
    if third == "fp16 arguments":
        yield ListedCall(op, args, {}, module, "bf16")
        yield ListedCall(op, rest[0], {}, module, "fp16")
        return
    if third == "skip" and rest and (rest[0] or device_type == "xpu"):
        return
    if device_type == "xpu" and op in _XPU_LEFT_OUT:
        return
    kwargs = rest[0] if third == "kwargs" and rest else {}
    where = rest[0] if third == "module" else module
    for amp in ("bf16", "fp16") if device_type == "cpu" or third == "skip" else ("fp16",):
        yield ListedCall(op, args, kwargs, where, amp)


def by_upstream_lists(devices: Iterable[Device], progress: Callable[[str], None] = lambda text: None) -> list[Entered]:
    """Run PyTorch's own lists on each device and say which registered overloads they entered.

    Raises UsageError where this torch has no such lists, and for a device as `ampcheck.tools.coverage.kernels.by_suite`
    does.
    """
    out = []
    for device in devices:
        registered = registrations(device)
        with device.activate():
            calls = entries(device)
            if calls and not replaceable(device.key):
                raise UsageError(f"the kernels of {device.key} cannot be replaced by a recorder")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # calling deprecated ops is what the lists do
                for call in calls:  # C++ warns once a process, past Python where a recorder made the call
                    call.run(device)
                with recording([device.key] if calls else []) as entered:
                    for call in calls:
                        call.run(device)
        own = frozenset(overload for key, overload in entered if key == device.key)
        progress(f"{device.name}: PyTorch's lists make {len(calls)} calls and enter {len(own)} overloads")
        out.append(Entered(device.key, registered, own))
    return out
