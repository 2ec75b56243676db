"""Write the figures of the products into the pages of docs/coverage/: `python -m scripts.coverage_pages`.

`surface.md` ends with what `ampcheck coverage --surface` prints. Other pages link a file of the suites and have a
sentence "Product: …" for each product of that file, in the file's order.
"""

import importlib
import re
from pathlib import Path

from ampcheck.checks.product import Product
from ampcheck.errors import UsageError
from ampcheck.tools.coverage import surface

FOLDER = Path(__file__).parents[1] / "docs" / "coverage"
_SUITE = re.compile(r"\]\(\.\./\.\./(suites/[\w/]+)\.py\)")
_SENTENCE = re.compile(r"Product: \d+ cells; \d+ in each run, \d+ nightly, \d+ unreachable\.")


def current(text: str, products: list[Product]) -> str:
    """Return the text of a page with the figures of its products. Raises UsageError for another number of sentences."""
    if len(_SENTENCE.findall(text)) != len(products):
        raise UsageError(
            f"the page has {len(_SENTENCE.findall(text))} sentences of products; the file has {len(products)}"
        )
    sentences = iter(product.sentence() for product in products)
    return _SENTENCE.sub(lambda _: next(sentences), text)


def main() -> None:
    """Write the figures of each page about a file of the suites, and the page of torch's surface."""
    page = FOLDER / "surface.md"
    before = page.read_text(encoding="utf-8").partition("The cases call")[0]
    page.write_text(f"{before}{surface.count().table(False, 'github')}\n", encoding="utf-8")
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        suite = _SUITE.search(text)
        if suite and _SENTENCE.search(text):
            module = importlib.import_module(suite[1].replace("/", "."))
            products = [value for value in vars(module).values() if isinstance(value, Product)]
            try:
                page.write_text(current(text, products), encoding="utf-8")
            except UsageError as error:
                raise UsageError(f"{page.name}: {error}") from error


if __name__ == "__main__":
    main()
