"""What the Python of a traced function reads besides tensors: what a call checks again, and what it cannot check.

A profile function sees each call of Python's in the thread of the trace. The globals, and the attributes of modules
and classes, that the user's code names become places, which later calls compare. What draws random numbers, or takes
the next item of an iterator, would do so once: the trace is given up. What reads a clock or a file is named.
"""

import cProfile
import gc
import os
import random
import sys
import time
import types
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date
from dis import get_instructions
from functools import cache
from traceback import walk_stack
from typing import Any

import numpy as np

from ampcheck.jax_device.annotations import Tree

FOREIGN = ("torch", "jax", "jaxlib", "numpy", "builtins", "ampcheck.jax_device", "threading", "logging", "functorch")


@cache
def foreign(module: str) -> bool:
    """Return whether objects of a module's classes are not walked: PyTorch's, JAX's, the device's."""
    return module in FOREIGN or module.startswith(tuple(f"{name}." for name in FOREIGN))


@cache
def _apart(module: str) -> bool:
    """Return whether a module's code is not the user's nor another library's."""
    top = module.split(".")[0]
    return foreign(module) or (top in sys.stdlib_module_names and top not in ("__main__", "test"))


def _of(frame: types.FrameType) -> str:
    return frame.f_globals.get("__name__") or "builtins"


def _owned(owner: Tree) -> bool:
    name = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    return not _apart(name or "builtins")


def names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals, attributes and modules in a function's code, and in functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names(constant)


BUFFERS = (np.ndarray, bytearray, array)
_BYTES = 1 << 16
"""Up to which size an array of NumPy's is compared at each call."""


class Measured:
    """Something of an object as a container: the same object as long as it is equal."""

    def __init__(self, of: Tree, measure: Callable[[Tree], Tree]) -> None:
        self.of, self.measure = of, measure
        self._last: Tree = None

    def __getitem__(self, key: Tree) -> Tree:
        value = self.measure(self.of)
        if value.__class__ not in (int, str, bytes) or value != self._last:
            self._last = value
        return self._last

    @classmethod
    def whole(cls, of: Tree) -> "Measured":
        """Measure a set, an array or bytes by the contents; a large array of NumPy's by its length."""
        return cls(of, _contents if getattr(of, "nbytes", 0) <= _BYTES else len)


def _contents(of: Tree) -> Tree:
    if isinstance(of, np.ndarray):
        return f"{of.dtype} {of.shape}".encode() + of.tobytes()
    return bytes(of) if isinstance(of, BUFFERS) else str(sorted(map(hash, of)))


class Attributes:
    """The attributes of an object with `__slots__`, or of a cell of a closure, as a container."""

    def __init__(self, of: Tree) -> None:
        self.of = of

    def __getitem__(self, key: str) -> Tree:
        return getattr(self.of, key, None)

    def __setitem__(self, key: str, value: Tree) -> None:
        setattr(self.of, key, value)


def _stage(iterator: Tree) -> Tree:
    """Return how far an iterator is, as far as Python says it."""
    frame = getattr(iterator, "gi_frame", None)
    if frame is not None:
        return frame.f_lasti, frame.f_lineno, [*map(id, frame.f_locals.values())]
    return iterator.__length_hint__() if hasattr(iterator, "__length_hint__") else repr(iterator)


def _state(generator: Tree) -> Tree:
    """Return where a random generator of Python's or NumPy's is."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state)


GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SEED = random.Random.seed.__code__
_GLOBAL = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
_DRAWS = {name for kind in (np.random, np.random.Generator) for name in dir(kind) if name[0].islower()}
_CLOCKS = {
    f: f"time.{f.__name__}" for f in (time.time, time.time_ns, time.perf_counter, time.monotonic, time.localtime)
}


Place = tuple[Any, Any, type | None]
"""A container, a key in it, and the class whose attributes the container has, else None."""


@dataclass
class Places:
    """Globals and attributes that the user's code was seen to read, and which functions were seen."""

    places: dict[tuple[int, Tree], Place] = field(default_factory=dict)
    note: Callable[[Place], object] = id
    """What is told of a new place."""
    names: set[str] = field(default_factory=set)
    codes: set[tuple[types.CodeType, type]] = field(default_factory=set)

    def globals(self, space: dict[str, Tree], named: Iterable[str]) -> None:
        """Note the globals of those names, and what the modules and classes among them have under such names."""
        for name in named:
            if name in space:
                self.add(space, name)
            value = space[name] if name in space else sys.modules.get(name)
            if isinstance(value, types.ModuleType) and _owned(value):
                for inner in named:
                    if inner in vars(value):
                        self.add(vars(value), inner)
            elif isinstance(value, type):
                self.of_class(value, named)
            elif value is os or value is os.environ or name == "getenv":
                self.add(Measured(os.environ, lambda of: str(sorted(of.items()))), None)

    def of_class(self, kind: type, named: Iterable[str]) -> None:
        """Note the attributes of those names that a class and its bases have."""
        for base in kind.__mro__:
            if _owned(base):
                for name in named:
                    if name in base.__dict__:
                        self.add(base.__dict__, name, base)

    def add(self, holder: Tree, key: Tree, owner: type | None = None) -> None:
        of = holder.of if isinstance(holder, Measured) else owner or holder
        if (id(of), key) not in self.places:
            self.places[id(of), key] = place = (holder, key, owner)
            self.note(place)


