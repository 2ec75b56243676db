"""From a call to its compiled XLA program: one per overload, shapes, dtypes, strides and static arguments.

The first call of a kind asks PyTorch's Meta kernel what comes out (shapes, strides, dtypes, and the errors PyTorch
raises), and makes a `jax.jit` function that reads the tensors from their storages' arrays, runs the lowering and puts
the results into PyTorch's dtypes. Later calls find that function by a key. A loop that compiles an op for new shapes
again and again gets a warning; the first step of a model compiles for many shapes too, but not in one module.
"""

import contextlib
import ctypes
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ampcheck.jax_device import jax_private, random
from ampcheck.jax_device.annotations import NAME, Args, Kernel, Kwargs, Tree
from ampcheck.jax_device.dispatch import checks
from ampcheck.jax_device.dtypes import check_one_dtype, check_promotion, common_dtype, convert, jax_dtype, torch_dtype
from ampcheck.jax_device.lowering import Argument, Kind, Lowering, arguments, compiled, short_name
from ampcheck.jax_device.random import RawKey
from ampcheck.jax_device.storage import arrays, transfer
from ampcheck.jax_device.storage.arrays import Layout, Place, contents, contiguous, create, storage_of, wrap
from ampcheck.jax_device.torch_private import DisableTorchFunction, conj, disable_current_modes, neg_view, pytree
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, OpOverload


class Slot(NamedTuple):
    """How a tensor argument is read: which of the program's arrays it lies in, its place there, its PyTorch dtype.

    `conj` and `neg` are PyTorch's lazy bits: some overloads (mm, clone) get tensors that have them. `begins`: which of
    the program's numbers is the offset, None where this is part of the layout. `shape`: see `Place`.
    """

    place: int
    layout: Layout | None
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False
    begins: int | None = None
    shape: tuple[int, ...] | None = None


class NumberSlot(NamedTuple):
    """A number that is given anew at each call: which of the program's numbers, and its Python type."""

    place: int
    kind: type


class Fixed(NamedTuple):
    """A number that is part of the program. Its type is kept beside it, because 1, 1.0 and True are equal."""

    kind: type
    value: complex


Taken = Any
"""An argument as a program is found by it: slots and fixed numbers in tuples, or a plain value."""
Key = tuple[Any, ...]
"""What programs are found by; it is hashed."""


symbols: dict[str, torch.SymFloat] = {}
"""Numbers that jit traces, by the arguments for which PyTorch takes no symbol: those of a fused step, while it runs."""


class Call:
    """The arguments of one call, taken apart into a key, arrays and numbers."""

    def __init__(
        self, name: str, named: Mapping[str, Argument], static: bool, args: Sequence[Tree], kwargs: Kwargs
    ) -> None:
        self.arrays: list[jax.Array | np.ndarray] = []
        self.numbers: list[Tree] = []
        self.generator: torch.Generator | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._name, self._static = name, static
        given = [(a, self._taken(a, value)) for a, value in zip(named.values(), args, strict=False)]
        by_name = {key: self._taken(named[key], value) for key, value in kwargs.items()}
        self.args = tuple(value for a, value in given if a.kind is not Kind.GENERATOR)
        self.kwargs = {key: value for key, value in by_name.items() if named[key].kind is not Kind.GENERATOR}
        # The default dtype is that of factories, and of what an op computes of integers.
        self.key = (self.args, tuple(self.kwargs.items()), tuple(self._shapes), torch.get_default_dtype())

    def _taken(self, argument: Argument, value: Tree) -> Taken:
        kind = argument.kind
        if kind is Kind.TENSOR:
            return self._tensor(value)
        if kind is Kind.TENSORS:
            return tuple(self._tensor(v) for v in value) if value is not None else None
        if kind is Kind.GENERATOR:
            self.generator = value
            return None
        if kind is Kind.NUMBER:
            return self._number(symbols.get(argument.name, value))
        if kind is Kind.NUMBERS:
            return tuple(self._number(v) for v in value)
        return tuple(value) if isinstance(value, (list, torch.Size)) else value

    def _number(self, value: Tree) -> Taken:
        if value is None or isinstance(value, str):
            return value
        # A `SymFloat` is no float to isinstance, and must not be asked for its value.
        if value.__class__ is torch.SymFloat:  # a number that jit traces
            self.numbers.append(value.node.traced)
            return NumberSlot(len(self.numbers) - 1, torch.SymFloat)
        if self._static:
            return Fixed(type(value), value)
        self.numbers.append(value)
        return NumberSlot(len(self.numbers) - 1, type(value))

    def _tensor(self, value: Tree) -> Taken:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        if value.device.type != NAME:
            value = transfer.guest(value, self._name)
            if not isinstance(value, torch.Tensor):
                self.arrays.append(value)
                self._shapes.append(())
                return Slot(len(self.arrays) - 1, None, torch_dtype(value.dtype))
        array = contents(value)
        self.arrays.append(array)
        self._shapes.append(array.shape)
        # Most tensors are all of their storage: no layout is then part of the key, nor read in the program.
        natural = array.shape == value.shape and value.is_contiguous()
        layout, begins, shape = None if natural else Layout.of(value), None, None
        if layout is not None and arrays.begins_anywhere(array, value):
            begins = len(self.numbers)
            self.numbers.append(layout.offset)
            layout, shape = Place.of(layout, array.shape)
        return Slot(len(self.arrays) - 1, layout, value.dtype, value.is_conj(), value.is_neg(), begins, shape)


