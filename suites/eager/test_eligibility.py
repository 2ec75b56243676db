"""Rule eligibility: only floating-point tensors other than float64 on the region's device type are cast.

In-place calls and calls with `out=` go through as they are. Source:
https://docs.pytorch.org/docs/2.13/amp.html#autocast-eligibility, and `is_eligible` of aten/src/ATen/autocast_mode.h.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from ampcheck.checks import layouts
from ampcheck.checks.training import default_dtype
from ampcheck.runner.suite import Amp, DeviceAmp, Product, other_than, scenario, where
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("eligibility")

INELIGIBLE = {
    "double": torch.float64,
    "whole": torch.int64,
    "narrow_whole": torch.int8,
    "boolean": torch.bool,
    "complex": torch.complex64,
}
INF = float("inf")
mse_loss = functional.mse_loss


def _tensor(amp: Amp, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return amp.rand(*shape).to(dtype) if amp.has_values else torch.empty(shape, dtype=dtype, device=amp.type)


@scenario(kind=INELIGIBLE)
def test_never_cast(amp: Amp, kind: str) -> None:
    """float64 and tensors that are not floating point reach every kernel unchanged (amp.html#op-eligibility)."""
    x = _tensor(amp, INELIGIBLE[kind], 3, 3)
    own = name_of(x.dtype)
    with amp.region():
        amp.assert_received("mm", lambda: torch.mm(x, x), (own, own))
        amp.assert_received("mse_loss", lambda: mse_loss(x, x), (own, own))
        got = amp.observe(lambda: torch.sum(x, 0), x)
        amp.assert_equal("casts made for sum", len(got.casts), 0)
        told = [kernel.dtype_kwarg for kernel in got.kernels if kernel.overload == "sum.dim_IntList"]
        amp.assert_equal("dtype that sum was told", told, [None])
        both = amp.observe(lambda: [torch.cat([x, x]), torch.atan2(x, x)], x)
        amp.assert_equal("casts made for ops that widen", [c for c in both.casts if c.source is not None], [])


@scenario(kind=INELIGIBLE)
def test_cast_beside(amp: Amp, kind: str) -> None:
    """Of two arguments only the eligible one is cast, though the op may refuse the mixture (amp.html)."""
    x, single = _tensor(amp, INELIGIBLE[kind], 3, 3), amp.rand(3, 3)
    own, low = name_of(x.dtype), name_of(amp.dtype)
    with amp.region():
        amp.assert_equal("dtypes mm(x, float32) receives", amp.received("mm", lambda: torch.mm(x, single)), (own, low))
        amp.assert_equal("dtypes mm(float32, x) receives", amp.received("mm", lambda: torch.mm(single, x)), (low, own))
        lower = single.to(amp.dtype)
        got = amp.received("mse_loss", lambda: mse_loss(lower, x))
        amp.assert_equal("dtypes mse_loss(low, x) receives", got, ("fp32", own))


@scenario(values=True)
def test_double_meets_low(amp: Amp) -> None:
    """A product of float64 and a lower precision fails as it does outside of a region (amp.html#op-eligibility)."""
    double, low = _tensor(amp, torch.float64, 3, 3), amp.rand(3, 3, dtype=amp.dtype)
    amp.assert_raises("the product outside", RuntimeError, "same dtype", lambda: torch.mm(double, low))
    with amp.region():
        amp.assert_raises("the product inside", RuntimeError, "same dtype", lambda: torch.mm(double, low))


@scenario()
def test_eight_bits(amp: Amp) -> None:
    """float8 is floating point and not float64, so it is cast like any other (autocast_mode.h, is_eligible)."""
    low = name_of(amp.dtype)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = _tensor(amp, dtype, 3, 3)
        with amp.region():
            amp.assert_received("mm", lambda x=x: torch.mm(x, x), (low, low), f" of {dtype}")
            amp.assert_received("mse_loss", lambda x=x: mse_loss(x, x), ("fp32", "fp32"), f" of {dtype}")


@scenario()
def test_other_device(amp: Amp) -> None:
    """Tensors of another device type pass as they are (autocast_mode.h, is_autocast_eligible; pytorch#114458)."""
    elsewhere = "meta" if amp.type == "cpu" else "cpu"
    x, own = torch.empty(3, 3, device=elsewhere), amp.rand(3, 3)
    low = name_of(amp.dtype)
    with amp.region():
        amp.assert_received("mm", lambda: torch.mm(x, x), ("fp32", "fp32"), f" of {elsewhere} tensors")
        lower = x.to(amp.dtype)
        amp.assert_received("mse_loss", lambda: mse_loss(lower, lower), (low, low), f" of {elsewhere} tensors")
        amp.assert_received("mm", lambda: torch.mm(own, x), (low, "fp32"), f" of a {amp.type} and a {elsewhere} tensor")
        amp.assert_equal(f"dtype of a product of {elsewhere} tensors", torch.mm(x, x).dtype, torch.float32)


@scenario()
def test_absent_tensors(amp: Amp) -> None:
    """An optional tensor that is not given stays so, and the rest is cast (autocast_mode.h, cached_cast)."""
    x, weight, bias = amp.rand(2, 3), amp.rand(4, 3), amp.rand(4)
    low, linear = name_of(amp.dtype), functional.linear
    with amp.region():
        amp.assert_received("linear", lambda: linear(x, weight), (low, low))
        amp.assert_received("linear", lambda: linear(x, weight, bias), (low, low, low), " with a bias")
        amp.assert_equal("dtype of linear without a bias", linear(x, weight, None).dtype, amp.dtype)


@scenario()
def test_scalars(amp: Amp) -> None:
    """0-dimensional tensors are cast like any other, and Python numbers change nothing (autocast_mode.h)."""
    low = name_of(amp.dtype)
    zero, matrix = amp.rand(dtype=amp.dtype), amp.rand(3, 3)
    with amp.region():
        amp.assert_received("mse_loss", lambda: mse_loss(zero, zero), ("fp32", "fp32"), " of 0-dimensional tensors")
        call = partial(torch.addmm, matrix, matrix, matrix, beta=0.5, alpha=2)
        amp.assert_received("addmm", call, (low, low, low), " with beta and alpha")
        amp.assert_equal("dtype of a sum with a Python number", (matrix + 1.5).dtype, torch.float32)
        amp.assert_equal("dtype of a low sum with a Python number", (zero + 1.5).dtype, amp.dtype)


@scenario()
def test_lists(amp: Amp) -> None:
    """Each eligible tensor of a list is cast, the others are not (autocast_mode.h, cached_cast of lists)."""
    single, lower, double = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype), _tensor(amp, torch.float64, 3, 3)
    low = name_of(amp.dtype)
    multi_dot = torch.linalg.multi_dot
    with amp.region():
        if amp.policies.get("linalg_multi_dot") == "downcast":
            amp.assert_received("linalg_multi_dot", lambda: multi_dot([single, lower, single]), (low, low, low))
            got = amp.received("linalg_multi_dot", lambda: multi_dot([single, double, lower]))
            amp.assert_equal("dtypes multi_dot receives with float64", got, (low, "fp64", low))
        if amp.policies.get("cat") == "promote":
            for name, op in (("cat", torch.cat), ("stack", torch.stack)):
                amp.assert_received(name, lambda op=op: op([lower, single, lower]), ("fp32", "fp32", "fp32"))
                amp.assert_received(name, lambda op=op: op([lower, lower]), (low, low), " of low tensors alone")
                got = amp.received(name, lambda op=op: op([lower, double, single]))
                amp.assert_equal(f"dtypes {name} receives with float64", got, ("fp32", "fp64", "fp32"))
        amp.assert_equal("dtype of cat of float32 and low", torch.cat([lower, single]).dtype, torch.float32)
        amp.assert_equal("dtype of stack of float32 and low", torch.stack([single, lower]).dtype, torch.float32)


