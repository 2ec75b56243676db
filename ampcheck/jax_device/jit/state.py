"""What a function to be compiled can reach: its tensors, which become inputs, and its settings, which are guarded.

Found through the arguments, the closure, the defaults and the globals that the function names: modules, optimizers,
gradient scalers, functions, lists, dicts and plain objects are walked into. What is found keeps its place (a container
and a key), so that a later call sees at once when another object is there. Optimizers and scalers keep numbers on the
host and decide there; in a traced step these are the program's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import getitem
from threading import local
from types import MemberDescriptorType
from weakref import WeakKeyDictionary, WeakSet, ref

import jax
import jax.numpy as jnp
import torch
import torch.nn.modules.module as module_hooks
import torch.optim.optimizer as optimizer_hooks
from jax.sharding import NamedSharding, PartitionSpec
from torch import Tensor
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampcheck.jax_device.annotations import Args, DeviceStorage, Function, Kwargs, Tree
from ampcheck.jax_device.dispatch.program import symbols
from ampcheck.jax_device.jit.reads import BUFFERS, GENERATORS, Attributes, Measured, Place, Places, foreign, names, put
from ampcheck.jax_device.storage.arrays import Bytes, mesh_sharding, meshes, over, raw, storage_of

Hyperparameter = tuple[Kwargs, str, int | None]
"""An optimizer's group, a key of it and, of several numbers there, which one."""


class Concretize(Exception):
    """A hyperparameter that was made an input is looked at by Python, so it must be part of the program."""

    def __init__(self, place: Hyperparameter) -> None:
        super().__init__(place)
        self.place = place


TracedNumber = jax.Array | float
"""A number of the program, or one of Python's."""


class Traced:
    """A number of the program, as PyTorch's symbolic numbers hold one: what a `torch.SymFloat` computes with.

    `traced` is JAX's number; `place` says which hyperparameter it comes from, for the error when Python looks at it;
    `sign` the sign that it has in each call of this program, None where this is not known.
    """

    def __init__(self, traced: TracedNumber, place: Hyperparameter, sign: int | None = None) -> None:
        self.traced, self.place, self.sign = traced, place, sign

    def _with(self, traced: TracedNumber) -> Traced:
        return Traced(traced, self.place)

    def _look(self, *_: Tree) -> Tree:
        raise Concretize(self.place)

    guard_float = guard_bool = guard_int = bool_ = int_ = _look
    is_integer = sym_sum = _look

    def _compared(compare: Function) -> Callable[..., Tree]:  # type: ignore[misc]
        def method(self: Traced, other: Traced) -> Decided:
            if self.sign is None or isinstance(other.traced, jax.Array) or other.traced != 0:
                self._look()
            return Decided(compare(self.sign, 0))

        return method

    eq, ne, lt = _compared(operator.eq), _compared(operator.ne), _compared(operator.lt)
    le, gt, ge = _compared(operator.le), _compared(operator.gt), _compared(operator.ge)

    @staticmethod
    def _no() -> bool:
        return False

    is_int = is_bool = is_nested_int = is_constant = has_hint = is_symbolic_int = _no

    def is_float(self) -> bool:
        """Return True: it is a Python float to the caller."""
        return True

    def wrap_float(self, number: float) -> Traced:
        return self._with(number)

    wrap_int = wrap_float

    def _graph_repr(self) -> str:
        return "a hyperparameter traced by jit"

    __str__ = str = _graph_repr

    def neg(self) -> Traced:
        return self._with(-self.traced)

    def _binary(compute: Function) -> Callable[[Traced, Traced], Traced]:  # type: ignore[misc]
        def method(self: Traced, other: Traced) -> Traced:
            return self._with(compute(self.traced, other.traced))

        return method

    add, sub, mul = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
    truediv = float_truediv = _binary(operator.truediv)
    pow = float_pow = _binary(operator.pow)


