"""Rounds as processes of a run would measure them, and a small catalogue of workloads, to be summarized."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ampcheck.bench.core.model import (
    Group,
    OpWorkload,
    OverheadWorkload,
    Rounds,
    Spec,
    StepWorkload,
    VariantResult,
    Workload,
)
from ampcheck.bench.run.summary import summarize

MM = OpWorkload(
    name="mm-512",
    family="matmul",
    policy="downcast",
    base="mm",
    size=512,
    flops=2 * 512**3,
    moved=lambda width: 3 * 512 * 512 * width,
    inputs=(Spec((512, 512)), Spec((512, 512))),
    call=torch.mm,
)
STEP = StepWorkload(
    name="mlp",
    family="steps",
    policy="mixed",
    samples=64,
    model=lambda: torch.nn.Linear(2, 2),
    inputs=(),
    loss=torch.nn.functional.mse_loss,
)
COPY = OpWorkload(
    name="copy", family="policies", policy="upcast", moved=lambda width: 8.0 * width, inputs=(), call=torch.clone
)
ENTER = OverheadWorkload(name="enter", family="overhead", policy="", make=lambda device: {})
CATALOGUE: dict[str, Workload] = {workload.name: workload for workload in (MM, STEP, COPY, ENTER)}

SPEEDS = {"fp32": 1.0, "fp32-aa": 1.0, "bf16": 3.9, "bf16-native": 0.5}


def processes(speeds: dict[str, float], workload: str = "mm-512", noise: float = 0.005, count: int = 5) -> list[Rounds]:
    """Return the rounds of processes whose variants run at some speeds; fp32 takes a millisecond."""
    random = np.random.default_rng(1)
    out = []
    for process in range(count):
        load = np.exp(random.normal(0, 0.1, 9))
        samples = {
            variant: [float(value) for value in 1e-3 / speed * load * np.exp(random.normal(0, noise, 9))]
            for variant, speed in speeds.items()
        }
        cpu = {variant: [value / 2 for value in values] for variant, values in samples.items()}
        out.append(Rounds(workload, "cpu", "eager", process, samples, cpu))
    return out


def one(rounds: list[Rounds], **options: Any) -> Group:
    """The only group of some rounds."""
    (group,) = summarize(rounds, CATALOGUE, **options)
    return group


def variant(group: Group, name: str) -> VariantResult:
    """A variant that must be there."""
    found = group.variant(name)
    assert found is not None
    return found
