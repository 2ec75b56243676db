"""What the end of a run says besides its causes."""

from __future__ import annotations

from ampcheck.runner import summarize as summary
from tests.report.conftest import made


def test_warnings_are_counted_the_commonest_first() -> None:
    slow, old = "UserWarning: slow kernel", "DeprecationWarning: old name"
    results = [made("mm", warnings=slow), made("bmm", warnings=f"{slow}\n{old}"), made("dot")]
    assert summary.warned(results) == [f"2 cases warned of {slow}", f"1 case warned of {old}"]
    many = [made(f"op{number}", warnings=f"UserWarning: number {number}") for number in range(8)]
    assert summary.warned(many)[-1] == "3 more warnings in the run file"
    assert summary.warned([made("mm")]) == []
