"""The data of benchmarks: workloads, the variants each is run in, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VERDICTS = ("slower", "faster", "same", "ambiguous", "unstable", "invalid", "not measured")
"""Of a variant beside its group's first. slower, faster: the interval of the ratio lies beyond the bound of equal
variants and beyond the interval of the A/A baseline. same: within it. ambiguous: neither, or what the A/A baseline
shows as well. unstable: the spread is too wide to say anything. invalid: measured, but not what the variant's name
says, or not what happened. not measured: `reason` says why."""

DEFAULT = "fp32-default"
"""The variant of float32 as the platform shortens it unless told otherwise; a TPU multiplies in one bf16 pass."""

AA = "-aa"
"""The end of an A/A baseline's name: the first variant timed once more, whose ratio is the noise."""

ESTIMATED = "tpu-"
"""The beginning of the names of devices that a compiler estimates."""

COMPILERS = ("eager", "graph", "compile", "jit")
"""eager: op by op. graph: replayed from a CUDA graph. compile: `torch.compile`. jit: `ampcheck.jax_device.jit`, the
whole call one XLA program."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A way to choose dtypes.

    `region`: the dtype of the autocast region, None for none. `convert`: what the model and its inputs are converted
    to beforehand, None for float32. `matmul`: how the backend may shorten float32 products: "highest" not at all,
    "tf32" on CUDA, "default" as the platform likes (a TPU multiplies in one bf16 pass).
    """

    name: str
    region: torch.dtype | None = None
    convert: torch.dtype | None = None
    matmul: str = "highest"

    @property
    def low(self) -> torch.dtype | None:
        """The lower precision it computes in, None for float32."""
        return self.region or self.convert


