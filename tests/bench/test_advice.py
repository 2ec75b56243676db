"""`ampcheck bench advise`: a user's step, what its worker measures, what the command accepts, what it says, and why."""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import convert
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.advise import advice, diagnosis, worker
from ampcheck.bench.advise.advice import Advice
from ampcheck.bench.advise.diagnosis import Gradients, Seen, StepCase
from ampcheck.bench.advise.user_step import StepSpec, UserStep, checked, load
from ampcheck.bench.advise.worker import AdviceFigures
from ampcheck.bench.core.model import PRECISIONS, BenchPlan, Group, VariantResult
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import UsageError
from tests.cli_support import PROGRAMS, ROOT, python, refused, run

STEPS = PROGRAMS["advice-steps"]


@pytest.fixture
def scripts(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of scripts and device modules, the current one."""
    monkeypatch.syspath_prepend(here)
    (here / "steps.py").write_text(STEPS)
    (here / "two.py").write_text(STEPS + "@ampcheck.step\ndef other(): pass\nalias = other\n")
    (here / "unmarked.py").write_text("answer = 42\n")
    (here / "broken.py").write_text("1 / 0\n")
    return here


# ---- a step is found, checked, and made ready in a variant


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "returned None; a tuple (model, inputs, loss) is wanted"),
        ((nn.Linear(2, 2), (torch.ones(2),)), "returned a tuple of 2"),
        (("model", (), None), "returned a str as the model"),
        ((nn.Linear(2, 2).half(), (), None), "returned a model whose weight is fp16; it is wanted in fp32"),
        ((nn.Linear(2, 2), torch.ones(2), None), "returned a Tensor as the inputs"),
        ((nn.Linear(2, 2), (torch.ones(2), 3), None), "returned an int among the inputs"),
        ((nn.Linear(2, 2), (torch.ones(2),), 3), "returned an int as the loss"),
        ((nn.ReLU(), (torch.ones(2),), mean), "no parameter of the model requires grad"),
        ((nn.Linear(2, 2), (), F.mse_loss), "no input to give it as the second"),
    ],
)
def test_what_is_no_step_is_refused(made: object, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        checked(made, "make of steps.py")


REFUSED = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))["advice"]["refused"]


@pytest.mark.parametrize("target", REFUSED)
def test_what_names_no_step_is_refused_in_a_sentence(scripts: Path, target: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(target)
    assert REFUSED[target] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_alone_gives_its_marked_function(scripts: Path) -> None:
    assert isinstance(load("steps.py").model, nn.Linear)
    assert load("steps.py:marked").loss is None
    assert isinstance(load("steps:marked").model, nn.Linear)


@pytest.mark.parametrize(
    ("width", "loss", "words"),
    [
        (3, None, r"the step cannot be run in float32 on cpu: RuntimeError: mat1 and mat2"),
        (2, lambda output: output.view(7), r"RuntimeError: shape .*\(tests.bench.test_advice.py:\d+ in .*\)$"),
    ],
)
def test_a_step_that_does_not_run_is_refused_by_its_words_and_the_users_line(width: int, loss: Any, words: str) -> None:
    spec = StepSpec(nn.Linear(2, 2), (torch.ones(1, width),), loss)
    with pytest.raises(UsageError, match=words):
        UserStep(spec, PRECISIONS["fp32"], "cpu").try_out()


def test_the_decorator_is_reached_without_jax() -> None:
    code = "import sys, ampcheck\n@ampcheck.step\ndef f(): pass\nassert f.__name__ == 'f' and 'jax' not in sys.modules"
    python("-c", code)


# ---- the worker


def worked(folder: Path, function: str, device: str = "cpu") -> AdviceFigures:
    (folder / "odd.py").write_text(PROGRAMS["advice-odd"])
    (folder / "other_device.py").write_text(PROGRAMS["advice-device"])
    modules = [] if device == "cpu" else ["other_device"]
    return worker.measure(BenchPlan(device, modules, 0, 5, 1e-4, 1, [(f"odd.py:{function}", "eager")]))


def test_a_variant_that_fails_or_is_too_slow_costs_itself(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_PATIENCE", 2.5)  # ten calls of 0.3 s take longer, others do not
    monkeypatch.setattr(worker, "_SLOWER", 2)
    found = worked(scripts, "hard")
    (rounds,) = found.rounds
    assert set(rounds["failed"]) == {"bf16-native", "fp16-native"}
    assert rounds["failed"]["fp16-native"] == "LookupError: no half here"
    assert re.match(r"a single call takes 0\.\d+ s, \d+ times as long", rounds["failed"]["bf16-native"])
    assert found.seen["bf16-native"]["single"] >= 0.3
    assert set(rounds["samples"]) == {"fp32", "fp32-aa", "bf16", "fp16"}
    assert found.tiny > 0


@pytest.mark.parametrize(
    ("function", "note"),
    [
        ("dropout", "the step draws random numbers, e.g. for dropout, so its errors are not known"),
        ("only32", "errors are not known, as the step cannot be run in float64: AssertionError: no double here"),
    ],
)
def test_errors_that_cannot_be_known_are_left_out(scripts: Path, function: str, note: str) -> None:
    found = worked(scripts, function)
    assert found.notes == [note]
    assert all("error" not in facts for facts in found.rounds[0]["facts"].values())
    assert function == "only32" or all(seen["gradients"] is None for seen in found.seen.values())


def test_a_device_of_somebody_elses_has_the_variants_it_supports(scripts: Path) -> None:
    (rounds,) = worked(scripts, "fixed", "other").rounds
    assert set(rounds["samples"]) == {"fp32", "fp32-aa", "bf16", "bf16-native"}
    assert rounds["facts"]["fp32"]["error"] < 1e-6


def test_a_program_that_gives_float32s_bits_though_ops_are_lowered_is_invalid(scripts: Path) -> None:
    worked(scripts, "fixed")
    plan = BenchPlan("cpu", [], 0, 5, 1e-4, 1, [("odd.py:fixed", "compile")])
    for seen, output, invalid in (
        ({"bf16": {"lowered": 3}}, torch.ones(3), True),
        ({"bf16": {"lowered": 0}}, torch.ones(3), False),
        ({"bf16": {"lowered": 3}}, torch.zeros(3), False),
    ):
        measurer = worker._StepMeasurer(plan)
        measurer.advice.seen = seen
        facts: dict[str, object] = {}
        measurer._judge(PRECISIONS["fp32"], "compile", torch.ones(3), {})
        measurer._judge(PRECISIONS["bf16"], "compile", output, facts)
        assert ("invalid" in facts) is invalid


# ---- the command


def test_a_worker_that_dies_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(advice, "COMMAND", (sys.executable, "-c", "import os; os.abort()"))
    assert "ended with signal SIGABRT" in refused(capsys, "bench", "advise", "steps.py")


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/using.md").read_text()
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["train_step.py"]
    (tmp_path / "train_step.py").write_text(blocks[0][1])
    options = ("--quick", "--trace", "trace.json", "--json", "advice.json")
    done = run(tmp_path, "bench", "advise", "train_step.py", *options, code=0)
    for words in ("fp32-aa", "What autocast does to it in bf16", "linear", "train_step.py on cpu"):
        assert words in done.stdout
    found = json.loads((tmp_path / "advice.json").read_text())
    assert found["schema"] == advice.SCHEMA
    (group,) = found["groups"]
    variants = {variant["name"]: variant for variant in group["variants"]}
    assert list(variants) == ["fp32", "fp32-aa", "bf16", "fp16", "bf16-native", "fp16-native"]
    assert variants["fp32"]["error"] < 1e-5 < variants["bf16"]["error"] < 0.1
    assert {one["variant"] for one in found["findings"]} == set(variants) - {"fp32", "fp32-aa"}
    assert 0 < found["tiny_op_seconds"] < 1e-2
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == found["trace"]
    assert {op["policy"] for op in trace["ops"]} >= {"downcast", "upcast"}


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_a_step_on_jax_runs_op_by_op_and_as_one_program(scripts: Path) -> None:
    (scripts / "linear.py").write_text(PROGRAMS["advice-linear"])
    options = ("--quick", "--device=jax", "--compiler=jit", "--json=a")
    run(scripts, "bench", "advise", "linear.py:make", *options, code=0)
    groups = json.loads((scripts / "a.json").read_text())["groups"]
    assert [group["compiler"] for group in groups] == ["eager", "jit"]
    for group in groups:
        variants = {variant["name"]: variant for variant in group["variants"]}
        assert variants["fp32"]["error"] < 1e-5 < variants["bf16"]["error"] < 0.1
        assert all(variant["rounds"] == 5 for variant in variants.values())


# ---- the text


def advised(verdicts: dict[str, str]) -> Advice:
    first = VariantResult("fp32", "first", seconds=2e-3, error=1e-7)
    variants = [first, VariantResult("fp32-aa", "same", seconds=2e-3, speed=1.0, speed_low=0.99, speed_high=1.01)]
    for name, verdict in verdicts.items():
        variants.append(VariantResult(name, verdict, "", 1e-3, speed=2.0, speed_low=1.9, speed_high=2.1, error=3e-3))
    group = Group("step", "step", "step", "cpu", "eager", variants=variants)
    seen = {"fp32": asdict(Seen(ops=10)), "bf16": asdict(Seen(ops=12, lowered=4, lowered_share=0.9, cast_share=0.3))}
    found = AdviceFigures(platform="cpu", seen=seen, tiny=1e-6)
    return Advice("train.py", "cpu", [group], found, {"isa": ["avx2"]})


def test_what_pays_is_apart_from_what_does_not() -> None:
    verdicts = {"bf16": "faster", "fp16": "slower", "fp16-native": "slower", "bf16-native": "unstable", "tf32": "same"}
    text = advised(verdicts).text()
    pays, rest = " ".join(text.split()).split("What pays")[1].split("What does not, and why")
    slow, unsure = rest.split("What this run cannot tell")
    for part, words in (
        (pays, "bf16: 2.00× [1.90, 2.10], 1.00 ms instead of 2.00 ms"),
        (pays, "it could be faster: casts take 30%"),
        (slow, "fp16: slower than float32: 2.00×"),
        (slow, "this CPU has no fp16 arithmetic (that is"),
        (slow, "as with fp16: this CPU has no fp16 arithmetic "),
        (slow, "tf32: as fast as float32: 2.00×"),
        (slow, "none of the known reasons holds"),
        (unsure, "bf16-native: unstable"),
    ):
        assert words in part
    first = "train.py on cpu: "
    assert text.startswith(f"{first}bf16 pays: 2.00×")
    none = advised({"tf32": "same"}).text()
    assert none.startswith(f"{first}no variant is certainly faster than float32\n")
    assert "What pays" not in none


def test_a_variant_that_computes_something_else_never_pays() -> None:
    found = advised({"bf16": "faster", "fp16": "faster"})
    found.groups[0].variants[3].error = float("inf")
    pays, rest = found.text().split("What pays")[1].split("What does not, and why")
    assert "  bf16: 2.00×" in pays
    assert "fp16" not in pays
    assert "  fp16: 2.00×" in rest
    assert "it does not compute what float64 does: it has infinities" in rest
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert data["groups"][0]["variants"][3]["error"] == "inf"


# ---- reasons, from injected evidence; and evidence, from real models

CPU = Cpu()

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
    assert ({reason.__name__ for reason in every}, diagnosis.spoken(BF16, every)) == (set(REASONS), [])


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
    assert (with_cache.recast, diagnosis.cache_is_off(replace(BF16, seen=with_cache))) == ([], "")


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
