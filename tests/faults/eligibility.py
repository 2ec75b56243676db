"""Tensors cast that autocast must not touch, or left alone for a reason that is none."""

from __future__ import annotations

from typing import Any

import torch

from tests.faults.casts import CPU, CUDA, FP32
from tests.faults.fault import Fault
from tests.faults.kernels import Body, Call, kernel


def eligible(name: str, device: str, overload: str, body: Body, *says: str, **chosen: str) -> Fault:
    """A fault of one op on one device, seen by the cases of which tensors are eligible."""
    return Fault(name, "eligibility", lambda: kernel(device, overload, body), says, device=device, **chosen)


def of_a_form(name: str, device: str, op: str, body: Body, form: str) -> Fault:
    """The same, seen where every op is called with tensors of a form."""
    says = f"what {op} makes of tensors that are {form}"
    return eligible(name, device, op, body, says, op="any_form", only=form)


def other_devices_too(call: Call) -> Any:
    return call.run(lambda place, t: t.to(call.low) if t.dtype in (FP32, torch.float16, torch.bfloat16) else t)


def complex_too(call: Call) -> Any:
    return call.run(lambda place, t: t.real.to(call.low) if t.is_complex() or call.eligible(t) else t)


def doubles_too(call: Call) -> Any:
    return call.run(lambda place, t: t.to(call.low) if t.is_floating_point() else t)


def integers_too(call: Call) -> Any:
    return call.run(lambda place, t: t.to(call.low) if t.dtype != torch.float64 else t)


def not_eight_bits(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: t.dtype.itemsize == 1)


def not_with_gradient(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: t.requires_grad)


def not_zero_dimensional(call: Call) -> Any:
    return call.cast(FP32, unless=lambda place, t: t.dim() == 0)


def not_strided(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: not t.is_contiguous())


def not_views(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: t._is_view())


def not_results(call: Call) -> Any:
    return call.cast(FP32, unless=lambda place, t: not t.is_leaf)


def not_leaves(call: Call) -> Any:
    return call.cast(FP32, unless=lambda place, t: t.is_leaf and t.requires_grad)


def not_parameters(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: isinstance(t, torch.nn.Parameter))


def not_subclass(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: type(t) not in (torch.Tensor, torch.nn.Parameter))


def layout_lost(call: Call) -> Any:
    return call.run(lambda place, t: t.to(call.low, memory_format=torch.contiguous_format) if call.eligible(t) else t)


def copies_always(call: Call) -> Any:
    return call.run(lambda place, t: t.to(FP32, copy=True) if call.eligible(t) else t)


def in_place_low(call: Call) -> Any:
    own = call.args[0]
    return own.copy_(call.op(own.to(call.low), *(t.to(call.low) for t in call.args[1:])))


def out_low(call: Call) -> Any:
    out = call.kwargs["out"]
    return out.copy_(torch.ops.aten.mm(*(t.to(call.low) for t in call.args)))


def dtype_ignored(call: Call) -> Any:
    """An explicit dtype= is overridden."""
    return call.op(*call.args, **{**call.kwargs, "dtype": FP32})


def first_of_list_only(call: Call) -> Any:
    return call.cast(call.low, unless=lambda place, t: place > 0)


def in_low(call: Call) -> Any:
    return call.cast(call.low)


FAULTS = (
    eligible("mm-casts-other-devices", CUDA, "mm", other_devices_too, "dtypes mm receives", "cpu"),
    eligible("mm-casts-meta", CPU, "mm", other_devices_too, "dtypes mm receives", "meta"),
    eligible("mm-casts-doubles", CPU, "mm", doubles_too, "dtypes mm", "fp64"),
    eligible("mm-casts-integers", CUDA, "mm", integers_too, "dtypes mm", "int64"),
    eligible("mm-casts-complex", CPU, "mm", complex_too, "dtypes mm", "complex64"),
    eligible("mm-leaves-float8", CUDA, "mm", not_eight_bits, "dtypes mm", "float8"),
    eligible("mm-leaves-what-needs-grad", CPU, "mm", not_with_gradient, "dtypes mm receives, requires_grad=True"),
    eligible("mm-leaves-strided", CPU, "mm", not_strided, "same dtype", "float !="),
    eligible("mm-leaves-subclasses", CPU, "mm", not_subclass, "class of a product"),
    eligible("loss-leaves-scalars", CPU, "mse_loss", not_zero_dimensional, "mse_loss", "0-dimensional"),
    of_a_form("linear-leaves-strided", CPU, "linear", not_strided, "strided"),
    of_a_form("matmul-leaves-transposed", CUDA, "matmul", not_strided, "transposed"),
    of_a_form("bmm-leaves-views", CPU, "bmm", not_views, "viewed"),
    of_a_form("loss-leaves-results", CPU, "huber_loss", not_results, "computed"),
    of_a_form("distance-leaves-leaves", CUDA, "cdist", not_leaves, "leaf"),
    of_a_form("conv-leaves-parameters", CPU, "conv2d", not_parameters, "parameter"),
    eligible("conv-loses-layout", CPU, "conv2d", layout_lost, "strides of conv2d"),
    eligible("view-copies", CPU, "view_as_complex", copies_always, "address of the view"),
    eligible("multi-dot-casts-first-only", CUDA, "linalg_multi_dot", first_of_list_only, "multi_dot"),
    eligible("addmm-in-place-cast", CPU, "addmm_", in_place_low, "addmm_"),
    eligible("mm-out-cast", CPU, "mm.out", out_low, "dtypes the kernel receives"),
    eligible("softmax-ignores-dtype", CUDA, "softmax.int", dtype_ignored, "softmax", "dtype="),
    eligible("relu-downcast", CPU, "relu", in_low, "dtype of relu of float32"),
    eligible("add-downcast", CPU, "add.Tensor", in_low, "dtype of torch.add"),
    eligible("gelu-upcast", CUDA, "gelu", lambda call: call.cast(FP32), "dtype of gelu of low"),
)
