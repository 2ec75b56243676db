"""Tensors cast that autocast must not touch, or left alone for a reason that is none."""

from __future__ import annotations

from typing import Any

import torch

from tests.faults.casts import CPU, CUDA, FP32, each, in_float32, in_low, low_doubles_too, low_integers_too, to
from tests.faults.fault import Fault
from tests.faults.kernels import Body, Call, kernel


def eligible(name: str, device: str, overload: str, body: Body, *says: str, **chosen: str) -> Fault:
    """A fault of one op on one device, seen by the cases of which tensors are eligible."""
    return Fault(name, "eligibility", lambda: kernel(device, overload, body), says, device=device, **chosen)


def of_a_form(name: str, device: str, op: str, body: Body, form: str) -> Fault:
    """The same, seen where every op is called with tensors of a form."""
    says = f"what {op} makes of tensors that are {form}"
    return eligible(name, device, op, body, says, op="any_form", only=form)


other_devices_too = each(lambda call, t: t.to(call.low) if t.dtype in (FP32, torch.float16, torch.bfloat16) else t)
complex_too = each(lambda call, t: t.real.to(call.low) if t.is_complex() or call.eligible(t) else t)
not_eight_bits = to("low", lambda call, place, t: t.dtype.itemsize == 1)
not_with_gradient = to("low", lambda call, place, t: t.requires_grad)
not_zero_dimensional = to(FP32, lambda call, place, t: t.dim() == 0)
not_strided = to("low", lambda call, place, t: not t.is_contiguous())
not_views = to("low", lambda call, place, t: t._is_view())
not_results = to(FP32, lambda call, place, t: not t.is_leaf)
not_leaves = to(FP32, lambda call, place, t: t.is_leaf and t.requires_grad)
not_parameters = to("low", lambda call, place, t: isinstance(t, torch.nn.Parameter))
not_subclass = to("low", lambda call, place, t: type(t) not in (torch.Tensor, torch.nn.Parameter))
first_of_list_only = to("low", lambda call, place, t: place > 0)
copies_always = each(lambda call, t: t.to(FP32, copy=True) if call.eligible(t) else t)
layout_lost = each(lambda call, t: t.to(call.low, memory_format=torch.contiguous_format) if call.eligible(t) else t)


def in_place_low(call: Call) -> Any:
    own = call.args[0]
    return own.copy_(call.op(own.to(call.low), *(t.to(call.low) for t in call.args[1:])))


def out_low(call: Call) -> Any:
    out = call.kwargs["out"]
    return out.copy_(torch.ops.aten.mm(*(t.to(call.low) for t in call.args)))


def dtype_ignored(call: Call) -> Any:
    """An explicit dtype= is overridden."""
    return call.op(*call.args, **{**call.kwargs, "dtype": FP32})


FAULTS = (
    eligible("mm-casts-other-devices", CUDA, "mm", other_devices_too, "dtypes mm receives", "cpu"),
    eligible("mm-casts-meta", CPU, "mm", other_devices_too, "dtypes mm receives", "meta"),
    eligible("mm-casts-doubles", CPU, "mm", low_doubles_too, "dtypes mm", "fp64"),
    eligible("mm-casts-integers", CUDA, "mm", low_integers_too, "dtypes mm", "int64"),
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
    eligible("gelu-upcast", CUDA, "gelu", in_float32, "dtype of gelu of low"),
)
