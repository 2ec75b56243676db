"""The workloads are what they say: names, operations, bytes, policies, overhead; which variants they have, and how."""

import dataclasses
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ampcheck.bench.core.model import PRECISIONS, OpWorkload, OverheadWorkload, Spec, StepWorkload, Workload
from ampcheck.bench.core.prepare import flops, make_inputs, make_module, moved, prepare, reference
from ampcheck.bench.run.runfile import read
from ampcheck.bench.run.variants import FP16_GRADIENTS, NO_PRODUCT, NOT_FLOAT32, SLOW_FP16, compilers, select, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.errors import UsageError
from ampcheck.observe.closeness import relative_error
from ampcheck.observe.recorder import Recorder, observe
from tests.cli_support import run

ALL = catalogue()
OPS = {name: w for name, w in ALL.items() if isinstance(w, OpWorkload)}
STEPS = {name: w for name, w in ALL.items() if isinstance(w, StepWorkload)}
BF16 = torch.bfloat16


def arguments(w: OpWorkload, device: str) -> list[Any]:
    module = make_module(w, device)
    tensors = make_inputs(w, device)
    return tensors if module is None else [module, *tensors]


def light(workloads: Mapping[str, Workload]) -> list[str]:
    return [name for name, w in workloads.items() if not w.heavy]


def test_the_quick_mode_has_what_it_must() -> None:
    quick = {name for name, w in ALL.items() if w.quick}
    ops = {"mm-64", "mm-512", "mm-1024", "linear", "conv2d", "sdpa", "layer-norm", "softmax", "add"}
    filling = {"mm-4096", "linear-4096", "conv2d-wide-nhwc", "sdpa-long", "mlp-step-4096"}  # a GPU
    assert quick & set(OPS) - filling == ops
    assert quick & set(STEPS) - filling == {"mlp-step", "tiny-mlp-step", "transformer-step"}
    assert {name for name in quick if ALL[name].heavy} == filling


# What runs


@pytest.mark.parametrize("name", light(OPS))
def test_an_op_runs(name: str) -> None:
    with torch.no_grad():
        out = OPS[name].call(*arguments(OPS[name], "cpu"))
    assert out.is_floating_point()
    assert out.isfinite().all()
    assert "nhwc" not in name or out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", [n for n in light(STEPS) if not STEPS[n].scaler])
def test_a_step_runs_and_computes_every_gradient(name: str) -> None:
    w = STEPS[name]
    model = make_module(w, "cpu")
    *inputs, target = make_inputs(w, "cpu")
    loss = w.loss(model(*inputs), target)
    assert not loss.shape
    assert loss.isfinite()
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


# Operations and bytes; on meta tensors, so that the heavy ones are counted as well

MM, LINEAR, MLP, CELL = 64 * 64, 1024 * 1025, 4 * 512 * 513, 2 * 4 * 256 * 257
BLOCK, LSTM = 12 * 128 * 128 + 13 * 128, 512 * (64 + 128 + 2) + 10 * 129


