"""Rule customfn: torch.library.register_autocast runs a custom op in the dtype it is registered with.

Source, where a case names no other: https://docs.pytorch.org/docs/2.13/library.html#torch.library.register_autocast.
Dtypes that are not cast, mutation and keyword-only arguments: `suites/eager/test_eligibility.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, library

from ampcheck.checks.training import assert_same_gradients, backward, copies_of
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("customfn")

NAME = "ampcheck_customfn"
Seen = list[Any]


class _Op:
    """An op by the low-level API while entered: gives its name, itself, and the library to register more with."""

    def __init__(self, schema: str, body: Callable[..., Any]) -> None:
        name, self._arguments = schema[: schema.index("(")], schema[schema.index("(") :]
        self._name, self._body, self._scope = name, body, library._scoped_library(NAME, "FRAGMENT")

    def __enter__(self) -> tuple[str, Any, Any]:
        lib, name = self._scope.__enter__(), f"{NAME}::{self._name}"
        library.define(name, self._arguments, lib=lib)
        library.impl(name, "CompositeExplicitAutograd", self._body, lib=lib)
        return name, getattr(getattr(torch.ops, NAME), self._name), lib

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


def _custom_op(amp: Amp, body: Callable[..., Any], schema: str = "(Tensor x) -> Tensor") -> Any:
    """Make an op by the decorator. It lives on, and defining one of its name again takes its place."""
    return library.custom_op(f"{NAME}::{body.__name__}_{amp.type}", body, mutates_args=(), schema=schema)


def _copy_op(amp: Amp, seen: Seen) -> Any:
    def copied(x: Tensor) -> Tensor:
        seen.append((x.dtype, amp.probe()))
        return x.clone()

    return _custom_op(amp, copied)


REGISTER: dict[str, Callable[[Any, str, torch.dtype], Any]] = {
    "method": lambda op, type_, dtype: op.register_autocast(type_, dtype),
    "function": lambda op, type_, dtype: library.register_autocast(op, type_, dtype),
    "name": lambda op, type_, dtype: library.register_autocast(op._qualname, type_, dtype),
    "overload": lambda op, type_, dtype: library.register_autocast(op._opoverload, type_, dtype),
}


@scenario(how=REGISTER, values=True, since="2.13")
def test_registered_by(amp: Amp, how: str) -> None:
    """The op may be given as itself, by name or as an overload; it runs in cast_inputs with autocast off."""
    seen: Seen = []
    op = _copy_op(amp, seen)
    REGISTER[how](op, amp.type, amp.other)
    x = amp.rand(2, 2)
    with amp.region():
        before = amp.state()
        amp.assert_equal("dtype of the result", op(x).dtype, amp.other)
        amp.assert_equal("state after the call", amp.state(), before)
    with amp.region(enabled=False):
        amp.assert_equal("dtype in a disabled region", op(x).dtype, torch.float32)
    amp.assert_equal("dtype outside", op(x).dtype, torch.float32)
    wide = torch.float32
    want = [(amp.other, wide), (wide, wide), (wide, wide)]
    amp.assert_equal("dtypes of the argument and of a product inside", seen, want)


@scenario(to=["wide", "low", "other"], values=True, since="2.13")
def test_cast_to(amp: Amp, to: str) -> None:
    """cast_inputs decides, whatever the dtype of the region is, float32 included."""
    dtype = {"wide": torch.float32, "low": amp.dtype, "other": amp.other}[to]
    with _Op(f"to_{to}(Tensor x) -> Tensor", lambda x: x.clone()) as (name, op, lib):
        library.register_autocast(name, amp.type, dtype, lib=lib)
        for region in (amp.dtype, amp.other):
            with amp.region(region):
                for given in (torch.float32, amp.dtype, amp.other):
                    got = op(amp.rand(2, dtype=given)).dtype
                    amp.assert_equal(f"dtype of what was {given} in a region of {region}", got, dtype)


@scenario(values=True, since="2.13")
def test_lists_and_options(amp: Amp) -> None:
    """Tensors in a list and an optional one are cast, and None, numbers, text and dtypes go through."""
    seen: Seen = []

    def body(xs: list[Tensor], y: Tensor | None, n: int, text: str, to: torch.dtype, flags: list[bool]) -> list[Tensor]:
        seen.append(([x.dtype for x in xs], None if y is None else y.dtype, n, text, to, flags))
        return [x.clone() for x in xs]

    schema = "mixed(Tensor[] xs, Tensor? y, int n, str text, ScalarType to, bool[] flags) -> Tensor[]"
    double, low = torch.float64, amp.dtype
    with _Op(schema, body) as (name, op, lib):
        library.register_autocast(name, amp.type, low, lib=lib)
        with amp.region():
            out = op([amp.rand(2), amp.rand(2, dtype=double)], None, 3, "text", double, [True, False])
            op([], amp.rand(2), 4, "", torch.float32, [])
    amp.assert_equal("a list and None", seen[0], ([low, double], None, 3, "text", double, [True, False]))
    amp.assert_equal("an empty list and a tensor", seen[1], ([], low, 4, "", torch.float32, []))
    amp.assert_equal("dtypes of the results", [tensor.dtype for tensor in out], [low, double])


@scenario(values=True, since="2.13")
def test_dictionary(amp: Amp) -> None:
    """An op that takes a dictionary of tensors beside a tensor takes it in a region too, and casts what is in it."""
    seen: Seen = []

    def body(x: Tensor, parts: dict[str, Tensor]) -> Tensor:
        seen.append([part.dtype for part in parts.values()])
        return x.clone()

    x, half = amp.rand(2), amp.rand(2)
    with _Op("looked_up(Tensor x, Dict(str, Tensor) parts) -> Tensor", body) as (name, op, lib):
        library.register_autocast(name, amp.type, amp.dtype, lib=lib)
        amp.assert_equal("dtype outside", op(x, {"half": half}).dtype, torch.float32)
        with amp.region():
            found = amp.outcome(lambda: op(x, {"half": half}).dtype)
        amp.assert_equal("dtype inside", found, amp.dtype)
        amp.assert_equal("dtypes in the dictionary", seen, [[torch.float32], [amp.dtype]])


@scenario(values=True, since="2.13")
def test_two_device_types(amp: Amp) -> None:
    """Each device type has its own dtype for an op, and only its region casts."""
    op = _copy_op(amp, [])
    op.register_autocast(amp.elsewhere, torch.float32)
    op.register_autocast(amp.type, amp.other)
    x = amp.rand(2)
    with torch.autocast(amp.elsewhere, dtype=torch.bfloat16):
        amp.assert_equal(f"dtype in a region of {amp.elsewhere}", op(x).dtype, torch.float32)
        with amp.region():
            amp.assert_equal("dtype in regions of both", op(x).dtype, amp.other)


@scenario(api=["custom_op", "low_level"], values=True, since="2.13")
def test_registered_again(amp: Amp, api: str) -> None:
    """A second register_autocast of an op and a device type is obeyed or refused, not dropped silently."""

    def tried(op: Any, again: Callable[[], Any]) -> None:
        with amp.region():
            amp.assert_equal("dtype at first", op(amp.rand(2)).dtype, amp.dtype)
        try:
            again()
        except Exception as error:  # a refusal, if it says why
            amp.assert_equal("does the refusal say why", bool(str(error)), True)
            return
        with amp.region():
            amp.assert_equal("dtype after it was registered again", op(amp.rand(2)).dtype, amp.other)

    if api == "custom_op":
        op = _copy_op(amp, [])
        op.register_autocast(amp.type, amp.dtype)
        tried(op, lambda: op.register_autocast(amp.type, amp.other))
    else:
        with _Op("again(Tensor x) -> Tensor", lambda x: x.clone()) as (name, op, lib):
            library.register_autocast(name, amp.type, amp.dtype, lib=lib)
            tried(op, lambda: library.register_autocast(name, amp.type, amp.other, lib=lib))


@scenario(values=True, since="2.13")
def test_forgotten_with_its_library(amp: Amp) -> None:
    """A registration ends with its library (lib: its lifetime), so a new op of that name casts nothing."""
    with _Op("short(Tensor x) -> Tensor", lambda x: x.clone()) as (name, op, lib):
        library.register_autocast(name, amp.type, amp.dtype, lib=lib)
        with amp.region():
            amp.assert_equal("dtype at first", op(amp.rand(2)).dtype, amp.dtype)
    with _Op("short(Tensor x) -> Tensor", lambda x: x.clone()) as (name, op, lib), amp.region():
        amp.assert_equal("dtype of a new op of its name", op(amp.rand(2)).dtype, torch.float32)


def _product_op(amp: Amp, seen: Seen) -> Any:
    def product(x: Tensor, w: Tensor) -> Tensor:
        seen.append(("forward", x.dtype, amp.probe()))
        return torch.mm(x, w)

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(("backward", gradient.dtype, amp.probe()))
        x, w = ctx.saved_tensors
        return torch.mm(gradient, w.t()), torch.mm(x.t(), gradient)

    op = _custom_op(amp, product, "(Tensor x, Tensor w) -> Tensor")
    op.register_autograd(backward, setup_context=keep)
    op.register_autocast(amp.type, amp.dtype)
    return op


@scenario(values=True, since="2.13")
def test_gradient_of_an_op(amp: Amp) -> None:
    """A backward from register_autograd gets low gradients and casts, and float32 leaves get those of torch.mm."""
    seen: Seen = []
    op = _product_op(amp, seen)
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = copies_of(x, w)
    with amp.region():
        out, want = op(x, w), torch.mm(x2, w2)
    backward(out, want)
    wanted = [("forward", amp.dtype, torch.float32), ("backward", amp.dtype, torch.float32)]
    amp.assert_equal("dtypes in both passes", seen, wanted)
    amp.assert_identical("result", out, want)
    assert_same_gradients(amp, "xw", (x, w), (x2, w2))


@scenario(values=True, since="2.13")
def test_second_derivative_of_an_op(amp: Amp) -> None:
    """The casts of register_autocast are differentiable, so an op has a second derivative in a region too."""
    x = torch.full((2, 2), 2.0, device=amp.type, requires_grad=True)
    with amp.region():
        out = _product_op(amp, [])(x, x)
    (first,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * x).sum(), x)
    amp.assert_equal("first derivative of the sum of x times x", amp.values(first), [[8.0, 8.0], [8.0, 8.0]])
    amp.assert_equal("derivative of that times x", amp.values(second), [[16.0, 16.0], [16.0, 16.0]])


@scenario(values=True, since="2.13")
def test_refused(amp: Amp) -> None:
    """A device type that is none, or has no autocast, and an op that does not exist are refused by name."""
    op = _copy_op(amp, [])
    amp.assert_raises("a number", ValueError, "device_type", lambda: op.register_autocast(0, amp.dtype))
    said = "'meta' does not support autocast"
    amp.assert_raises("meta", ValueError, said, lambda: op.register_autocast("meta", amp.dtype))
    nowhere = partial(library.register_autocast, f"{NAME}::nowhere", amp.type, amp.dtype)
    amp.assert_raises("an unknown op", AttributeError, "nowhere", nowhere)