class Decided:
    """A comparison whose outcome a program relies on, as PyTorch's symbolic truth values hold one."""

    def __init__(self, known: bool) -> None:
        self.known = known

    def is_bool(self, *_: object) -> bool:
        """Return True: it is no number."""
        return True

    is_constant = is_bool

    def guard_bool(self, *_: object) -> bool:
        """Return the outcome."""
        return self.known

    def is_int(self) -> bool:
        return False

    is_float = is_int


_static: dict[tuple[int, str], Kwargs] = {}


def make_static(place: Hyperparameter) -> None:
    """Make that hyperparameter a part of the program from now on, so that a change of it makes a new one."""
    _static[id(place[0]), place[1]] = place[0]  # the group is kept, so that its id stays its own


_noted: WeakKeyDictionary[Optimizer, dict[tuple[int, str], Tree]] = WeakKeyDictionary()
_moving: WeakKeyDictionary[Optimizer, list[tuple[int, str]]] = WeakKeyDictionary()


def note_numbers(optimizer: Optimizer) -> None:
    """Note which numbers of the optimizer's groups are others than at its last walk, as a scheduler makes them."""
    noted, moving = _noted.setdefault(optimizer, {}), _moving.setdefault(optimizer, [])
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            before = noted.get((i, key), value)
            if type(value) is type(before) and value != before and key != "lr" and (i, key) not in moving:
                moving.append((i, key))
            if type(value) is float or (type(value) is tuple and {*map(type, value)} == {float}):
                noted[i, key] = value


def hyperparameters(optimizer: Optimizer) -> list[Hyperparameter]:
    """Return the hyperparameters that are inputs: each group's learning rate, and other floats that have changed."""
    groups = optimizer.param_groups
    found: list[Hyperparameter] = [(g, "lr", None) for g in groups if type(g.get("lr")) is float]
    for i, key in _moving.get(optimizer, ()):
        value = groups[i].get(key) if i < len(groups) else None
        if type(value) is tuple:
            found += [(groups[i], key, k) for k in range(len(value))]
        elif type(value) is float:
            found.append((groups[i], key, None))
    return [(g, key, k) for g, key, k in found if (id(g), key) not in _static] if _static else found


def number(place: Hyperparameter) -> Tree:
    """Return a hyperparameter's value; None where there is none any more."""
    group, key, index = place
    value = group.get(key)
    if index is None:
        return value
    return value[index] if type(value) is tuple and index < len(value) else None


def sign(place: Hyperparameter) -> int | None:
    """Return the sign of a hyperparameter, by which optimizers decide; None of a learning rate, which may become 0."""
    value = 0 if place[1] == "lr" else number(place)
    return None if place[1] == "lr" or value is None else (value > 0) - (value < 0)


_made_capturable: WeakSet[Optimizer] = WeakSet()


def prepare(optimizer: Optimizer) -> None:
    """Bring what the optimizer keeps on the host to the device: step counts, by PyTorch's `capturable`.

    In float64, as Python computes with those of the host: 1 - 0.999**step in float32 is wrong by 1e-5 of itself. Those
    of a group that was made capturable by its owner stay as they are, and so do its eager steps.
    The state of parameters that have none yet is made, where the optimizer can make it without a gradient, so that the
    first step is the same program as the later ones. Equal counts are one array, which a program counts once.
    """
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.device.type == "jax"]
        if not params or "capturable" not in group:
            continue
        if not group["capturable"]:
            group["capturable"] = True
            _made_capturable.add(optimizer)
        _initialize(optimizer, group, [p for p in params if p.requires_grad and not optimizer.state.get(p)])
        for p in params:
            step = optimizer.state[p].get("step") if p in optimizer.state else None
            if not isinstance(step, Tensor):
                continue
            wide = optimizer in _made_capturable and not group.get("fused")  # PyTorch's fused kernels take float32
            dtype = torch.float64 if wide else step.dtype
            if (step.device.type, step.dtype) != ("jax", dtype):
                optimizer.state[p]["step"] = step.to("jax", dtype)
        for name in {name: 0 for p in params for name in optimizer.state.get(p, ())}:
            _share([state[name] for p in params if name in (state := optimizer.state.get(p, ()))])


