"""The Python function PyTorch calls for an overload: the fast path, the in-place and `out=` forms, and what they write.

The fast path of a functional overload is generated from its schema, because at some microseconds an op a loop over
arguments is what costs. It serves tensors of the device and numbers in a kind of call that was seen before, and leaves
everything else to `Functional`.
"""

import contextlib
import math
import warnings
from collections.abc import Sequence
from functools import cache
from types import FunctionType
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from ampcheck.jax_device.annotations import Args, DeviceStorage, Kernel, Kwargs, Tree
from ampcheck.jax_device.dispatch.checks import checked
from ampcheck.jax_device.dispatch.program import GENERATED, Functional, Key, quietly
from ampcheck.jax_device.dtypes import TO_JAX, convert, jax_dtype
from ampcheck.jax_device.lowering import Kind, arguments, compiled, find, overload, takes_lazy
from ampcheck.jax_device.storage import arrays
from ampcheck.jax_device.storage.arrays import Layout, Place, contents, contiguous, guarded, refuse, storage_of, store
from ampcheck.jax_device.torch_private import function_modes, pytree, set_storage
from ampcheck.register.torch_private import OpOverload, dynamo_skip, has_kernel


class Overlap(RuntimeError):
    """Elements of a tensor that is written to are one element of its storage, as in an expanded tensor."""


def assign(target: Tree, values: Tree) -> Tree:
    """Make the new tensor `values` (nobody else's) the contents of `target`, of the same shape; returns `target`.

    Raises RuntimeError, as PyTorch does, where the shape differs or the dtype cannot be cast to the target's.
    """
    if isinstance(target, (list, tuple)):
        return [assign(t, v) for t, v in zip(target, values, strict=True)]
    if target is None:
        return None
    if target.device.type != "jax":
        return target.copy_(values)
    if target.shape != values.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(values.shape)}"
        )
    if target.dtype is values.dtype:
        mine, theirs = storage_of(target), storage_of(values)
        if (
            mine.array.shape == target.shape
            and theirs.array.shape == target.shape
            and target.is_contiguous()
            and values.is_contiguous()
            and target.is_conj() is values.is_conj()
            and target.is_neg() is values.is_neg()
        ):
            # Arrays never change: the whole write is that the storage takes over the other one.
            mine.array = arrays.spread(mine.array, theirs.array) if arrays.meshes else theirs.array
            return target
    else:
        check_cast(values.dtype, target.dtype)
    return put(target, values)


def check_cast(given: torch.dtype, wanted: torch.dtype) -> None:
    """Raise RuntimeError where PyTorch casts no result of one dtype to the other, e.g. a float to an integer."""
    if not torch.can_cast(given, wanted):
        raise RuntimeError(f"result type {given} can't be cast to the desired output type {wanted}")


