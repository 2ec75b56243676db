"""`python -m scripts.jax_coverage`: how much of PyTorch's op database the device computes as the CPU does."""

import argparse
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path

from scripts.jax_coverage import driver, measure, page
from scripts.jax_coverage.page import WAYS, Book, Row

_KEPT = Path("reports/jax_ops.json")


def main(argv: list[str] | None = None) -> int:
    """Measure, print the totals, write what was asked for. Returns the exit status."""
    options = _parser().parse_args(argv)
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        sys.exit(f"--ways: no implementation is called {', '.join(sorted(unknown))}; known: {', '.join(WAYS)}")
    try:
        book = page.read(options.json)
    except ValueError as error:
        sys.exit(str(error))
    jobs = _jobs(options, ways, book)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, keep what was measured
    settings = driver.Settings(samples=options.samples, seconds=options.seconds, processes=options.processes)
    try:
        _measure(jobs, settings, book, options.json)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept in", options.json, file=sys.stderr)
        return 130
    for way in WAYS:
        run, agree, ops, whole = page.totals(page.measured(book, way))
        print(f"{way}: {agree} of {run} samples agree, all of {whole} of {ops} ops")
    if options.write:
        versions = {name: version(name).partition("+")[0] for name in ("torch", "jax", "torchax")}
        text = page.page(book, versions=versions, limit=options.samples, rtol=measure.RTOL, atol=measure.ATOL)
        options.write.write_text(text, encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.jax_coverage", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the Markdown page to write")
    parser.add_argument("--json", type=Path, default=_KEPT, metavar="FILE", help=f"where figures are kept ({_KEPT})")
    parser.add_argument("--ways", default=",".join(WAYS), help="what to measure: jax,torchax")
    parser.add_argument("--ops", help="only these OpInfos, as name or name.variant, separated by commas")
    parser.add_argument("--only-failing", action="store_true", help="only ops of which not all agreed so far")
    parser.add_argument("--no-run", action="store_true", help="measure nothing; write the page from the figures kept")
    parser.add_argument("--samples", type=int, default=6, help="at most so many samples an op (6)")
    parser.add_argument("--seconds", type=float, default=90.0, help="at most so long for one op (90)")
    parser.add_argument("--processes", type=int, default=2, help="side by side (2)")
    return parser


def _jobs(options: argparse.Namespace, ways: list[str], book: Book) -> list[tuple[str, str]]:
    if options.no_run:
        return []
    names = list(measure.ops())
    if options.ops:
        wanted = options.ops.split(",")
        if unknown := set(wanted) - set(names):
            sys.exit(f"--ops: no OpInfo for float32 is called {', '.join(sorted(unknown))}")
        names = wanted
    jobs = [(way, name) for way in ways for name in names]
    if options.only_failing:
        jobs = [(way, name) for way, name in jobs if (row := book.get((way, name))) is None or not row.whole]
    return jobs


def _measure(jobs: list[tuple[str, str]], settings: driver.Settings, book: Book, kept: Path) -> None:
    done, saved = 0, time.monotonic()

    def took(row: Row) -> None:
        nonlocal done, saved
        done += 1
        book[row.way, row.op] = row
        if not row.whole:
            print(f"{done}/{len(jobs)} {row.way} {row.op}: {row.agreeing} of {row.run}: {row.reason[:160]}", flush=True)
        if time.monotonic() - saved > 10:
            saved = time.monotonic()
            page.write(book, kept)

    try:
        driver.sweep(jobs, settings, took)
    finally:
        page.write(book, kept)


if __name__ == "__main__":
    sys.exit(main())
