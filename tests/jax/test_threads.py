"""Errors in backward, threads, fork, and buffers that nobody holds."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

from ampcheck.jax_device.storage.arrays import storage_of


class Fails(torch.autograd.Function):
    """An op whose backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return torch.mm(grads[0], grads[0])


def on_a_thread(run: Callable[[], Any]) -> BaseException | None:
    """What a call raised on a thread of its own."""
    raised: list[BaseException | None] = [None]

    def body() -> None:
        try:
            run()
        except BaseException as error:
            raised[0] = error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return raised[0]


def _backward() -> None:
    Fails.apply(torch.ones(3, device="jax", requires_grad=True)).sum().backward()


def _forward() -> None:
    torch.ones(3, device="jax") + torch.ones(4, device="jax")


def _missing() -> None:
    torch.ones(2, 2, device="jax").to_sparse()


def test_errors_are_exceptions_on_every_thread() -> None:
    for run in (_backward, _forward, _missing):
        with pytest.raises((RuntimeError, NotImplementedError)) as here:
            run()
        there = on_a_thread(run)
        assert type(there) is here.type
        assert str(there) == str(here.value)
    assert (torch.ones(2, device="jax") + 1).tolist() == [2, 2]


def _alive() -> int:
    """How many arrays live, once the threads of autograd have let go of what they ran last."""
    counts = [-1, -2, -3]
    while len(set(counts[-3:])) > 1:
        time.sleep(0.05)
        gc.collect()
        counts.append(len(jax.live_arrays()))
    return counts[-1]


def _left(make: Callable[[], Any]) -> int:
    """How many more arrays live after a call than before it."""
    make()  # what is compiled and shared is made the first time
    gc.collect()
    gc.freeze()  # what other tests left behind need not be looked at again and again
    try:
        before = _alive()
        make()
        return _alive() - before
    finally:
        gc.unfreeze()


def _many() -> None:
    for i in range(1000):
        x = torch.full((3,), float(i), device="jax")
        x[1:].unsqueeze(0).add_(1)
        x.view(torch.int32)


def _graph() -> None:
    leaf = torch.ones(5, device="jax", requires_grad=True)
    for _ in range(50):
        (leaf * 2).exp().sum().backward()


def _raising() -> None:
    for _ in range(50):
        with pytest.raises(RuntimeError):
            _backward()


@pytest.mark.nightly
def test_no_buffer_outlives_its_tensors() -> None:
    left = [_left(run) for run in (_many, _graph, _raising)]
    assert left == [0, 0, 0], left


def test_a_view_alone_keeps_its_buffer() -> None:
    base = torch.full((3,), 2.0, device="jax") * 3
    held = weakref.ref(storage_of(base).array)
    part = base[1:]
    del base
    gc.collect()
    assert held() is not None
    assert part.tolist() == [6, 6]
    del part
    gc.collect()
    assert held() is None


def test_the_count_sees_a_leak() -> None:
    kept = []
    assert _left(lambda: kept.append(torch.ones(3, device="jax") + 1)) == 1


def _trained(seed: int) -> list[float]:
    torch_seeded = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 4, generator=torch_seeded).to("jax").requires_grad_()
    data = torch.randn(8, 4, generator=torch_seeded).to("jax")
    losses = []
    for _ in range(10):
        loss = (data @ weight).tanh().pow(2).mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
        losses.append(loss.item())
    return losses


def test_two_threads_train_as_one_after_the_other() -> None:
    alone = [_trained(0), _trained(1)]
    found: dict[int, list[float]] = {}
    threads = [threading.Thread(target=lambda s=s: found.update({s: _trained(s)})) for s in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == alone


def test_loader_workers_while_the_device_is_in_use() -> None:
    x = torch.ones(3, device="jax") + 1
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    with warnings.catch_warnings():
        # JAX warns of os.fork() in a process with threads; the workers touch nothing of the device.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        batches = [b[0].to("jax") for b in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)]
    assert torch.cat(batches).tolist() == list(range(8))
    assert x.tolist() == [2, 2, 2]
