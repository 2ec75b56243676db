"""What a trace touches: every op of the function, forward and backward, is seen, and every value that Python asks for.

Such a value is a number that comes later, or an outcome that the trace assumes.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.library import Library
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction

from ampcheck.jax_device import random, torch_private
from ampcheck.jax_device.annotations import Args, DeviceStorage, Function, Kwargs, Tree
from ampcheck.jax_device.dispatch import checks
from ampcheck.jax_device.dispatch.program import VALUE_NEEDED
from ampcheck.jax_device.jit.state import Traced, TracedNumber
from ampcheck.jax_device.lowering import is_view, overloads
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import Bytes, Layout, alias, raw, storage_of, wrap
from ampcheck.jax_device.torch_private import DisableTorchFunction, include_key, is_functorch_wrapped, pytree, unwrapped
from ampcheck.register import torch_private as dispatcher
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, OpOverload

Value = tuple[str, tuple[int, ...], bytes]
"""What an array held, NaNs and all, for comparisons: dtype, shape, bytes."""


class Asking(BaseException):
    """The trace needs a value that no one knows yet. No Exception, so that nothing of the caller's takes it."""


def value_of(array: jax.Array) -> Value:
    found = np.asarray(array)
    return found.dtype.name, found.shape, found.tobytes()


def array_of(value: Value) -> np.ndarray:
    dtype, shape, content = value
    return np.frombuffer(content, jnp.dtype(dtype)).reshape(shape)


class DeferredNumber(Traced):
    """A number that `item()` gives in a trace, or one computed of it: Python has it after the call.

    `kind`: float, int or bool.
    """

    def __init__(self, traced: TracedNumber, kind: type, asker: OpWatch) -> None:
        self.traced, self.kind, self.asker = traced, kind, asker
        asker.numbers.append(weakref.ref(self))

    @classmethod
    def of(cls, array: jax.Array, asker: OpWatch) -> DeferredNumber:
        """Return the number of an array of one element, weakly typed as a number of Python's is."""
        kind = float if jnp.issubdtype(array.dtype, jnp.floating) else int
        wide = np.dtype(np.float64 if kind is float else np.int64)
        number = jax.lax.convert_element_type_p.bind(array.reshape(()), new_dtype=wide, weak_type=True, sharding=None)
        return cls(number, kind, asker)

    def _with(self, traced: TracedNumber, kind: type | None = None) -> DeferredNumber:
        return DeferredNumber(traced, kind or self.kind, self.asker)

    def _look(self, *_: object) -> NoReturn:
        self.asker.look()

    guard_float = str = _graph_repr = is_integer = sym_sum = _look
    pow = float_pow = _look  # of which Python makes a float, a complex number or an error
    __str__ = _look

    def guard_bool(self, *_: object) -> bool:
        """Decide which way the trace goes."""
        return bool(self.asker.ask(self.traced if self.kind is bool else self.traced != 0))

    def guard_int(self, *_: object) -> int:
        """Return how many: the value of an integer, which is a size or an index as a rule."""
        return int(self.asker.ask(self.traced)) if self.kind is int else self.asker.look()

    int_ = guard_int

    def bool_(self) -> bool:
        return self.guard_bool()

    def maybe_as_int(self) -> None:
        """Return None: the number is not known yet."""

    maybe_as_float = maybe_as_bool = maybe_as_int

    def is_float(self) -> bool:
        return self.kind is float

    def is_int(self) -> bool:
        return self.kind is int

    def is_bool(self) -> bool:
        return self.kind is bool

    def wrap_float(self, number: float) -> DeferredNumber:
        return self._with(number, float)

    def wrap_int(self, number: int) -> DeferredNumber:  # type: ignore[override]
        return self._with(number, int)

    def sym_float(self) -> DeferredNumber:
        return self._with(self.traced * 1.0, float)

    def truediv(self, other: Traced) -> DeferredNumber:
        """Return x / y, where y is a number other than 0, for which Python would raise."""
        if not isinstance(other.traced, (int, float)) or not other.traced:
            self.asker.look()
        return self._with(self.traced / other.traced, float)

    float_truediv = int_truediv = truediv

    def _compare(compute: Function) -> Callable[[DeferredNumber, DeferredNumber], DeferredNumber]:  # type: ignore[misc]
        def method(self: DeferredNumber, other: DeferredNumber) -> DeferredNumber:
            return self._with(compute(jnp.asarray(self.traced), other.traced), bool)

        return method

    eq, ne = _compare(jnp.equal), _compare(jnp.not_equal)
    lt, le = _compare(jnp.less), _compare(jnp.less_equal)
    gt, ge = _compare(jnp.greater), _compare(jnp.greater_equal)


