"""Ops of the jax device beside the CPU, at edges above all: dtypes, shapes, values, gradients, writes in place.

test_op_database.py has the plain samples of PyTorch's ops and modules, with gradients. Here are infinities, nan, ties,
integers, lower precision, promotion, numbers, errors, ignored classes, state, and what several calls share.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

from ampcheck.jax_device import jit, t2j, to_jax
from tests.jax.agreement import INF, NAN, close, moved, same, some

Calls = dict[str, list[Callable[[], Any]]]
check = partial(partial, same)
"""A check for each call: values, and gradients of what requires them."""
REALS = [0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -3.5, 7.0, INF, -INF, NAN]
INTEGERS = [0, 1, -1, 2, -3, 5, 7, -8, 11, 100]
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


def grown(values: Tensor) -> Tensor:
    return values.clone().requires_grad_()


def inputs(dtype: torch.dtype) -> Tensor:
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


def each(names: dict[str, OpInfo]) -> list[Any]:
    """Return each op with each of its dtypes, of which each run takes a third."""
    return some([(name, dtype) for name, op in names.items() for dtype in DTYPES if dtype in op.dtypes], 3)


def as_far_as_the_cpu(op: OpInfo, *args: Tensor, **kwargs: Any) -> None:
    """Compare unless the CPU refuses these numbers, as it does of integers alone."""
    try:
        op(*args, **kwargs)
    except RuntimeError:
        assert not args[0].is_floating_point()
        return
    same(op, *args, **kwargs, loose=16)


@pytest.mark.parametrize(("name", "dtype"), each(UNARY))
def test_unary(name: str, dtype: torch.dtype) -> None:
    x = inputs(dtype)
    as_far_as_the_cpu(UNARY[name], x, **UNARY[name].sample_kwargs("cpu", dtype, x)[0])


@pytest.mark.parametrize(("name", "dtype"), each(BINARY))
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


FACTORIES: dict[str, Callable[[str], Tensor]] = {
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


def read(base: Tensor, where: Any) -> Tensor:
    return base[where]


def assigned(base: Tensor) -> Tensor:
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


EDGES = torch.tensor([-INF, -30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 30.0, INF, NAN])
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f.__name__: f for f in (F.leaky_relu, F.gelu, F.hardswish)},
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "rrelu": lambda x: F.rrelu(x, training=False),
}


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return data(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    activation = ACTIVATIONS[name]
    # CPU's vectorised gelu gives nan for infinity and is 1e-4 off at -3, its scalar one neither.
    for edges in EDGES.split(1) if name == "gelu" else (EDGES,):
        same(activation, edges, loose=4)
    same(activation, data(5, 7, dtype=torch.bfloat16), loose=2)


IMAGE, PATCHY = leaf(2, 3, 7, 8), data(2, 3, 7, 8)
PATCHY[0, 0, 0, 0], PATCHY[0, 1, 2, 2], PATCHY[1, 2] = NAN, INF, -INF
ROW = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0]])
WORDS, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 7])
SCORES, CLASSES = leaf(5, 4), torch.tensor([0, 3, -100, 1, 2])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.0])
LABELS = torch.tensor([[1, 2, -1, 0], [-1, 0, 0, 0], [3, 0, 1, 2], [0, -1, 1, 1], [2, 2, -1, 0]])
CHANCES = torch.tensor([1.0, 0.0, 1.0, 0.3])
NETS: Calls = {
    "softmax": [
        *(check(f, ROW, dim) for f in (torch.softmax, torch.log_softmax) for dim in (0, -1)),
        *(check(f, torch.tensor(3.0), 0) for f in (torch.softmax, torch.log_softmax)),
        *(check(f, torch.zeros(0, 3), 1) for f in (torch.softmax, torch.log_softmax)),
        check(torch.softmax, ROW.bfloat16(), 1, dtype=torch.float32),
    ],
    "pooling": [
        check(F.max_pool2d, PATCHY, 3, 2, 1, 1, True, True),
        check(F.max_pool2d, PATCHY, 2, 1, 0, 2, False, True),
        check(F.max_pool2d, torch.ones(1, 1, 4, 4), 2, 1, return_indices=True),  # the first of equal elements
        check(F.avg_pool2d, PATCHY, 3, 2, 1, True, True),
        check(F.avg_pool2d, data(2, 3, 7, 8, dtype=torch.bfloat16), 2, divisor_override=3),
        check(F.adaptive_max_pool2d, IMAGE, (7, 5)),
        check(F.max_unpool2d, *F.max_pool2d(data(1, 2, 6, 6), 2, return_indices=True), 2),
    ],
    "windows": [
        check(F.pad, PATCHY, (-1, 2, 1, -2), value=1.5),
        check(F.unfold, IMAGE, (2, 3), 2, 1, (1, 2)),
        check(F.fold, leaf(2, 12, 20), (5, 6), 2),
        *(check(F.interpolate, PATCHY, (8, 3), mode=mode) for mode in ("nearest", "nearest-exact")),
        *(check(F.interpolate, IMAGE, (2, 9), mode=m, antialias=True, loose=16) for m in ("bilinear", "bicubic")),
        check(F.grid_sample, PATCHY[:1, :2], 1.3 * data(1, 4, 3, 2, seed=1).tanh(), "nearest", "reflection", True),
    ],
    "losses": [
        *(
            check(F.cross_entropy, SCORES, CLASSES, WEIGHTS, reduction=r, label_smoothing=0.1, loose=4)
            for r in ("none", "mean", "sum")
        ),
        check(F.multi_margin_loss, SCORES, CLASSES.abs() % 4, 2, 0.5, WEIGHTS),
        check(F.multilabel_margin_loss, SCORES, LABELS, reduction="none"),
        check(F.binary_cross_entropy, torch.tensor([0.0, 1.0, 0.5, 0.2]), CHANCES, reduction="none"),
        check(F.binary_cross_entropy_with_logits, torch.tensor([-200.0, 200.0, 0.0, 3.0]), CHANCES, pos_weight=CHANCES),
        check(F.cross_entropy, SCORES, torch.full((5,), -100)),
        check(F.cross_entropy, data(0, 4), torch.zeros(0, dtype=torch.int64)),
        check(F.mse_loss, data(0), data(0)),
        check(F.huber_loss, torch.tensor([INF, -INF, 1.0, NAN], requires_grad=True), torch.zeros(4)),
    ],
    "normalisations": [
        check(F.batch_norm, leaf(3, 4, 6), data(4), data(4).exp(), leaf(4), leaf(4), False, loose=16),
        check(lambda v, g: torch._weight_norm(v, g, 0), leaf(5, 3), leaf(5, 1), loose=8),
    ],
    "embeddings": [
        check(F.embedding, WORDS, leaf(10, 4), 2, scale_grad_by_freq=True),
        *(check(F.embedding_bag, WORDS, leaf(10, 4), OFFSETS, mode=m, padding_idx=2) for m in ("sum", "mean", "max")),
        check(F.embedding_bag, WORDS, leaf(10, 4), torch.tensor([0, 4, 8]), mode="mean", include_last_offset=True),
    ],
}


CALLS = REDUCTIONS | INDEXING | LINALG | NETS


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("family", CALLS)
def test_values_and_gradients(family: str) -> None:
    for call in CALLS[family]:
        call()


def test_a_changed_number_gives_a_new_value_without_a_new_program() -> None:
    x = data(4).to("jax")
    for slope in (0.1, 0.2, 0.3):
        torch.testing.assert_close(F.leaky_relu(x, slope).cpu(), F.leaky_relu(x.cpu(), slope))


# Strides that leave a rest, dilations, groups, and transposed ones whose output_padding passes the stride.
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], ...] = (
    ((2, 4, 9, 8), (6, 2, 3, 2), ([3, 2], [2, 0], [1, 2], False, [0, 0], 2)),
    ((1, 6, 7), (3, 2, 4), ([2], [3], [1], False, [0], 3)),
    ((2, 3, 5, 4, 6), (4, 3, 1, 2, 3), ([1, 2, 2], [0, 1, 3], [2, 1, 1], False, [0, 0, 0], 1)),
    ((2, 4, 5, 4), (4, 3, 3, 2), ([1, 3], [1, 0], [3, 1], True, [2, 2], 2)),
    ((1, 2, 7), (2, 3, 4), ([1], [2], [2], True, [1], 1)),
    ((2, 4, 3, 4, 3), (4, 1, 2, 1, 3), ([2, 1, 2], [1, 0, 0], [1, 1, 1], True, [1, 0, 0], 4)),
)


@pytest.mark.parametrize(("image", "kernel", "options"), CONVOLUTIONS)
def test_convolutions(image: tuple[int, ...], kernel: tuple[int, ...], options: tuple[Any, ...]) -> None:
    outputs = kernel[1] * options[-1] if options[3] else kernel[0]
    same(torch.convolution, leaf(*image), leaf(*kernel, seed=1), leaf(outputs, seed=2), *options, loose=32)


def test_other_convolutions() -> None:
    same(F.conv2d, data(2, 4, 5, 5), leaf(3, 4, 3, 3), loose=16)  # the input asks for no gradient
    same(F.conv1d, leaf(4, 9), leaf(5, 4, 3), padding="same", loose=16)
    same(F.conv2d, data(2, 4, 7, 6).bfloat16(), data(6, 2, 3, 2).bfloat16(), groups=2, loose=2)
    same(F.conv2d, data(0, 4, 7, 6), data(6, 2, 3, 2), groups=2)
    said = []
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError) as error:
            F.conv2d(data(1, 3, 5, 5).to(device), data(4, 2, 3, 3).to(device))
        said.append(str(error.value))
    assert said[0] == said[1]


def test_batch_norm_writes_running_statistics() -> None:
    module = nn.BatchNorm2d(3)
    there = copy.deepcopy(module).to("jax")
    for seed in range(2):
        x = data(4, 3, 5, 5, seed=seed)
        torch.testing.assert_close(there(x.to("jax")).cpu(), module(x), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(there.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    held = there.running_mean.data.clone()
    there.eval()(data(4, 3, 5, 5).to("jax"))
    assert torch.equal(there.running_mean, held)


def test_an_embedding_renorms_its_table_in_place() -> None:
    table = data(10, 4)
    renormed = table.clone().to("jax")
    F.embedding(WORDS.to("jax"), renormed, max_norm=1.0)
    F.embedding(WORDS, table, max_norm=1.0)
    torch.testing.assert_close(renormed.cpu(), table)


@pytest.mark.parametrize("infinity", [False, True])
@pytest.mark.parametrize(("lengths", "targets"), [((12, 10, 12), (4, 2, 0)), ((12, 3, 12), (4, 4, 4))])
def test_ctc_loss(lengths: tuple[int, ...], targets: tuple[int, ...], infinity: bool) -> None:
    rows, ends = (
        torch.tensor([[1, 2, 2, 3], [4, 4, 1, 1], [5, 1, 2, 3]]),
        (torch.tensor(lengths), torch.tensor(targets)),
    )

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), t, *ends, reduction="sum", zero_infinity=infinity)

    same(loss, leaf(12, 3, 6), rows, loose=16)


def test_ctc_loss_is_compiled() -> None:
    """Its table's size follows from the lengths, so that it can be, although PyTorch tags it otherwise."""
    targets, lengths = torch.tensor([[1, 2, 3]], device="jax"), (torch.tensor([7]), torch.tensor([3]))

    @partial(jit, fullgraph=True)
    def step(scores: Tensor) -> Tensor:
        return F.ctc_loss(scores.log_softmax(2), targets, *lengths)

    assert torch.isfinite(step(torch.zeros(7, 1, 5, device="jax")))


