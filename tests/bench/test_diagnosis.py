"""Each reason of an advice speaks where it holds and is silent where it does not; what real models show of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.advise import diagnosis, worker
from ampcheck.bench.advise.diagnosis import Gradients, Recast, Seen, StepCase
from ampcheck.bench.advise.user_step import StepSpec, UserStep
from ampcheck.bench.core.model import PRECISIONS, VariantResult
from ampcheck.devices.cpu import Cpu
from tests.bench.test_advice import mean

CPU = Cpu()

# ---- reasons, from injected evidence

BF16 = StepCase(
    device="cpu",
    platform="cpu",
    isa=("avx2", "avx512f", "avx512_bf16"),
    tiny=1e-6,
    first=VariantResult("fp32", "first", seconds=10e-3, error=2e-7),
    variant=VariantResult("bf16", "slower", seconds=20e-3, speed=0.5, error=3e-3),
    first_seen=Seen(ops=100),
    seen=Seen(ops=120, lowered=40, lowered_share=0.9, cast_share=0.02, casts=12, cast_bytes=5000),
)
FP16 = replace(BF16, variant=replace(BF16.variant, name="fp16"))
NATIVE = replace(BF16, variant=replace(BF16.variant, name="bf16-native"))


def seeing(case: StepCase = BF16, **values: object) -> StepCase:
    return replace(case, seen=replace(case.seen, **values))  # type: ignore[arg-type]


SHARED = Recast("weight", "head.weight", 3, 6000, "the region that its copy was cached for had ended")
UNCACHED = replace(SHARED, why=diagnosis.CACHE_OFF)

CUDA = replace(BF16, platform="cuda")
UNMEASURED = VariantResult("fp16", "not measured", "no kernel")
Reason = Callable[[StepCase], str]


def erring(error: float) -> StepCase:
    return replace(BF16, variant=replace(BF16.variant, error=error))


def losing(case: StepCase, **values: float) -> StepCase:
    """A case of a thousand gradients, some of which are lost."""
    return seeing(case, gradients=Gradients(1000, **values))  # type: ignore[arg-type]


HOLDING = replace(BF16, first=replace(BF16.first, memory=4096), variant=replace(BF16.variant, memory=2048))
HOLD: list[tuple[Reason, StepCase, str]] = [
    (diagnosis.launch_bound, replace(BF16, tiny=52e-6), "a tiny add costs 52.0 µs on cpu, so starting them is 52%"),
    (diagnosis.launch_bound, replace(BF16, tiny=150e-6), "150 µs on cpu, so starting them is at least the whole step"),
    (diagnosis.casting, seeing(cast_share=0.25), "casts take 25% of the kernels' time: autocast makes 12 in each step"),
    (diagnosis.no_native_kernel, FP16, "this CPU has no fp16 arithmetic (that is avx512_fp16 or amx_fp16"),
    (diagnosis.no_native_kernel, replace(BF16, isa=("avx2",)), "no bf16 arithmetic (that is avx512_bf16 or amx_bf16"),
    (diagnosis.no_native_kernel, replace(BF16, isa=("neon",)), "no bf16 arithmetic (that is bf16 or sve_bf16"),
    (diagnosis.cache_is_off, seeing(cache_off=(6, 6000), recast=[UNCACHED]), "for 6 casts of weights (6.0 kB in each"),
    (diagnosis.cache_is_defeated, seeing(recast=[SHARED]), "weight head.weight 3 times (6.0 kB): the region that its"),
    (diagnosis.frozen_weights, seeing(frozen=(4, 2000)), "are cast 4 times in each step (2.0 kB)"),
    (diagnosis.cast_in_each_call, seeing(weights=(4, 2000)), "weights are cast 4 times in each call (2.0 kB)"),
    (diagnosis.memory, HOLDING, "it holds 2.00 KiB at its peak beyond the model, float32 4.00 KiB"),
    (diagnosis.kept_in_float32, seeing(kept={"prod": 0.2, "mse_loss": 0.3}), "keeps 50% of the kernels' time"),
    (diagnosis.nothing_lowered, seeing(lowered=0), "autocast lowers nothing in it: all of its 120 ops"),
    (diagnosis.amdahl, seeing(lowered_share=0.2), "takes 20% of float32's kernel time, so that the step could be 1.25"),
    (diagnosis.odd_sizes, seeing(CUDA, odd=["mm 9×8 @ 8×8"], odd_share=0.4), "take 40% of the kernels' time: mm 9×8"),
    (diagnosis.gradients_lost, losing(NATIVE, lost=50, nonfinite=3), "without a GradScaler, 3 of 1000 gradients"),
    (diagnosis.gradients_lost, losing(FP16, nonfinite=3, scale=4.0), "at a GradScaler's scale of 4, 3 of 1000"),
    (diagnosis.needs_scaler, losing(FP16, lost=1, scale=1024.0, lost_unscaled=200), "without one 20.0% of the"),
    (diagnosis.accuracy_cost, erring(0.25), "error is 2.5e-01, float32's 2.0e-07"),
    (diagnosis.accuracy_cost, erring(float("inf")), "does not compute what float64"),
]

SILENT: list[tuple[Reason, StepCase]] = [
    *((reason, BF16) for reason in (*diagnosis.SPEED, *diagnosis.VALUES)),
    (diagnosis.launch_bound, replace(BF16, tiny=52e-6, variant=UNMEASURED)),
    (diagnosis.casting, seeing(NATIVE, cast_share=0.25)),
    (diagnosis.no_native_kernel, replace(FP16, isa=("avx512_fp16",))),
    (diagnosis.no_native_kernel, replace(FP16, isa=())),
    (diagnosis.no_native_kernel, replace(FP16, platform="cuda")),
    (diagnosis.no_native_kernel, replace(FP16, variant=replace(FP16.variant, name="tf32"))),
    (diagnosis.no_native_kernel, replace(FP16, variant=replace(FP16.variant, verdict="faster"))),
    (diagnosis.no_native_kernel, replace(FP16, variant=UNMEASURED)),
    (diagnosis.cache_is_off, seeing(cache_off=(6, 6000))),
    (diagnosis.cache_is_off, seeing(recast=[SHARED])),
    (diagnosis.cache_is_defeated, seeing(recast=[UNCACHED])),
    (diagnosis.kept_in_float32, seeing(kept={"prod": 0.05})),
    (diagnosis.amdahl, seeing(lowered_share=1.0)),
    (diagnosis.amdahl, seeing(lowered=0, lowered_share=0.0)),
    (diagnosis.odd_sizes, seeing(odd=["mm 9×8 @ 8×8"], odd_share=0.4)),
    (diagnosis.odd_sizes, seeing(CUDA, odd=["mm 9×8 @ 8×8"], odd_share=0.01)),
    (diagnosis.gradients_lost, losing(FP16, lost=5, scale=1.0)),
    (diagnosis.needs_scaler, losing(FP16, lost=50, scale=1.0, lost_unscaled=50)),
    (diagnosis.needs_scaler, losing(FP16, lost=50)),
]


@pytest.mark.parametrize(("reason", "case", "words"), HOLD)
def test_a_reason_speaks_where_it_holds(reason: Reason, case: StepCase, words: str) -> None:
    assert words in reason(case)


@pytest.mark.parametrize(("reason", "case"), SILENT)
def test_a_reason_is_silent_where_it_does_not_hold(reason: Reason, case: StepCase) -> None:
    assert reason(case) == ""


def test_shares_are_told_of_regions_that_were_looked_at() -> None:
    told = diagnosis.shares(seeing(kept={"prod": 0.05}))
    assert all(share in told for share in ("90% of float32's", "casts take 2%", "in float32 5%"))
    assert diagnosis.shares(NATIVE) == diagnosis.shares(replace(BF16, seen=Seen())) == ""


# ---- evidence, from real models


class Shared(nn.Module):
    """A weight that is used four times, in its region; and one that needs no gradient."""

    def __init__(self, cache: bool) -> None:
        super().__init__()
        self.cache = cache
        self.again = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, torch.is_autocast_enabled("cpu"), cache_enabled=self.cache):
            for _ in range(4):
                x = self.again(x)
        return self.frozen(x)  # type: ignore[no-any-return]  # modules return what they like


class Wide(nn.Module):
    """Ops of an fp32 policy take most of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(self.linear(x).repeat(1, 512)).abs().prod(1)