def read_taken(taken: Taken, tensor: Callable[[Slot], Tree], number: Callable[[NumberSlot], Tree]) -> Tree:
    """Return an argument again, with tensors and numbers as these functions give them."""
    if isinstance(taken, Slot):
        return tensor(taken)
    if isinstance(taken, NumberSlot):
        return number(taken)
    if isinstance(taken, Fixed):
        return taken.value
    return [read_taken(t, tensor, number) for t in taken] if isinstance(taken, tuple) else taken


def given_again(call: Call) -> tuple[list[Tree], Kwargs]:
    """Return the arguments of a call again, tensors on its arrays, without its generator."""

    def tensor(slot: Slot) -> torch.Tensor:
        whole = wrap(jax.numpy.asarray(call.arrays[slot.place]))
        if slot.layout is not None:
            layout = slot.layout if slot.begins is None else slot.layout._replace(offset=call.numbers[slot.begins])
            whole = arrays.alias(whole, *layout)
        whole = neg_view(whole) if slot.neg else whole
        return conj(whole) if slot.conj else whole

    given = partial(read_taken, tensor=tensor, number=lambda n: call.numbers[n.place])
    return [given(v) for v in call.args], {name: given(v) for name, v in call.kwargs.items()}


def meta(call: Call, taken: Taken) -> Tree:
    """Return the argument for PyTorch's Meta kernel."""

    def tensor(slot: Slot) -> torch.Tensor:
        size = call.arrays[slot.place].shape if slot.layout is None else slot.layout.size
        stride = contiguous(size) if slot.layout is None else slot.layout.stride
        return torch.empty_strided(size, stride, dtype=slot.dtype, device="meta")

    if isinstance(taken, torch.device):
        return torch.device("meta")
    return read_taken(taken, tensor, lambda n: 1.0 if n.kind is torch.SymFloat else call.numbers[n.place])


