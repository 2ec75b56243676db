"""Elementwise ops of the jax device and the tensors it makes from numbers: CPU's values, dtypes and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

JAX = "jax"
INF, NAN = float("inf"), float("nan")
REALS = [0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -3.5, 7.0, INF, -INF, NAN]
INTEGERS = [0, 1, -1, 2, -3, 5, 7, -8, 11, 100]
FLOATING = (torch.float32, torch.bfloat16, torch.float64)


def _same(got: Any, expected: Any) -> None:
    """Raises AssertionError unless dtype, shape and values are CPU's."""
    for mine, theirs in zip(_list(got), _list(expected), strict=True):
        assert mine.device.type == JAX
        tolerance = {"rtol": 2e-5, "atol": 2e-6} if theirs.dtype is torch.float32 else {}
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), equal_nan=True, **tolerance)


def _list(out: Any) -> list[torch.Tensor]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _inputs(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False])
    values = REALS if dtype.is_floating_point else INTEGERS
    return torch.tensor([v % 200 for v in values] if dtype is torch.uint8 else values, dtype=dtype)


# fmt: off
_UNARY = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "i0", "lgamma", "log", "log10", "log1p", "log2",
    "logit", "neg", "reciprocal", "round", "rsqrt", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc", "sinh",
    "sqrt", "tan", "tanh", "trunc", "isnan", "isinf", "isposinf", "nan_to_num", "logical_not",
]
# fmt: on


@pytest.mark.parametrize("name", _UNARY)
def test_unary(name: str) -> None:
    function = getattr(torch, name)
    for dtype in (*FLOATING, torch.int64, torch.uint8, torch.bool):
        x = _inputs(dtype)
        try:
            expected = function(x)
        except RuntimeError:
            assert not dtype.is_floating_point  # CPU has no kernel of this dtype, which the device may well have
            continue
        _same(function(x.to(JAX)), expected)


_BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: torch.add(a, b, alpha=2),
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
    "div-floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div-trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "eq": torch.eq,
    "lt": torch.lt,
    "logical_xor": torch.logical_xor,
    # torch 2.11 writes the comparison of NaNs into the first operand's shape.
    "isclose": lambda a, b: torch.isclose(*torch.broadcast_tensors(a, b), equal_nan=True),
    "xlogy": torch.xlogy,
    "heaviside": torch.heaviside,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.7),
    "clamp": lambda a, b: torch.clamp(a, min=b),
}