@pytest.mark.parametrize(
    ("name", "products", "wide", "narrow"),
    [
        ("mm-64", 2 * 64**3, 4 * 3 * MM, 2 * 3 * MM),
        ("linear", 2 * 256 * 1024**2, 4 * (2 * 256 * 1024 + LINEAR), 2 * (2 * 256 * 1024 + LINEAR)),
        ("conv2d", 2 * 8 * 28**2 * 64 * 64 * 9, 4 * (2 * 8 * 64 * 28**2 + 64 * 64 * 9), None),
        ("conv-transpose2d", 2 * 8 * 14**2 * 64 * 32 * 16, 4 * (8 * (64 * 14**2 + 32 * 28**2) + 64 * 32 * 16), None),
        ("sdpa", 4 * 16 * 64 * 256 * 256, 4 * 4 * 16 * 256 * 64, None),
        ("sdpa-causal", 4 * 16 * 64 * 256 * 257 / 2, 4 * 4 * 16 * 256 * 64, None),
        ("sdpa-masked", 4 * 16 * 64 * 256 * 256, 4 * 4 * 16 * 256 * 64 + 256**2, 2 * 4 * 16 * 256 * 64 + 256**2),
        ("lstm-cell", 2 * 2 * 64 * 4 * 256 * 256, 4 * (4 * 64 * 256 + CELL), None),
        ("exp-half", 0, 2 * 2 * 1024 * 512, 2 * 2 * 1024 * 512),
        ("cat", 0, (4 + 2 + 2 * 4) * 1024 * 512, 2 * 4 * 1024 * 512),
        ("cross-entropy", 0, 4 * 1024 * 512 + 8 * 1024 + 4, 2 * 1024 * 512 + 8 * 1024 + 2),
        ("view", 0, 0, 0),
        ("mlp-step", 2 * 128 * 512**2 * (3 * 4 - 1), 4 * (2 * MLP + 2 * 128 * 512), None),
        ("transformer-step", 3 * (24 * 256 * 128**2 + 4 * 16 * 32 * 64**2), 4 * (2 * BLOCK + 2 * 256 * 128), None),
        ("resnet-step", 2 * 8 * 28**2 * 9 * 32**2 * (3 * 2 - 1), 4 * 2 * (2 * (9 * 32**2 + 64) + 8 * 32 * 28**2), None),
        (
            "lstm-step",
            2 * 2 * 256 * 512 * 64 + (3 * 16 - 1) * 2 * 16 * 512 * 128 + 3 * 2 * 16 * 10 * 128,
            4 * (2 * LSTM + 16 * 16 * 64),
            None,
        ),
        ("region-enter", 0, 0, 0),
    ],
)
def test_operations_and_bytes(name: str, products: float, wide: float, narrow: float | None) -> None:
    """A layer's product comes three times in a step, but the first layer's twice, as its data want no gradient."""
    w = ALL[name]
    assert (flops(w), (moved(w, 4), moved(w, 2))) == (products, (wide, wide / 2 if narrow is None else narrow))


# Policies


def traced(w: OpWorkload, policies: Mapping[str, str]) -> str:
    """The policy of the first kernel that a call enters and that has one in some policies, as a benchmark names it."""
    given = arguments(w, "meta")
    with torch.no_grad():
        seen = observe(lambda: w.call(*given), "cpu", policies)
    assert seen.error is None, seen.error
    found = [policies[kernel.overload] for kernel in seen.kernels if kernel.overload in policies]
    # Two more ways to compute in float32.
    return {"optdtype": "upcast", "append": "upcast"}.get(found[0], found[0]) if found else "fallthrough"


@pytest.mark.parametrize("name", OPS)
def test_a_policy_is_that_of_cudas_table_or_the_cpus_where_only_that_one_has_the_op(name: str) -> None:
    cuda, cpu = (traced(OPS[name], device.policies()) for device in (Cuda(), Cpu()))
    assert OPS[name].policy == (cpu if cuda == "fallthrough" else cuda)


# ---- overhead


OVERHEAD = {name: w for name, w in ALL.items() if isinstance(w, OverheadWorkload)}


def casts(call: Callable[[], Any]) -> int:
    """Count the casts of tensors to bfloat16 in a call."""

    found: list[bool] = []

    def note(func: Any, args: Any, kwargs: Any) -> Any:
        found.append(func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is BF16)
        return func(*args, **kwargs)

    with Recorder(note):
        call()
    return sum(found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("region-enter", dict.fromkeys(("none", "fresh", "reused", "decorator", "nested", "disabled"), 0)),
        ("op-without-cast", {"outside": 0, "inside": 0}),
        ("op-fallthrough", {"outside": 0, "inside": 0}),
        ("op-with-cast", {"outside": 0, "inside": 100, "by-hand": 100}),
        ("op-python-kernel", {"none": 0, "python": 0}),
        ("compile-toggle", {"steady": 0, "toggled": 0}),
        ("weight-cache", {"on": 1, "off": 8}),
        ("scaler-step", {"plain": 0, "scaler": 0}),
    ],
)
def test_overhead_casts_as_often_as_it_says_and_leaves_autocast_as_it_was(name: str, expected: dict[str, int]) -> None:
    variants = OVERHEAD[name].make("cpu")
    for call in variants.values():
        call()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == BF16
    assert [(variant, casts(call)) for variant, call in variants.items()] == [*expected.items()], "baseline first"


