"""What a trace touches: a dispatch mode that sees every op of the function, forward and backward."""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.jax_device.schema import is_view
from ampcheck.jax_device.storage import Bytes, alias, storage_of

_LOOKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)
_LIBRARIES = tuple(str(Path(m.__file__ or "").parent) for m in (torch, jax)) + (str(Path(__file__).parent),)


class ValueNeededError(RuntimeError):
    """Python needs a value inside of a jitted function, where there are none yet."""


class Poisoned(BaseException):
    """The function uses a gradient from before the call. No Exception, so that nothing of the caller's takes it."""


def caller() -> str:
    """The nearest line of the stack outside of torch, jax and the device: "file:line (`source`)"."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARIES, "<")):
            source = linecache.getline(name, frame.f_lineno).strip()
            return f"{name}:{frame.f_lineno} (`{source}`)"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line"


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in an op's arguments or results."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def raw(found: Any) -> Any:
    """The array of what hangs on a storage."""
    return found.array if isinstance(found, Bytes) else found


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its graph."""
    return alias(tensor, tensor.shape, tensor.stride(), tensor.storage_offset())


class Watch(TorchDispatchMode):
    """Sorts every storage an op is given: an input of the program, made in the trace, or unknown so far."""

    def __init__(self, inputs: list[Any], poison: list[Any]) -> None:
        super().__init__()
        self._inputs = {id(s) for s in inputs}
        self._poison = {id(s) for s in poison}
        self._kept = [inputs, poison]  # ids stay their own
        self._made: dict[int, tuple[weakref.ref[Any], str, str]] = {}
        self.unknown: dict[int, tuple[Any, Any, torch.Tensor]] = {}
        self.host: dict[int, tuple[torch.Tensor, int]] = {}
        self.poisoned = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors((*args, *kwargs.values())):
            self._see(tensor, func)
        try:
            out = func(*args, **kwargs)
        except _LOOKED as error:
            raise ValueNeededError(
                f"{func.name()} needs a value that a jitted function does not have while it is traced, at {caller()}; "
                "compute with tensors instead (torch.where, masks), or move this out of the function"
            ) from error
        for tensor in tensors(out if isinstance(out, (list, tuple)) else (out,)):
            self._note(tensor, func)
        return out

    def _see(self, tensor: torch.Tensor, func: Any) -> None:
        if tensor.device.type == "cpu":
            if func is torch.ops.aten.lift_fresh.default:
                self._note(tensor, func)  # torch.tensor(...) makes its tensor unseen
            elif tensor.dim() and not self.is_made(tensor.untyped_storage()):
                self.host.setdefault(id(tensor.untyped_storage()), (tensor, tensor._version))
            return
        if tensor.device.type != "jax":
            return
        storage = storage_of(tensor)
        if id(storage) in self._poison and not is_view(func):
            self.poisoned = True
            raise Poisoned
        if id(storage) in self._inputs or id(storage) in self.unknown or self.is_made(storage):
            return
        found = getattr(storage, "array", None)
        if found is not None and not isinstance(raw(found), jax.core.Tracer):
            self.unknown[id(storage)] = (storage, found, _same(tensor))

    def _note(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        known = self._inputs | self._poison
        if id(storage) in known or id(storage) in self.unknown or id(storage) in self.host or self.is_made(storage):
            return
        self._made[id(storage)] = (weakref.ref(storage), func.name(), caller())

    def is_made(self, storage: Any) -> bool:
        """Whether an op of the trace made the storage."""
        found = self._made.get(id(storage))
        return found is not None and found[0]() is storage

    def alive(self) -> list[tuple[Any, str, str]]:
        """The device storages made in the trace that something still holds, with the op and the line of each."""
        held = ((ref(), op, line) for ref, op, line in self._made.values())
        return [(s, op, line) for s, op, line in held if s is not None and isinstance(raw(getattr(s, "array", None)), jax.core.Tracer)]

    def wipe(self) -> None:
        """Take the traced arrays from the storages that outlive the trace."""
        for storage, _, _ in self.alive():
            del storage.array
        self._made.clear()
