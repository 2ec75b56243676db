"""Replicas and ranks that lose their region, reduce gradients in another way, or step where another rank skips."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel as Replicated

from tests.faults.gradients import doubled
from tests.faults.modules import outside
from tests.faults.mutant import Inject, mutants, put, wrap
from tests.faults.regions import vaguely

_POWER_SGD = powerSGD_hook.powerSGD_hook


def gradient_doubled(own: Any, *args: Any, **kwargs: Any) -> Any:
    out = own(*args, **kwargs)
    out.register_hook(doubled)
    return out


@contextmanager
def forgotten(own: Any, self: Any) -> Iterator[None]:
    """Lose gradients that are gathered without a reduction."""
    with own(self):
        yield
    for parameter in self.parameters():
        parameter.grad = None


def uncompressed(dtype: torch.dtype, group: Any, bucket: Any) -> Any:
    return default_hooks._allreduce_fut(group or torch.distributed.group.WORLD, bucket.buffer())


def policy(**fixed: Any) -> Inject:
    """Have every policy of fully_shard be made with some options fixed."""
    return wrap(fsdp, MixedPrecisionPolicy=lambda own, **options: own(**{**options, **fixed}))


def one_outside(own: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the forward of rank 1 outside of its region."""
    with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and dist.get_rank() == 0):
        return own(self, *args, **kwargs)


def added(group: Any, tensor: torch.Tensor) -> Any:
    """Add gradients up where their mean is meant."""
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def alone(own: Any, self: Any, optimizer: Any, *args: Any) -> dict[torch.device, torch.Tensor]:
    """Look for gradients that are not finite in this rank's part alone."""
    found: dict[torch.device, torch.Tensor] = own(self, optimizer, *args)
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    parts = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]
    finite = all(bool(torch.isfinite(part).all()) for part in parts)
    return {device: torch.full_like(value, 0.0 if finite else 1.0) for device, value in found.items()}


def without_reduction(own: Any, self: Any, optimizer: Any) -> None:
    """Keep to this rank what a sharded scaler found."""
    with patch.object(dist, "all_reduce", lambda *_, **__: SimpleNamespace(wait=lambda: None)):
        own(self, optimizer)


def without_infinity(done: Any) -> torch.Tensor:
    """Give finite gradients in place of those that are not."""
    return torch.nan_to_num(done.value(), nan=0.0, posinf=0.0, neginf=0.0)


@wraps(powerSGD_hook.powerSGD_hook)
def finite_hook(state: Any, bucket: Any) -> Any:
    return _POWER_SGD(state, bucket).then(without_infinity)


def joined_low(own: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Join DTensors in the lower precision."""
    out = own(tensors, *args, **kwargs)
    spread = hasattr(tensors[0], "to_local") and torch.is_autocast_enabled("cpu")
    return out.to(torch.get_autocast_dtype("cpu")) if spread else out


REPLICAS = {
    "reduced-outside": wrap(Replicated, forward=outside),
    "reduced-twice": wrap(Replicated, forward=gradient_doubled),
    "gathered-forgotten": wrap(Replicated, no_sync=forgotten),
    "hook-compresses-nothing": put(default_hooks, _compress_hook=uncompressed),
    "shard-without-dtype": policy(param_dtype=None),
}
RANKS = {
    "hook-refused-vaguely": wrap(Replicated, register_comm_hook=vaguely),
    "hook-loses-infinity": put(powerSGD_hook, powerSGD_hook=finite_hook),
    "one-rank-outside": wrap(Replicated, forward=one_outside),
    "reduced-without-mean": put(default_hooks, _allreduce_fut=added),
    "overflow-on-one-rank": wrap(torch.amp.GradScaler, _unscale_grads_=alone),
    "sharded-scaler-tells-nobody": wrap(ShardedGradScaler, unscale_=without_reduction),
    "policy-leaves-inputs": policy(cast_forward_inputs=False),
    "policy-reduces-in-float32": policy(reduce_dtype=torch.float32),
    "policy-without-output": policy(output_dtype=None),
    "dtensors-joined-low": wrap(torch, cat=joined_low),
    "scaler-restored-anew": wrap(
        torch.amp.GradScaler,
        load_state_dict=lambda own, self, state: own(self, {**state, "_growth_tracker": 0, "scale": 16.0}),
    ),
}

MUTANTS = (*mutants("autograd/dataparallel", REPLICAS), *mutants("autograd/ranks", RANKS))
