"""How close two tensors are, and how close they must be: every tolerance of ampcheck has its name and reason here.

From the strictest to the widest: `identical` (the same bits), `bound` (what a right kernel may be off from the float64
result), `rounding_bound` (another order of additions), `relative_distance` (a step of a training loop),
`relative_error` (a whole result, by its norm).

Reproductions print the source of what they need from here, so nothing here needs more than torch.
"""

import math
from collections.abc import Callable, Iterable

import torch

DRAWS = 3
"""How many times the inputs of a float64 reference are moved, each by half a rounding up or down at random."""

FREEDOM = {torch.float16: 1.25, torch.bfloat16: 1.25, torch.float32: 384.0, torch.float64: 384.0}
"""What `bound` is multiplied by. In float32 and float64 runs the linear algebra, whose algorithms differ in more than
their roundings; the largest that PyTorch's CPU kernels need is 49 (pinverse), and 1.06 in a lower precision."""

PRODUCTS = 32.0
"""The same for sums of products in float32, whose kernels differ in the order of additions alone."""

SHORTER = {"tf32": torch.float16, "bf16": torch.bfloat16}
"""What settings let kernels round the factors of float32 products to, as a dtype with significands as long."""

BACKWARD_PASSES = 2
"""The `passes` of a gradient: a backward pass takes what the forward pass rounded."""

SAME_KERNELS = 0
"""Roundings by which the same kernels on the same inputs may differ: none."""
SAME_KERNELS_ON_PARTS = 4
"""The same kernels run, but of parts that a composite op is taken apart into, whose layouts may be other ones."""
OTHER_KERNELS = 48
"""Another compiler adds in another order; the largest that PyTorch's CPU kernels need beside float64 is 49."""

NOTICED = 0.2
"""The part of the largest element that is never put down to roundings: a result wrong by a quarter is noticed."""


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of any layout as a strided one."""
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same values, nan where the other has nan."""
    a, b = dense(a), dense(b)
    if a.is_complex():  # half-precision complex cannot be compared
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    nan = a.isnan()  # not nan_to_num, which makes infinity the largest number, as a kernel that saturates does
    return torch.equal(nan, b.isnan()) and torch.equal(a[~nan], b[~nan])


