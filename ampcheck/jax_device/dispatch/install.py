"""Registers a kernel for every overload the device can run, and an error for the rest."""

from functools import partial

import torch
from torch import Tensor
from torch.library import Library

from ampcheck.jax_device.annotations import NAME, Kernel, Tree
from ampcheck.jax_device.device import placed
from ampcheck.jax_device.dispatch.kernels import computed, inplace_kernel, missing, out_kernel
from ampcheck.jax_device.dispatch.special import COMPOSED, SPECIAL, by_convolution
from ampcheck.jax_device.lowering import OWN, arguments, find, functional, is_out, is_view, overloads, short_name
from ampcheck.jax_device.storage.arrays import META, guarded
from ampcheck.jax_device.torch_private import C, suggest_memory_format
from ampcheck.register.torch_private import OpOverload, has_kernel


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    rows, width = workspace.shape[0], workspace.shape[1] // 5 * 3
    gates = [workspace.new_empty((rows, width)) for _ in range(2)]
    biases = [workspace.new_empty((width,)) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad_hy), *biases


def convolution_format(x: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the layout that a convolution's result and gradients have on the CPU: channels last if either has it."""
    found = {suggest_memory_format(x), suggest_memory_format(weight)} - {torch.contiguous_format}
    return found.pop() if found and (x.dim() < 5 or x.dtype is not torch.float64) else torch.contiguous_format


def _convolution(x: Tensor, weight: Tensor, *options: Tree) -> Tensor:
    return torch.empty_like(torch.convolution(x, weight, *options), memory_format=convolution_format(x, weight))


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *options: Tree) -> tuple[Tensor | None, ...]:
    layout, mask = convolution_format(x, weight), options[-1]
    made = *(torch.empty_like(t, memory_format=layout) for t in (x, weight)), grad.new_empty(grad.shape[1])
    return tuple(g if asked else None for g, asked in zip(made, mask, strict=True))


# Meta kernels of ops that PyTorch has none for: what shapes come out, also of sizes that `torch.compile` leaves open.
# Other ops without a Meta kernel are run on zeros by PyTorch's fake tensors, which takes sizes that are numbers.
_META: dict[str, Kernel] = {
    "_thnn_fused_gru_cell": lambda gates, hidden_gates, hx, *_: (
        torch.empty_like(hx),
        hx.new_empty((hx.shape[0], 5 * hx.shape[1])),
    ),
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
    **by_convolution(_convolution),
    "geqrf": lambda x: (x.new_empty(x.mT.shape).mT, x.new_empty((*x.shape[:-2], min(x.shape[-2:])))),
}


KEY = "PrivateUse1"
# PyTorch's own kernels take these apart: one checks and calls convolution_overrideable, one knows hermitian matrices,
# and through the view that the last one makes `torch.kron` writes to its `out=`.
COMPOSITE = frozenset({"convolution", "linalg_pinv.atol_rtol_tensor", "_unsafe_view", "new_empty_strided"})
# Overloads of which a number is to fit the tensor's dtype: one that is put into elements, or compared with integers.
FILLS = {"full": 1} | {
    f"{name}{mark}{which}": place
    for name, which, place in (
        *(("fill", ".Scalar", 1), ("masked_fill", ".Scalar", 2), ("scatter", ".value", 3)),
        ("index_fill", ".int_Scalar", 3),
    )
    for mark in ("", "_")
}
COMPARED = {f"{name}{mark}" for name in ("clamp", "clamp_min", "clamp_max") for mark in ("", "_")}
POWERS = frozenset(("pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out"))
_SPARSE = "the jax device has no sparse tensors; use strided ones, and sparse=False in nn.Embedding and nn.EmbeddingBag"
INSTEAD = {
    "Sparse": _SPARSE,
    "SparseCsr": _SPARSE,
    "NestedTensor": "the jax device has no strided nested tensors; use layout=torch.jagged",
}
_libraries: list[Library] = []


