"""A compiled function for one kind of call: its program, how a call feeds it and takes its results, and the short way.

The short way checks, as generated code, what must hold.
"""

import contextlib
import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import cast

import jax
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from ampcheck.jax_device import random, torch_private
from ampcheck.jax_device.annotations import Args, DeviceStorage, Function, Kwargs, Tree
from ampcheck.jax_device.dispatch import checks
from ampcheck.jax_device.dispatch.program import trim
from ampcheck.jax_device.jit.state import PLAIN, Reached, counts, hyperparameters, number, numbers_of, sign
from ampcheck.jax_device.jit.trace import Alias, Constant, NewTensor, Same, StepTrace, grad_leaves, rebuild, uncollected
from ampcheck.jax_device.jit.watch import Value, ValueNeededError, value_of
from ampcheck.jax_device.lowering import BARRIERS, known_options
from ampcheck.jax_device.storage.arrays import Bytes, create, mesh_sharding, raw, storage_of
from ampcheck.jax_device.torch_private import GlobalStateGuard, TensorGuards, function_modes, pytree, transform_level
from ampcheck.register.torch_private import dispatch_modes, dynamo_skip

Run = tuple[Sequence[jax.Array], list[Tensor], list[DeviceStorage]]
"""What a program computed, and the tensors and storages that it may touch."""
# What holds an array that only its storage has: the storage, the list of a call's arrays, and the question itself.
_ALONE = 3
# Equations of a program from which compiling takes memory that is worth the milliseconds of giving it back.
_LARGE = 256


class Stale(Exception):
    """The arrays are of other shapes or dtypes than those the program was traced with."""


# How equations of numbers alone are computed. Their results are converted.
_NUMBERS: dict[str, Function] = {"abs": np.abs, "convert_element_type": np.asarray, "lt": np.less, "sub": np.subtract}


