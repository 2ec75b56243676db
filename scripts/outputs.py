"""Write the tables of docs/using.md, "What other programs read": `python -m scripts.outputs`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ampcheck.report.outputs import Definition, definitions

PAGE = Path(__file__).parents[1] / "docs" / "using.md"
HEADINGS = {"run_header": "Run files", "bench_header": "Benchmark files", "changes": "Exports of the site"}
"""The parts of the page, by the first definition of each."""
_TABLES = re.compile(r"(?<=<!-- outputs: begin, by make docs -->\n).*(?=<!-- outputs: end -->)", re.DOTALL)


def tables() -> str:
    """Return a table for each output, with the headings."""
    parts = []
    for name, definition in definitions().items():
        parts += [f"### {HEADINGS[name]}\n"] if name in HEADINGS else []
        parts += [f"`{name}`: {definition['description']}\n", "| field | type | meaning |", "| --- | --- | --- |"]
        parts += [*_rows(definition), ""]
    return "\n".join(parts)


def _rows(definition: Definition) -> Iterator[str]:
    for field, words in definition["properties"].items():
        kind = f"`{json.dumps(words['const'])}`" if "const" in words else words["type"]
        optional = "" if field in definition["required"] else ", optional"
        choice = f" One of {', '.join(f'`{one}`' for one in words['enum'])}." if "enum" in words else ""
        yield f"| `{field}` | {kind}{optional} | {words['description']}{choice} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(_TABLES.sub(lambda _: tables(), PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
