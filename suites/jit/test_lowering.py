"""Rule lowering: Inductor gives an op in the lower precision the dtypes, values and gradients of eager mode.

Nobody says here what an op gives; eager mode does. The promise is that of `torch.compile`, which runs "the original
function" faster (https://docs.pytorch.org/docs/2.13/generated/torch.compile.html):

- `apart`: an op is what Inductor takes it apart into, with values where its formula changes (`bounds`) and with tensors
  of two dtypes (`first`, `others`), in a region and outside of any. No program is compiled for that.
- `lowered`: the dtypes of results that Inductor decides on, also for tensors that the program makes itself (`made`).
- `rounded`: what an op gives in the lower precision is rounded before another one widens or compares it. Inductor
  leaves roundings out that it fuses away, as `torch._inductor.config.emulate_precision_casts` documents; with that
  setting it leaves out none (`emulated`). Without it (`plain`) a result may be off by such roundings, and no dtype.
- `settings`: a layer and what follows it, with Inductor's settings that have passes or code of their own.
- `written`: the code that Inductor writes for an op gives the values of eager mode.
- `edges`: an elementwise op is compiled to what it is in eager mode, also of numbers at the bounds of its formula, at
  the ends of the lower precision and of those that are none.
- `number`: a Python number beside a tensor in the lower precision means in a compiled program what it means in eager
  mode, also where the tensor holds the number's own rounding; so does one in a tensor without dimensions.

A difference that float32 has, too, is the op's own; one by which the decomposition is more exact is none. Nightly runs
take every op for `lowered`, more samples, and all that is given; other runs a share.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ampcheck.checks.lowering import assert_compiled_on_edges, assert_lowered, assert_taken_apart, assert_written
from ampcheck.checks.relations import elementwise
from ampcheck.runner.suite import Amp, Product, scenario
from ampcheck.samples import op_database

pytestmark = pytest.mark.rule("lowering")

TYPES = ("cpu",)
"""With CUDA's policies, composite ops differ in eager mode and Inductor: in a region `mvlgamma` is float32 and float16.
Which of these differences are faults of PyTorch is open."""
NAMES = sorted(name for name in op_database.rows() if "empty" not in name)
_LOSSES = ("nn.functional.huber_loss", "nn.functional.binary_cross_entropy_with_logits")
WIDENING = ("cumprod", "cumsum", "ldexp", "mean", "nansum", *_LOSSES, "prod", "std", "sum", "where")
"""Ops of each kind whose result may have another dtype than their first argument."""
OFTEN = ("cumsum", "mean", *_LOSSES, "prod", "sum")
SOME = [op if op in OFTEN else pytest.param(op, marks=pytest.mark.nightly) for op in WIDENING]
GIVEN = ("wide", "low", "first", "others", "bounds")
APART = Product({"op": NAMES, "given": GIVEN}, nightly=True)
EDGED = Product({"compiler": ("inductor",), "op": elementwise()}, nightly=True)
LOWERED = Product({"op": [name for name in NAMES if name not in WIDENING]}, nightly=True)
AROUND = Product({"op": [name for name in NAMES if name.startswith("nn.functional.")]}, nightly=True)


@scenario(op=NAMES, types=TYPES, values=True, dtypes="default")
def test_apart(amp: Amp, op: str) -> None:
    """An op is what Inductor takes it apart into, on one sample in the lower precision."""
    assert_taken_apart(amp, op, [("low", True), ("first", False), ("bounds", False)], 1)


@scenario(APART, types=TYPES, values=True, dtypes="default")
def test_apart_given(amp: Amp, op: str, given: str) -> None:
    """An op is what Inductor takes it apart into, on any tensors, in a region and outside."""
    assert_taken_apart(amp, op, [(given, True), (given, False)], 2)


@scenario(op=SOME, types=TYPES, values=True, dtypes="default")
def test_lowered(amp: Amp, op: str) -> None:
    """The results of an op that may widen its arguments have the dtypes in Inductor that they have in eager mode."""
    assert_lowered(amp, op)


@scenario(LOWERED, types=TYPES, values=True, dtypes="default")
def test_lowered_database(amp: Amp, op: str) -> None:
    """The results of any other op of the database have the dtypes in Inductor that they have in eager mode."""
    assert_lowered(amp, op)


@scenario(AROUND, types=TYPES, values=True, dtypes="default")
def test_lowered_in_a_region(amp: Amp, op: str) -> None:
    """A program that is compiled and called in a region has the dtypes in Inductor that it has there in eager mode."""
    with amp.region():
        assert_lowered(amp, op, regions=(False,))


@scenario(Product({"op": NAMES}, nightly=True), types=TYPES, values=True, dtypes="default")
def test_written(amp: Amp, op: str) -> None:
    """What Inductor writes for an op gives what eager mode does."""
    assert_written(amp, op)


@scenario(EDGED, types=TYPES, values=True)
def test_edges(amp: Amp, compiler: str, op: str) -> None:
    """An elementwise op gives what it gives in eager mode once Inductor has compiled it, at edges of its arguments."""
    assert_compiled_on_edges(amp, op, compiler)


Two = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCERS: dict[str, Two] = {
    "cast": lambda x, low: x.to(low.dtype),
    "product": lambda x, low: torch.mm(x, x),
    "quotient": lambda x, low: low / 3,
    "sum": lambda x, low: low + 0.1,
    "difference": lambda x, low: low - low.amax(-1, keepdim=True),
    "scaled": lambda x, low: low * low.t(),
    "root": lambda x, low: low.abs().sqrt(),
    "clamped": lambda x, low: low.clamp(-0.3, 0.7),
    "variance": lambda x, low: low.var(-1, keepdim=True).expand_as(low) * 1e-3,
    "counted": lambda x, low: torch.arange(low.shape[-1], dtype=low.dtype, device=low.device).expand_as(low),
}
"""What gives a result in the lower precision, of a matrix in float32 and one in the lower precision."""
CONSUMERS: dict[str, Two] = {
    "widened": lambda y, x: y.float(),
    "met": lambda y, x: y + x,
    "scaled": lambda y, x: y * x,
    "twice": lambda y, x: (y * y).float(),
    "summed": lambda y, x: y.sum(-1, dtype=torch.float32),
    "accumulated": lambda y, x: y.cumsum(-1, dtype=torch.float32),
    "chosen": lambda y, x: torch.where(y > 0, y, 0.1).float(),
    "largest": lambda y, x: (y == y.amax(-1, keepdim=True)).sum(-1),
    "ordered": lambda y, x: y >= x,
}
"""What takes it and widens or compares it."""


ROUNDED = Product(
    {"compiler": ("inductor",), "consumer": tuple(CONSUMERS), "setting": ("plain", "emulated")}, nightly=True
)


def _assert_rounded(amp: Amp, consumer: str, setting: str) -> None:
    kind, low, take = amp.type, amp.dtype, CONSUMERS[consumer]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            return [take(make(x, x.to(low)), x) for make in PRODUCERS.values()]

    x = (amp.rand(7, 7) - 0.4).t()  # no multiple of a vector's size, and not contiguous
    want = program(x)
    torch.compiler.reset()  # it would find the same function, compiled with another setting
    with torch._inductor.config.patch(emulate_precision_casts=setting == "emulated", fx_graph_cache=False):
        got = amp.compiled("inductor", program, x)(x)
    for producer, one, right in zip(PRODUCERS, got, want, strict=True):
        name = f"{producer}, {consumer}"
        amp.assert_equal(f"dtype of {name}", one.dtype, right.dtype)
        if not right.is_floating_point():
            amp.assert_equal(f"values of {name}", one.tolist(), right.tolist())
            continue
        kept = setting == "emulated" and right.dtype == torch.float32
        amp.assert_close(name, one, right, 1e-5 if kept else 8 * torch.finfo(low).eps)


@pytest.mark.nightly  # as all that Inductor writes to the end
@scenario(types=TYPES, values=True, dtypes="default")
def test_rounded(amp: Amp) -> None:
    """What is rounded to the lower precision is so before it is widened again, with Inductor's setting for that."""
    _assert_rounded(amp, "widened", "emulated")


