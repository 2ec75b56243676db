"""Autocast state before and after a case, which must not spoil the next one; threads, of which one runs at a time."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

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


T = TypeVar("T")
Within = Callable[[], AbstractContextManager[object]]
"""Makes the context each new thread is entered into, such as a device's `activate`."""


def interleave(workers: Sequence[Callable[[], Iterator[None]]], within: Within) -> None:
    """Run generator functions, each in a new thread, in turns: each goes on to its next `yield`, then the next.

    Raises the first exception one of them raised, once all have ended.
    """
    errors: list[BaseException] = []

    def run(steps: Callable[[], Iterator[None]]) -> Iterator[bool]:
        with within():
            for _ in steps():
                yield True

    with ExitStack() as stack:
        waiting = [(stack.enter_context(ThreadPoolExecutor(1)), run(steps)) for steps in workers]
        while waiting:
            for turn in [*waiting]:
                step = turn[0].submit(next, turn[1], False)
                errors += [error] if (error := step.exception()) else []
                if error or not step.result():
                    waiting.remove(turn)
    if errors:
        raise errors[0]


def in_thread(call: Callable[[], T], within: Within) -> T:
    """Return the value of a call made in a new thread; an exception it raises is raised here."""

    def run() -> T:
        with within():
            return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