def counts(value: object) -> bool:
    """Return whether a value is a number in a tensor on one device, as the count of an optimizer's steps is."""
    held = storage_of(value).array if isinstance(value, Tensor) and value.device.type == "jax" else None
    return held is not None and held.shape == () and mesh_sharding(held) is None


def _share(values: list[Tree]) -> None:
    """Let numbers that are equal have one array."""
    held = [storage_of(value) for value in values if counts(value)]
    if len({id(storage.array) for storage in held}) > 1:
        same: dict[object, jax.Array] = {}
        for storage in held:
            storage.array = same.setdefault((storage.array.dtype, storage.array.item()), storage.array)


def _initialize(optimizer: Optimizer, group: Kwargs, params: list[Tensor]) -> None:
    make = getattr(optimizer, "_init_group", None)
    if not params or make is None:
        return
    lists = list(inspect.signature(make).parameters)[1:]
    before, made = {p: p.grad for p in group["params"]}, set(params)
    try:
        for p in group["params"]:
            p.grad = p.detach() if p in made else None  # for its shape, layout and dtype
        make({**group, "params": params}, *([] for _ in lists))
    finally:
        for p, grad in before.items():
            p.grad = grad


def remembered(optimizers: list[Optimizer], scalers: list[torch.amp.GradScaler]) -> Callable[[], None]:
    """Remember what the optimizers and scalers keep now; the returned function puts it back."""
    kept = [(o, set(vars(o)), {p: dict(s) for p, s in o.state.items()}) for o in optimizers]
    stages = [(s, {i: _stage(stage) for i, stage in s._per_optimizer_states.items()}) for s in scalers]

    def rewind() -> None:
        for optimizer, attributes, states in kept:
            for name, value in list(vars(optimizer).items()):
                if name not in attributes and isinstance(value, Tensor):
                    delattr(optimizer, name)  # what GradScaler.step gives a fused optimizer
            for p in list(optimizer.state):
                if p not in states:
                    del optimizer.state[p]
                else:
                    optimizer.state[p].clear()
                    optimizer.state[p].update(states[p])
        for scaler, stage in stages:
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update({i: _stage(s) for i, s in stage.items()})

    return rewind


def _stage(stage: Kwargs) -> Kwargs:
    return {**stage, "found_inf_per_device": dict(stage["found_inf_per_device"])}


class _Active(threading.local):
    written: Callable[[], list[DeviceStorage]] | None = None


_active = _Active()
_plain_step = torch.amp.GradScaler._maybe_opt_step


def _masked_step(self: torch.amp.GradScaler, optimizer: Optimizer, state: Kwargs, *args: Tree, **kwargs: Tree) -> Tree:
    """Take a step of an optimizer whose effect is taken back, on the device, where a gradient is not finite."""
    if _active.written is None:
        return _plain_step(self, optimizer, state, *args, **kwargs)
    found = jnp.asarray(sum(storage_of(v).array.reshape(()) for v in state["found_inf_per_device"].values()) > 0)
    known = {p: set(optimizer.state[p]) for p in optimizer.state}
    before = {s: s.array for s in _active.written()}
    result = optimizer.step(*args, **kwargs)
    for storage, array in before.items():
        if storage.array is not array:
            storage.array = jnp.where(found, array, storage.array)
    _mask_new(optimizer, known, found)
    return result


_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")


def _fused_step(step: Function, *lists: list[Tensor], **numbers: Tree) -> None:
    """Take a fused step, for which PyTorch would ask symbolic numbers for their values."""
    symbols.update((name, value) for name, value in numbers.items() if value.__class__ is torch.SymFloat)
    try:
        step(*lists, **{name: 0.5 if name in symbols else value for name, value in numbers.items()})
    finally:
        symbols.clear()


