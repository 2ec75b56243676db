"""Rule eligibility, of calls: `ampcheck.spec.rules` says what it promises; `test_eligibility.py` is about tensors."""

import operator
from collections.abc import Callable

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("eligibility")

mse_loss = torch.nn.functional.mse_loss


@pytest.mark.parametrize("op", ["mm", "addmm", "bmm", "baddbmm"])
@scenario()
def test_out(amp: Amp, op: str) -> None:
    """A call with out= does what it does outside of a region (amp.html#op-eligibility; csarofeen/pytorch#672)."""
    shape = (2, 3, 3) if op in ("bmm", "baddbmm") else (3, 3)
    call = getattr(torch, op)
    x, out = amp.rand(*shape), amp.rand(*shape)
    arguments = (x, x, x) if op in ("addmm", "baddbmm") else (x, x)
    with amp.region():
        seen = amp.observe(lambda: call(*arguments, out=out), x, out)
        kernel = seen.of(f"{op}.out")
        received = [leaf.got for leaf in kernel.leaves] if kernel else []
        amp.expect("dtypes the kernel receives", received, ["fp32"] * (len(arguments) + 1))
        amp.expect("casts", len(seen.casts), 0)
        if amp.device.has_values:
            amp.expect("whether out is what is returned", call(*arguments, out=out) is out, True)


@pytest.mark.parametrize("op", ["addmm_", "baddbmm_", "addmv_", "addr_"])
@scenario()
def test_in_place(amp: Amp, op: str) -> None:
    """An in-place call does what it does outside of a region (amp.html#op-eligibility; csarofeen/pytorch#672)."""
    matrix, vector, batch = amp.rand(3, 3), amp.rand(3), amp.rand(2, 3, 3)
    own, arguments = {
        "addmm_": (amp.rand(3, 3), (matrix, matrix)),
        "baddbmm_": (amp.rand(2, 3, 3), (batch, batch)),
        "addmv_": (amp.rand(3), (matrix, vector)),
        "addr_": (amp.rand(3, 3), (vector, vector)),
    }[op]
    with amp.region():
        seen = amp.observe(lambda: getattr(own, op)(*arguments), own, *arguments)
        amp.expect("dtype of the result", [t.dtype for t in seen.outputs], [torch.float32])
        amp.expect("casts", len(seen.casts), 0)
        kernel = seen.of(op)
        received = [leaf.got for leaf in kernel.leaves] if kernel else []
        amp.expect("dtypes the kernel receives", received, ["fp32"] * (len(arguments) + 1))


@scenario(values=True)
def test_low_tensors_without_autocast(amp: Amp) -> None:
    """Dtypes that an in-place call or one with out= refuses outside, it refuses in a region too (amp.html)."""
    single, low = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype)
    for what, call in (
        ("addmm_ of float32 and low", lambda: amp.rand(3, 3).addmm_(single, low)),
        ("addmm_ of a low tensor", lambda: amp.rand(3, 3, dtype=amp.dtype).addmm_(single, single)),
        ("mm with a low out", lambda: torch.mm(single, single, out=amp.rand(3, 3, dtype=amp.dtype))),
    ):
        amp.raises(f"{what}, outside", RuntimeError, "", call)
        with amp.region():
            amp.raises(f"{what}, inside", RuntimeError, "", call)


@pytest.mark.parametrize("op", ["sum", "prod", "cumsum", "cumprod", "softmax", "log_softmax"])
@scenario()
def test_explicit_dtype(amp: Amp, op: str) -> None:
    """A call with dtype= gives that dtype (amp.html#op-eligibility)."""
    x, low = amp.rand(3, 3), amp.rand(3, 3, dtype=amp.dtype)
    call = getattr(torch, op)
    with amp.region():
        for dtype in (amp.dtype, torch.float32, torch.float64):
            for what, given in (("float32", x), ("low", low)):
                amp.expect(f"dtype of {op}({what}, dtype={dtype})", call(given, 0, dtype=dtype).dtype, dtype)


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
            amp.expect(f"dtype of {name}", call().dtype, amp.dtype)


@scenario()
def test_every_spelling_of_powers(amp: Amp) -> None:
    """Operators that call an op on the list for float32 give float32 (amp.html#cuda-op-specific-behavior)."""
    low = amp.rand(3, dtype=amp.dtype)
    policies = amp.device.policies()
    power = torch.float32 if policies.get("pow.Tensor_Scalar") == "upcast" else amp.dtype
    exponential = torch.float32 if policies.get("pow.Scalar") == "upcast" else amp.dtype
    inverse = torch.float32 if policies.get("reciprocal") == "upcast" else amp.dtype
    with amp.region():
        for name, call, wanted in (
            ("x ** 2", lambda: low**2, power),
            ("__pow__", lambda: low.__pow__(2.0), power),
            ("2 ** x", lambda: 2.0**low, exponential),
            ("__rpow__", lambda: low.__rpow__(2.0), exponential),
            ("1 / x", lambda: 1.0 / low, inverse),
            ("__rtruediv__", lambda: low.__rtruediv__(1.0), inverse),
        ):
            amp.expect(f"dtype of {name}", call().dtype, wanted)