PRECISIONS: Mapping[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32"),
        Precision("tf32", matmul="tf32"),
        Precision("fp32-default", matmul="default"),
        Precision("bf16", region=torch.bfloat16),
        Precision("fp16", region=torch.float16),
        Precision("bf16-native", convert=torch.bfloat16),
        Precision("fp16-native", convert=torch.float16),
    )
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a comparison: a precision, or the first one once more as the A/A baseline (`aa`)."""

    precision: Precision
    aa: bool = False

    @property
    def name(self) -> str:
        """Its name in tables and files, e.g. "bf16" or "fp32-aa"."""
        return self.precision.name + (AA if self.aa else "")


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor to make: normal numbers of a shape, float32 unless said; integers below `high` where that is set.

    `channels_last`: its memory format.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    high: int | None = None
    channels_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to time. `name` is unique: its series has it in every run group.

    `family`: what it belongs to, e.g. "matmul". `size`: its place on the family's axis of sizes; `base` names that
    axis, e.g. "mm", "" for a workload that has none. `policy`: what autocast does with it: "downcast", "upcast",
    "promote", "fallthrough", or "mixed" for a step. `flops`:
    floating point operations of one call, 0 where nobody counts them. `moved`: bytes that must be read and written
    at least, given the bytes of an element. `samples`: how many samples a call works on, 0 where that means nothing.
    `quick`: whether the quick mode has it. `heavy`: only for a GPU or TPU.
    """

    name: str
    family: str
    policy: str
    base: str = ""
    size: int = 0
    flops: float = 0
    moved: Callable[[int], float] | None = None
    samples: int = 0
    quick: bool = False
    heavy: bool = False
    fp16_on_cpu: bool = True
    """False where float16 on a CPU takes minutes: torch has no fast kernels for it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWorkload(Workload):
    """A call of an op on some tensors. `call` gets them on the device, in the variant's dtype."""

    inputs: tuple[Spec, ...]
    call: Callable[..., torch.Tensor]
    module: Callable[[], nn.Module] | None = None
    """A module to make and pass first, converted like the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWorkload(Workload):
    """A training step: forward, loss, backward, update by SGD.

    `model` is made with seed 0 on the CPU. `loss` gets the model's output and the last of `inputs`; the model gets the
    others. `scaler`: with a GradScaler; fp16 variants have one in any case. `overflows`: every step's scaled gradients
    are infinite, so that the update is skipped.
    """

    model: Callable[[], nn.Module]
    inputs: tuple[Spec, ...]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    rate: float = 1e-3
    scaler: bool = False
    overflows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadWorkload(Workload):
    """The overhead of autocast: variants of a call by name, the first the baseline. `make` gets the device type."""

    make: Callable[[str], Mapping[str, Callable[[], Any]]]


@dataclass(slots=True)
class VariantResult:
    """The results of one variant. Times are seconds of one call; ratios are speeds beside the group's first variant.

    `seconds`: the median over rounds and processes, `low` and `high` the middle 90 % of the samples. `speed`: the
    median of paired ratios, `speed_low` and `speed_high` its 95 % interval. `error`: against float64, relative.
    `precision_check`: the kernels' dtypes that show the variant's precision. `share`: of the device's peak, 0 to 1;
    None where there is none, and where `ceiling` says that the variant exceeds it. `intensity`: flops per byte.
    `memory`: peak bytes. `compile`, `first`: seconds to compile, and of the first call with it.

    `at_least`: of a variant that was given up, seconds that no call took less than; `at_most`: the speed that follows,
    where the variant passed its precision check. `default_speed` with its interval and `default_verdict`:
    beside the variant `DEFAULT`, where the group has one.
    """

    name: str
    verdict: str
    reason: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    cpu_seconds: float | None = None
    rounds: int = 0
    processes: int = 0
    speed: float | None = None
    speed_low: float | None = None
    speed_high: float | None = None
    error: float | None = None
    precision_check: str = ""
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    share: float | None = None
    intensity: float | None = None
    memory: int | None = None
    compile: float | None = None
    first: float | None = None
    ceiling: str = ""
    at_least: float | None = None
    at_most: float | None = None
    default_speed: float | None = None
    default_low: float | None = None
    default_high: float | None = None
    default_verdict: str = ""


@dataclass(slots=True)
class Group:
    """A workload on a device through a compiler: its variants, all compared with the first one.

    `estimate`: the figures come from a compiler, not from a clock; `note` says what a reader must know.
    """

    workload: str
    family: str
    kind: str
    device: str
    compiler: str
    policy: str = ""
    base: str = ""
    size: int = 0
    flops: float = 0
    samples: int = 0
    estimate: bool = False
    note: str = ""
    variants: list[VariantResult] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name across runs: `device/compiler/workload`."""
        return f"{self.device}/{self.compiler}/{self.workload}"

    def variant(self, name: str) -> VariantResult | None:
        """The variant of that name."""
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(slots=True)
class Rounds:
    """One process's measurements of one group: for each variant, a sample a round, in the order of the rounds.

    `samples[variant][round]`: seconds of one call; the same round's samples of two variants are a pair. `cpu` likewise
    in CPU time. `facts`: what was found out once, by variant: fields of `VariantResult` such as `error`,
    `precision_check`, `memory`, and `invalid`, the reason why what was measured does not count. `failed`: variants that
    could not be measured, and why.
    """

    workload: str
    device: str
    compiler: str
    process: int
    samples: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The group's: `device/compiler/workload`."""
        return f"{self.device}/{self.compiler}/{self.workload}"


def kind_of(workload: Workload) -> str:
    """Return "op", "step" or "overhead"."""
    kinds: Sequence[tuple[type, str]] = ((OpWorkload, "op"), (StepWorkload, "step"), (OverheadWorkload, "overhead"))
    return next(name for cls, name in kinds if isinstance(workload, cls))


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A measuring process's task.

    `tasks`: pairs of workload and compiler. `target`: seconds of a sample. `facts`: whether to find out, too, what is
    found out once: precision, error, memory. `patience`: seconds that a variant may take. `given_up`: variants of
    the first task that an earlier process did not get done, with `reason` and perhaps `at_least` as in `VariantResult`.
    """

    device: str
    modules: Sequence[str]
    process: int
    rounds: int
    target: float
    facts: bool
    threads: int
    tasks: Sequence[tuple[str, str]]
    patience: float = math.inf
    given_up: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
