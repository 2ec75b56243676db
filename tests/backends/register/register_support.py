"""Helpers of the checks of this folder, and the plugin that runs them: no registration outlives a check.

They need a PrivateUse1 device, whose name a process can set once. So no name here is one pytest collects by itself, and
tests/register/test_register.py runs them in another process.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy_backend
import pytest
import torch
from torch._C import DispatchKey

from ampcheck.errors import UsageError
from ampcheck.register import registration

NAME = "npy"
KEY = "AutocastPrivateUse1"
HALF, WIDE, BRAIN = torch.float16, torch.float32, torch.bfloat16

numpy_backend.AUTOCAST.unregister()


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    if registration._current is not None:
        registration._current.unregister()


def rand(*shape: int, dtype: torch.dtype = WIDE, grad: bool = False) -> torch.Tensor:
    return torch.rand(*shape).to(dtype).to(NAME).requires_grad_(grad)


def refused(text: str, call: Callable[[], object]) -> None:
    """The call raises UsageError with `text` in its one sentence, and changes nothing."""
    before = snapshot()
    with pytest.raises(UsageError, match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert snapshot() == before


def snapshot() -> dict[str, Any]:
    """Everything a registration changes."""
    hops = torch._ops._higher_order_ops
    names = torch._C._dispatch_get_all_op_names()
    return {
        "dispatcher": {name: torch._C._dispatch_dump(name) for name in names if name.startswith("aten::")},
        "fallback": torch._C._dispatch_has_backend_fallback(getattr(DispatchKey, KEY)),
        "library": set(torch.library._impls),
        "module": {name for name in dir(torch.npy) if "amp" in name},
        "class": type(torch.npy),
        "kernels": {name: set(op.py_kernels) for name, op in hops.items()},
        "keys": {name: op.non_fallthrough_keys.raw_repr() for name, op in hops.items()},
        "new operators": list(torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS),
        "clear": torch.clear_autocast_cache,
    }
