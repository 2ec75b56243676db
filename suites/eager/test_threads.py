"""Rule threads: a new thread starts outside of every region, and regions of one thread touch no other.

The state is thread-local (https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, "The autocast state is
thread-local"). A backward pass takes the state of the thread that calls it along. Tasks of asyncio share a thread and
so share the state; PyTorch does not promise to keep overlapping regions of two tasks apart, and no case asks for it.
"""

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("threads")


# ---- what a new thread starts with
@scenario()
def test_starts_outside(amp: Amp) -> None:
    """A thread started in a region is outside of it: off, default dtype, cache on, depth 0 (amp.html: thread-local)."""

    def look() -> tuple[object, ...]:
        return amp.state(), amp.depth(), amp.probe()

    want = ((False, amp.default, True), 0, torch.float32)
    amp.assert_equal("state, depth and dtype of a product in a thread", amp.thread(look), want)
    with amp.region(amp.other, cache_enabled=False), amp.region(cache_enabled=False):
        amp.assert_equal("the same, started in a region", amp.thread(look), want)
        amp.assert_equal("state here", amp.state(), (True, amp.dtype, False))


# ---- what a thread does stays in it
@scenario()
def test_what_is_set_stays_in_its_thread(amp: Amp) -> None:
    """The state functions act on the thread that calls them (autocast_mode.cpp: thread_local)."""

    def change() -> None:
        torch.set_autocast_enabled(amp.type, False)
        torch.set_autocast_dtype(amp.type, amp.other)
        torch.set_autocast_cache_enabled(False)

    with amp.region():
        amp.thread(change)
        amp.assert_state("here", (True, amp.dtype, True))


