"""The Python function PyTorch calls for an overload: the fast path, and the in-place and `out=` forms.

The fast path of a functional overload is generated from its schema, because at some microseconds an op a loop over
arguments is what costs. It serves tensors of the device and numbers in a kind of call that was seen before, and leaves
everything else to `Functional`.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import cache
from types import FunctionType
from typing import cast

import torch

from ampcheck.jax_device.annotations import Args, Kernel, Kwargs, Tree
from ampcheck.jax_device.dispatch.call import Key
from ampcheck.jax_device.dispatch.program import Functional, quietly
from ampcheck.jax_device.dispatch.schema import Kind, arguments, overload, takes_lazy
from ampcheck.jax_device.dispatch.shapes import GENERATED
from ampcheck.jax_device.dispatch.writing import assign, check_cast, resize
from ampcheck.jax_device.dtypes import TO_JAX
from ampcheck.jax_device.lowering import find
from ampcheck.jax_device.storage.arrays import storage_of
from ampcheck.jax_device.torch_private import function_modes, pytree
from ampcheck.register.dynamo_skip import dynamo_skip
from ampcheck.register.torch_private import OpOverload, has_kernel

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
            _count_versions([t for i in written for t in _tensors(args[i]) if not t.is_inference()])
        if not op._schema.returns:
            return None
        kept = (*out[:fresh], *(args[i] for i in written))[: len(op._schema.returns)]
        return kept if len(kept) > 1 else kept[0]

    return kernel


def _tensors(written: Tree) -> list[torch.Tensor]:
    return list(written) if isinstance(written, (list, tuple)) else [] if written is None else [written]


def out_kernel(op: OpOverload, compute: Kernel) -> Kernel:
    """Return the kernel of an `out=` overload, which resizes what it is given, from its functional one's."""
    names = [a.name for a in arguments(op) if a.written]

    def kernel(*args: Tree, **kwargs: Tree) -> Tree:
        outs = [kwargs.pop(name) for name in names]
        result = compute(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        if any(getattr(o, "dtype", None) is not getattr(v, "dtype", None) for o, v in zip(outs, results, strict=True)):
            _ask_meta(op, args, {**kwargs, **dict(zip(names, outs, strict=True))})
        for out, values in zip(outs, results, strict=True):
            fit(out, values)
            assign(out, values)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel


def _ask_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> None:
    """Let PyTorch's Meta kernel refuse `out=` tensors of another dtype: some overloads cast to it, some do not."""

    def meta(t: torch.Tensor) -> torch.Tensor:
        if t.device.type == "cpu":
            return t
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a resized tensor, which `fit` gives
        with contextlib.suppress(NotImplementedError):
            op(*pytree.tree_map_only(torch.Tensor, meta, args), **pytree.tree_map_only(torch.Tensor, meta, kwargs))


def fit(out: Tree, values: Tree) -> None:
    """Give an `out=` tensor the shape of what it will hold. Warns where it held something else, as PyTorch does."""
    if isinstance(out, (list, tuple)):
        for o, v in zip(out, values, strict=True):
            fit(o, v)
    elif out.shape != values.shape:
        check_cast(values.dtype, out.dtype)
        if out.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
                f"match the required output shape {list(values.shape)}. Give an empty tensor, e.g. t.resize_(0).",
                UserWarning,
                stacklevel=2,
            )
        resize(out, tuple(values.shape))


def functional_kernel(op: Functional) -> Kernel:
    """Return the kernel of a functional overload."""
    kinds = {a.kind for a in op.arguments}
    if op.lowering.random or kinds & {Kind.TENSORS, Kind.NUMBERS, Kind.GENERATOR}:
        whole: Kernel = op.__call__
        return whole
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
    if program is None:
        return slow(({positional}), {{{named}}}, key)
    return program({given})
