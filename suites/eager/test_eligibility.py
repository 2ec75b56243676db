"""Rule eligibility: `ampcheck.spec.rules` says what it promises.

Which tensors are cast; `test_eligibility__calls.py` says in which calls. Source:
https://docs.pytorch.org/docs/2.13/amp.html#op-eligibility, and `is_eligible` of aten/src/ATen/autocast_mode.h.
"""

from collections.abc import Callable

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("eligibility")

INELIGIBLE = {
    "double": torch.float64,
    "whole": torch.int64,
    "narrow_whole": torch.int8,
    "boolean": torch.bool,
    "complex": torch.complex64,
}
mse_loss = torch.nn.functional.mse_loss


def _of(amp: Amp, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any dtype."""
    return amp.rand(*shape).to(dtype) if amp.device.has_values else torch.empty(shape, dtype=dtype, device=amp.type)


@pytest.mark.parametrize("kind", list(INELIGIBLE))
@scenario()
def test_never_cast(amp: Amp, kind: str) -> None:
    """float64 and what is not floating point reaches every kernel as it is (amp.html#op-eligibility)."""
    x = _of(amp, INELIGIBLE[kind], 3, 3)
    own = name_of(x.dtype)
    with amp.region():
        amp.expect("dtypes mm receives", amp.received("mm", lambda: torch.mm(x, x)), (own, own))
        amp.expect("dtypes mse_loss receives", amp.received("mse_loss", lambda: mse_loss(x, x)), (own, own))
        got = amp.observe(lambda: torch.sum(x, 0), x)
        amp.expect("casts made for sum", len(got.casts), 0)
        told = [kernel.dtype_kwarg for kernel in got.kernels if kernel.overload == "sum.dim_IntList"]
        amp.expect("dtype that sum was told", told, [None])
        both = amp.observe(lambda: [torch.cat([x, x]), torch.atan2(x, x)], x)
        amp.expect("casts made for ops that widen", [c for c in both.casts if c.source is not None], [])


@pytest.mark.parametrize("kind", list(INELIGIBLE))
@scenario()
def test_cast_beside(amp: Amp, kind: str) -> None:
    """Of two arguments only the eligible one is cast, though the op may refuse the mixture (amp.html)."""
    x, single = _of(amp, INELIGIBLE[kind], 3, 3), amp.rand(3, 3)
    own, low = name_of(x.dtype), name_of(amp.dtype)
    with amp.region():
        amp.expect("dtypes mm(x, float32) receives", amp.received("mm", lambda: torch.mm(x, single)), (own, low))
        amp.expect("dtypes mm(float32, x) receives", amp.received("mm", lambda: torch.mm(single, x)), (low, own))
        lower = single.to(amp.dtype)
        got = amp.received("mse_loss", lambda: mse_loss(lower, x))
        amp.expect("dtypes mse_loss(low, x) receives", got, ("fp32", own))


@scenario(values=True)
def test_double_meets_low(amp: Amp) -> None:
    """A product of float64 and a lower precision fails as it does outside of a region (amp.html#op-eligibility)."""
    double, low = _of(amp, torch.float64, 3, 3), amp.rand(3, 3, dtype=amp.dtype)
    said = "same dtype"
    amp.raises("the product outside", RuntimeError, said, lambda: torch.mm(double, low))
    with amp.region():
        amp.raises("the product inside", RuntimeError, said, lambda: torch.mm(double, low))


@scenario()
def test_eight_bits(amp: Amp) -> None:
    """float8 is floating point and not float64, so it is cast like any other (autocast_mode.h, is_eligible)."""
    low = name_of(amp.dtype)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = _of(amp, dtype, 3, 3)
        with amp.region():
            amp.expect(f"dtypes mm receives of {dtype}", amp.received("mm", lambda x=x: torch.mm(x, x)), (low, low))
            got = amp.received("mse_loss", lambda x=x: mse_loss(x, x))
            amp.expect(f"dtypes mse_loss receives of {dtype}", got, ("fp32", "fp32"))


@scenario()
def test_other_device(amp: Amp) -> None:
    """Tensors of another device type pass as they are (autocast_mode.h, is_autocast_eligible; pytorch#114458)."""
    elsewhere = "meta" if amp.type == "cpu" else "cpu"
    x, own = torch.empty(3, 3, device=elsewhere), amp.rand(3, 3)
    low = name_of(amp.dtype)
    with amp.region():
        got = amp.received("mm", lambda: torch.mm(x, x))
        amp.expect(f"dtypes mm receives of {elsewhere} tensors", got, ("fp32", "fp32"))
        lower = x.to(amp.dtype)
        got = amp.received("mse_loss", lambda: mse_loss(lower, lower))
        amp.expect(f"dtypes mse_loss receives of {elsewhere} tensors", got, (low, low))
        got = amp.received("mm", lambda: torch.mm(own, x))
        amp.expect(f"dtypes mm receives of a {amp.type} and a {elsewhere} tensor", got, (low, "fp32"))
        amp.expect(f"dtype of a product of {elsewhere} tensors", torch.mm(x, x).dtype, torch.float32)


@scenario(types=("cuda", "xpu", "mps", "mtia"))
def test_two_device_types(amp: Amp) -> None:
    """Of two regions each acts on the tensors of its own device type (pytorch#57386)."""
    here, there = amp.rand(3, 3), torch.empty(3, 3, device="cpu")
    with torch.autocast("cpu", dtype=amp.other):
        amp.expect(f"dtype of a {amp.type} product in a CPU region", torch.mm(here, here).dtype, torch.float32)
        with amp.region():
            amp.expect(f"dtype of a {amp.type} product in both", torch.mm(here, here).dtype, amp.dtype)
            amp.expect("dtype of a CPU product in both", torch.mm(there, there).dtype, amp.other)
        with amp.region(enabled=False):
            amp.expect(f"dtype of a CPU product with {amp.type} disabled", torch.mm(there, there).dtype, amp.other)
    with amp.region():
        amp.expect(f"dtype of a CPU product in a {amp.type} region", torch.mm(there, there).dtype, torch.float32)


@scenario()
def test_absent_tensors(amp: Amp) -> None:
    """An optional tensor that is not given stays so, and the rest is cast (autocast_mode.h, cached_cast)."""
    x, weight, bias = amp.rand(2, 3), amp.rand(4, 3), amp.rand(4)
    low = name_of(amp.dtype)
    linear = torch.nn.functional.linear
    with amp.region():
        amp.expect("dtypes linear receives", amp.received("linear", lambda: linear(x, weight)), (low, low))
        got = amp.received("linear", lambda: linear(x, weight, bias))
        amp.expect("dtypes linear receives with a bias", got, (low, low, low))
        amp.expect("dtype of linear without a bias", linear(x, weight, None).dtype, amp.dtype)


@scenario()
def test_scalars(amp: Amp) -> None:
    """0-dimensional tensors are cast like any other, and Python numbers change nothing (autocast_mode.h)."""
    low = name_of(amp.dtype)
    zero, matrix = amp.rand(dtype=amp.dtype), amp.rand(3, 3)
    with amp.region():
        got = amp.received("mse_loss", lambda: mse_loss(zero, zero))
        amp.expect("dtypes mse_loss receives of 0-dimensional tensors", got, ("fp32", "fp32"))
        got = amp.received("addmm", lambda: torch.addmm(matrix, matrix, matrix, beta=0.5, alpha=2))
        amp.expect("dtypes addmm receives with beta and alpha", got, (low, low, low))
        amp.expect("dtype of a sum with a Python number", (matrix + 1.5).dtype, torch.float32)
        amp.expect("dtype of a low sum with a Python number", (zero + 1.5).dtype, amp.dtype)


@scenario()
def test_lists(amp: Amp) -> None:
    """Each eligible tensor of a list is cast, the others are not (autocast_mode.h, cached_cast of lists)."""
    single, lower, double = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype), _of(amp, torch.float64, 3, 3)
    low = name_of(amp.dtype)
    policies = amp.device.policies()
    with amp.region():
        if policies.get("linalg_multi_dot") == "downcast":
            got = amp.received("linalg_multi_dot", lambda: torch.linalg.multi_dot([single, lower, single]))
            amp.expect("dtypes multi_dot receives", got, (low, low, low))
            got = amp.received("linalg_multi_dot", lambda: torch.linalg.multi_dot([single, double, lower]))
            amp.expect("dtypes multi_dot receives with float64", got, (low, "fp64", low))
        if policies.get("cat") == "promote":
            for name, op in (("cat", torch.cat), ("stack", torch.stack)):
                got = amp.received(name, lambda op=op: op([lower, single, lower]))
                amp.expect(f"dtypes {name} receives", got, ("fp32", "fp32", "fp32"))
                got = amp.received(name, lambda op=op: op([lower, lower]))
                amp.expect(f"dtypes {name} receives of low tensors alone", got, (low, low))
                got = amp.received(name, lambda op=op: op([lower, double, single]))
                amp.expect(f"dtypes {name} receives with float64", got, ("fp32", "fp64", "fp32"))
        amp.expect("dtype of cat of float32 and low", torch.cat([lower, single]).dtype, torch.float32)
        amp.expect("dtype of stack of float32 and low", torch.stack([single, lower]).dtype, torch.float32)


@scenario()
def test_empty_lists(amp: Amp) -> None:
    """An empty list is refused as it is outside of a region (amp.html#op-eligibility)."""

    def refused(op: Callable[..., object]) -> type[Exception] | None:
        try:
            op([])
        except Exception as error:
            return type(error)
        return None

    for op in (torch.cat, torch.stack, torch.linalg.multi_dot):
        outside = refused(op)
        amp.expect(f"whether {op.__name__} of nothing is refused outside", outside is not None, True)
        with amp.region():
            amp.expect(f"what {op.__name__} of nothing raises", refused(op), outside)


@scenario()
def test_requires_grad_is_no_matter(amp: Amp) -> None:
    """Whether a tensor requires grad has no say in its cast (autocast_mode.h, is_eligible)."""
    low = name_of(amp.dtype)
    for needed in (False, True):
        x, lower = amp.rand(3, 3, requires_grad=needed), amp.rand(3, 3, dtype=amp.dtype, requires_grad=needed)
        with amp.region():
            got = amp.received("mm", lambda x=x: torch.mm(x, x))
            amp.expect(f"dtypes mm receives, requires_grad={needed}", got, (low, low))
            got = amp.received("mse_loss", lambda x=lower: mse_loss(x, x))
            amp.expect(f"dtypes mse_loss receives, requires_grad={needed}", got, ("fp32", "fp32"))


@scenario()
def test_nothing_to_cast(amp: Amp) -> None:
    """A tensor that has the dtype already is not cast (autocast_mode.cpp, cached_cast)."""
    low, single = amp.rand(3, 3, dtype=amp.dtype), amp.rand(3, 3)
    with amp.region():
        amp.expect("casts of a low matrix by mm", amp.casts(lambda: torch.mm(low, low), low), 0)
        amp.expect("casts of a float32 matrix by mse_loss", amp.casts(lambda: mse_loss(single, single), single), 0)


@scenario(types=("cpu",))
def test_nothing_to_copy(amp: Amp) -> None:
    """A tensor that has the dtype already is handed on as it is: a view of it shares its storage (cached_cast)."""
    pairs = amp.rand(3, 2)
    with amp.region():
        view = torch.view_as_complex(pairs)
    amp.expect("address of the view", view.data_ptr(), pairs.data_ptr())


@scenario()
def test_layout_is_kept(amp: Amp) -> None:
    """Casts keep strides, so results have the layout of a call on inputs cast by hand (Tensor.to, memory_format)."""
    x = amp.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight = amp.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)
    conv2d = torch.nn.functional.conv2d
    with amp.region():
        got = amp.observe(lambda: conv2d(x, weight)).outputs
    wanted = conv2d(x.to(amp.dtype), weight.to(amp.dtype))
    amp.expect("strides of conv2d of channels_last", [t.stride() for t in got], [wanted.stride()])
    amp.expect("dtype of conv2d of channels_last", [t.dtype for t in got], [amp.dtype])


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
        amp.expect(f"product with {what}", amp.values(got), amp.values(wanted))
