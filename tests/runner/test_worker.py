"""A child process that answers with JSON lines: what it says, how long it may take, how it ended, that it is ended."""

from __future__ import annotations

import os
import sys
import time

import pytest

from ampcheck.runner.worker import Worker

SERVES = """
import json, sys
from ampcheck.runner.worker import answers
lines = answers()
print("a library's chatter")
for line in sys.stdin:
    lines.write(json.dumps({"heard": line.strip()}) + "\\n")
"""


def started(code: str, given: object = None) -> Worker:
    return Worker([sys.executable, "-c", code], {**os.environ, "PYTHONPATH": os.getcwd()}, given)


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_answers_what_it_is_told() -> None:
    with started(SERVES) as worker:
        for word in ("one", "two"):
            worker.tell(word)
            assert worker.hear(60) == {"heard": word}
        with pytest.raises(TimeoutError):
            worker.hear(0.01)
    assert worker.last_line() == "a library's chatter"


def test_what_is_given_ends_its_input() -> None:
    with started(SERVES, [1, 2]) as worker:
        assert worker.answer(60) == {"heard": "[1, 2]"}
        assert worker.hear(0) is None
        assert worker.status() == 0


def test_a_line_may_come_in_parts() -> None:
    pause = "print({!r}, end='', flush=True); time.sleep(.05)\n"
    with started("import time\n" + "".join(map(pause.format, ("[1,", " 2]\n[3", "]\n")))) as worker:
        assert [worker.hear(60), worker.hear(60), worker.hear(60)] == [[1, 2], [3], None]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise SystemExit('no such thing')", "with exit code 1: no such thing"),
        ("import os; os._exit(7)", "with exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal 9"),
        ("print('[1]', flush=True); raise SystemExit(3)", "with exit code 3"),
    ],
)
def test_how_it_ended(code: str, how: str) -> None:
    with started(code) as worker:
        assert worker.answer(60) is None
        assert worker.how() == how


def test_an_answer_that_takes_too_long() -> None:
    with started("import time; print('[1]', flush=True); time.sleep(600)") as worker, pytest.raises(TimeoutError):
        worker.answer(2)


def interrupted(seen: list[int]) -> None:
    with started("import os, time; print(os.getpid(), flush=True); time.sleep(600)") as worker:
        seen.append(worker.hear(60))
        raise KeyboardInterrupt


def test_an_interrupt_ends_it() -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(seen)
    assert not running(seen[0])


def test_telling_one_that_ended_is_no_error() -> None:
    with started("import os; os._exit(0)") as worker:
        assert worker.hear(60) is None
        time.sleep(0.05)
        for _ in range(3):
            worker.tell("still there?")
        assert worker.hear(1) is None
    worker.stop()