def put(target: Tensor, values: Tensor) -> Tensor:
    """Write the values of a device tensor of the same shape to `target`, converted to its dtype."""
    source, layout = Layout.of(values), Layout.of(target)
    if 0 in layout.stride and any(n > 1 and not step for n, step in zip(layout.size, layout.stride, strict=True)):
        raise Overlap(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    held, given = contents(target), contents(values)
    conj = target.is_conj() is not values.is_conj()
    moves = arrays.begins_anywhere(held, target), arrays.begins_anywhere(given, values)
    shapes = (held.shape, given.shape)
    places = [
        Place.of(p, shape) if move else Place(p) for p, move, shape in zip((layout, source), moves, shapes, strict=True)
    ]
    program = _writer(*places, moves, jax_dtype(target.dtype), conj, values.is_neg(), target.is_neg())
    offsets = [p.offset for p, move in zip((layout, source), moves, strict=True) if move]
    store(target, program(held, given, *offsets))
    return target


@cache
def _writer(
    target: Place, source: Place, moves: tuple[bool, bool], dtype: np.dtype, conj: bool, was: bool, becomes: bool
) -> Kernel:
    """Compile a write.

    Args:
        moves: whether the offsets of target and source are given anew at each call.
        conj: whether conjugate bits differ.
        was, becomes: the source's and the target's negative bit.
    """

    def program(held: jax.Array, values: jax.Array, *offsets: jax.Array) -> jax.Array:
        array = arrays.piece(values, offsets[-1], source) if moves[1] else arrays.read(values, source.layout)
        given = arrays.settled(convert(arrays.settled(array, False, was), dtype), conj, becomes)
        if moves[0]:
            return arrays.with_piece(held, offsets[0], target, given)
        return arrays.write(held, target.layout, given)

    return compiled(program, max(math.prod(target.layout.size), math.prod(source.layout.size)))


def resize(tensor: Tensor, size: Sequence[int], stride: Sequence[int] | None = None) -> Tensor:
    """Give the tensor another size in place, its storage growing where it must; what is new is zero."""
    size = tuple(size)
    stride = contiguous(size) if stride is None else tuple(stride)
    return place(tensor, storage_of(tensor), int(tensor.storage_offset()), size, stride)


def place(tensor: Tensor, source: DeviceStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Put the tensor, in place, somewhere on a device storage, which grows where it must; what is new is zero."""
    set_storage(arrays.META, tensor, source, offset, size, stride)
    grow(tensor, 0 if 0 in size else offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)))
    _adopt(source, tensor)
    return tensor


def _adopt(source: DeviceStorage, tensor: Tensor) -> None:
    """Keep the storage's values in the dtype and shape of a tensor that is all of it: reading is then free."""
    found, dtype = source.array, jax_dtype(tensor.dtype)
    raw = isinstance(found, arrays.Bytes)
    if source.nbytes() != tensor.numel() * dtype.itemsize or tensor.storage_offset() or not tensor.is_contiguous():
        return
    if raw or found.dtype != dtype:
        found = arrays.from_bytes(found.array if raw else arrays.to_bytes(found), dtype)
    source.array = found.reshape(tuple(tensor.shape))


def grow(tensor: Tensor, elements: int) -> None:
    """Make the storage hold at least that many elements of the tensor's dtype."""
    array = contents(tensor)
    if array.size < elements:
        flat = jnp.zeros(elements, array.dtype)
        store(tensor, flat.at[: array.size].set(array.reshape(-1)) if array.size else flat)


def elements(tensor: Tensor) -> int:
    """Return how many elements of the tensor's dtype its storage has."""
    return math.prod(contents(tensor).shape)


_count_versions = torch.autograd.graph.increment_version


class Irregular(Exception):
    """A call that the fast path does not know how to read."""


MISSING = object()


def inplace_kernel(op: OpOverload, compute: Kernel) -> Kernel:
    """Return the kernel of an overload that writes to arguments, from the kernel of its functional counterpart.

    The functional one returns what the overload returns besides, then the new values of the written arguments in order.
    """
    written = [i for i, a in enumerate(arguments(op)) if a.written]
    fresh = sum(r.alias_info is None for r in op._schema.returns)
    if written == [0] and not fresh and op._schema.returns:
        return lambda *args, **kwargs: assign(args[0], compute(*args, **kwargs))
    # Autograd knows a tensor that changed by its version; of lists PyTorch leaves counting to the kernel.
    lists = any(arguments(op)[i].kind is Kind.TENSORS for i in written)
    uncounted = lists and not has_kernel(op.name(), "ADInplaceOrView")

    def kernel(*args: Tree, **kwargs: Tree) -> Tree:
        out = compute(*args, **kwargs)
        out = out if isinstance(out, tuple) else (out,)  # a list is the values of one written list
        for i, values in zip(written, out[fresh:], strict=True):
            assign(args[i], values)
        if uncounted:
            changed = pytree.tree_leaves([args[i] for i in written])
            _count_versions([t for t in changed if isinstance(t, torch.Tensor) and not t.is_inference()])
        if not op._schema.returns:
            return None
        kept = (*out[:fresh], *(args[i] for i in written))[: len(op._schema.returns)]
        return kept if len(kept) > 1 else kept[0]

    return kernel


def out_kernel(op: OpOverload, compute: Kernel) -> Kernel:
    """Return the kernel of an `out=` overload, which resizes what it is given, from its functional one's."""
    names = [a.name for a in arguments(op) if a.written]

    name = op._schema.name.removeprefix("aten::")
    apart, plain = name in _APART, name.startswith(("fft_", "_fft_")) or name in _PLAIN_OUT

    def kernel(*args: Tree, **kwargs: Tree) -> Tree:
        outs = [kwargs.pop(name) for name in names]
        if apart:
            _check_apart(outs, args)
        result = compute(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        if any(getattr(o, "dtype", None) is not getattr(v, "dtype", None) for o, v in zip(outs, results, strict=True)):
            _ask_meta(op, args, {**kwargs, **dict(zip(names, outs, strict=True))})
        for out, values in zip(outs, results, strict=True):
            fit(out, values, plain=plain)
            assign(out, values)
        if not op._schema.returns:
            return None
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel


_APART = frozenset(("gather", "take", "masked_select", "kthvalue", "cat"))
"""Of which PyTorch refuses an `out=` that lies on an input, which its Meta kernels do not see."""
_PLAIN_OUT = frozenset(("cholesky", "cholesky_solve", "slice_scatter"))
"""Whose `out=` PyTorch resizes to contiguous strides, as those of fft, and not to those of a new result."""


def _check_apart(outs: list[Tree], args: Args) -> None:
    def span(t: Tensor) -> range:
        first = int(t.storage_offset())
        return range(first, first + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)))

    for out in (o for o in outs if o.numel()):
        for given in pytree.tree_leaves(args):
            if not (isinstance(given, Tensor) and given.numel() and storage_of(given) is storage_of(out)):
                continue
            if max(span(given).start, span(out).start) < min(span(given).stop, span(out).stop):
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to tensor refer to "
                    "a single memory location. Please clone() the tensor before performing the operation."
                )


