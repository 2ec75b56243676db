"""One child process: started, followed, ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ampcheck.observe.blame import owner

_GRACE = 5.0
"""Seconds a child has between being told to end with a traceback and being ended."""

_FRAME = re.compile(
    r'^ +File "(?P<path>(?:.*[/\\])?(?P<file>[^"/\\]+))", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE
)
_WHAT = re.compile(r"what\(\): +(.+)")
_FRAMES = 5


class Child:
    """A process and the file it writes its events to. `log` holds what it printed."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], events: Path, log: Path) -> None:
        self.log = log
        events.touch()
        self._events = events.open("rb")
        self._rest = b""
        with log.open("wb") as out:
            # A new session: Ctrl-C is for the supervisor, and ending the group ends what a device started.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that are whole and were not given yet."""
        *lines, self._rest = (self._rest + self._events.read()).split(b"\n")
        for line in lines:
            yield json.loads(line)

    @property
    def status(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def abort(self) -> None:
        """End it, with its Python traceback in the log where it can still write one."""
        self._signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self.kill()

    def kill(self) -> None:
        """End it and whatever it started; nothing where it ended already."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Give back its files."""
        self._events.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it ended by itself
            os.killpg(self._process.pid, number)

    def how(self) -> str:
        """Return how it ended, in words, with the innermost Python frames where its log has them."""
        status = self._process.returncode
        if status >= 0:
            words = f"exit code {status}"
        else:
            try:
                words = f"signal {signal.Signals(-status).name}"
            except ValueError:
                words = f"signal {-status}"
        return f"{words}{self.where()}"

    def where(self) -> str:
        """Return the error and innermost Python frames of a process that a signal ended; "" where there are none."""
        out = f": {what[1].strip()}" if (what := _WHAT.search(self.printed())) else ""
        frames = [f"{m['name']} ({m['file']}:{m['line']})" for m in self._frames()][:_FRAMES]
        return f"{out}; it was in {', called by '.join(frames)}" if frames else out

    def frame(self) -> str:
        """Return the backend's innermost Python frame, as `blame.frame` says it; "" where it had none."""
        own = (m for m in self._frames() if owner(m["path"]) == "backend")
        return next((f"{m['file']} in {m['name']}" for m in own), "")

    def _frames(self) -> list[re.Match[str]]:
        """Return the Python frames of a process that a signal ended, the innermost first."""
        _, _, fatal = self.printed().rpartition("Fatal Python error:")
        return list(_FRAME.finditer(fatal.partition("Current thread")[2].partition("\n\n")[0]))

    def printed(self) -> str:
        """Return what it printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")