def folded(closed: ClosedJaxpr, first: dict[int, int]) -> ClosedJaxpr:
    """Return a program of fewer equations that computes the same; `first`: the inputs that are an earlier one.

    What comes of the program's own numbers, e.g. a relu's 0 in bfloat16, or the branch that they choose, is constant.
    Equal equations are one, but for barriers, and products, which may be computed again to save memory.
    """
    jaxpr = closed.jaxpr
    consts = {id(v): value for v, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    same: dict[int, Tree] = {id(jaxpr.invars[i]): jaxpr.invars[k] for i, k in first.items()}
    known, eqns = dict[object, Tree](), []
    for eqn in jaxpr.eqns:
        given: list[Tree] = [same.get(id(v), v) for v in eqn.invars]
        numbers = [None if v.aval.shape else getattr(v, "val", consts.get(id(v))) for v in given]
        name, out = eqn.primitive.name, cast(Tree, eqn.outvars[0] if eqn.outvars else None)
        found, compute = out, _NUMBERS.get(name)
        if compute is np.asarray and given[0].aval.dtype == out.aval.dtype:
            compute = None  # as an equation it is one operand of many, as a constant it would be one for each
        if name == "select_n" and numbers[0] is not None:
            found = given[1 + int(numbers[0])]
        elif compute is not None and all(n is not None for n in numbers):
            operands = [np.asarray(n).astype(v.aval.dtype) for n, v in zip(numbers, given, strict=True)]
            found = Literal(np.asarray(compute(*operands)).astype(out.aval.dtype), out.aval)
        elif len(eqn.outvars) == 1 and not eqn.effects and name not in ("optimization_barrier", "dot_general"):
            by = [(str(v.aval), np.asarray(v.val).tobytes()) if isinstance(v, Literal) else v for v in given]
            with contextlib.suppress(TypeError):  # of parameters that are not hashed
                found = known.setdefault((name, eqn.ctx, *by, *eqn.params.items(), out.aval), out)
        if found is out:
            eqns.append(eqn.replace(invars=given))
        else:
            same[id(out)] = found
    return ClosedJaxpr(jaxpr.replace(eqns=eqns, outvars=[same.get(id(v), v) for v in jaxpr.outvars]), closed.consts)


class Entry:
    """One compiled kind of call.

    `known`: the values that Python asked for in the trace. The program computes them too, and is right where they are
    the same; `others` are the programs of the same kind of call for other values, the one that ran last at the end.
    """

    def __init__(self, trace: StepTrace, reached: Reached, donate: bool, known: tuple[Value, ...] = ()) -> None:
        self.trace, self.reached, self.known = trace, reached, known
        self.others: list[Entry] = [self]
        self.key: Tree = None
        self.grads: Tree = None
        self.ran = False
        self.effects, self.results = trace.effects, trace.results
        self.reads_grads, self.extra, self.random = trace.reads_grads, trace.extra, trace.random
        index = {id(t): i for i, t in enumerate(trace.tensors)}
        self.leaves = [index[id(leaf)] for leaf in trace.leaves]
        # Slot by slot, which tensor leads to the storage.
        found: dict[int, int] = {}
        for i, tensor in enumerate(trace.tensors):
            if tensor.device.type == "jax":
                found.setdefault(id(storage_of(tensor)), i)
        self.slots = list(found.values())
        held, own = dict[int, int](), set(map(id, reached.tensors))
        numbers = [(i, t) for i, t in enumerate(trace.tensors[k] for k in self.slots) if id(t) in own and counts(t)]
        firsts = [(i, held.setdefault(id(storage_of(t).array), i)) for i, t in numbers]
        self.merged = {i: k for i, k in firsts if i != k}
        """Slots of numbers, such as step counts, that have the array of an earlier one."""
        # An array costs less than a tuple of one.
        self.bare = trace.whole and not trace.asked and self.simple() is not None
        self._compile(donate and not trace.asked)  # the state is needed again where the values are others
        self.host = [(t, host_values(t)) for t in trace.host]

    def _compile(self, donate: bool) -> None:
        with uncollected():
            closed = folded(self.trace.closed, self.merged)
        invars, outvars = closed.jaxpr.invars, closed.jaxpr.outvars
        # What no equation reads is no input of the compiled program: each costs a check and a transfer a call.
        needed = {id(v) for eqn in closed.jaxpr.eqns for v in eqn.invars} | {id(v) for v in outvars}
        self.used = [i for i in range(len(self.slots)) if id(invars[i]) in needed]
        self.numbered = [i for i in range(self.trace.numbers) if id(invars[len(self.slots) + i]) in needed]
        keyed = id(invars[-1]) in needed
        self.random = keyed
        places = [*self.used, *(len(self.slots) + i for i in self.numbered), *([len(invars) - 1] if keyed else [])]
        outs = [v.aval for v in outvars]
        kinds = [(v.aval.shape, v.aval.dtype) for v in invars]
        written = {s for s, out, _ in self.effects.written if kinds[s] == (outs[out].shape, outs[out].dtype)}
        placed = [mesh_sharding(storage_of(self.trace.tensors[i]).array) for i in self.slots]
        # An argument that lies on one device may come out of the program spread over the mesh of the others.
        written = {s for s in written if placed[s] is not None or not any(placed)} - {*self.merged.values()}
        self.donated = [k for k, slot in enumerate(self.used) if slot in written] if donate else []
        # Numbers that are one array and stay equal come out as one.
        shared, found = {*self.merged, *self.merged.values()}, dict[int, int]()
        first = {o: found.setdefault(id(outvars[o]), o) for slot, o, _ in self.effects.written if slot in shared}
        kept = [i for i in range(len(outvars)) if first.get(i, i) == i]
        self.outputs = [kept.index(first.get(i, i)) for i in range(len(outvars))] if shared else None
        closed = closed.replace(jaxpr=closed.jaxpr.replace(outvars=[outvars[i] for i in kept]))
        run, avals = jaxpr_as_fun(closed), [v.aval for v in invars]

        def program(*given: jax.Array) -> Tree:
            values: list[jax.Array | None] = [None] * len(avals)
            for place, value in zip(places, given, strict=True):
                if value.shape != avals[place].shape or value.dtype != avals[place].dtype:
                    raise Stale
                values[place] = value
            for place, aval in enumerate(avals):
                if values[place] is None:  # nothing uses it
                    values[place] = jax.numpy.zeros(aval.shape, aval.dtype)
            outputs = tuple(run(*values))
            return outputs[0] if self.bare else outputs

        state = {output: placed[slot] for slot, output, _ in self.effects.written}
        shardings = tuple(state.get(i) for i in kept)
        # State stays spread over the mesh as it is.
        placement: Kwargs = {"out_shardings": shardings} if any(s is not None for s in shardings) else {}
        again = any(eqn.primitive.name == "optimization_barrier" for eqn in closed.jaxpr.eqns)
        barred = again and jax.default_backend() == "cpu" and known_options().keys() >= BARRIERS.keys()
        self.jitted = jax.jit(
            program, donate_argnums=tuple(self.donated), compiler_options=BARRIERS if barred else None, **placement
        )

    def current(self) -> bool:
        """Return whether the CPU tensors that it has as constants are as they were, also those that no walk reaches."""
        return all(host_values(tensor) == kept for tensor, kept in self.host)

    def takes(self, known: tuple[Value, ...], grads: Tree) -> bool:
        """Return whether it may be the program of a call with these first values, and gradients of this kind."""
        return self.known[: len(known)] == known and (not self.reads_grads or self.grads == grads)

    def tensors(self, arguments: list[Tensor], reached: Reached) -> list[Tensor]:
        """Return every tensor the program may touch, in the order of the trace."""
        if not self.reads_grads:
            return [*arguments, *reached.tensors, *self.extra]
        grads = [g for g in (leaf.grad for leaf in grad_leaves(arguments, reached)) if g is not None]
        return [*arguments, *reached.tensors, *grads, *self.extra]

    def inputs(self, storages: list[DeviceStorage], reached: Reached, *, drawing: bool = True) -> list[Tree]:
        """Return the program's inputs, from the storages of its slots."""
        given = [storages[slot].array for slot in self.used]
        for k in self.donated:
            if sys.getrefcount(given[k]) > _ALONE:
                given[k] = jax.device_put(raw(given[k]), may_alias=False)  # someone else has this array too
        given = [raw(g) for g in given]
        if self.numbered:
            numbers = numbers_of(reached)
            given += [numbers[i] for i in self.numbered]
        if self.random:
            given.append(random.default.key() if drawing else np.zeros(2, np.uint32))
        return given

    def __call__(self, arguments: list[Tensor], reached: Reached) -> Tree:
        """Run the program on these arguments and take over what it changed."""
        return self.finish(*self.run(arguments, reached), reached)

    def run(self, arguments: list[Tensor], reached: Reached) -> Run:
        """Return what the program computes of these arguments; the tensors and storages that it may touch."""
        tensors = self.tensors(arguments, reached)
        storages = [storage_of(tensors[i]) for i in self.slots]
        if any(storages[i].array is not storages[k].array for i, k in self.merged.items()):
            raise Stale
        with contextlib.nullcontext() if self.ran else uncollected():
            outputs = self.jitted(*self.inputs(storages, reached))
        if not self.ran and len(self.trace.closed.jaxpr.eqns) > _LARGE:
            trim()
        self.ran = True
        outputs = (outputs,) if self.bare else outputs
        return outputs if self.outputs is None else [outputs[i] for i in self.outputs], tensors, storages

    def values(self, outputs: Sequence[jax.Array]) -> tuple[Value, ...]:
        """Return the values that Python asked for, as they are in this call."""
        return tuple(map(value_of, outputs[len(outputs) - self.trace.asked :]))

    def finish(
        self, outputs: Sequence[jax.Array], tensors: list[Tensor], storages: list[DeviceStorage], reached: Reached
    ) -> Tree:
        """Return what the function returns, after every effect was applied."""
        effects = self.effects
        if effects.written:
            for slot, output, as_bytes in effects.written:
                storages[slot].array = Bytes(outputs[output]) if as_bytes else outputs[output]
            increment_version([tensors[self.slots[slot]] for slot, _, _ in effects.written])
        made: dict[int, Tensor] = {}
        for leaf, what in effects.grads:
            tensors[self.leaves[leaf]].grad = rebuild(what, outputs, tensors, made)
        for place, what in effects.places:
            reached.put(place, rebuild(what, outputs, tensors, made))
        for optimizer, tensor, name, what in effects.state:
            reached.optimizers[optimizer].state[tensors[tensor]][name] = rebuild(what, outputs, tensors, made)
        leaves = [rebuild(what, outputs, tensors, made) for what in self.results.leaves]
        if self.results.spec.is_leaf():
            return leaves[0]
        return pytree.tree_unflatten(leaves, self.results.spec)

    def keeps(self, storages: set[int], tensors: list[Tensor]) -> bool:
        """Return whether the function writes to one of these storages, or returns or keeps a tensor on it."""
        effects = self.effects
        stored = (*self.results.leaves, *(kept[-1] for kept in (*effects.grads, *effects.places, *effects.state)))
        touched = [self.slots[slot] for slot, _, _ in effects.written]
        touched += [what.tensor for what in stored if isinstance(what, (Alias, Same))]
        return any(id(storage_of(tensors[i])) in storages for i in touched)

    def simple(self) -> NewTensor | None:
        """Return the one result where the program gives a plain tensor and changes nothing, else None."""
        effects, leaves = self.effects, self.results.leaves
        if effects.written or effects.grads or effects.places or effects.state or not self.results.spec.is_leaf():
            return None
        return leaves[0] if leaves[0].__class__ is NewTensor and leaves[0].plain and leaves[0].output == 0 else None

    def alias_free(self) -> bool:
        """Return whether it does not matter which tensors share a storage: nothing is written, no input comes back."""
        kept = (*self.results.leaves, *(w for _, w in self.effects.grads), *(w for _, w in self.effects.places))
        separate = len(self.slots) == sum(t.device.type == "jax" for t in self.trace.tensors)
        return separate and not self.effects.written and all(w.__class__ in (NewTensor, Constant) for w in kept)


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
        checks.switch.on,
        torch_private.flash_allowed(),
        factory_device(),
    )


