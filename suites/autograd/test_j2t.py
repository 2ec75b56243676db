"""Rule j2t: a JAX function made a PyTorch function has the values and gradients of the same function in PyTorch.

This holds to any order, and in a region the function receives what custom_fwd would give it
(https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.custom_fwd). Each JAX function is compared with the same function
in PyTorch on the CPU. Source of the promise: https://github.com/pytorch/xla/issues/9361;
`ampcheck.jax_device.j2t_autograd` keeps it.
"""

import functools
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("j2t")


def _device_and_cpu_leaf(amp: Amp, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a leaf on the device, and one on the CPU with its values."""
    made = amp.rand(*shape)
    return made.requires_grad_(), amp.host(made.detach()).requires_grad_()


def _dense(x: Any, w: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x @ w) * x.sum()


def _dense_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w) * x.sum()


@scenario(types=("jax",), dtypes="default", values=True)
def test_forward_and_backward(amp: Amp) -> None:
    """The value, and the gradient of every argument that requires grad."""
    (x, x_cpu), (w, w_cpu) = _device_and_cpu_leaf(amp, 3, 4), _device_and_cpu_leaf(amp, 4, 2)
    out, want = amp.j2t(_dense)(x, w), _dense_torch(x_cpu, w_cpu)
    amp.assert_close("value", out, want)
    out.sum().backward()
    want.sum().backward()
    for name, got, expected in (("x", x.grad, x_cpu.grad), ("w", w.grad, w_cpu.grad)):
        amp.assert_close(f"gradient of {name}", got, expected)


@scenario(types=("jax",), dtypes="default", values=True)
def test_double_backward(amp: Amp) -> None:
    """create_graph=True gives a gradient that has one, and that one too; of a function that reads values, too."""

    def reads_values(x: Any, w: Any, exponents: set[int]) -> Any:
        return _dense(x, w) ** max(exponents) if x.sum() != 0 else w

    uncompiled = functools.partial(amp.j2t(reads_values), exponents={1})  # a set cannot be hashed
    for how, function in (("", amp.j2t(_dense)), (" uncompiled", uncompiled)):
        (x, x_cpu), (w, w_cpu) = _device_and_cpu_leaf(amp, 3, 3), _device_and_cpu_leaf(amp, 3, 3)
        found = []
        for dense, a, b in ((function, x, w), (_dense_torch, x_cpu, w_cpu)):
            (first,) = torch.autograd.grad(dense(a, b).sum(), a, create_graph=True)
            (second,) = torch.autograd.grad(first.pow(2).sum(), b, create_graph=True)
            (third,) = torch.autograd.grad(second.pow(2).sum(), a)
            found.append((first, second, third))
        for order, got, want in zip(("first", "second", "third"), *found, strict=True):
            amp.assert_close(f"{order} gradient{how}", got, want.detach(), 1e-3)


@scenario(types=("jax",), dtypes="default", values=True)
def test_only_what_requires_grad(amp: Amp) -> None:
    """An argument that requires none gets none, and without one that does the result requires none."""
    (x, _), w = _device_and_cpu_leaf(amp, 3, 4), amp.rand(4, 2)
    function = amp.j2t(_dense)
    function(x, w).sum().backward()
    amp.assert_equal("gradient of a tensor that requires none", w.grad, None)
    amp.assert_equal("whether the result requires grad", function(x.detach(), w).requires_grad, False)
    with torch.no_grad():
        amp.assert_equal("whether it does under no_grad", function(x, w).requires_grad, False)


@scenario(types=("jax",), dtypes="default", values=True)
def test_several_results(amp: Amp) -> None:
    """Nested results keep their nesting; one left out of the loss costs the others nothing."""
    x, x_cpu = _device_and_cpu_leaf(amp, 5)
    out = amp.j2t(lambda x: {"double": x * 2, "pair": (x.sum(), x**3)})(x)
    amp.assert_equal("what comes out", sorted(out), ["double", "pair"])
    amp.assert_close("a result in a tuple", out["pair"][0], x_cpu.sum())
    (out["double"].sum() + out["pair"][1].sum()).backward()
    (x_cpu.detach().requires_grad_(), x_cpu * 2 + x_cpu**3)[1].sum().backward()
    amp.assert_close("gradient through two of three results", x.grad, x_cpu.grad)


@scenario(types=("jax",), dtypes="default", values=True)
def test_integer_results(amp: Amp) -> None:
    """An integer result is there and has no gradient; the one beside it has."""
    x, x_cpu = _device_and_cpu_leaf(amp, 6)
    place, largest = amp.j2t(lambda x: (x.argmax(), x.max()))(x)
    amp.assert_equal("where the largest is", int(amp.host(place)), int(x_cpu.argmax()))
    amp.assert_equal("whether its place requires grad", place.requires_grad, False)
    largest.backward()
    x_cpu.max().backward()
    amp.assert_close("gradient of the largest", x.grad, x_cpu.grad)


@scenario(types=("jax",), dtypes="default", values=True)
def test_arguments_of_other_kinds(amp: Amp) -> None:
    """Numbers, words, keywords, nested and integer tensors reach the function; another number gives another result."""

    def function(x: Any, scale: float, *, how: str, parts: Any, index: Any) -> Any:
        picked = x[index] * scale + parts["bias"]
        return picked.sum() if how == "sum" else picked.prod()

    x, x_cpu = _device_and_cpu_leaf(amp, 4)
    bias, bias_cpu = _device_and_cpu_leaf(amp, 2)
    index = torch.tensor([2, 0]).to(amp.type)
    call = amp.j2t(function)
    for scale, how in ((2.0, "sum"), (3.0, "sum"), (3.0, "prod")):
        x.grad = bias.grad = x_cpu.grad = bias_cpu.grad = None
        out = call(x, scale, how=how, parts={"bias": bias}, index=index)
        want = function(x_cpu, scale, how=how, parts={"bias": bias_cpu}, index=torch.tensor([2, 0]))
        amp.assert_close(f"{how} of {scale} times the picked", out, want)
        out.backward()
        want.backward()
        for got, expected in ((x.grad, x_cpu.grad), (bias.grad, bias_cpu.grad)):
            amp.assert_close(f"gradient of {how} with {scale}", got, expected)


@scenario(types=("jax",), dtypes="default", values=True)
def test_complex_gradients(amp: Amp) -> None:
    """Gradients of complex tensors are PyTorch's, the conjugates of JAX's (notes/autograd.html#complex-autograd)."""
    z = torch.complex(amp.rand(3), amp.rand(3)).requires_grad_()
    z_cpu = amp.host(z.detach()).requires_grad_()

    def function(z: Any) -> Any:
        return (z * z * (1 + 2j)).real.sum()

    amp.j2t(function)(z).backward()
    function(z_cpu).backward()
    amp.assert_close("gradient", z.grad, z_cpu.grad)


@scenario(types=("jax",), values=True)
def test_as_given(amp: Amp) -> None:
    """Without cast_inputs the function receives its arguments unchanged, inside a region as outside."""
    seen: list[str] = []

    def function(x: Any, y: Any) -> Any:
        seen.append(f"{x.dtype} {y.dtype}")
        return x.sum() + y.sum()

    x, y = amp.rand(4), amp.rand(3, dtype=amp.dtype)
    with amp.region():
        out = amp.j2t(function)(x, y)
    low = "bfloat16" if amp.dtype == torch.bfloat16 else "float16"
    amp.assert_equal("the dtypes the function received", seen[0], f"float32 {low}")
    amp.assert_equal("the dtype that came out", out.dtype, torch.float32)


@scenario(types=("jax",), values=True)
def test_cast_on_request(amp: Amp) -> None:
    """cast_inputs casts floating-point tensors other than float64 inside a region, and gradients come back as given."""
    seen: list[str] = []

    def function(x: Any, y: Any, i: Any) -> Any:
        seen.append(f"{x.dtype} {y.dtype} {i.dtype}")
        return x.sum() + y.sum().astype(x.dtype) + i.sum().astype(x.dtype)

    x, y, i = amp.rand(4, requires_grad=True), amp.rand(3, dtype=torch.float64), torch.tensor([1, 2]).to(amp.type)
    call = amp.j2t(function, cast_inputs=amp.dtype)
    call(x, y, i)
    with amp.region():
        out = call(x, y, i)
        with amp.region(enabled=False):
            call(x, y, i)
    low = "bfloat16" if amp.dtype == torch.bfloat16 else "float16"
    amp.assert_equal("the dtypes outside of a region", seen[0], "float32 float64 int64")
    amp.assert_equal("the dtypes inside", f"{low} float64 int64" in seen, True)
    amp.assert_equal("how many kinds of dtypes were seen", len(set(seen)), 2)
    amp.assert_equal("the dtype that came out", out.dtype, amp.dtype)
    out.float().backward()
    amp.assert_equal("the dtype of the gradient", getattr(x.grad, "dtype", None), torch.float32)


@scenario(types=("jax",), dtypes="default", values=True)
def test_an_exception(amp: Amp) -> None:
    """An exception of the function comes out unchanged, and the next call works."""
    fail = [True]

    def function(x: Any) -> Any:
        if fail[0]:
            raise KeyError("not there")
        return x * 2

    x, x_cpu = _device_and_cpu_leaf(amp, 3)
    call = amp.j2t(function)
    amp.assert_raises("a call that fails", KeyError, "not there", lambda: call(x))
    fail[0] = False
    amp.assert_close("the next call", call(x), x_cpu.detach() * 2)


@scenario(types=("jax",), dtypes="default", values=True)
def test_between_ops(amp: Amp) -> None:
    """Between PyTorch ops under autocast, gradients pass through a JAX function to the weights before it."""

    def function(x: Any) -> Any:
        return x * x

    (w, w_cpu), (x, x_cpu) = _device_and_cpu_leaf(amp, 4, 4), _device_and_cpu_leaf(amp, 4, 4)
    with amp.region():
        out = torch.mm(amp.j2t(function)(torch.mm(x, w)), w)
    with torch.autocast("cpu", dtype=amp.dtype):
        want = torch.mm(function(torch.mm(x_cpu, w_cpu)), w_cpu)
    amp.assert_equal("the dtype that comes out", out.dtype, amp.dtype)
    out.float().sum().backward()
    want.float().sum().backward()
    for name, got, expected in (("w", w.grad, w_cpu.grad), ("x", x.grad, x_cpu.grad)):
        amp.assert_close(f"gradient of {name}", got, expected, 0.05)


@scenario(types=("jax",), values=True)
def test_computed_again(amp: Amp) -> None:
    """A checkpoint computes it again in the state it was computed in, and gradients are the function's own."""
    seen: list[str] = []

    def function(x: Any) -> Any:
        seen.append(str(x.dtype))
        return x * x

    (x, _), weight = _device_and_cpu_leaf(amp, 3, 3), amp.rand(3, 3)
    call = amp.j2t(function)
    found = []
    for checkpointed in (True, False):
        x.grad = None
        with amp.region():
            product = torch.mm(x, weight)
            out = checkpoint(call, product, use_reentrant=False) if checkpointed else call(product)
        out.float().sum().backward()
        found.append((out.dtype, (x.grad.dtype, amp.values(x.grad))))
    amp.assert_equal("the dtypes the function received", set(seen), {str(amp.dtype).removeprefix("torch.")})
    amp.assert_equal("result and gradient of the checkpoint", found[0], found[1])
    amp.assert_equal("dtype of the result", found[0][0], amp.dtype)
