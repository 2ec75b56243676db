"""Warn where a loop compiles an op for new shapes again and again.

Each program is made once, so this costs nothing where programs are found again. The first step of a model compiles for
many shapes too, but not in one module: a line of one that sees ever new shapes is what gets a warning.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import jax
import torch

from ampcheck.jax_device.dispatch.call import Call, Slot, Taken

MANY = 32
"""For how many shapes a line compiles an op until it gets a warning."""
EACH = 8
"""So many of them for each module that runs the line; a model may have a layer for each of many widths."""
GENERATED = "<kernel of "
"""How the file names of generated kernels begin."""
_TORCH, _AMPCHECK = f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[2]}/"
_NOT_THE_USERS = (_TORCH, f"{_AMPCHECK}jax_device/", f"{_AMPCHECK}register/", GENERATED, "<frozen ")
# What goes through all parameters of a model, of whatever shape.
_OVER_PARAMETERS = tuple(_TORCH + part for part in ("optim/", "amp/", "nn/utils/", "nn/init.py"))


class _Place(NamedTuple):
    """A line that runs ops, and the innermost module in whose code it is."""

    frame: FrameType
    module: int


class Varying:
    """The shapes for which each line of the user's compiled each op."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], tuple[set[tuple[tuple[int, ...], ...]], set[int]]] = {}
        self._warned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def note(self, op: str, call: Call) -> None:
        """Count a new program of `op`. Warns once a function, with the user's line, where there are too many."""
        if any(isinstance(array, jax.core.Tracer) for array in call.arrays):
            return  # part of a program that jit makes, which counts its own
        shapes = tuple(_shapes(call, [*call.args, *call.kwargs.values()]))
        place = _place(sys._getframe(1)) if shapes else None
        if place is None:
            return
        frame = place.frame
        code, line = frame.f_code, frame.f_lineno
        with self._lock:
            seen, modules = self._seen.setdefault((op, code.co_filename, line), (set(), set()))
            seen.add(shapes)
            modules.add(place.module)
            function = (code.co_filename, code.co_qualname)
            if len(seen) < max(MANY, EACH * len(modules)) or function in self._warned:
                return
            self._warned.add(function)
        warnings.warn_explicit(
            f"this line compiled aten::{op} for {len(seen)} different shapes, the last of them "
            f"{', '.join(map(str, shapes))}; each is a program of its own, compiled at its first call and kept in "
            "memory. Pad the inputs to a few sizes, such as powers of two; then ampcheck.jax_device.jit makes one "
            'program of a whole step for each size. docs/jax_device.md, "What compiling costs".',
            UserWarning,
            code.co_filename,
            line,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )


varying = Varying()


def _shapes(call: Call, taken: Iterable[Taken]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of the tensors among a call's arguments."""
    for value in taken:
        if isinstance(value, Slot):
            yield tuple(call.arrays[value.place].shape if value.layout is None else value.layout.size)
        elif type(value) is tuple:
            yield from _shapes(call, value)


def _place(frame: FrameType | None) -> _Place | None:
    """Return the user's line that an op was called from; None in backward's thread, and for all parameters at once."""
    line, module = None, 0
    while frame is not None:
        code = frame.f_code
        if line is None and not code.co_filename.startswith(_NOT_THE_USERS):
            line = frame
        if line is None and code.co_filename.startswith(_OVER_PARAMETERS):
            return None
        if not module and code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            module = id(owner) if isinstance(owner, torch.nn.Module) else 0
        if line is not None and module:
            break
        frame = frame.f_back
    return _Place(line, module) if line is not None else None