def _mask_new(optimizer: Optimizer, known: dict[Tensor, set[str]], found: jax.Array) -> None:
    """Set state that this step made to zero where the step is taken back: the next step then starts from nothing.

    Raises RuntimeError for SGD with dampening, whose first momentum is the gradient undampened.
    """
    for p, state in optimizer.state.items():
        for name, value in state.items():
            if name in known.get(p, ()) or not isinstance(value, Tensor):
                continue
            if any(g.get("dampening") for g in optimizer.param_groups):
                raise RuntimeError(
                    f"{type(optimizer).__name__} makes {name} in its first step, which jit cannot take back when a "
                    "gradient overflows and dampening is not 0; take one step before jit, or set dampening=0"
                )
            storage = storage_of(value)
            storage.array = jnp.where(found, jnp.zeros_like(storage.array), storage.array)


@contextlib.contextmanager
def traced_optimizers(
    optimizers: list[Optimizer], numbers: Sequence[jax.Array], written: Callable[[], list[DeviceStorage]]
) -> Iterator[None]:
    """Make hyperparameters the program's numbers, and have `GradScaler.step` decide on the device, while inside.

    `written()` gives the storages from before the trace. Raises RuntimeError where a hyperparameter is changed inside.
    """
    places = [place for optimizer in optimizers for place in hyperparameters(optimizer)]
    given: dict[tuple[int, str], tuple[Kwargs, list[torch.SymFloat]]] = {}
    for n, place in zip(numbers, places, strict=True):
        symbol = torch.SymFloat(Traced(n, place, sign(place)))
        given.setdefault((id(place[0]), place[1]), (place[0], []))[1].append(symbol)
    replaced = [
        (group, key, group[key], tuple(symbols) if type(group[key]) is tuple else symbols[0])
        for (_, key), (group, symbols) in given.items()
    ]
    before, fused = _active.written, {name: getattr(torch, name) for name in _FUSED}

    def known(optimizer: Optimizer, *_: object) -> None:
        if not any(optimizer is o for o in optimizers):
            raise RuntimeError(
                f"a jitted function takes a step of an optimizer ({type(optimizer).__name__}) that it does not reach "
                "by its arguments, closure or globals, so its learning rate would be fixed; pass it as an argument"
            )

    hook = register_optimizer_step_pre_hook(known)
    try:
        for group, key, _, value in replaced:
            group[key] = value
        _active.written = written
        torch.amp.GradScaler._maybe_opt_step = _masked_step  # type: ignore[method-assign,assignment]
        for name, step in fused.items():
            setattr(torch, name, functools.partial(_fused_step, step))
        yield
        for group, key, _, value in replaced:
            if group[key] is not value:
                raise RuntimeError(
                    f"{key} of an optimizer was changed inside of a jitted function; call the scheduler outside of it"
                )
    finally:
        hook.remove()
        for name, step in fused.items():
            setattr(torch, name, step)
        _active.written = before
        if before is None:
            torch.amp.GradScaler._maybe_opt_step = _plain_step  # type: ignore[method-assign]
        for group, key, original, _ in replaced:
            group[key] = original


PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_DEPTH, _CALLS, _WIDE = 32, 5, 1000
"""How far objects are walked, and functions, as what those call is seen; and no wider container that is further."""
_SCALER_TENSORS = ("_scale", "_growth_tracker")