"""


def _generated(op: Functional) -> Kernel:
    """Return the kernel of `op` as a Python function of the schema's arguments, made from its source."""
    signature: list[str] = []
    arrays: list[str] = []
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
                arrays.append(f"*g{i}")
                operands.append(f"*n{i}")
                key.append(f"k{i}")
                checks.append(f"if {name}.__class__ in NUMBERS: k{i} = {name}.__class__; g{i} = (); n{i} = ({name},)")
                checks += ["else:", *("    " + line for line in _read(op, name, i))]
                checks.append(f"    k{i} = ({name}.dtype, s{i}); g{i} = (b{i},); n{i} = ()")
            else:
                arrays.append(f"b{i}")
                key += [f"{name}.dtype", f"s{i}"]
                checks += _read(op, name, i)
        elif a.kind is Kind.TENSOR:
            arrays.append(f"*g{i}")
            key.append(f"k{i}")
            checks.append(f"if {name} is None or {name} is MISSING: k{i} = {name}; g{i} = ()")
            checks += ["else:", *("    " + line for line in _read(op, name, i))]
            checks.append(f"    k{i} = ({name}.dtype, s{i}); g{i} = (b{i},)")
        else:
            key.append(f"tuple({name}) if {name}.__class__ is list else {name}")
    given = ", ".join(arrays + operands)
    source = _TEMPLATE.format(
        signature=", ".join(signature),
        checks="\n        ".join(checks),
        key=", ".join(key),
        positional="".join(name + ", " for name in positional),
        named=", ".join(named),
        given=given,
    )
    space = _names(op)
    # The source is made from PyTorch's schema, of nothing a caller gives.
    exec(compile(source, f"{GENERATED}{op.name}>", "exec"), space)
    kernel: Kernel = dynamo_skip(cast(FunctionType, space["kernel"]))
    return kernel


def _names(op: Functional) -> dict[str, object]:
    """Return what the source of a generated kernel names."""
    return {
        "CAUGHT": (AttributeError, KeyError, TypeError, Irregular),
        "Irregular": Irregular,
        "default": torch.get_default_dtype,
        "MISSING": MISSING,
        "TYPES": TO_JAX,
        "NUMBERS": frozenset((int, float, bool, complex)),
        "known": op.known,
        "modes": function_modes,
        "slow": _slow(op),
        "storage_of": storage_of,
    }


def _read(op: Functional, name: str, i: int) -> list[str]:
    """Write lines that take a tensor's array `b` and its place in it `s`: its shape alone where it is all of the array.

    Anything that is not as usual (a number, a CPU tensor, a storage of bytes) has no `array`, `dtype` or
    `is_contiguous`.
    """
    lines = [
        f"b{i} = storage_of({name}).array; s{i} = {name}.shape",
        f"if b{i}.dtype is not TYPES[{name}.dtype]: raise Irregular",
        f"if b{i}.shape != s{i} or not {name}.is_contiguous():",
        f"    s{i} = (s{i}, {name}.stride(), {name}.storage_offset(), b{i}.shape)",
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
    return functional_kernel(Functional(op, lowering))


# Overloads that make tensors which no lowering can make, by the beginnings of their names.
_OTHER_LAYOUTS = {
    "_to_sparse": "sparse tensors: use strided ones",
    "sparse_": "sparse tensors: use strided ones",
    "_sparse_": "sparse tensors: use strided ones",
    "quantize_per_": "quantized tensors: use bfloat16 or float16, or quantize on the CPU",
    "to_mkldnn": "MKL-DNN tensors: use strided ones",
}


def missing(op: OpOverload) -> NotImplementedError:
    """Return the error of an overload that the device cannot run."""
    name = op.name()
    for beginning, instead in _OTHER_LAYOUTS.items():
        if name.startswith(f"aten::{beginning}"):
            return NotImplementedError(f"{name} has no kernel on the jax device, which has no {instead}")
    return NotImplementedError(
        f"{name} has no kernel on the jax device. To add one, write its lowering under ampcheck/jax_device/lowerings/ "
        f"as @lower({name.removeprefix('aten::')!r}): a function of arrays; docs/jax_device.md has an example."
    )