def observed() -> bool:
    """Return whether a mode or a transform of the caller's is to see the ops."""
    return factory_device() is MISS or bool(dispatch_modes()) or transform_level() is not None


def factory_device() -> object:
    """Return the device that `torch.set_default_device` or a context gives to factories, or None; MISS in a mode."""
    found = [torch_private.function_mode_at(i) for i in range(function_modes())]
    if not all(isinstance(mode, torch_private.DeviceContext) for mode in found):
        return MISS
    return found[-1].device if found else None


def host_values(tensor: Tensor) -> object:
    """Return a CPU tensor's values, which `.data` and NumPy write without a new version; of a large one the version."""
    if tensor.numel() > _HOST_LIMIT or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return tensor._version
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).numpy().tobytes()


def described(value: Tree) -> object:
    """Return what a program relies on of an argument: shape, strides, dtype of a tensor; the value of anything else.

    Raises TypeError for an argument that may change unseen, and ValueError for a large CPU tensor, or one with a graph.
    """
    if isinstance(value, Tensor):
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


def _device(value: Tensor) -> tuple[object, ...]:
    if value.requires_grad and not value.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"an argument of shape {list(value.shape)} of a jitted function is part of a graph from outside, which a "
            "program cannot reach; pass tensor.detach()"
        )
    held = getattr(storage_of(value), "array", None)
    if held is None:
        raise ValueNeededError(f"a {type(value).__name__} of shape {list(value.shape)} has its values elsewhere")
    return (
        tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad, value.is_leaf,
        raw(held).shape, raw(held).dtype, isinstance(held, Bytes), value.is_conj(), value.is_neg(), type(value),
        mesh_sharding(held),
    )  # fmt: skip


