"""One compiled XLA program per overload, shapes, dtypes, strides and static arguments, and how it is found again.

The first call of a kind asks PyTorch's Meta kernel what comes out (shapes, strides, dtypes, and the errors PyTorch
raises), and makes a `jax.jit` function that reads the tensors from their storages' arrays, runs the lowering and puts the
results into PyTorch's dtypes. Later calls find that function by a key.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.jax_device import promotion, random, transfer
from ampcheck.jax_device.dtypes import TO_JAX, jax_dtype
from ampcheck.jax_device.layout import Layout, contiguous, order, physical, read, settled
from ampcheck.jax_device.lowering import Lowering, find, short_name
from ampcheck.jax_device.schema import REQUIRED, Argument, Kind, arguments
from ampcheck.jax_device.storage import alias, contents, create, storage_of, wrap

# AutocastIPU is where jit watches (jit_watch.py).
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1).add(torch._C.DispatchKey.AutocastIPU)
# Looking at a traced value: the lowering needs it as part of the program.
_LOOKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Slot(NamedTuple):
    """How a tensor argument is read: which of the program's arrays it lies in, its place there, its PyTorch dtype.

    `conj` and `neg` are PyTorch's lazy bits: some overloads (mm, clone) get tensors that have them.
    """

    index: int
    layout: Layout | None
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False


class Number(NamedTuple):
    """A number that is given anew at each call: which of the program's numbers, and its Python type."""

    index: int
    kind: type


class Result(NamedTuple):
    """What PyTorch promises of one result."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype


@contextlib.contextmanager
def quietly() -> Any:
    """No mode of the caller's and no autocast sees what happens inside."""
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch._C._ExcludeDispatchKeyGuard(_AUTOCAST),
    ):
        yield