class PromisedResult(NamedTuple):
    """What PyTorch promises of one result."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def promised(op: OpOverload, args: Sequence[Tree], kwargs: Kwargs) -> tuple[list[PromisedResult | None] | None, bool]:
    """Ask PyTorch what comes out of meta tensors, in order, and whether it is one tensor; None where it cannot say."""
    if any(a.name == "device" for a in arguments(op)):
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        out = _asked(op, args, kwargs)
    except NotImplementedError:
        return None, False
    alone = isinstance(out, torch.Tensor)
    flat = [out] if alone else pytree.tree_leaves(out or ())  # an op that only checks its arguments returns nothing
    return [None if o is None else _result(o) for o in flat], alone


def _asked(op: OpOverload, args: Sequence[Tree], kwargs: Kwargs) -> Tree:
    """Call PyTorch's Meta kernel. Of few overloads it takes a number for a tensor; others get a 0-d tensor."""
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "same reduction dim" in str(error):  # since torch 2.14, from the Meta kernel of mm in Python
            (n, m), (k, p) = args[0].shape, args[1].shape
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({n}x{m} and {k}x{p})") from None
        if "Unable to cast" not in str(error):
            raise
    scalars = [
        torch.scalar_tensor(v, device="meta", dtype=torch.tensor(v).dtype)
        if a.kind is Kind.TENSOR and isinstance(v, (bool, int, float, complex))
        else v
        for a, v in zip(arguments(op), args, strict=False)
    ]
    return op(*scalars, **kwargs)


def _result(out: torch.Tensor) -> PromisedResult:
    size = tuple(out.shape)
    # The device gives each result a storage of its own, so strides with holes or overlaps become contiguous ones.
    dense = arrays.order(Layout(size, out.stride(), 0), math.prod(size)) is not None
    return PromisedResult(size, out.stride() if dense else contiguous(size), out.dtype)


def plain(result: PromisedResult) -> bool:
    if 0 in result.size:
        return len(result.size) < 2  # of more dimensions, `create` makes other strides than PyTorch
    return result.stride == contiguous(result.size) or math.prod(result.size) <= 1


def single(run: Kernel, result: PromisedResult) -> Kernel:
    """Return the program of an overload with one contiguous result: the shortest way from arrays to a tensor."""
    size, dtype = result.size, result.dtype

    def program(*inputs: jax.Array) -> Tree:
        (array,) = run(*inputs)
        tensor = create(size, dtype)
        storage_of(tensor).array = array
        return tensor

    return program


def made(array: jax.Array, result: PromisedResult | None) -> torch.Tensor:
    """Return a tensor on a new storage that holds the array; the array is laid out as the strides say."""
    if result is None:
        return wrap(array)
    tensor: torch.Tensor = create(array.shape, result.dtype)
    storage_of(tensor).array = array
    return tensor if plain(result) else arrays.alias(tensor, result.size, result.stride, 0)


def conform(name: str, flat: list[Tree], wanted: list[PromisedResult | None] | None) -> list[Tree]:
    """Return the lowering's arrays in PyTorch's dtypes and storage order; raise RuntimeError for wrong shapes."""
    if wanted is None:
        return [o if o is None else jax.numpy.asarray(o) for o in flat]
    if len(flat) != len(wanted):
        raise RuntimeError(f"the jax lowering of aten::{name} gave {len(flat)} results; PyTorch promises {len(wanted)}")
    out: list[Tree] = []
    for value, result in zip(flat, wanted, strict=True):
        if value is None or result is None:
            out.append(None)
            continue
        array = jax.numpy.asarray(value)
        if array.shape != result.size:
            raise RuntimeError(
                f"the jax lowering of aten::{name} gave shape {list(array.shape)}; PyTorch promises {list(result.size)}"
            )
        array = convert(array, jax_dtype(result.dtype))
        out.append(array if plain(result) else arrays.physical(array, result.stride))
    return out


def structure(op: OpOverload, lengths: list[int]) -> Callable[[list[Tree]], Tree]:
    """Return a function from the flat results to what the overload returns: a tensor, a list, or a tuple of these."""
    kinds = [str(r.type) for r in op._schema.returns]
    if kinds == ["Tensor"]:
        return lambda flat: flat[0]
    if kinds == ["List[Tensor]"]:
        return lambda flat: flat
    if "List[Tensor]" not in kinds:
        return tuple
    return lambda flat: _nested(flat, kinds, lengths)


def _nested(flat: list[Tree], kinds: list[str], lengths: list[int]) -> Args:
    out, rest = [], list(flat)
    for kind, count in zip(kinds, lengths, strict=True):
        taken, rest = rest[:count], rest[count:]
        out.append(taken[0] if kind == "Tensor" else taken)
    return tuple(out)


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


