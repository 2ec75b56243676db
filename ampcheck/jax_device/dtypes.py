"""PyTorch dtypes and JAX dtypes, one for one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch

TO_JAX: dict[torch.dtype, np.dtype] = {
    theirs: np.dtype(ours)
    for theirs, ours in {
        torch.bool: jnp.bool_,
        torch.uint8: jnp.uint8,
        torch.uint16: jnp.uint16,
        torch.uint32: jnp.uint32,
        torch.uint64: jnp.uint64,
        torch.int8: jnp.int8,
        torch.int16: jnp.int16,
        torch.int32: jnp.int32,
        torch.int64: jnp.int64,
        torch.float16: jnp.float16,
        torch.bfloat16: jnp.bfloat16,
        torch.float32: jnp.float32,
        torch.float64: jnp.float64,
        torch.complex64: jnp.complex64,
        torch.complex128: jnp.complex128,
        torch.float8_e4m3fn: jnp.float8_e4m3fn,
        torch.float8_e5m2: jnp.float8_e5m2,
        torch.float8_e4m3fnuz: jnp.float8_e4m3fnuz,
        torch.float8_e5m2fnuz: jnp.float8_e5m2fnuz,
        torch.float8_e8m0fnu: jnp.float8_e8m0fnu,
    }.items()
}
_LOW = frozenset({TO_JAX[torch.float16], TO_JAX[torch.bfloat16]})
TO_TORCH: dict[np.dtype, torch.dtype] = {ours: theirs for theirs, ours in TO_JAX.items()}


def jax_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the JAX dtype that holds the same numbers.

    Raises NotImplementedError for one JAX lacks (quantized, complex32).
    """
    try:
        return TO_JAX[dtype]
    except KeyError:
        raise NotImplementedError(f"the jax device has no {dtype}: JAX has no such dtype") from None


def opmath_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which PyTorch computes with numbers of a dtype: float32 for float16 and bfloat16.

    ATen/OpMathType.h. A formula of several steps is then rounded once, and 0.999 beside bfloat16 does not become 1.
    """
    return TO_JAX[torch.float32] if dtype in _LOW else dtype


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the PyTorch dtype of an array's dtype. Raises NotImplementedError for one PyTorch lacks (int4, keys)."""
    try:
        return TO_TORCH[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise NotImplementedError(f"PyTorch has no dtype for JAX's {dtype}") from None