@scenario()
def test_empty_lists(amp: Amp) -> None:
    """An empty list is refused as it is outside of a region (amp.html#op-eligibility)."""
    for op in (torch.cat, torch.stack, torch.linalg.multi_dot):
        outside = amp.outcome(op, [])
        amp.assert_equal(f"whether {op.__name__} of nothing is refused outside", isinstance(outside, str), True)
        with amp.region():
            amp.assert_equal(f"what {op.__name__} of nothing raises", amp.outcome(op, []), outside)


@scenario()
def test_requires_grad_is_no_matter(amp: Amp) -> None:
    """A tensor is cast whether or not it requires grad (autocast_mode.h, is_eligible)."""
    low = name_of(amp.dtype)
    for needed in (False, True):
        x, lower = amp.rand(3, 3, requires_grad=needed), amp.rand(3, 3, dtype=amp.dtype, requires_grad=needed)
        with amp.region():
            amp.assert_received("mm", lambda x=x: torch.mm(x, x), (low, low), f", requires_grad={needed}")
            said = f", requires_grad={needed}"
            amp.assert_received("mse_loss", lambda x=lower: mse_loss(x, x), ("fp32", "fp32"), said)


@scenario()
def test_nothing_to_cast(amp: Amp) -> None:
    """A tensor that has the dtype already is not cast (autocast_mode.cpp, cached_cast)."""
    low, single = amp.rand(3, 3, dtype=amp.dtype), amp.rand(3, 3)
    with amp.region():
        amp.assert_equal("casts of a low matrix by mm", amp.casts(lambda: torch.mm(low, low), low), 0)
        amp.assert_equal("casts of float32 by mse_loss", amp.casts(lambda: mse_loss(single, single), single), 0)


@scenario(types=("cpu",))
def test_nothing_to_copy(amp: Amp) -> None:
    """A tensor that has the dtype already is handed on as it is: a view of it shares its storage (cached_cast)."""
    pairs = amp.rand(3, 2)
    with amp.region():
        view = torch.view_as_complex(pairs)
    amp.assert_equal("address of the view", view.data_ptr(), pairs.data_ptr())