@scenario(ROUNDED, types=TYPES, values=True)
def test_rounded_before(amp: Amp, compiler: str, consumer: str, setting: str) -> None:
    """What is rounded to the lower precision is so before another op takes it, as far as Inductor documents it."""
    _assert_rounded(amp, consumer, setting)


SETTINGS: dict[str, dict[str, object]] = {
    "frozen": {"freezing": True},
    "wrapped": {"cpp_wrapper": True},
    "tuned": {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "ATEN,CPP"},
}
SET = Product({"compiler": ("inductor",), "setting": tuple(SETTINGS), "layer": ("low", "cast")}, nightly=True)


@scenario(SET, types=TYPES, values=True)
def test_settings(amp: Amp, compiler: str, setting: str, layer: str) -> None:
    """A layer and what follows it give in Inductor what they give in eager mode, whatever Inductor's settings are."""
    kind, low = amp.type, amp.dtype
    net = amp.module(lambda: torch.nn.Linear(16, 16)).to(torch.float32 if layer == "cast" else low)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast(kind, dtype=low, enabled=layer == "cast"):
            given = x if layer == "cast" else x.to(low)
            return [
                1.0 + net(given),
                F.relu(net(given * 2) + given.to(low)),
                net(given * 3) + x,
                F.gelu(net(given / 2)),
            ]

    torch.compiler.reset()  # it would find the same function, compiled with another setting
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False, **SETTINGS[setting]):
        x = amp.rand(5, 16)
        want, got = program(x), amp.compiled(compiler, program, x)(x)
    for number, (one, right) in enumerate(zip(got, want, strict=True)):
        amp.assert_equal(f"dtype of result {number}", one.dtype, right.dtype)
        amp.assert_close(f"result {number}", one, right, 8 * torch.finfo(low).eps)