class Reached:
    """What was reached, each with its place, in the order of the walk; the same order for the same structure."""

    def __init__(self, read: Places) -> None:
        self.read = read
        self.tracing = self.grew = False
        """Whether it is walked in a trace, and whether tensors or optimizers were met there."""
        self.holders: list[Tree] = []
        self.keys: list[Tree] = []
        self.values: list[Tree] = []
        self.tensors: list[Tensor] = []
        self.optimizers: list[Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.unguarded: list[Kwargs] = []
        """Attributes that may change without a new program."""
        self.iterators: list[Tree] = []
        self.generators: list[Tree] = []
        """Of random numbers, Python's and NumPy's."""
        self.owners: dict[int, type] = {}
        """The classes whose attributes some holders are."""
        self.order: list[Tree] = []
        """Every object that was met."""
        self.seen: dict[int, int] = {}
        self.closures: set[int] = set()
        self._placed: set[tuple[int, Tree]] = set()

    def add(self, holder: Tree, key: Tree, value: Tree) -> None:
        place = (id(holder), id(key) if isinstance(key, Tensor) else key)
        if place in self._placed:
            return
        self._placed.add(place)
        self.holders.append(holder)
        self.keys.append(key)
        self.values.append(value)

    def unchanged(self) -> bool:
        """Return whether the very same objects are at every place."""
        try:
            now = [*map(id, map(getitem, self.holders, self.keys))]
        except (KeyError, IndexError, ValueError, RuntimeError):  # an emptied cell, a set that is being changed
            return False
        return now == self._ids

    def put(self, place: int, value: Tree) -> None:
        holder = self.holders[place]
        put(holder, self.keys[place], value, self.owners.get(id(holder)))

    def containers(self) -> list[Tree]:
        """Return every list, dict, set and deque that was reached: objects' attributes too, no module's globals."""
        sized = (h.of for h in self.holders if isinstance(h, Measured))
        found = {id(c): c for c in (*self.unguarded, *sized, *self.holders, *self.values) if type(c) in _CONTAINERS}
        return [c for c in found.values() if not (isinstance(c, dict) and "__builtins__" in c)]

    def close(self) -> None:
        """Note that the walk is done."""
        self._ids = [*map(id, self.values)]
        self.leaves = [t for t in self.tensors if t.is_leaf and t.is_floating_point()]

    def first(self, value: Tree) -> int | None:
        """Return the object's number if it was met before; else None, and give it one."""
        number = self.seen.get(id(value))
        if number is None:
            self.seen[id(value)] = len(self.order)
            self.order.append(value)  # kept, so that its id stays its own
        return number

    def signature(self) -> Args:
        """Return what a program relies on besides the tensors: settings by value, the other objects by identity."""
        return tuple(_sign(self, v) for v in self.values)


def _sign(reached: Reached, value: Tree) -> Tree:
    if isinstance(value, Tensor):
        return reached.seen[id(value)]
    if isinstance(value, PLAIN):
        return (type(value), value)
    return type(value) if isinstance(value, (dict, list, tuple)) else id(value)  # these are walked into


def numbers_of(reached: Reached) -> list[float]:
    return [number(place) for optimizer in reached.optimizers for place in hyperparameters(optimizer)]


def reach(fn: Function, arguments: Args, read: Places) -> Reached:
    """Walk from a function, the arguments that are no tensors, and what the function was seen to read."""
    found = Reached(read)
    read.note = id
    _function(found, fn, 0)
    for argument in arguments:
        _visit(found, argument, 0)
    for space in (module_hooks, optimizer_hooks):
        for name, value in vars(space).items():
            if name.startswith("_global_") and isinstance(value, dict) and value:
                _items(found, value, list(value.items()), 0)
    for place in list(read.places.values()):
        _place(found, place)
    _classes(found)
    _seen_functions(found)
    if meshes:
        _spread(found)
    found.close()
    return found


def _spread(found: Reached) -> None:
    """Put what lies on one device onto the mesh of the other tensors, before a program is made for it.

    An optimizer's state of its parameter's shape is split as the parameter is; all else is whole on each device.
    """
    arrays = {t: storage_of(t).array for t in found.tensors if t.device.type == "jax"}
    kept = {t: sharding for t, array in arrays.items() if (sharding := mesh_sharding(array))}
    if not kept:
        return
    whole = NamedSharding(next(iter(kept.values())).mesh, PartitionSpec())
    for p, state in (item for optimizer in found.optimizers for item in optimizer.state.items()):
        for t in (v for v in (state.values() if isinstance(state, dict) else ()) if isinstance(v, Tensor)):
            if t in arrays and p in kept and raw(arrays[t]).shape == raw(arrays[p]).shape:
                kept.setdefault(t, kept[p])
    for t, array in arrays.items():
        if mesh_sharding(array) is None:
            spread = over(raw(array), kept.get(t, whole))
            storage_of(t).array = Bytes(spread) if isinstance(array, Bytes) else spread


@contextlib.contextmanager
def extended(found: Reached) -> Iterator[None]:
    """Walk to what a trace is seen to read, while inside."""
    found.tracing, found.read.note = True, lambda place: _place(found, place)
    try:
        yield
    finally:
        _classes(found)
        _seen_functions(found)
        found.tracing, found.read.note = False, id
        found.close()


def _classes(found: Reached) -> None:
    """Walk to the attributes of classes whose objects were met, where the code has their names."""
    found.read.note = lambda place: _place(found, place)
    for kind in dict.fromkeys(map(type, found.order)):
        found.read.of_class(kind, sorted(found.read.names & {name for base in kind.__mro__ for name in vars(base)}))


def _place(found: Reached, place: Place) -> None:
    holder, key, owner = place
    if owner is not None:
        found.owners[id(holder)] = owner
    try:
        value = holder[key]
    except KeyError:
        return
    found.add(holder, key, value)
    if not isinstance(value, types.FunctionType):
        _visit(found, value, 1)


def _seen_functions(found: Reached) -> None:
    """Walk to what functions at places hold, if they were seen; at the end, so that later walks have the same order."""
    codes = {id(code) for code, _ in found.read.codes}
    for holder, key, _ in list(found.read.places.values()):
        with contextlib.suppress(KeyError):
            if isinstance(value := holder[key], types.FunctionType) and id(value.__code__) in codes:
                _closure(found, value, 1)


def _visit(found: Reached, value: Tree, depth: int) -> None:
    """Walk into a value whose place is known."""
    if isinstance(value, (*PLAIN, type, types.ModuleType)):
        return
    if isinstance(value, (types.FunctionType, types.MethodType)):
        _function(found, value, depth)
        return
    if isinstance(value, Tensor):
        if found.tracing:
            found.grew |= id(value) not in found.seen
        elif found.first(value) is None:
            found.tensors.append(value)
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if hooks := getattr(value, name):
                    _items(found, hooks, list(hooks.items()), depth)
            if vars(value):
                _items(found, vars(value), list(vars(value).items()), depth)
        return
    if found.tracing and isinstance(value, (Optimizer, LRScheduler, torch.amp.GradScaler)):
        found.grew |= id(value) not in found.seen
        return
    wide = depth > _CALLS and isinstance(value, (list, tuple, dict)) and len(value) > _WIDE
    if wide or depth > _DEPTH or found.first(value) is not None:
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
    elif isinstance(value, (dict, types.MappingProxyType)):
        _items(found, value, list(value.items()), depth)
    elif isinstance(value, deque):
        _items(found, value, enumerate(value), depth)
    elif isinstance(value, (set, frozenset, *BUFFERS)):
        measured = Measured.whole(value)
        found.add(measured, None, measured[None])
    elif isinstance(value, GENERATORS):
        found.generators.append(value)
    elif isinstance(value, Iterator):
        found.iterators.append(value)
    elif isinstance(value, ref):
        _visit(found, value(), depth)
    elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):  # as a dictionary's get
        _visit(found, value.__self__, depth)
    elif isinstance(value, functools.partial):
        _visit(found, value.args, depth + 1)
        _visit(found, value.keywords, depth + 1)
        _function(found, value.func, depth + 1)
    elif not foreign(type(value).__module__) or isinstance(value, (local, Distribution)):
        _object(found, value, depth)


