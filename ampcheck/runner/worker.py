"""A child process that answers with JSON, a line each: started, heard with a deadline, ended.

The children that run cases are others (`ampcheck.runner.supervisor.child`): they are followed several at once by the
files they write, and what they print is a log with tracebacks to read.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self, TextIO


class Worker:
    """The process. Leaving the context ends it, whatever it does and whatever was raised, Ctrl-C included.

    What it writes to standard error is kept, for a message that says why it ended.

    Args:
        command: its program and arguments.
        env: its environment; by default that of this process.
        given: what it reads from its standard input, as JSON. By default its input stays open, for `tell`.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, given: Any = None) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._said: str | None = None
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env
        )
        if given is not None:
            self.tell(json.dumps(given))
            self._close(self._process.stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; nothing where it ended, which `hear` says."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, seconds: float) -> Any:
        """Read its next line as JSON; None where it ended. Raises TimeoutError after so many seconds without one."""
        assert self._process.stdout is not None
        pipe, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while not self._lines:
            left = max(end - time.monotonic(), 0.0)
            if not select.select([pipe], [], [], left)[0]:
                raise TimeoutError(f"it said nothing for {seconds:g} s")
            read = os.read(pipe, 1 << 16)
            if not read:
                return None
            *whole, self._rest = (self._rest + read).split(b"\n")
            self._lines.extend(whole)
        return json.loads(self._lines.popleft())

    def answer(self, seconds: float) -> Any:
        """Return the last line of a process that ends by itself; None where it said none or failed, which `how` says.

        Raises TimeoutError where it takes longer.
        """
        end, last = time.monotonic() + seconds, None
        while (line := self.hear(max(end - time.monotonic(), 0.0))) is not None:
            last = line
        return last if self.status() == 0 else None

    def status(self) -> int:
        """Return the exit status of a process that closed its standard output, negative for a signal."""
        return self._process.wait()

    def how(self) -> str:
        """Return how it ended, e.g. "by signal 11" or "with exit code 1", and the last line of its standard error."""
        status, last = self.status(), self.last_line()
        words = f"by signal {-status}" if status < 0 else f"with exit code {status}"
        return f"{words}: {last}" if last else words

    def last_line(self) -> str:
        """Return the last line of its standard error that is not blank, "" where there is none; also after `stop`."""
        if self._said is not None:
            return self._said
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stop(self) -> None:
        """End it and give back its files; a second call does nothing."""
        if self._said is not None:
            return
        self._process.kill()
        self._process.wait()
        self._said = self.last_line()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            self._close(stream)

    @staticmethod
    def _close(stream: IO[bytes] | None) -> None:
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def answers() -> TextIO:
    """Take this process's standard output for its answers, a line each; what libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return channel
