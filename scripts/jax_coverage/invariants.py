"""Invariants of results that are unique only up to a sign, a phase or an order.

A factorisation is compared by what it multiplies to and by what its factors must be, not by its factors.
"""

from collections.abc import Callable
from typing import Any

import torch

Invariant = Callable[[Any, Any], Any]


def _gram(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.mH @ matrix


def _svd(sample: Any, out: Any) -> Any:
    u, s, vh = out
    k = s.shape[-1]
    return s, (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], _gram(u), _gram(vh.mH), _shapes(out)


def _old_svd(sample: Any, out: Any) -> Any:
    u, s, v = out
    if not sample.kwargs.get("compute_uv", True):
        return s, _shapes(out)
    return _svd(sample, (u, s, v.mH))


def _eigh(sample: Any, out: Any) -> Any:
    w, v = out
    return w, (v * w[..., None, :]) @ v.mH, _gram(v), _shapes(out)


def _eig(sample: Any, out: Any) -> Any:
    """Residual, reconstruction and norms: eigenvalues come in any order, and vectors may span too little."""
    w, v = out
    a = sample.input.to(v.dtype)
    inverse = torch.linalg.pinv(v)
    return a @ v - v * w[..., None, :], (v * w[..., None, :]) @ inverse, v.norm(dim=-2), _shapes(out)


def _eigvals(sample: Any, out: Any) -> Any:
    """Power sums, which do not depend on the order."""
    return [(out**k).sum(-1) for k in range(1, 5)], _shapes(out)


def _qr(sample: Any, out: Any) -> Any:
    q, r = out
    if not q.numel():  # mode="r"
        return _gram(r), torch.tril(r, -1), _shapes(out)
    return q @ r, _gram(q), torch.tril(r, -1), _shapes(out)


def _low_rank(sample: Any, out: Any) -> Any:
    """Orthonormal vectors, and what of the matrix is left out, within a fiftieth of its norm: it is a random sketch.

    The OpInfo gives the matrix by two factors, less `M` or, with `center`, less the means of its columns.
    """
    u, s, v = out
    a = sample.input @ sample.args[0].mT
    if sample.kwargs.get("M") is not None:
        a = a - sample.kwargs["M"]
    if sample.kwargs.get("center"):
        a = a - a.mean(-2, keepdim=True)
    left = torch.linalg.matrix_norm(a - (u * s[..., None, :]) @ v.mH) / torch.linalg.matrix_norm(a).clamp(min=1e-6)
    return left / 20, _gram(u), _gram(v), _shapes(out)


def _shapes(out: Any) -> list[Any]:
    return [(list(o.shape), o.dtype) for o in out] if isinstance(out, tuple) else [(list(out.shape), out.dtype)]


INVARIANTS: dict[str, Invariant] = {
    "linalg.svd": _svd,
    "svd": _old_svd,
    "linalg.eigh": _eigh,
    "linalg.eig": _eig,
    "linalg.eigvals": _eigvals,
    "linalg.qr": _qr,
    "qr": _qr,
    "pca_lowrank": _low_rank,
    "svd_lowrank": _low_rank,
}

_INDEXED = frozenset(
    {"sort", "msort", "topk", "kthvalue", "mode", "median", "nanmedian", "max", "min", "cummax", "cummin"}
)


def indices_as_values(name: str, sample: Any, out: Any) -> Any:
    """Values and indices of an op that may choose among equal elements: the indices become what they point at."""
    base = name.split(".")[0]
    if base == "argsort":
        return _pointed(base, sample, out)
    if base not in _INDEXED or not isinstance(out, tuple) or len(out) != 2:
        return out
    return out[0], _pointed(base, sample, out[1])


def _pointed(base: str, sample: Any, indices: torch.Tensor) -> Any:
    source = sample.input
    dim = sample.kwargs.get("dim", _dimension(base, sample.args))
    if source.dim() == 0:
        return source.reshape(1)[indices.reshape(-1)], list(indices.shape), indices.dtype
    pointed = indices if indices.dim() == source.dim() else indices.unsqueeze(dim)
    return torch.gather(source, dim, pointed), list(indices.shape), indices.dtype


def _dimension(base: str, args: tuple[Any, ...]) -> int:
    place = 1 if base in ("topk", "kthvalue") else 0
    numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
    return numbers[place] if len(numbers) > place else -1