def _object(found: Reached, value: object, depth: int) -> None:
    """Walk the attributes and slots of an object of another class."""
    if hasattr(value, "__dict__"):
        _items(found, value.__dict__, list(value.__dict__.items()), depth)
    members = [(name, getattr(type(value), name, None)) for name in dir(type(value))]
    slots = [  # the members of a type written in C can be read only, and change in no other way
        name for name, m in members if isinstance(m, MemberDescriptorType) and "__slots__" in vars(m.__objclass__)
    ]
    if slots:
        attributes = Attributes(value)
        _items(found, attributes, [(name, attributes[name]) for name in slots], depth)


def _items(found: Reached, holder: Tree, items: Iterable[tuple[Tree, Tree]], depth: int) -> None:
    if isinstance(holder, (list, dict, deque, types.MappingProxyType)):
        size = Measured(holder, len)
        found.add(size, None, size[None])
    for key, value in items:
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
                if isinstance(value, Tensor):
                    _visit(found, value, depth)
        for name, value in list(vars(module).items()):
            if not _bookkeeping(name, value):
                found.add(module.__dict__, name, value)
                _visit(found, value, depth + 2)
        size = Measured(module.__dict__, len)  # an attribute may come to hide one of the class
        found.add(size, None, size[None])
        if not foreign(type(module).__module__):
            _function(found, type(module).forward, depth + 1)


