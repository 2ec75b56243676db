"""Tensors made from numbers. The numbers are traced, so that only size and dtype make a new program."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ampcheck.jax_device.dispatch.kernels import fit
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dispatch.writing import assign
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import compiled
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import wrap

Values = Callable[..., Any]


def _steps(start: Any, step: Any, *, size: int, dtype: torch.dtype) -> Any:
    """start + i * step, for integers in int64, else in float64."""
    wide = jnp.float64 if dtype.is_floating_point else jnp.int64
    return jnp.asarray(start).astype(wide) + jnp.arange(size, dtype=wide) * jnp.asarray(step).astype(wide)


def _even(start: Any, end: Any, *, size: int, dtype: torch.dtype) -> Any:
    """Evenly spaced from `start` to `end`, each half from its own end; ends and step are rounded to the dtype."""
    wide = jnp.complex128 if dtype.is_complex else jnp.float64

    def rounded(number: Any) -> Any:
        number = jnp.asarray(number)
        return (number.astype(jax_dtype(dtype)) if dtype.is_floating_point else number).astype(wide)

    start, end = rounded(start), rounded(end)
    step = rounded((end - start) / max(size - 1, 1))
    i = jnp.arange(size)
    return jnp.where((i < size // 2) | (size == 1), start + step * i, end - step * (size - 1 - i))


def _powers(start: Any, end: Any, base: Any, *, size: int, dtype: torch.dtype) -> Any:
    exponents = _even(start, end, size=size, dtype=dtype)
    return jnp.power(jnp.asarray(base).astype(exponents.dtype), exponents)


@cache
def _program(values: Values, size: int, dtype: torch.dtype) -> Any:
    def program(*numbers: Any) -> Any:
        return values(*numbers, size=size, dtype=dtype).astype(jax_dtype(dtype))

    return compiled(program, size)


def _made(values: Values, meta: torch.Tensor, *numbers: Any) -> torch.Tensor:
    """A tensor of the Meta tensor's size and dtype."""
    return wrap(_program(values, meta.numel(), meta.dtype)(*numbers).reshape(meta.shape))


def _filled(out: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    fit(out, made)
    assign(out, made)
    return out


def _meta(function: Callable[..., torch.Tensor], *args: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return function(*args, dtype=dtype, device="meta")


@kernel("arange", "arange.start", "arange.start_step")
def _arange(*bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    start, end, step = _bounds(bounds)
    return _made(_steps, _meta(torch.arange, start, end, step, dtype=dtype), start, step)


def _bounds(bounds: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Start, end and step of `arange(end)`, `arange(start, end)` and `arange(start, end, step)`."""
    if len(bounds) == 1:
        return 0, bounds[0], 1
    return bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else 1


@kernel("arange.out", "arange.start_out")
def _arange_out(*bounds: Any, out: torch.Tensor) -> torch.Tensor:
    return _filled(out, _arange(*bounds, dtype=out.dtype))


@kernel("range", "range.step")
def _range(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    size = int((end - start) / step) + 1 if step and (end - start) / step >= 0 else 0
    if not size:
        raise RuntimeError(f"upper bound and lower bound inconsistent with step sign: from {start} to {end} by {step}")
    return _made(_steps, torch.empty(size, dtype=dtype, device="meta"), start, step)


@kernel("range.out")
def _range_out(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    return _filled(out, _range(start, end, step, dtype=out.dtype))


@kernel("linspace")
def _linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _made(_even, _meta(torch.linspace, start, end, steps, dtype=dtype), start, end)


@kernel("linspace.out")
def _linspace_out(start: Any, end: Any, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    return _filled(out, _linspace(start, end, steps, dtype=out.dtype))


@kernel("logspace")
def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _made(_powers, _meta(torch.logspace, start, end, steps, base, dtype=dtype), start, end, base)


@kernel("logspace.out")
def _logspace_out(start: Any, end: Any, steps: int, base: float = 10.0, *, out: torch.Tensor) -> torch.Tensor:
    return _filled(out, _logspace(start, end, steps, base, dtype=out.dtype))


@kernel("eye", "eye.m")
def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    size = (n, n if m is None else m)
    meta = _meta(torch.eye, *size, dtype=dtype)
    return wrap(_identity(*size, jax_dtype(meta.dtype)))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _identity(n: int, m: int, dtype: Any) -> Any:
    return jnp.eye(n, m, dtype=dtype)


@kernel("eye.out", "eye.m_out")
def _eye_out(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    return _filled(out, _eye(n, m, dtype=out.dtype))


@kernel("tril_indices")
def _tril_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return transfer.to_device(torch.tril_indices(row, col, offset, dtype=dtype or torch.int64, device="cpu"))


@kernel("triu_indices")
def _triu_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return transfer.to_device(torch.triu_indices(row, col, offset, dtype=dtype or torch.int64, device="cpu"))
