"""The files that benchmarks add to the site: their pages, their data and their exports."""

from __future__ import annotations

from collections.abc import Sequence

from ampcheck.bench.run import exports
from ampcheck.report.benchmarks import data as bench_data
from ampcheck.report.benchmarks import pages as bench_pages
from ampcheck.report.benchmarks import sections
from ampcheck.report.benchmarks.changes import KINDS, SpeedChange, changes
from ampcheck.report.benchmarks.pages import SHOWN
from ampcheck.report.benchmarks.run_groups import BenchHistory
from ampcheck.report.conformance import data

_FILTER = ["page.js", "bench_filter.js"]
_DATA = ["page.js", "bench_data.js", "bench_app.js"]


def changed(history: BenchHistory) -> list[SpeedChange]:
    """Compare the newest run group with the previous one; nothing where there is only one."""
    before, after = history.previous, history.newest
    return changes(before, after) if before and after else []


def pages(
    history: BenchHistory, changed: Sequence[SpeedChange]
) -> dict[str, tuple[str, str, list[str], dict[str, object]]]:
    """Each page's template, title, scripts and values, by file; where nothing was measured, pages that say so."""
    titles = {file: f"Benchmarks: {name.lower()}" for name, file in bench_pages.NAV.items()}
    if history.newest is None:
        values: dict[str, object] = {
            "what": "benchmark",
            "command": "ampcheck bench",
            "other": "index.html",
            "there": "conformance",
        }
        return {file: ("nothing.html", title, [], values) for file, title in titles.items()}
    filled: dict[str, tuple[list[str], dict[str, object]]] = {
        "bench.html": (_FILTER, bench_pages.results(history, changed)),
        "bench_accuracy.html": (_FILTER, sections.accuracy(history)),
        "bench_roofline.html": (_FILTER, sections.roofline(history)),
        "bench_scaling.html": (["bench_chart.js", *_FILTER, "bench_scaling.js"], bench_pages.scaling(history)),
        "bench_devices.html": (_FILTER, bench_pages.devices(history)),
        "bench_history.html": ([*_DATA, "bench_chart.js", "bench_history.js"], {}),
        "bench_compare.html": ([*_DATA, "bench_compare.js"], {"kinds": KINDS}),
    }
    return {
        file: (file, titles[file], scripts, {**values, "verdicts": SHOWN}) for file, (scripts, values) in filled.items()
    }


def files(history: BenchHistory, changed: Sequence[SpeedChange]) -> dict[str, str]:
    """Return the data of the scripts, and the newest run group's exports."""
    if history.newest is None:
        return {}
    run = history.newest.runs[0]
    packed = bench_data.data(history, changed)
    marks = {name: {"mark": v.mark, "label": v.label, "style": v.style} for name, v in SHOWN.items()}
    return {
        "bench_data.js": data.script("AMPCHECK_BENCH", {**packed, "shown": marks, "kinds": KINDS}),
        "bench.csv": exports.as_csv(run),
        "bench.md": exports.as_markdown(run),
        "bench_pytest.json": exports.pytest_benchmark_json(run),
        "bench_smaller_is_better.json": exports.smaller_is_better(run),
    }
