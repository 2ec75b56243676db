"""Rule threads, of backward and tasks: `ampcheck.spec.rules` says what it promises.

The state is thread-local (amp.html#torch.autocast), so asyncio tasks, which share a thread, share the state; PyTorch
does not promise to keep overlapping regions of two tasks apart, and no case asks for it.
"""

import asyncio
import contextvars

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("threads")

# ---- backward


@scenario(values=True)
def test_backward_in_another_thread(amp: Amp) -> None:
    """Backward ops run in the forward's dtype, in whichever thread backward is called (amp.html#torch.autocast)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    dtypes: list[torch.dtype] = []
    with amp.region():
        product = torch.mm(x, weight)
        product.register_hook(lambda gradient: dtypes.append(gradient.dtype))
        loss = product.float().sum()
        amp.thread(loss.backward)
        amp.expect("state here after backward", amp.state(), (True, amp.dtype, True))
    amp.expect("dtype of the product's gradient", dtypes, [amp.dtype])
    amp.expect("dtype of the weight's gradient", weight.grad.dtype if weight.grad is not None else None, torch.float32)


@scenario(values=True)
def test_backward_outside(amp: Amp) -> None:
    """A forward in a thread's region and backward here, outside of one, give the forward's dtypes (amp.html)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)

    def forward() -> torch.Tensor:
        with amp.region():
            return torch.mm(x, weight)

    out = amp.thread(forward)
    amp.expect("dtype of the output", out.dtype, amp.dtype)
    out.float().sum().backward()
    amp.expect("dtype of the weight's gradient", weight.grad.dtype if weight.grad is not None else None, torch.float32)


@scenario(values=True)
def test_backward_sees_the_callers_region(amp: Amp) -> None:
    """Python code in backward sees the dtype of the thread that called backward (pytorch#132715, autograd threads)."""
    seen: list[tuple[object, ...]] = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(amp.state())
            return gradient * 2

    x = amp.rand(2, 2, requires_grad=True)
    with amp.region(amp.other):
        out = Looks.apply(x).sum()
    with amp.region():
        out.backward()
        amp.expect("state here after backward", amp.state(), (True, amp.dtype, True))
    amp.expect("states in backward", seen, [(True, amp.dtype, True)])


@scenario(values=True)
def test_promotion_in_backward(amp: Amp) -> None:
    """A backward in a region with an op that widens does not raise (test_autocast_prioritize, pytorch#132715)."""
    x = amp.rand(4, 4, requires_grad=True)
    with amp.region():
        out = torch.mm(x, x)
        (out[:, torch.tensor([0, 1]).to(amp.type)] * 2).sum().backward()
    amp.expect("dtype of the gradient", x.grad.dtype if x.grad is not None else None, torch.float32)


# ---- tasks and contexts


@scenario()
def test_copied_variables(amp: Amp) -> None:
    """The state is the thread's and no context variable: a copied context sees it (amp.html: thread-local)."""
    context = contextvars.copy_context()
    with amp.region():
        amp.expect("state in a context copied before the region", context.run(amp.state), (True, amp.dtype, True))
    amp.expect("state in it after the region", context.run(amp.state), (False, amp.default, True))


@scenario()
def test_to_thread(amp: Amp) -> None:
    """asyncio.to_thread copies the context and not the autocast state: its thread is outside (amp.html)."""

    def look() -> object:
        with amp.device.activate():
            return amp.state(), amp.probe()

    async def main() -> object:
        with amp.region(amp.other), amp.region():
            return await asyncio.to_thread(look)

    amp.expect("state and dtype of a product there", asyncio.run(main()), ((False, amp.default, True), torch.float32))
    amp.expect("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_tasks_share_the_thread(amp: Amp) -> None:
    """Tasks of one thread share its state: one that runs while another awaits in a region is in it (amp.html)."""

    async def look() -> object:
        return amp.state()

    async def main() -> object:
        with amp.region():
            return await asyncio.create_task(look())

    amp.expect("state in the other task", asyncio.run(main()), (True, amp.dtype, True))
    amp.expect("state after the tasks", amp.state(), (False, amp.default, True))


@pytest.mark.parametrize("count", [2, 5], ids=["two", "five"])
@scenario(dtypes="default")
def test_tasks_that_do_not_overlap(amp: Amp, count: int) -> None:
    """Tasks whose regions hold over no await are each in their own (amp.html: a region is its body)."""

    async def work(number: int) -> object:
        await asyncio.sleep(0)
        with amp.region(amp.dtype if number % 2 else amp.other):
            found = amp.probe()
        await asyncio.sleep(0)
        return found, amp.state()

    async def main() -> list[object]:
        return list(await asyncio.gather(*(work(number) for number in range(count))))

    outside = (False, amp.default, True)
    want = [(amp.dtype if number % 2 else amp.other, outside) for number in range(count)]
    amp.expect("dtypes in the tasks' regions, and states after them", asyncio.run(main()), want)