@pytest.mark.parametrize("op", ["eq", "ge", "gt", "le", "lt", "ne", "add", "div", "mul"])
@scenario()
def test_builtin_promotion(amp: Amp, op: str) -> None:
    """Ops that widen by themselves do so in a region as outside (amp.html: ops not listed here natively promote)."""
    single, low = amp.rand(3), amp.rand(3, dtype=amp.dtype)
    special = {"div": "truediv"}.get(op, op)
    wanted = torch.float32 if op in ("add", "div", "mul") else torch.bool
    with amp.region():
        for what, left, right in (("float32 and low", single, low), ("low and float32", low, single)):
            amp.expect(f"dtype of torch.{op} of {what}", getattr(torch, op)(left, right).dtype, wanted)
            amp.expect(f"dtype of Tensor.{op} of {what}", getattr(left, op)(right).dtype, wanted)
            got = getattr(left, f"__{special}__")(right).dtype
            amp.expect(f"dtype of __{special}__ of {what}", got, wanted)
        same = low.dtype if wanted == torch.float32 else torch.bool
        amp.expect(f"dtype of torch.{op} of low tensors", getattr(torch, op)(low, low).dtype, same)


@scenario()
def test_other_ops_that_widen(amp: Amp) -> None:
    """cat, stack and equal of a mixture are what they are outside (amp.html: ops not listed here natively promote)."""
    single, low = amp.rand(3), amp.rand(3, dtype=amp.dtype)
    with amp.region():
        amp.expect("dtype of cat", torch.cat([single, low]).dtype, torch.float32)
        amp.expect("dtype of stack", torch.stack([low, single]).dtype, torch.float32)
        amp.expect("dtype of where", torch.where(single > 0, single, low).dtype, torch.float32)
        if amp.device.has_values:
            amp.expect("equal", torch.equal(low.float(), low), True)


class _Marked(torch.Tensor):
    """A tensor of a class of its own, with the behaviour PyTorch gives it."""


@scenario(values=True)
def test_tensor_subclass(amp: Amp) -> None:
    """Tensors of a subclass are autocast as tensors are (autocast_mode.h asks for device and dtype alone)."""
    x = amp.rand(3, 3).as_subclass(_Marked)
    with amp.region():
        out = torch.mm(x, x)
        loss = mse_loss(x.to(amp.dtype), x.to(amp.dtype))
    amp.expect("dtype and class of a product", (out.dtype, type(out)), (amp.dtype, _Marked))
    amp.expect("dtype and class of a loss", (loss.dtype, type(loss)), (torch.float32, _Marked))


@scenario()
def test_unlisted_ops(amp: Amp) -> None:
    """An op that is not listed runs in the dtype of its input, downstream ones included (amp.html)."""
    single, low = amp.rand(2, 3, 4, 4), amp.rand(2, 3, 4, 4, dtype=amp.dtype)
    functional = torch.nn.functional
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
            amp.expect(f"dtype of {name} of float32", call(single).dtype, torch.float32)
            amp.expect(f"dtype of {name} of low", call(low).dtype, amp.dtype)
        product = torch.mm(amp.rand(3, 3), amp.rand(3, 3))
        amp.expect("dtype of relu of a product", torch.relu(product).dtype, amp.dtype)


@scenario()
def test_eight_bits_that_widen(amp: Amp) -> None:
    """Tensors of one float8 dtype go through an op that widens as they do outside (amp.html: any type)."""
    x = torch.empty(3, 3, dtype=torch.float8_e4m3fn, device=amp.type)
    for name, op in (("cat", torch.cat), ("stack", torch.stack)):
        amp.expect(f"dtype of {name} outside", op([x, x]).dtype, x.dtype)
        with amp.region():
            try:
                found = str(op([x, x]).dtype)
            except RuntimeError as error:
                found = f"RuntimeError: {error}"
        amp.expect(f"dtype of {name} inside", found, str(x.dtype))


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
"""Calls of a low and a float32 tensor; more of them, with a report of their own, are in `test_reports.py`."""


@pytest.mark.parametrize("op", list(LOW_AND_WIDE))
@scenario(types=("cpu",), dtypes="default")
def test_low_and_wide(amp: Amp, op: str) -> None:
    """A result of a region and a float32 tensor do not raise for their types (amp.html: tensors may be any type)."""
    wide = amp.rand(4, 4)
    with amp.region():
        low = torch.mm(wide, wide)
        try:
            LOW_AND_WIDE[op](low, wide)
            raised = ""
        except RuntimeError as error:
            raised = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    amp.expect(f"what {op} of a low and a float32 tensor raises", raised, "")
