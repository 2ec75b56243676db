"""Writes the static site: pages that open from disk and load nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ampcheck import ops
from ampcheck.deviations import Deviation, Waivers
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.ids import op_token
from ampcheck.ops import opinfo
from ampcheck.report import badge, data, pages
from ampcheck.report.history import History, load

TEMPLATES = Path(__file__).parent / "templates"
OUT = Path("reports") / "site"

_PLAIN = ("style.css", "app.js", "matrix.js", "case.js", "compare.js")
_SHARED_SCRIPTS = ["data.js", "app.js"]


def build(runs: Sequence[Path], out: Path = OUT) -> Path:
    """Make the site of some run files.

    Args:
        runs: the run files, in any order. The newest is what the site is about; earlier ones give its history.
        out: the folder to write to. Files of an earlier site are replaced; others are left alone.

    Returns: the page to open. Raises UsageError for no or unusable run files, and for a folder that cannot be written.
    """
    files = render(load(runs), Waivers(known().values()).all())
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            # Replaced in one step, so that a reader never opens half a file.
            (out / f"{name}.part").write_text(text, encoding="utf-8")
            os.replace(out / f"{name}.part", out / name)
    except OSError as error:
        raise UsageError(f"the site cannot be written to {out}: {error.strerror}") from error
    return out / "index.html"


def render(history: History, entries: Sequence[Deviation]) -> dict[str, str]:
    """The text of every file of the site, by name. `entries`: the deviations to list."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(pages.FILTERS)
    shared = pages.common(history)
    catalogue = ops.catalogue()
    written = {op_token(op) for op in catalogue}
    fill = {
        "index.html": ("Health", [], pages.health(history)),
        "matrix.html": ("Matrix", [*_SHARED_SCRIPTS, "matrix.js"], {}),
        "case.html": ("Case", ["data.js", "details.js", "app.js", "case.js"], {}),
        "deviations.html": ("Deviations", [], pages.deviations(history, entries)),
        "compare.html": ("Compare", [*_SHARED_SCRIPTS, "compare.js"], {"count": len(history.runs)}),
        "about.html": ("About", [], pages.about(history)),
    }
    files = {
        file: environment.get_template(file).render(**shared, **values, title=title, scripts=scripts)
        for file, (title, scripts, values) in fill.items()
    }
    files |= {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in _PLAIN}
    files["data.js"] = data.script("AMPCHECK_DATA", data.cases(history, {*catalogue, *written, *opinfo.rows()}))
    files["details.js"] = data.script("AMPCHECK_DETAILS", data.details(history))
    return files | badge.files(history)