@scenario()
def test_layout_is_kept(amp: Amp) -> None:
    """Casts keep strides, so results have the layout of a call on explicitly cast inputs (Tensor.to, memory_format)."""
    x = amp.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight = amp.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)
    conv2d = functional.conv2d
    with amp.region():
        got = amp.observe(lambda: conv2d(x, weight)).outputs
    wanted = conv2d(x.to(amp.dtype), weight.to(amp.dtype))
    amp.assert_equal("strides of conv2d of channels_last", [t.stride() for t in got], [wanted.stride()])
    amp.assert_equal("dtype of conv2d of channels_last", [t.dtype for t in got], [amp.dtype])


@scenario(values=True)
def test_views_have_their_values(amp: Amp) -> None:
    """Transposed, strided and expanded tensors are cast with the values they show (Tensor.to)."""
    x, y = amp.rand(4, 3), amp.rand(4, 6)
    for what, left, right in (
        ("a transposed matrix", x.t(), y),
        ("every second column", x.t(), y[:, ::2]),
        ("an expanded row", x[:1].expand(5, 3), x.t()),
    ):
        with amp.region():
            got = torch.mm(left, right)
        wanted = torch.mm(left.to(amp.dtype), right.to(amp.dtype))
        amp.assert_equal(f"product with {what}", amp.values(got), amp.values(wanted))


# ---- calls
@scenario(op=["mm", "addmm", "bmm", "baddbmm"])
def test_out(amp: Amp, op: str) -> None:
    """A call with out= acts as outside of a region (amp.html#op-eligibility; csarofeen/pytorch#672)."""
    shape = (2, 3, 3) if op in ("bmm", "baddbmm") else (3, 3)
    call = getattr(torch, op)
    x, out = amp.rand(*shape), amp.rand(*shape)
    arguments = (x, x, x) if op in ("addmm", "baddbmm") else (x, x)
    with amp.region():
        seen = amp.observe(lambda: call(*arguments, out=out), x, out)
        kernel = seen.of(f"{op}.out")
        received = [leaf.got for leaf in kernel.leaves] if kernel else []
        amp.assert_equal("dtypes the kernel receives", received, ["fp32"] * (len(arguments) + 1))
        amp.assert_equal("casts", len(seen.casts), 0)
        if amp.has_values:
            amp.assert_equal("whether out is what is returned", call(*arguments, out=out) is out, True)


@scenario(op=["addmm_", "baddbmm_", "addmv_", "addr_"])
def test_in_place(amp: Amp, op: str) -> None:
    """An in-place call acts as outside of a region (amp.html#op-eligibility; csarofeen/pytorch#672)."""
    matrix, vector, batch = amp.rand(3, 3), amp.rand(3), amp.rand(2, 3, 3)
    own, arguments = {
        "addmm_": (amp.rand(3, 3), (matrix, matrix)),
        "baddbmm_": (amp.rand(2, 3, 3), (batch, batch)),
        "addmv_": (amp.rand(3), (matrix, vector)),
        "addr_": (amp.rand(3, 3), (vector, vector)),
    }[op]
    with amp.region():
        seen = amp.observe(lambda: getattr(own, op)(*arguments), own, *arguments)
        amp.assert_equal("dtype of the result", [t.dtype for t in seen.outputs], [torch.float32])
        amp.assert_equal("casts", len(seen.casts), 0)
        kernel = seen.of(op)
        received = [leaf.got for leaf in kernel.leaves] if kernel else []
        amp.assert_equal("dtypes the kernel receives", received, ["fp32"] * (len(arguments) + 1))


@scenario(values=True)
def test_low_tensors_without_autocast(amp: Amp) -> None:
    """Dtypes that an in-place call or one with out= refuses outside, it refuses in a region too (amp.html)."""
    single, low = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype)
    for what, call in (
        ("addmm_ of float32 and low", lambda: amp.rand(3, 3).addmm_(single, low)),
        ("addmm_ of a low tensor", lambda: amp.rand(3, 3, dtype=amp.dtype).addmm_(single, single)),
        ("mm with a low out", lambda: torch.mm(single, single, out=amp.rand(3, 3, dtype=amp.dtype))),
    ):
        amp.assert_raises(f"{what}, outside", RuntimeError, "", call)
        with amp.region():
            amp.assert_raises(f"{what}, inside", RuntimeError, "", call)


@scenario(op=["sum", "prod", "cumsum", "cumprod", "softmax", "log_softmax"])
def test_explicit_dtype(amp: Amp, op: str) -> None:
    """A call with dtype= gives that dtype (amp.html#op-eligibility)."""
    x, low = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype)
    call = getattr(torch, op)
    with amp.region():
        for dtype in (amp.dtype, torch.float32, torch.float64):
            for what, given in (("float32", x), ("low", low)):
                amp.assert_equal(f"dtype of {op}({what}, dtype={dtype})", call(given, 0, dtype=dtype).dtype, dtype)


@scenario(op=["linalg_cholesky_ex", "linalg_inv_ex"], types=("cpu",), values=True)
def test_checks_on_request(amp: Amp, op: str) -> None:
    """An op raises for errors in its result where it is told to, and only there, in a region, too (check_errors)."""
    call, singular = getattr(torch.ops.aten, op), torch.zeros(2, 2, dtype=amp.dtype, device=amp.type)
    with amp.region():
        amp.assert_equal("whether it notes an error", bool(call(singular, check_errors=False)[-1].any()), True)
        amp.assert_raises("told to raise", RuntimeError, "", lambda: call(singular, check_errors=True))