def mlp(width: int, batch: int, depth: int = 2) -> StepSpec:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return StepSpec(nn.Sequential(*layers), (torch.randn(batch, width), torch.randn(batch, width)), F.mse_loss)


def saw(spec: StepSpec, precision: str = "bf16") -> Seen:
    """Return what is seen of a step on the CPU."""
    first, _ = worker.once(UserStep(spec, PRECISIONS["fp32"], "cpu"), CPU)
    kernels, trace = worker.look(UserStep(spec, PRECISIONS[precision], "cpu"), CPU, 0.0)
    return worker.seen(kernels, first, trace.ops)


def test_what_autocast_lowers_in_a_big_product_is_counted() -> None:
    seen = saw(mlp(256, 256))
    assert seen.lowered >= 7  # two products forward, three backward, two activations
    assert (seen.casts, seen.recast, seen.frozen, seen.cache_off) == (11, [], (0, 0), (0, 0))
    # Two weights, the input and the output, and the gradients of all but the input; and two biases with theirs.
    assert seen.cast_bytes == 6 * (7 * 256 * 256 + 4 * 256)


def test_a_region_without_cache_casts_a_shared_weight_again_and_again() -> None:
    seen = saw(StepSpec(Shared(False), (torch.randn(4, 32),), mean))
    assert seen.cache_off[0] == 8
    assert {(one.source, one.count, one.why) for one in seen.recast} == {
        (f"again.{name}", 4, diagnosis.CACHE_OFF) for name in ("weight", "bias")
    }
    assert "6 of them of weights" in diagnosis.cache_is_off(replace(BF16, seen=seen))
    assert seen.frozen == (2, 6 * (32 * 32 + 32))
    assert diagnosis.frozen_weights(replace(BF16, seen=seen))
    with_cache = saw(StepSpec(Shared(True), (torch.randn(4, 32),), mean))
    assert with_cache.recast == []
    assert diagnosis.cache_is_off(replace(BF16, seen=with_cache)) == ""


