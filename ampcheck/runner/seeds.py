"""The seed that the random programs are drawn from."""

from __future__ import annotations

from datetime import UTC, datetime

FIXED = 5
"""The seed of every run that is not nightly, so that such runs draw the same programs."""


def of_programs(nightly: bool, given: str | int | None = None) -> int:
    """Return the seed of a run: `FIXED`, or with `--nightly` that of `--hypothesis-seed`, or else the day's date."""
    if not nightly:
        return FIXED
    if given is None:
        return int(f"{datetime.now(UTC):%Y%m%d}")
    return int(given) if str(given).isdigit() else sum(map(ord, str(given)))