def _pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of numbers; for integers without what CPU refuses: zero divisors and overflowing powers."""
    if dtype.is_floating_point:
        x = _inputs(dtype)
        return x[:, None], x
    return torch.tensor([0, 1, -1, 2, -3, 7], dtype=dtype)[:, None], torch.tensor([1, 2, 3, 5], dtype=dtype)


@pytest.mark.parametrize("name", _BINARY)
def test_binary(name: str) -> None:
    for dtype in (*FLOATING, torch.int64):
        a, b = _pairs(dtype)
        if name in ("fmod", "atan2") and dtype is torch.bfloat16:
            a, b = a[:9], b[:9]  # finite numbers: CPU's bfloat16 kernels differ among themselves on the others
        try:
            expected = _BINARY[name](a, b)
        except RuntimeError:
            assert not dtype.is_floating_point  # CPU has no kernel of this dtype, which the device may well have
            continue
        _same(_BINARY[name](a.to(JAX), b.to(JAX)), expected)


@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "remainder", "maximum", "eq", "where", "clamp"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.int64, torch.float32),
        (torch.bool, torch.int32),
        (torch.uint8, torch.int8),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ],
)
def test_promotion(name: str, left: torch.dtype, right: torch.dtype) -> None:
    a, b = torch.tensor([1, 2, 3]).to(left), torch.tensor([[2], [1]]).to(right)
    for x, y in ((a, b), (a, b[0, 0]), (a[0], b)):  # a tensor without dimensions counts less
        _same(_BINARY[name](x.to(JAX), y.to(JAX)), _BINARY[name](x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.complex64])
def test_python_numbers(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 0, 1]).to(dtype)
    for function in (
        lambda t: t + 0.999,
        lambda t: t * 3,
        lambda t: 2 / (t + 1),
        lambda t: (t + 1) ** 2,
        lambda t: t * 2j,
    ):
        _same(function(x.to(JAX)), function(x))


def test_squares_and_other_powers_share_a_program() -> None:
    x = torch.tensor([-2.0, 0.5, 3.0])
    for exponent in (2, 2.0, 3, -1, 0, 0.5):
        _same(x.to(JAX) ** exponent, x**exponent)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "airy_ai": torch.special.airy_ai,
    "bessel_j0": torch.special.bessel_j0,
    "bessel_y1": torch.special.bessel_y1,
    "erfcx": torch.special.erfcx,
    "i1e": torch.special.i1e,
    "log_ndtr": torch.special.log_ndtr,
    "modified_bessel_k0": torch.special.modified_bessel_k0,
    "scaled_modified_bessel_k0": torch.special.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": torch.special.scaled_modified_bessel_k1,
    "spherical_bessel_j0": torch.special.spherical_bessel_j0,
    "polygamma-1": lambda x: torch.polygamma(1, x),
    "polygamma-2": lambda x: torch.polygamma(2, x),
    "zeta": lambda x: torch.special.zeta(x.abs() + 1.5, x + 0.1),
    "legendre": lambda x: torch.special.legendre_polynomial_p(x, 3),
    "laguerre": lambda x: torch.special.laguerre_polynomial_l(x, 4),
    "hermite_h": lambda x: torch.special.hermite_polynomial_h(x, 3),
    "hermite_he": lambda x: torch.special.hermite_polynomial_he(x, 3),
    "chebyshev_t": lambda x: torch.special.chebyshev_polynomial_t(x, 3),
    "chebyshev_v": lambda x: torch.special.chebyshev_polynomial_v(x, 2),
    "chebyshev_w": lambda x: torch.special.chebyshev_polynomial_w(x, 2),
    "shifted_chebyshev_u": lambda x: torch.special.shifted_chebyshev_polynomial_u(x, 3),
}


@pytest.mark.parametrize("name", _SPECIAL)
def test_special(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.3, 0.9, 1.7, 4.4, 9.5, -2.3], dtype=dtype)
        expected = _SPECIAL[name](x)
        torch.testing.assert_close(_SPECIAL[name](x.to(JAX)).cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    whole = torch.tensor([1, 2, 3])
    if name != "zeta":
        torch.testing.assert_close(_SPECIAL[name](whole.to(JAX)).cpu(), _SPECIAL[name](whole), rtol=1e-4, atol=1e-5)


def test_wrong_values_and_dtypes_are_seen() -> None:
    x = torch.ones(3, device=JAX)
    with pytest.raises(AssertionError):
        _same(x + 1e-3, torch.ones(3))
    with pytest.raises(AssertionError):
        _same(x.double(), torch.ones(3))


_FACTORIES: dict[str, Callable[[str], torch.Tensor]] = {
    "arange": lambda d: torch.arange(7, device=d),
    "arange-step": lambda d: torch.arange(1.0, -2.0, -0.3, device=d),
    "arange-uint8": lambda d: torch.arange(2, 250, 17, dtype=torch.uint8, device=d),
    "arange-empty": lambda d: torch.arange(0, device=d),
    "arange-out": lambda d: torch.arange(5, out=torch.empty(0, dtype=torch.int64, device=d)),
    "linspace": lambda d: torch.linspace(4.3, -3, 50, device=d),
    "linspace-bf16": lambda d: torch.linspace(0, 8, 17, dtype=torch.bfloat16, device=d),
    "linspace-int": lambda d: torch.linspace(-10, 10, 7, dtype=torch.int32, device=d),
    "linspace-one": lambda d: torch.linspace(2, 9, 1, device=d),
    "linspace-complex": lambda d: torch.linspace(1j, 2, 4, device=d),
    "logspace": lambda d: torch.logspace(-1, 2, 6, base=2, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "eye-out": lambda d: torch.eye(3, out=torch.empty(3, 3, dtype=torch.float64, device=d)),
    "tril_indices": lambda d: torch.tril_indices(3, 4, -1, device=d),
    "triu_indices": lambda d: torch.triu_indices(4, 3, 1, dtype=torch.int32, device=d),
    "full": lambda d: torch.full((2, 3), 7, device=d),
    "full-complex": lambda d: torch.full((2,), 1j, device=d),
    "full_like": lambda d: torch.full_like(torch.ones(2, dtype=torch.int64, device=d), 3.0),
    "tril": lambda d: torch.ones(3, 4, device=d).tril(1),
    "triu": lambda d: torch.ones(2, 4, 4, device=d).triu(-1),
    "complex": lambda d: torch.complex(torch.ones(3, device=d), torch.full((3,), 2.0, device=d)),
    "polar": lambda d: torch.polar(torch.ones(3, device=d), torch.arange(3.0, device=d)),
    "window": lambda d: torch.hann_window(6, device=d),
}


@pytest.mark.parametrize("name", _FACTORIES)
def test_factories(name: str) -> None:
    _same(_FACTORIES[name](JAX), _FACTORIES[name]("cpu"))


def test_range() -> None:
    with pytest.warns(UserWarning, match="range is deprecated"):
        got = torch.range(1, 4, device=JAX)
    assert got.tolist() == [1.0, 2.0, 3.0, 4.0]


_REFUSED: dict[str, Callable[[str], Any]] = {
    "arange-sign": lambda d: torch.arange(0, 3, -1, device=d),
    "linspace-steps": lambda d: torch.linspace(0, 1, -1, device=d),
    "eye-negative": lambda d: torch.eye(-1, device=d),
    "broadcast": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "in-place-shape": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
    "in-place-dtype": lambda d: torch.ones(3, dtype=torch.int64, device=d).div_(2),
    "lerp-dtype": lambda d: torch.ones(3, device=d).lerp(torch.ones(3, dtype=torch.float64, device=d), 0.5),
    "empty-negative": lambda d: torch.empty(-1, device=d),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_the_cpu_refuses(name: str) -> None:
    with pytest.raises(RuntimeError):
        _REFUSED[name]("cpu")
    with pytest.raises(RuntimeError):
        _REFUSED[name](JAX)


_GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "pow": lambda a, b: torch.pow(a, b),
    "div": lambda a, b: a / b,
    "atan2": torch.atan2,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
    "logaddexp": torch.logaddexp,
    "where": lambda a, b: torch.where(a > b, a * b, b),
    "clamp": lambda a, b: a.clamp(0.5, 0.9) * b.clamp(min=a),
    "digamma": lambda a, b: torch.digamma(a) + torch.lgamma(b),
    "erfinv": lambda a, b: torch.erfinv(a / 3) * torch.erfc(b),
    "remainder": lambda a, b: torch.remainder(a, b) + torch.fmod(b, a),
    "complex": lambda a, b: torch.complex(a, b).mul(torch.complex(b, a)).abs(),
    "conj": lambda a, b: (torch.complex(a, b).conj() * torch.polar(a, b)).real,
}


@pytest.mark.parametrize("name", _GRADIENTS)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    given = [torch.rand(2, 3) + 0.2, torch.rand(3) + 0.3]
    grads = []
    for device in ("cpu", JAX):
        leaves = [g.to(device).requires_grad_() for g in given]
        out = _GRADIENTS[name](*leaves)
        grads.append(torch.autograd.grad(out.sum(), leaves))
    _same(grads[1], grads[0])


def test_lazy_conjugates_and_negatives() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    y = x.to(JAX)
    for function in (
        lambda t: t.conj().resolve_conj(),
        lambda t: t.conj().imag.resolve_neg(),
        lambda t: t.mH @ t,
        lambda t: t.conj().imag.clone() + 1,
        lambda t: torch.vdot(t[0], t[1]),
        lambda t: t.clone().conj().mul_(2j).resolve_conj(),
        lambda t: t.conj().to(torch.complex128).resolve_conj(),
    ):
        torch.testing.assert_close(function(y).cpu(), function(x))
    y.conj()[0] = 2 + 1j
    assert y[0].tolist() == [2 - 1j] * 3
