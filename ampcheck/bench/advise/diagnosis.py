"""Explain why a variant of a step pays or does not: a function per reason, which returns a sentence or "".

Shares are of the time that the step's kernels took when each was timed by itself, 0 to 1. A reason's sentence has the
figures that it rests on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ampcheck.bench.core import table
from ampcheck.bench.core.model import PRECISIONS, VariantResult
from ampcheck.tools.trace.report import size, times

LAUNCH = 0.3
"""From this share on a step is launch-bound: Python, autograd and the optimizer come on top, and grow with the ops."""
CASTS = 0.1
KEPT = 0.1
BOUND = 2.0
"""Below this speed, what autocast lowers is too little of the step to gain much from."""
LOST = 0.01
"""The share of the gradients that underflow, from which on it is said."""
COST = 0.02
"""The relative error from which on it is said: bf16 rounds by 0.4 %, and a step adds up several roundings."""
MEMORY = 0.05
"""The part of float32's memory from which on a difference is said."""
TILE = 8
"""Tensor cores take two-byte numbers at full speed where sizes are multiples of this."""
ODD = 0.1
CACHE_OFF = "the weight cache is off"
_TOP = 3

_ISA: Mapping[str, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "neon_fp16"),
}
"""The instruction sets that multiply in a lower precision, by its name."""


@dataclass(frozen=True, slots=True)
class Recast:
    """A tensor that a region casts more than once before it changes: how often in a step, its bytes, and why."""

    kind: str
    source: str
    count: int
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Gradients:
    """A training step's gradients, of `total` numbers: `lost` are 0 where float32's are not, `nonfinite` infinite or
    nan where those are finite. `scale`: the GradScaler's, None without one. `lost_unscaled`: `lost` without it."""

    total: int
    lost: int = 0
    nonfinite: int = 0
    scale: float | None = None
    lost_unscaled: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The kernels and casts of a variant, op by op.

    `ops`: kernels, casts and views of a step. `cast_share`: the casts'. `casts`, `cast_bytes`: autocast's, those of
    gradients included. `lowered`, `lowered_share`: kernels that run in lower precision here and in float32 in the first
    variant, and their share of that one's time. `kept`: by op that a policy keeps in float32, its share. `cache_off`:
    casts and bytes of weights in regions whose cache is off. `recast`: what is cast again and again though it is on.
    `frozen`, `weights`: casts and bytes of parameters that need no gradient, and of those that do. `overflow`: the
    first op that returned infinity or nan, in words. `odd`: products with sizes that are not multiples of
    `TILE`, and `odd_share` theirs. `single`: seconds of one call of a variant that is too slow to be timed in turns.
    """

    ops: int = 0
    kernel_seconds: float = 0.0
    cast_share: float = 0.0
    casts: int = 0
    cast_bytes: int = 0
    lowered: int = 0
    lowered_share: float = 0.0
    kept: Mapping[str, float] = field(default_factory=dict)
    cache_off: tuple[int, int] = (0, 0)
    recast: Sequence[Recast] = ()
    frozen: tuple[int, int] = (0, 0)
    weights: tuple[int, int] = (0, 0)
    overflow: str = ""
    odd: Sequence[str] = ()
    odd_share: float = 0.0
    gradients: Gradients | None = None
    single: float | None = None


@dataclass(frozen=True, slots=True)
class StepCase:
    """A variant beside its group's first.

    `tiny`: seconds that it costs to start an op on one number on the device. `platform`: e.g. "cpu", "cuda", "tpu".
    `isa`: the CPU's instruction sets, empty where they are not known. `seen`, `first_seen`: None where the variant was
    not looked at.
    """

    device: str
    platform: str
    isa: Sequence[str]
    tiny: float
    first: VariantResult
    variant: VariantResult
    first_seen: Seen
    seen: Seen

    @property
    def low(self) -> str:
        """The variant's lower precision: "bf16" or "fp16"; "" for float32 and its like."""
        return self.variant.name.removesuffix("-native") if PRECISIONS[self.variant.name].low else ""

    @property
    def region(self) -> bool:
        """Return whether the variant has a region of autocast."""
        return PRECISIONS[self.variant.name].region is not None

    @property
    def pays(self) -> bool:
        """Return whether the variant is faster."""
        return self.variant.verdict == "faster"