@scenario(default=["double", "low"])
def test_default_dtype(amp: Amp, default: str) -> None:
    """What is cast, and to which dtype, is not for `torch.set_default_dtype` to say (amp.html#op-eligibility)."""
    x, low, half = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype), name_of(amp.dtype)
    with default_dtype(torch.float64 if default == "double" else amp.dtype), amp.region():
        amp.assert_received("mm", lambda: torch.mm(x, x), (half, half))
        amp.assert_received("mse_loss", lambda: mse_loss(low, x), ("fp32", "fp32"))
        amp.assert_equal("dtype of a concatenation", torch.cat([low, x]).dtype, torch.float32)


@scenario()
def test_every_spelling(amp: Amp) -> None:
    """Functions, methods and operators of an op are autocast alike (amp.html#cuda-op-specific-behavior)."""
    x, y = amp.rand(3, 3), amp.rand(3, 3)
    spellings: dict[str, Callable[[], torch.Tensor]] = {
        "torch.mm": lambda: torch.mm(x, y),
        "Tensor.mm": lambda: x.mm(y),
        "torch.matmul": lambda: torch.matmul(x, y),
        "Tensor.matmul": lambda: x.matmul(y),
        "torch.linalg.matmul": lambda: torch.linalg.matmul(x, y),
        "@": lambda: x @ y,
        "operator.matmul": lambda: operator.matmul(x, y),
        "__matmul__": lambda: x.__matmul__(y),
        "__rmatmul__": lambda: x.__rmatmul__(y),
        "nn.functional.linear": lambda: torch.nn.functional.linear(x, y),
        "torch.ops.aten.mm": lambda: torch.ops.aten.mm(x, y),
    }
    with amp.region():
        for name, call in spellings.items():
            amp.assert_equal(f"dtype of {name}", call().dtype, amp.dtype)


@scenario()
def test_every_spelling_of_powers(amp: Amp) -> None:
    """Operators that call an op on the list for float32 give float32 (amp.html#cuda-op-specific-behavior)."""
    low = amp.rand(3, dtype=amp.dtype)
    overloads = ("pow.Tensor_Scalar", "pow.Scalar", "reciprocal")
    power, exponential, inverse = (
        torch.float32 if amp.policies.get(name) == "upcast" else amp.dtype for name in overloads
    )
    with amp.region():
        for name, call, wanted in (
            ("x ** 2", lambda: low**2, power),
            ("__pow__", lambda: low.__pow__(2.0), power),
            ("2 ** x", lambda: 2.0**low, exponential),
            ("__rpow__", lambda: low.__rpow__(2.0), exponential),
            ("1 / x", lambda: 1.0 / low, inverse),
            ("__rtruediv__", lambda: low.__rtruediv__(1.0), inverse),
        ):
            amp.assert_equal(f"dtype of {name}", call().dtype, wanted)


@scenario(op=["eq", "ge", "gt", "le", "lt", "ne", "add", "div", "mul"])
def test_builtin_promotion(amp: Amp, op: str) -> None:
    """Ops that widen by themselves do so in a region as outside (amp.html: ops not listed here natively promote)."""
    single, low = amp.rand(3), amp.rand(3, dtype=amp.dtype)
    special = {"div": "truediv"}.get(op, op)
    wanted = torch.float32 if op in ("add", "div", "mul") else torch.bool
    with amp.region():
        for what, left, right in (("float32 and low", single, low), ("low and float32", low, single)):
            amp.assert_equal(f"dtype of torch.{op} of {what}", getattr(torch, op)(left, right).dtype, wanted)
            amp.assert_equal(f"dtype of Tensor.{op} of {what}", getattr(left, op)(right).dtype, wanted)
            amp.assert_equal(f"dtype of __{special}__ of {what}", getattr(left, f"__{special}__")(right).dtype, wanted)
        same = low.dtype if wanted == torch.float32 else torch.bool
        amp.assert_equal(f"dtype of torch.{op} of low tensors", getattr(torch, op)(low, low).dtype, same)


@scenario()
def test_other_ops_that_widen(amp: Amp) -> None:
    """cat, stack and equal of a mixture act as outside of a region (amp.html: ops not listed here natively promote)."""
    single, low = amp.rand(3), amp.rand(3, dtype=amp.dtype)
    with amp.region():
        amp.assert_equal("dtype of cat", torch.cat([single, low]).dtype, torch.float32)
        amp.assert_equal("dtype of stack", torch.stack([low, single]).dtype, torch.float32)
        amp.assert_equal("dtype of where", torch.where(single > 0, single, low).dtype, torch.float32)
        if amp.has_values:
            amp.assert_equal("equal", torch.equal(low.float(), low), True)


class _Marked(torch.Tensor):
    """A tensor of a subclass with the behaviour that PyTorch gives it."""


