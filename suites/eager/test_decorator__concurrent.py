"""Rule decorator, of threads, generators and coroutines: `ampcheck.spec.rules` says what it promises.

PyTorch promises nothing of a decorated generator function or coroutine function: the region spans the call that makes
the generator or coroutine, and its body runs later. Only what follows from that is checked here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("decorator")

# ---- threads


@scenario()
def test_called_in_a_thread(amp: Amp) -> None:
    """A decorated function may be called in a new thread; it is enabled there (amp.html: state is thread-local)."""

    @amp.region()
    def function() -> torch.dtype:
        return amp.probe()

    def worker() -> tuple[torch.dtype, tuple[object, ...]]:
        return function(), amp.state()

    amp.expect("dtype inside, and state after it", amp.thread(worker), (amp.dtype, (False, amp.default, True)))
    amp.expect("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_called_twice_at_once(amp: Amp) -> None:
    """Calls of one decorated function that overlap in two threads leave each as it was (amp.html: thread-local)."""

    @amp.region()
    def function(meanwhile: Callable[[], None]) -> None:
        amp.expect("state inside", amp.state(), (True, amp.dtype, True))
        meanwhile()

    def second() -> None:
        with amp.region(amp.other):
            function(lambda: None)
            amp.expect("state in the second thread after its call", amp.state(), (True, amp.other, True))

    function(lambda: amp.thread(second))
    amp.expect("state in the first thread after its call", amp.state(), (False, amp.default, True))


# ---- generators and coroutines


@scenario(dtypes="default")
def test_generator_function(amp: Amp) -> None:
    """A decorated generator function gives its values and leaks no state; its body's state is left open by PyTorch."""

    @amp.region()
    def count(start: int) -> Iterator[int]:
        yield start
        amp.expect("what was sent", (yield start + 1), "sent")

    before = amp.state()
    made = count(3)
    amp.expect("state after the call", amp.state(), before)
    amp.expect("first value", next(made), 3)
    amp.expect("second value", next(made), 4)
    amp.expect("values that are left", _rest(made, "sent"), [])
    amp.expect("state after the generator's end", amp.state(), before)
    amp.expect("nesting depth after the generator's end", amp.depth(), 0)


def _rest(made: Iterator[int], value: object) -> list[int]:
    try:
        return [made.send(value), *made]  # type: ignore[attr-defined]  # a generator, which its annotation does not say
    except StopIteration:
        return []


@scenario(dtypes="default")
def test_coroutine_function(amp: Amp) -> None:
    """A decorated coroutine function gives its result and leaks no state; its body's state is left open by PyTorch."""

    @amp.region()
    async def work(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    @amp.region()
    async def count() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> list[int]:
        return [await work(1), *[value async for value in count()]]

    before = amp.state()
    amp.expect("results", amp.quiet("the event loop", lambda: asyncio.run(main())), [2, 1, 2])
    amp.expect("state after them", amp.state(), before)
    amp.expect("nesting depth after them", amp.depth(), 0)


@scenario()
def test_region_in_a_generator(amp: Amp) -> None:
    """A with statement in a generator holds for its body; where the generator ends, so does the region (amp.html)."""

    def steps() -> Iterator[torch.dtype]:
        with amp.region():
            yield amp.probe()
            yield amp.probe()

    before = amp.state()
    amp.expect("dtypes of products in the generator", list(steps()), [amp.dtype, amp.dtype])
    amp.expect("state after the generator", amp.state(), before)


@scenario()
def test_region_in_a_coroutine(amp: Amp) -> None:
    """A with statement in a coroutine holds for its body, over an await too while no other task runs (amp.html)."""

    async def work() -> list[torch.dtype]:
        with amp.region():
            found = [amp.probe()]
            await asyncio.sleep(0)
            return [*found, amp.probe()]

    before = amp.state()
    amp.expect("dtypes before and after the await", asyncio.run(work()), [amp.dtype, amp.dtype])
    amp.expect("state after the coroutine", amp.state(), before)
