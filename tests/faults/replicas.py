"""Replicas that lose their region, and gradients that are reduced in another dtype or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Replicated

from tests.faults import regions
from tests.faults.fault import Fault, Inject
from tests.faults.gradients import doubled, passed
from tests.faults.kernels import kernel

_FORWARD, _ALONE = Replicated.forward, Replicated.no_sync
_POLICY = fsdp.MixedPrecisionPolicy


def _fault(name: str, scenario: str, says: str, inject: Inject) -> Fault:
    return Fault(name, "dataparallel", inject, (), "autograd").seen_by(scenario, says)


def forward_outside(self: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return _FORWARD(self, *args, **kwargs)


def gradient_doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
    out = _FORWARD(self, *args, **kwargs)
    out.register_hook(doubled)
    return out


@contextmanager
def forgotten(self: Any) -> Iterator[None]:
    """Gradients gathered without a reduction are lost."""
    with _ALONE(self):
        yield
    for parameter in self.parameters():
        parameter.grad = None


def uncompressed(dtype: torch.dtype, group: Any, bucket: Any) -> Any:
    return default_hooks._allreduce_fut(group or torch.distributed.group.WORLD, bucket.buffer())


def without_dtype(param_dtype: Any = None, **options: Any) -> Any:
    return _POLICY(**options)


FAULTS = (
    _fault(
        "replica-leaves-region",
        "one_thread_each",
        "states of the threads around: got",
        lambda: regions.replaced(regions.autocast, __exit__=regions.exit_keeps_enabled),
    ),
    _fault(
        "replica-gradient-doubled",
        "shared_weights",
        "gradient: differs",
        lambda: kernel("cpu", "mm", passed(doubled, 1)),
    ),
    _fault(
        "reduced-outside",
        "reduced",
        "dtype of the result in turn 0: got torch.float32",
        lambda: patch.object(Replicated, "forward", forward_outside),
    ),
    _fault(
        "reduced-twice",
        "region_in_the_forward",
        "gradients: got",
        lambda: patch.object(Replicated, "forward", gradient_doubled),
    ),
    _fault(
        "recomputed-outside",
        "computed_again",
        "dtype of the result: got torch.float32",
        lambda: patch.object(Replicated, "forward", forward_outside),
    ),
    _fault(
        "gathered-forgotten",
        "gathered_in_turns",
        "gradients: got",
        lambda: patch.object(Replicated, "no_sync", forgotten),
    ),
    _fault(
        "hook-compresses-nothing",
        "compressed",
        "gradients: got",
        lambda: patch.object(default_hooks, "_compress_hook", uncompressed),
    ),
    _fault(
        "shard-without-dtype",
        "sharded",
        "dtypes of a layer's weight and result: got",
        lambda: patch.object(fsdp, "MixedPrecisionPolicy", without_dtype),
    ),
)