def sharing(tensors: list[Tensor]) -> tuple[int, ...]:
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
        self.versions = [*map(host_values, self.host)]
        self.numbers = [place for o in reached.optimizers for place in hyperparameters(o)]
        self.signs = [*map(sign, self.numbers)]
        self.strides = [*map(Tensor.stride, self.tensors)]
        self.hooks = RemovableHandle.next_id

    def holds(self) -> bool:
        """Return whether the same objects, storages and settings are there, and CPU tensors were not written."""
        return (
            self.hooks == RemovableHandle.next_id  # one that was registered may be anywhere
            and self.reached.unchanged()
            and [*map(id, map(storage_of, self.tensors))] == self.places
            and [*map(_grad_flag, self.tensors)] == self.flags
            and [*map(Tensor.stride, self.tensors)] == self.strides
            and (not self.host or [*map(host_values, self.host)] == self.versions)
            and all(number(place).__class__ is float for place in self.numbers)
            and [*map(sign, self.numbers)] == self.signs
        )

    def key(self) -> tuple[object, ...]:
        host = tuple((id(t), host_values(t)) for t in self.host)
        tensors = tuple(_device(t) for t in self.tensors if t.device.type == "jax")
        held = [id(storage_of(t).array) for t in self.tensors if counts(t)]
        return self.reached.signature(), tensors, host, tuple(self.signs), tuple(map(held.index, held))


_TEMPLATE = """
def fast({names}{comma}*more):
    if more or {modes}: return MISS
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
        if not isinstance(arg, Tensor):
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
    lines.append("if not settings(): return MISS")
    for kind in ("jax", "cpu"):  # of which the guard knows the dtype inside of a region only
        space[f"dtype_{kind}"] = torch.get_autocast_dtype(kind)
        lines.append(f"if dtype_of('{kind}') is not dtype_{kind}: return MISS")
    lines.append(f"if checks.on is not {checks.switch.on}: return MISS")
    lines.append(f"if flash() is not {torch_private.flash_allowed()}: return MISS")
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
    placed = factory_device()
    modes = "functions()" if placed is None else "factory_device() != placed"
    comma = ", " if names else ""
    source = _TEMPLATE.format(names=names, comma=comma, modes=modes, body=body, call=call, result=result)
    space |= {
        "MISS": MISS, "checks": checks.switch, "Stale": Stale, "create": create,
        "distinct": state.distinct, "functions": function_modes, "factory_device": factory_device,
        "flash": torch_private.flash_allowed, "holds": state.holds, "placed": placed,
        "program": entry.jitted, "reached": state.reached, "run": entry, "storage_of": storage_of,
    }  # fmt: skip
    exec(source, space)  # made of numbers and of names given here
    fast: Function = dynamo_skip(space["fast"])
    return fast


def _never(*_: object) -> object:
    return MISS


def _natural(tensor: Tensor) -> bool:
    """Return whether the tensor is the whole of its storage, as its array has it."""
    if tensor.device.type != "jax" or tensor.is_complex() or (tensor.requires_grad and not tensor.is_leaf):
        return False
    return storage_of(tensor).array.shape == tensor.shape and tensor.is_contiguous() and not tensor.is_neg()
