"""Each reason of an advice speaks where it holds and is silent where it does not; what real models show of it."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import convert
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.advise import diagnosis, worker
from ampcheck.bench.advise.diagnosis import Gradients, Seen, StepCase
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
REASONS = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8"))


def seeing(seen: Mapping[str, object], **changed: str) -> StepCase:
    """The case with other evidence, and another variant where that is said."""
    found = convert({**asdict(BF16.seen), **seen}, Seen)
    return replace(BF16, seen=found, variant=replace(BF16.variant, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "changed"), [(name, changed) for name, several in REASONS.items() for changed in several]
)
def test_a_reason_speaks_where_it_holds_and_is_silent_where_it_does_not(name: str, changed: dict[str, Any]) -> None:
    variant = dict(changed.get("variant", {}))
    if variant.get("seconds") == "unknown":
        variant["seconds"] = None
    case = seeing(changed.get("seen", {}), **variant)
    case = replace(case, first=replace(case.first, **changed.get("first", {})), **changed.get("case", {}))
    said = getattr(diagnosis, name)(case)
    assert changed["words"] in said if "words" in changed else said == ""


def test_every_reason_is_tried_and_silent_of_a_step_with_nothing_to_say() -> None:
    every = (*diagnosis.SPEED, *diagnosis.VALUES)
    assert {reason.__name__ for reason in every} == set(REASONS)
    assert diagnosis.spoken(BF16, every) == []


def test_shares_are_told_of_regions_that_were_looked_at() -> None:
    told = diagnosis.shares(seeing({"kept": {"prod": 0.05}}))
    assert all(share in told for share in ("90% of float32's", "casts take 2%", "in float32 5%"))
    assert diagnosis.shares(seeing({}, name="bf16-native")) == diagnosis.shares(replace(BF16, seen=Seen())) == ""


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
    assert diagnosis.needs_scaler(seeing({"gradients": asdict(found)}, name="fp16"))


def test_a_step_that_overflows_settles_at_a_smaller_scale() -> None:
    spec = StepSpec(nn.Linear(16, 16), (torch.randn(8, 16),), lambda out: out.sum() * 4.0)
    step = UserStep(spec, PRECISIONS["fp16"], "cpu")
    assert step.settle() >= 2
    assert step.output().isfinite().all()
