"""Ranks that lose their region, reduce gradients in another way, or step where another rank skips."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Replicated

from tests.faults import checkpoint, replicas
from tests.faults.fault import Fault, Inject

_FORWARD = Replicated.forward
_POLICY = fsdp.MixedPrecisionPolicy
_UNSCALE = torch.amp.GradScaler._unscale_grads_
_LOAD = torch.amp.GradScaler.load_state_dict
_JOIN = torch.cat


def one_outside(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the forward of rank 1 outside of its region."""
    with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and dist.get_rank() == 0):
        return _FORWARD(self, *args, **kwargs)


def added(group: Any, tensor: torch.Tensor) -> Any:
    """Add gradients up where their mean is meant."""
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def alone(self: Any, optimizer: Any, *args: Any) -> dict[torch.device, torch.Tensor]:
    """Look for gradients that are not finite in this rank's part alone."""
    found: dict[torch.device, torch.Tensor] = _UNSCALE(self, optimizer, *args)
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    parts = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]
    finite = all(bool(torch.isfinite(part).all()) for part in parts)
    return {device: torch.full_like(value, 0.0 if finite else 1.0) for device, value in found.items()}


def policy(**fixed: Any) -> AbstractContextManager[object]:
    """Have every policy of fully_shard be made with some options fixed."""

    def make(**options: Any) -> Any:
        return _POLICY(**{**options, **fixed})

    return patch.object(fsdp, "MixedPrecisionPolicy", make)


def without_tracker(self: Any, state: dict[str, Any]) -> None:
    _LOAD(self, {**state, "_growth_tracker": 0, "scale": 16.0})


def joined_low(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Join DTensors in the lower precision."""
    out = _JOIN(tensors, *args, **kwargs)
    spread = hasattr(tensors[0], "to_local") and torch.is_autocast_enabled("cpu")
    return out.to(torch.get_autocast_dtype("cpu")) if spread else out


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the cases whose ids hold `only` catch."""
    return Fault(name, "ranks", inject, (says,), "autograd", only=only)


FAULTS = (
    fault(
        "one-rank-outside",
        lambda: patch.object(Replicated, "forward", one_outside),
        "dtype of a product on rank 1: got torch.float32",
        "trained-ddp-around",
    ),
    fault(
        "hook-sends-float32",
        lambda: patch.object(default_hooks, "_compress_hook", replicas.uncompressed),
        "gradient of factor in step 0 on rank 0: differs",
        "trained-half- and -without-",
    ),
    fault(
        "reduced-without-mean",
        lambda: patch.object(default_hooks, "_allreduce_fut", added),
        "gradient of factor in step 0 on rank 0: differs",
        "trained-allreduce- and -without-",
    ),
    fault(
        "rank-forgets-accumulated",
        lambda: patch.object(Replicated, "no_sync", replicas.forgotten),
        "gradient of factor in step 0 on rank 0: differs",
        "trained-ddp- and -twice-",
    ),
    fault(
        "recomputed-in-another-dtype",
        checkpoint._other_dtype,
        "on rank 0: differs",
        "trained-fsdp- and -reentrant-",
    ),
    fault(
        "overflow-on-one-rank",
        lambda: patch.object(torch.amp.GradScaler, "_unscale_grads_", alone),
        "scaler on rank",
        "trained-fsdp_layers- and -overflow-",
    ),
    fault(
        "policy-leaves-inputs",
        lambda: policy(cast_forward_inputs=False),
        "dtypes of input, parameters and product on rank 0: got",
        "by_policy-other-low-unsaid-cast-same-",
    ),
    fault(
        "policy-reduces-in-float32",
        lambda: policy(reduce_dtype=torch.float32),
        "in the dtype of the reduction: differs",
        "by_policy-kept-low-",
    ),
    fault(
        "dtensors-joined-low",
        lambda: patch.object(torch, "cat", joined_low),
        "dtypes of the result and its part on rank 0: got",
        "spread-joined-",
    ),
    fault(
        "scaler-restored-anew",
        lambda: patch.object(torch.amp.GradScaler, "load_state_dict", without_tracker),
        "scaler that rank 0 loads: got",
        "kept-object-",
    ),
)
