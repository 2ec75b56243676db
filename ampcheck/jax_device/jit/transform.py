"""`jit`: a PyTorch function on the jax device, forward, backward and optimizer update, as one XLA program."""

import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, overload

import jax
import torch

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import Args, Function, Kwargs, Tree
from ampcheck.jax_device.jax_private import traced
from ampcheck.jax_device.jit.entry import (
    MISS,
    Entry,
    JitState,
    Run,
    Stale,
    described,
    generated,
    modes,
    observed,
    sharing,
)
from ampcheck.jax_device.jit.reads import Places
from ampcheck.jax_device.jit.state import PLAIN, Concretize, make_static, reach
from ampcheck.jax_device.jit.trace import Restart, StepCall, grad_leaves, trace, tracing
from ampcheck.jax_device.jit.watch import Value, ValueNeededError
from ampcheck.jax_device.storage.arrays import copy_of_slice, is_slice, refuse, storage_of
from ampcheck.jax_device.torch_private import pytree


@dataclass(frozen=True)
class Bucket:
    """The sizes that a dimension of an argument is padded to, at its end, with `value`.

    Raises ValueError where `sizes` is empty or holds what is no positive integer.
    """

    sizes: tuple[int, ...]
    dim: int = 0
    value: float = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes)))
        if not self.sizes or any(type(size) is not int or size < 1 for size in self.sizes):
            raise ValueError(f"the sizes of a bucket are positive integers, at least one; got {list(self.sizes)}")

    def pad(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Return the tensor on the jax device, padded to the least size that takes it; itself if it has that size."""
        if not -tensor.ndim <= self.dim < tensor.ndim:
            raise ValueError(f"buckets pad dimension {self.dim} of {name}, which has shape {list(tensor.shape)}")
        if tensor.requires_grad:
            raise ValueError(f"buckets pad {name}, which requires grad; pass tensor.detach(), or pad it in the step")
        size = tensor.shape[self.dim]
        bucket = next((each for each in self.sizes if each >= size), None)
        if bucket is None:
            largest = self.sizes[-1]
            raise ValueError(f"dimension {self.dim} of {name} has size {size}, its largest bucket {largest}; give more")
        if bucket == size:
            return tensor.to("jax")
        # On the host: a program that pads would be compiled for each size, which is what buckets are to spare.
        after = [0, 0] * (tensor.ndim - 1 - self.dim % tensor.ndim)
        return torch.nn.functional.pad(tensor.cpu(), (*after, 0, bucket - size), value=self.value).to("jax")


Buckets = Mapping[str, Bucket | Iterable[Bucket]]
"""By the name of a parameter, or `parameter.key` where the argument is a dictionary."""


class Padding:
    """What pads the arguments of one function.

    Raises TypeError for what are no buckets, ValueError for a name that the function has no parameter of.
    """

    def __init__(self, function: Function, buckets: Buckets) -> None:
        self.signature = inspect.signature(function)
        self.buckets = {
            name: (each,) if isinstance(each, Bucket) else tuple(each) for name, each in dict(buckets).items()
        }
        kinds = {p.kind: p.name for p in self.signature.parameters.values()}
        self.rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
        for name, given in self.buckets.items():
            if not given or not all(isinstance(each, Bucket) for each in given):
                raise TypeError(f"buckets of {name!r} are no Bucket: {given!r}")
            if not self.rest and name.split(".")[0] not in self.signature.parameters:
                raise ValueError(
                    f"buckets name {name!r}; the parameters are {', '.join(self.signature.parameters) or 'none'}"
                )

    def around(self, function: Function) -> Function:
        """Return the function with padded arguments. It raises RuntimeError if it wrote one that is a padded copy."""

        def bucketed(*args: Tree, **kwargs: Tree) -> Tree:
            args, kwargs, made = self(args, kwargs)
            out = function(*args, **kwargs)
            for name, (tensor, version) in made.items():
                if tensor._version != version:
                    raise RuntimeError(f"the step wrote {name}, of which it has a padded copy: the write is lost")
            return out

        return bucketed

    def __call__(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any, dict[str, tuple[torch.Tensor, int]]]:
        """Pad the arguments; return them and the name and version of each padded tensor. A None stays None."""
        bound = self.signature.bind(*args, **kwargs)
        made: dict[str, tuple[torch.Tensor, int]] = {}
        for name, buckets in self.buckets.items():
            parameter, *keys = name.split(".", 1)
            holder = bound.arguments
            if self.rest and parameter not in self.signature.parameters:
                holder = bound.arguments.setdefault(self.rest, {})
            if holder.get(parameter) is None:
                continue
            for key in keys:
                if not isinstance(holder[parameter], dict) or key not in holder[parameter]:
                    raise TypeError(f"buckets name {name!r}, and {parameter} is no dictionary with that key")
                holder[parameter] = dict(holder[parameter])
                holder, parameter = holder[parameter], key
            tensor = given = holder[parameter]
            if not isinstance(given, torch.Tensor):
                raise TypeError(f"buckets pad {name}, which is no tensor but a {type(given).__name__}")
            for bucket in buckets:
                tensor = bucket.pad(tensor, name)
            if tensor is not given:
                holder[parameter] = tensor
                if not tensor.is_inference():  # which has no version
                    made[name] = tensor, tensor._version
        return bound.args, bound.kwargs, made


__all__ = ["JittedFunction", "ValueNeededError", "jit"]


class JittedFunction(Protocol):
    """A function that `jit` made."""

    lower: Function
    program: Function
    compiles: int

    def __call__(self, *args: Tree, **kwargs: Tree) -> Tree: ...


@overload
def jit(
    fn: Function, *, donate: bool = True, warn_after: int = 16, fullgraph: bool = False, buckets: Buckets | None = None
) -> JittedFunction: ...
@overload
def jit(
    fn: None = ..., *, donate: bool = ..., warn_after: int = ..., fullgraph: bool = ..., buckets: Buckets | None = ...
) -> Callable[[Function], JittedFunction]: ...
def jit(
    fn: Function | None = None,
    *,
    donate: bool = True,
    warn_after: int = 16,
    fullgraph: bool = False,
    buckets: Buckets | None = None,
) -> JittedFunction | Callable[[Function], JittedFunction]:
    """Compile a function of tensors, modules, optimizers and Python values whole; also a decorator.

    State that the function reaches (parameters, buffers, gradients, optimizer state, a scaler's scale, random numbers)
    goes in and out of the program. `donate` lets XLA overwrite state in place; after `warn_after` traces a
    UserWarning says what differs from call to call. A branch by a value has a program for each outcome, and other calls
    in which Python looks at a value run eagerly; a UserWarning says where that was. With `fullgraph` they raise
    ValueNeededError. `buckets` has, by the name of a parameter, the sizes that its argument is padded to, each of which
    is one program. The result has `lower(*args, **kwargs)`, JAX's `Lowered`, `program(*args, **kwargs)`, the same for
    another platform to lower, and `compiles`, how many programs were made. docs/jax_device.md says what is an input,
    what makes a new program and what is an error.

    Raises RuntimeError for what a program cannot do.
    """
    if fn is None:
        return functools.partial(jit, donate=donate, warn_after=warn_after, fullgraph=fullgraph, buckets=buckets)
    padding = Padding(fn, buckets) if buckets is not None else None
    return _Jitted(fn, donate, warn_after, fullgraph, padding).function()


_OUTCOMES = 8  # programs for calls of one kind that differ in the values Python asked for; with more it runs eagerly
_MASKS = 3  # as many, where it asked for those of a whole tensor
_ASKED = 16  # values that one call asks for; with more it runs eagerly
_TRIES = 3  # traces for arguments of one kind that needed a value, each with other state; afterwards none is made


class _Jitted:
    """The programs of one function, and the way to the right one."""

    def __init__(self, fn: Function, donate: bool, warn_after: int, fullgraph: bool, padding: Padding | None) -> None:
        self.fn, self.donate, self.warn_after, self.fullgraph, self.padding = fn, donate, warn_after, fullgraph, padding
        self.needed: dict[object, dict[object, str]] = {}  # by arguments, then by state: which value a trace needed
        self.warned: set[str] = set()
        self.traces = 0
        self.entries: dict[object, Entry] = {}
        self.recent: dict[object, Entry] = {}
        self.state: JitState | None = None
        self.read = Places()
        self.fast: Function = _miss
        self.last: object = None
        self.keeps_slices = False

    def function(self) -> JittedFunction:
        """Return the function that the user calls: the fast path, then the general one."""

        def jitted(*args: Tree, **kwargs: Tree) -> Tree:
            try:
                if not kwargs:
                    out = self.fast(*args)
                    if out is not MISS:
                        return out
                return self.call(args, kwargs)
            except jax.errors.JaxRuntimeError as error:
                refuse(error)
                raise

        self.wrapped = cast(JittedFunction, jitted if self.padding is None else self.padding.around(jitted))
        present = [n for n in functools.WRAPPER_ASSIGNMENTS if hasattr(self.fn, n)]
        functools.update_wrapper(self.wrapped, self.fn, assigned=present, updated=())
        self.wrapped.lower, self.wrapped.program = self.lower, self.program
        self.wrapped.compiles = 0
        return self.wrapped

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def call(self, args: Args, kwargs: Kwargs) -> Tree:
        """Find the program of a call and run it, on the general way."""
        # The caller is to see op by op what would be one program, or makes it part of its own.
        if tracing.active or observed() or traced():
            return self.fn(*args, **kwargs)
        try:
            entry, call = self._sliced(args, kwargs) or self.entry(args, kwargs)
            found = self._run(entry, call)
        except ValueNeededError as error:
            if self.fullgraph:
                raise
            self._warn_once(
                str(error),
                f"jit runs {self.name} eagerly, as {error}. This holds for arguments of the kind of this call's; what "
                "the function printed before that line is printed twice in this call. jit(fn, fullgraph=True) makes "
                "this an error",
            )
            found = None
        except Stale:  # an array took another shape under the same tensors
            self._forget()
            return self.call(args, kwargs)
        if found is None:  # here, so that nothing keeps the frames of the trace
            return self.fn(*args, **kwargs)
        for clock in found[0].trace.reads.clocks:
            self._warn_once(clock, f"jit keeps what {clock} gave when {self.name} was traced; pass it as an argument")
        for place in found[0].trace.outcomes:
            self._warn_once(
                place,
                f"jit makes a program of {self.name} for each outcome of {place}, up to {_OUTCOMES}, and waits for the "
                "outcome in each call; what the function prints is printed when it is traced. Compute with tensors "
                "instead (torch.where, masks) for one program. jit(fn, fullgraph=True) makes this an error",
            )
        return found[0].finish(*found[1], call.reached)

    def _sliced(self, args: Args, kwargs: Kwargs) -> tuple[Entry, StepCall] | None:
        """Return the program for copies of the arguments that are slices, so that no offset makes another program.

        None where no argument is one, or where the function writes to what it lies on or returns a view of it.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        slices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and is_slice(leaf)]
        if not slices or self.keeps_slices:
            return None
        kept = {id(storage_of(leaves[i])) for i in slices}
        for i in slices:
            leaves[i] = copy_of_slice(leaves[i])
        kept |= {id(storage_of(leaves[i])) for i in slices}
        entry, call = self.entry(*pytree.tree_unflatten(leaves, spec))
        self.keeps_slices = entry.keeps(kept, entry.tensors(call.arguments, call.reached))
        return None if self.keeps_slices else (entry, call)

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self.warned:
            self.warned.add(what)
            warnings.warn(text, UserWarning, stacklevel=4)

    def _run(self, entry: Entry, call: StepCall) -> tuple[Entry, Run]:
        """Find the program whose values are this call's, and what it computed; the one that ran last is tried first.

        Up to the first value that differs, those of a program are what the function asks for.
        """
        known: tuple[Value, ...] = ()
        drawn = random.default.drawn
        for _ in range(_OUTCOMES + 1):
            random.default.drawn = drawn  # each of them draws the same key
            found = entry.run(call.arguments, call.reached)
            if not entry.known:
                return entry, found
            values, others = entry.values(found[0]), entry.others
            if values == entry.known:
                others.remove(entry)
                others.append(entry)
                return entry, found
            same = [*map(operator.eq, values, entry.known)]
            known = values[: same.index(False) + 1]
            grads = _grads(call)
            if other := next((e for e in reversed(others) if e.takes(known, grads)), None):
                entry = other
            elif len(others) < (_OUTCOMES if all(size == () for _, size, _ in known) else _MASKS):
                entry = self._program(call, known, others)
            else:
                break
        random.default.drawn = drawn
        self._forget()
        self.entries = {key: e for key, e in self.entries.items() if e not in entry.others}
        places = ", ".join(dict.fromkeys(place for e in entry.others for place in e.trace.outcomes))
        needed = f"there were more than {len(entry.others)} outcomes of {places}"
        kind, key = entry.key
        self.needed.setdefault(kind, {})[key] = needed
        raise ValueNeededError(needed)

    def lower(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Return JAX's `Lowered` of the program for these arguments; `.as_text()` is StableHLO. Nothing is executed."""
        entry, inputs = self._inputs(args, kwargs)
        return entry.jitted.lower(*inputs)

    def program(self, *args: Tree, **kwargs: Tree) -> tuple[Function, list[jax.ShapeDtypeStruct]]:
        """Return the program for these arguments, as JAX has jitted it, and what its inputs are. Nothing is executed.

        `function.trace(*structs).lower(lowering_platforms=("tpu",))` lowers it for another platform. State comes in as
        inputs; a number of Python's, such as a learning rate, is a weakly typed scalar.
        """
        entry, inputs = self._inputs(args, kwargs)
        avals = [jax.typeof(given) for given in inputs]
        return entry.jitted, [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]

    def _inputs(self, args: Args, kwargs: Kwargs) -> tuple[Entry, list[jax.Array]]:
        """Return the program for these arguments, and its inputs as they are now; no random number is drawn."""
        if self.padding is not None:
            args, kwargs, _ = self.padding(args, kwargs)
        entry, call = self._sliced(args, kwargs) or self.entry(args, kwargs)
        tensors = entry.tensors(call.arguments, call.reached)
        storages = [storage_of(tensors[i]) for i in entry.slots]
        return entry, entry.inputs(storages, call.reached, drawing=False)

    def entry(self, args: Args, kwargs: Kwargs) -> tuple[Entry, StepCall]:
        """Return the program for these arguments, compiled where there is none yet."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        arguments = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        state = self._state([leaf for leaf in leaves if not isinstance(leaf, PLAIN)])
        call = StepCall(self.fn, args, kwargs, arguments, state.reached)
        shared = sharing([*arguments, *state.reached.tensors])
        kind = (spec, tuple(map(described, leaves)), modes())
        given = (kind, shared)
        grads = _grads(call)
        entry = self.recent.get(given) or self.recent.get((given, grads))
        if entry is None or not entry.current():
            key = (given, state.key())
            entry = self.entries.get(key) or self.entries.get((key, grads))
            if entry is None or not entry.current():
                try:
                    entry = self._compile(call, (kind, key))
                except (Concretize, Restart) as error:
                    if isinstance(error, Concretize):
                        make_static(error.place)
                    self._forget()
                    return self.entry(args, kwargs)
                key = (given, state.key())  # with what the trace was seen to read
                entry.key = (kind, key)
                self.entries[(key, grads) if entry.reads_grads else key] = entry
            self.recent[(given, grads) if entry.reads_grads else given] = entry
        if not kwargs:
            self.fast = _miss if entry.known else generated(entry, args, state)
        return entry, call

    def _forget(self) -> None:
        self.state, self.fast = None, _miss
        self.recent.clear()

    def _state(self, objects: list[Tree]) -> JitState:
        """Return what the function reaches: from the last call where nothing changed, else walked anew."""
        state = self.state
        arguments = [o for o in objects if not isinstance(o, torch.Tensor)]
        if state is None or [*map(id, arguments)] != state.arguments or not state.holds():
            self._forget()
            state = self.state = JitState(reach(self.fn, tuple(arguments), self.read), arguments)
        return state

    def _compile(self, call: StepCall, place: tuple[object, object]) -> Entry:
        kind, key = place
        needed = self.needed.get(kind, {})
        if key in needed or len(needed) == _TRIES:
            raise ValueNeededError(needed.get(key) or next(reversed(needed.values())))
        self._count(key)
        try:
            entry = self._program(call)
        except ValueNeededError as error:
            self._forget()
            if not self.fullgraph:
                self.needed.setdefault(kind, {})[key] = str(error)
            raise
        entry.key = place
        return entry

    def _program(self, call: StepCall, known: tuple[Value, ...] = (), others: list[Entry] | None = None) -> Entry:
        """Return the program of a call that asks for these values first, among others of its kind.

        What it asks for besides is computed by programs of its own, which end there.
        """
        drawn = random.default.drawn
        while True:
            traced = trace(call, None if self.fullgraph else known)
            entry = Entry(traced, call.reached, self.donate, known)
            if traced.whole:
                break
            if len(known) == _ASKED:
                raise ValueNeededError(f"it needs more than {_ASKED} values, at {', '.join(traced.outcomes)}")
            known = entry.values(entry.run(call.arguments, call.reached)[0])
            random.default.drawn = drawn
        self.wrapped.compiles += 1
        entry.grads = _grads(call)
        if others:
            entry.others, entry.key = others, others[0].key
            others.append(entry)
        return entry

    def _count(self, key: object) -> None:
        self.traces += 1
        if self.traces == self.warn_after:
            warnings.warn(
                f"jit traced {self.name} {self.warn_after} times; from the last trace to this one changed: "
                f"{difference(self.last, key)}",
                UserWarning,
                stacklevel=6,
            )
        self.last = key


def _miss(*_: object) -> Tree:
    return MISS


def _grads(call: StepCall) -> Tree:
    """Return which leaves have a gradient, and of what kind."""
    return tuple(
        None if leaf.grad is None else described(leaf.grad) for leaf in grad_leaves(call.arguments, call.reached)
    )


def difference(before: object, now: object) -> str:
    """Return the first place at which two keys differ, in words."""
    if type(before) is type(now) is tuple:
        for b, n in zip(before, now, strict=False):
            if b != n:
                return difference(b, n)
        before, now = f"{len(before)} settings", len(now)
    return f"{before} became {now}"