def _bookkeeping(name: str, value: Tree) -> bool:
    """Return whether a module's attribute is one of its own tables."""
    return name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set") or (
        name.endswith(("_hooks", "_pre_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and not value
    )


def _optimizer(found: Reached, optimizer: Optimizer) -> None:
    """Walk parameters, their state and hyperparameters. Those that `hyperparameters` makes inputs are not guarded."""
    prepare(optimizer)
    note_numbers(optimizer)
    found.optimizers.append(optimizer)
    for name, value in vars(optimizer).items():
        if name.endswith("_hooks") and value:
            _visit(found, value, 1)
    found.unguarded.append(vars(optimizer))
    for attribute in ("param_groups", "state"):
        found.add(optimizer.__dict__, attribute, optimizer.__dict__[attribute])
    groups, size = optimizer.param_groups, Measured(optimizer.param_groups, len)
    found.add(size, None, size[None])
    states = Measured(optimizer.state, len)
    found.add(states, None, states[None])
    inputs = {(id(group), key) for group, key, _ in hyperparameters(optimizer)}
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
        if scaler._scale is None:  # which PyTorch makes at the first `scale`, as its tracker
            scaler._lazy_init_scale_growth_tracker(torch.device("jax"))
        found.scalers.append(scaler)
    for name, value in list(vars(scaler).items()):
        if name in _SCALER_TENSORS or isinstance(value, PLAIN):
            found.add(scaler.__dict__, name, value)
            _visit(found, value, 1)


def _function(found: Reached, fn: Tree, depth: int) -> None:
    """Walk to what a function can see besides its arguments."""
    if isinstance(fn, types.MethodType):
        _visit(found, fn.__self__, depth)
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        return _visit(found, fn, depth)
    if foreign(fn.__module__ or "builtins") or depth > _CALLS or found.first(fn) is not None:
        return None
    _closure(found, fn, depth)
    space = fn.__globals__
    for name in dict.fromkeys(names(fn.__code__)):  # names in the code, so that globals nobody uses guard nothing
        if name in space:
            found.add(space, name, space[name])
            _visit(found, space[name], depth + 1)
    return None


def _closure(found: Reached, fn: types.FunctionType, depth: int) -> None:
    if id(fn) in found.closures:
        return
    found.closures.add(id(fn))
    for cell in fn.__closure__ or ():
        if cell != types.CellType():  # an empty one
            _items(found, Attributes(cell), [("cell_contents", cell.cell_contents)], depth)
    attributes = Attributes(fn)
    given = ("__defaults__", "__kwdefaults__", "__dict__")
    _items(found, attributes, [(name, value) for name in given if (value := attributes[name])], depth)
