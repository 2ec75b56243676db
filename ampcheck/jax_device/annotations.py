"""Names for what annotations cannot say in full: trees of tensors, functions of a schema's arguments."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

NAME = "jax"
"""The type of the device, which PrivateUse1 is renamed to."""
Tree = Any
"""Tensors, arrays and Python values in any nesting of tuples, lists and dicts: what a dispatched op takes or gives."""
Kernel = Callable[..., Any]
"""A function that takes what an overload takes, by position and keyword as PyTorch passes it, and gives its results."""
Function = Callable[..., Any]
"""A function of the user's."""
Args = tuple[Any, ...]
"""The positional arguments of a call."""
Kwargs = dict[str, Any]
"""The arguments of a call by name."""
Device = torch.device | str | int | None
"""How a caller names a device; None is the current one."""


class DeviceStorage(Protocol):
    """A `torch.UntypedStorage` of the device, as PyTorch's stubs do not know it."""

    array: Any
    """A `jax.Array`, or `Bytes`; storage/arrays.py says when. On the way of every op, so it is not told apart here."""
    device: torch.device
    _cdata: int

    def nbytes(self) -> int: ...
