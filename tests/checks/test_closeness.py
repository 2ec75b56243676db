"""Each measure of closeness gives exactly the number that its definition says, on both sides of each limit."""

import pytest
import torch

from ampcheck.observe.closeness import (
    NOTICED,
    alike,
    bound,
    distance,
    largest_distance,
    moved_by,
    mover,
    relative_distance,
    relative_error,
    right,
    rounding_bound,
)

NAN, INF = float("nan"), float("inf")
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
EPS = 2.0**-10  # of float16


def of(*values: complex, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("a", "want", "tolerance", "same"),
    [
        (of(1.0, NAN), of(1.0, NAN), None, True),
        (of(1.0), of(1.25), None, False),
        (of(1.0), of(1.25), 0.25, True),
        (of(1.0), of(1.0, dtype=DOUBLE), None, False),
        (of(1.0), of(1.0, 1.0), None, False),
        (of(1.0), of(1.0, 1.0, dtype=DOUBLE), None, False),
    ],
)
def test_alike(a: torch.Tensor, want: torch.Tensor, tolerance: float | None, same: bool) -> None:
    assert (alike(a, want) if tolerance is None else alike(a, want, tolerance)) is same


@pytest.mark.parametrize(
    ("a", "b", "each", "largest", "relative"),
    [
        (of(1.0, 5.0), of(3.0, 4.0), [2.0, 1.0], 2.0, 0.5),
        (of(), of(), [], 0.0, 0.0),
        (of(1.0, INF), of(3.0, INF), [2.0, 0.0], 2.0, NAN),
        (of(INF), of(1.0), [0.0], INF, INF),
        (of(1.0), of(INF), [0.0], INF, NAN),
        (of(1 + 2j, dtype=torch.complex64), of(1 - 2j, dtype=torch.complex64), [4.0], 4.0, None),
        (of(1 + 2j, dtype=torch.complex64), of(1.0), [2.0], 2.0, None),
        (of(1.0), of(1 + 2j, dtype=torch.complex64), [2.0], 2.0, None),
        (of(complex(INF, 0), 2, dtype=torch.cfloat), of(complex(-INF, 0), 1, dtype=torch.cfloat), [0, 1], 1, None),
    ],
)
def test_distances(a: torch.Tensor, b: torch.Tensor, each: list[float], largest: float, relative: float | None) -> None:
    assert distance(a, b).tolist() == each
    assert largest_distance(a, b) == largest
    if relative is not None:
        assert relative_distance(a, b) == pytest.approx(relative, nan_ok=True)


@pytest.mark.parametrize(
    ("want", "dtypes", "roundings", "in_float32", "far"),
    [
        (of(4.0), [SINGLE], 0, 48, 0.0),
        (of(4, dtype=torch.int64), [SINGLE], 4, 48, 0.0),
        (of(4.0, -8.0, INF, dtype=HALF), [], 4, 48, 4 * EPS * 8),
        (of(0.5), [HALF, torch.int64], 4, 48, 4 * EPS),
        (of(0.5), [SINGLE], 4, 48, 48 * 2.0**-23),
        (of(INF), [SINGLE], 4, 0, 4 * 2.0**-23),
        (of(2.0**-8), [HALF], 48, 0, NOTICED * 2.0**-8),
        (of(3 + 4j, dtype=torch.complex64), [], 4, 0, 4 * 2.0**-23 * 5),
    ],
)
def test_the_bound_of_other_kernels(
    want: torch.Tensor, dtypes: list[torch.dtype], roundings: int, in_float32: int, far: float
) -> None:
    assert rounding_bound(want, dtypes, roundings, in_float32) == far


def test_inputs_are_moved_by_half_a_rounding() -> None:
    assert set(mover(HALF, 1)(torch.full((99,), 2.0)).tolist()) == {2 - EPS, 2 + EPS}
    assert torch.equal(mover(HALF, 1)(torch.arange(3)), torch.arange(3))
    assert [far.tolist() for far in moved_by(lambda draw: [of(1.0 + draw, 5.0)], [of(1.0, 6.0)])] == [[2.0, 1.0]]
    with pytest.raises(ValueError, match="shorter"):
        moved_by(lambda draw: [], [of(1.0)])


@pytest.mark.parametrize(
    ("want", "moved", "passes", "far"),
    [
        ([4.0, -1.0], [0.5, 0.0], 1, [1.25 * (EPS * 4.0 + 0.5), 1.25 * EPS * 1.75]),
        ([4.0, INF], [0.0, 0.0], 2, [2.5 * EPS * 4, 2.5 * EPS]),
        ([0.0], [0.0], 1, [2.0**-126]),
        ([0.0], [0.0], 2, [2.5 * EPS * 0.25]),
        ([], [], 1, []),
    ],
)
def test_the_bound_of_a_right_kernel(want: list[float], moved: list[float], passes: int, far: list[float]) -> None:
    given = of(*want, dtype=DOUBLE), of(*moved, dtype=DOUBLE), HALF, SINGLE
    assert bound(*given, passes).tolist() == pytest.approx(far, rel=1e-12, abs=0)
    if passes == 1:
        assert torch.equal(bound(*given), bound(*given, 1))


