"""Comparison of a result with the CPU's.

Results that are unique only up to a sign, a phase or an order are compared by invariants: a factorisation by what it
multiplies to and by what its factors must be, not by its factors.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

Path = str


def leaves(value: Any, path: Path = "the result") -> Iterator[tuple[Path, Any]]:
    """Yield the values inside lists, tuples and dicts, each with words for where it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, f"output {i}" if path == "the result" else f"{path}[{i}]")
    else:
        yield path, value


def difference(actual: Any, expected: Any, rtol: float, atol: float, *, values: bool = True) -> str:
    """Return a sentence on the first difference between two results; "" where they agree.

    Tolerances hold for float32; float64 is held to 1e-7, lower precision to PyTorch's own defaults and two roundings of
    the largest element, as the CPU rounds between steps. With `values` false only shapes and dtypes are compared.
    """
    mine, theirs = list(leaves(actual)), list(leaves(expected))
    if len(mine) != len(theirs):
        return f"gave {len(mine)} outputs; the CPU gives {len(theirs)}"
    for (path, a), (_, e) in zip(mine, theirs, strict=True):
        tensors = isinstance(a, torch.Tensor) + isinstance(e, torch.Tensor)
        if tensors == 1:
            return f"{path} is a {type(a).__name__}; the CPU's is a {type(e).__name__}"
        if not tensors and not (isinstance(a, float) and isinstance(e, float)):
            if values and a != e:
                return f"{path} is {a!r}; the CPU's is {e!r}"
            continue
        if tensors and not values:
            a, e = torch.zeros_like(a), torch.zeros_like(e)
        most = _tolerances(e, rtol, atol) if tensors else (rtol, atol)
        try:
            torch.testing.assert_close(a, e, rtol=most[0], atol=most[1], equal_nan=True, check_device=False)
        except AssertionError as found:
            return f"{path} is wrong: {' '.join(str(found).split())}"
    return ""


def _tolerances(expected: torch.Tensor, rtol: float, atol: float) -> tuple[float, float]:
    dtype = expected.dtype.to_real()
    if dtype == torch.float64:
        return 1e-7, 1e-7
    if dtype in (torch.float16, torch.bfloat16):
        finite = expected[expected.isfinite()].float().abs()
        return max(rtol, 1.6e-2), max(atol, 2**-6 * float(finite.max())) if finite.numel() else atol
    return (rtol, atol) if dtype.is_floating_point else (0.0, 0.0)


def distribution(actual: list[Any], expected: list[Any]) -> str:
    """Return a sentence where two lists of random draws differ in shape, dtype or distribution; "" where they agree.

    Within six standard errors: the share of draws below each decile of the CPU's, and the mean and the standard
    deviation, unless the tail is so heavy that they say nothing.
    """
    if found := difference(actual[0], expected[0], 0.0, 0.0, values=False):
        return found
    columns = zip(
        *([v for _, v in leaves(d)] for d in actual), *([v for _, v in leaves(d)] for d in expected), strict=True
    )
    for i, column in enumerate(columns):
        mine, theirs = column[: len(actual)], column[len(actual) :]
        if isinstance(theirs[0], torch.Tensor) and theirs[0].numel() and (found := _random_difference(mine, theirs)):
            return f"output {i}, {found}"
    return ""


def _random_difference(actual: Any, expected: Any) -> str:
    """Compare draws of one output. Elements of one draw may depend on each other, as channels dropped together do."""
    shape = expected[0].shape
    independent = len(expected) * max(1, int(torch.Size(shape[:2]).numel()))
    a, e = (torch.stack([t.detach().double().reshape(-1) for t in draws]).reshape(-1) for draws in (actual, expected))
    if bool(a.isfinite().all()) != bool(e.isfinite().all()):
        return (
            f"{int((~a.isfinite()).sum())} of {a.numel()} draws are not finite; the CPU's {int((~e.isfinite()).sum())}"
        )
    slack = 6 * (2 / independent) ** 0.5
    deciles = torch.quantile(e[:: max(1, e.numel() // 1_000_000)], torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
    for level in deciles.tolist():
        below, theirs = (float(((x < level) + 0.5 * (x == level)).double().mean()) for x in (a, e))
        if abs(below - theirs) > slack * max(theirs * (1 - theirs), 0.05) ** 0.5:
            return f"a share of {below:.3f} of the draws is below {level:.4g}; of the CPU's {theirs:.3f}"
    return _moments(a, e, slack)


def _moments(a: torch.Tensor, e: torch.Tensor, slack: float) -> str:
    """Compare mean and standard deviation, unless a heavy tail leaves no moments to compare."""
    deviation = float(e.std(correction=0))
    scaled = (e - e.mean()) / max(deviation, 1e-6)
    if float(scaled.abs().max()) > 12:
        return ""
    if abs(float(a.mean() - e.mean())) > slack * max(deviation, 1e-6):
        return f"the mean of the draws is {float(a.mean()):.4g}; of the CPU's {float(e.mean()):.4g}"
    tail = max(float(scaled.pow(4).mean()) - 1, 0.25) ** 0.5
    if abs(float(a.std(correction=0)) - deviation) > slack * max(tail / 2, 0.2) * max(deviation, 1e-6):
        return f"the standard deviation of the draws is {float(a.std(correction=0)):.4g}; of the CPU's {deviation:.4g}"
    return ""


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
