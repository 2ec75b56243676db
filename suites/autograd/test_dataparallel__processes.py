"""Rule dataparallel, replicas in processes: `ampcheck.spec.rules` says what it promises.

The group has one process, so that what is reduced is known: the gradient of the one replica.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ampcheck.runner.suite import Amp, scenario

T = TypeVar("T")
TYPES = ("cpu", "cuda")
"""The device types whose tensors PyTorch's gloo backend takes."""

pytestmark = [
    pytest.mark.rule("dataparallel"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:torch.distributed"),
]


def _in_a_group(amp: Amp, run: Callable[[], T]) -> T:
    """What a call gives in a group of this process alone.

    A reducer that outlives its group ends it while it holds the interpreter's lock, for which the group's threads wait.
    So nothing that the call has made may be left when the group ends, nor what a failure has on its frames.
    """
    if not dist.is_available():
        amp.unsupported("this PyTorch was built without torch.distributed")
    store: Any = dist.HashStore()  # type: ignore[attr-defined]  # documented, and not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        return run()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()
        dist.destroy_process_group()


def _net(amp: Amp) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers).to(amp.type)


def _step(amp: Amp, net: torch.nn.Module, x: torch.Tensor, decay: float = 0.0) -> torch.dtype:
    """A forward in a region and a backward. `decay` gives gradients digits that no lower precision holds."""
    with amp.region():
        out: torch.Tensor = net(x)
    loss = out.float().square().sum()
    if decay:
        loss = loss + torch.stack([(decay * parameter).square().sum() for parameter in net.parameters()]).sum()
    loss.backward()
    return out.dtype


def _gradients(net: torch.nn.Module) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in net.parameters()]
    return [gradient for gradient in found if gradient is not None]


def _bits(amp: Amp, gradients: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, object]]:
    return [(gradient.dtype, amp.values(gradient)) for gradient in gradients]


