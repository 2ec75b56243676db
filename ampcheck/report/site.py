"""Writes the static site: pages that open from disk and load nothing from elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ampcheck import samples
from ampcheck.devices.registry import known
from ampcheck.report.benchmarks import data as bench_data
from ampcheck.report.benchmarks import history as bench_history
from ampcheck.report.benchmarks import pages as bench_pages
from ampcheck.report.benchmarks.history import KINDS, BenchHistory, SpeedChange, changes
from ampcheck.report.conformance import data, pages
from ampcheck.report.conformance.ops import ops
from ampcheck.report.history import History, load
from ampcheck.runner.deviations import Deviation, KnownDeviations
from ampcheck.runner.summarize import write_whole
from ampcheck.samples import op_database
from ampcheck.spec.case import op_token

TEMPLATES = Path(__file__).parent / "templates"
OUT = Path("reports") / "site"

NAV = {
    "Devices": "index.html",
    "Ops": "ops.html",
    "Benchmarks": "bench.html",
    "Deviations": "deviations.html",
    "Cases": "matrix.html",
    "Compare": "compare.html",
    "History": "history.html",
    "About": "about.html",
}
"""The pages by their names, the three that answer a question first."""

_CASES, _SPEEDS = ["data.js", "app.js"], ["bench_data.js", "bench_app.js"]
_CHARTS = ["uPlot.iife.min.js", "chart.js"]


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
    measured = [path for path in runs if bench_history.is_bench(path)]
    judged = [path for path in runs if path not in set(measured)]
    history = load(judged) if judged or not measured else None
    states = pages.states(counts) if counts else None
    power = [pages.power(path) for path in (figures, own) if path]
    files = render(history, KnownDeviations(known().values()).all(), bench_history.load(measured), states, power)
    for name, text in files.items():
        write_whole(out / name, text.encode(), "page")
    return out / ("index.html" if history else "bench.html")


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
        "nav": NAV.items(),
        "bench": bench if bench.newest else None,
        "run": None,
        "left_out": 0,
        **(pages.common(history) if history else {}),
    }
    before, after = bench.previous, bench.newest
    changed = changes(before, after) if before and after else []
    fill: dict[str, Page] = {"ops.html": ("Ops", ["filter.js"], ops(history))}
    if history:
        fill |= _of_cases(history, entries, {"states": states, "power": power})
    if after:
        scripts = ["filter.js", *_CHARTS, "scaling.js"]
        fill["bench.html"] = ("Benchmarks", scripts, bench_pages.results(bench, changed))
    both = [*(_CASES if history else ()), *(_SPEEDS if after else ())]
    if both:
        fill["compare.html"] = ("Compare", [*both, "compare.js"], {"kinds": KINDS})
        charts = [*_SPEEDS, *_CHARTS, "history.js"] if after else []
        fill["history.html"] = ("History", charts, pages.history_page(history) if history else {})
    titles = {**{file: title for title, file in NAV.items()}, "case.html": "Case"}
    files = {}
    for file, title in titles.items():
        here = file in fill
        title, scripts, values = fill.get(file, (title, [], _missing(file)))
        template = environment.get_template(file if here else "nothing.html")
        files[file] = template.render(**shared, **values, title=title, scripts=["page.js", *scripts], file=file)
    style = [(TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "uPlot.min.css")]
    files["style.css"] = "".join(style)
    plain = (path for path in TEMPLATES.iterdir() if path.suffix in (".js", ".txt"))
    files |= {path.name: path.read_text(encoding="utf-8") for path in sorted(plain)}
    return files | (_data(history) if history else {}) | _bench_data(bench, changed)


Page = tuple[str, list[str], dict[str, object]]
"""A page's title, scripts and values."""


def _of_cases(history: History, entries: Sequence[Deviation], figures: dict[str, object]) -> dict[str, Page]:
    return {
        "index.html": ("Devices", [], pages.devices_page(history)),
        "matrix.html": ("Cases", [*_CASES, "matrix.js"], {}),
        "case.html": ("Case", ["data.js", "details.js", "app.js", "case.js"], {}),
        "deviations.html": ("Deviations", ["filter.js"], pages.deviations(history, entries)),
        "about.html": ("About", [], {**pages.about(history), **figures}),
    }


def _missing(file: str) -> dict[str, object]:
    """Return the values of a page of which nothing is here."""
    if file == "bench.html":
        return {"what": "benchmark", "command": "ampcheck bench", "other": "index.html", "there": "conformance"}
    return {"what": "conformance run", "command": "ampcheck run", "other": "bench.html", "there": "benchmarks"}


def _data(history: History) -> dict[str, str]:
    catalogue = samples.catalogue()
    written = {op_token(op) for op in catalogue}
    files = {
        "data.js": data.script("AMPCHECK_DATA", data.cases(history, {*catalogue, *written, *op_database.rows()})),
        "details.js": data.script("AMPCHECK_DETAILS", data.details(history)),
    }
    return files | pages.exports(history)


def _bench_data(history: BenchHistory, changed: Sequence[SpeedChange]) -> dict[str, str]:
    """Return the data of the scripts, and the newest run group's exports."""
    if history.newest is None:
        return {}
    run = history.newest.runs[0]
    packed = bench_data.data(history, changed)
    marks = {name: {"mark": v.mark, "label": v.label, "style": v.style} for name, v in data.VERDICTS.items()}
    return {
        "bench_data.js": data.script("AMPCHECK_BENCH", {**packed, "shown": marks, "kinds": KINDS}),
        **{name: made(run) for name, (_, made) in bench_pages.EXPORTS.items()},
    }
