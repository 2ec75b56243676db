"""Rule dataparallel: replicas run their forward in the region of their caller, and gradients keep their dtype.

Gradients are reduced in the dtype of their parameters unless a hook or a policy says otherwise. Source:
https://docs.pytorch.org/docs/2.13/notes/amp_examples.html#dataparallel-in-a-single-process.

DataParallel runs one replica a thread; PyTorch 2.13 starts threads on accelerators alone (torch/nn/parallel).
DistributedDataParallel and FSDP run here in a group of one process, so that the reduced gradient is known: that of the
only replica.
"""

import copy
import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel, parallel_apply, replicate

from ampcheck.checks.training import one_process
from ampcheck.runner.suite import Amp, named, scenario

pytestmark = [pytest.mark.rule("dataparallel"), pytest.mark.filterwarnings("ignore:.*:UserWarning:torch.distributed")]

Seen = list[tuple[tuple[bool, torch.dtype, bool], torch.dtype]]


class _Net(torch.nn.Module):
    """A layer that notes the state it runs in."""

    def __init__(self, amp: Amp, seen: Seen) -> None:
        super().__init__()
        self.amp, self.seen = amp, seen
        self.weight = torch.nn.Parameter(amp.rand(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, self.weight)
        self.seen.append((self.amp.state(), out.dtype))
        return out


class _Decorated(_Net):
    """Such a layer with its own region, by a decorator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.amp.region(cache_enabled=False)(super().forward)(x)


class _Within(_Net):
    """Such a layer with its own region, by a with statement."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.amp.region(cache_enabled=False):
            return super().forward(x)


def _parallel_outputs(amp: Amp, nets: list[_Net], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what parallel_apply gives. Raise Unsupported where PyTorch has none for the device."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != amp.type:
        amp.unsupported(f"parallel_apply runs on PyTorch's accelerator alone, which {amp.name} is not")
    return parallel_apply(nets, inputs, devices=[0] * len(nets))


REGIONS: dict[str, Callable[[Amp], AbstractContextManager[object]]] = {
    "none": lambda amp: nullcontext(),
    "off": lambda amp: amp.region(enabled=False),
    "default": lambda amp: amp.autocast(),
    "given": lambda amp: amp.region(),
    "same": lambda amp: amp.region(),
    "other": lambda amp: amp.region(amp.other),
    "dropped": lambda amp: amp.region(cache_enabled=False),
}


@scenario(around=["none", "off", "default", "given", "dropped"], count=named(one=1, two=2), values=True)
def test_applied(amp: Amp, around: str, count: int) -> None:
    """Each replica runs in the region of the caller (amp_examples.html: the state is propagated in each thread)."""
    seen: Seen = []
    nets = [_Net(amp, seen) for _ in range(count)]
    inputs = [amp.rand(2, 3) for _ in nets]
    with REGIONS[around](amp):
        expected = amp.state()
        outs = _parallel_outputs(amp, nets, inputs)
        amp.assert_equal("state of the caller afterwards", amp.state(), expected)
    dtype = expected[1] if expected[0] else torch.float32
    amp.assert_equal("how many replicas ran", len(seen), count)
    amp.assert_equal("whether autocast is on in the replicas", {state[0] for state, _ in seen}, {expected[0]})
    amp.assert_equal("dtypes of their products", {out.dtype for out in outs}, {dtype})
    if expected[0]:
        amp.assert_equal("whether casts are kept in them", {state[2] for state, _ in seen}, {expected[2]})
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))


