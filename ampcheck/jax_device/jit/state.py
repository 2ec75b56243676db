"""What a function to be compiled can reach: its tensors, which become inputs, and its settings, which are guarded.

Found through the arguments, the closure, the defaults and the globals that the function names: modules, optimizers,
gradient scalers, functions, lists, dicts and plain objects are walked into. What is found keeps its place (a container
and a key), so that a later call sees at once when another object is there.
"""

from __future__ import annotations

import functools
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from operator import getitem
from typing import ClassVar

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampcheck.jax_device.annotations import Args, Function, Kwargs, Tree
from ampcheck.jax_device.jit.optim import hyperparameters, prepare, prepare_scaler

PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
_FOREIGN = ("torch", "jax", "jaxlib", "numpy", "builtins", "ampcheck.jax_device", "collections", "threading", "logging")
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_DEPTH = 5
_SCALER_TENSORS = ("_scale", "_growth_tracker")


class Cells:
    """The cells of a closure as a container: `getitem` reads a cell's contents."""

    def __init__(self, cells: tuple[types.CellType, ...]) -> None:
        self.cells = cells

    def __getitem__(self, index: int) -> Tree:
        return self.cells[index].cell_contents

    def __setitem__(self, index: int, value: Tree) -> None:
        self.cells[index].cell_contents = value


class Size:
    """The length of a container, as a container: an object that is the same while the length is."""

    _lengths: ClassVar[dict[int, int]] = {}

    def __init__(self, container: Tree) -> None:
        self.container = container

    def __getitem__(self, key: Tree) -> int:
        length = len(self.container)
        return self._lengths.setdefault(length, length)


class Reached:
    """What was reached, each with its place, in the order of the walk; the same order for the same structure."""

    def __init__(self) -> None:
        self.holders: list[Tree] = []
        self.keys: list[Tree] = []
        self.values: list[Tree] = []
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.unguarded: list[Kwargs] = []
        """Attributes that may change without a new program."""
        self._seen: dict[int, int] = {}
        self._order: list[Tree] = []

    def add(self, holder: Tree, key: Tree, value: Tree) -> None:
        """Remember the value at its place."""
        self.holders.append(holder)
        self.keys.append(key)
        self.values.append(value)

    def unchanged(self) -> bool:
        """Return whether the very same objects are at every place."""
        try:
            now = [*map(id, map(getitem, self.holders, self.keys))]
        except (KeyError, IndexError, ValueError):  # ValueError: an emptied cell
            return False
        return now == self._ids

    def containers(self) -> list[Tree]:
        """Return every list, dict, set and deque that was reached: objects' attributes too, no module's globals."""
        sized = (h.container for h in self.holders if isinstance(h, Size))
        found = {id(c): c for c in (*self.unguarded, *sized, *self.holders, *self.values) if type(c) in _CONTAINERS}
        return [c for c in found.values() if not (isinstance(c, dict) and "__builtins__" in c)]

    def close(self) -> None:
        """Note that the walk is done."""
        self._ids = [*map(id, self.values)]
        self.leaves = [t for t in self.tensors if t.is_leaf and t.is_floating_point()]

    def first(self, value: Tree) -> int | None:
        """Return the object's number if it was met before; else None, and give it one."""
        number = self._seen.get(id(value))
        if number is None:
            self._seen[id(value)] = len(self._order)
            self._order.append(value)  # kept, so that its id stays its own
        return number

    def signature(self) -> Args:
        """Return what a program relies on besides the tensors: settings by value, the other objects by identity."""
        return tuple(_sign(self, v) for v in self.values)


def _sign(reached: Reached, value: Tree) -> Tree:
    if isinstance(value, torch.Tensor):
        return reached._seen[id(value)]
    if isinstance(value, PLAIN):
        return (type(value), value)
    return type(value) if isinstance(value, (dict, list, tuple)) else id(value)  # these are walked into


def reach(fn: Function, arguments: Args) -> Reached:
    """Walk from a function and the arguments that are no tensors."""
    found = Reached()
    _function(found, fn, 0)
    for argument in arguments:
        _visit(found, argument, 0)
    found.close()
    return found


def _visit(found: Reached, value: Tree, depth: int) -> None:
    """Walk into a value whose place is known."""
    if isinstance(value, (*PLAIN, type, types.ModuleType)):
        return
    if isinstance(value, (types.FunctionType, types.MethodType)):
        _function(found, value, depth)
        return
    if isinstance(value, torch.Tensor):
        if found.first(value) is None:
            found.tensors.append(value)
        return
    if depth > _DEPTH or found.first(value) is not None:
        return
    if isinstance(value, torch.nn.Module):
        _module(found, value, depth)
    elif isinstance(value, Optimizer):
        _optimizer(found, value)
    elif isinstance(value, torch.amp.GradScaler):
        _scaler(found, value)
    elif isinstance(value, LRScheduler):
        _scheduler(found, value, depth)
    elif isinstance(value, (list, tuple)):
        _items(found, value, enumerate(value), depth)
    elif isinstance(value, dict):
        _items(found, value, list(value.items()), depth)
    elif isinstance(value, functools.partial):
        _visit(found, value.args, depth + 1)
        _visit(found, value.keywords, depth + 1)
        _function(found, value.func, depth + 1)
    elif not _foreign(type(value)) and hasattr(value, "__dict__"):
        _items(found, value.__dict__, list(value.__dict__.items()), depth)