@pytest.mark.parametrize(
    ("products", "factor"), [("", 384.0), ("ieee", 32.0), ("sum", 32.0), ("tf32", 1.25 * 2**13), ("bf16", 1.25 * 2**16)]
)
def test_the_bound_of_float32_products(products: str, factor: float) -> None:
    """A setting that allows shorter factors allows as much as a kernel in a dtype of such significands."""
    far = bound(of(1.0, dtype=DOUBLE), of(2.0**-24, dtype=DOUBLE), SINGLE, SINGLE, products=products)
    assert far.item() == pytest.approx(factor * (2.0**-23 + 2.0**-24), rel=1e-12)
    assert torch.equal(bound(far, far, HALF, SINGLE, products=products), bound(far, far, HALF, SINGLE))


@pytest.mark.parametrize(
    ("got", "want", "is_right"),
    [
        (1 + EPS, 1.0, True),
        (1 + 2 * EPS, 1.0, False),
        (NAN, NAN, True),
        (NAN, INF, False),
        (1.0, NAN, False),
        (INF, INF, True),
        (-INF, INF, False),
        (INF, 1.0, False),
        (65504.0, INF, False),
        # Beyond the range of float16, and near its end.
        (INF, 65450.0, True),
        (-INF, -65450.0, True),
        (-INF, 65450.0, False),
        (32752.0, 65450.0, True),
        (32736.0, 65450.0, False),
        (40000.0, 100.0, False),
        (INF, 65000.0, False),
        (complex(1 + EPS, 0), 1 + 0j, True),
        (complex(1 + 2 * EPS, 0), 1 + 0j, False),
        (complex(INF, 0), 1 + 0j, False),
        (complex(INF, 0), complex(INF, 0), True),
        (1 + 0j, complex(INF, 0), False),
        (1.0, 1 + 0j, True),
        (1.0, 2 + 0j, False),
        (1 + 0j, 1.0, True),
        (2 + 0j, 1.0, False),
    ],
)
def test_right(got: complex, want: complex, is_right: bool) -> None:
    output = of(got, dtype=torch.complex64 if isinstance(got, complex) else HALF)
    exact = of(want, dtype=torch.complex128 if isinstance(want, complex) else DOUBLE)
    assert right(output, exact, of(0.0, dtype=DOUBLE), HALF).tolist() == [is_right]


@pytest.mark.parametrize("dtype", [SINGLE, torch.complex64])
def test_what_is_off_by_the_bound_is_right(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else DOUBLE
    moved = of(0.8, dtype=DOUBLE)
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved, HALF).tolist() == [True]
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved / 2, HALF, 2).tolist() == [True]
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved / 2, HALF).tolist() == [False]


def test_an_infinity_is_wrong_at_the_bound_of_the_range() -> None:
    most = torch.finfo(HALF)
    moved = of((5504 - most.smallest_normal) / 1.25 - EPS * 60000, dtype=DOUBLE)
    want = of(most.max - 5504, dtype=DOUBLE)
    assert bound(want, moved, HALF, HALF).tolist() == [5504]
    assert right(of(INF, dtype=HALF), want, moved, HALF).tolist() == [False]


@pytest.mark.parametrize(
    ("output", "exact", "error"),
    [
        ((3, 4), (3, 4), 0),
        ((3, 4.5), (3, 4), 0.1),
        ((0, 0), (3, 4), 1),
        ((0, 0), (0, 0), 0),
        ((0, 1e-30), (0, 0), INF),
        ((3, NAN), (3, 4), INF),
        ((3, INF), (3, 4), INF),
        ((3, 4), (3, INF), INF),
        ((3, -INF), (3, INF), INF),
        ((3, INF), (3, NAN), INF),
        ((3, NAN), (3, INF), INF),
        ((3, INF), (3, INF), 0),
        ((3, NAN), (3, NAN), 0),
        ((6, NAN, INF), (3, NAN, INF), 1),
        ((), (), 0),
    ],
)
def test_error(output: tuple[float, ...], exact: tuple[float, ...], error: float) -> None:
    assert relative_error(of(*output, dtype=SINGLE), of(*exact, dtype=DOUBLE)) == pytest.approx(error)


def test_vectors_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"an output of shape \(1,\) beside a reference of \(2,\)"):
        relative_error(of(1), of(1, 1))  # would be broadcast
