"""Run `ampcheck lint` over unpacked packages, print the table of its reports, and keep what was decided of each.

    python -m scripts.lint_packages DIR

DIR holds a folder NAME-VERSION for each package. docs/lint_packages.csv has a row a report, with `true` or `false` and
the reason, as a person decided it on the source; a package without reports has one row. A new report is written there
without a verdict. Deprecated names (AMP033) are left out: there is nothing to decide. Ends with 1 where a report has no
verdict, or where 5 % or more are false.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.tools.lint import NAMED, Read, TrainingReport, lint_files

TABLE = Path(__file__).parents[1] / "docs" / "lint_packages.csv"
FIELDS = ("package", "version", "files", "regions", "scalers", "rule", "place", "verdict", "reason")
MOST_FALSE = 0.05

Row = dict[str, str]
Verdicts = dict[tuple[str, ...], tuple[str, str]]


def rows_of(folder: Path, verdicts: Verdicts) -> list[Row]:
    """Return the rows of one package, whose folder is NAME-VERSION."""
    name, _, version = folder.name.partition("-")
    read = Read()
    found = lint_files([folder], sorted({*NAMED.values()} - {"deprecated-amp"}), read)
    for reason in read.unread:
        print(f"{name}: not read: {reason}", file=sys.stderr)
    seen = {"package": name, "version": version, "files": str(read.files)}
    seen |= {"regions": str(read.regions), "scalers": str(read.scalers)}
    rows = []
    for report in found:
        rule = report.id if isinstance(report, TrainingReport) else report.rule
        place = f"{Path(report.file).relative_to(folder)}:{report.line}"
        verdict, reason = verdicts.get((name, version, rule, place), ("", ""))
        rows.append(seen | {"rule": rule, "place": place, "verdict": verdict, "reason": reason})
    return rows or [seen | {"rule": "", "place": "", "verdict": "", "reason": ""}]


def main(argv: list[str]) -> int:
    """Lint the packages, write the table, and print its figures."""
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        raise UsageError("give the folder that holds the unpacked packages, NAME-VERSION each")
    with TABLE.open(encoding="utf-8", newline="") as file:
        old = list(csv.DictReader(file))
    verdicts: Verdicts = {(r["package"], r["version"], r["rule"], r["place"]): (r["verdict"], r["reason"]) for r in old}
    rows: list[Row] = []
    for folder in sorted(path for path in Path(argv[0]).iterdir() if path.is_dir()):
        mine = rows_of(folder, verdicts)
        rows += mine
        counts = Counter(row["verdict"] or "not read" for row in mine if row["rule"])
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "no report"
        print(f"{folder.name}: {mine[0]['files']} files, {mine[0]['regions']} regions: {told}", flush=True)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    all_ = Counter(row["verdict"] for row in rows if row["rule"])
    packages = len({row["package"] for row in rows})
    print(
        f"{packages} packages, {all_.total()} reports: {all_['true']} true, {all_['false']} false, {all_['']} not read"
    )
    return int(bool(all_[""]) or all_["false"] >= MOST_FALSE * max(all_.total(), 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