class Reads:
    """What the user's code reads while inside, on this thread.

    Args:
        into: where the places go.
        iterators: those that the function reaches.
        generators: of Python's and NumPy's, as well.
        stop: gives the error that ends the trace, of words and the frames that they are about.
    """

    def __init__(
        self, into: Places, iterators: list[Tree], generators: list[Tree], stop: Callable[[str, Tree], Exception]
    ) -> None:
        self.into = into
        self.clocks: dict[str, None] = {}
        self._iterators, self._generators, self._stop = [*iterators], [*_GLOBAL, *generators], stop
        self._known = {id(g) for g in self._generators}
        self._states = [_state(g) for g in self._generators]
        self._stages = [_stage(i) for i in iterators]
        self._collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}

    def __enter__(self) -> "Reads":
        self._profile = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        before = self._profile
        if isinstance(before, cProfile.Profile):  # no function, which is all that Python puts back
            before.enable()
        elif callable(before):
            sys.setprofile(before)
        elif before is not None:
            warnings.warn(
                f"the profiler of Python calls, {type(before).__name__}, sees nothing of this thread any more, as jit "
                "watched what the function reads and cannot put it back; call the function before the profiler begins",
                UserWarning,
                stacklevel=3,
            )

    def _see(self, frame: types.FrameType, event: str, arg: Tree) -> None:
        if frame.f_code in self._collecting:  # called by the garbage collector, wherever it is at work
            return
        if event == "c_call":
            self._call(frame, arg)
        elif frame.f_code is _SEED and event == "call" and frame.f_locals["a"] is None and not _by_torch(frame):
            raise self._stop("a generator seeds itself", _users(frame))
        elif event == "call" and not _apart(_of(frame)):
            self._function(frame)

    def _call(self, frame: types.FrameType, called: Tree) -> None:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        drawn = (id(owner) in self._known and name not in ("getstate", "get_state")) or called is os.urandom
        if drawn and not _by_torch(frame):
            raise self._stop(f"{name} of {type(owner).__name__} draws random numbers", _users(frame))
        if _apart(_of(frame)):
            return
        if called is next and self._iterators and self._names_iterator(frame):
            raise self._stop("next takes an item of an iterator from outside", _users(frame))
        clock = _CLOCKS.get(called) if isinstance(called, types.BuiltinFunctionType) else None
        if isinstance(owner, ContextVar) and name == "get":
            self.into.add(Measured(owner, lambda variable: variable.get(None)), None)
        elif isinstance(owner, type) and issubclass(owner, date) and name in ("now", "today", "utcnow"):
            clock = f"{owner.__name__}.{name}"
        elif called in (open, input):
            clock = name
        if clock is not None:
            self.clocks[f"{clock} at {frame.f_code.co_filename}:{frame.f_lineno}"] = None

    def _names_iterator(self, frame: types.FrameType) -> bool:
        named = set(frame.f_code.co_names)
        seen = [*frame.f_locals.values(), *(frame.f_globals.get(n) for n in named)]
        seen += [vars(o)[n] for o in seen if hasattr(o, "__dict__") for n in named & vars(o).keys()]
        return any(i is s for i in self._iterators for s in seen)

    def _function(self, frame: types.FrameType) -> None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        kind = first if isinstance(first, type) else type(first)
        if (code, kind) not in self.into.codes:
            self.into.codes.add((code, kind))
            named = dict.fromkeys(names(code))
            self.into.names.update(named)
            self.into.globals(frame.f_globals, named)
            self.into.of_class(kind, named)

    def check(self) -> None:
        """Raise the error that ends the trace where random numbers were drawn, RuntimeError where an iterator moved."""
        for generator, before in zip(self._generators, self._states, strict=True):
            if _state(generator) != before:
                raise self._stop(f"a {type(generator).__name__} draws random numbers", self._drawing())
        if [_stage(i) for i in self._iterators] != self._stages:
            raise RuntimeError(
                "a jitted function takes items of an iterator from outside, which would happen once, when it is "
                "compiled; pass the items as arguments"
            )

    def _drawing(self) -> str:
        """Return the line of the user's that names a method of NumPy's generators."""
        for code, _ in self.into.codes:
            line = code.co_firstlineno
            for instruction in get_instructions(code):
                line = instruction.starts_line or line
                if instruction.argval in _DRAWS and instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                    return f"{code.co_filename}:{line}"
        return "an unknown line"


def _users(frame: types.FrameType) -> Tree:
    """Return the frames from the nearest of the user's on."""
    return ((f, line) for f, line in walk_stack(frame) if not _apart(_of(f)))


def _by_torch(frame: types.FrameType) -> bool:
    """Return whether PyTorch or JAX called the function of Python's library that a frame is in."""
    return next((foreign(_of(f)) for f, _ in walk_stack(frame) if foreign(_of(f)) or not _apart(_of(f))), True)


def put(holder: Tree, key: Tree, value: Tree, owner: type | None) -> None:
    """Write to a place; `owner` is the class whose attributes the container are."""
    if owner is None:
        holder[key] = value
    else:
        setattr(owner, key, value)
