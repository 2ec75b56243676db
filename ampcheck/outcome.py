"""What a case raised as a status, and a status as an outcome of pytest's."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from ampcheck.checks import Broken, CheckFailure, Unsupported, one_line
from ampcheck.dispatcher import lacks_kernel

_PACKAGE = str(Path(__file__).parent)
# What lies in the package and is under test: a backend, its autocast kernels, and the calls of compilers.
_TESTED = tuple(str(Path(__file__).parent / part) for part in ("jax_device", "register", "executors"))


def status_of(excinfo: pytest.ExceptionInfo[BaseException], when: str) -> tuple[str, str]:
    """The status and message of what a case raised: fail, unsupported, or error where the harness itself broke.

    That is where it is raised outside of the call, or by ampcheck's own code; `when` is pytest's name of the phase.
    """
    error = excinfo.value
    if isinstance(error, CheckFailure):
        return ("broken" if isinstance(error, Broken) else "fail"), str(error)
    if isinstance(error, Unsupported):
        return "unsupported", str(error)
    if lacks_kernel(error):
        return "unsupported", one_line(error)
    last = traceback.extract_tb(error.__traceback__)[-1].filename if error.__traceback__ else ""
    ours = last.startswith(_PACKAGE) and not last.startswith(_TESTED) and not isinstance(error, AssertionError)
    return ("error" if ours or when != "call" else "fail"), one_line(error)


def mark(report: pytest.TestReport, status: str, why: str, text: str) -> None:
    """Make a report say a status: deviations are shown as expected failures with the reason `why`."""
    if status in ("deviation", "unsupported"):
        report.outcome = "skipped"
        report.wasxfail = why
    elif status == "fixed":
        report.outcome = "failed"
    if status != "pass":
        report.longrepr = text
