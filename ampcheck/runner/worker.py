"""Run a child process that answers in JSON lines: start it, hear it with a deadline, say how it died, end it.

The child reads its task from standard input and answers through a pipe of its own (`answers`, `Channel`), so that what
libraries print never mixes with its answers. That goes to a log, with the traceback of a process that dies.
"""

import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Self, TextIO

from ampcheck.observe.blame import owner

_PIPE = "AMPCHECK_ANSWERS"
"""The environment variable that tells a child the number of the pipe for its answers."""
_GRACE = 5.0
"""Seconds a child has between being told to end with a traceback and being ended."""
_LOOK = 0.5
"""Seconds between two looks whether a silent child still runs: what it started may hold its pipe open."""
_FRAMES = 5
_FRAME = re.compile(
    r'^ +File "(?P<path>(?:.*[/\\])?(?P<file>[^"/\\]+))", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE
)
_WHAT = re.compile(r"what\(\): +(.+)")

_CAUSED = "The above exception was the direct cause of the following exception:"


class Worker:
    """The process. Leaving the context ends it and what it started, whatever was raised, Ctrl-C included.

    Args:
        command: its program and arguments.
        env: its environment; by default that of this process.
        given: its task, which it reads from its standard input as JSON. By default its input stays open, for `tell`.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, given: Any = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # closed by `stop`
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._closed = False
        self._printed: str | None = None
        self._pipe, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                # Python then writes the frames of a process that a signal ends.
                env={**(os.environ if env is None else env), _PIPE: str(theirs), "PYTHONFAULTHANDLER": "1"},
                pass_fds=(theirs,),
                # Ctrl-C is for this process, and ending the group ends what a device started.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            self._log.close()
            raise
        finally:
            os.close(theirs)
        if given is not None:
            self.tell(json.dumps(given))
            self._close(self._process.stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ---- what goes to it and comes from it
    def tell(self, line: str) -> None:
        """Write a line to its standard input; nothing where it ended, which `hear` says."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, seconds: float) -> Any:
        """Read its next answer; None where it ended. Raises TimeoutError after so many seconds without one."""
        end = time.monotonic() + seconds
        while not self._lines:
            running = self.ended() is None  # asked first, so that nothing is written after the last look
            left = max(end - time.monotonic(), 0.0)
            if self._read(min(left, _LOOK) if running else 0.0):
                continue
            if not running:
                return None
            if left <= 0:
                raise TimeoutError(f"it said nothing for {seconds:g} s")
        return json.loads(self._lines.popleft())

    def events(self) -> Iterator[Any]:
        """Yield the answers that came and were not given yet; never wait."""
        while self._read(0.0):
            pass
        while self._lines:
            yield json.loads(self._lines.popleft())

    def answer(self, seconds: float) -> Any:
        """Return the last answer of a process that ends by itself; None where it gave none or failed: see `reason`.

        Raises TimeoutError where it takes longer.
        """
        end, last = time.monotonic() + seconds, None
        while (line := self.hear(max(end - time.monotonic(), 0.0))) is not None:
            last = line
        return last if self.status() == 0 else None

    def _read(self, seconds: float) -> bool:
        """Read what is there within so many seconds. Returns whether anything was."""
        if self._closed:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return False
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        read = os.read(self._pipe, 1 << 16)
        self._closed = not read
        *whole, self._rest = (self._rest + read).split(b"\n")
        self._lines.extend(whole)
        return bool(read)

    # ---- its end
    def ended(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def status(self) -> int:
        """Wait for its end and return its exit status, negative for a signal."""
        return self._process.wait()

    def abort(self) -> None:
        """End it, with its Python frames in the log where it can still write them."""
        self._signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self.kill()

    def kill(self) -> None:
        """End it and whatever it started; nothing where it ended already."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it and give back its files; a second call does nothing. What it printed is kept."""
        if self._printed is not None:
            return
        self.kill()
        self._printed = self.printed()
        self._close(self._process.stdin)
        self._log.close()
        os.close(self._pipe)
        self._closed = True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it ended by itself
            os.killpg(self._process.pid, number)

    @staticmethod
    def _close(stream: IO[bytes] | None) -> None:
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()

    # ---- how it ended, in words
    def how(self) -> str:
        """Return how it ended, e.g. "exit code 1", or "signal SIGSEGV" with the innermost Python frames if known."""
        status = self.status()
        if status >= 0:
            return f"exit code {status}"
        try:
            return f"signal {signal.Signals(-status).name}{self.where()}"
        except ValueError:
            return f"signal {-status}{self.where()}"

    def reason(self) -> str:
        """Return how it ended, with the last line that it printed where no frames are known."""
        how, last = self.how(), self.last_line()
        return f"{how}: {last}" if last and not self.where() else how

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

    def last_line(self) -> str:
        """Return the last line that it printed, after that of what caused the exception; "" where there is none."""
        parts = self.printed().split(_CAUSED)
        said = (part.replace("INTERNALERROR>", "").strip() for part in (parts[0], parts[-1]))  # pytest's mark
        return "; ".join(dict.fromkeys(text.splitlines()[-1].strip() for text in said if text))

    def printed(self) -> str:
        """Return what it printed so far; also after `stop`."""
        if self._printed is not None:
            return self._printed
        self._log.seek(0)  # the child appends, wherever this reads
        return self._log.read().decode(errors="replace")


# ---- the child's side
def answers() -> TextIO:
    """Return where this process writes its answers, a line each.

    That is the pipe of the `Worker` that started it. A process that was started by hand answers on standard output,
    and what libraries print goes to standard error.
    """
    if number := os.environ.pop(_PIPE, ""):
        os.set_inheritable(int(number), False)
        return os.fdopen(int(number), "w", buffering=1, encoding="utf-8")
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return channel


class Channel:
    """Sends answers as JSON."""

    def __init__(self) -> None:
        self._file = answers()

    def send(self, answer: Mapping[str, Any]) -> None:
        """Send an answer. Ends the process where nobody listens any more."""
        try:
            self._file.write(json.dumps(answer, separators=(",", ":")) + "\n")
        except BrokenPipeError:
            os._exit(1)
