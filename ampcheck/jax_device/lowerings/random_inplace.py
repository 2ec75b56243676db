"""In-place random ops: what PyTorch's CPU kernels say of numbers that no distribution has, then the lowering.

The checks are here because the numbers are no part of the compiled program, and PyTorch's Meta kernels, which are asked
once per program, check few of them.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import torch

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed, fit
from ampcheck.jax_device.dispatch.schema import arguments, overload
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dispatch.writing import assign
from ampcheck.jax_device.storage.arrays import wrap

Check = Callable[..., str | None]
"""Say what is wrong with the numbers of a call, or None."""


def _below(low: int, to: int | None, dtype: torch.dtype) -> str | None:
    """Check the bounds of `random_`, which the dtype must hold."""
    if to is None:
        return None
    if low >= to:
        return f"random_ expects 'from' to be less than 'to', but got from={low} >= to={to}"
    for name, bound in (("from", low), ("to - 1", to - 1)):
        if not _holds(dtype, bound):
            return f"{name} is out of bounds for {dtype}: {bound}"
    return None


def _holds(dtype: torch.dtype, number: int) -> bool:
    if dtype is torch.bool:
        return number in (0, 1)
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min <= number <= info.max


def _expect(holds: bool, message: str) -> str | None:
    return None if holds else message


# By the name of an op: its functional overload, and what is wrong with its numbers and the tensor's dtype.
_CONTINUOUS: dict[str, tuple[str, Check]] = {
    "uniform_": (
        "uniform",
        lambda low, to, _: _expect(
            low <= to, f"uniform_ expects to return a [from, to) range, but found from={low} > to={to}"
        ),
    ),
    "normal_": (
        "normal_functional",
        lambda mean, std, _: _expect(std >= 0, f"normal expects std >= 0.0, but found std {std}"),
    ),
    "log_normal_": (
        "log_normal",
        lambda mean, std, _: _expect(std > 0, f"log_normal_ expects std > 0.0, but found std={std}"),
    ),
    "exponential_": (
        "exponential",
        lambda rate, _: _expect(rate > 0, f"exponential_ expects lambda > 0.0, but found lambda={rate}"),
    ),
    "cauchy_": (
        "cauchy",
        lambda median, sigma, _: _expect(sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma}"),
    ),
}
_OPS: dict[str, tuple[str, Check]] = {
    **_CONTINUOUS,
    "geometric_": (
        "geometric",
        lambda p, dtype: (
            f"geometric_ is not implemented for {dtype}"
            if dtype is torch.bool or dtype.is_complex
            else _expect(0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p}")
        ),
    ),
    "bernoulli_.float": (
        "bernoulli.p",
        lambda p, _: _expect(0 <= p <= 1, f"bernoulli_ expects p to be in [0, 1], but got p={p}"),
    ),
    "random_.to": ("random.to", lambda to, dtype: _below(0, to, dtype)),
    "random_.from": ("random.from", _below),
}


def _register(name: str, functional: str, check: Check) -> None:
    given: list[Tree] = [a.default for a in arguments(overload(f"aten::{name}"))[1:] if not a.kwarg_only]

    @kernel(name)
    def drawn(self: torch.Tensor, *numbers: float | None, generator: torch.Generator | None = None) -> torch.Tensor:
        numbers = (*numbers, *given[len(numbers) :])  # PyTorch leaves out defaults, which the functional may not have
        drawable = self.dtype.is_floating_point or (self.dtype.is_complex and name == "normal_")
        if name in _CONTINUOUS and not drawable:
            raise RuntimeError(f"{name} needs a tensor of a floating dtype, and this one is {self.dtype}")
        problem = check(*numbers, self.dtype)
        if problem is not None:
            raise RuntimeError(problem)
        assign(self, computed(functional)(self, *numbers, generator=generator))
        return self


for _name, (_functional, _check) in _OPS.items():
    _register(_name, _functional, _check)


@kernel("randperm.generator_out", "randperm.out")
def _randperm(n: int, *, generator: torch.Generator | None = None, out: torch.Tensor) -> torch.Tensor:
    """Return a random order of 0 to n - 1."""
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    if n and not _holds(out.dtype, n - 1):
        raise RuntimeError(f"n is too large for result tensor type: {out.dtype}, n = {n}")
    values = wrap(_permutation(random.next_key(generator), n)).to(out.dtype)
    fit(out, values)
    assign(out, values)
    return out


def _permutation(key: random.RawKey, n: int) -> jax.Array:
    return jax.random.permutation(key, n)
