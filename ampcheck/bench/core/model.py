"""The data of benchmarks: workloads, the variants each is run in, and their results."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypedDict

import torch
from msgspec import Meta
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

ESTIMATED = ("tpu-", "cuda-")
"""The beginnings of the names of devices that a compiler estimates."""

COMPILERS = ("eager", "graph", "compile", "jit")
"""eager: op by op. graph: replayed from a CUDA graph. compile: `torch.compile`. jit: `ampcheck.jax_device.jit`, the
whole call one XLA program."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A way to choose dtypes: a variant of a workload. The A/A baseline is the first one once more, by another name.

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

    @property
    def aa(self) -> bool:
        """Return whether it is an A/A baseline."""
        return self.name.endswith(AA)


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
    "promote", "fallthrough", or "mixed" for a step. `samples`: how many samples a call works on, 0 where that means
    nothing. `quick`: whether the quick mode has it. `heavy`: only for a GPU or TPU.
    """

    kind: ClassVar[str]
    """What it is: "op", "step" or "overhead"."""
    name: str
    family: str
    policy: str
    base: str = ""
    size: int = 0
    samples: int = 0
    quick: bool = False
    heavy: bool = False
    fp16_on_cpu: bool = True
    """False where float16 on a CPU takes minutes: torch has no fast kernels for it there."""


class WorkloadOptions(TypedDict, total=False):
    """The fields of a workload that a family's file passes on."""

    base: str
    size: int
    quick: bool
    heavy: bool
    fp16_on_cpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWorkload(Workload):
    """A call of an op on some tensors. `call` gets them on the device, in the variant's dtype.

    `needed`: the share of the products of its attention that a kernel cannot leave out. `view`: it moves no data.
    """

    kind: ClassVar[str] = "op"
    inputs: tuple[Spec, ...]
    call: Callable[..., torch.Tensor]
    module: Callable[[], nn.Module] | None = None
    """A module to make and pass first, converted like the inputs."""
    needed: float = 1
    view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWorkload(Workload):
    """A training step: forward, loss, backward, update by SGD.

    `model` is made with seed 0 on the CPU. `loss` gets the model's output and the last of `inputs`; the model gets the
    others. `scaler`: with a GradScaler; fp16 variants have one in any case. `overflows`: every step's scaled gradients
    are infinite, so that the update is skipped.
    """

    kind: ClassVar[str] = "step"
    model: Callable[[], nn.Module]
    inputs: tuple[Spec, ...]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    rate: float = 1e-3
    scaler: bool = False
    overflows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadWorkload(Workload):
    """The overhead of autocast: variants of a call by name, the first the baseline. `make` gets the device type."""

    kind: ClassVar[str] = "overhead"
    make: Callable[[str], Mapping[str, Callable[[], object]]]


def key_of(device: str, compiler: str, workload: str) -> str:
    """Return the name of a group across runs."""
    return f"{device}/{compiler}/{workload}"


Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=0)]
Kind = Annotated[str, Meta(extra_json_schema={"enum": ("op", "step", "overhead")})]
Compiler = Annotated[str, Meta(extra_json_schema={"enum": COMPILERS})]

_ONE = "|".join(VERDICTS)
Verdict = Annotated[str, Meta(pattern=f"^({_ONE}|first)$", extra_json_schema={"enum": ("first", *VERDICTS)})]
"""One of `VERDICTS`, or "first" for the variant that the others are compared with."""
DefaultVerdict = Annotated[str, Meta(pattern=f"^({_ONE})?$", extra_json_schema={"enum": VERDICTS})]
"""One of `VERDICTS`, or nothing."""


@dataclass(slots=True)
class VariantResult:
    """Hold the results of one variant. Times are seconds of one call; ratios are speeds beside the first variant.

    `speed` is the median of paired ratios. `share` is None where the device's peak is not known, and where `ceiling`
    says that the variant exceeds it. `at_most` follows from `at_least`, where the variant passed its precision check.
    `ampcheck/report/outputs.toml` says what each field is, as of the classes below.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    seconds: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None
    cpu_seconds: float | None = None
    rounds: Count = 0
    processes: Count = 0
    speed: Positive | None = None
    speed_low: Positive | None = None
    speed_high: Positive | None = None
    error: Annotated[float, Meta(ge=0)] | None = None
    precision_check: str = ""
    flops_per_second: Amount | None = None
    bytes_per_second: Amount | None = None
    share: Amount | None = None
    intensity: Amount | None = None
    memory: Count | None = None
    compile: Amount | None = None
    first: Amount | None = None
    ceiling: str = ""
    at_least: Positive | None = None
    at_most: Positive | None = None
    default_speed: Positive | None = None
    default_low: Positive | None = None
    default_high: Positive | None = None
    default_verdict: DefaultVerdict = ""


@dataclass(slots=True)
class Group:
    """Hold a workload on a device through a compiler: its variants, all compared with the first one."""

    workload: str
    family: str
    kind: Kind
    device: str
    compiler: Compiler
    policy: str = ""
    base: str = ""
    size: Count = 0
    flops: Amount = 0
    samples: int = 0
    estimate: bool = False
    note: str = ""
    variants: Annotated[list[VariantResult], Meta(min_length=1)] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name across runs: `device/compiler/workload`."""
        return key_of(self.device, self.compiler, self.workload)

    def variant(self, name: str) -> VariantResult | None:
        """Return the variant of that name."""
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(slots=True)
class Rounds:
    """One process's measurements of one group: for each variant, a sample a round, in the order of the rounds.

    The same round's samples of two variants are a pair. `facts` has fields of `VariantResult` such as `error`,
    `precision_check` and `memory`, and `invalid`, the reason why the measured values do not count.
    """

    workload: str
    device: str
    compiler: Compiler
    process: Count
    samples: dict[str, list[Annotated[float, Meta(gt=0)]]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The group's."""
        return key_of(self.device, self.compiler, self.workload)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A measuring process's task.

    `tasks`: pairs of workload and compiler. `target`: seconds of a sample. `patience`: seconds that a variant may take.
    `given_up`: variants of the first task that an earlier process did not get done, with `reason` and perhaps
    `at_least` as in `VariantResult`.
    """

    device: str
    modules: Sequence[str]
    process: int
    rounds: int
    target: float
    threads: int
    tasks: Sequence[tuple[str, str]]
    patience: float = math.inf
    given_up: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def facts(self) -> bool:
        """Return whether to find out, too, what is found out once: precision, error, memory."""
        return self.process == 0
