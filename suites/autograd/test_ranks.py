"""Rule ranks: two ranks train like one process on the joined batch, in the same dtypes.

The promise, its sources, and what is compared: docs/coverage/ranks.md. The ranks are those of a gloo group
(`ampcheck/checks/training.py`).
"""

import itertools
import re
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from ampcheck.checks.training import iterate, on_ranks, step_and_update, trained
from ampcheck.observe.recorder import tensors
from ampcheck.runner.suite import Amp, Product, named, other_than, scenario, where
from ampcheck.samples.surface import evaluate

pytestmark = [pytest.mark.rule("ranks"), pytest.mark.forks]


# ---- training
class _Net(torch.nn.Module):
    """Two layers, the first of which may be computed again in the backward pass, and a factor.

    `product` is the dtype of what the second layer gave. `overflows`: the gradient of the first layer's last column
    is infinite, so that of the last row of its weight is, which one rank holds where the layer is split.
    """

    def __init__(self, recompute: str, region: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.last = torch.nn.Linear(8, 4)
        self.factor = torch.nn.Parameter(torch.tensor([0.7, 1.3, 0.9, 1.1]))
        self.recompute = recompute
        self.region = region
        self.product: torch.dtype | None = None
        self.overflows = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.region():
            if self.recompute == "kept":
                hidden = self.first(x)
            else:
                hidden = checkpoint(self.first, x, use_reentrant=self.recompute == "reentrant")
            if self.overflows:
                hidden.register_hook(_last_infinite)
            out: torch.Tensor = self.last(torch.tanh(hidden))
            self.product = out.dtype
            return out * self.factor


def _last_infinite(gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat([gradient[:, :-1], torch.full_like(gradient[:, -1:], float("inf"))], 1)


Parameters = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Way:
    """A way to train a `_Net` on two ranks: what wraps it, given the net and the lower precision, and what differs."""

    wrap: Callable[[_Net, torch.dtype], Any]
    reduced_in: torch.dtype = torch.float32
    """The dtype in which gradients are added up."""
    module: bool = False
    """Whether the parameters of the whole module are cast, and not those of single ops."""
    joined: bool = False
    """Whether each rank has the whole batch."""
    apart: bool = False
    """Whether each rank steps with its own gradients, and averages parameters afterwards, which comes to the same."""
    error: float = 0.0
    """How far gradients may be from those of the reference, relative to 1 and more."""
    roundings: int = 0
    """How often, beside that, what they are made of is rounded to the lower precision in another place."""
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda net: torch.optim.SGD(net.parameters(), lr=0.5)
    scaler: Callable[[], torch.amp.GradScaler] = lambda: torch.amp.GradScaler("cpu", init_scale=1024.0)
    unreduced: Callable[[Any], AbstractContextManager[object]] = lambda net: net.no_sync()
    """A context in which gradients are added up on each rank alone."""
    gathered: Callable[[Any], AbstractContextManager[object]] = nullcontext
    """A context in which each rank has the whole of a parameter and of its gradient, or a DTensor of them."""


def _with_casts(kind: _Way, held: Parameters, x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Return what `_Net` returns in a region, with explicit casts."""
    cast = {name: tensor.to(low) for name, tensor in held.items()}
    hidden = torch.tanh(functional.linear(x.to(low), cast["first.weight"], cast["first.bias"]))
    out = functional.linear(hidden, cast["last.weight"], cast["last.bias"])
    return out * (cast if kind.module else held)["factor"]


def _grown(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]  # it is one


def _whole(tensor: Any) -> torch.Tensor:
    return _grown(tensor.detach()).clone()


def _replicated(net: Any, hook: Callable[..., Any] | None = None, state: Any = None, **options: Any) -> Any:
    """Return a module in DistributedDataParallel, whose communication hook is given its state."""
    wrapped = torch.nn.parallel.DistributedDataParallel(net, **options)
    if hook is not None:
        wrapped.register_comm_hook(state, hook)
    return wrapped


def _built_in(net: Any) -> Any:
    """Return a module in DistributedDataParallel, whose reducer sends float16 by its own hook."""
    wrapped = _replicated(net)
    wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return wrapped


def _hooks() -> Any:
    return dist.algorithms.ddp_comm_hooks.default_hooks


def _sent_in_bfloat16(group: Any, bucket: Any) -> Any:
    """Average gradients in bfloat16, as `bf16_compress_hook` does, which PyTorch takes with NCCL and XCCL alone."""
    future = dist.all_reduce(bucket.buffer().bfloat16().div_(2), group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def _with_power_sgd(net: Any, start: int = 0, *, keeps: bool = False) -> Any:
    """Have gradients averaged by PowerSGD. `keeps`: what it loses of one is added to the next one."""
    hooks = dist.algorithms.ddp_comm_hooks.powerSGD_hook
    options: dict[str, Any] = {"matrix_approximation_rank": 4, "min_compression_rate": 0.5}
    options |= {"start_powerSGD_iter": start, "use_error_feedback": keeps, "warm_start": keeps}
    return _replicated(net, hooks.powerSGD_hook, hooks.PowerSGDState(None, **options))


def _with_local_sgd(net: Any) -> Any:
    """Have each rank step alone from the first iteration on."""
    hooks = dist.algorithms.ddp_comm_hooks.post_localSGD_hook
    state = hooks.PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=0)
    return _replicated(net, hooks.post_localSGD_hook, state)


def _averaged(net: Any) -> torch.optim.Optimizer:
    """Return SGD after each step of which the ranks average their parameters."""
    averager = dist.algorithms.model_averaging.averagers.PeriodicModelAverager(period=1, warmup_steps=0)
    optimizer: torch.optim.Optimizer = dist.optim.PostLocalSGDOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5), averager
    )
    return optimizer


def _mesh() -> Any:
    return dist.device_mesh.init_device_mesh("cpu", (2,))


def _sharded(net: Any, parts: Iterable[Any] = (), options: Mapping[str, Any] = {}, **policy: Any) -> Any:
    """Shard some parts of a module, and the whole, by fully_shard."""
    mesh, options = _mesh(), {**options, **({"mp_policy": dist.fsdp.MixedPrecisionPolicy(**policy)} if policy else {})}
    for part in (*parts, net):
        dist.fsdp.fully_shard(part, mesh=mesh, **options)
    return net


def _older(net: torch.nn.Module, policy: Any = None, **options: Any) -> Any:
    """Shard a module by FullyShardedDataParallel."""
    options |= {"mixed_precision": policy, "use_orig_params": True, "device_id": torch.device("cpu")}
    return dist.fsdp.FullyShardedDataParallel(net, **options)


@contextmanager
def _unreduced(net: Any) -> Iterator[None]:
    """Turn the reduction of a sharded module off and on."""
    net.set_requires_gradient_sync(False)
    yield
    net.set_requires_gradient_sync(True)


def _parallel(net: _Net, **last: Any) -> Any:
    """Split a layer by columns, and one by rows."""
    parallel = dist.tensor.parallel
    plan = {"first": parallel.ColwiseParallel(), "last": parallel.RowwiseParallel(**last)}
    return parallel.parallelize_module(net, _mesh(), plan)


def _parallel_whole(net: _Net) -> Any:
    """Split the layers, and make the factor a DTensor, too."""
    factor = dist.tensor.distribute_tensor(net.factor.detach(), _mesh(), [dist.tensor.Replicate()])
    net.factor = torch.nn.Parameter(factor)
    whole = _parallel(net, use_local_output=False)
    whole.register_forward_hook(lambda module, given, out: out.to_local())  # a plain tensor
    return whole


WRAPPERS: dict[str, _Way] = {
    "ddp": _Way(lambda net, low: _replicated(net)),
    "allreduce": _Way(lambda net, low: _replicated(net, _hooks().allreduce_hook)),
    "half": _Way(lambda net, low: _replicated(net, _hooks().fp16_compress_hook), reduced_in=torch.float16),
    "half_wrapper": _Way(
        lambda net, low: _replicated(net, _hooks().fp16_compress_wrapper(_hooks().allreduce_hook)),
        reduced_in=torch.float16,
    ),
    # A hook of the user, without the annotations that PyTorch checks.
    "own": _Way(
        lambda net, low: _replicated(net, lambda group, bucket: _sent_in_bfloat16(group, bucket)),
        reduced_in=torch.bfloat16,
    ),
    "powersgd": _Way(lambda net, low: _with_power_sgd(net), error=1e-5),  # the full rank of each gradient keeps all
    "local": _Way(lambda net, low: _with_local_sgd(net), apart=True, error=1e-6, optimizer=_averaged),
    "static": _Way(lambda net, low: _replicated(net, static_graph=True, gradient_as_bucket_view=True)),
    "zero": _Way(
        lambda net, low: _replicated(net),
        optimizer=lambda net: dist.optim.ZeroRedundancyOptimizer(
            net.parameters(), optimizer_class=torch.optim.SGD, lr=0.5
        ),
    ),
    "fsdp": _Way(lambda net, low: _sharded(net), error=1e-6, unreduced=_unreduced),
    "fsdp_low": _Way(
        lambda net, low: _sharded(net, param_dtype=low, reduce_dtype=torch.float32),
        module=True,
        error=1e-6,
        unreduced=_unreduced,
    ),
    "fsdp_layers": _Way(lambda net, low: _sharded(net, (net.first, net.last)), error=1e-6, unreduced=_unreduced),
    "fsdp1": _Way(
        lambda net, low: _older(net),
        error=1e-6,
        scaler=lambda: dist.fsdp.sharded_grad_scaler.ShardedGradScaler("cpu", init_scale=1024.0),
        gathered=lambda net: net.summon_full_params(net, with_grads=True),
    ),
    # Nothing is reduced but what the layers compute.
    "parallel": _Way(lambda net, low: _parallel(net), joined=True, roundings=4, unreduced=nullcontext),
    "parallel_whole": _Way(lambda net, low: _parallel_whole(net), joined=True, roundings=4, unreduced=nullcontext),
}

TRAINED = Product(
    {
        "wrapper": tuple(WRAPPERS),
        "place": ("around", "inside"),
        "recompute": ("kept", "reentrant", "saved"),
        "accumulate": ("once", "twice"),
        "scaler": ("without", "scaled", "overflow"),
    },
    {
        "a scaler takes no list of plain gradients and DTensors, which no op does": where(
            wrapper="parallel", scaler=other_than("without")
        ),
        "a rank that skips a step alone leaves the other one waiting (finding local-sgd-after-a-skipped-step)": where(
            wrapper="local", scaler="overflow"
        ),
    },
)

_FSDP, _FSDP1 = (partial(replace, WRAPPERS[name]) for name in ("fsdp", "fsdp1"))
OPTIONS: dict[str, _Way] = {
    "ddp_unused": _Way(lambda net, low: _replicated(net, find_unused_parameters=True)),
    "ddp_buckets": _Way(lambda net, low: _replicated(net, bucket_cap_mb=1e-4)),
    "ddp_built_in": _Way(lambda net, low: _built_in(net), reduced_in=torch.float16),
    "ddp_views": _Way(lambda net, low: _replicated(net, gradient_as_bucket_view=True, broadcast_buffers=False)),
    "fsdp_kept": _FSDP(wrap=lambda net, low: _sharded(net, options={"reshard_after_forward": False})),
    "fsdp_parts": _FSDP(wrap=lambda net, low: _sharded(net, (net.first,), options={"reshard_after_forward": 1})),
    "fsdp_offloaded": _FSDP(
        wrap=lambda net, low: _sharded(net, options={"offload_policy": dist.fsdp.CPUOffloadPolicy(pin_memory=False)})
    ),
    "fsdp1_whole": _FSDP1(wrap=lambda net, low: _older(net, sharding_strategy=dist.fsdp.ShardingStrategy.NO_SHARD)),
    "fsdp1_gradients": _FSDP1(
        wrap=lambda net, low: _older(net, sharding_strategy=dist.fsdp.ShardingStrategy.SHARD_GRAD_OP)
    ),
    "fsdp1_early": _FSDP1(wrap=lambda net, low: _older(net, forward_prefetch=True, limit_all_gathers=False)),
}
SET = Product(
    {
        "option": tuple(OPTIONS),
        "place": ("around", "inside"),
        "accumulate": ("once", "twice"),
        "scaler": ("without", "scaled", "overflow"),
    },
    nightly=True,
)

Batch = list[list[tuple[torch.Tensor, torch.Tensor]]]
"""For each step, and each part of a batch that is accumulated, what goes in and what should come out."""


@scenario(TRAINED, types=("cpu",), values=True)
def test_trained(amp: Amp, wrapper: str, place: str, recompute: str, accumulate: str, scaler: str) -> None:
    """Dtypes, losses, gradients and parameters are those of one process (ddp_comm_hooks; fully_shard; amp.html)."""
    _compare_training(amp, WRAPPERS[wrapper], place, recompute, accumulate, scaler)


@scenario(SET, types=("cpu",), values=True)
def test_trained_with_options(amp: Amp, option: str, place: str, accumulate: str, scaler: str) -> None:
    """So they are with an option of what wraps the module (DistributedDataParallel; fully_shard; fsdp.html)."""
    _compare_training(amp, OPTIONS[option], place, "kept", accumulate, scaler)


def _compare_training(amp: Amp, kind: _Way, place: str, recompute: str, accumulate: str, scaler: str) -> None:
    parts = 2 if accumulate == "twice" else 1
    batch: Batch = [[(amp.rand(6, 4), amp.rand(6, 4)) for _ in range(parts)] for _ in range(2)]
    torch.manual_seed(0)
    net = _Net(recompute, amp.region if place == "inside" else nullcontext)
    start = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    found = on_ranks(amp, lambda: _trained(amp, kind, net, place, batch, scaler))
    if not found:
        return
    wanted = _reference(amp, kind, start, batch, scaler)
    far = kind.error + kind.roundings * torch.finfo(amp.dtype).eps
    for rank, got in enumerate(found):
        amp.assert_equal(f"scaler on rank {rank}", got["scaler"], wanted["scaler"])
    if any(got["scaler"] != wanted["scaler"] for got in found):
        return  # a rank made a step that another one skipped
    for rank, got in enumerate(found):
        for what in sorted(wanted.keys() - {"losses", "gradients", "each", "scaler", "parameters"}):
            amp.assert_equal(f"{what} on rank {rank}", got[what], wanted[what])
        for step, gradients in enumerate(got["gradients"]):
            if scaler == "overflow" and step == 0:
                continue
            for name, gradient in gradients.items():
                what = f"gradient of {name} in step {step} on rank {rank}"
                expected = wanted["each"][step][rank] if kind.apart else wanted["gradients"][step]
                amp.assert_close(what, gradient, expected[name], far)
        for name, parameter in got["parameters"].items():
            what = f"{name} after training on rank {rank}"
            amp.assert_close(what, parameter, wanted["parameters"][name], 1e-6 + 2 * far)
    same = all(torch.equal(one, found[1]["parameters"][name]) for name, one in found[0]["parameters"].items())
    amp.assert_equal("whether all parameters are the same on both ranks", same, True)
    losses = torch.tensor([got["losses"] for got in found]).mean(0)
    amp.assert_close("losses", losses, torch.tensor(wanted["losses"]), 16 * torch.finfo(amp.dtype).eps)


def _scaler_state(scale: float, interval: int, tracker: int) -> dict[str, Any]:
    factors = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": interval}
    return {"scale": scale, **factors, "_growth_tracker": tracker}


def _own(rank: int, kind: _Way, tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's part of a batch."""
    return tensor if kind.joined else tensor.chunk(2)[rank]


def _trained(amp: Amp, kind: _Way, inner: _Net, place: str, batch: Batch, scaler: str) -> dict[str, Any]:
    """Train two steps on a rank. Return what is to be compared."""
    rank = dist.get_rank()
    net = kind.wrap(inner, amp.dtype)
    optimizer = kind.optimizer(net)
    scaling = kind.scaler() if scaler != "without" else None
    found: dict[str, Any] = {"losses": [], "gradients": []}
    for step, parts in enumerate(batch):
        optimizer.zero_grad()
        inner.overflows = scaler == "overflow" and step == 0 and rank == 1
        total = 0.0
        for place_of, (given, target) in enumerate(parts):
            x = _own(rank, kind, given).clone().requires_grad_()
            last = place_of == len(parts) - 1
            with nullcontext() if last else kind.unreduced(net):
                with amp.region() if place == "around" else nullcontext():
                    out = net(x)
                loss = functional.mse_loss(out.float(), _own(rank, kind, target))
                total += loss.item()
                (scaling.scale(loss) if scaling else loss).backward()
        if scaling:
            step_and_update(scaling, optimizer)
        else:
            optimizer.step()
        found["losses"].append(total)
        with kind.gathered(net):
            found["gradients"].append({name: _whole(held.grad) for name, held in inner.named_parameters()})
            found["parameters"] = {name: _whole(held) for name, held in inner.named_parameters()}
        found["dtype of a product"] = inner.product
        found["dtype of the output"] = out.dtype
        found["dtype of the input's gradient"] = x.grad.dtype if x.grad is not None else None
    trained = (*found["gradients"][-1].values(), *found["parameters"].values())
    found["dtypes of gradients and parameters"] = {tensor.dtype for tensor in trained}
    found["scaler"] = scaling.state_dict() if scaling else None
    found["state"] = amp.state(), amp.depth()
    return found


def _reference(amp: Amp, kind: _Way, start: Parameters, batch: Batch, scaler: str) -> dict[str, Any]:
    """Train in one process, without a region: the gradients of each rank's part, and how they are put together."""
    held = {name: tensor.clone() for name, tensor in start.items()}
    scale = 1.0 if scaler == "without" else 1024.0
    found: dict[str, Any] = {"losses": [], "gradients": [], "each": []}
    for step, parts in enumerate(batch):
        total = 0.0
        for given, target in parts:
            total += functional.mse_loss(_with_casts(kind, held, given, amp.dtype).float(), target).item()
        found["losses"].append(total)
        if scaler == "overflow" and step == 0:
            scale /= 2
            found["gradients"].append({})
            found["each"].append([{}, {}])
            continue
        each = [_of_a_rank(amp, kind, rank, held, parts, scale) for rank in range(2)]
        reduced = {name: _reduced(kind, [gradients[name] for gradients in each]) / scale for name in held}
        found["gradients"].append(reduced)
        found["each"].append([{name: one / scale for name, one in gradients.items()} for gradients in each])
        held = {name: tensor - 0.5 * reduced[name] for name, tensor in held.items()}
    found["parameters"] = held
    found["dtype of the output"] = _with_casts(kind, held, batch[0][0][0], amp.dtype).dtype
    found["dtype of a product"], found["dtype of the input's gradient"] = amp.dtype, torch.float32
    found["dtypes of gradients and parameters"] = {torch.float32}
    steps = {"without": 0, "scaled": 2, "overflow": 1}[scaler]
    found["scaler"] = None if scaler == "without" else _scaler_state(scale, 2000, steps)
    found["state"] = (False, amp.default, True), 0
    return found


def _of_a_rank(amp: Amp, kind: _Way, rank: int, held: Parameters, parts: Any, scale: float) -> Parameters:
    """Return the gradients that a rank has before they are reduced."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in held.items()}
    for given, target in parts:
        out = _with_casts(kind, leaves, _own(rank, kind, given), amp.dtype)
        (functional.mse_loss(out.float(), _own(rank, kind, target)) * scale).backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _reduced(kind: _Way, gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of two gradients, added up in the dtype of the reduction."""
    one, other = (gradient.to(kind.reduced_in).div(2) for gradient in gradients)
    return (one + other).float()


# ---- what a policy of fully_shard promises
POLICIES = Product(
    {
        "param": ("kept", "low", "other"),
        "reduce": ("unsaid", "float32", "low"),
        "output": ("unsaid", "float32", "low"),
        "inputs": ("cast", "given"),
        "around": ("none", "same", "other", "off"),
        "accumulate": ("once", "twice", "thawed", "late"),
    },
    {
        "a layer outside of a region refuses inputs of another dtype": where(
            inputs="given", param=other_than("kept"), around=("none", "off")
        ),
        "a late gradient has the dtype in which others were added up": lambda cell: (
            cell["accumulate"] == "late"
            and cell["reduce"] in ("unsaid", {"kept": "float32"}.get(cell["param"], cell["param"]))
        ),
    },
)


def _dtype(amp: Amp, name: str) -> torch.dtype | None:
    """Return the dtype that a value of a dimension of `POLICIES` names; None where it names none."""
    return {"low": amp.dtype, "other": amp.other, "float32": torch.float32, "same": amp.dtype}.get(name)


class _Layer(torch.nn.Module):
    """A layer that notes the dtypes of its input, its parameters and what its product gives, in a container or not."""

    scaled = True
    """Whether its second parameter is used."""

    def __init__(self, make: Callable[..., Any] = lambda x: x, take: Callable[..., torch.Tensor] = lambda x: x) -> None:
        super().__init__()
        self.make, self.take = make, take
        self.weight = torch.nn.Parameter(torch.linspace(-0.9, 1.1, 16).view(4, 4))
        self.factor = torch.nn.Parameter(torch.tensor([0.7, 1.3, 0.9, 1.1]))
        self.seen: list[torch.dtype] = []

    def forward(self, x: Any) -> Any:
        out = functional.linear(self.take(x), self.weight)
        self.seen = [self.take(x).dtype, self.weight.dtype, self.factor.dtype, out.dtype]
        return self.make(out * self.factor if self.scaled else out)


@scenario(POLICIES, types=("cpu",), values=True)
def test_by_policy(amp: Amp, param: str, reduce: str, output: str, inputs: str, around: str, accumulate: str) -> None:
    """Parameters, inputs, outputs and the reduction have the dtypes that the policy says (MixedPrecisionPolicy)."""
    policy = {
        "param_dtype": _dtype(amp, param),
        "reduce_dtype": _dtype(amp, reduce),
        "output_dtype": _dtype(amp, output),
        "cast_forward_inputs": inputs == "cast",
    }
    batches = [amp.rand(6, 4) for _ in range(2 if accumulate in ("twice", "late") else 1)]
    found = on_ranks(amp, lambda: _by_policy(amp, policy, around, accumulate, batches))
    computed = policy["param_dtype"] or torch.float32
    newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
    reduced = policy["reduce_dtype"] or (torch.float32 if newer else computed)  # the docstring changed with torch 2.15
    given = computed if inputs == "cast" else torch.float32
    product = _dtype(amp, around) or computed
    dtypes = (given, computed, product, policy["output_dtype"], reduced)
    parts = [[batch.chunk(2)[rank] for batch in batches] for rank in range(2)]
    each = [_by_casts(part, *dtypes, late=accumulate == "late") for part in parts]
    for rank, got in enumerate(found):
        seen = [given, computed, computed, product]
        amp.assert_equal(f"dtypes of input, parameters and product on rank {rank}", got["seen"], seen)
        amp.assert_equal(f"dtype of the output on rank {rank}", got["output"], each[rank]["output"])
        amp.assert_equal(f"dtypes of parameters and gradients on rank {rank}", got["dtypes"], {torch.float32})
        amp.assert_equal(f"state and depth on rank {rank}", got["state"], ((False, amp.default, True), 0))
        for name, gradient in got["gradients"].items():
            mean = (each[0][name].to(reduced) / 2 + each[1][name].to(reduced) / 2).float()
            what = f"gradient of {name} on rank {rank}"
            amp.assert_close(what, gradient, mean, max(1e-6, 2 * torch.finfo(reduced).eps))
            amp.assert_identical(f"{what} in the dtype of the reduction", gradient.to(reduced).float(), gradient)


def _by_policy(
    amp: Amp, policy: dict[str, Any], around: str, accumulate: str, batches: list[torch.Tensor]
) -> dict[str, Any]:
    """Run a sharded layer forward and backward on a rank.

    `thawed`: once without gradients before. `late`: a parameter is used in the last batch alone.
    """
    layer = _Layer()
    layer.spare = torch.nn.Parameter(torch.ones(3))  # without a gradient, which is accumulated all the same
    net = _sharded(layer, **policy)
    regions = {"same": amp.region, "other": lambda: amp.region(amp.other), "off": lambda: amp.region(enabled=False)}
    if accumulate == "thawed":
        net.requires_grad_(False)(batches[0].chunk(2)[dist.get_rank()].to(policy["param_dtype"]))
        net.requires_grad_(True)
    for place, batch in enumerate(batches):
        last = place == len(batches) - 1
        net.set_requires_gradient_sync(last)
        layer.scaled = last or accumulate != "late"
        with regions.get(around, nullcontext)():
            out = net(batch.chunk(2)[dist.get_rank()])
        out.float().square().mean().backward()
    held = dict(layer.named_parameters())
    return {
        "seen": layer.seen,
        "output": out.dtype,
        "dtypes": {tensor.dtype for one in held.values() for tensor in (one, one.grad) if tensor is not None},
        "gradients": {name: _whole(one.grad) for name, one in held.items() if one.grad is not None},
        "state": (amp.state(), amp.depth()),
    }


def _by_casts(
    batches: list[torch.Tensor],
    given: Any,
    computed: Any,
    product: Any,
    output: Any,
    reduced: Any,
    *,
    late: bool = False,
) -> dict[str, Any]:
    """Return the output's dtype and the gradients of a rank: one of each batch, added up in the reduction's dtype."""
    found: dict[str, Any] = {}
    for place, batch in enumerate(batches):
        leaves = {name: leaf.detach().to(computed).requires_grad_() for name, leaf in _Layer().named_parameters()}
        out = functional.linear(batch.to(given).to(product), leaves["weight"].to(product))
        out = out * leaves["factor"] if not late or place == len(batches) - 1 else out
        out = out if output is None else out.to(output)
        out.float().square().mean().backward()
        found["output"] = out.dtype
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                found[name] = leaf.grad.to(reduced) + found[name] if name in found else leaf.grad.to(reduced)
    return found


@scenario(
    arranged=["grouped", "one_unused", "recomputed", "reentrant", "each_recomputed", "each_reentrant"],
    types=("cpu",),
    values=True,
)
def test_arranged(amp: Amp, arranged: str) -> None:
    """A policy holds for layers sharded as a group, and for those that run again (fully_shard; checkpoint)."""
    batch = amp.rand(4, 4)

    found = on_ranks(amp, lambda: _arranged(amp, arranged, batch))
    used = 1 if arranged == "one_unused" else 2
    leaves = [torch.nn.Parameter(leaf.detach()) for _ in range(used) for leaf in _Layer().parameters()]
    for rank in range(2):
        x = batch.chunk(2)[rank]
        for weight, factor in zip(leaves[::2], leaves[1::2], strict=True):
            low = [tensor.to(amp.dtype) for tensor in (x, weight, factor)]
            x = (functional.linear(low[0], low[1]) * low[2]).float()
        (x.square().mean() / 2).backward()
    for rank, got in enumerate(found):
        amp.assert_equal(f"dtypes in each layer on rank {rank}", got["seen"], [[amp.dtype] * 4] * used)
        amp.assert_equal(f"dtypes of what each layer returns on rank {rank}", got["outputs"], {torch.float32})
        for place, (gradient, leaf) in enumerate(zip(got["gradients"], leaves, strict=True)):
            amp.assert_close(f"gradient {place} on rank {rank}", gradient, leaf.grad, 1e-6)


class _Steps(torch.nn.Module):
    """Layers of which some are used, by a call of their own, and the dtypes of what these return."""

    def __init__(self, layers: list[_Layer], used: list[_Layer], call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.used, self.call = torch.nn.ModuleList(layers), tuple(used), call
        self.outputs: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.used:
            x = self.call(layer, x)
            self.outputs.add(x.dtype)
        return x.square()  # which saves the last output, so that it is computed again, too


def _arranged(amp: Amp, arranged: str, batch: torch.Tensor) -> dict[str, Any]:
    """Run two sharded layers, or one of them, forward and backward on a rank."""
    fsdp, layers = dist.fsdp, [_Layer(), _Layer()]
    options = {"param_dtype": amp.dtype, "reduce_dtype": torch.float32, "output_dtype": torch.float32}
    again = arranged not in ("grouped", "one_unused")
    for sharded in layers if again else [layers]:
        fsdp.fully_shard(sharded, mesh=_mesh(), mp_policy=fsdp.MixedPrecisionPolicy(**options))
    used = layers[: 1 if arranged == "one_unused" else 2]
    calls: dict[str, Callable[..., torch.Tensor]] = {
        "each_recomputed": lambda layer, x: checkpoint(layer, x=x, use_reentrant=False),
        "each_reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    }
    root = _Steps(layers, used, calls.get(arranged, lambda layer, x: layer(x=x)))
    if not again:  # a group needs a root
        fsdp.fully_shard(root, mesh=_mesh())
    x = batch.chunk(2)[dist.get_rank()].requires_grad_()
    whole = arranged in ("recomputed", "reentrant")
    out = checkpoint(root, x, use_reentrant=arranged == "reentrant") if whole else root(x)
    out.mean().backward()
    return {
        "seen": [layer.seen for layer in used],
        "outputs": root.outputs,
        "gradients": [_whole(leaf.grad) for layer in used for leaf in layer.parameters()],
    }


MIXED = Product(
    {
        "param": ("kept", "low", "float32"),
        "reduce": ("unsaid", "float32", "low"),
        "buffer": ("unsaid", "float32", "low"),
        "gradients": ("full", "low"),
        "before": ("nothing", "evaluated", "unused"),
    }
)


@scenario(MIXED, types=("cpu",), values=True, dtypes="default")
def test_mixed(amp: Amp, param: str, reduce: str, buffer: str, gradients: str, before: str) -> None:
    """Parameters, inputs, buffers and gradients have the dtypes of a policy (torch.distributed.fsdp.MixedPrecision).

    `before`: a forward pass without gradients, or one whose gradients nobody asks for.
    """
    batch, computed = amp.rand(4, 4), _dtype(amp, param) or torch.float32
    reduced, held = _dtype(amp, reduce) or computed, _dtype(amp, buffer)

    def run() -> dict[str, Any]:
        layer, part = _Layer(), batch.chunk(2)[dist.get_rank()].clone().requires_grad_()
        layer.register_buffer("kept", torch.ones(4))
        layer.register_forward_hook(lambda *_: layer.seen.append(layer.kept.dtype))
        policy = dist.fsdp.MixedPrecision(_dtype(amp, param), _dtype(amp, reduce), held, gradients == "low")
        net = _older(layer, policy)
        if before != "nothing":
            with torch.set_grad_enabled(before == "unused"):
                net.eval()(part)
        net.train()(part).float().square().mean().backward()
        own = [one.grad for one in layer.parameters() if one.grad is not None]  # the part that the rank holds
        gradient = torch.cat([grad.flatten() for grad in own]) if own else None
        with net.summon_full_params(net):
            layer.seen.append(layer.weight.dtype)
        return {"seen": layer.seen, "input": part.grad, "gradients": gradient}

    each = [_by_casts([part], computed, computed, computed, None, reduced) for part in batch.chunk(2)]
    whole = torch.cat([(each[0][name] / 2 + each[1][name] / 2).flatten() for name in ("weight", "factor")])
    found = on_ranks(amp, run)
    for rank, got in enumerate(found):
        seen, kept = (
            [*[computed] * 4, held or torch.float32, torch.float32],
            reduced if gradients == "low" else torch.float32,
        )
        amp.assert_equal(
            f"dtypes of input, parameters, product, buffer and whole parameters on rank {rank}", got["seen"], seen
        )
        amp.assert_equal(f"dtype of gradients on rank {rank}", getattr(got["gradients"], "dtype", None), kept)
        amp.assert_equal(f"whether the input has one on rank {rank}", got["input"] is not None, True)
    if made := [got["gradients"].float() for got in found if got["gradients"] is not None]:
        amp.assert_close("gradients", torch.cat(made), whole.float(), max(1e-6, 2 * torch.finfo(reduced).eps))


def _state(net: Any) -> dict[str, torch.Tensor]:
    """Return the whole state of a sharded module."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))  # type: ignore[return-value]


@scenario(
    way=["older", "older_low", "newer"], asked=["saved", "gradients"], types=("cpu",), values=True, dtypes="default"
)
def test_asked(amp: Amp, way: str, asked: str) -> None:
    """State is saved in the dtypes that it was made in, whole gradients in theirs (MixedPrecision; fully_shard)."""
    batch, low, held = amp.rand(4, 4), amp.dtype, _Layer()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64):
        held.register_buffer(str(dtype)[6:], torch.full((2,), 3, dtype=dtype))
    wanted = {name: one.clone() for name, one in held.state_dict().items()}
    if asked == "gradients":
        each = [_by_casts([part], low, low, low, None, low) for part in batch.chunk(2)]
        kept = low if way == "older_low" else torch.float32
        wanted = {name: (each[0][name] / 2 + each[1][name] / 2).to(kept) for name in ("weight", "factor")}

    def run() -> dict[str, torch.Tensor]:
        policy = dist.fsdp.MixedPrecision(low, None, low, way == "older_low")
        net = _sharded(held, param_dtype=low) if way == "newer" else _older(held, policy)
        net(batch.chunk(2)[dist.get_rank()]).float().square().mean().backward()
        if asked == "saved":
            return _state(net)
        with nullcontext() if way == "newer" else net.summon_full_params(net, with_grads=True):
            return {name: _whole(one.grad) for name, one in held.named_parameters()}

    for rank, got in enumerate(on_ranks(amp, run)):
        for name, one in wanted.items():
            amp.assert_close(f"{name} on rank {rank}", got[name], one, 2 * torch.finfo(low).eps)


@scenario(way=["older", "newer"], before=["nothing", "trained"], types=("cpu",), values=True, dtypes="default")
def test_converted(amp: Amp, way: str, before: str) -> None:
    """A sharded module that is converted computes, and is saved, in the new dtype (Module.to; fully_shard)."""

    def run() -> set[torch.dtype]:
        layer, batch = _Layer(), torch.ones(4, 4)
        net = _older(layer) if way == "older" else _sharded(layer)
        if before == "trained":
            net(batch).square().mean().backward()
        net.to(amp.dtype)(batch.to(amp.dtype)).float().square().mean().backward()
        return {*layer.seen, *(one.dtype for one in _state(net).values())}

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_equal(f"dtypes on rank {rank}", got, {amp.dtype})


HELD: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "nested": (lambda x: {"a": [({"b": x},)]}, lambda held: held["a"][0][0]["b"]),
    "dataclass": (make_dataclass("Held", ["x"]), lambda held: held.x),
    "packed": (lambda x: pack_sequence([x]), lambda held: held.data),
}
"""Containers of a tensor: how one is made, and what it holds."""


@scenario(held=list(HELD), types=("cpu",), values=True, dtypes="default")
def test_held(amp: Amp, held: str) -> None:
    """A policy casts tensors in any container, given or returned (fully_shard; FullyShardedDataParallel)."""
    batch, (make, take) = amp.rand(3, 4), HELD[held]

    def run() -> list[Any]:
        layers = [_Layer(*HELD[held]) for _ in range(2)]
        older = _older(layers[0], dist.fsdp.MixedPrecision(amp.dtype))
        newer = _sharded(layers[1], param_dtype=amp.dtype, output_dtype=torch.float32)
        outs = [take(net(make(batch))).dtype for net in (older, newer)]
        return [*(layer.seen[0] for layer in layers), *outs]

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_equal(f"dtypes given and returned on rank {rank}", got, [amp.dtype] * 3 + [torch.float32])


# ---- how parameters are gathered
class _Packed(torch.Tensor):
    """A parameter that ranks send in bfloat16 (`fsdp_pre_all_gather`, which TorchAO's float8 has, too)."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map(lambda x: x.held if isinstance(x, _Packed) else x, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        if func._schema.is_mutable:
            return args[0]
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)

    def fsdp_pre_all_gather(self, mesh: Any, size: Any, stride: Any, module: Any, policy: Any) -> tuple[Any, Any]:
        return (self.held.to(torch.bfloat16),), policy.param_dtype

    def fsdp_post_all_gather(
        self, gathered: tuple[torch.Tensor], sent: Any, dtype: torch.dtype, *, out: Any = None
    ) -> Any:
        assert dtype == (sent or torch.float32)
        if out is None:
            made = gathered[0].to(dtype)
            return made, (made,)
        out.data.copy_(gathered[0].view_as(out))
        return None


GATHERED = Product(
    {"weight": ("plain", "packed", "counted"), "param": ("kept", "low"), "resharded": ("no", "whole", "in_pairs")},
    {"PyTorch gathers such parameters of pairs in no way of its own": where(weight="packed", resharded="in_pairs")},
)


@scenario(GATHERED, types=("cpu",), values=True)
def test_gathered(amp: Amp, weight: str, param: str, resharded: str) -> None:
    """Parameters are gathered again after a step as they are then, in the dtype of the policy (fully_shard).

    `counted`: the layer has a parameter of integers, too. `packed`: its weight says in what it is sent.
    """
    computed, batches = _dtype(amp, param) or torch.float32, [amp.rand(8, 4) for _ in range(2)]

    def run() -> dict[str, Any]:
        """Make two steps on a rank."""
        layer = _Layer()
        if weight == "packed":
            layer.weight = torch.nn.Parameter(_Packed(layer.weight.detach()))
        if weight == "counted":
            layer.count = torch.nn.Parameter(torch.arange(4), requires_grad=False)
        seen: list[Any] = []
        layer.register_forward_hook(lambda *_: seen.append([held.dtype for held in layer.parameters()]))
        policy = dist.fsdp.MixedPrecisionPolicy(param_dtype=_dtype(amp, param), reduce_dtype=torch.float32)
        again = {"no": False, "whole": True, "in_pairs": 2}[resharded]
        mesh = dist.device_mesh.init_device_mesh("cpu", (4,))
        net = torch.nn.Sequential(
            dist.fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
        )
        dist.fsdp.fully_shard(net, mesh=mesh)
        for batch in batches:
            net(batch.chunk(4)[dist.get_rank()]).float().square().mean().backward()
            for held in (layer.weight, layer.factor):
                held.data -= 4 * held.grad  # so much that a weight of before is not nearly the new one
                held.grad = None
        return {"seen": seen, "weights": [getattr(one, "held", one) for one in map(_whole, layer.parameters())]}

    leaves = [leaf.detach() for leaf in _Layer().parameters()]
    for batch in batches:
        held = [leaf.requires_grad_() for leaf in leaves]
        sent = leaves[0].detach().to(torch.bfloat16) if weight == "packed" else leaves[0].detach()
        first = held[0] + (sent - leaves[0].detach())  # whose gradient is not rounded
        for x in batch.chunk(4):
            out = functional.linear(x.to(computed), first.to(computed)) * held[1].to(computed)
            (out.float().square().mean() / 4).backward(retain_graph=True)
        leaves = [leaf.detach() - 4 * leaf.grad for leaf in held if leaf.grad is not None]
    whole = [torch.int64] if weight == "counted" else []
    rounded = torch.bfloat16 if weight == "packed" else computed
    for rank, got in enumerate(on_ranks(amp, run, 4)):
        amp.assert_equal(f"dtypes of parameters on rank {rank}", got["seen"], [[computed, computed, *whole]] * 2)
        for name, found, want in zip(("weight", "factor"), got["weights"], leaves, strict=False):
            amp.assert_close(f"{name} after two steps on rank {rank}", found, want, 16 * torch.finfo(rounded).eps)


# ---- DTensors
OPS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "product": ("mm", torch.mm, ("wide", "wide")),
    "product_of_low": ("mm", torch.mm, ("low", "wide")),
    "summed": ("addmm", torch.addmm, ("wide", "wide", "wide")),
    "layer": ("linear", functional.linear, ("wide", "wide")),
    "loss": ("mse_loss", functional.mse_loss, ("low", "low")),
    "joined": ("cat", lambda *tensors: torch.cat(tensors, 1), ("low", "wide")),
    "softmax": ("softmax.int", lambda x: torch.softmax(x, -1), ("low",)),
    "scaled": ("mul.Tensor", torch.mul, ("low", "wide")),
}
"""An overload, the call, and the dtype of each matrix that it is given ("low" is the region's)."""

LAYOUTS = ("replicated", "rows", "columns")

SPREAD = Product({"op": tuple(OPS), "first": LAYOUTS, "second": LAYOUTS, "mode": ("training", "no_grad", "repeated")})


@scenario(SPREAD, types=("cpu",), values=True)
def test_spread(amp: Amp, op: str, first: str, second: str, mode: str) -> None:
    """An op on DTensors casts what it casts on plain tensors, forward and backward (distributed.tensor; amp.html)."""
    wholes = [amp.rand(4, 4, dtype=amp.dtype if dtype == "low" else torch.float32) for dtype in OPS[op][2]]
    found = on_ranks(amp, lambda: _spread(amp, op, (first, second, second), mode, wholes))
    leaves = [tensor.clone().requires_grad_() for tensor in wholes]
    casts = amp.casting(OPS[op][0], [tensor.dtype for tensor in wholes]).dtypes
    wanted = OPS[op][1](*(leaf.to(dtype) for leaf, dtype in zip(leaves, casts, strict=True)))
    wanted.float().square().sum().backward()
    far = 8 * torch.finfo(amp.dtype).eps
    for rank, got in enumerate(found):
        amp.assert_equal(f"dtypes of the result and its part on rank {rank}", got["dtypes"], {wanted.dtype})
        if got["result"].dtype == wanted.dtype:
            amp.assert_close(f"result on rank {rank}", got["result"], wanted.detach(), far)
        for place, gradient in enumerate(got["gradients"]):
            want = leaves[place].grad
            amp.assert_equal(f"dtype of gradient {place} on rank {rank}", gradient.dtype, wholes[place].dtype)
            if want is not None and gradient.dtype == want.dtype:
                size = want.abs().max()
                amp.assert_close(f"gradient {place} on rank {rank}", gradient / size, want / size, far)
        amp.assert_equal(f"state and depth on rank {rank}", got["state"], ((False, amp.default, True), 0))


def _laid_out(tensor: torch.Tensor, layout: str) -> Any:
    """Return a DTensor: the same on each rank, a part of its rows or columns, or a term of a sum (`terms`)."""
    if layout == "terms":
        return dist.tensor.DTensor.from_local(tensor / 2, _mesh(), [dist.tensor.Partial()])
    dims = {"rows": 0, "columns": tensor.dim() - 1}
    placement = dist.tensor.Shard(dims[layout]) if layout in dims else dist.tensor.Replicate()
    return dist.tensor.distribute_tensor(tensor, _mesh(), [placement])


def _spread(amp: Amp, op: str, layouts: tuple[str, ...], mode: str, wholes: list[torch.Tensor]) -> dict[str, Any]:
    """Call an op on DTensors on a rank, in a region; backward outside of it. `repeated` calls it twice."""
    spread = [
        _laid_out(tensor, layout).requires_grad_(mode != "no_grad")
        for tensor, layout in zip(wholes, layouts, strict=False)
    ]
    with amp.region():
        out: Any = OPS[op][1](*spread)
        if mode == "repeated":
            out = OPS[op][1](*spread)
    result = out.full_tensor()
    if mode != "no_grad":
        result.float().square().sum().backward()
    return {
        "dtypes": {out.dtype, out.to_local().dtype},
        "result": result.detach(),
        "gradients": [_whole(tensor.grad) for tensor in spread] if mode != "no_grad" else [],
        "state": (amp.state(), amp.depth()),
    }


_SIZES = tomllib.loads((Path(__file__).parents[1] / "eager" / "sizes.toml").read_text(encoding="utf-8"))
SHAPES = {
    **{"vector": ((6,), (5,)), "matrix": ((6, 4), (5, 3)), "sequence": ((2, 6, 4), (3, 5, 8))},
    **{"image": ((2, 4, 8, 8), (3, 3, 9, 9)), "tiny": ((2, 2, 2, 2),)},
}
"""Of tensors that two ranks share evenly, and not. Programs that make plain tensors are left out, and convolutions and
those of one row, for which ranks may wait without end."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        pytest.param(call, shapes, id=f"{family}-{name}")
        for family, shapes in SHAPES.items()
        for name, call in _SIZES[family].items()
        if name != "shapes" and not re.search(r"made\(|device=|conv|-1:", call)
    ],
)
@scenario(types=("cpu",), values=True, dtypes="default")
def test_spread_program(amp: Amp, call: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """A program of a DTensor gives what one of the whole tensor does, and its gradient, in a region and outside."""
    wholes = [amp.rand(*shape) for shape in shapes]
    asked = list(itertools.product(range(len(shapes)), (*LAYOUTS, "terms"), (False, True)))
    ranks = on_ranks(
        amp, lambda: [_called(amp, call, _laid_out(wholes[place], layout), on) for place, layout, on in asked]
    )
    refusals = [one for found in ranks for one in found if isinstance(one, str)]
    if ranks and len(refusals) == len(ranks) * len(asked):
        amp.unsupported(f"DTensor refuses the program: {refusals[0]}"[:300])
    for rank, found in enumerate(ranks):
        for (place, layout, on), got in zip(asked, found, strict=True):
            want = _called(amp, call, wholes[place].clone(), on)
            if isinstance(want, str) or isinstance(got, str):
                continue
            where = f"of {list(shapes[place])}, {layout}, {'in a region' if on else 'outside'}, on rank {rank}"
            far = 4 * torch.finfo(amp.dtype).eps if on else 1e-4
            amp.assert_equal(f"number of results and gradients {where}", len(got), len(want))
            for number, (one, other) in enumerate(zip(got, want, strict=False)):
                amp.assert_equal(f"dtype of result {number} {where}", one.dtype, other.dtype)
                size = other.abs().max().clamp(min=1e-9)
                amp.assert_close(f"result {number} {where}", one / size, other / size, far)


def _called(amp: Amp, call: str, x: Any, on: bool) -> list[torch.Tensor] | str:
    """Return what a program gives in a region or in none, and the gradient of its tensor; or what it raises."""
    x.requires_grad_()
    amp.seed()
    try:
        with amp.region(enabled=on):
            results = [_grown(one) for one in tensors(evaluate(call, {"a": x}))]
        if roots := [one.float().square().sum() for one in results if one.requires_grad]:
            torch.autograd.backward(roots)
        return [one.detach() for one in results] + ([] if x.grad is None else [_whole(x.grad)])
    except Exception as error:  # an op that has no sharding strategy, or a shape that the program refuses
        return f"{type(error).__name__}: {error}"


@scenario(reduce=["float32", "low"], accumulate=["once", "twice"], types=("cpu",), values=True, dtypes="default")
def test_reduced_across(amp: Amp, reduce: str, accumulate: str) -> None:
    """Gradients are added up in reduce_dtype along each dimension of a mesh (MixedPrecisionPolicy)."""
    parts, times = torch.tensor([1.0, torch.finfo(amp.dtype).eps / 8]), 2 if accumulate == "twice" else 1
    kind = _dtype(amp, reduce) or torch.float32

    def run() -> torch.Tensor:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "rows"))
        policy, layer = dist.fsdp.MixedPrecisionPolicy(amp.dtype, kind), torch.nn.Linear(1, 1, bias=False)
        weight = dist.tensor.distribute_tensor(layer.weight.detach(), mesh["rows"], [dist.tensor.Replicate()])
        layer.weight = torch.nn.Parameter(weight)
        net: Any = dist.fsdp.fully_shard(layer, mesh=mesh["data"], mp_policy=policy)
        for last in range(1, times + 1):
            net.set_requires_gradient_sync(last == times)
            rows = dist.tensor.distribute_tensor(parts.view(2, 1), mesh["rows"], [dist.tensor.Shard(0)])
            net(rows).sum().backward()
        return _whole(layer.weight.grad)

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_identical(f"gradient on rank {rank}", got, times * parts.to(kind).sum().float().view(1, 1))


@scenario(forward=["unsaid", "low"], back=["unsaid", "float32", "low"], types=("cpu",), values=True, dtypes="default")
def test_redistributed(amp: Amp, forward: str, back: str) -> None:
    """A redistribution and its gradient's are in the dtypes that are asked for (DTensor.redistribute)."""
    parts = torch.tensor([[1.0], [torch.finfo(amp.dtype).eps / 8]])
    terms = torch.tensor([[1.0], [0.0]]) + 0.49 * torch.finfo(amp.dtype).eps  # which add up to more than 1 in float32
    sent, summed = (_dtype(amp, one) or torch.float32 for one in (forward, back))

    def run() -> list[torch.Tensor]:
        spread = dist.tensor.distribute_tensor(torch.ones(2, 1), _mesh(), [dist.tensor.Shard(0)]).requires_grad_()
        options = {"forward_dtype": _dtype(amp, forward), "backward_dtype": _dtype(amp, back)}
        whole = spread.redistribute(placements=[dist.tensor.Replicate()], **options)
        local = whole.to_local(grad_placements=[dist.tensor.Partial()])
        (local.float() * parts[dist.get_rank()]).sum().backward()
        added = dist.tensor.DTensor.from_local(terms[dist.get_rank()], _mesh(), [dist.tensor.Partial()])
        total = added.redistribute(placements=[dist.tensor.Replicate()], **options).to_local()
        return [local.detach(), _whole(spread.grad), total]

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_identical(f"values on rank {rank}", got[0], torch.ones(2, 1, dtype=sent))
        amp.assert_identical(f"gradient on rank {rank}", got[1], parts.to(sent).to(summed).sum().float().expand(2, 1))
        amp.assert_identical(f"sum of terms on rank {rank}", got[2], terms.to(sent).sum(0))


@scenario(logits=["wide", "low"], around=["none", "same"], types=("cpu",), values=True, dtypes="default")
def test_loss_in_parts(amp: Amp, logits: str, around: str) -> None:
    """The loss of split logits, and their gradient, are in the dtypes of those of whole ones (loss_parallel)."""
    x, target = amp.rand(6, 8, dtype=amp.dtype if logits == "low" else torch.float32), torch.arange(6)

    def run() -> list[torch.Tensor]:
        spread = dist.tensor.distribute_tensor(x, _mesh(), [dist.tensor.Shard(1)]).requires_grad_()
        with dist.tensor.parallel.loss_parallel():
            with amp.region() if around == "same" else nullcontext():
                loss = functional.cross_entropy(spread, target)
            loss.backward()
        return [_whole(loss), _whole(spread.grad)]

    leaf = x.clone().requires_grad_()
    whole = functional.cross_entropy(leaf.float() if around == "same" else leaf, target)
    whole.backward()
    for rank, got in enumerate(on_ranks(amp, run)):
        for name, one, want in zip(("loss", "gradient"), got, (whole, leaf.grad), strict=True):
            amp.assert_equal(f"dtype of the {name} on rank {rank}", one.dtype, want.dtype)
            amp.assert_close(f"{name} on rank {rank}", one.float(), want.float(), 4 * torch.finfo(amp.dtype).eps)


# ---- a scaler of which each rank has other gradients
BAD = {"nothing": 1.0, "infinity": float("inf"), "minus_infinity": -float("inf"), "not_a_number": float("nan")}

APART = Product(
    {
        "bad": tuple(BAD),
        "rank": ("first", "second", "both"),
        "dtype": ("single", "half", "brain"),
        "optimizers": ("one", "two"),
        "unscaled": ("by_step", "before"),
        "gradients": ("all", "none_on_first"),
        "size": ("5", "5000"),
    },
    {
        "a rank without gradients has no bad one": where(
            gradients="none_on_first", bad=other_than("nothing"), rank=other_than("second")
        ),
        "nothing is on a rank": where(bad="nothing", rank=other_than("second")),
    },
)


@scenario(APART, types=("cpu",), values=True, dtypes="default")
def test_told_apart(
    amp: Amp, bad: str, rank: str, dtype: str, optimizers: str, unscaled: str, gradients: str, size: str
) -> None:
    """Each rank skips the step where any rank found a bad gradient (ShardedGradScaler: sync inf/nan across nodes)."""
    kind = {"single": torch.float32, "half": torch.float16, "brain": torch.bfloat16}[dtype]
    ranks = {"first": (0,), "second": (1,), "both": (0, 1)}[rank]

    def run() -> dict[str, Any]:
        """Make a step on a rank whose gradients are those of its own weights alone."""
        this = dist.get_rank()
        scaler = dist.fsdp.sharded_grad_scaler.ShardedGradScaler("cpu", init_scale=8.0, process_group=dist.group.WORLD)
        weights, others = (torch.nn.Parameter(torch.ones(int(size), dtype=kind)) for _ in range(2))
        scaler.scale(torch.zeros(()))
        if gradients == "all" or this == 1:
            weights.grad = torch.full_like(weights, 8.0)
            weights.grad[-1] *= BAD[bad] if this in ranks else 1.0
        others.grad = torch.full_like(others, 8.0)
        both = (others, weights) if unscaled == "before" else (weights, others)
        for weight in both if optimizers == "two" else (weights,):
            optimizer = torch.optim.SGD([weight], lr=0.5)
            if unscaled == "before":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        held = [set(weight.detach().float().tolist()) for weight in (weights, others)]
        return {"scale": state["scale"], "tracker": state["_growth_tracker"], "weights": held[0], "others": held[1]}

    overflow = bad != "nothing"
    for number, got in enumerate(on_ranks(amp, run)):
        amp.assert_equal(f"scale on rank {number}", got["scale"], 4.0 if overflow else 8.0)
        amp.assert_equal(f"tracker on rank {number}", got["tracker"], 0 if overflow else 1)
        moves = not overflow and not (gradients == "none_on_first" and number == 0)
        amp.assert_equal(f"weights on rank {number}", got["weights"], {0.5} if moves else {1.0})
        if optimizers == "two":  # its gradients are right on every rank, and its steps are its own
            amp.assert_equal(f"weights of the second optimizer on rank {number}", got["others"], {0.5})


# ---- what is kept of a scaler
KEPT = Product(
    {
        "form": ("dictionary", "object"),
        "saved": ("at_once", "in_background"),
        "loaded": ("by_ranks", "by_one_process"),
        "before": ("growth", "backoff"),
    }
)


@scenario(KEPT, types=("cpu",), values=True, dtypes="default")
def test_kept(amp: Amp, form: str, saved: str, loaded: str, before: str) -> None:
    """A scaler that torch.distributed.checkpoint loads goes on as the saved one (distributed.checkpoint)."""
    wanted = _scaler_state(32.0, 2, 1) if before == "growth" else _scaler_state(8.0, 2, 0)
    with tempfile.TemporaryDirectory() as folder:

        def run() -> list[dict[str, Any]]:
            scaler = _stepped(amp, before)
            state = {"scaler": scaler if form == "object" else scaler.state_dict()}
            if saved == "in_background":
                dist.checkpoint.async_save(state, checkpoint_id=folder).result()
            else:
                dist.checkpoint.save(state, checkpoint_id=folder)
            dist.barrier()
            return [scaler.state_dict(), _loaded(amp, form, folder)]

        for rank, states in enumerate(on_ranks(amp, run)):
            amp.assert_equal(f"scaler on rank {rank}", states[0], wanted)
            amp.assert_equal(f"scaler that rank {rank} loads", states[1], wanted)
        if loaded == "by_one_process":
            amp.assert_equal("scaler that one process loads", _loaded(amp, form, folder, no_dist=True), wanted)


def _stepped(amp: Amp, before: str) -> torch.amp.GradScaler:
    """Return a scaler after three steps, or after one whose gradient is infinite."""
    weight, optimizer, scaler = trained(amp, init_scale=16.0, growth_interval=2)
    for _ in range(3 if before == "growth" else 1):
        iterate(weight, optimizer, scaler, 1.0 if before == "growth" else float("inf"))
    return scaler


def _loaded(amp: Amp, form: str, folder: str, **options: Any) -> dict[str, Any]:
    """Return the state of another scaler into which a checkpoint was loaded."""
    scaler = torch.amp.GradScaler(amp.type)
    state = {"scaler": scaler if form == "object" else scaler.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a load in one process, which is meant
        dist.checkpoint.load(state, checkpoint_id=folder, **options)
    if form == "dictionary":
        kept: Any = state["scaler"]
        scaler.load_state_dict(kept)
    return scaler.state_dict()


# ---- single cases
@scenario(keeps=named(with_feedback=True, without=False), types=("cpu",), values=True, dtypes="default")
def test_after_an_overflow(amp: Amp, keeps: bool) -> None:
    """PowerSGD goes on after a step that the scaler skips (amp.html: the step is skipped, and the scale lowered)."""
    xs = [amp.rand(6, 4) for _ in range(6)]
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 8, bias=False)

    def run() -> list[bool]:
        net = _with_power_sgd(layer, 2, keeps=keeps)
        found = []
        for step, x in enumerate(xs):
            net.zero_grad()
            with amp.region():
                out = net(x.chunk(2)[dist.get_rank()])
            (out.float().square().mean() * (float("inf") if step == 3 else 1.0)).backward()
            found.append(bool(torch.isfinite(layer.weight.grad).all()) if layer.weight.grad is not None else False)
        return found

    for rank, finite in enumerate(on_ranks(amp, run)):
        amp.assert_equal(f"whether gradients are finite on rank {rank}", finite, [step != 3 for step in range(6)])


@scenario(types=("cpu",), values=True, dtypes="default")
def test_compressed(amp: Amp) -> None:
    """The hook for bfloat16 averages in it, or is refused in words where NCCL is not built in (bf16_compress_hook)."""
    xs = [amp.rand(3, 2) for _ in range(2)]
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)

    def run() -> tuple[str, torch.Tensor | None]:
        net = torch.nn.parallel.DistributedDataParallel(layer)
        try:
            net.register_comm_hook(None, _hooks().bf16_compress_hook)
        except TypeError as error:
            return str(error), None
        net(xs[dist.get_rank()]).square().sum().backward()
        return "", layer.weight.grad

    found = on_ranks(amp, run)
    each = [torch.autograd.grad(layer(x).square().sum(), layer.weight)[0].bfloat16() / 2 for x in xs]
    built = dist.is_nccl_available() and (torch.version.cuda or torch.version.hip) is not None
    for rank, (said, gradient) in enumerate(found):
        if built:
            amp.assert_identical(f"gradient on rank {rank}", gradient, (each[0] + each[1]).float())
        else:
            amp.assert_equal(f"whether rank {rank} names NCCL", "NCCL" in said, True)


class _Times(torch.nn.Module):
    """A module whose gradient is what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.float() * x).sum()


LARGE: dict[str, Callable[[Any, torch.dtype], Any]] = {
    **{name: WRAPPERS[name].wrap for name in ("ddp", "allreduce", "half", "half_wrapper", "own", "static", "zero")},
    **{name: WRAPPERS[name].wrap for name in ("fsdp", "fsdp_low", "fsdp1")},
    "fsdp_half": lambda net, low: _sharded(net, reduce_dtype=torch.float16),
    "fsdp1_half": lambda net, low: _older(net, dist.fsdp.MixedPrecision(reduce_dtype=torch.float16)),
}


@scenario(Product({"way": tuple(LARGE)}, nightly=True), types=("cpu",), values=True)
def test_large(amp: Amp, way: str) -> None:
    """The mean of gradients that fit into float16 fits, too, where their sum does not (ddp_comm_hooks; fully_shard)."""

    def run() -> torch.Tensor:
        net = _Times()
        wrapped = LARGE[way](net, amp.dtype)
        wrapped(torch.full((4, 4), (40000.0, 60000.0)[dist.get_rank()])).backward()
        with wrapped.summon_full_params(wrapped, with_grads=True) if way.startswith("fsdp1") else nullcontext():
            return _whole(net.weight.grad)

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_close(f"gradients on rank {rank}", got, torch.full((4, 4), 50000.0), 0.01)


@scenario(Product({"way": ("ddp", "fsdp", "fsdp_low", "fsdp1")}, nightly=True), types=("cpu",), values=True)
def test_gradients_of_another_dtype(amp: Amp, way: str) -> None:
    """A wrapped parameter takes its gradients in the dtype in which it took them before (Tensor.grad_dtype)."""

    def run() -> torch.dtype:
        net = _Times()
        net.weight.grad_dtype = amp.dtype
        LARGE[way](net, amp.dtype)
        return net.weight.grad_dtype

    for rank, got in enumerate(on_ranks(amp, run)):
        amp.assert_equal(f"dtype of gradients on rank {rank}", got, amp.dtype)