_Key: Any = DispatchKey  # its members are not in torch's stubs
# AutocastIPU is where jit watches (jit/watch.py).
_AUTOCAST = DispatchKeySet(_Key.AutocastPrivateUse1).add(_Key.AutocastIPU)
# Looking at a traced value: the lowering needs it as part of the program.
VALUE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide what happens inside from the caller's modes and from autocast."""
    with DisableTorchFunction(), disable_current_modes(), ExcludeDispatchKeyGuard(_AUTOCAST):
        yield


class Functional:
    """A functional overload on the device: called with tensors, it runs the compiled program of its lowering.

    Raises NotImplementedError, naming the overload, where it has no lowering.
    """

    def __init__(self, op: OpOverload, lowering: Lowering) -> None:
        self.op, self.lowering = op, lowering
        self.name = short_name(op)
        self.arguments = tuple(
            a._replace(kind=Kind.NUMBER) if a.name in lowering.traced and a.kind is Kind.STATIC else a
            for a in arguments(op)
        )
        self.named = {a.name: a for a in self.arguments}
        self.static = lowering.static
        self.programs: dict[Key, Kernel] = {}
        self.known: dict[Key, Kernel] = {}
        """The programs by the keys of the fast path (kernels.py)."""

    def __call__(self, *args: Tree, **kwargs: Tree) -> Tree:
        return self.run(args, kwargs)[1]

    def run(self, args: Sequence[Tree], kwargs: Kwargs) -> tuple[Kernel, Tree]:
        """Return the program of this kind of call, and what it returned."""
        with DisableTorchFunction():
            call = Call(self.name, self.named, self.static, args, kwargs)
            program = self.programs.get(call.key)
            inputs = (random.next_key(call.generator),) if self.lowering.random else ()
            if program is not None:
                return program, program(*inputs, *call.arrays, *call.numbers)
            with quietly():
                return self._first_as_cpu(call, inputs)

    def _first_as_cpu(self, call: Call, inputs: tuple[RawKey, ...]) -> tuple[Kernel, Tree]:
        """Run the first call of a kind, with the CPU's error where PyTorch's Meta kernel and JAX have none."""
        traced = any(isinstance(array, jax.core.Tracer) for array in call.arrays)
        if self.name in checks.UNCHECKED and not traced:
            checks.on_cpu(self.name, given_again(call))
        try:
            return self._first(call, inputs)
        except VALUE_NEEDED:
            raise
        except (AssertionError, IndexError, TypeError, ValueError) as error:
            if traced or str(error).startswith("Dimension out of range"):
                raise
            try:
                checks.on_cpu(self.name, given_again(call))
            except Exception as by_cpu:
                raise by_cpu from error
            raise

    def _first(self, call: Call, inputs: tuple[RawKey, ...]) -> tuple[Kernel, Tree]:
        program, compiled = build(self, call)
        try:
            out = program(*inputs, *call.arrays, *call.numbers)
        except VALUE_NEEDED:
            if self.static or not call.numbers or self.lowering.concrete:
                raise
            self.static = True
            return self._first(Call(self.name, self.named, True, *given_again(call)), inputs)  # the same random key
        self.programs[call.key] = program
        program_cache.add(self, call.key, compiled)
        varying.note(self.name, call)
        return program, out