# ---- several threads at once
@scenario()
def test_left_in_another_order(amp: Amp) -> None:
    """Regions of three threads entered in one order and left in another disturb none of them (amp.html)."""

    def worker(turns: int, enabled: bool) -> Iterator[None]:
        with amp.region(enabled=enabled, cache_enabled=enabled):
            for _ in range(turns):
                amp.assert_state("inside", (enabled, amp.dtype, enabled), 1)
                yield
        amp.assert_equal("state after the region", amp.state(), (False, amp.default, True))

    amp.interleave(lambda: worker(4, True), lambda: worker(1, False), lambda: worker(2, True))
    amp.assert_equal("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_one_region_object_in_two_threads(amp: Amp) -> None:
    """A region object that two threads are inside at once gives each its own state back (amp.html: thread-local)."""
    region = amp.region()

    def second() -> None:
        with amp.region(amp.other, cache_enabled=False):
            with region:
                amp.assert_equal("state in the second thread", amp.state(), (True, amp.dtype, True))
            amp.assert_equal("state in the second thread afterwards", amp.state(), (True, amp.other, False))

    with region:
        amp.thread(second)
        amp.assert_equal("state in the first thread", amp.state(), (True, amp.dtype, True))
    amp.assert_equal("state in the first thread afterwards", amp.state(), (False, amp.default, True))


@scenario()
def test_made_here_entered_there(amp: Amp) -> None:
    """A region object made in one thread works in another; its options are fixed (autocast_mode.py, __init__)."""
    with amp.region(amp.other, cache_enabled=False):
        region = torch.autocast(amp.type, enabled=False)

    def enter() -> tuple[object, object]:
        with region:
            inside = amp.state()
        return inside, amp.state()

    want = ((False, amp.other, False), (False, amp.default, True))
    amp.assert_equal("state inside and after it, in the thread", amp.thread(enter), want)
    amp.assert_equal("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_pool(amp: Amp) -> None:
    """A pool's thread, used again, is as the job before left it: outside of that job's region (amp.html)."""

    def job(dtype: torch.dtype | None) -> tuple[object, torch.dtype]:
        with amp.activate():
            before = amp.state()
            if dtype is None:
                return before, amp.probe()
            with amp.region(dtype):
                return before, amp.probe()

    outside = (False, amp.default, True)
    with amp.region(), ThreadPoolExecutor(1) as pool:
        for dtype in (amp.dtype, None, amp.other, None):
            want = (outside, dtype or torch.float32)
            got = pool.submit(job, dtype).result()
            amp.assert_equal(f"state before, and dtype of a product, in a job of {dtype}", got, want)
        amp.assert_equal("state here", amp.state(), (True, amp.dtype, True))


@scenario(dtypes="default", values=True)
def test_really_at_once(amp: Amp) -> None:
    """Four threads that enter and leave regions at the same time never see each other's dtype (amp.html)."""
    barrier = Barrier(4)

    def job(dtype: torch.dtype) -> list[object]:
        with amp.activate():
            wrong: list[object] = []
            x = amp.host(amp.rand(4, 4)).to(amp.type)
            barrier.wait(10)
            for turn in range(40):
                with amp.region(dtype, enabled=turn % 3 > 0):
                    got = torch.mm(x, x).dtype
                    wrong += [got] if got != (dtype if turn % 3 else torch.float32) else []
                wrong += [amp.state()] if amp.state() != (False, amp.default, True) else []
            return wrong

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(job, dtype) for dtype in (amp.dtype, amp.other, amp.dtype, amp.other)]
        for number, done in enumerate(jobs):
            amp.assert_equal(f"what thread {number} saw of the others", done.result(), [])


# ---- cached casts
# ---- backward
@scenario(values=True)
def test_backward_in_another_thread(amp: Amp) -> None:
    """Backward ops run in the forward's dtype, in whichever thread backward is called (amp.html#torch.autocast)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    dtypes: list[torch.dtype] = []
    with amp.region():
        product = torch.mm(x, weight)
        product.register_hook(lambda gradient: dtypes.append(gradient.dtype))
        amp.thread(product.float().sum().backward)
        amp.assert_equal("state here after backward", amp.state(), (True, amp.dtype, True))
    amp.assert_equal("dtype of the product's gradient", dtypes, [amp.dtype])
    amp.assert_equal("dtype of the weight's gradient", getattr(weight.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_promotion_in_backward(amp: Amp) -> None:
    """A backward in a region with an op that widens does not raise (test_autocast_prioritize, pytorch#132715)."""
    x = amp.rand(4, 4, requires_grad=True)
    with amp.region():
        (torch.mm(x, x)[:, torch.tensor([0, 1]).to(amp.type)] * 2).sum().backward()
    amp.assert_equal("dtype of the gradient", getattr(x.grad, "dtype", None), torch.float32)


# ---- tasks and contexts
@scenario()
def test_copied_variables(amp: Amp) -> None:
    """The state is the thread's and no context variable: a copied context sees it (amp.html: thread-local)."""
    context = contextvars.copy_context()
    with amp.region():
        amp.assert_equal("state in a context copied before the region", context.run(amp.state), (True, amp.dtype, True))
    amp.assert_equal("state in it after the region", context.run(amp.state), (False, amp.default, True))


@scenario()
def test_to_thread(amp: Amp) -> None:
    """asyncio.to_thread copies the context and not the autocast state: its thread is outside (amp.html)."""

    def look() -> object:
        with amp.activate():
            return amp.state(), amp.probe()

    async def main() -> object:
        with amp.region(amp.other), amp.region():
            return await asyncio.to_thread(look)

    want = ((False, amp.default, True), torch.float32)
    amp.assert_equal("state and dtype of a product there", asyncio.run(main()), want)
    amp.assert_equal("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_tasks_share_the_thread(amp: Amp) -> None:
    """Tasks of one thread share its state: one that runs while another awaits in a region is in it (amp.html)."""

    async def look() -> object:
        return amp.state()

    async def main() -> object:
        with amp.region():
            return await asyncio.create_task(look())

    amp.assert_equal("state in the other task", asyncio.run(main()), (True, amp.dtype, True))
    amp.assert_equal("state after the tasks", amp.state(), (False, amp.default, True))