def deferred(value: Tree) -> DeferredNumber | None:
    """Return the node of a number that comes later."""
    symbolic = isinstance(value, (torch.SymFloat, torch.SymInt, torch.SymBool))
    return value.node if symbolic and isinstance(value.node, DeferredNumber) else None


_LIBRARIES = (*(str(Path(module.__file__ or "").parent) for module in (torch, jax)), str(Path(__file__).parents[1]))


class ValueNeededError(RuntimeError):
    """Python needs a value inside of a jitted function, where there are none yet."""


# The key of a device that PyTorch no longer has. A kernel there sees every op of a thread that includes the key,
# above autograd, and may raise in backward; an exception out of a TorchDispatchMode in backward ends the process,
# because PyTorch then calls the device's Python guard while the error is set.
KEY: Any = DispatchKey.AutocastIPU  # type: ignore[attr-defined]
_KEYS = DispatchKeySet(KEY)
_library = Library("_", "IMPL")
_aten = Library("aten", "IMPL")


class _Watching(threading.local):
    watch: OpWatch | None = None


_watching = _Watching()


def _without_dynamo() -> contextlib.AbstractContextManager[object]:
    """Run functions that `torch.compile` made as they are written: Dynamo must make no graph of traced tensors."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    try:
        stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    except RuntimeError:  # in a compiled function, of which this is a graph
        return contextlib.nullcontext()
    return stance


def _flag(wrong: jax.Array) -> None:
    if _watching.watch is not None:
        _watching.watch.flags.append(wrong)


checks.switch.flag = _flag  # type: ignore[method-assign]


def watching() -> bool:
    return _watching.watch is not None


def _seen(op: OpOverload, *args: Tree, **kwargs: Tree) -> Tree:
    """Call the op anew without the key, as numbers among tensors cannot be given to `redispatch`: the fallback."""
    watch = _watching.watch
    with ExcludeDispatchKeyGuard(_KEYS), DisableTorchFunction():
        return op(*args, **kwargs) if watch is None else watch.run(op, args, kwargs)


def _computed_again() -> contextlib.AbstractContextManager[None]:
    return _watching.watch.fenced() if _watching.watch is not None else contextlib.nullcontext()


def _enter(self: Tree) -> None:
    self.again = _computed_again()
    self.again.__enter__()
    super(torch_private.recomputation_hook, self).__enter__()


def _exit(self: Tree, *error: Any) -> None:
    super(torch_private.recomputation_hook, self).__exit__(*error)
    self.again.__exit__(None, None, None)


@cache
def _register() -> None:
    """Have activation checkpointing and DistributedDataParallel tell the watch.

    Put `_seen` under every overload. The fallback alone serves custom ops; under a TorchDispatchMode PyTorch finds
    only kernels of single overloads (`python_op_registration_trampoline`).
    """
    by_torch = CheckpointFunction.backward

    def backward(ctx: Tree, *grads: Tensor) -> Tree:
        with _computed_again():
            return by_torch(ctx, *grads)

    CheckpointFunction.backward = staticmethod(backward)  # type: ignore[method-assign]
    parallel = DistributedDataParallel.forward

    def forward(self: DistributedDataParallel, *args: Tree, **kwargs: Tree) -> Tree:
        if (watch := _watching.watch) is None:
            return parallel(self, *args, **kwargs)
        if self.process_group.size() == 1 and not self._comm_hooks and self.mixed_precision is None:
            return self.module(*args, **kwargs)  # the mean over a mesh is the program's, as a batch lies on all of it
        watch.needed = ValueNeededError(  # before its reducer, which takes no second try, begins
            "DistributedDataParallel averages gradients over processes, casts or calls a hook, as no program does, "
            f"at {caller()}; one process trains on several devices over a mesh (ampcheck.jax_device.mesh.shard)"
        )
        raise watch.needed

    DistributedDataParallel.forward = forward  # type: ignore[method-assign]
    torch_private.recomputation_hook.__enter__, torch_private.recomputation_hook.__exit__ = _enter, _exit
    _library.fallback(_seen, KEY.name)
    for op in overloads():
        _aten.impl(op, partial(_seen, op), KEY.name)
    dispatcher.fallthrough_keys.append(KEY)
    for higher in dispatcher.higher_order_ops.values():  # the ops that they run are seen
        if KEY not in higher.py_kernels:
            higher.fallthrough(KEY)


class Poisoned(BaseException):
    """The function uses a gradient from before the call. No Exception, so that nothing of the caller's takes it."""


