"""Kernels that look at values, and so wait for the device; strided forms that PyTorch checks against C++ storages."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import torch

from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.storage import transfer

# What an info over 0 says, by how the function's name starts (ATen/native/BatchLinearAlgebra.cpp).
_POSITIVE = (
    ("inv", "The diagonal element {} is zero: the input matrix is singular and has no inverse."),
    ("solve", "There is no one solution: the input matrix is singular (pivot {} is zero)."),
    ("cholesky", "There is no factor: the leading minor of order {} is not positive-definite."),
    ("lu_factor", "U[{0},{0}] is zero: lu_solve would divide by it; lu_factor_ex gives the factors all the same."),
)


@kernel("_linalg_check_errors")
def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raise torch.linalg.LinAlgError for the first matrix whose decomposition failed.

    Values that are being traced by JAX are not looked at: the results then hold nan or infinity.
    """
    array = transfer.values(info)
    if isinstance(array, jax.core.Tracer):
        return
    found = np.asarray(array).reshape(-1)
    if not found.any():
        return
    first = int(np.flatnonzero(found)[0])
    code = int(found[first])
    where = "" if is_matrix else f"(Batch element {first}): "
    if code < 0:
        raise RuntimeError(f"{api_name}: {where}Argument {-code} has illegal value. Most certainly there is a bug.")
    says = next((text for start, text in _POSITIVE if api_name.rpartition(".")[2].startswith(start)), None)
    text = says.format(code) if says else f"The decomposition failed with error code {code}."
    raise torch.linalg.LinAlgError(f"{api_name}: {where}{text}")  # type: ignore[attr-defined]


@kernel("allclose")
def allclose(
    self: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements are close, as `torch.isclose` says."""
    return bool(torch.isclose(self, other, rtol, atol, equal_nan).all())


@kernel("as_strided_copy")
def as_strided_copy(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return a copy of what size, strides and offset name in the storage."""
    return torch.as_strided(self, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)
