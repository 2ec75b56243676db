"""The short way from a call to its program: what must hold, as generated code."""

from __future__ import annotations

from operator import attrgetter

import torch
from jax.sharding import NamedSharding

from ampcheck.jax_device.annotations import Args, Function, Kwargs, Tree
from ampcheck.jax_device.jit.entry import Entry, Stale
from ampcheck.jax_device.jit.optim import hyperparameters
from ampcheck.jax_device.jit.state import PLAIN, Reached
from ampcheck.jax_device.jit.watch import raw
from ampcheck.jax_device.storage.arrays import Bytes, create, storage_of
from ampcheck.jax_device.torch_private import GlobalStateGuard, TensorGuards, function_modes, transform_level
from ampcheck.register.dynamo_skip import dynamo_skip
from ampcheck.register.torch_private import dispatch_modes

MISS = object()
_HOST_LIMIT = 4096  # elements of a CPU argument, which is compared value by value at each call
_grad_flag = attrgetter("requires_grad")


def modes() -> tuple[object, ...]:
    """Return the settings of PyTorch that change what a function computes."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_cache_enabled(),
        torch.get_autocast_dtype("jax"),
        torch.is_autocast_enabled("jax"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
    )


def observed() -> bool:
    """Return whether a mode or a transform of the caller's is to see the ops."""
    return bool(function_modes() or dispatch_modes()) or transform_level() is not None


def described(value: Tree) -> object:
    """Return what a program relies on of an argument: shape, strides, dtype of a tensor; the value of anything else.

    Raises TypeError for an argument that may change unseen, and ValueError for a large CPU tensor, or one with a graph.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type == "jax":
            return _device(value)
        if value.device.type == "cpu" and value.numel() <= _HOST_LIMIT:
            return ("cpu", value.dtype, tuple(value.shape), tuple(value.reshape(-1).tolist()))
        raise ValueError(
            f"an argument of a jitted function is a tensor of {value.numel()} elements on {value.device}; pass it on "
            f"the jax device (CPU tensors of up to {_HOST_LIMIT} elements become part of the program)"
        )
    if isinstance(value, PLAIN):
        return (type(value), value)
    if type(value).__module__.split(".")[0] in ("numpy", "jax", "jaxlib"):
        raise TypeError(f"a jitted function takes PyTorch tensors and Python values; got a {type(value).__name__}")
    return id(value)


def _device(value: torch.Tensor) -> tuple[object, ...]:
    if value.requires_grad and not value.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"an argument of shape {list(value.shape)} of a jitted function is part of a graph from outside, which a "
            "program cannot reach; pass tensor.detach()"
        )
    held = storage_of(value).array
    spread = raw(held).sharding
    return (
        tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad, value.is_leaf,
        raw(held).shape, raw(held).dtype, isinstance(held, Bytes), value.is_conj(), value.is_neg(), type(value),
        spread if isinstance(spread, NamedSharding) else None,
    )  # fmt: skip


def sharing(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Return, for each tensor, the first one with the same storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(t.untyped_storage()), i) for i, t in enumerate(tensors))


class JitState:
    """What a function reaches, as it was when it was walked, and whether that still holds."""

    def __init__(self, reached: Reached, arguments: list[Tree]) -> None:
        self.reached = reached
        self.objects = arguments  # kept, so that their ids stay their own
        self.arguments = [*map(id, arguments)]
        self.tensors = reached.tensors
        self.storages = [t.untyped_storage() for t in self.tensors]
        self.places = [*map(id, self.storages)]
        self.distinct = frozenset(self.places)
        self.flags = [*map(_grad_flag, self.tensors)]
        self.host = [t for t in self.tensors if t.device.type != "jax"]
        self.versions = [t._version for t in self.host]
        self.numbers = [(g, k) for o in reached.optimizers for g, k in hyperparameters(o)]

    def holds(self) -> bool:
        """Return whether the same objects, storages and settings are there, and CPU tensors were not written."""
        return (
            self.reached.unchanged()
            and [*map(id, map(storage_of, self.tensors))] == self.places
            and [*map(_grad_flag, self.tensors)] == self.flags
            and (not self.host or [t._version for t in self.host] == self.versions)
            and all(g[k].__class__ is float for g, k in self.numbers)
        )

    def key(self) -> tuple[object, ...]:
        """Return what a program relies on."""
        host = tuple((id(t), t._version) for t in self.host)
        tensors = tuple(_device(t) for t in self.tensors if t.device.type == "jax")
        return self.reached.signature(), tensors, host, len(self.numbers)


_TEMPLATE = """
def fast({names}{comma}*more):
    if more or functions(): return MISS
    try:
        {body}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return MISS
    try:
        {call}
    except Stale:
        return MISS
    {result}