def caller(frames: Iterable[tuple[FrameType, int]] | None = None) -> str:
    """Return the nearest line of the stack outside of torch, jax and the device: "file:line (`source`)".

    `frames`: with their lines, the nearest first; those of this call where not given.
    """
    for frame, line in walk_stack(sys._getframe(1)) if frames is None else frames:
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARIES, "<")):
            return f"{name}:{line} (`{linecache.getline(name, line).strip()}`)"
    return "an unknown line"


def value_needed(what: str, place: str) -> ValueNeededError:
    """Return the error that says which op needs a value, and where."""
    return ValueNeededError(
        f"{what} needs a value that a jitted function does not have while it is traced, at {place}; "
        "compute with tensors instead (torch.where, masks), or move this out of the function"
    )


def tensors(values: Iterable[Tree]) -> Iterator[Tensor]:
    """Yield the tensors in an op's arguments or results."""
    for value in values:
        if isinstance(value, Tensor):
            while is_functorch_wrapped(value):  # by vmap or grad, which have no storage of their own
                value = unwrapped(value)
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


_DECIDING = 4096  # elements of a tensor whose values may be part of a program


def _decides(leaf: Tree) -> bool:
    """Return whether an op's argument is a tensor whose values may decide a shape."""
    return (
        isinstance(leaf, Tensor)
        and leaf.device.type == "jax"
        and not leaf.is_floating_point()
        and not leaf.is_complex()
        and leaf.numel() <= _DECIDING
        and isinstance(raw(storage_of(leaf).array), jax.core.Tracer)
    )


