"""What a case raised as a status, and a status as an outcome of pytest's."""

from __future__ import annotations

import pytest

from ampcheck.errors import Broken, CheckFailure, Unsupported, one_line
from ampcheck.observe import blame
from ampcheck.observe.dispatcher import lacks_kernel


def status_of(excinfo: pytest.ExceptionInfo[BaseException], when: str) -> tuple[str, str]:
    """Return the status and message of what a case raised: fail, broken, unsupported, or error of the harness itself.

    An exception is an error where ampcheck's own code raised it by itself, or where it is raised outside of the call
    (`when` is pytest's name of the phase) and neither a backend nor PyTorch has a part in it.
    """
    error = excinfo.value
    if isinstance(error, CheckFailure):
        return ("broken" if isinstance(error, Broken) else "fail"), str(error)
    if isinstance(error, Unsupported):
        return "unsupported", str(error)
    if lacks_kernel(error):
        return "unsupported", one_line(error)
    whose = blame.raised_by(error)
    if when == "call":
        ours = whose == "ampcheck" and not isinstance(error, AssertionError)
    else:
        ours = whose not in ("backend", "torch")
    return ("error" if ours else "fail"), one_line(error)


def raised(excinfo: pytest.ExceptionInfo[BaseException]) -> BaseException | None:
    """Return the exception of a case: the raised one, or the one that its failure speaks of. None for none."""
    error = excinfo.value
    return error.error if isinstance(error, CheckFailure) else error


def mark(report: pytest.TestReport, status: str, why: str, text: str) -> None:
    """Make a report say a status: deviations are shown as expected failures with the reason `why`."""
    if status in ("deviation", "unsupported"):
        report.outcome = "skipped"
        report.wasxfail = why
    elif status == "fixed":
        report.outcome = "failed"
    if status != "pass":
        report.longrepr = text