def _ask_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> None:
    """Let PyTorch's Meta kernel refuse `out=` tensors of another dtype: some overloads cast to it, some do not."""

    def meta(t: Tensor) -> Tensor:
        if t.device.type == "cpu":
            return t
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a resized tensor, which `fit` gives
        with contextlib.suppress(NotImplementedError):
            op(*pytree.tree_map_only(Tensor, meta, args), **pytree.tree_map_only(Tensor, meta, kwargs))


def fit(out: Tree, values: Tree, *, plain: bool = False) -> None:
    """Give an `out=` tensor the shape and strides of what it will hold. Warns where it held others, as PyTorch does.

    `plain`: with contiguous strides.
    """
    if isinstance(out, (list, tuple)):
        for o, v in zip(out, values, strict=True):
            fit(o, v, plain=plain)
    elif out.shape != values.shape:
        check_cast(values.dtype, out.dtype)
        if out.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
                f"match the required output shape {list(values.shape)}. Give an empty tensor, e.g. t.resize_(0).",
                UserWarning,
                stacklevel=2,
            )
        resize(out, tuple(values.shape), None if plain else values.stride())


def functional_kernel(op: Functional) -> Kernel:
    kinds = {a.kind for a in op.arguments}
    if op.lowering.random or kinds & {Kind.TENSORS, Kind.NUMBERS, Kind.GENERATOR}:
        whole: Kernel = op.__call__
        return guarded(whole)
    return _generated(op)


_TEMPLATE = """
def kernel({signature}):
    try:
        if modes(): raise Irregular
        {checks}
        key = ({key},)
        program = known.get(key)
    except CAUGHT:
        # A kind of call that cannot be read here has no key, so that it is not learned either.
        key = program = None
    try:
        if program is None:
            return slow(({positional}), {{{named}}}, key)
        return program({given})
    except JaxRuntimeError as error:
        refuse(error)
        raise
"""


def _generated(op: Functional) -> Kernel:
    """Return the kernel of `op` as a Python function of the schema's arguments, made from its source."""
    signature: list[str] = []
    given: list[str] = []
    operands: list[str] = []
    key = ["default()"]
    checks: list[str] = []
    positional: list[str] = []
    named: list[str] = []
    for i, a in enumerate(op.arguments):
        name = f"a{i}"
        if a.kwarg_only:
            signature += [] if "*" in signature else ["*"]
            name = a.name
            named.append(f"{name!r}: {name}")
        else:
            positional.append(name)
        signature.append(f"{name}=MISSING")
        if a.kind is Kind.NUMBER:
            operands.append(f"*(({name},) if {name}.__class__ in NUMBERS else ())")
            key.append(f"{name}.__class__")
        elif a.kind is Kind.TENSOR and str(op.op._schema.arguments[i].type) == "Tensor":
            if i and op.lowering.promotes:  # the other operand may be a number: x + 2
                given.append(f"*g{i}")
                operands.append(f"*n{i}")  # or the offset of a tensor
                key.append(f"k{i}")
                checks.append(f"if {name}.__class__ in NUMBERS: k{i} = {name}.__class__; g{i} = (); n{i} = ({name},)")
                checks += ["else:", *("    " + line for line in _read(op, name, i))]
                checks.append(f"    k{i} = ({name}.dtype, s{i}); g{i} = (b{i},); n{i} = o{i}")
            else:
                given.append(f"b{i}")
                operands.append(f"*o{i}")
                key += [f"{name}.dtype", f"s{i}"]
                checks += _read(op, name, i)
        elif a.kind is Kind.TENSOR:
            given.append(f"*g{i}")
            operands.append(f"*o{i}")
            key.append(f"k{i}")
            checks.append(f"if {name} is None or {name} is MISSING: k{i} = {name}; g{i} = o{i} = ()")
            checks += ["else:", *("    " + line for line in _read(op, name, i))]
            checks.append(f"    k{i} = ({name}.dtype, s{i}); g{i} = (b{i},)")
        else:
            key.append(f"tuple({name}) if {name}.__class__ is list else {name}")
    tensors = ", ".join(given + operands)
    source = _TEMPLATE.format(
        signature=", ".join(signature),
        checks="\n        ".join(checks),
        key=", ".join(key),
        positional="".join(name + ", " for name in positional),
        named=", ".join(named),
        given=tensors,
    )
    space = _names(op)
    # The source is made from PyTorch's schema, of nothing a caller gives.
    exec(compile(source, f"{GENERATED}{op.name}>", "exec"), space)
    kernel: Kernel = dynamo_skip(cast(FunctionType, space["kernel"]))
    return kernel