@scenario(values=True)
def test_tensor_subclass(amp: Amp) -> None:
    """Tensors of a subclass are autocast as tensors are (autocast_mode.h asks for device and dtype alone)."""
    x = amp.rand(3, 3).as_subclass(_Marked)
    with amp.region():
        out = torch.mm(x, x)
        loss = mse_loss(x.to(amp.dtype), x.to(amp.dtype))
    amp.assert_equal("dtype and class of a product", (out.dtype, type(out)), (amp.dtype, _Marked))
    amp.assert_equal("dtype and class of a loss", (loss.dtype, type(loss)), (torch.float32, _Marked))


@scenario()
def test_unlisted_ops(amp: Amp) -> None:
    """An op that is not listed runs in the dtype of its input, downstream ones included (amp.html)."""
    single, low = amp.rand(2, 3, 4, 4), amp.rand(2, 3, 4, 4, dtype=amp.dtype)
    with amp.region():
        for name, call in (
            ("relu", torch.relu),
            ("gelu", functional.gelu),
            ("tanh", torch.tanh),
            ("max_pool2d", lambda x: functional.max_pool2d(x, 2)),
            ("avg_pool2d", lambda x: functional.avg_pool2d(x, 2)),
            ("flatten", torch.flatten),
            ("abs", torch.abs),
        ):
            amp.assert_equal(f"dtype of {name} of float32", call(single).dtype, torch.float32)
            amp.assert_equal(f"dtype of {name} of low", call(low).dtype, amp.dtype)
        product = torch.mm(amp.rand(3, 3), amp.rand(3, 3))
        amp.assert_equal("dtype of relu of a product", torch.relu(product).dtype, amp.dtype)


@scenario()
def test_eight_bits_that_widen(amp: Amp) -> None:
    """Tensors of one float8 dtype go through an op that widens as they do outside (amp.html: any type)."""
    x = torch.empty(3, 3, dtype=torch.float8_e4m3fn, device=amp.type)
    for name, op in (("cat", torch.cat), ("stack", torch.stack)):
        amp.assert_equal(f"dtype of {name} outside", op([x, x]).dtype, x.dtype)
        with amp.region():
            found = str(amp.outcome(lambda op=op: op([x, x]).dtype))
        amp.assert_equal(f"dtype of {name} inside", found, str(x.dtype))


LOW_AND_WIDE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "mv": lambda low, wide: torch.mv(wide, low[0]),
    "addmv": lambda low, wide: torch.addmv(low[0], wide, wide[0]),
    "multi_dot": lambda low, wide: torch.linalg.multi_dot([low, wide, low]),
    "complex": torch.complex,
    "inner": torch.inner,
    "index_add": lambda low, wide: low.index_add(0, torch.arange(4), wide),
    "index_reduce": lambda low, wide: low.index_reduce(0, torch.arange(4), wide, "prod"),
    "scatter": lambda low, wide: low.scatter(0, torch.zeros(4, 4, dtype=torch.int64), wide),
    "scatter_reduce": lambda low, wide: low.scatter_reduce(0, torch.zeros(4, 4, dtype=torch.int64), wide, "sum"),
    "put": lambda low, wide: low.put(torch.arange(4), wide[0]),
    "embedding_bag": lambda low, wide: torch.nn.functional.embedding_bag(
        torch.zeros(2, 2, dtype=torch.int64), low, per_sample_weights=wide[:2, :2], mode="sum"
    ),
    "isclose": torch.isclose,
    "heaviside": torch.heaviside,
    "meshgrid": lambda low, wide: torch.meshgrid(low[0], wide[0], indexing="ij"),
}
"""Calls of a low and a float32 tensor; more of them, with separate reports, are in `test_reports.py`."""


@scenario(op=LOW_AND_WIDE, types=("cpu",), dtypes="default")
def test_low_and_wide(amp: Amp, op: str) -> None:
    """A result of a region and a float32 tensor do not raise for their types (amp.html: tensors may be any type)."""
    wide = amp.rand(4, 4)
    with amp.region():
        raised = amp.outcome(LOW_AND_WIDE[op], torch.mm(wide, wide), wide)
    amp.assert_equal(f"what {op} of a low and a float32 tensor raises", raised if isinstance(raised, str) else "", "")


