"""A child process that answers with JSON lines: what it says, how long it may take, how it ended, that it is ended."""

import os
import sys
import time

import pytest

from ampcheck.runner.worker import Worker
from tests.cli_support import PROGRAMS

ANSWERS = "import os, signal, sys, time\nfrom ampcheck.runner.worker import Channel, answers\n"
SERVES = PROGRAMS["worker-serves"]


def started(code: str, given: object = None) -> Worker:
    return Worker([sys.executable, "-c", ANSWERS + code], {**os.environ, "PYTHONPATH": os.getcwd()}, given)


def test_it_answers_what_it_is_told_and_keeps_what_is_printed() -> None:
    with started(SERVES) as worker:
        for word in ("one", "two"):
            worker.tell(word)
            assert worker.hear(60) == {"heard": word}
        with pytest.raises(TimeoutError):
            worker.hear(0.01)
        assert list(worker.events()) == []
        assert worker.ended() is None
    assert worker.last_line() == "and what C++ prints"
    assert "a library's chatter" in worker.printed()


def test_what_is_given_ends_its_input() -> None:
    with started(SERVES, [1, 2]) as worker:
        assert worker.answer(60) == {"heard": "[1, 2]"}
        assert worker.hear(0) is None
        assert worker.status() == 0


def test_events_are_all_that_came_and_never_waited_for() -> None:
    with started("c = Channel(); [c.send([n]) for n in range(3)]; sys.stdin.read(); c.send([3])", None) as worker:
        found: list[object] = [worker.hear(60)]
        while len(found) < 3:
            found += worker.events()
        assert list(worker.events()) == []
        assert found == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no such thing')", "exit code 1: no such thing"),
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ("def bad(): os.kill(os.getpid(), signal.SIGSEGV)\nbad()", "signal SIGSEGV; it was in bad (<string>:3)"),
        ("Channel().send([1]); raise SystemExit(3)", "exit code 3"),
        # What it started holds its pipe open.
        ("os.fork() or time.sleep(600); os._exit(5)", "exit code 5"),
    ],
)
def test_how_it_ended(code: str, reason: str) -> None:
    with started(code) as worker:
        assert worker.answer(60) is None
        assert worker.reason().startswith(reason)
        assert reason.startswith(worker.how()) or worker.how().startswith(reason)


def test_an_answer_that_takes_too_long_and_where_it_was() -> None:
    with started("def slow(): Channel().send([1]); time.sleep(600)\nslow()") as worker:
        with pytest.raises(TimeoutError):
            worker.answer(3)
        worker.abort()
        assert worker.where().startswith("; it was in slow (<string>:3)")


def test_telling_one_that_ended_is_no_error() -> None:
    with started("os._exit(0)") as worker:
        assert worker.hear(60) is None
        time.sleep(0.05)
        for _ in range(3):
            worker.tell("still there?")
        assert worker.hear(1) is None
    worker.stop()