Taking = dict[str, Callable[[torch.Tensor, Any], torch.Tensor]]
EITHER: Taking = {
    "equal": lambda y, n: y == n,
    "less": lambda y, n: y < n,
    "at_least": lambda y, n: y >= n,
    "among": lambda y, n: torch.isin(y, n),
    "added": lambda y, n: y + n,
    "subtracted": lambda y, n: y - n,
    "subtracted_from": lambda y, n: n - y,
    "multiplied": lambda y, n: y * n,
    "divided": lambda y, n: y / n,
    "floor_divided": lambda y, n: y // n,
    "truncated": lambda y, n: torch.div(y, n, rounding_mode="trunc"),
    "remainder": lambda y, n: y % n,
    "fmod": lambda y, n: torch.fmod(y, n),
    "power": lambda y, n: y**n,
    "chosen": lambda y, n: torch.where(y < n, 1.0, y),
    "masked": lambda y, n: y.masked_fill(y > 0, n),
    "above": lambda y, n: (y - n) >= 0,
    "below": lambda y, n: (n - y) >= 0,
}
NUMBERS: Taking = {
    **EITHER,
    "filled": lambda y, n: torch.full_like(y, n) == y,
    "alpha": lambda y, n: torch.add(y, y, alpha=n),
    "value": lambda y, n: torch.addcmul(y, y, y, value=n),
    "weight": lambda y, n: torch.lerp(y, 2 * y, n),
    "threshold": lambda y, n: F.threshold(y, n, 7.0),
    "hardshrink": lambda y, n: F.hardshrink(y, n),
    "softshrink": lambda y, n: F.softshrink(y, n),
    "hardtanh": lambda y, n: F.hardtanh(3 * y, -n, n),
    "padded": lambda y, n: F.pad(y, (1, 1), value=n),
    "beta": lambda y, n: F.smooth_l1_loss(y, 2 * y, beta=n, reduction="none"),
    "margin": lambda y, n: F.margin_ranking_loss(y, 0 * y, torch.ones_like(y), margin=n, reduction="none") > 0,
}
"""What takes a number beside a tensor in the lower precision; `EITHER`: or a tensor without dimensions."""
VALUES = {"tenth": 0.1, "seven_tenths": 0.7}
NUMBER = Product({"compiler": ("inductor",), "number": tuple(VALUES), "setting": ("plain", "emulated")}, nightly=True)


def _assert_of_numbers(amp: Amp, compiler: str, number: str, setting: str, *, in_tensor: bool) -> None:
    value, eps = VALUES[number], torch.finfo(amp.dtype).eps
    takes = EITHER if in_tensor else NUMBERS

    def program(y: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        return [take(y, n if in_tensor else value) for take in takes.values()]

    low = torch.full((35,), value, device=amp.type).to(amp.dtype)  # no multiple of a vector's size
    inputs = low, torch.tensor(value, dtype=torch.float64, device=amp.type)
    want = program(*inputs)
    torch.compiler.reset()  # it would find the same function, compiled with another setting
    with torch._inductor.config.patch(emulate_precision_casts=setting == "emulated", fx_graph_cache=False):
        got = amp.compiled(compiler, program, *inputs)(*inputs)
    for name, one, right in zip(takes, got, want, strict=True):
        amp.assert_equal(f"dtype of {name}", one.dtype, right.dtype)
        if not right.is_floating_point():
            amp.assert_equal(f"whether {name} is as in eager mode", torch.equal(one, right), True)
        else:
            amp.assert_close(name, one, right, eps if setting == "emulated" else 8 * eps)


@scenario(NUMBER, types=TYPES, values=True)
def test_number(amp: Amp, compiler: str, number: str, setting: str) -> None:
    """A Python number beside a low tensor of its own rounding gives in Inductor what it gives in eager mode."""
    _assert_of_numbers(amp, compiler, number, setting, in_tensor=False)


@scenario(NUMBER, types=TYPES, values=True)
def test_number_in_a_tensor(amp: Amp, compiler: str, number: str, setting: str) -> None:
    """A tensor of float64 without dimensions, which has no say in dtypes, gives in Inductor what it gives eagerly."""
    _assert_of_numbers(amp, compiler, number, setting, in_tensor=True)