def test_attention_without_training() -> None:
    torch.manual_seed(0)
    x, padding = data(2, 5, 8), torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    for first in (True, False):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first).eval()
        there = copy.deepcopy(layer).to("jax")
        with torch.no_grad():
            close(there(x.to("jax")), layer(x), 16)
            mine = there(x.to("jax"), src_key_padding_mask=padding.to("jax"))
            close(mine, layer(x, src_key_padding_mask=padding), 16)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    there_ = copy.deepcopy(attention).to("jax")
    with torch.no_grad():
        close(there_(*[x.to("jax")] * 3), attention(x, x, x), 16)


def test_attention_by_the_overload_of_cuda() -> None:
    q, k, v = (leaf(2, 2, 5, 8, seed=s) for s in range(3))
    there = [t.detach().to("jax").requires_grad_() for t in (q, k, v)]
    out = torch.ops.aten._scaled_dot_product_flash_attention(*there, 0.0, True)[0]
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(out, expected, 16)
    close(torch.autograd.grad(out.sum(), there), torch.autograd.grad(expected.sum(), (q, k, v)), 16)


@pytest.mark.parametrize("added", [lambda x: 0.01, lambda x: 0.1 * (x - x.detach())], ids=["value", "gradient"])
def test_a_difference_is_seen(added: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError, match="not close"):
        same(lambda x: F.relu(x) + (added(x) if x.device.type == "jax" else 0.0), leaf(4))