class OpWatch:
    """Sorts every storage an op is given: an input of the program, made in the trace, or unknown so far.

    A context manager; inside, it sees the ops of its thread. `assumed`: the values that Python asks for, in order;
    None where it may ask for none.
    """

    def __init__(
        self, inputs: list[DeviceStorage], poison: list[DeviceStorage], assumed: tuple[Value, ...] | None = None
    ) -> None:
        self.assumed = assumed
        self.asked: list[jax.Array] = []
        """The arrays whose values Python asked for."""
        self.numbers: list[weakref.ref[DeferredNumber]] = []
        self.flags: list[jax.Array] = []
        """Whether an op was given wrong values, of each op that is checked."""
        self.outcomes: dict[str, None] = {}
        """The lines at which Python asked for them."""
        self.first: ValueNeededError | None = None
        """Where the first value was needed, be it one that the program has."""
        self._inputs = {id(s) for s in inputs}
        self._poison = {id(s) for s in poison}
        self._known = self._inputs | self._poison
        self._kept = [inputs, poison]  # ids stay their own
        self._made: dict[int, tuple[weakref.ref[DeviceStorage], str, str]] = {}
        self.unknown: dict[int, tuple[DeviceStorage, jax.Array | Bytes, Tensor]] = {}
        self.host: dict[int, tuple[Tensor, int]] = {}
        self._last: jax.Array | None = None
        """What the last op gave."""
        self._fenced: dict[int, tuple[DeviceStorage, jax.Array | Bytes | None, jax.Array | Bytes | None]] | None = None
        """Of what is computed again, by id: storages, their arrays before and behind the barrier; None of new ones."""
        self._behind: Function = lambda array: array
        self.poisoned = False
        self.needed: ValueNeededError | None = None

    def __enter__(self) -> OpWatch:
        _register()
        self._before = _watching.watch
        self._compiler = _without_dynamo()
        self._compiler.__enter__()
        _watching.watch = self
        include_key(KEY, True)
        dispatcher.exclude_key(KEY, False)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: TracebackType | None) -> None:
        _watching.watch = self._before
        self._compiler.__exit__(None, None, None)
        on = self._before is not None
        include_key(KEY, on)
        dispatcher.exclude_key(KEY, not on)
        if isinstance(error, VALUE_NEEDED):  # an array was asked, not a tensor
            raise value_needed("an array of JAX", caller(reversed([*walk_tb(where)]))) from error

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Tree:
        """Look at what an op is given, run it, and note what it made."""
        for tensor in tensors((*args, *kwargs.values())):
            self._see(tensor, func)
            if self._fenced is not None:
                self._fence(tensor, self._fenced)
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        if seeded and any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
            raise self.stop(f"{func.name()} draws numbers of a generator", None)
        profile = sys.getprofile()
        sys.setprofile(None)  # what JAX does is no function of the user's
        try:
            out = func(*args, **kwargs)
        except VALUE_NEEDED as error:
            needed = value_needed(func.name(), caller())
            self.first = self.first or needed
            if self.assumed is None or (out := self._by_value(func, args, kwargs)) is NotImplemented:
                self.needed = needed
                raise needed from error
        finally:
            sys.setprofile(profile)
        if seeded and any(t.device.type == "cpu" for t in tensors(out if isinstance(out, (list, tuple)) else (out,))):
            raise self.stop(f"{func.name()} draws random numbers on the CPU", None)
        for tensor in tensors(out if isinstance(out, (list, tuple)) else (out,)):
            self._note(tensor, func)
            if tensor.device.type == "jax" and isinstance(array := raw(storage_of(tensor).array), jax.core.Tracer):
                self._last = array
                if self._fenced is not None:
                    self._fenced.setdefault(id(storage_of(tensor)), (storage_of(tensor), None, None))
        return out

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Keep apart what is computed inside from the same computation before, with which XLA would merge it.

        What ops inside read from outside goes through a barrier, together with the last result before, as a rule the
        gradient that is waited for: so it is computed after that, and what it gives is in memory from then on only.
        """
        before, after = self._fenced, self._last
        self._fenced = {}

        def behind(array: Any) -> Any:
            return array if after is None else jax.lax.optimization_barrier((array, after))[0]

        self._behind, outer = behind, self._behind
        try:
            with random.rebased(behind):
                yield
        finally:
            for storage, array, kept in self._fenced.values():
                if array is not None and storage.array is kept:
                    storage.array = array
            self._fenced, self._behind = before, outer

    def _fence(self, tensor: Tensor, known: dict[int, Tree]) -> None:
        if tensor.device.type != "jax" or id(storage := storage_of(tensor)) in known:
            return
        found = storage.array
        if not isinstance(raw(found), jax.core.Tracer):
            return
        array = self._behind(raw(found))
        storage.array = Bytes(array) if isinstance(found, Bytes) else array
        known[id(storage)] = storage, found, storage.array

    def stop(self, what: str, place: Iterable[tuple[FrameType, int]] | str | None = None) -> ValueNeededError:
        """Return the error that ends the trace, of what Python does that a program would not do again at each call."""
        line = place if isinstance(place, str) else caller(place)
        self.needed = ValueNeededError(
            f"{what}, which a program would do once, when it is compiled, at {line}; do it outside of the "
            "function and pass the result, or draw on the device (torch.rand)"
        )
        return self.needed

    def refuse_effects(self) -> None:
        """Raise ValueNeededError where Python asked for a value: what it did by it, a later call would not do."""
        if self.first is not None:
            raise self.first

    def ask(self, array: TracedNumber) -> np.ndarray:
        """Return the value that this trace assumes of an array, which the program checks; raise Asking if unknown."""
        self.asked.append(cast(jax.Array, array))
        self.outcomes[caller()] = None
        if len(self.asked) > len(self.assumed or ()):
            raise Asking
        return array_of((self.assumed or ())[len(self.asked) - 1])

    def ask_checks(self) -> None:
        """Have the function run eagerly, where a check finds wrong values and raises, if the program found some."""
        lines = dict(self.outcomes)
        wrong = self.flags and self.assumed is not None and self.ask(jnp.any(jnp.stack(self.flags)))
        self.outcomes = lines  # of the user's, who did not ask for this value
        if wrong:
            self.needed = ValueNeededError(
                "an op was given values that PyTorch refuses, which torch.jax.set_checks shows"
            )
            raise self.needed

    def look(self) -> NoReturn:
        """Raise ValueNeededError for a number of which Python needs the value."""
        self.needed = value_needed("aten::item", caller())
        raise self.needed

    def _by_value(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Tree:
        """Run an op that needs values by a number that comes later or by assumed ones, else return NotImplemented."""
        name, given = func._schema.name, [*tensors((*args, *kwargs.values()))]
        if any(is_functorch_wrapped(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            return NotImplemented
        if name == "aten::is_nonzero":
            return bool(self.ask(transfer.values(given[0]).reshape(()) != 0))
        if name == "aten::equal":
            return bool(self.ask(jax.numpy.array_equal(transfer.values(given[0]), transfer.values(given[1]))))
        if name in ("aten::item", "aten::_local_scalar_dense"):
            array = transfer.values(given[0])
            if array.size != 1 or array.dtype.kind == "c":
                return NotImplemented
            if array.dtype == bool:
                return bool(self.ask(array.reshape(())))
            node = DeferredNumber.of(array, self)
            return torch.SymFloat(node) if node.kind is float else torch.SymInt(node)
        if func._schema.returns and all("Tensor" in str(r.type) for r in func._schema.returns):
            return self._by_arguments(func, args, kwargs)
        return NotImplemented

    def _by_arguments(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Tree:
        """Run an op of which integers and masks decide a shape, or return NotImplemented.

        It takes assumed values of as many arguments as it needs, from the last on.
        """
        given = [*args]
        for i in reversed(range(len(given))):
            if not any(_decides(leaf) for leaf in pytree.tree_leaves(given[i])):
                continue
            given[i] = pytree.tree_map(lambda leaf: self._assumed(leaf) if _decides(leaf) else leaf, given[i])
            traced = any(
                isinstance(raw(storage_of(t).array), jax.core.Tracer) for t in tensors((*given, *kwargs.values()))
            )
            try:
                with contextlib.nullcontext() if traced else jax.ensure_compile_time_eval():
                    out = func(*given, **kwargs)
            except VALUE_NEEDED:
                continue
            made = [*tensors(out if isinstance(out, (list, tuple)) else (out,))]
            if any(tensor.device.type != "jax" for tensor in made):
                return NotImplemented
            for storage in {id(s): s for s in map(storage_of, made)}.values():  # traced, so that it is seen to escape
                storage.array = jax.lax.optimization_barrier(storage.array)
            return out
        return NotImplemented

    def _assumed(self, tensor: Tensor) -> Tensor:
        with jax.ensure_compile_time_eval():
            return wrap(jax.numpy.asarray(self.ask(transfer.values(tensor))))

    def _see(self, tensor: Tensor, func: OpOverload) -> None:
        if tensor.device.type == "cpu":
            if func is torch.ops.aten.lift_fresh.default:
                self._note(tensor, func)  # torch.tensor(...) makes its tensor unseen
            elif tensor.dim() and not self.is_made(storage_of(tensor)):
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
            without_graph = alias(tensor, *Layout.of(tensor))
            self.unknown[id(storage)] = (storage, found, without_graph)

    def _note(self, tensor: Tensor, func: OpOverload) -> None:
        if tensor.device.type == "meta":
            return
        storage = storage_of(tensor)
        if (
            id(storage) in self._known
            or id(storage) in self.unknown
            or id(storage) in self.host
            or self.is_made(storage)
        ):
            return
        self._made[id(storage)] = (weakref.ref(storage), func.name(), caller())

    def is_made(self, storage: DeviceStorage) -> bool:
        """Return whether an op of the trace made the storage."""
        found = self._made.get(id(storage))
        return found is not None and found[0]() is storage

    def check_numbers(self) -> None:
        """Raise ValueNeededError where something holds a number of the trace."""
        for collect in (lambda: 0, gc.collect):
            collect()
            if all(ref() is None for ref in self.numbers):
                return
        self.refuse_effects()

    def alive(self) -> list[tuple[DeviceStorage, str, str]]:
        """Return the device storages made in the trace that something still holds, with the op and the line of each."""
        held = ((ref(), op, line) for ref, op, line in self._made.values())
        return [
            (s, op, line)
            for s, op, line in held
            if s is not None and isinstance(raw(getattr(s, "array", None)), jax.core.Tracer)
        ]

    def wipe(self) -> None:
        """Take the traced arrays from the storages that outlive the trace."""
        for storage, _, _ in self.alive():
            del storage.array
        self._made.clear()


class _InATrace:
    """Whether this thread is traced by `jit`, in the place of a flag that keeps `flex_attention` from compiling."""

    def __init__(self, flag: bool) -> None:
        self._flag = flag

    def __bool__(self) -> bool:
        return self._flag or watching()


def install_flex() -> None:
    """Let `flex_attention` take tensors of the device, which PyTorch refuses by their name, once a process.

    Eagerly and in `torch.compile` PyTorch's own way serves: its operator, run by plain ops. `flex_attention` itself
    calls `torch.compile`, which cannot be done in the middle of a trace of `jit`; there the plain ops run without it.
    """
    module = torch_private.flex_attention_function
    code = module._validate_device.__code__
    # The function stays PyTorch's own, which Dynamo follows; the names of devices are a constant in it.
    known = [c | {"jax"} if isinstance(c, frozenset) and "cuda" in c else c for c in code.co_consts]
    module._validate_device.__code__ = code.replace(co_consts=tuple(known))
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _InATrace(module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)
    # In a trace autograd differentiates the ops, with respect to what score_mod reads as well.
    flex_attention = dispatcher.flex_attention
    flex_attention.py_impl(KEY)(flex_attention.py_kernels[DispatchKey.CompositeExplicitAutograd])