def _fitting(name: str, compute: Kernel) -> Kernel:
    """Return the kernel of an overload with PyTorch's errors for its numbers, of whatever value those of before were.

    PyTorch's Meta kernel, which may raise them, is asked once a program, and numbers are no part of one.
    """
    if name in FILLS:
        return _checked(compute, FILLS[name])
    if name not in COMPARED | POWERS:
        return compute

    def kernel(self: Tensor, *args: Tree, **kwargs: Tree) -> Tree:
        for value in (*args, *kwargs.values()):
            if value.__class__ is int and not (self.is_floating_point() or self.is_complex()):
                if name in POWERS and value < 0:
                    raise RuntimeError("Integers to negative integer powers are not allowed.")
                torch.full((2,), value, dtype=self.dtype, device="cpu")
        return compute(self, *args, **kwargs)

    return kernel


def _checked(compute: Kernel, place: int) -> Kernel:
    def kernel(*args: Tree, **kwargs: Tree) -> Tree:
        value = args[place]
        small = value.__class__ in (bool, int, float) and -100 <= value <= 100  # every dtype holds it
        if not small and isinstance(value, (int, float, complex)):  # no number that jit traces
            dtype = args[0].dtype if isinstance(args[0], Tensor) else kwargs.get("dtype")
            torch.full((2,), value, dtype=dtype, device="cpu")  # of one element it is more lenient
            if isinstance(value, int) and value >= 2**63:  # a uint64, which a program takes as the int64 of its bits
                args = (*args[:place], value - 2**64, *args[place + 1 :])
        return compute(*args, **kwargs)

    return kernel


def kernel(op: OpOverload) -> Kernel | None:
    """Return the device's kernel of an overload; None where PyTorch's composite kernel serves, or there is none."""
    name, names = op.name(), {a.name for a in arguments(op)}
    special = SPECIAL.get(short_name(op))
    if special is not None:
        special = guarded(special)
        return placed(special) if "device" in names and short_name(op) != "_to_copy" else special
    if short_name(op) in COMPOSITE:
        return None
    if has_kernel(name, "CompositeImplicitAutograd") and not (short_name(op) in OWN and has_kernel(name, "Autograd")):
        return None  # with a formula of its own, autograd needs no parts, and a lowering of the whole rounds once
    if is_view(op):
        return None if has_kernel(name, "CompositeExplicitAutograd") else partial(op._handle.redispatch_boxed, META)
    plain = functional(op)
    lowering = find(plain) if plain is not None else None
    if plain is None or lowering is None:
        return None
    if lowering.torch_code and short_name(plain) not in OWN and has_kernel(name, "CompositeExplicitAutograd"):
        return None  # PyTorch's own composite kernel takes the op apart as well, in C++
    if plain is op:
        return placed(_lazy(op)) if "device" in names else _lazy(op)
    return guarded((out_kernel if is_out(op) else inplace_kernel)(op, _lazy(plain)))


def _lazy(op: OpOverload) -> Kernel:
    return SPECIAL.get(short_name(op)) or computed(short_name(op))


def install() -> None:
    """Register every kernel. Called once, when the device is made."""
    aten = Library("aten", "IMPL")
    for name, function in _META.items():
        if not has_kernel(f"aten::{name}", "Meta"):
            aten.impl(name, function, "Meta")
    for op in overloads():
        found = kernel(op)
        if found is not None:
            aten.impl(op, _fitting(short_name(op), found), KEY)
    for name, function in COMPOSED.items():
        for key in (KEY, f"Autograd{KEY}"):  # in inference mode there is no autograd to come first
            aten.impl(name, function, key)
    of_others = C._conv_determine_backend_memory_format
    C._conv_determine_backend_memory_format = lambda x, weight, backend: (  # which fake tensors ask
        convolution_format(x, weight) if x.device.type == NAME else of_others(x, weight, backend)
    )
    fallback = Library("_", "IMPL")
    fallback.fallback(_fallback, KEY)
    for layout in INSTEAD:
        fallback.fallback(partial(_no_layout, layout), f"{layout}{KEY}")
    _libraries.extend((aten, fallback))


def _fallback(op: OpOverload, *args: Tree, **kwargs: Tree) -> Tree:
    raise missing(op)


def _no_layout(layout: str, op: OpOverload, /, *args: Tree, **kwargs: Tree) -> Tree:
    raise NotImplementedError(  # in the dispatcher's words, by which callers know that a kernel is missing
        f"Could not run '{op.name()}' with arguments from the '{layout}jax' backend: {INSTEAD[layout]}"
    )
