"""A compiled function for one kind of call: its program, and how a call feeds it and takes its results."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.sharding import NamedSharding
from torch.autograd.graph import increment_version

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import DeviceStorage, Tree
from ampcheck.jax_device.jit.optim import hyperparameters
from ampcheck.jax_device.jit.results import Constant, NewTensor, rebuild
from ampcheck.jax_device.jit.state import Reached
from ampcheck.jax_device.jit.trace import StepTrace, grad_leaves
from ampcheck.jax_device.jit.values import Value, value_of
from ampcheck.jax_device.jit.watch import raw
from ampcheck.jax_device.storage.arrays import Bytes, storage_of
from ampcheck.jax_device.torch_private import pytree

Run = tuple[Sequence[jax.Array], list[torch.Tensor], list[DeviceStorage]]
"""What a program computed, and the tensors and storages that it may touch."""
# What holds an array that only its storage has: the storage, the list of a call's arrays, and the question itself.
_ALONE = 3


class Stale(Exception):
    """The arrays are of other shapes or dtypes than those the program was traced with."""


def folded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Make conversions of the program's own numbers, e.g. of a relu's 0 to bfloat16, into constants."""
    jaxpr, values = closed.jaxpr, dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    numbers: dict[object, Tree] = {v: value for v, value in values.items() if not v.aval.shape}
    eqns = []
    for eqn in jaxpr.eqns:
        v: Tree = eqn.invars[0] if eqn.primitive.name == "convert_element_type" else None
        if v is None or v.aval.shape or not (isinstance(v, Literal) or v in numbers):
            eqns.append(eqn)
            continue
        number = v.val if isinstance(v, Literal) else numbers[v]
        numbers[eqn.outvars[0]] = np.asarray(number).astype(eqn.params["new_dtype"])
    values |= numbers
    return ClosedJaxpr(jaxpr.replace(constvars=list(values), eqns=eqns), list(values.values()))


def _alike(one: Tree, other: Tree) -> bool:
    """Return whether an array of the one kind can be written over one of the other."""
    return bool(one.shape == other.shape and one.dtype == other.dtype)


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
        # An array costs less than a tuple of one.
        self.bare = trace.whole and not trace.asked and self.simple() is not None
        self._compile(donate and not trace.asked)  # the state is needed again where the values are others
        self.host = [(t, t._version) for t in trace.host]
        self.writes = {self.slots[slot] for slot, _, _ in self.effects.written}

    def _compile(self, donate: bool) -> None:
        closed = folded(self.trace.closed)
        invars = closed.jaxpr.invars
        # What no equation reads is no input of the compiled program: each costs a check and a transfer a call.
        needed = {id(v) for eqn in closed.jaxpr.eqns for v in eqn.invars} | {id(v) for v in closed.jaxpr.outvars}
        self.used = [i for i in range(len(self.slots)) if id(invars[i]) in needed]
        self.numbered = [i for i in range(self.trace.numbers) if id(invars[len(self.slots) + i]) in needed]
        keyed = id(invars[-1]) in needed
        self.random = keyed
        places = [*self.used, *(len(self.slots) + i for i in self.numbered), *([len(invars) - 1] if keyed else [])]
        outs = [v.aval for v in closed.jaxpr.outvars]
        written = {slot for slot, out, _ in self.effects.written if _alike(invars[slot].aval, outs[out])}
        self.donated = [k for k, slot in enumerate(self.used) if slot in written] if donate else []
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

        kept = {output: self._sharding(slot) for slot, output, _ in self.effects.written}
        shardings = tuple(kept.get(i) for i in range(len(closed.jaxpr.outvars)))
        if any(s is not None for s in shardings):  # state stays spread over the mesh as it is
            self.jitted = jax.jit(program, donate_argnums=tuple(self.donated), out_shardings=shardings)
        else:
            self.jitted = jax.jit(program, donate_argnums=tuple(self.donated))

    def _sharding(self, slot: int) -> NamedSharding | None:
        found = raw(storage_of(self.trace.tensors[self.slots[slot]]).array).sharding
        return found if isinstance(found, NamedSharding) else None

    def takes(self, known: tuple[Value, ...], grads: Tree) -> bool:
        """Return whether it may be the program of a call with these first values, and gradients of this kind."""
        return self.known[: len(known)] == known and (not self.reads_grads or self.grads == grads)

    def tensors(self, arguments: list[torch.Tensor], reached: Reached) -> list[torch.Tensor]:
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
                given[k] = raw(given[k]).copy()  # someone else has this array too
        given = [raw(g) for g in given]
        if self.numbered:
            numbers = [g[k] for o in reached.optimizers for g, k in hyperparameters(o)]
            given += [numbers[i] for i in self.numbered]
        if self.random:
            given.append(random.default.key() if drawing else np.zeros(2, np.uint32))
        return given

    def __call__(self, arguments: list[torch.Tensor], reached: Reached) -> Tree:
        """Run the program on these arguments and take over what it changed."""
        return self.finish(*self.run(arguments, reached), reached)

    def run(self, arguments: list[torch.Tensor], reached: Reached) -> Run:
        """Return what the program computes of these arguments; the tensors and storages that it may touch."""
        tensors = self.tensors(arguments, reached)
        storages = [storage_of(tensors[i]) for i in self.slots]
        outputs = self.jitted(*self.inputs(storages, reached))
        return (outputs,) if self.bare else outputs, tensors, storages

    def values(self, outputs: Sequence[jax.Array]) -> tuple[Value, ...]:
        """Return the values that Python asked for, as they are in this call."""
        return tuple(map(value_of, outputs[len(outputs) - self.trace.asked :]))

    def finish(
        self, outputs: Sequence[jax.Array], tensors: list[torch.Tensor], storages: list[DeviceStorage], reached: Reached
    ) -> Tree:
        """Return what the function returns, after every effect was applied."""
        effects = self.effects
        if effects.written:
            for slot, output, as_bytes in effects.written:
                storages[slot].array = Bytes(outputs[output]) if as_bytes else outputs[output]
            increment_version([tensors[self.slots[slot]] for slot, _, _ in effects.written])
        made: dict[int, torch.Tensor] = {}
        for leaf, what in effects.grads:
            tensors[self.leaves[leaf]].grad = rebuild(what, outputs, tensors, made)
        for place, what in effects.places:
            reached.holders[place][reached.keys[place]] = rebuild(what, outputs, tensors, made)
        for optimizer, tensor, name, what in effects.state:
            reached.optimizers[optimizer].state[tensors[tensor]][name] = rebuild(what, outputs, tensors, made)
        leaves = [rebuild(what, outputs, tensors, made) for what in self.results.leaves]
        if self.results.spec.is_leaf():
            return leaves[0]
        return pytree.tree_unflatten(leaves, self.results.spec)

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