"""


def generated(entry: Entry, args: Args, state: JitState) -> Function:
    """Return a function of the arguments that runs the program where all that it relies on holds, else returns MISS."""
    lines: list[str] = []
    space: Kwargs = {}
    given: list[str] = []
    distinct: dict[int, int] = {}  # of the tensors, by id, the first place of each
    for i, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            space[f"v{i}"] = arg
            same = f"(a{i} == v{i} and a{i}.__class__ is v{i}.__class__)" if isinstance(arg, PLAIN) else "False"
            lines.append(f"if a{i} is not v{i} and not {same}: return MISS")
            if isinstance(arg, (list, tuple, dict, set)):
                return _never
            continue
        if not _natural(arg):
            return _never
        given.append(str(i))
        first = distinct.setdefault(id(arg), i)
        if first != i:
            lines.append(f"if a{i} is not a{first}: return MISS")
        elif arg.requires_grad or not torch.is_grad_enabled():
            lines.append(f"if a{i}.requires_grad is not {arg.requires_grad} or not a{i}.is_leaf: return MISS")
    if entry.reads_grads or entry.host:
        return _never
    space |= {"settings": GlobalStateGuard().check, "dtype_of": torch.get_autocast_dtype}
    space["dtype_of_region"] = torch.get_autocast_dtype("jax")  # which the guard knows inside of a region only
    lines.append("if not settings() or dtype_of('jax') is not dtype_of_region: return MISS")
    if given:
        # Type, dtype, shape, strides, whether it requires grad; and by its dispatch keys inference mode and modes.
        tensors = [args[i] for i in distinct.values()]
        space["alike"] = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        lines.append(f"if not alike({', '.join(f'a{i}' for i in distinct.values())}): return MISS")
    else:
        space |= {"dispatches": dispatch_modes, "inference": torch.is_inference_mode_enabled}
        lines.append(f"if dispatches() or inference() is not {torch.is_inference_mode_enabled()}: return MISS")
    simple = entry.simple()
    stateless = not state.reached.values and not state.tensors and not entry.extra
    if not stateless:
        lines.append("if not holds(): return MISS")
    if not entry.alias_free():
        storages = [id(storage_of(args[int(i)])) for i in given]
        space["pattern"] = [storages.index(i) for i in storages]  # which arguments share a storage
        lines.append(f"places = [{', '.join(f'id(storage_of(a{i}))' for i in given)}]")
        lines.append("if [*map(places.index, places)] != pattern: return MISS")
        for n, place in enumerate(storages):  # and which is one that the function reaches besides
            wrong = f"places[{n}] != {place}" if place in state.distinct else f"places[{n}] in distinct"
            lines.append(f"if {wrong}: return MISS")
    if simple is not None and stateless and not entry.random and not entry.numbered:
        arrays = [f"storage_of(a{given[entry.slots[slot]]}).array" for slot in entry.used]
        call = f"outputs = program({', '.join(arrays)})"
        result = "tensor = create(size, dtype)\n    storage_of(tensor).array = outputs\n    return tensor"
        space |= {"size": simple.size, "dtype": simple.dtype}
    else:
        call, result = f"outputs = run([{', '.join(f'a{i}' for i in given)}], reached)", "return outputs"
    body = "\n        ".join(lines)
    names = ", ".join(f"a{i}" for i in range(len(args)))
    source = _TEMPLATE.format(names=names, comma=", " if names else "", body=body, call=call, result=result)
    space |= {
        "MISS": MISS, "Stale": Stale, "create": create,
        "distinct": state.distinct, "functions": function_modes, "holds": state.holds,
        "program": entry.jitted, "reached": state.reached, "run": entry, "storage_of": storage_of,
    }  # fmt: skip
    exec(source, space)  # made of numbers and of names given here
    fast: Function = dynamo_skip(space["fast"])
    return fast


def _never(*_: object) -> object:
    return MISS


def _natural(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is the whole of its storage, as its array has it."""
    if tensor.device.type != "jax" or tensor.is_complex() or (tensor.requires_grad and not tensor.is_leaf):
        return False
    return storage_of(tensor).array.shape == tensor.shape and tensor.is_contiguous() and not tensor.is_neg()
