"""Run the plain torch lines of a case in a new process, and say whether what the case found shows there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ampcheck.runner.results import Result

LIMIT = 60.0
"""Seconds that one program may take."""
TOGETHER = 240.0
"""Seconds that all programs of a run may take."""

YES = "reproduces"
NO = "does not reproduce outside of ampcheck"

_RAISED = re.compile(r"^(?:[\w.]+\.)?(?P<kind>\w+)(?::|$)")


def reproduce(results: Iterable[Result], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Run the plain torch lines of some red cases, and yield the key of each with what came of it, in words.

    `env`: the environment, in which the device's module is found. Cases without such lines, and those that
    pass now, are left out.
    """
    end = time.monotonic() + TOGETHER
    for result in results:
        if result.torch and result.status != "fixed":
            left = min(LIMIT, end - time.monotonic())
            yield result.key, _said(result, env, left) if left > 0 else "was not run, for want of time"


def _said(result: Result, env: Mapping[str, str], limit: float) -> str:
    with TemporaryDirectory(prefix="ampcheck-") as folder:
        program = Path(folder) / "program.py"  # TorchScript and Dynamo read the source of what they compile
        program.write_text(result.torch, encoding="utf-8")
        # A new session: what the program starts ends with it.
        with subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=limit)
            except BaseException as error:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return YES if result.status == "timeout" else f"{NO} (it did not end within {limit:.0f} s)"
        return _judged(result, process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def _judged(result: Result, status: int, out: str, err: str) -> str:
    """Return what a program that ended shows of a case. `status`: its exit code, negative for a signal."""
    raised = "Traceback (most recent call last)" in err and status == 1
    if result.status == "crash":
        return YES if status and not raised else NO
    if re.search(r"^FAIL ", out, re.MULTILINE):
        return YES
    if raised:
        lines = [line for line in err.splitlines() if line and not line[0].isspace()]
        match = next((found for line in reversed(lines) if (found := _RAISED.match(line))), None)
        kind = match["kind"] if match else "an exception"
        told = f"{result.message}\n{result.traceback}"
        return YES if re.search(rf"\b{kind}\b", told) else f"{NO} (it raised {kind})"
    if status:
        how = f"exit code {status}" if status > 0 else f"signal {-status}"
        return f"{NO} (it ended with {how})"
    return NO