class ProgramCache:
    """The programs in memory. Of more than `limit`, the oldest are dropped and compiled anew where they are needed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._added = 0
        self._made: dict[tuple[int, Key], tuple[Functional, Kernel]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def add(self, op: Functional, key: Key, compiled: Kernel) -> None:
        """Note a new program; `compiled` is its jitted function."""
        with self._lock:
            self._made[id(op), key] = (op, compiled)
            self._added += 1
            if self._added % _LOWERED == 0:
                jax_private.forget_lowered()
            if len(self._made) > self.limit:
                self._drop(list(self._made)[: self.limit // 4 + 1])

    def clear(self) -> None:
        with self._lock:
            self._drop(list(self._made))

    def _drop(self, keys: list[tuple[int, Key]]) -> None:
        for place in keys:
            op, compiled = self._made.pop(place)
            op.programs.pop(place[1], None)
            op.known.clear()  # it finds what is left again
            if hasattr(compiled, "clear_cache"):
                compiled.clear_cache()
        trim()


program_cache = ProgramCache(2048)
_LOWERED = 16
"""After how many programs JAX is made to forget what it compiled them from."""


def trim() -> None:
    """Give back what compiling took: what JAX keeps of it, and freed memory, which glibc keeps otherwise."""
    jax_private.forget_lowered()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _largest(call: Call, results: Sequence[PromisedResult | None] | None) -> int:
    made = (math.prod(r.size) for r in results or () if r is not None)
    return max([*(a.size for a in call.arrays), *made], default=1)


def build(op: Functional, call: Call) -> tuple[Kernel, Kernel]:
    """Return the program of one kind of call and its jitted function: keys, arrays and numbers in; tensors out.

    It is compiled at its first use.
    """
    lowering = op.lowering
    meta_args = [meta(call, a) for a in call.args]
    meta_kwargs = {name: meta(call, a) for name, a in call.kwargs.items()}
    check_promotion(op.op, meta_args)
    check_one_dtype(op.name, meta_args, meta_kwargs)
    results, alone = (None, False) if lowering.concrete else promised(op.op, meta_args, meta_kwargs)
    if lowering.unpromised:
        results, alone = None, False
    common = common_dtype([*meta_args, *meta_kwargs.values()]) if lowering.promotes else None
    template_args, template_kwargs, count = call.args, call.kwargs, len(call.arrays)

    lengths: list[int] = []  # of the lists among the results, known once the program is traced

    def tensor(values: Sequence[jax.Array], slot: Slot) -> Tree:
        """Return an argument as the lowering takes it, inside the program: read from its array, in the common dtype."""
        held, layout = values[slot.place], slot.layout
        if layout is None:
            value = held
        else:
            rows = arrays.by_columns(layout) if lowering.columns else None
            if slot.begins is None:
                value = arrays.read(held, rows or layout)
            else:
                value = arrays.piece(held, values[count + slot.begins], Place(rows or layout, slot.shape))
            if rows is not None:
                return arrays.Columns(arrays.settled(value, slot.conj, slot.neg))
        value = arrays.settled(value, slot.conj, slot.neg)
        value = value if common is None else value.astype(common)
        return wrap(value) if lowering.torch_code else value

    def compute(*inputs: jax.Array) -> Tree:
        keys, values = inputs[: lowering.random], inputs[lowering.random :]
        given = partial(read_taken, tensor=partial(tensor, values), number=lambda n: values[count + n.place])
        with checks.apart() if lowering.torch_code else contextlib.nullcontext():
            out = lowering.compute(
                *keys, *map(given, template_args), **{n: given(v) for n, v in template_kwargs.items()}
            )
        flat = pytree.tree_leaves(out)
        if results == []:  # the op only checks its arguments
            flat = []
        lengths[:] = [
            len(o) if isinstance(o, (list, tuple)) else 1 for o in (out if isinstance(out, (list, tuple)) else ())
        ]
        if lowering.torch_code:
            flat = [transfer.values(o) if isinstance(o, torch.Tensor) else o for o in flat]
        return conform(op.name, flat, results)

    compute.__name__ = op.name  # that of the XLA program
    run = compute if lowering.concrete else compiled(compute, _largest(call, results))
    shapes = structure(op.op, lengths)

    if results is not None and alone and (only := results[0]) is not None and plain(only):
        return single(run, only), run

    def program(*inputs: jax.Array) -> Tree:
        out = run(*inputs)
        if results == []:
            return None
        wanted = results or [None] * len(out)
        return shapes([None if a is None else made(a, r) for a, r in zip(out, wanted, strict=True)])

    return program, run