# ---- tensors of every layout
@scenario(form=layouts.LAYOUTS, dtypes="default")
def test_any_form(amp: DeviceAmp, form: str) -> None:
    """Dtype and device alone decide whether a tensor is cast, not strides or history (autocast_mode.h, is_eligible)."""
    if form == "computed" and not amp.has_values:
        amp.unsupported("a graph of fake tensors of a device type that PyTorch was built without ends the process")
    seen = 0
    for case in layouts.cases(amp.device, amp.device.default_amp):
        found = layouts.differences(case, amp.device, form)
        if found is None:
            continue
        seen += 1
        amp.assert_equal(f"what {case.op} makes of tensors that are {form}", found, [])
        if found and not amp.script:
            amp.script = layouts.program(case, amp.device, form, found)
    if not seen:
        amp.unsupported(f"{amp.name} does not show what kernels receive")


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "uncoalesced": lambda x: torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 3]], x[0, :3], x.shape, check_invariants=True),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "jagged": lambda x: torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged),
    "expanded": lambda x: x[:1].expand(4, 4),
    "offset": lambda x: torch.cat([x, x])[1:, :].as_strided((4, 4), (4, 1)),
    "negated": lambda x: torch._neg_view(-x),
    "shared": lambda x: x.clone().share_memory_(),
}
"""What makes a tensor of another layout, or in other memory, of a matrix of four rows and columns."""
CALLED: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "product": ("mm", torch.mm),
    "from_the_right": ("mm", lambda x, matrix: torch.mm(matrix, x)),
    "summed": ("addmm", lambda x, matrix: torch.addmm(matrix, x, matrix)),
    "layer": ("linear", functional.linear),
    "layer_with_bias": ("linear", lambda x, matrix: functional.linear(x, matrix, matrix[0])),
    "weight": ("linear", lambda x, matrix: functional.linear(matrix, x)),
    "exponential": ("exp", lambda x, matrix: torch.exp(x)),
    "softmax": ("softmax.int", lambda x, matrix: torch.softmax(x, -1)),
    "normalized": ("layer_norm", lambda x, matrix: functional.layer_norm(x, (4,))),
    "joined": ("cat", lambda x, matrix: torch.cat([x, x], -1)),
    "sine": ("sin", lambda x, matrix: torch.sin(x)),
}
"""An overload, and a call of such a tensor and of a matrix."""
JAGGED = ("layer", "layer_with_bias", "exponential", "softmax", "normalized", "joined", "sine")
PRODUCTS = ("product", "from_the_right", "summed", "layer", "weight")

LAID = Product(
    {
        "layout": tuple(MADE),
        "call": tuple(CALLED),
        "given": ("wide", "low"),
        "grads": ("unasked", "asked", "no_grad", "inference"),
    },
    {
        "PyTorch has no such call of a jagged tensor": where(layout="jagged", call=other_than(*JAGGED)),
        "PyTorch has no such call of a sparse tensor": where(
            layout=("coo", "uncoalesced", "csr", "csc", "bsr"), call=other_than(*PRODUCTS)
        ),
        "PyTorch has no such product of blocks": where(layout="bsr", call="from_the_right"),
    },
)


@scenario(LAID, types=("cpu", "cuda"), values=True)
def test_laid_out(amp: Amp, layout: str, call: str, given: str, grads: str) -> None:
    """A call of a tensor of any layout gives what it gives on hand-cast ones (torch.sparse; torch.nested)."""
    dtype = torch.float32 if given == "wide" else amp.dtype
    matrix = (amp.rand(4, 4) * 4 - 2).to(dtype)
    x = MADE[layout]((amp.rand(4, 4) * 4 - 2).to(dtype)).requires_grad_(grads == "asked")
    overload, function = CALLED[call]
    wanted = amp.casting(overload, [dtype, dtype, dtype])
    cast = wanted.dtype or wanted.dtypes[0] or dtype
    entered = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(grads, torch.enable_grad)
    with entered():
        want = amp.outcome(function, x.to(cast), matrix.to(cast))
        with amp.region():
            got = amp.outcome(function, x, matrix)
    if not _both_ran(amp, overload, got, want):
        return
    amp.assert_equal("dtype and layout of the result", (got.dtype, got.layout), (want.dtype, want.layout))
    amp.assert_equal("whether the result requires grad", got.requires_grad, want.requires_grad)
    if got.dtype == want.dtype and got.layout == want.layout:
        amp.assert_identical("result", _plain(got), _plain(want))


def _both_ran(amp: Amp, overload: str, got: torch.Tensor | str, want: torch.Tensor | str) -> bool:
    """Return whether two calls gave something; note where they raise, and not the same."""
    raised = [each if isinstance(each, str) else "" for each in (got, want)]
    if any(raised):
        amp.assert_equal(f"what {overload} raises", *raised)
    return not any(raised)


def _plain(x: torch.Tensor) -> torch.Tensor:
    return (x.values() if x.is_nested else x.to_dense()).detach()


BEYOND: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "linear": functional.linear,
    "bmm": lambda x, weight: torch.bmm(x[None], weight[None])[0],
}


@scenario(op=BEYOND, values=True)
def test_beyond_the_range(amp: Amp, op: str) -> None:
    """A product beyond the largest number is infinite, with its sign, as outside of a region (torch.finfo)."""
    most = torch.finfo(amp.dtype).max
    x = torch.tensor([[most, 0.0], [-most, 0.0], [0.0, 2.0]], device=amp.type)
    with amp.region():
        got = BEYOND[op](x, torch.full((2, 2), 4.0, device=amp.type))
    want = torch.tensor([[INF, INF], [-INF, -INF], [8.0, 8.0]], dtype=amp.dtype)
    amp.assert_equal("dtype of the product", got.dtype, amp.dtype)
    amp.assert_equal("the product", amp.host(got).tolist(), want.tolist())