def launch_bound(case: StepCase) -> str:
    """Say that the step's time goes into starting its ops, which no precision changes."""
    ops, seconds = case.first_seen.ops, case.first.seconds
    if not ops or not seconds or case.variant.seconds is None or ops * case.tiny < LAUNCH * seconds:
        return ""
    share = ops * case.tiny / seconds
    part = f"{share:.0%} of the step" if share <= 1 else "at least the whole step"
    extra = case.seen.ops - ops
    more = f"; {case.variant.name} starts {extra} more" if extra > 0 else ""
    return (
        f"launch-bound: float32's step is {ops} ops of {table.seconds(seconds / ops)} each, and a tiny add costs "
        f"{table.seconds(case.tiny)} on {case.device}, so starting them is {part}{more}; "
        f"larger batches, or compiling the step, would help"
    )


def casting(case: StepCase) -> str:
    """Say that the casts take a good part of what is gained."""
    seen = case.seen
    if not case.region or seen.cast_share < CASTS:
        return ""
    return (
        f"casts take {seen.cast_share:.0%} of the kernels' time: autocast makes {seen.casts} in each step, with "
        f"{size(seen.cast_bytes)} read and written"
    )


def no_native_kernel(case: StepCase) -> str:
    """Say that the CPU has no instructions for the precision."""
    wanted = _ISA.get(case.low, ())
    timed = case.variant.seconds is not None or case.seen.single is not None
    native = not wanted or not case.isa or set(wanted).intersection(case.isa)  # or nobody knows
    if case.platform != "cpu" or case.pays or not timed or native:
        return ""
    x86 = not any(name.startswith("neon") for name in case.isa)
    names = " or ".join(name for name in wanted if name.startswith("a") == x86)
    return (
        f"this CPU has no {case.low} arithmetic (that is {names}; it has {', '.join(case.isa)}), so that products are "
        "computed by conversion to float32 and back, or number by number"
    )


def cache_is_off(case: StepCase) -> str:
    """Say that weights are cast repeatedly, as a region keeps no copies. Casting each once would not matter."""
    again = [one for one in case.seen.recast if one.why == CACHE_OFF]
    if not case.region or not again:
        return ""
    count, moved = case.seen.cache_off
    return (
        f"{CACHE_OFF} for {count} casts of weights ({size(moved)} in each step), {sum(one.count - 1 for one in again)} "
        f"of them of weights that were cast before in the same step, such as {again[0].source}"
    )


def cache_is_defeated(case: StepCase) -> str:
    """Say that weights are cast more than once a step though the cache is on."""
    found = [one for one in case.seen.recast if one.why != CACHE_OFF and one.kind != "frozen"]
    if not case.region or not found:
        return ""
    shown = [f"{one.kind} {one.source} {times(one.count)} ({size(one.bytes)}): {one.why}" for one in found[:_TOP]]
    more = f"; and {len(found) - _TOP} more" if len(found) > _TOP else ""
    return f"the weight cache does not spare these casts: {'; '.join(shown)}{more}"


def frozen_weights(case: StepCase) -> str:
    """Say that parameters that never change are cast in every step."""
    count, moved = case.seen.frozen
    if not case.region or not count:
        return ""
    return (
        f"frozen parameters are cast {times(count)} in each step ({size(moved)}), as the weight cache skips what needs "
        f"no gradient: convert them to {case.low} once, beforehand"
    )


def cast_in_each_call(case: StepCase) -> str:
    """Say that a model without a loss, whose weights stay what they are, casts them in every call."""
    count, moved = case.seen.weights
    if not case.region or not count or case.seen.gradients is not None:
        return ""
    return (
        f"weights are cast {times(count)} in each call ({size(moved)}): cast them once beforehand, by "
        f"model.to(torch.{'bfloat16' if case.low == 'bf16' else 'float16'}), as {case.low}-native does"
    )


def kept_in_float32(case: StepCase) -> str:
    """Say that policies keep in float32 the ops that take the time."""
    kept = case.seen.kept
    total = sum(kept.values())
    if not case.region or total < KEPT:
        return ""
    top = sorted(kept.items(), key=lambda one: -one[1])[:_TOP]
    return (
        f"autocast keeps {total:.0%} of the kernels' time in float32 by policy: "
        f"{', '.join(f'{name} {share:.0%}' for name, share in top)}"
    )


def nothing_lowered(case: StepCase) -> str:
    """Say that autocast runs nothing of the step in lower precision."""
    if not case.region or case.seen.lowered or not case.seen.ops:
        return ""
    return f"autocast lowers nothing in it: all of its {case.seen.ops} ops run as they do in float32"


