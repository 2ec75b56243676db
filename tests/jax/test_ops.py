"""Ops of the jax device beside the CPU, at edges above all: dtypes, shapes, values and gradients.

test_op_database.py has the plain samples of PyTorch's op database, with gradients. Here are infinities, nan, ties,
integers, lower precision, promotion, numbers, errors, and what several calls share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

import jax
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

from ampcheck.jax_device import t2j, to_jax
from tests.jax.agreement import INF, NAN, close, moved, same

Calls = dict[str, list[Callable[[], Any]]]
check = partial(partial, same)
REALS = [0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -3.5, 7.0, INF, -INF, NAN]
INTEGERS = [0, 1, -1, 2, -3, 5, 7, -8, 11, 100]
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


def grown(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


def inputs(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False])
    values = REALS if dtype.is_floating_point else INTEGERS
    return torch.tensor([v % 200 for v in values] if dtype is torch.uint8 else values, dtype=dtype)


# What PyTorch does not promise, or draws; and what is computed otherwise at edges, where the CPU's kernels differ too.
OTHER = {
    *("byte", "char", "short", "int", "long"),  # of what the integer does not hold
    *("chalf", "jiterator_unary", "jiterator_binary", "jiterator_binary_return_by_ref", "nn.functional.rrelu"),
    *("special.scaled_modified_bessel_k0", "special.scaled_modified_bessel_k1", "igamma", "igammac", "special.zeta"),
    "complex",  # assert_close compares no infinite parts
    "nn.functional.gelu",  # below, element by element
}


def ufuncs(kind: type[OpInfo]) -> dict[str, OpInfo]:
    """Return the ops of a kind by name; not polynomials, which of nan are 0 on the CPU."""
    found = {op.full_name: op for op in op_db if isinstance(op, kind) and "_polynomial_" not in op.full_name}
    return {name: op for name, op in found.items() if name not in OTHER}


UNARY, BINARY = ufuncs(UnaryUfuncInfo), ufuncs(BinaryUfuncInfo)


def shared(names: dict[str, OpInfo]) -> list[Any]:
    """Return each op with each of its dtypes, of which each run takes a third."""
    pairs = [(name, dtype) for name, op in names.items() for dtype in DTYPES if dtype in op.dtypes]
    return [
        pytest.param(name, dtype, marks=[pytest.mark.nightly] * (crc32(f"{name} {dtype}".encode()) % 3 > 0))
        for name, dtype in pairs
    ]


def as_far_as_the_cpu(op: OpInfo, *args: torch.Tensor, **kwargs: Any) -> None:
    """Compare unless the CPU refuses these numbers, as it does of integers alone."""
    try:
        op(*args, **kwargs)
    except RuntimeError:
        assert not args[0].is_floating_point()
        return
    same(op, *args, **kwargs, loose=16)


@pytest.mark.parametrize(("name", "dtype"), shared(UNARY))
def test_unary(name: str, dtype: torch.dtype) -> None:
    x = inputs(dtype)
    as_far_as_the_cpu(UNARY[name], x, **UNARY[name].sample_kwargs("cpu", dtype, x)[0])


@pytest.mark.parametrize(("name", "dtype"), shared(BINARY))
def test_binary(name: str, dtype: torch.dtype) -> None:
    x = inputs(dtype)
    a, b = x[:, None], x
    if dtype in (torch.int64, torch.uint8):  # without what CPU refuses: zero divisors and overflowing powers
        a, b = torch.tensor([0, 1, 2, 3, 7], dtype=dtype)[:, None], torch.tensor([1, 2, 3, 5], dtype=dtype)
        a = a if dtype is torch.uint8 else a - 3
    as_far_as_the_cpu(BINARY[name], a, b)


@pytest.mark.parametrize("name", ["add", "true_divide", "pow", "remainder", "maximum", "eq", "where"])
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
    function = (lambda a, b: torch.where(a > 0, a, b)) if name == "where" else getattr(torch, name)
    a, b = torch.tensor([1, 2, 3]).to(left), torch.tensor([[2], [1]]).to(right)
    for x, y in ((a, b), (a, b[0, 0]), (a[0], b)):  # a tensor without dimensions counts less
        same(function, x, y)


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
        same(function, x)


def test_squares_and_other_powers_share_a_program() -> None:
    for exponent in (2, 2.0, 3, -1, 0, 0.5):
        same(lambda x, exponent=exponent: x**exponent, torch.tensor([-2.0, 0.5, 3.0]))


def test_lazy_conjugates_and_negatives() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    for function in (
        lambda t: t.conj().resolve_conj(),
        lambda t: t.conj().imag.resolve_neg(),
        lambda t: t.mH @ t,
        lambda t: t.conj().imag.clone() + 1,
        lambda t: torch.vdot(t[0], t[1]),
        lambda t: t.clone().conj().mul_(2j).resolve_conj(),
        lambda t: t.conj().to(torch.complex128).resolve_conj(),
    ):
        same(function, x)
    y = x.to("jax")
    y.conj()[0] = 2 + 1j
    assert y[0].tolist() == [2 - 1j] * 3


FACTORIES: dict[str, Callable[[str], torch.Tensor]] = {
    "arange-step": lambda d: torch.arange(1.0, -2.0, -0.3, device=d),
    "arange-uint8": lambda d: torch.arange(2, 250, 17, dtype=torch.uint8, device=d),
    "arange-out": lambda d: torch.arange(5, out=torch.empty(0, dtype=torch.int64, device=d)),
    "linspace-bf16": lambda d: torch.linspace(0, 8, 17, dtype=torch.bfloat16, device=d),
    "linspace-int": lambda d: torch.linspace(-10, 10, 7, dtype=torch.int32, device=d),
    "linspace-one": lambda d: torch.linspace(2, 9, 1, device=d),
    "linspace-complex": lambda d: torch.linspace(1j, 2, 4, device=d),
    "eye-out": lambda d: torch.eye(3, out=torch.empty(3, 3, dtype=torch.float64, device=d)),
    "triu_indices": lambda d: torch.triu_indices(4, 3, 1, dtype=torch.int32, device=d),
    "full-complex": lambda d: torch.full((2,), 1j, device=d),
    "window": lambda d: torch.hann_window(6, device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    close(FACTORIES[name]("jax"), FACTORIES[name]("cpu"), 16)


def test_range() -> None:
    with pytest.warns(UserWarning, match="range is deprecated"):
        assert torch.range(1, 4, device="jax").tolist() == [1.0, 2.0, 3.0, 4.0]


REFUSED: dict[str, Callable[[str], Any]] = {
    "arange-sign": lambda d: torch.arange(0, 3, -1, device=d),
    "linspace-steps": lambda d: torch.linspace(0, 1, -1, device=d),
    "eye-negative": lambda d: torch.eye(-1, device=d),
    "broadcast": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "in-place-shape": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
    "in-place-dtype": lambda d: torch.ones(3, dtype=torch.int64, device=d).div_(2),
    "lerp-dtype": lambda d: torch.ones(3, device=d).lerp(torch.ones(3, dtype=torch.float64, device=d), 0.5),
    "empty-negative": lambda d: torch.empty(-1, device=d),
    "bincount": lambda d: torch.bincount(torch.tensor([-1], device=d)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses(name: str) -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError):
            REFUSED[name](device)


HOLES = torch.tensor([[1.0, NAN, 3.0, 3.0], [-INF, 2.0, 2.0, INF], [0.0, -0.0, 5.0, 5.0]])
PLAIN = torch.linspace(-2, 3, 24).reshape(2, 3, 4)
COUNTS = torch.tensor([[3, 1, 3], [0, 7, 7]])
SUMS = (torch.sum, torch.nansum, torch.mean, torch.prod, torch.var, torch.std, torch.amax, torch.logsumexp)
LINE, WANTED = torch.tensor([1.0, 3.0, 3.0, 7.0]), torch.tensor([[3.0, 0.0], [NAN, 8.0]])
REDUCTIONS: Calls = {
    "elementwise": [
        check(function, inputs(dtype)[:, None], inputs(dtype))
        for dtype in DTYPES[:2]
        for function in (
            torch.logaddexp2,
            lambda a, b: torch.where(a > 0, a, b),
            lambda a, b: torch.lerp(a, b, 0.7),
            lambda a, b: torch.clamp(a, min=b),
        )
    ],
    "sums": [
        *(check(f, HOLES, dim=1, keepdim=True) for f in SUMS),
        check(torch.sum, PLAIN, dim=[]),
        check(torch.mean, torch.zeros(0, 3)),
        check(torch.logsumexp, torch.zeros(2, 0), dim=1),
        check(torch.sum, torch.tensor([300, 1]), dtype=torch.uint8),
        check(torch.mean, COUNTS, dtype=torch.float32),
    ],
    "sums of integers": [
        check(f, values, dim=1)
        for values in (COUNTS.to(torch.uint8), COUNTS > 2)
        for f in (torch.sum, torch.prod, torch.count_nonzero, torch.any, torch.all, torch.cumsum, torch.cumprod)
    ],
    "variance": [
        *(check(torch.var, PLAIN, dim=1, correction=c) for c in (0, 2, 0.5)),
        check(torch.std_mean, torch.complex(PLAIN, PLAIN.flip(0)), dim=1),
        check(torch.var, torch.linspace(100, 101, 50).half(), dim=0),
    ],
    "extremes": [
        *(
            check(f, values, dim=0)
            for f in (torch.max, torch.min, torch.cummax, torch.cummin)
            for values in (HOLES, COUNTS, torch.tensor(3.0))
        ),
        *(check(f, values) for f in (torch.argmax, torch.argmin) for values in (HOLES, COUNTS)),
        check(torch.aminmax, HOLES, dim=0),
        check(torch.any, HOLES, dim=1),
    ],
    "running": [
        *(check(f, HOLES, 1) for f in (torch.cumsum, torch.cumprod, torch.logcumsumexp)),
        check(torch.logcumsumexp, torch.complex(PLAIN, 3 * PLAIN.flip(1)), 1),
    ],
    "norms": [
        *(check(torch.linalg.vector_norm, grown(PLAIN), o, dim=(0, 2), loose=4) for o in (0, 0.5, 1, 2, INF, -INF)),
        *(check(torch.linalg.vector_norm, torch.complex(PLAIN, PLAIN), order, loose=4) for order in (1, 2, INF)),
        check(torch.cdist, torch.ones(2, 3, requires_grad=True), torch.ones(2, 3), 2.0),  # a gradient at distance 0
        check(torch.linalg.vector_norm, PLAIN.half(), dtype=torch.float32),
    ],
    "sorting": [
        *(
            check(torch.sort, values, dim=1, descending=descending, stable=True)
            for values in (HOLES, COUNTS > 2, HOLES.bfloat16())
            for descending in (False, True)
        ),
        *(check(f, HOLES) for f in (torch.median, torch.nanmedian)),
        check(torch.mode, COUNTS, dim=1),
        *(
            check(f, values, return_inverse=True, return_counts=True)
            for f in (torch.unique, torch.unique_consecutive)
            for values in (COUNTS, HOLES, torch.zeros(0))
        ),
    ],
    "searching": [
        *(check(torch.searchsorted, LINE, WANTED, right=right) for right in (False, True)),
        *(check(torch.bucketize, WANTED, LINE, right=right, out_int32=True) for right in (False, True)),
        check(torch.histc, torch.tensor([0.0, 1.0, NAN, 4.0, 9.0]), 4, 0, 4),
        check(torch.histc, torch.full((3,), 2.0), 4),
        check(torch.bincount, COUNTS.reshape(-1), torch.linspace(0, 1, 6)),
    ],
}
BASE = torch.linspace(0, 1, 60).reshape(3, 4, 5)
ROWS, COLUMNS = torch.tensor([[0, 2], [-1, 1]]), torch.tensor([3, 0])
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, True]])
WHERE, SOURCE = torch.tensor([2, 0, 2]), torch.linspace(1, 2, 60).reshape(3, 4, 5)
PLACES, FLAT, GIVEN = torch.tensor([[0, 2, 1], [1, 1, 0]]), BASE[0, :3] + 1, BASE[1] + 3
COMBINED = ("sum", "prod", "mean", "amin", "amax")


def read(base: torch.Tensor, where: Any) -> torch.Tensor:
    return base[where]


def assigned(base: torch.Tensor) -> torch.Tensor:
    out = base.clone()
    out[:, 1] = 7
    out[MASK.to(out.device)] += 1
    out[..., -1] = out[..., 0]
    return out


INDEXING: Calls = {
    "reading": [
        *(
            check(read, grown(BASE), where)
            for where in (
                (ROWS, COLUMNS),
                (ROWS, slice(None), COLUMNS),
                (MASK,),
                (MASK, COLUMNS[0]),
                (slice(None), slice(None), torch.tensor([True, False, True, False, False])),
                (torch.tensor(1),),
                (torch.zeros(0, dtype=torch.int64),),
                (None, ROWS, ..., 1),
            )
        ),
        check(read, BASE.transpose(0, 1).contiguous().transpose(0, 1), (ROWS, COLUMNS)),
    ],
    "writing": [
        *(
            check(torch.index_put, grown(BASE), where, values, accumulate)
            for accumulate in (False, True)
            for where, values in (
                ([ROWS], grown(torch.ones(2, 2, 4, 5))),
                ([MASK], grown(torch.linspace(1, 2, 25).reshape(5, 5))),
                ([MASK], torch.tensor(7.0)),
                ([MASK, torch.tensor([1, 1, 2, 3, 4])], torch.arange(5.0)),
            )
        ),
        check(torch.index_put, torch.zeros(3), [torch.tensor([1, 1, 1])], torch.tensor([1.0, 2.0, 4.0]), True),
        check(assigned, grown(BASE)),
    ],
    "slices": [
        check(torch.index_add, torch.arange(3), 0, WHERE, torch.tensor([5, 6, 7]), alpha=2),
        check(torch.index_select, torch.tensor(3.0), 0, torch.tensor([0])),
        *(check(torch.index_reduce, BASE, 0, WHERE, SOURCE, r, include_self=r > "amin") for r in COMBINED[1:]),
    ],
    "scattering": [
        check(torch.scatter, FLAT, 1, PLACES, 2, reduce="multiply"),
        *(
            check(torch.scatter_reduce, FLAT, 1, PLACES, GIVEN, reduce, include_self=own)
            for reduce in COMBINED
            for own in (False, True)
        ),
        check(torch.scatter_reduce, torch.tensor([5, 7]), 0, torch.tensor([0, 0]), torch.tensor([3, 4]), "mean"),
        check(torch.gather, FLAT, 0, torch.zeros(0, 2, dtype=torch.int64)),
    ],
    "masks": [
        check(torch.masked_fill, BASE.half(), BASE[0, 0] > 0.04, torch.tensor(1.5)),
        check(torch.masked_select, grown(BASE), BASE[0] > 0.1),
        *(check(torch.nonzero_static, BASE > 0.4, size=size) for size in (3, 50)),
        check(torch.nonzero, torch.tensor(4)),
    ],
    "putting together": [
        check(torch.cat, [torch.zeros(0), BASE, BASE.half()], dim=-1),
        check(torch.cat, [torch.ones(2, dtype=torch.int32), torch.ones(2)]),
        check(torch.stack, [grown(BASE), BASE.double()], dim=-1),
        check(lambda t: t.unfold(1, 2, 2), grown(BASE.bfloat16())),
    ],
    "segments": [
        *(
            check(torch.segment_reduce, grown(PLAIN[0]), r, lengths=torch.tensor([2, 0, 1]), unsafe=True, initial=start)
            for r in ("max", "mean", "prod")
            for start in (None, 1.5)
        ),
        check(torch.segment_reduce, grown(HOLES[2:].T), "prod", offsets=torch.tensor([0, 3, 4]), unsafe=True),
    ],
}
torch.manual_seed(0)
SQUARE = torch.randn(3, 4, 4, dtype=torch.float64) + 2 * torch.eye(4, dtype=torch.float64)
TALL, RIGHT = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64)
POSITIVE = SQUARE @ SQUARE.mT + torch.eye(4, dtype=torch.float64)
COMPLEX = torch.complex(SQUARE, SQUARE.mT)
HALVES = (False, True)
LINALG: Calls = {
    "solving": [
        check(torch.linalg.solve, COMPLEX, RIGHT.mT.to(COMPLEX.dtype), left=False),
        *(check(lambda a: torch.linalg.det(a.mT), grown(values)) for values in (SQUARE, SQUARE.mT)),
        *(check(torch.linalg.slogdet, grown(values)) for values in (SQUARE, COMPLEX)),
        check(torch.linalg.slogdet, torch.zeros(2, 2)),
        check(torch.linalg.matrix_exp, torch.zeros(2, 0, 0)),
    ],
    "factors": [
        *(check(torch.linalg.lu, v) for v in (TALL, TALL.mT, COMPLEX)),
        *(check(torch.linalg.cholesky, grown(POSITIVE), upper=upper) for upper in HALVES),
        *(check(torch.cholesky_inverse, torch.linalg.cholesky(POSITIVE, upper=u), upper=u) for u in HALVES),
        *(check(torch.linalg.qr, v, m) for m in ("reduced", "complete", "r") for v in (COMPLEX, torch.zeros(3, 0))),
        *(check(torch.ormqr, *torch.geqrf(TALL), TALL, transpose=transpose) for transpose in HALVES),
        *(check(torch.linalg.eigvalsh, grown(POSITIVE), half, loose=10) for half in "LU"),
    ],
}
CALLS = REDUCTIONS | INDEXING | LINALG


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("family", CALLS)
def test_values_and_gradients(family: str) -> None:
    for call in CALLS[family]:
        call()


def test_a_wrong_value_dtype_or_place_is_seen() -> None:
    wrong = torch.index_put(BASE.to("jax"), [MASK.long().to("jax")], torch.tensor(7.0, device="jax"))
    for found, expected in (
        (wrong, torch.index_put(BASE, [MASK], torch.tensor(7.0))),
        (PLAIN.to("jax") + 1e-3, PLAIN),
        (PLAIN.double().to("jax"), PLAIN),
    ):
        with pytest.raises(AssertionError):
            close(found, expected)


def test_low_precision_accumulates_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16, device="jax")  # in bfloat16, 256 + 1 is 256
    nowhere, start = torch.zeros(4096, dtype=torch.int64, device="jax"), torch.zeros_like(ones[:1])
    for total in (
        ones.sum(),
        ones.nansum(),
        torch.cumsum(ones, 0)[-1],
        start.index_add(0, nowhere, ones),
        start.scatter_add(0, nowhere, ones),
    ):
        assert total.item() == 4096


def test_masks_inside_jit() -> None:
    values = torch.arange(25.0).reshape(5, 5)

    @jax.jit
    def written(base: Any, mask: Any) -> Any:
        return t2j(lambda b, m, v: torch.index_put(b, [m], v))(base, mask, values.numpy())

    found = written(to_jax(BASE.to("jax")), to_jax(MASK.to("jax")))
    assert torch.equal(torch.from_numpy(found.__array__().copy()), torch.index_put(BASE, [MASK], values))


def test_elements_in_no_segment_count_nowhere_and_equal_extrema_share() -> None:
    data, offsets = grown(torch.arange(1.0, 7.0).to("jax")), torch.tensor([1, 3, 5]).to("jax")
    result = torch.segment_reduce(data, "max", offsets=offsets, unsafe=True)
    assert result.tolist() == [3.0, 5.0]
    (grad,) = torch.autograd.grad(result.sum(), data)
    assert grad.tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    data = torch.tensor([2.0, 1.0, 2.0], device="jax", requires_grad=True)
    result = torch.segment_reduce(data, "max", lengths=torch.tensor([3], device="jax"))
    (grad,) = torch.autograd.grad(result, data, torch.tensor([-1.0], device="jax"))
    assert grad.tolist() == [-0.5, 0.0, -0.5]  # whatever the gradient's sign


def test_matrices_that_cannot_be_decomposed() -> None:
    bad, singular = torch.diag(torch.tensor([1.0, 2.0, -1.0, 3.0])), torch.diag(torch.tensor([1.0, 0.0, 2.0]))
    same(lambda a: torch.linalg.cholesky_ex(a)[1], torch.stack([bad, bad.abs(), -bad]))
    same(lambda a: torch.linalg.inv_ex(a)[1], singular)
    for function, values, message in (
        (torch.linalg.cholesky, bad, "leading minor of order 3 is not positive-definite"),
        (torch.linalg.inv, singular, "The diagonal element 2 is zero"),
        (lambda a: torch.linalg.solve(a, a[0]), singular, "the input matrix is singular"),
    ):
        for device in ("cpu", "jax"):
            with pytest.raises(torch.linalg.LinAlgError, match=message):
                function(values.to(device))
    with pytest.raises(torch.linalg.LinAlgError, match=r"\(Batch element 1\)"):
        torch.linalg.cholesky(torch.stack([bad.abs(), bad]).to("jax"))


def test_a_decomposition_without_pivots() -> None:
    """The CPU has none. Those that are not unique are compared by what they multiply to (test_op_database.py)."""
    packed, _ = torch.linalg.lu_factor(moved(SQUARE), pivot=False)
    close((packed.tril(-1) + torch.eye(4, dtype=torch.float64, device="jax")) @ packed.triu(), SQUARE, 100)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize(
    ("n", "batch"), [(5, ()), (0, ()), pytest.param(8, (2, 3), marks=pytest.mark.nightly)], ids=str
)
def test_ldl_solutions(n: int, batch: tuple[int, ...], dtype: torch.dtype, hermitian: bool) -> None:
    """Solve indefinite systems with a zero diagonal, whose factors have two by two blocks."""
    torch.manual_seed(n)
    a = torch.randn(*batch, n, n, dtype=dtype)
    a = a + (a.mH if hermitian else a.mT)
    a.diagonal(dim1=-2, dim2=-1)[..., : n // 2] = 0
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    assert n != 5 or dtype.is_complex or bool((pivots < 0).any()), "no block of two"
    same(
        torch.linalg.ldl_solve, factors, pivots, torch.randn(*batch, n, 3, dtype=dtype), hermitian=hermitian, loose=500
    )


def test_warnings_are_the_cpus() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"):
        same(torch.var, PLAIN, dim=1, correction=9)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.triangular_solve is deprecated")
        same(torch.triangular_solve, RIGHT, SQUARE.triu(), transpose=True, unitriangular=True)
