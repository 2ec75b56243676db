"""Advice on a step of the user's own: each reason speaks where it holds and is silent where it does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck import cli
from ampcheck.bench import advice, diagnosis, evidence
from ampcheck.bench.advice import Advice, findings
from ampcheck.bench.advice_worker import Found
from ampcheck.bench.clocks import CpuClock
from ampcheck.bench.diagnosis import Case, Gradients, Recast, Seen
from ampcheck.bench.model import PRECISIONS, ArmResult, Group
from ampcheck.bench.user_step import StepSpec, UserStep, checked, load, reference
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import UsageError
from tests.cli_support import ROOT, refused, run

CPU = Cpu()

# ---- reasons, from planted evidence

BF16 = Case(
    device="cpu",
    platform="cpu",
    isa=("avx2", "avx512f", "avx512_bf16"),
    tiny=1e-6,
    first=ArmResult("fp32", "first", seconds=10e-3, error=2e-7),
    arm=ArmResult("bf16", "slower", seconds=20e-3, speed=0.5, error=3e-3),
    first_seen=Seen(ops=100),
    seen=Seen(ops=120, lowered=40, lowered_share=0.9, cast_share=0.02, casts=12, cast_bytes=5000),
)
FP16 = replace(BF16, arm=replace(BF16.arm, name="fp16"))
NATIVE = replace(BF16, arm=replace(BF16.arm, name="bf16-native"))


def seeing(case: Case = BF16, **values: object) -> Case:
    """A case whose arm was seen otherwise."""
    return replace(case, seen=replace(case.seen, **values))  # type: ignore[arg-type]


SHARED = Recast("weight", "head.weight", 3, 6000, "the region that its copy was cached for had ended")
UNCACHED = replace(SHARED, why=diagnosis.CACHE_OFF)

HOLD: list[tuple[Callable[[Case], str], Case, str]] = [
    (
        diagnosis.launch_bound,
        replace(BF16, tiny=52e-6),
        "100 ops of 100 µs each, and a tiny add costs 52.0 µs on cpu, so starting them is 52% of the step; bf16",
    ),
    (diagnosis.casting, seeing(cast_share=0.25), "casts take 25% of the kernels' time: autocast makes 12 in each step"),
    (diagnosis.no_native_kernel, FP16, "this CPU has no fp16 arithmetic (that is avx512_fp16 or amx_fp16"),
    (diagnosis.no_native_kernel, replace(BF16, isa=("avx2",)), "no bf16 arithmetic (that is avx512_bf16 or amx_bf16"),
    (diagnosis.no_native_kernel, replace(BF16, isa=("neon",)), "no bf16 arithmetic (that is bf16 or sve_bf16"),
    (
        diagnosis.cache_is_off,
        seeing(cache_off=(6, 6000), recast=[UNCACHED]),
        "the weight cache is off for 6 casts of weights (6.0 kB in each step), 2 of them of weights that were cast",
    ),
    (
        diagnosis.cache_is_defeated,
        seeing(recast=[SHARED]),
        "weight head.weight 3 times (6.0 kB): the region that its copy",
    ),
    (diagnosis.frozen_weights, seeing(frozen=(4, 2000)), "frozen parameters are cast 4 times in each step (2.0 kB)"),
    (
        diagnosis.kept_in_float32,
        seeing(kept={"prod": 0.2, "mse_loss": 0.3}),
        "keeps 50% of the kernels' time in float32 by policy: mse_loss 30%, prod 20%",
    ),
    (diagnosis.nothing_lowered, seeing(lowered=0), "autocast lowers nothing in it: all of its 120 ops"),
    (diagnosis.amdahl, seeing(lowered_share=0.2), "takes 20% of float32's kernel time, so that the step could be 1.25"),
    (
        diagnosis.odd_sizes,
        seeing(replace(BF16, platform="cuda"), odd=["mm 9×8 @ 8×8"], odd_share=0.4),
        "take 40% of the kernels' time: mm 9×8 @ 8×8",
    ),
    (
        diagnosis.gradients_lost,
        seeing(NATIVE, gradients=Gradients(1000, lost=50, nonfinite=3)),
        "without a GradScaler, 3 of 1000 gradients are infinite or nan where float32's are not and 5.0% of",
    ),
    (
        diagnosis.gradients_lost,
        seeing(FP16, gradients=Gradients(1000, nonfinite=3, scale=4.0)),
        "at a GradScaler's scale of 4, 3 of 1000 gradients are infinite or nan where float32's are not, so that",
    ),
    (
        diagnosis.needs_scaler,
        seeing(FP16, gradients=Gradients(1000, lost=1, scale=1024.0, lost_unscaled=200)),
        "without one 20.0% of the gradients would be 0 where float32's are not, with its scale of 1024 0.1% are",
    ),
    (diagnosis.accuracy_cost, replace(BF16, arm=replace(BF16.arm, error=0.25)), "error is 2.5e-01, float32's 2.0e-07"),
    (
        diagnosis.accuracy_cost,
        replace(BF16, arm=replace(BF16.arm, error=float("inf"))),
        "does not compute what float64",
    ),
]

SILENT: list[tuple[Callable[[Case], str], Case]] = [
    *((reason, BF16) for reason in (*diagnosis.SPEED, *diagnosis.VALUES)),
    (diagnosis.launch_bound, replace(BF16, tiny=52e-6, arm=ArmResult("bf16", "not measured", "no kernel"))),
    (diagnosis.casting, seeing(NATIVE, cast_share=0.25)),
    (diagnosis.no_native_kernel, replace(FP16, isa=("avx512_fp16",))),
    (diagnosis.no_native_kernel, replace(FP16, isa=())),
    (diagnosis.no_native_kernel, replace(FP16, platform="cuda")),
    (diagnosis.no_native_kernel, replace(FP16, arm=replace(FP16.arm, name="tf32"))),
    (diagnosis.no_native_kernel, replace(FP16, arm=replace(FP16.arm, verdict="faster"))),
    (diagnosis.no_native_kernel, replace(FP16, arm=ArmResult("fp16", "not measured", "no kernel"))),
    (diagnosis.cache_is_off, seeing(cache_off=(6, 6000))),
    (diagnosis.cache_is_off, seeing(recast=[SHARED])),
    (diagnosis.cache_is_defeated, seeing(recast=[UNCACHED])),
    (diagnosis.kept_in_float32, seeing(kept={"prod": 0.05})),
    (diagnosis.amdahl, seeing(lowered_share=1.0)),
    (diagnosis.amdahl, seeing(lowered=0, lowered_share=0.0)),
    (diagnosis.odd_sizes, seeing(odd=["mm 9×8 @ 8×8"], odd_share=0.4)),
    (diagnosis.odd_sizes, seeing(replace(BF16, platform="cuda"), odd=["mm 9×8 @ 8×8"], odd_share=0.01)),
    (diagnosis.gradients_lost, seeing(FP16, gradients=Gradients(1000, lost=5, scale=1.0))),
    (diagnosis.needs_scaler, seeing(FP16, gradients=Gradients(1000, lost=50, scale=1.0, lost_unscaled=50))),
    (diagnosis.needs_scaler, seeing(FP16, gradients=Gradients(1000, lost=50))),
]


@pytest.mark.parametrize(("reason", "case", "words"), HOLD)
def test_a_reason_speaks_where_it_holds(reason: Callable[[Case], str], case: Case, words: str) -> None:
    assert words in reason(case)


@pytest.mark.parametrize(("reason", "case"), SILENT)
def test_a_reason_is_silent_where_it_does_not_hold(reason: Callable[[Case], str], case: Case) -> None:
    assert reason(case) == ""


def test_every_reason_has_a_case_where_it_holds() -> None:
    assert {reason for reason, _, _ in HOLD} == {*diagnosis.SPEED, *diagnosis.VALUES}


# ---- evidence, from real models


class Shared(nn.Module):
    """A weight that is used four times, in a region of its own; and one that needs no gradient."""

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
        return torch.fft.rfft(self.linear(x).repeat(1, 64)).abs().prod(1)


def mlp(width: int, batch: int, depth: int = 2) -> StepSpec:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return StepSpec(nn.Sequential(*layers), (torch.randn(batch, width), torch.randn(batch, width)), F.mse_loss)


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def saw(spec: StepSpec, precision: str = "bf16") -> Seen:
    """What is seen of a step on the CPU."""
    first, _ = evidence.once(UserStep(spec, PRECISIONS["fp32"], "cpu"), CPU)
    kernels, trace = evidence.look(UserStep(spec, PRECISIONS[precision], "cpu"), CPU, 0.0)
    return evidence.seen(kernels, first, trace.ops)


def test_what_autocast_lowers_in_a_big_product_is_most_of_its_time() -> None:
    seen = saw(mlp(256, 256))
    assert seen.lowered_share > 0.7
    assert seen.lowered >= 7  # two products forward, three backward, two activations
    assert (seen.casts, seen.recast, seen.frozen, seen.cache_off) == (11, [], (0, 0), (0, 0))
    # Two weights, the input and the output, and the gradients of all but the input; and two biases with theirs.
    assert seen.cast_bytes == 6 * (7 * 256 * 256 + 4 * 256)


def test_a_tiny_step_is_launch_bound_and_a_big_one_is_not() -> None:
    add = evidence.tiny(CPU)
    add()
    for width, batch, bound in ((4, 2, True), (512, 256, False)):
        spec = mlp(width, batch)
        step = UserStep(spec, PRECISIONS["fp32"], "cpu")
        step.call()
        clock = CpuClock(CPU)
        rows = [(clock.sample(step.call, 3)[0], clock.sample(add, 1)[0] / evidence.ADDS) for _ in range(9)]
        seconds, tiny = (min(row[place] for row in rows) for place in (0, 1))
        first = replace(BF16.first, seconds=seconds)
        case = replace(BF16, first=first, tiny=tiny, first_seen=saw(spec, "fp32"))
        assert bool(diagnosis.launch_bound(case)) is bound, (width, seconds, tiny, case.first_seen.ops)


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


def test_a_step_without_low_ops_has_nothing_lowered() -> None:
    seen = saw(StepSpec(nn.LayerNorm(64), (torch.randn(8, 64),), mean))
    assert (seen.lowered, seen.casts) == (0, 0)
    assert diagnosis.nothing_lowered(replace(BF16, seen=seen))


def test_sizes_that_are_no_multiple_of_eight_are_seen() -> None:
    assert saw(mlp(16, 8)).odd == []
    assert "addmm 9×16 @ 16×16" in saw(mlp(16, 9)).odd
    convolution = saw(StepSpec(nn.Conv2d(3, 8, 3), (torch.randn(1, 3, 8, 8),), None))
    assert convolution.odd == ["convolution of 3 to 8 channels"]


def test_the_profiler_sees_the_same_kernels_and_times_each() -> None:
    step = UserStep(mlp(64, 64), PRECISIONS["bf16"], "cpu")
    clocked, _ = evidence.once(step, CPU)
    profiled, _ = evidence.once(step, CPU, profiled=True)
    assert [(k.name, k.given, k.policy) for k in profiled] == [(k.name, k.given, k.policy) for k in clocked]
    assert all(k.seconds > 0 for k in profiled if not k.view)


def test_lost_gradients_are_counted_with_and_without_a_scaler() -> None:
    spec = StepSpec(nn.Linear(16, 16), (torch.randn(8, 16),), lambda out: out.float().square().mean() * 1e-6)
    fp32 = UserStep(spec, PRECISIONS["fp32"], "cpu").output()
    scaled = UserStep(spec, PRECISIONS["fp16"], "cpu")
    bare = UserStep(spec, PRECISIONS["fp16"], "cpu", scaled=False)
    assert scaled.settle() == 0
    found = evidence.gradients(scaled.output(), fp32, scaled.scaler.get_scale(), bare.output())
    assert found == Gradients(272, 0, 0, 65536.0, 272)
    assert diagnosis.needs_scaler(replace(seeing(FP16, gradients=found)))


def test_a_step_that_overflows_settles_at_a_smaller_scale() -> None:
    spec = StepSpec(nn.Linear(16, 16), (torch.randn(8, 16),), lambda out: out.sum() * 4.0)
    step = UserStep(spec, PRECISIONS["fp16"], "cpu")
    assert step.settle() >= 2
    assert step.output().isfinite().all()


# ---- the user's step


def test_a_step_is_that_of_plain_torch_and_leaves_the_users_model_alone() -> None:
    torch.manual_seed(0)
    spec = mlp(8, 4)
    before = [p.detach().clone() for p in spec.model.parameters()]
    found = UserStep(spec, PRECISIONS["bf16"], "cpu").output()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(spec.model(spec.inputs[0]), spec.inputs[1])
    grads = torch.autograd.grad(loss, list(spec.model.parameters()))
    assert torch.equal(found, torch.cat([t.reshape(-1).double() for t in (loss.detach(), *grads)]))
    assert all(torch.equal(one, two) for one, two in zip(before, spec.model.parameters(), strict=True))
    assert reference(spec).shape == found.shape


def test_inference_gives_the_outputs_without_gradients() -> None:
    spec = StepSpec(nn.Linear(4, 2), (torch.randn(3, 4),), None)
    step = UserStep(spec, PRECISIONS["bf16-native"], "cpu")
    out = step.call()
    assert (out.dtype, out.requires_grad) == (torch.bfloat16, False)
    assert step.output().shape == (6,)


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


STEPS = """
import ampcheck, torch
from torch import nn
answer = 42
@ampcheck.step
def marked():
    return nn.Linear(2, 2), (torch.ones(1, 2),), None