# ---- numbers on the host: 0-dimensional CPU tensors beside those of the device
BESIDE: dict[str, tuple[str, Callable[..., torch.Tensor], int]] = {
    "multiplied": ("addcmul", torch.addcmul, 3),
    "divided": ("addcdiv", torch.addcdiv, 3),
    "angle": ("atan2", torch.atan2, 2),
    "power": ("pow.Tensor_Tensor", torch.pow, 2),
    "loss": ("mse_loss", torch.ops.aten.mse_loss, 2),
    "scaled": ("mul.Tensor", torch.mul, 2),
}
"""An overload, the call, and how many tensors it takes, of which the last one may be a number on the host."""

HOST = Product({"op": tuple(BESIDE), "number": ("single", "widest", "half", "brain"), "given": ("low", "wide", "both")})


@scenario(HOST, types=("cuda", "xpu", "mps", "mtia", "jax"), dtypes="default")
def test_host_numbers(amp: Amp, op: str, number: str, given: str) -> None:
    """A 0-dimensional CPU tensor is not cast, and widens nothing (autocast_mode.h, prioritize and is_eligible)."""
    overload, call, count = BESIDE[op]
    dtypes = {"low": [amp.dtype] * 2, "wide": [torch.float32] * 2, "both": [amp.dtype, torch.float32]}[given]
    kind = {"single": torch.float32, "widest": torch.float64, "half": torch.float16, "brain": torch.bfloat16}[number]
    here = [amp.rand(2, 3).to(dtype) for dtype in dtypes[: count - 1]]
    number_there = torch.full((), 1.5, dtype=kind, device="cpu")
    wanted = amp.casting(overload, [*(x.dtype for x in here), None])
    cast = [x.to(dtype or x.dtype) for x, dtype in zip(here, wanted.dtypes, strict=False)]
    want = amp.outcome(call, *cast, number_there)
    with amp.region():
        got = amp.outcome(call, *here, number_there)
        seen = None if isinstance(got, str) else amp.received(overload, lambda: call(*here, number_there))
    if not _both_ran(amp, overload, got, want):
        return
    if seen is not None:
        beside = [name_of(kind)] if len(seen) == count else []  # a backend may take it for a number
        amp.assert_equal(f"dtypes {overload} receives", seen, (*(name_of(x.dtype) for x in cast), *beside))
    amp.assert_equal(f"dtype of the result of {overload}", got.dtype, want.dtype)
    if amp.has_values and got.dtype == want.dtype:
        amp.assert_identical(f"result of {overload}", got, want)


# ---- custom ops of torch.library
@scenario(since="2.13")  # before, it was promised for the CPU and CUDA alone
def test_custom_op(amp: Amp) -> None:
    """A custom op casts eligible tensors where register_autocast asks (torch.library.register_autocast)."""
    whole, double = (torch.zeros(2, 2, dtype=dtype, device=amp.type) for dtype in (torch.int64, torch.float64))
    with _library_op(amp, "twice", "(Tensor x) -> Tensor", lambda x: x + x) as twice:
        amp.assert_equal(f"whether registering for {amp.type} is refused", twice is None, False)
        if twice is None:
            return
        x = amp.rand(2, 2)
        amp.assert_equal("dtype outside", twice(x).dtype, torch.float32)
        with amp.region():
            amp.assert_equal("dtype inside", twice(x).dtype, amp.dtype)
            amp.assert_equal("dtype of int64 inside", twice(whole).dtype, torch.int64)
            amp.assert_equal("dtype of float64 inside", twice(double).dtype, torch.float64)
        with amp.region(enabled=False):
            amp.assert_equal("dtype in a disabled region", twice(x).dtype, torch.float32)


@contextmanager
def _library_op(amp: Amp, name: str, schema: str, kernel: Callable[..., object]) -> Iterator[Callable[..., Any] | None]:
    """Register an op of a library with its autocast; None where that is refused, in words."""
    with torch.library._scoped_library("ampcheck_eligibility", "FRAGMENT") as lib:
        torch.library.define(f"ampcheck_eligibility::{name}", schema, lib=lib)
        torch.library.impl(f"ampcheck_eligibility::{name}", "CompositeExplicitAutograd", kernel, lib=lib)
        refused = None
        try:
            torch.library.register_autocast(f"ampcheck_eligibility::{name}", amp.type, amp.dtype, lib=lib)
        except RuntimeError as error:
            refused = str(error)
            amp.assert_equal("does the refusal say why", bool(refused), True)
        yield getattr(torch.ops.ampcheck_eligibility, name) if refused is None else None


@scenario(values=True)
def test_custom_op_that_mutates(amp: Amp) -> None:
    """A custom op changes the tensor that it says it changes (torch.library.custom_op, mutates_args).

    Where register_autocast refuses such an op there is nothing to see.
    """
    with _library_op(amp, "double_", "(Tensor(a!) x) -> ()", lambda x: (x.mul_(2), None)[1]) as double:
        if double is None:
            return
        outside, inside = (torch.ones(2, device=amp.type) for _ in range(2))
        double(outside)
        with amp.region():
            double(inside)
        amp.assert_equal("a tensor that was doubled outside", amp.values(outside), [2.0, 2.0])
        amp.assert_equal("a tensor that was doubled inside", amp.values(inside), [2.0, 2.0])


