"""Writes the static site: pages that open from disk and load nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ampcheck import samples
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.report.benchmarks import pages as bench_pages
from ampcheck.report.benchmarks import run_groups
from ampcheck.report.benchmarks import site as bench_site
from ampcheck.report.benchmarks.run_groups import BenchHistory
from ampcheck.report.conformance import data, pages
from ampcheck.report.history import History, load
from ampcheck.runner.deviations import Deviation, KnownDeviations
from ampcheck.samples import op_database
from ampcheck.spec.ids import op_token

TEMPLATES = Path(__file__).parent / "templates"
OUT = Path("reports") / "site"

_SHARED_SCRIPTS = ["page.js", "data.js", "app.js"]


def build(
    runs: Sequence[Path],
    out: Path = OUT,
    counts: Path | None = None,
    figures: Path | None = None,
    own: Path | None = None,
) -> Path:
    """Make the site of some run files and benchmark files.

    Args:
        runs: the files, in any order; what a file is says its first line. The newest of each kind is what the site is
            about; earlier ones give its history.
        out: the folder to write to. Files of an earlier site are replaced; others are left alone.
        counts: what `ampcheck coverage --json` wrote, None without it.
        figures: what `ampcheck power --json` wrote, None without it.
        own: what `ampcheck power --own --json` wrote, None without it.

    Returns: the page to open. Raises UsageError for no or unusable files, and for a folder that cannot be written.
    """
    measured = [path for path in runs if run_groups.is_bench(path)]
    judged = [path for path in runs if path not in set(measured)]
    history = load(judged) if judged or not measured else None
    states = pages.states(counts) if counts else None
    power = [pages.power(path) for path in (figures, own) if path]
    files = render(history, KnownDeviations(known().values()).all(), run_groups.load(measured), states, power)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            # Replaced in one step, so that a reader never opens half a file.
            (out / f"{name}.part").write_text(text, encoding="utf-8")
            os.replace(out / f"{name}.part", out / name)
    except OSError as error:
        raise UsageError(f"the site cannot be written to {out}: {error.strerror}") from error
    return out / "index.html"


def render(
    history: History | None,
    entries: Sequence[Deviation],
    bench: BenchHistory | None = None,
    states: dict[str, object] | None = None,
    power: Sequence[dict[str, object]] = (),
) -> dict[str, str]:
    """Return the text of every file of the site, by name.

    Args:
        history: the conformance runs, None without any.
        entries: the deviations to list.
        bench: the benchmarks.
        states: how many states of ops the cases reach, as `pages.states` reads it; None without.
        power: how many mutants the cases and ampcheck's own tests kill, as `pages.power` reads it.
    """
    bench = bench or BenchHistory()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(pages.FILTERS)
    shared: dict[str, object] = {
        "nav": pages.NAV.items(),
        "bench_nav": bench_pages.NAV.items(),
        "bench": bench_pages.summary(bench),
        "run": None,
        **(pages.common(history) if history else {}),
    }
    fill = _filled(history, entries, {"states": states, "power": power}) if history else _empty()
    changed = bench_site.changed(bench)
    fill |= bench_site.pages(bench, changed)
    files = {
        file: environment.get_template(template).render(**shared, **values, title=title, scripts=scripts, file=file)
        for file, (template, title, scripts, values) in fill.items()
    }
    plain = (path for path in TEMPLATES.iterdir() if path.suffix in (".js", ".css"))
    files |= {path.name: path.read_text(encoding="utf-8") for path in sorted(plain)}
    files |= bench_site.files(bench, changed)
    return files | (_data(history) if history else {})


Page = tuple[str, str, list[str], dict[str, object]]
"""A page's template, title, scripts and values."""


def _filled(history: History, entries: Sequence[Deviation], figures: dict[str, object]) -> dict[str, Page]:
    return {
        "index.html": ("index.html", "Health", [], {**pages.health(history), **figures}),
        "matrix.html": ("matrix.html", "Matrix", [*_SHARED_SCRIPTS, "matrix.js"], {}),
        "case.html": ("case.html", "Case", ["page.js", "data.js", "details.js", "app.js", "case.js"], {}),
        "deviations.html": ("deviations.html", "Deviations", [], pages.deviations(history, entries)),
        "compare.html": (
            "compare.html",
            "Compare",
            [*_SHARED_SCRIPTS, "compare.js"],
            {"count": len(history.runs)},
        ),
        "about.html": ("about.html", "About", [], pages.about(history)),
    }


def _empty() -> dict[str, Page]:
    """Return the pages of conformance where nothing of it is here."""
    names = {**{file: title for title, file in pages.NAV.items()}, "case.html": "Case"}
    values: dict[str, object] = {
        "what": "conformance run",
        "command": "ampcheck run",
        "other": "bench.html",
        "there": "benchmarks",
    }
    return {file: ("nothing.html", title, [], values) for file, title in names.items()}


def _data(history: History) -> dict[str, str]:
    catalogue = samples.catalogue()
    written = {op_token(op) for op in catalogue}
    files = {
        "data.js": data.script("AMPCHECK_DATA", data.cases(history, {*catalogue, *written, *op_database.rows()})),
        "details.js": data.script("AMPCHECK_DETAILS", data.details(history)),
    }
    return files | pages.exports(history)