def _names(op: Functional) -> dict[str, object]:
    return {
        "CAUGHT": (AttributeError, KeyError, TypeError, Irregular),
        "Irregular": Irregular,
        "default": torch.get_default_dtype,
        "MISSING": MISSING,
        "Tracer": jax.core.Tracer,
        "TYPES": TO_JAX,
        "NUMBERS": frozenset((int, float, bool, complex)),
        "known": op.known,
        "Layout": Layout,
        "place": Place.of,
        "modes": function_modes,
        "JaxRuntimeError": jax.errors.JaxRuntimeError,
        "refuse": refuse,
        "slow": _slow(op),
        "storage_of": storage_of,
    }


def _read(op: Functional, name: str, i: int) -> list[str]:
    """Write lines that take a tensor's array `b`, its place in it `s` and, where it begins anywhere, the offset `o`.

    The place is its shape alone where it is all of the array.

    Anything that is not as usual (a number, a CPU tensor, a storage of bytes) has no `array`, `dtype` or
    `is_contiguous`.
    """
    lines = [
        f"b{i} = storage_of({name}).array; s{i} = {name}.shape; o{i} = ()",
        f"if b{i}.dtype is not TYPES[{name}.dtype]: raise Irregular",
        f"if b{i}.shape != s{i} or not {name}.is_contiguous():",
        f"    t = {name}.storage_offset()",
        f"    if not t or isinstance(b{i}, Tracer): s{i} = (s{i}, {name}.stride(), t, b{i}.shape)",
        f"    elif {name}.is_contiguous(): s{i} = (s{i}, b{i}.shape); o{i} = (t,)",
        f"    else: s{i} = (place(Layout(s{i}, {name}.stride(), t), b{i}.shape), b{i}.shape); o{i} = (t,)",
    ]
    return [*lines, f"if {name}.is_conj() or {name}.is_neg(): raise Irregular"] if takes_lazy(op.op) else lines


def _slow(op: Functional) -> Kernel:
    """Return the general path behind a generated kernel; what it finds regular, the fast path knows the next time."""

    def slow(args: Args, kwargs: Kwargs, key: Key | None) -> Tree:
        given = [value for value in args if value is not MISSING]  # PyTorch leaves out trailing defaults only
        program, out = op.run(given, {name: value for name, value in kwargs.items() if value is not MISSING})
        if key is not None and not op.static and torch.SymFloat not in key:  # a traced number is no plain argument
            op.known[key] = program
        return out

    return slow


@cache
def computed(name: str) -> Kernel:
    """Return the kernel of a functional overload that runs its lowering; raise NotImplementedError if it has none."""
    op = overload(f"aten::{name}")
    lowering = find(op)
    if lowering is None:
        raise missing(op)
    return checked(name, functional_kernel(Functional(op, lowering)))


# Overloads that make tensors which no lowering can make, by the beginnings of their names.
_OTHER_LAYOUTS = {
    "_to_sparse": "sparse tensors: use strided ones",
    "sparse_": "sparse tensors: use strided ones",
    "_sparse_": "sparse tensors: use strided ones",
    "quantize_per_": "quantized tensors: use bfloat16 or float16, or quantize on the CPU",
    "to_mkldnn": "MKL-DNN tensors: use strided ones",
}


def missing(op: OpOverload) -> NotImplementedError:
    name = op.name()
    for beginning, instead in _OTHER_LAYOUTS.items():
        if name.startswith(f"aten::{beginning}"):
            return NotImplementedError(f"{name} has no kernel on the jax device, which has no {instead}")
    return NotImplementedError(
        f"{name} has no kernel on the jax device. To add one, write its lowering under ampcheck/jax_device/lowerings/ "
        f"as @lower({name.removeprefix('aten::')!r}): a function of arrays; docs/jax_device.md has an example."
    )