def raises():
    raise LookupError("no such data\\nat all")
def needs(path):
    return None
"""

BAD = [
    ("steps.py:marked2", "steps.py has no function marked2"),
    ("steps.py:answer", "steps.py:answer is an int, not a function"),
    ("steps.py:needs", "needs of steps.py cannot be called without arguments: missing a required argument: 'path'"),
    ("steps.py:raises", "raises of steps.py raised LookupError: no such data (steps.py:9)"),
    ("none.py", "none.py does not exist"),
    ("broken.py", "broken.py cannot be loaded: ZeroDivisionError: division by zero (broken.py:1)"),
    (
        "nosuchmodule:make",
        "module nosuchmodule cannot be imported: ModuleNotFoundError: No module named 'nosuchmodule'",
    ),
    ("steps", "'steps' names no function; it is written MODULE:FUNCTION, FILE.py:FUNCTION or FILE.py"),
    ("two.py", "two.py marks several functions with @ampcheck.step: marked, other; name one as two.py:FUNCTION"),
    ("unmarked.py", "unmarked.py marks no function with @ampcheck.step"),
]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "two.py").write_text(STEPS + "@ampcheck.step\ndef other(): pass\nalias = other\n")
    (tmp_path / "unmarked.py").write_text("answer = 42\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(("target", "words"), BAD)
def test_what_names_no_step_is_refused_in_a_sentence(scripts: Path, target: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(target)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_alone_gives_its_marked_function(scripts: Path) -> None:
    assert isinstance(load("steps.py").model, nn.Linear)
    assert load("steps.py:marked").loss is None
    assert isinstance(load("steps:marked").model, nn.Linear)


def test_a_step_that_does_not_run_in_float32_is_refused_with_its_own_words() -> None:
    spec = StepSpec(nn.Linear(2, 2), (torch.ones(1, 3),), None)
    with pytest.raises(UsageError, match="the step cannot be run in float32 on cpu: RuntimeError: mat1 and mat2"):
        UserStep(spec, PRECISIONS["fp32"], "cpu").try_out()


# ---- the command


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device=abacus"], "there is no device named 'abacus'"),
        (["--device=virtual:cuda"], "has no arithmetic, so that there is nothing to time"),
        (["--executor=trace"], "there is no executor 'trace'"),
        (["--executor=jit"], "executor 'jit' makes a program of a step on jax, not on 'cpu'"),
        (["--threads=0"], "--threads is 0"),
        (["--json=nowhere/out.json"], "nowhere/out.json cannot be written: its folder does not exist"),
    ],
)
def test_bad_options_are_a_sentence(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert words in refused(capsys, "bench", "advise", "steps.py", *options)


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
        ("import sys; sys.exit('no more memory')", "ended with exit code 1: no more memory"),
    ],
)
def test_a_worker_that_dies_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], worker: str, words: str
) -> None:
    monkeypatch.setattr(advice, "COMMAND", (sys.executable, "-c", worker))
    assert words in refused(capsys, "bench", "advise", "steps.py")


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/advise.md").read_text()
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["train_step.py"]
    (tmp_path / "train_step.py").write_text(blocks[0][1])
    options = ("--quick", "--trace", "trace.json", "--json", "advice.json")
    done = run(tmp_path, "bench", "advise", "train_step.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("What pays", "fp32-again", "What autocast does to it in bf16", "linear", "train_step.py on cpu"):
        assert words in done.stdout
    found = json.loads((tmp_path / "advice.json").read_text())
    assert found["schema"] == advice.SCHEMA
    (group,) = found["groups"]
    arms = {arm["name"]: arm for arm in group["arms"]}
    assert list(arms) == ["fp32", "fp32-again", "bf16", "fp16", "bf16-native", "fp16-native"]
    assert arms["fp32"]["error"] < 1e-5 < arms["bf16"]["error"] < 0.1
    assert {one["arm"] for one in found["findings"]} == set(arms) - {"fp32", "fp32-again"}
    assert 0 < found["tiny_op_seconds"] < 1e-2
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == found["trace"]
    assert {op["policy"] for op in trace["ops"]} >= {"downcast", "upcast"}


def test_a_step_that_raises_in_the_worker_ends_with_two_and_its_words(scripts: Path) -> None:
    done = run(scripts, "bench", "advise", "steps.py:raises", "--quick")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ampcheck: raises of steps.py raised LookupError: no such data (steps.py:9)\n"


# ---- the text


def advised(verdicts: dict[str, str]) -> Advice:
    first = ArmResult("fp32", "first", seconds=2e-3, error=1e-7)
    arms = [first, ArmResult("fp32-again", "same", seconds=2e-3, speed=1.0, speed_low=0.99, speed_high=1.01)]
    for name, verdict in verdicts.items():
        arms.append(ArmResult(name, verdict, "", 1e-3, speed=2.0, speed_low=1.9, speed_high=2.1, error=3e-3))
    group = Group("step", "step", "step", "cpu", "eager", arms=arms)
    seen = {"fp32": asdict(Seen(ops=10)), "bf16": asdict(Seen(ops=12, lowered=4, lowered_share=0.9, cast_share=0.3))}
    found = Found(platform="cpu", seen=seen, tiny=1e-6)
    return Advice("train.py", "cpu", [group], found, {"isa": ["avx2"]}, findings([group], found, ["avx2"]))


def test_what_pays_stands_apart_from_what_does_not() -> None:
    text = advised({"bf16": "faster", "fp16": "slower", "fp16-native": "slower", "bf16-native": "unstable"}).text()
    pays, rest = text.split("What pays")[1].split("What does not, and why")
    slow, unsure = rest.split("What this run cannot tell")
    assert "bf16: 2.00× [1.90, 2.10], 1.00 ms instead of 2.00 ms" in pays
    assert "it could be faster: casts take 30%" in pays
    assert "fp16: slower than float32: 2.00×" in slow
    assert "this CPU has no fp16 arithmetic (that is" in slow
    assert "as with fp16: this CPU has no fp16 arithmetic\n" in slow
    assert "bf16-native: unstable" in unsure


def test_an_arm_without_a_known_reason_says_so() -> None:
    text = advised({"tf32": "same"}).text()
    assert "nothing: no arm is certainly faster than float32" in text
    assert "tf32: as fast as float32: 2.00×" in text
    assert "none of the known reasons holds" in text


def test_json_has_no_infinities() -> None:
    found = advised({"bf16": "slower"})
    found.groups[0].arms[2].error = float("inf")
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert data["groups"][0]["arms"][2]["error"] == "inf"


def test_the_decorator_is_reached_without_jax() -> None:
    code = (
        "import sys, ampcheck\n@ampcheck.step\ndef f(): pass\nassert f.__name__ == 'f'\nassert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_help_names_the_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "advise", "--help"])
    assert "MODULE:FUNCTION | FILE.py:FUNCTION | FILE.py" in capsys.readouterr().out