def test_ops_of_an_fp32_policy_have_their_share_backward_included() -> None:
    seen = saw(StepSpec(Wide(), (torch.randn(256, 8),), mean))
    assert set(seen.kept) == {"fft_rfft", "prod"}
    assert "float32 by policy" in diagnosis.kept_in_float32(replace(BF16, seen=seen))
    assert saw(mlp(64, 64)).kept.keys() == {"mse_loss"}


def test_sizes_that_are_no_multiple_of_eight_are_seen() -> None:
    assert saw(mlp(16, 8)).odd == []
    assert "addmm 9×16 @ 16×16" in saw(mlp(16, 9)).odd
    convolution = saw(StepSpec(nn.Conv2d(3, 8, 3), (torch.randn(1, 3, 8, 8),), None))
    assert convolution.odd == ["convolution of 3 to 8 channels"]


def test_lost_gradients_are_counted_with_and_without_a_scaler() -> None:
    torch.manual_seed(0)
    spec = StepSpec(nn.Linear(16, 16), (torch.randn(8, 16),), lambda out: out.float().square().mean() * 1e-7)
    fp32 = UserStep(spec, PRECISIONS["fp32"], "cpu").output()
    scaled = UserStep(spec, PRECISIONS["fp16"], "cpu")
    bare = UserStep(spec, PRECISIONS["fp16"], "cpu", scaled=False)
    assert scaled.settle() == 0
    found = worker.gradients(scaled.output(), fp32, scaled.scaler.get_scale(), bare.output())
    assert found == Gradients(272, 0, 0, 65536.0, 272)
    assert diagnosis.needs_scaler(replace(seeing(FP16, gradients=found)))


def test_a_step_that_overflows_settles_at_a_smaller_scale() -> None:
    spec = StepSpec(nn.Linear(16, 16), (torch.randn(8, 16),), lambda out: out.sum() * 4.0)
    step = UserStep(spec, PRECISIONS["fp16"], "cpu")
    assert step.settle() >= 2
    assert step.output().isfinite().all()