@scenario(values=True)
def test_custom_op_with_keyword(amp: Amp) -> None:
    """An op with a keyword-only argument takes it in a region too (torch.library.register_autocast).

    Where register_autocast refuses such an op there is nothing to see.
    """
    schema = "(Tensor x, *, float factor) -> Tensor"
    with _library_op(amp, "scaled", schema, lambda x, *, factor: x * factor) as scaled:
        if scaled is None:
            return
        x = amp.rand(2)
        amp.assert_equal("dtype outside", scaled(x, factor=2.0).dtype, torch.float32)
        with amp.region():
            found = str(amp.outcome(lambda: scaled(x, factor=2.0).dtype))
        amp.assert_equal("dtype inside", found, str(amp.dtype))


# ---- torch.vmap: a mapped call does for each slice what the call does for one
TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")
"""PyTorch's own device types: how vmap decomposes an op does not concern another one's kernels."""

WIDE: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((3, 3), (3, 3))),
    "linear": (functional.linear, ((3, 3), (3, 3))),
    "linear_bias": (functional.linear, ((3, 3), (3, 3), (3,))),
    "addmm": (torch.addmm, ((3, 3), (3, 3), (3, 3))),
    "baddbmm": (torch.baddbmm, ((2, 3, 3), (2, 3, 3), (2, 3, 3))),
    "conv1d": (functional.conv1d, ((2, 3, 4), (3, 3, 1))),
    "conv1d_bias": (functional.conv1d, ((2, 3, 4), (3, 3, 1), (3,))),
    "prelu": (functional.prelu, ((3, 3), (1,))),
}
"""Calls of float32 tensors, by the shape of each for one slice."""

LOW: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "exp": (torch.exp, ((3, 3),)),
    "softmax": (lambda x: torch.softmax(x, -1), ((3, 3),)),
    "sum": (lambda x: torch.sum(x, 0), ((3, 3),)),
    "layer_norm": (lambda x: functional.layer_norm(x, (3,)), ((3, 3),)),
    "group_norm": (lambda x: functional.group_norm(x, 1), ((3, 3),)),
    "mse_loss": (functional.mse_loss, ((3, 3), (3, 3))),
    "cross_entropy": (functional.cross_entropy, ((3, 3), (3, 3))),
    "smooth_l1_loss": (functional.smooth_l1_loss, ((3, 3), (3, 3))),
}
"""Calls of tensors in the region's dtype."""


@scenario(op=[*WIDE, *LOW], types=TYPES, dtypes="default")
def test_under_vmap(amp: Amp, op: str) -> None:
    """A mapped call gives the dtype that the call gives (torch.vmap; amp.html#autocast-eligibility: out of place)."""
    call, shapes = {**WIDE, **LOW}[op]
    dtype = torch.float32 if op in WIDE else amp.dtype
    with amp.region():
        wanted = call(*(amp.rand(*shape, dtype=dtype) for shape in shapes)).dtype
        got = torch.vmap(call)(*(amp.rand(2, *shape, dtype=dtype) for shape in shapes)).dtype
    amp.assert_equal(f"dtype of {op} under vmap", got, wanted)


@scenario(types=TYPES, values=True)
def test_attention_under_vmap(amp: Amp) -> None:
    """Attention under vmap is cast as any op is; its choice of a kernel needs a real device (torch.vmap)."""
    attention = functional.scaled_dot_product_attention
    with amp.region():
        wanted = attention(*(amp.rand(2, 3, 4) for _ in range(3))).dtype
        got = torch.vmap(attention)(*(amp.rand(5, 2, 3, 4) for _ in range(3))).dtype
    amp.assert_equal("dtype of attention under vmap", got, wanted)


@scenario(transform=["grad", "vjp"], values=True)
def test_under_a_derivative(amp: Amp, transform: str) -> None:
    """torch.func's derivatives see autocast ops, and give gradients in the input's dtype (torch.func)."""
    x, weight, bias = amp.rand(3, 3), amp.rand(3, 3), amp.rand(3)
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        out = functional.linear(x, weight, bias)
        seen.append(out.dtype)
        return out.float().sum()

    with amp.region():
        got = torch.func.grad(call)(x) if transform == "grad" else torch.func.vjp(call, x)[1](amp.rand())[0]
    amp.assert_equal(f"dtype of a layer under {transform}", seen, [amp.dtype])
    amp.assert_equal(f"dtype of the derivative by {transform}", got.dtype, torch.float32)


@scenario(values=True)
def test_weight_after_a_transform(amp: Amp) -> None:
    """A weight used under a transform is a usual one afterwards, with its gradient (torch.func)."""
    weight, x = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3)
    with amp.region():
        torch.func.grad(lambda x: torch.mm(x, weight).float().sum())(x)
        torch.vmap(lambda x: torch.mv(weight, x))(x)
        out = torch.mm(x, weight)
    amp.assert_equal("dtype and class of a product", (out.dtype, type(out)), (amp.dtype, torch.Tensor))
    out.float().sum().backward()
    reference = weight.detach().clone().requires_grad_()
    torch.mm(x.to(amp.dtype), reference.to(amp.dtype)).float().sum().backward()
    amp.assert_equal("gradient of the weight", amp.values(weight.grad), amp.values(reference.grad))