@pytest.mark.parametrize("option", ["plain", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"])
@scenario(types=TYPES, values=True)
def test_reduced(amp: Amp, option: str) -> None:
    """Reduced gradients are float32, with the bits of the model's own, step after step (DistributedDataParallel)."""
    plain, x = _net(amp), amp.rand(3, 4)

    def run() -> None:
        options: dict[str, Any] = {} if option == "plain" else {option: True}
        net = DistributedDataParallel(_net(amp), **options)
        for turn in range(2):
            dtype = _step(amp, net, x)
            amp.expect(f"dtype of the result in turn {turn}", dtype, _step(amp, plain, x))
            amp.expect(f"gradients after turn {turn}", _bits(amp, _gradients(net)), _bits(amp, _gradients(plain)))
        amp.expect("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))

    _in_a_group(amp, run)
    amp.expect("dtypes of gradients", {gradient.dtype for gradient in _gradients(plain)}, {torch.float32})


@pytest.mark.parametrize("place", ["decorated", "within"])
@scenario(types=TYPES, values=True)
def test_region_in_the_forward(amp: Amp, place: str) -> None:
    """A forward with its own region is one under DistributedDataParallel too (amp_examples.html)."""
    inner, x = _net(amp), amp.rand(3, 4)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if place == "decorated":
                decorated: torch.Tensor = amp.region()(self.inner)(x)
                return decorated
            with amp.region():
                within: torch.Tensor = self.inner(x)
                return within

    def run() -> list[tuple[torch.dtype, object]]:
        out = DistributedDataParallel(Net())(x)
        amp.expect("dtype of the result", out.dtype, amp.dtype)
        out.float().square().sum().backward()
        return _bits(amp, _gradients(inner))

    gradients = _in_a_group(amp, run)
    plain = _net(amp)
    _step(amp, plain, x)
    amp.expect("gradients", gradients, _bits(amp, _gradients(plain)))


HOOKS: dict[str, Callable[..., object]] = {
    "low": default_hooks.bf16_compress_hook,
    "half": default_hooks.fp16_compress_hook,
}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "after"])
@pytest.mark.parametrize("hook", HOOKS)
@scenario(types=TYPES, values=True)
def test_compressed(amp: Amp, hook: str, inside: bool) -> None:
    """A compressing hook sends gradients in its dtype and gives float32 back, rounded once (default_hooks)."""
    if hook == "low":
        amp.unsupported("PyTorch takes its hook for bfloat16 with NCCL or XCCL alone")
    plain, x = _net(amp), amp.rand(3, 4)
    dtype = torch.bfloat16 if hook == "low" else torch.float16
    _step(amp, plain, x, 1 / 3)

    def run() -> list[tuple[torch.dtype, object]]:
        net = DistributedDataParallel(_net(amp))
        net.register_comm_hook(None, HOOKS[hook])
        if inside:
            with amp.region():
                _step(amp, net, x, 1 / 3)
            with amp.region():
                plain.zero_grad()
                _step(amp, plain, x, 1 / 3)
        else:
            _step(amp, net, x, 1 / 3)
        return _bits(amp, _gradients(net))

    got = _in_a_group(amp, run)
    amp.expect("gradients", got, _bits(amp, [gradient.to(dtype).float() for gradient in _gradients(plain)]))


@scenario(types=TYPES, values=True)
def test_gathered_in_turns(amp: Amp) -> None:
    """Gradients of steps without a reduction add up, in float32, to those of the model (no_sync)."""
    plain = _net(amp)
    xs = [amp.rand(3, 4) for _ in range(3)]

    def run() -> list[tuple[torch.dtype, object]]:
        net = DistributedDataParallel(_net(amp))
        with net.no_sync():
            for x in xs[:2]:
                _step(amp, net, x)
        _step(amp, net, xs[2])
        return _bits(amp, _gradients(net))

    got = _in_a_group(amp, run)
    for x in xs:
        _step(amp, plain, x)
    amp.expect("gradients", got, _bits(amp, _gradients(plain)))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved"])
@scenario(types=TYPES, values=True)
def test_computed_again(amp: Amp, reentrant: bool) -> None:
    """A part that is computed again in the backward pass has its gradients reduced all the same (torch.utils)."""
    plain, x = _net(amp), amp.rand(3, 4, requires_grad=True)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _net(amp)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=reentrant)
            return out

    def run() -> tuple[torch.dtype, list[tuple[torch.dtype, object]]]:
        net = DistributedDataParallel(Net(), static_graph=reentrant)
        return _step(amp, net, x), _bits(amp, _gradients(net))

    dtype, got = _in_a_group(amp, run)
    amp.expect("dtype of the result", dtype, _step(amp, plain, x))
    amp.expect("gradients", got, _bits(amp, _gradients(plain)))


@pytest.mark.parametrize("around", ["none", "same", "other", "off"])
@scenario(types=TYPES, values=True)
def test_sharded(amp: Amp, around: str) -> None:
    """A shard's mixed precision runs in its param_dtype, a region around decides for its ops (fully_shard)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    regions = {
        "none": lambda: amp.region(enabled=False),
        "same": lambda: amp.region(),
        "other": lambda: amp.region(amp.other),
        "off": lambda: amp.region(enabled=False),
    }
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    x = amp.rand(3, 4)

    def run() -> tuple[set[torch.dtype], set[torch.dtype]]:
        net = _net(amp)
        net[0].register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
        policy = MixedPrecisionPolicy(param_dtype=amp.dtype, reduce_dtype=torch.float32)
        fully_shard(net, mesh=init_device_mesh(amp.type, (1,)), mp_policy=policy)
        with regions[around]():
            out = net(x)
        out.float().square().sum().backward()
        return {parameter.dtype for parameter in net.parameters()}, {gradient.dtype for gradient in _gradients(net)}

    dtypes, gradients = _in_a_group(amp, run)
    product = amp.other if around == "other" else amp.dtype
    amp.expect("dtypes of a layer's weight and result", seen, [(amp.dtype, product)])
    amp.expect("dtypes of parameters and gradients afterwards", (dtypes, gradients), ({torch.float32}, {torch.float32}))