class Call:
    """The arguments of one call, taken apart into a key, arrays and numbers."""

    def __init__(self, op: Functional, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.arrays: list[Any] = []
        self.numbers: list[Any] = []
        self.generator: Any = None
        self._shapes: list[Any] = []
        self._op = op
        positional = [self._taken(a, value) for a, value in zip(op.arguments, args, strict=False)]
        named = {name: self._taken(op.named[name], value) for name, value in kwargs.items()}
        self.args = tuple(positional)
        self.kwargs = {name: value for name, value in named.items() if op.named[name].kind is not Kind.GENERATOR}
        self.key = (self.args, tuple(self.kwargs.items()), tuple(self._shapes))

    def _taken(self, argument: Argument, value: Any) -> Any:
        kind = argument.kind
        if kind is Kind.TENSOR:
            return self._tensor(value)
        if kind is Kind.TENSORS:
            return tuple(self._tensor(v) for v in value) if value is not None else None
        if kind is Kind.GENERATOR:
            self.generator = value
            return None
        if kind is Kind.NUMBER:
            return self._number(value)
        if kind is Kind.NUMBERS:
            return tuple(self._number(v) for v in value)
        return tuple(value) if isinstance(value, (list, torch.Size)) else value

    def _number(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if value.__class__ is torch.SymFloat:  # a number that jit traces
            self.numbers.append(value.node.traced)
            return Number(len(self.numbers) - 1, torch.SymFloat)
        if self._op.static:
            return (type(value), value)
        self.numbers.append(value)
        return Number(len(self.numbers) - 1, type(value))

    def _tensor(self, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        if value.device.type != DEVICE:
            value = transfer.guest(value, self._op.name)
            if not isinstance(value, torch.Tensor):
                self.arrays.append(value)
                self._shapes.append(())
                return Slot(len(self.arrays) - 1, None, transfer.dtype_of(value))
        array = contents(value)
        self.arrays.append(array)
        self._shapes.append(array.shape)
        natural = array.shape == value.shape and value.is_contiguous()
        layout = None if natural else Layout(tuple(value.shape), value.stride(), value.storage_offset())
        return Slot(len(self.arrays) - 1, layout, value.dtype, value.is_conj(), value.is_neg())


DEVICE = "jax"


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
        self.programs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)[1]

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        """The program of this kind of call, and what it returned."""
        with torch._C.DisableTorchFunction():
            call = Call(self, args, kwargs)
            program = self.programs.get(call.key)
            inputs = (random.next_key(call.generator),) if self.lowering.random else ()
            if program is not None:
                return program, program(*inputs, *call.arrays, *call.numbers)
            with quietly():
                return self._first(call, inputs)

    def _first(self, call: Call, inputs: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        program = build(self, call)
        try:
            out = program(*inputs, *call.arrays, *call.numbers)
        except _LOOKED:
            if self.static or not call.numbers or self.lowering.concrete:
                raise
            self.static = True
            return self.run(*_given(call))
        self.programs[call.key] = program
        return program, out


def _given(call: Call) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call again, tensors on its arrays."""

    def given(taken: Any) -> Any:
        if isinstance(taken, Slot):
            whole = wrap(jax.numpy.asarray(call.arrays[taken.index]))
            whole = whole if taken.layout is None else alias(whole, *taken.layout)
            whole = torch._neg_view(whole) if taken.neg else whole
            return torch._conj(whole) if taken.conj else whole
        if isinstance(taken, Number):
            return call.numbers[taken.index]
        return [given(v) for v in taken] if isinstance(taken, tuple) else taken

    return [given(v) for v in call.args], {name: given(v) for name, v in call.kwargs.items()}


def _meta(call: Call, taken: Any) -> Any:
    """The argument for PyTorch's Meta kernel."""
    if isinstance(taken, Slot):
        size = call.arrays[taken.index].shape if taken.layout is None else taken.layout.size
        stride = contiguous(size) if taken.layout is None else taken.layout.stride
        return torch.empty_strided(size, stride, dtype=taken.dtype, device="meta")
    if isinstance(taken, Number):
        return 1.0 if taken.kind is torch.SymFloat else call.numbers[taken.index]
    if isinstance(taken, tuple):
        if len(taken) == 2 and isinstance(taken[0], type):
            return taken[1]
        return [_meta(call, v) for v in taken]
    return torch.device("meta") if isinstance(taken, torch.device) else taken


def _promised(op: Functional, call: Call) -> tuple[list[Result | None] | None, type | None]:
    """What PyTorch says comes out, in order, and the container it comes in; None where only the lowering knows."""
    args = [_meta(call, v) for v in call.args]
    kwargs = {name: _meta(call, v) for name, v in call.kwargs.items()}
    if "device" in op.named:
        kwargs["device"] = torch.device("meta")
    try:
        out = _asked(op, args, kwargs)
    except NotImplementedError:
        return None, None
    single = isinstance(out, torch.Tensor)
    flat = [out] if single else _flat(out)
    return [None if o is None else _result(o) for o in flat], None if single else type(out)


def _asked(op: Functional, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What PyTorch's Meta kernel returns. Of few overloads it takes a number for a tensor; others get a 0-d tensor."""
    try:
        return op.op(*args, **kwargs)
    except RuntimeError as error:
        if "Unable to cast" not in str(error):
            raise
    scalars = [
        torch.scalar_tensor(v, device="meta", dtype=torch.tensor(v).dtype)
        if a.kind is Kind.TENSOR and isinstance(v, (bool, int, float, complex))
        else v
        for a, v in zip(op.arguments, args, strict=False)
    ]
    return op.op(*scalars, **kwargs)


def _result(out: torch.Tensor) -> Result:
    size = tuple(out.shape)
    dense = order(Layout(size, out.stride(), 0), math.prod(size)) is not None
    return Result(size, out.stride() if dense else contiguous(size), out.dtype)


def _flat(out: Any) -> list[Any]:
    flat: list[Any] = []
    for o in out:
        flat.extend(o) if isinstance(o, (list, tuple)) else flat.append(o)
    return flat


def _one_dtype(name: str, taken: list[Any]) -> None:
    """Raise RuntimeError for tensors of several dtypes."""
    dtypes = {slot.dtype: None for slot in taken if isinstance(slot, Slot)}
    if len(dtypes) > 1:
        raise RuntimeError(f"aten::{name} expected tensors of the same dtype, but got {', '.join(map(str, dtypes))}")


def build(op: Functional, call: Call) -> Callable[..., Any]:
    """The program of one kind of call, compiled at its first use: keys, arrays and numbers in; tensors out."""
    lowering = op.lowering
    if lowering.one_dtype:
        _one_dtype(op.name, [*call.args, *call.kwargs.values()])
    promised, container = (None, None) if lowering.concrete else _promised(op, call)
    template_args, template_kwargs, arrays = call.args, call.kwargs, len(call.arrays)
    common = promotion.common([_meta(call, a) for a in (*template_args, *template_kwargs.values())]) if lowering.promotes else None

    lengths: list[int] = []  # of the lists among the results, known once the program is traced

    def compute(*inputs: Any) -> Any:
        keys, values = inputs[: lowering.random], inputs[lowering.random :]
        held, numbers = values[:arrays], values[arrays:]

        def given(taken: Any) -> Any:
            if isinstance(taken, Slot):
                value = held[taken.index] if taken.layout is None else read(held[taken.index], taken.layout)
                value = settled(value, taken.conj, taken.neg)
                if common is not None:
                    value = value.astype(common)
                return wrap(value) if lowering.torch_code else value
            if isinstance(taken, Number):
                return numbers[taken.index]
            if isinstance(taken, tuple):
                if len(taken) == 2 and isinstance(taken[0], type):
                    return taken[1]
                return [given(v) for v in taken]
            return taken

        out = lowering.compute(*keys, *map(given, template_args), **{n: given(v) for n, v in template_kwargs.items()})
        flat = [out] if isinstance(out, (jax.Array, torch.Tensor)) or not isinstance(out, (list, tuple)) else _flat(out)
        lengths[:] = [len(o) if isinstance(o, (list, tuple)) else 1 for o in (out if isinstance(out, (list, tuple)) else ())]
        if lowering.torch_code:
            flat = [_read_back(o) for o in flat]
        return _conform(op.name, flat, promised)

    run = compute if lowering.concrete else jax.jit(compute, inline=True)
    shapes = _structure(op.op, lengths)

    def program(*inputs: Any) -> Any:
        return shapes([None if a is None else _made(a, r) for a, r in zip(*run_with(inputs), strict=True)])

    def run_with(inputs: Any) -> Any:
        out = run(*inputs)
        return out, promised or [None] * len(out)

    if promised is not None and len(promised) == 1 and container is None and _plain(promised[0]):
        return _single(run, promised[0])
    return program


def _plain(result: Result) -> bool:
    if 0 in result.size:
        return len(result.size) < 2  # of more dimensions, `create` makes other strides than PyTorch
    return result.stride == contiguous(result.size) or math.prod(result.size) <= 1


def _single(run: Callable[..., Any], result: Result) -> Callable[..., Any]:
    """The program of an overload with one contiguous result: the shortest way from arrays to a tensor."""
    size, dtype = result.size, result.dtype

    def program(*inputs: Any) -> Any:
        (array,) = run(*inputs)
        tensor = create(size, dtype)
        storage_of(tensor).array = array
        return tensor

    return program


def _made(array: Any, result: Result | None) -> torch.Tensor:
    """A tensor on a new storage that holds the array; the array is laid out as the strides say."""
    if result is None:
        return wrap(array)
    tensor: torch.Tensor = create(array.shape, result.dtype)
    storage_of(tensor).array = array
    return tensor if _plain(result) else alias(tensor, result.size, result.stride, 0)


def _read_back(out: Any) -> Any:
    if not isinstance(out, torch.Tensor):
        return out
    array = contents(out)
    natural = array.shape == tuple(out.shape) and out.is_contiguous()
    return array if natural else read(array, Layout(tuple(out.shape), out.stride(), out.storage_offset()))


def _conform(name: str, flat: list[Any], promised: list[Result | None] | None) -> list[Any]:
    """The lowering's arrays in PyTorch's dtypes and storage order. Raises RuntimeError where the shapes are wrong."""
    if promised is None:
        return [o if o is None else jax.numpy.asarray(o) for o in flat]
    if len(flat) != len(promised):
        raise RuntimeError(f"the jax lowering of aten::{name} gave {len(flat)} results; PyTorch promises {len(promised)}")
    out = []
    for value, result in zip(flat, promised, strict=True):
        if value is None or result is None:
            out.append(None)
            continue
        array = jax.numpy.asarray(value)
        if array.shape != result.size:
            raise RuntimeError(
                f"the jax lowering of aten::{name} gave shape {list(array.shape)}; PyTorch promises {list(result.size)}"
            )
        array = promotion.convert(array, jax_dtype(result.dtype))
        out.append(array if _plain(result) else physical(array, result.stride))
    return out


def _structure(op: OpOverload, lengths: list[int]) -> Callable[[list[Any]], Any]:
    """From the flat results to what the overload returns: a tensor, a list, or a tuple of these."""
    kinds = [str(r.type) for r in op._schema.returns]
    if kinds == ["Tensor"]:
        return lambda flat: flat[0]
    if kinds == ["List[Tensor]"]:
        return lambda flat: flat
    if "List[Tensor]" not in kinds:
        return tuple
    return lambda flat: _nested(flat, kinds, lengths)


def _nested(flat: list[Any], kinds: list[str], lengths: list[int]) -> tuple[Any, ...]:
    out, rest = [], list(flat)
    for kind, count in zip(kinds, lengths, strict=True):
        taken, rest = rest[:count], rest[count:]
        out.append(taken[0] if kind == "Tensor" else taken)
    return tuple(out)