@scenario(around=named(in_other=True, in_none=False), kind=named(decorated=_Decorated, within=_Within), values=True)
def test_applied_with_their_own(amp: Amp, kind: type[_Net], around: bool) -> None:
    """A forward with its own region runs in it, whatever the caller's is (amp_examples.html, autocast forward)."""
    seen: Seen = []
    nets = [kind(amp, seen) for _ in range(2)]
    inputs = [amp.rand(2, 3) for _ in nets]
    with amp.region(amp.other, enabled=around):
        outs = _parallel_outputs(amp, nets, inputs)
        amp.assert_equal("state of the caller afterwards", amp.state(), (around, amp.other, True))
    amp.assert_equal("what the replicas saw", set(seen), {((True, amp.dtype, False), amp.dtype)})
    torch.stack([out.float().sum() for out in outs]).sum().backward()
    for place, net in enumerate(nets):
        amp.assert_equal(f"dtype of gradient {place}", getattr(net.weight.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_what_a_replica_raises(amp: Amp) -> None:
    """An exception of a replica's thread is raised in the caller's, whose state is unchanged (parallel_apply)."""

    class Failing(_Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.amp.region(self.amp.other):
                raise ValueError("on purpose")

    with amp.region():
        before = amp.state(), amp.depth()
        nets = [_Net(amp, []), Failing(amp, [])]
        inputs = [amp.rand(2, 3) for _ in nets]
        _parallel_outputs(amp, nets[:1], inputs[:1])  # unsupported where there is no such thing
        call = partial(_parallel_outputs, amp, nets, inputs)
        amp.assert_raises("a replica that fails", ValueError, "on purpose", call)
        amp.assert_equal("state and depth of the caller", (amp.state(), amp.depth()), before)


@scenario(types=("cuda",), values=True)
def test_replicated(amp: Amp) -> None:
    """Copies of a module carry gradients to it, in float32, from whatever precision they ran in (replicate)."""
    net = _Net(amp, [])
    x = amp.rand(2, 3)
    copies = replicate(net, [0, 0]) if torch.cuda.device_count() < 2 else replicate(net, [0, 1])
    with amp.region():
        outs = parallel_apply(copies, [x, x.to(f"cuda:{torch.cuda.device_count() - 1}")])
    amp.assert_equal("dtypes", [out.dtype for out in outs], [amp.dtype] * 2)
    torch.stack([out.float().sum().to("cuda:0") for out in outs]).sum().backward()
    amp.assert_equal("dtype of the gradient", getattr(net.weight.grad, "dtype", None), torch.float32)


@scenario(kind=named(decorated=_Decorated, within=_Within), values=True)
def test_one_thread_each(amp: Amp, kind: type[_Net]) -> None:
    """Replicas that enter their region themselves run in it in their threads, in turns (amp_examples.html)."""
    net = kind(amp, [])
    nets = [net, copy.deepcopy(net)]
    x = amp.rand(2, 3)
    outs: list[torch.Tensor] = []
    states: list[object] = []

    def worker(net: _Net) -> Iterator[None]:
        states.append(amp.state())
        yield
        outs.append(net(x))
        yield
        states.append(amp.state())

    with amp.region(amp.other):
        amp.interleave(*(partial(worker, each) for each in nets))
    amp.assert_equal("states of the threads around", set(states), {(False, amp.default, True)})
    amp.assert_equal("dtypes", [out.dtype for out in outs], [amp.dtype] * 2)
    amp.assert_equal("whether both gave the same", amp.values(outs[0]), amp.values(outs[1]))


# ---- replicas in processes
T = TypeVar("T")
TYPES = ("cpu", "cuda")
"""The device types whose tensors PyTorch's gloo backend takes."""


def _in_a_group(amp: Amp, run: Callable[[], T]) -> T:
    """Return what a call gives in a group of this process alone.

    A reducer that outlives its group ends it while it holds the interpreter's lock, for which the group's threads wait.
    So nothing that the call has made may be left when the group ends, nor what a failure has on its frames.
    """
    if not dist.is_available():
        amp.unsupported("this PyTorch was built without torch.distributed")
    with one_process("gloo"):
        try:
            return run()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            gc.collect()


def _network(amp: Amp) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers).to(amp.type)


def _forward_and_backward(amp: Amp, net: torch.nn.Module, x: torch.Tensor) -> torch.dtype:
    with amp.region():
        out = net(x)
    out.float().square().sum().backward()
    return out.dtype


def _gradients(net: torch.nn.Module) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in net.parameters()]
    return [gradient for gradient in found if gradient is not None]


def _dtypes_and_values(amp: Amp, net: torch.nn.Module) -> list[tuple[torch.dtype, object]]:
    return [(gradient.dtype, amp.values(gradient)) for gradient in _gradients(net)]


@scenario(
    option=["plain", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"], types=TYPES, values=True
)
def test_reduced(amp: Amp, option: str) -> None:
    """Reduced gradients are float32, with the bits of the model's own, step after step (DistributedDataParallel)."""
    plain, x = _network(amp), amp.rand(3, 4)

    def run() -> None:
        options: dict[str, Any] = {} if option == "plain" else {option: True}
        net = DistributedDataParallel(_network(amp), **options)
        for turn in range(2):
            dtype = _forward_and_backward(amp, net, x)
            amp.assert_equal(f"dtype of the result in turn {turn}", dtype, _forward_and_backward(amp, plain, x))
            want = _dtypes_and_values(amp, plain)
            amp.assert_equal(f"gradients after turn {turn}", _dtypes_and_values(amp, net), want)
        amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))

    _in_a_group(amp, run)
    amp.assert_equal("dtypes of gradients", {gradient.dtype for gradient in _gradients(plain)}, {torch.float32})


@scenario(place=["decorated", "within"], types=TYPES, values=True)
def test_region_in_the_forward(amp: Amp, place: str) -> None:
    """A forward with its own region is one under DistributedDataParallel too (amp_examples.html)."""
    inner, x = _network(amp), amp.rand(3, 4)

    class Net(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if place == "decorated":
                return amp.region()(super().forward)(x)
            with amp.region():
                return super().forward(x)

    def run() -> list[tuple[torch.dtype, object]]:
        out = DistributedDataParallel(Net(*inner))(x)
        amp.assert_equal("dtype of the result", out.dtype, amp.dtype)
        out.float().square().sum().backward()
        return _dtypes_and_values(amp, inner)

    gradients = _in_a_group(amp, run)
    plain = _network(amp)
    _forward_and_backward(amp, plain, x)
    amp.assert_equal("gradients", gradients, _dtypes_and_values(amp, plain))


@scenario(around=["none", "same", "other", "off"], types=TYPES, values=True)
def test_sharded(amp: Amp, around: str) -> None:
    """A shard's mixed precision runs in its param_dtype, a region around decides for its ops (fully_shard)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    seen: list[tuple[torch.dtype, torch.dtype]] = []
    x = amp.rand(3, 4)

    def run() -> tuple[set[torch.dtype], set[torch.dtype]]:
        net = _network(amp)
        net[0].register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
        policy = MixedPrecisionPolicy(param_dtype=amp.dtype, reduce_dtype=torch.float32)
        fully_shard(net, mesh=init_device_mesh(amp.type, (1,)), mp_policy=policy)
        with REGIONS[around](amp):
            out = net(x)
        out.float().square().sum().backward()
        return {parameter.dtype for parameter in net.parameters()}, {gradient.dtype for gradient in _gradients(net)}

    dtypes, gradients = _in_a_group(amp, run)
    product = amp.other if around == "other" else amp.dtype
    amp.assert_equal("dtypes of a layer's weight and result", seen, [(amp.dtype, product)])
    wide = {torch.float32}
    amp.assert_equal("dtypes of parameters and gradients afterwards", (dtypes, gradients), (wide, wide))
