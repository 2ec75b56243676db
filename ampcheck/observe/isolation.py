"""Autocast state before and after a case: a case that leaves it changed must not spoil the next one."""

import sys
from collections.abc import Mapping

import torch
from torch.utils.checkpoint import DefaultDeviceType

from ampcheck.observe.torch_private import reset_dynamo
from ampcheck.spec.state import DEFAULTS
from ampcheck.spec.torch_dtypes import DTYPES

_CHECKPOINTED = DefaultDeviceType._default_device_type
"""The device type of checkpoints without tensors among their arguments; a newer torch finds one as the first needs it,
and keeps it."""


def depth() -> int:
    """Return how many regions this thread is inside, whatever their device type."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _known(device_type: str) -> bool:
    """Return whether PyTorch knows a device type; one whose backend was not loaded yet has no state to put back."""
    try:
        torch.device(device_type)
    except RuntimeError:
        return False
    return True


def reset(further: Mapping[str, str]) -> None:
    """Put enabled, dtype, cache_enabled and the nesting depth back to a fresh thread's; drop cached casts, PyTorch's
    choice of a device type for checkpoints, and what Dynamo compiled, which it does but a few times for the same code.

    `further`: the default dtype of device types that PyTorch does not name itself.
    """
    for device_type, dtype in {**further, **DEFAULTS}.items():
        # A backend that took PrivateUse1's place is in `further` by its own name, with its own default.
        if device_type == "privateuseone" or not _known(device_type):
            continue
        if torch.is_autocast_enabled(device_type):
            torch.set_autocast_enabled(device_type, False)
        if torch.get_autocast_dtype(device_type) != DTYPES[dtype]:
            torch.set_autocast_dtype(device_type, DTYPES[dtype])
    if not torch.is_autocast_cache_enabled():
        torch.set_autocast_cache_enabled(True)
    inside = depth()
    while inside > 0:
        inside = torch.autocast_decrement_nesting()
    while inside < 0:  # a region that was left and never entered
        inside = torch.autocast_increment_nesting()
    torch.clear_autocast_cache()
    DefaultDeviceType._default_device_type = _CHECKPOINTED
    if "torch._dynamo" in sys.modules:
        reset_dynamo()
