"""Rule dataparallel, replicas in threads: `ampcheck.spec.rules` says what it promises.

DataParallel runs one replica a thread; PyTorch 2.13 has its threads on accelerators alone (torch/nn/parallel).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch.nn.parallel import parallel_apply, replicate

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("dataparallel")

Seen = list[tuple[tuple[bool, torch.dtype, bool], torch.dtype]]


class _Net(torch.nn.Module):
    """A layer that notes the state it runs in."""

    def __init__(self, amp: Amp, seen: Seen) -> None:
        super().__init__()
        self.amp = amp
        self.seen = seen
        self.weight = torch.nn.Parameter(amp.rand(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, self.weight)
        self.seen.append((self.amp.state(), out.dtype))
        return out


class _Decorated(_Net):
    """The same with a region of its own, as a decorator makes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decorated: Callable[[torch.Tensor], torch.Tensor] = self.amp.region(cache_enabled=False)(super().forward)
        return decorated(x)


class _Within(_Net):
    """The same with a region of its own, as a with statement makes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.amp.region(cache_enabled=False):
            return super().forward(x)


def _applied(amp: Amp, nets: list[_Net], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What parallel_apply gives. Raise Unsupported where PyTorch has none for the device."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != amp.type:
        amp.unsupported(f"parallel_apply runs on PyTorch's accelerator alone, which {amp.device.name} is not")
    found: list[torch.Tensor] = parallel_apply(nets, inputs, devices=[0] * len(nets))
    return found


@pytest.mark.parametrize("count", [1, 2], ids=["one", "two"])
@pytest.mark.parametrize("around", ["none", "off", "default", "given", "dropped"])
@scenario(values=True)
def test_applied(amp: Amp, around: str, count: int) -> None:
    """Each replica runs in the region of the caller (amp_examples.html: the state is propagated in each thread)."""
    seen: Seen = []
    regions: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "none": nullcontext,
        "off": lambda: amp.region(enabled=False),
        "default": lambda: amp.device.autocast(),
        "given": amp.region,
        "dropped": lambda: amp.region(cache_enabled=False),
    }
    nets = [_Net(amp, seen) for _ in range(count)]
    inputs = [amp.rand(2, 3) for _ in nets]
    with regions[around]():
        expected = amp.state()
        outs = _applied(amp, nets, inputs)
        amp.expect("state of the caller afterwards", amp.state(), expected)
    dtype = expected[1] if expected[0] else torch.float32
    amp.expect("how many replicas ran", len(seen), count)
    amp.expect("whether autocast is on in the replicas", {state[0] for state, _ in seen}, {expected[0]})
    amp.expect("dtypes of their products", {out.dtype for out in outs}, {dtype})
    if expected[0]:
        amp.expect("whether casts are kept in them", {state[2] for state, _ in seen}, {expected[2]})
    amp.expect("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))


@pytest.mark.parametrize("kind", [_Decorated, _Within], ids=["decorated", "within"])
@pytest.mark.parametrize("around", [True, False], ids=["in_other", "in_none"])
@scenario(values=True)
def test_applied_with_their_own(amp: Amp, kind: type[_Net], around: bool) -> None:
    """A forward with a region of its own runs in it, whatever the caller's is (amp_examples.html, autocast forward)."""
    seen: Seen = []
    nets = [kind(amp, seen) for _ in range(2)]
    inputs = [amp.rand(2, 3) for _ in nets]
    with amp.region(amp.other, enabled=around):
        outs = _applied(amp, nets, inputs)
        amp.expect("state of the caller afterwards", amp.state(), (around, amp.other, True))
    amp.expect("what the replicas saw", set(seen), {((True, amp.dtype, False), amp.dtype)})
    torch.stack([out.float().sum() for out in outs]).sum().backward()
    for place, net in enumerate(nets):
        amp.expect(f"dtype of gradient {place}", getattr(net.weight.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_what_a_replica_raises(amp: Amp) -> None:
    """What one replica raises in its thread is raised in the caller's, whose state is as it was (parallel_apply)."""
    seen: Seen = []

    class Failing(_Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.amp.region(self.amp.other):
                raise ValueError("on purpose")

    with amp.region():
        before = amp.state(), amp.depth()
        nets = [_Net(amp, seen), Failing(amp, seen)]
        inputs = [amp.rand(2, 3) for _ in nets]
        _applied(amp, nets[:1], inputs[:1])  # unsupported where there is no such thing
        amp.raises("a replica that fails", ValueError, "on purpose", lambda: _applied(amp, nets, inputs))
        amp.expect("state and depth of the caller", (amp.state(), amp.depth()), before)


@scenario(types=("cuda",), values=True)
def test_replicated(amp: Amp) -> None:
    """Copies of a module carry gradients to it, in float32, from whatever precision they ran in (replicate)."""
    seen: Seen = []
    net = _Net(amp, seen)
    x = amp.rand(2, 3)
    copies = replicate(net, [0, 0]) if torch.cuda.device_count() < 2 else replicate(net, [0, 1])
    with amp.region():
        outs = parallel_apply(copies, [x, x.to(f"cuda:{torch.cuda.device_count() - 1}")])
    amp.expect("dtypes", [out.dtype for out in outs], [amp.dtype] * 2)
    torch.stack([out.float().sum().to("cuda:0") for out in outs]).sum().backward()
    amp.expect("dtype of the gradient", getattr(net.weight.grad, "dtype", None), torch.float32)


@pytest.mark.parametrize("kind", [_Decorated, _Within], ids=["decorated", "within"])
@scenario(values=True)
def test_one_thread_each(amp: Amp, kind: type[_Net]) -> None:
    """Replicas that enter their region themselves run in it in threads of their own, in turns (amp_examples.html)."""
    seen: Seen = []
    net = kind(amp, seen)
    nets = [net, copy.deepcopy(net)]
    x = amp.rand(2, 3)
    outs: list[torch.Tensor] = []
    states: list[object] = []

    def worker(place: int) -> Callable[[], Iterator[None]]:
        def steps() -> Iterator[None]:
            states.append(amp.state())
            yield
            outs.append(nets[place](x))
            yield
            states.append(amp.state())

        return steps

    with amp.region(amp.other):
        amp.interleave(worker(0), worker(1))
    amp.expect("states of the threads around", set(states), {(False, amp.default, True)})
    amp.expect("dtypes", [out.dtype for out in outs], [amp.dtype] * 2)
    amp.expect("whether both gave the same", amp.values(outs[0]), amp.values(outs[1]))


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@scenario(values=True)
def test_shared_weights(amp: Amp, kept: bool) -> None:
    """Replicas that share their weights add up one gradient, float32, as if they had run in turn (DataParallel)."""
    seen: Seen = []
    net = _Net(amp, seen)
    xs = [amp.rand(2, 3) for _ in range(3)]
    outs: list[torch.Tensor] = []

    def worker(x: torch.Tensor) -> Callable[[], Iterator[None]]:
        def steps() -> Iterator[None]:
            with amp.region(cache_enabled=kept):
                yield
                outs.append(net(x))
                yield

        return steps

    amp.interleave(*(worker(x) for x in xs))
    torch.stack([out.float().sum() for out in outs]).sum().backward()
    grad = net.weight.grad
    amp.expect("dtypes", ([out.dtype for out in outs], getattr(grad, "dtype", None)), ([amp.dtype] * 3, torch.float32))
    want = sum(torch.mm(x.to(amp.dtype).t(), torch.ones_like(out)).float() for x, out in zip(xs, outs, strict=True))
    if grad is not None and isinstance(want, torch.Tensor):
        amp.close("gradient", grad, amp.device.host(want), 4 * torch.finfo(amp.dtype).eps)