def amdahl(case: StepCase) -> str:
    """Say that autocast lowers too little of the step's time to gain much (Amdahl 1967)."""
    share = case.seen.lowered_share
    if not case.region or not case.seen.lowered or share >= 1 or 1 / (1 - share) >= BOUND:
        return ""
    return (
        f"what autocast lowers takes {share:.0%} of float32's kernel time, so that the step could be "
        f"{1 / (1 - share):.2f} times as fast at most, even if that took no time at all"
    )


def odd_sizes(case: StepCase) -> str:
    """Say that tensor cores do not take some sizes at full speed."""
    if case.platform != "cuda" or not case.low or not case.seen.odd or case.seen.odd_share < ODD:
        return ""
    shown = ", ".join(case.seen.odd[:_TOP]) + (", …" if len(case.seen.odd) > _TOP else "")
    return (
        f"products with sizes that are not multiples of {TILE}, which tensor cores want, take "
        f"{case.seen.odd_share:.0%} of the kernels' time: {shown}; pad them"
    )


def gradients_lost(case: StepCase) -> str:
    """Say that the precision cannot hold some gradients."""
    found = case.seen.gradients
    if found is None or not case.low or not found.total:
        return ""
    parts = []
    if found.nonfinite:
        skipped = "" if found.scale is None else ", so that the update is skipped"
        parts.append(
            f"{found.nonfinite} of {found.total} gradients are infinite or nan where float32's are not{skipped}"
        )
    if found.lost >= LOST * found.total:
        parts.append(f"{found.lost / found.total:.1%} of the gradients are 0 where float32's are not")
    if not parts:
        return ""
    scaler = "without a GradScaler" if found.scale is None else f"at a GradScaler's scale of {found.scale:g}"
    return f"{scaler}, {' and '.join(parts)}"


def needs_scaler(case: StepCase) -> str:
    """Say that float16's gradients underflow without a GradScaler."""
    found = case.seen.gradients
    if found is None or found.scale is None or found.lost_unscaled is None:
        return ""
    if found.lost_unscaled < LOST * found.total or found.lost_unscaled <= found.lost:
        return ""
    return (
        f"it needs its GradScaler: without one {found.lost_unscaled / found.total:.1%} of the gradients would be 0 "
        f"where float32's are not, with its scale of {found.scale:g} {found.lost / found.total:.1%} are"
    )


def accuracy_cost(case: StepCase) -> str:
    """Say that the variant is further from float64 than rounding alone explains."""
    error = case.variant.error
    if error is None or not case.low or error < COST:
        return ""
    if error == float("inf"):
        first = f"; the first op is {case.seen.overflow}" if case.seen.overflow else ""
        return (
            f"it does not compute what float64 does: it has infinities, nans, or numbers where float64 has zeros{first}"
        )
    return f"it costs accuracy: its relative error is {table.error(error)}, float32's {table.error(case.first.error)}"


def memory(case: StepCase) -> str:
    """Say how much memory a step holds beside float32's."""
    ours, first = case.variant.memory, case.first.memory
    if not ours or not first or abs(ours - first) < MEMORY * first:
        return ""
    return f"it holds {table.memory(ours)} at its peak beyond the model, float32 {table.memory(first)}"


def shares(case: StepCase) -> str:
    """Say how a region's time is divided; "" for a variant without a region, or that was not looked at."""
    seen = case.seen
    if not case.region or not seen.ops:
        return ""
    return (
        f"lowered is what takes {seen.lowered_share:.0%} of float32's kernel time; of this variant's, casts take "
        f"{seen.cast_share:.0%}, and what a policy keeps in float32 {sum(seen.kept.values()):.0%}"
    )


SPEED: tuple[Callable[[StepCase], str], ...] = (
    *(nothing_lowered, no_native_kernel, launch_bound, amdahl, casting, cache_is_off, cache_is_defeated),
    *(frozen_weights, cast_in_each_call, kept_in_float32, odd_sizes),
)
"""The reasons why a variant is not faster, or not as fast as it could be."""

VALUES: tuple[Callable[[StepCase], str], ...] = (gradients_lost, needs_scaler, accuracy_cost, memory)
"""The reasons not to use a variant although it is faster, or to use it although it is not."""


def spoken(case: StepCase, reasons: Sequence[Callable[[StepCase], str]]) -> list[str]:
    """Return the sentences of the reasons that hold."""
    return [text for reason in reasons if (text := reason(case))]