def _foreign(owner: object) -> bool:
    module = getattr(owner, "__module__", None) or "builtins"
    return any(module == name or module.startswith(f"{name}.") for name in _FOREIGN)


def _items(found: Reached, holder: Tree, items: Iterable[tuple[Tree, Tree]], depth: int) -> None:
    if isinstance(holder, (list, dict)):
        size = Size(holder)
        found.add(size, None, size[None])
    for key, value in items:
        if not isinstance(value, (type, types.ModuleType)):
            found.add(holder, key, value)
            _visit(found, value, depth + 1)


def _module(found: Reached, root: torch.nn.Module, depth: int) -> None:
    """Walk the parameters, buffers, settings and plain attributes of a module and its submodules."""
    for module in root.modules():
        if module is not root and found.first(module) is not None:
            continue
        for table in (module._parameters, module._buffers, module._modules):
            for name, value in list(table.items()):
                found.add(table, name, value)
                if isinstance(value, torch.Tensor):
                    _visit(found, value, depth)
        for name, value in list(vars(module).items()):
            if not _bookkeeping(name, value):
                found.add(module.__dict__, name, value)
                _visit(found, value, depth + 2)
        if not _foreign(type(module)):
            _function(found, type(module).forward, depth + 1)


def _bookkeeping(name: str, value: Tree) -> bool:
    """Return whether a module's attribute is one of its own tables."""
    return name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set") or (
        name.endswith(("_hooks", "_pre_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and not value
    )


def _optimizer(found: Reached, optimizer: Optimizer) -> None:
    """Walk parameters, their state and hyperparameters. Those that `hyperparameters` makes inputs are not guarded."""
    prepare(optimizer)
    found.optimizers.append(optimizer)
    found.unguarded.append(vars(optimizer))
    for attribute in ("param_groups", "state"):
        found.add(optimizer.__dict__, attribute, optimizer.__dict__[attribute])
    groups, size = optimizer.param_groups, Size(optimizer.param_groups)
    found.add(size, None, size[None])
    states = Size(optimizer.state)
    found.add(states, None, states[None])
    inputs = {(id(group), key) for group, key in hyperparameters(optimizer)}
    for group in groups:
        for key, value in group.items():
            if (id(group), key) not in inputs:
                found.add(group, key, value)
                _visit(found, value, 1)
    for parameter, state in list(optimizer.state.items()):
        found.add(optimizer.state, parameter, state)
        if isinstance(state, dict):
            _items(found, state, list(state.items()), 1)


def _scheduler(found: Reached, scheduler: LRScheduler, depth: int) -> None:
    """Walk to the optimizer, also of the schedulers that it is made of. What it counts is not guarded."""
    found.unguarded.append(vars(scheduler))
    for value in vars(scheduler).values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, (LRScheduler, Optimizer)):
                _visit(found, inner, depth)


def _scaler(found: Reached, scaler: torch.amp.GradScaler) -> None:
    found.unguarded.append(vars(scaler))
    if scaler.is_enabled():  # a disabled one keeps nothing
        prepare_scaler(scaler)
        found.scalers.append(scaler)
    for name, value in list(vars(scaler).items()):
        if name in _SCALER_TENSORS or isinstance(value, PLAIN):
            found.add(scaler.__dict__, name, value)
            _visit(found, value, 1)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _function(found: Reached, fn: Tree, depth: int) -> None:
    """Walk to what a function can see besides its arguments."""
    if isinstance(fn, types.MethodType):
        _visit(found, fn.__self__, depth)
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        return _visit(found, fn, depth)
    if _foreign(fn) or depth > _DEPTH or found.first(fn) is not None:
        return None
    if fn.__closure__:
        cells = Cells(fn.__closure__)
        filled = [i for i, cell in enumerate(fn.__closure__) if _filled(cell)]
        _items(found, cells, [(i, cells[i]) for i in filled], depth)
    for holder in (fn.__defaults__, fn.__kwdefaults__, fn.__dict__.get("__wrapped__")):
        if holder:
            _visit(found, holder, depth + 1)
    space = fn.__globals__
    for name in dict.fromkeys(_names(fn.__code__)):  # names in the code, so that globals nobody uses guard nothing
        if name in space and not isinstance(space[name], (type, types.ModuleType)):
            found.add(space, name, space[name])
            _visit(found, space[name], depth + 1)
    return None


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
