"""The pages of docs/coverage/ about a class of behaviours: the figures of its products, and its planted faults."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from ampcheck.checks.product import Product
from tests.cli_support import ROOT
from tests.faults import FAULTS

FOLDER = ROOT / "docs" / "coverage"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.stem not in ("README", "upstream"))
LEAST = 5
"""How many planted faults the cases of a class catch at least."""


def lacking(text: str, products: Iterable[Product], faults: Iterable[str]) -> list[str]:
    """Return what a page does not say of its products and planted faults."""
    words = set(re.findall(r"`([^`]+)`", text))
    out = [sentence for product in products if (sentence := product.sentence()) not in text]
    out += [name for product in products for name in product.dimensions if name not in words]
    return out + [fault for fault in faults if fault not in words]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_figures_of_its_class(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    suite = re.search(r"\]\(\.\./\.\./(suites/[\w/]+)\.py\)", text)
    assert suite, "it links no file of the suites"
    module = importlib.import_module(suite[1].replace("/", "."))
    rule = module.pytestmark.args[0]
    products = [value for value in vars(module).values() if isinstance(value, Product)]
    faults = {fault.name for fault in FAULTS if fault.rule == rule}
    assert products
    assert len(faults) >= LEAST
    assert lacking(text, products, sorted(faults)) == []
    assert f"]({page.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_what_a_page_lacks_is_found() -> None:
    product = Product({"mode": ("a", "b")})
    text = "`mode` Product: 2 cells; 2 in each run, 2 nightly, 0 unreachable. `cast-lost`"
    assert lacking(text, [product], ["cast-lost"]) == []
    assert lacking(text.replace("2 nightly", "3 nightly"), [product], ["kept"]) == [product.sentence(), "kept"]