def alike(a: torch.Tensor, want: torch.Tensor, tolerance: float = 0.0) -> bool:
    """Return whether two tensors agree in shape and dtype, and in each value up to `tolerance` of 1 + |want|, nan with
    nan."""
    same = a.shape == want.shape and a.dtype == want.dtype
    return same and torch.allclose(a.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance of each element; 0 where one of both is not finite."""
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    far = (a.to(wide) - b.to(wide)).abs()
    return torch.where(a.isfinite() & b.isfinite(), far, torch.zeros_like(far))


def largest_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest distance of two elements; infinity where one is not finite and the other is not the same."""
    a, b = dense(a), dense(b)
    odd = a.isfinite().logical_not()
    if not torch.equal(a.isfinite(), b.isfinite()) or (
        not a.is_complex() and not identical(a[odd], b[odd].to(a.dtype))
    ):
        return float("inf")
    return float(distance(a, b).max()) if a.numel() else 0.0


def relative_distance(a: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest distance of two elements, as a part of 1 + |want|."""
    return float(((a - want).abs() / (1 + want.abs())).max()) if a.numel() else 0.0


def relative_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the error of a vector beside a reference: the 2-norm of the difference over the reference's.

    Infinite where one of them is finite and the other is not, or they are not finite in different ways; what is not
    finite in the same way in both counts as right. Infinite, too, where the reference is all zeros and the output is
    not. Raises ValueError for vectors of different shapes.
    """
    if output.shape != reference.shape:
        raise ValueError(f"an output of shape {tuple(output.shape)} beside a reference of {tuple(reference.shape)}")
    out, ref = output.double(), reference.double()
    finite = ref.isfinite()
    rest = ~finite
    if not out[finite].isfinite().all() or not torch.equal(
        out[rest].nan_to_num(nan=0.5), ref[rest].nan_to_num(nan=0.5)
    ):
        return float("inf")
    distance = torch.linalg.vector_norm(out[finite] - ref[finite]).item()
    size = torch.linalg.vector_norm(ref[finite]).item()
    if distance == 0:
        return 0.0
    return distance / size if size else float("inf")


def rounding_bound(want: torch.Tensor, dtypes: list[torch.dtype], roundings: int, in_float32: int = 0) -> float:
    """Return how far results may be from `want` where other kernels than its own computed them.

    Args:
        want: the result to compare with.
        dtypes: what the kernels received.
        roundings: how many roundings of the least precise of these dtypes may lie between, each of the largest element.
        in_float32: the same where all is float32, if that is more.
    """
    if not roundings or not (want.is_floating_point() or want.is_complex()):
        return 0.0
    finite = want[want.isfinite()].abs().double()
    largest = float(finite.max()) if finite.numel() else 1.0
    eps = max(torch.finfo(x).eps for x in (want.dtype, *dtypes) if x.is_floating_point or x.is_complex)
    allowed = max(roundings, in_float32 if eps == torch.finfo(torch.float32).eps else 0) * eps * max(1.0, largest)
    return min(allowed, NOTICED * largest)


def mover(dtype: torch.dtype, draw: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that moves each element by half a rounding of a dtype, up or down at random."""
    generator = torch.Generator().manual_seed(draw)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
        return tensor * (1 + signs * torch.finfo(dtype).eps / 2)

    return move


def moved_by(run: Callable[[int], list[torch.Tensor]], exact: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return how far the elements of exact results move where every input is half a rounding off.

    `run`: gives the results on the inputs of a draw, which `mover` has moved.
    """
    moved = [torch.zeros(x.shape, dtype=torch.float64) for x in exact]
    for draw in range(DRAWS):
        moved = [torch.maximum(far, distance(x, y)) for far, x, y in zip(moved, run(draw), exact, strict=True)]
    return moved


def bound(
    want: torch.Tensor,
    moved: torch.Tensor,
    kernel: torch.dtype,
    output: torch.dtype,
    passes: int = 1,
    products: str = "",
) -> torch.Tensor:
    """Return how far each element of a right output of dtype `output` may be from the exact one.

    It is derived from the call: what half a rounding of every input moves the element by, which grows with the length
    of its sums and with its condition, and the rounding of the output itself.

    Args:
        want: the exact output.
        moved: what `moved_by` gives for it.
        kernel: the least precise dtype that the kernel received.
        output: the dtype of the output.
        passes: how many kernels in a row it went through. What went through several may be off by the roundings of
            values about 1 where the exact result is 0.
        products: what a sum of products in float32 may round its factors to, one of `SHORTER`, or "ieee" for nothing;
            "sum" for a sum alone; "" for any other call.
    """
    free = FREEDOM[kernel]
    if products and kernel is torch.float32:
        short = SHORTER.get(products, kernel)
        moved = moved * (torch.finfo(short).eps / torch.finfo(kernel).eps)
        kernel, free = short, PRODUCTS if short is kernel else FREEDOM[short]
    real = output.to_real()
    eps = max(torch.finfo(real).eps, torch.finfo(kernel).eps)
    size = torch.where(want.isfinite(), want.abs(), torch.zeros_like(want.abs())).to(torch.float64)
    largest = size.max().clamp(min=float(passes > 1)) if size.numel() else size
    rounded = eps * (0.75 * size + 0.25 * largest)
    return passes * free * (rounded + moved) + torch.finfo(real).smallest_normal


def right(
    got: torch.Tensor, want: torch.Tensor, moved: torch.Tensor, kernel: torch.dtype, passes: int = 1, products: str = ""
) -> torch.Tensor:
    """Return which elements of an output are within `bound`, whose arguments it takes, of the exact ones."""
    limit = bound(want, moved, kernel, got.dtype, passes, products)
    finite = want.isfinite()
    if got.is_complex() or want.is_complex():
        return torch.where(finite, got.isfinite() & (distance(got, want) <= limit), ~got.isfinite())
    same = (got.isnan() & want.isnan()) | (got.to(want.dtype) == want)
    near = torch.where(finite, got.isfinite() & (distance(got, want) <= limit), same)
    # Beyond the dtype's range, an infinity is right, and so is a value near the largest one.
    most = torch.finfo(got.dtype).max
    return near | (finite & (want.abs() > most - limit) & (got.to(want.dtype) * want.sign() >= most / 2))


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CHOSEN = frozenset(
    ("fill", "fill_", "masked_fill", "masked_fill_", "full", "full_like", "new_full", "where", "resize_", "empty")
) | {"empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
"""Kernels whose infinity or nan is the program's own choice, as that of a mask, or nobody's, as those of new memory."""


def bounds(x: torch.Tensor) -> tuple[float, float] | None:
    """Return the least and the largest value, nan where one is; None for a tensor without elements or order."""
    if not x.numel() or x.dtype is torch.bool or x.is_complex() or x.layout is not torch.strided or x.is_meta:
        return None
    low, high = torch.aminmax(x.detach())
    return low.item(), high.item()


def nonfinite(results: Iterable[torch.Tensor]) -> str:
    """Return which values that are not finite some tensors hold: "nan", "inf and -inf"; "" for none."""
    found: list[str] = []
    for x in results:
        pair = bounds(x) if x.dtype in FLOATS else None
        if pair is None or all(map(math.isfinite, pair)):
            continue
        found += ["nan"] if any(map(math.isnan, pair)) else [str(bound) for bound in pair if math.isinf(bound)]
    return " and ".join(dict.fromkeys(found))
