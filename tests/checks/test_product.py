"""Products: what a run takes holds every pair of values that a reachable cell holds."""

from itertools import combinations

from ampcheck.checks.product import Product

DIMENSIONS = {"policy": ("a", "b", "c"), "mode": ("d", "e"), "at": ("f", "g", "h", "i"), "how": ("j", "k")}


def pairs(cells: list[tuple[str, ...]]) -> set[tuple[tuple[int, str], ...]]:
    return {pair for cell in cells for pair in combinations(enumerate(cell), 2)}


def test_the_chosen_cells_hold_every_pair_and_are_few() -> None:
    product = Product(DIMENSIONS)
    assert len(product.reachable) == product.size == 48
    assert pairs(product.chosen) == pairs(product.reachable)
    assert len(product.chosen) <= 14  # 12 are the least: 3 policies with 4 places


def test_a_cell_that_cannot_be_has_its_reason_and_is_never_chosen() -> None:
    product = Product(
        DIMENSIONS,
        {"no b in e": lambda cell: (cell["policy"], cell["mode"]) == ("b", "e"), "no k": lambda c: c["how"] == "k"},
    )
    assert set(product.unreachable.values()) == {"no b in e", "no k"}
    assert product.unreachable[("b", "e", "f", "j")] == "no b in e"
    assert not set(product.chosen) & set(product.unreachable)
    assert pairs(product.chosen) == pairs(product.reachable)
    assert product.sentence() == (f"Product: 48 cells; {len(product.chosen)} in each run, 20 nightly, 28 unreachable.")


def test_one_dimension_is_chosen_whole() -> None:
    assert Product({"policy": ("a", "b")}).chosen == [("a",), ("b",)]


def test_a_nightly_product_has_cells_in_nightly_runs_alone() -> None:
    product = Product({"policy": ("a", "b")}, nightly=True)
    assert product.chosen == []
    assert product.reachable == [("a",), ("b",)]
    assert product.sentence() == "Product: 2 cells; 0 in each run, 2 nightly, 0 unreachable."
