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


def _continuous(name: str, check: Check) -> Check:
    def checked(self: torch.Tensor, *numbers: float | None) -> str | None:
        if not (self.dtype.is_floating_point or (self.dtype.is_complex and name == "normal_")):
            return f"{name} needs a tensor of a floating dtype, and this one is {self.dtype}"
        return check(*numbers)

    return checked


def _bounds(low: float = 0.0, high: float = 1.0) -> str | None:
    return None if low <= high else f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"


def _std(mean: float = 0.0, std: float = 1.0) -> str | None:
    return None if std >= 0 else f"normal expects std >= 0.0, but found std {std}"


def _log_std(mean: float = 1.0, std: float = 2.0) -> str | None:
    return None if std > 0 else f"log_normal_ expects std > 0.0, but found std={std}"


def _rate(lambd: float = 1.0) -> str | None:
    return None if lambd > 0 else f"exponential_ expects lambda > 0.0, but found lambda={lambd}"


def _sigma(median: float = 0.0, sigma: float = 1.0) -> str | None:
    return None if sigma > 0 else f"cauchy_ expects sigma > 0.0, but found sigma={sigma}"


def _success(self: torch.Tensor, p: float) -> str | None:
    if self.dtype is torch.bool or self.dtype.is_complex:
        return f"geometric_ is not implemented for {self.dtype}"
    return None if 0 < p < 1 else f"geometric_ expects p to be in (0, 1), but got p={p}"


def _probability(self: torch.Tensor, p: float = 0.5) -> str | None:
    return None if 0 <= p <= 1 else f"bernoulli_ expects p to be in [0, 1], but got p={p}"


def _to(self: torch.Tensor, to: int) -> str | None:
    return _from_to(self, 0, to)


def _from_to(self: torch.Tensor, low: int, to: int | None) -> str | None:
    if to is None:
        return None
    if low >= to:
        return f"random_ expects 'from' to be less than 'to', but got from={low} >= to={to}"
    for name, bound in (("from", low), ("to - 1", to - 1)):
        if not _holds(self.dtype, bound):
            return f"{name} is out of bounds for {self.dtype}: {bound}"
    return None


def _holds(dtype: torch.dtype, number: int) -> bool:
    if dtype is torch.bool:
        return number in (0, 1)
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min <= number <= info.max


_OPS: dict[str, tuple[str, Check]] = {
    "uniform_": ("uniform", _continuous("uniform_", _bounds)),
    "normal_": ("normal_functional", _continuous("normal_", _std)),
    "log_normal_": ("log_normal", _continuous("log_normal_", _log_std)),
    "exponential_": ("exponential", _continuous("exponential_", _rate)),
    "cauchy_": ("cauchy", _continuous("cauchy_", _sigma)),
    "geometric_": ("geometric", _success),
    "bernoulli_.float": ("bernoulli.p", _probability),
    "random_.to": ("random.to", _to),
    "random_.from": ("random.from", _from_to),
}


def _register(name: str, functional: str, check: Check) -> None:
    given: list[Tree] = [a.default for a in arguments(overload(f"aten::{name}"))[1:] if not a.kwarg_only]

    @kernel(name)
    def drawn(self: torch.Tensor, *numbers: float | None, generator: torch.Generator | None = None) -> torch.Tensor:
        numbers = (*numbers, *given[len(numbers) :])  # PyTorch leaves out defaults, which the functional may not have
        problem = check(self, *numbers)
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
