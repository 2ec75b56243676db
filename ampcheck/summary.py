"""Results as text for a terminal: the table of a run, and one case with how to reproduce it. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tabulate import tabulate

from ampcheck.results import STATUSES, Result


def table(results: Collection[Result]) -> str:
    """A line per device and rule, a column per status that occurs, and a total; "" for no results."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        counts.setdefault((result.device, result.rule), Counter())[result.status] += 1
    if not counts:
        return ""
    used = [status for status in STATUSES if any(c[status] for c in counts.values())]
    rows = [
        [device, rule, sum(c.values()), *(c[s] or "" for s in used)] for (device, rule), c in sorted(counts.items())
    ]
    total: Counter[str] = sum(counts.values(), Counter())
    rows.append(["all", "all", sum(total.values()), *(total[s] for s in used)])
    return str(tabulate(rows, headers=["device", "rule", "cases", *used]))


def ran(results: Collection[Result], expected: int, deselected: int, seconds: float) -> str:
    """How much of what was expected ran, in a sentence."""
    done = sum(1 for result in results if result.status != "missing")
    return f"{done} of {expected} cases ran in {seconds:.1f} s; {deselected} more were not selected"


def text(result: Result, why: str = "") -> str:
    """What a person reads of a case that is not as promised. `why`: the reason of the deviation that speaks of it."""
    parts = [f"{result.key}: {result.status}", *(f"  - {line}" for line in result.message.splitlines())]
    if why and why not in result.message:
        parts.append(f"  ({why})")
    if result.pytest:
        parts += ["", "Reproduce it with pytest:", f"  {result.pytest}"]
    if result.torch:
        parts += ["or in plain torch:", "", *(f"  {line}" for line in result.torch.splitlines())]
    return "\n".join(parts)


def warned(results: Collection[Result]) -> list[str]:
    """A line for each warning that cases gave, the commonest first, with how many cases gave it."""
    counts = Counter(line for result in results for line in result.warnings.splitlines())
    return [f"{count} cases: {line}" for line, count in counts.most_common()]