# ---- a workload made ready in a variant


OP = OpWorkload(name="op", family="f", policy="downcast", inputs=(Spec((16, 16)), Spec((16, 16))), call=torch.mm)
STEP = StepWorkload(
    name="step",
    family="f",
    policy="mixed",
    model=lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)),
    inputs=(Spec((16, 8)), Spec((16, 4))),
    loss=nn.functional.mse_loss,
    rate=0.1,
)
OVERFLOWING = dataclasses.replace(STEP, overflows=True)


@pytest.mark.parametrize("workload", [OP, STEP], ids=["op", "step"])
def test_errors_are_of_the_size_of_the_precision(workload: Workload) -> None:
    exact = reference(workload)
    errors = {n: relative_error(prepare(workload, PRECISIONS[n], "cpu", "eager").output(), exact) for n in PRECISIONS}
    assert errors["fp32"] < 1e-6
    assert 1e-5 < errors["fp16"] < 2e-3
    assert 1e-4 < errors["bf16"] < 2e-2


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-native"])
def test_a_step_trains_and_can_be_put_back(name: str) -> None:
    ready = prepare(STEP, PRECISIONS[name], "cpu", "eager")
    first = ready.output()
    losses = [float(ready.call()) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert torch.equal(ready.output(), first)  # which restores before and after
    ready.call()
    ready.restore()
    assert float(ready.call()) == losses[0]


def test_a_step_that_overflows_changes_nothing() -> None:
    ready = prepare(OVERFLOWING, PRECISIONS["bf16"], "cpu", "eager")
    losses = [float(ready.call()) for _ in range(3)]
    assert (len(set(losses)), ready.output().shape) == (1, (1,))


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("jax") is None or find_spec("torchax") is None, reason="ampcheck[jax] is not here")
def test_workloads_on_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overhead, inputs, modules, eager and jitted variants with their precision checks, which hold their errors."""
    names = ("mm-64", "exp-half", "lstm-cell", "tiny-mlp-step", "tiny-mlp-step-overflow", "conv2d-nhwc", "sdpa-masked")
    chosen = [f"--filter={name}" for name in (*names, "overhead")]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    run(tmp_path, "bench", "--quick", "--device=jax", *chosen, "--run-file=a.jsonl", code=0)
    groups = read(tmp_path / "a.jsonl").groups
    assert {group.workload for group in groups.values()} == {*names, *OVERHEAD}
    for group in groups.values():
        assert group.kind != "overhead" or {v.verdict for v in group.variants}.isdisjoint(("invalid", "not measured"))
    texts = {
        "mm-64": "dot_general in bf16",
        "tiny-mlp-step": "dot_general in bf16",
        "exp-half": "exponential in fp32 on",
    }
    for name, text in texts.items():
        assert text in groups[f"jax/jit/{name}"].variant("bf16").precision_check
    assert "mm in bf16" in groups["jax/eager/mm-64"].variant("bf16").precision_check


# ---- the variants, compilers and workloads of a run


WITH_VARIANTS = [w for w in ALL.values() if not isinstance(w, OverheadWorkload)]
HALF, NATIVE = ("fp16", "fp16-native"), ("bf16-native", "fp16-native")
COMMON = ["bf16", "fp16", "bf16-native", "fp16-native"]
DEVICES = {("cpu", "cpu"): [], ("cuda", "cuda"): ["tf32"], ("jax", "cpu"): [], ("jax", "tpu"): ["fp32-default"]}


@pytest.mark.parametrize(("device", "platform"), DEVICES)
def test_variants_are_whole_for_every_workload(device: str, platform: str) -> None:
    """float32 and its A/A baseline come first; each other variant is there once, or has a reason why it is not."""
    for w in WITH_VARIANTS:
        chosen, without = variants(w, device, platform)
        found = [variant.name for variant in chosen]
        assert found[:2] == ["fp32", "fp32-aa"], w.name
        assert sorted([*found, *without]) == sorted(["fp32", "fp32-aa", *DEVICES[device, platform], *COMMON])
        assert all(without.values())


@pytest.mark.parametrize(
    ("name", "where", "without"),
    [
        ("mm-64", ("cpu",), {}),
        *((name, ("cpu",), dict.fromkeys(HALF, SLOW_FP16)) for name in ("mm-256", "conv2d", "linear")),
        *((name, ("cuda",), {}) for name in ("mm-256", "conv2d", "linear")),
        ("conv2d", ("jax", "cpu"), {}),
        *((name, ("jax", "cpu"), dict.fromkeys(NATIVE, NOT_FLOAT32)) for name in ("softmax-half", "cat")),
        ("cross-entropy", ("jax", "cpu"), {}),  # its integers stay integers
        ("softmax", ("cuda",), {"tf32": NO_PRODUCT}),
        ("mlp-step", ("cuda",), {"fp16-native": FP16_GRADIENTS}),
        ("lstm-cell", ("jax", "tpu"), {}),
        ("prelu", ("jax", "tpu"), {"fp32-default": NO_PRODUCT}),
    ],
)
def test_variants_that_say_nothing_are_left_out(name: str, where: tuple[str, ...], without: dict[str, str]) -> None:
    assert variants(ALL[name], *where)[1] == without


def test_compilers() -> None:
    op, step, overhead = ALL["mm-64"], ALL["mlp-step"], ALL["region-enter"]
    assert compilers(op, "cpu") == compilers(step, "cuda") == ["eager", "compile"]
    assert (compilers(op, "cuda"), compilers(op, "jax")) == (["eager", "graph", "compile"], ["eager", "jit"])
    assert (compilers(step, "jax"), compilers(op, "mydevice")) == (["eager", "jit", "compile"], ["eager"])
    assert all(compilers(overhead, device) == ["eager"] for device in ("cpu", "cuda", "jax"))


@pytest.mark.parametrize(
    ("patterns", "options", "names"),
    [
        ([], {"heavy": True}, list(ALL)),
        ([], {}, light(ALL)),
        ([], {"quick": True}, [name for name, w in ALL.items() if w.quick and not w.heavy]),
        ([], {"quick": True, "heavy": True}, [name for name, w in ALL.items() if w.quick]),
        (["conv2d"], {}, ["conv2d"]),
        (["mlp-step", "conv2d", "mlp-step"], {}, ["conv2d", "mlp-step"]),  # in the catalogue's order, once
        (["conv2d*"], {}, ["conv2d", "conv2d-nhwc"]),
        (["mm-10??"], {}, ["mm-1001", "mm-1024"]),
        (["sdpa-[cm]*"], {}, ["sdpa-causal", "sdpa-masked"]),
        (["nhwc"], {}, [name for name in light(ALL) if "nhwc" in name]),
        (["recurrent"], {}, ["lstm-cell", "gru-cell"]),
        (["mm-256"], {"quick": True}, ["mm-256"]),  # who names a workload gets it in the quick mode too
        (["mm-*"], {}, [name for name in light(ALL) if name.startswith("mm-")]),
        (["mm-*"], {"heavy": True}, [name for name in ALL if name.startswith("mm-")]),
    ],
)
def test_names_globs_parts_and_families(patterns: list[str], options: dict[str, bool], names: list[str]) -> None:
    assert [w.name for w in select(patterns, **options)] == names


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("mm-8192", "'mm-8192' names workloads for a GPU or TPU only: mm-8192"),
        ("mm-1042", "did you mean .*mm-1024"),
        ("sofmax", "did you mean .*softmax"),
        ("qqq*", "families are matmul, conv"),
        ("", "no benchmark workload named ''"),
    ],
)
def test_a_pattern_that_matches_nothing(pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as raised:
        select(["mm-16", pattern])
    assert repr(pattern) in str(raised.value)
