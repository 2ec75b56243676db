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


@dataclass(slots=True)
class VariantResult:
    """Hold the results of one variant. Times are seconds of one call; ratios are speeds beside the first variant.

    `speed` is the median of paired ratios. `share` is None where the device's peak is not known, and where `ceiling`
    says that the variant exceeds it. `at_most` follows from `at_least`, where the variant passed its precision check.
    """

    name: Annotated[str, Meta(description="Name of the variant, such as `fp32` or `bf16`.")]
    verdict: Annotated[
        str,
        Meta(
            description="Beside the group's first variant, which is `first`.",
            pattern=f"^({'|'.join(VERDICTS)}|first)$",
            extra_json_schema={"enum": ("first", *VERDICTS)},
        ),
    ]
    reason: Annotated[str, Meta(description="Why the verdict is none.")] = ""
    seconds: Annotated[Positive | None, Meta(description="Median time of one call, in seconds.")] = None
    low: Annotated[Positive | None, Meta(description="Lower end of the middle 90 % of the samples, in seconds.")] = None
    high: Annotated[Positive | None, Meta(description="Upper end of it, in seconds.")] = None
    cpu_seconds: Annotated[float | None, Meta(description="Median processor time of one call, in seconds.")] = None
    rounds: Annotated[int, Meta(description="How many samples.", ge=0)] = 0
    processes: Annotated[int, Meta(description="Of how many processes.", ge=0)] = 0
    speed: Annotated[
        Positive | None,
        Meta(
            description="Seconds of the first variant over seconds of this one, median of the pairs; above 1 is faster."
        ),
    ] = None
    speed_low: Annotated[Positive | None, Meta(description="Lower end of its 95 % interval.")] = None
    speed_high: Annotated[Positive | None, Meta(description="Upper end of it.")] = None
    error: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="Relative error of the values against float64.")
    ] = None
    precision_check: Annotated[
        str, Meta(description="The dtypes of kernels that show the precision that the variant computed in.")
    ] = ""
    flops_per_second: Annotated[Amount | None, Meta(description="Rate of arithmetic, in flop/s.")] = None
    bytes_per_second: Annotated[Amount | None, Meta(description="Rate of memory traffic, in bytes/s.")] = None
    share: Annotated[Amount | None, Meta(description="Share of the device's ceiling, 0 to 1.")] = None
    intensity: Annotated[Amount | None, Meta(description="Flops per byte.")] = None
    memory: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Peak memory, in bytes.")] = None
    compile: Annotated[Amount | None, Meta(description="Time to compile, in seconds.")] = None
    first: Annotated[Amount | None, Meta(description="Time of the first call, with compilation, in seconds.")] = None
    ceiling: Annotated[str, Meta(description="What is said in place of a share above 1.")] = ""
    at_least: Annotated[
        Positive | None, Meta(description="Of a variant that was given up: no call took less, in seconds.")
    ] = None
    at_most: Annotated[Positive | None, Meta(description="Of such a variant: its speed at most.")] = None
    default_speed: Annotated[
        Positive | None, Meta(description="Speed beside the variant `fp32-default`, where there is one.")
    ] = None
    default_low: Annotated[Positive | None, Meta(description="Lower end of its 95 % interval.")] = None
    default_high: Annotated[Positive | None, Meta(description="Upper end of it.")] = None
    default_verdict: Annotated[
        str,
        Meta(
            description="Verdict beside `fp32-default`.",
            pattern=f"^({'|'.join(VERDICTS)})?$",
            extra_json_schema={"enum": VERDICTS},
        ),
    ] = ""


@dataclass(slots=True)
class Group:
    """Hold a workload on a device through a compiler: its variants, all compared with the first one."""

    workload: Annotated[str, Meta(description="Name of the workload; `device/compiler/workload` is the group's key.")]
    family: Annotated[str, Meta(description="What it belongs to, such as `matmul`.")]
    kind: Annotated[str, Meta(description="What it is.", extra_json_schema={"enum": ("op", "step", "overhead")})]
    device: Annotated[str, Meta(description="Name of the device.")]
    compiler: Annotated[str, Meta(description="What ran it.", extra_json_schema={"enum": COMPILERS})]
    policy: Annotated[str, Meta(description="What autocast does with it.")] = ""
    base: Annotated[str, Meta(description="Name of the axis of sizes.")] = ""
    size: Annotated[int, Meta(description="Place on that axis.", ge=0)] = 0
    flops: Annotated[Amount, Meta(description="Floating point operations of one call.")] = 0
    samples: Annotated[int, Meta(description="Samples that a call works on.")] = 0
    estimate: Annotated[bool, Meta(description="Whether a compiler estimated it, and no clock measured.")] = False
    note: Annotated[str, Meta(description="What a reader must know.")] = ""
    variants: Annotated[
        list[VariantResult], Meta(description="The variants; the others are compared with the first.", min_length=1)
    ] = field(default_factory=list)

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

    workload: Annotated[str, Meta(description="Name of the workload.")]
    device: Annotated[str, Meta(description="Name of the device.")]
    compiler: Annotated[str, Meta(description="What ran it.", extra_json_schema={"enum": COMPILERS})]
    process: Annotated[int, Meta(description="Number of the process, from 0.", ge=0)]
    samples: Annotated[
        dict[str, list[Annotated[float, Meta(gt=0)]]],
        Meta(description="By variant, seconds of one call in each round."),
    ] = field(default_factory=dict)
    cpu: Annotated[
        dict[str, list[float]], Meta(description="By variant, seconds of processor time of one call in each round.")
    ] = field(default_factory=dict)
    facts: Annotated[
        dict[str, dict[str, Any]], Meta(description="By variant, what was found out once, such as error and memory.")
    ] = field(default_factory=dict)
    failed: Annotated[dict[str, str], Meta(description="By variant, why it could not be measured.")] = field(
        default_factory=dict
    )

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
