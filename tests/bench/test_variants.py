"""The variants, compilers and workloads of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
import torch

from ampcheck.bench.core.model import OpWorkload, OverheadWorkload, StepWorkload, Variant, Workload
from ampcheck.bench.run.variants import FP16_GRADIENTS, NO_PRODUCT, NOT_FLOAT32, SLOW_FP16, compilers, select, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError

ALL = catalogue()
WITH_VARIANTS = [w for w in ALL.values() if not isinstance(w, OverheadWorkload)]
COMMON = ["bf16", "fp16", "bf16-native", "fp16-native"]
DEVICES = {("cpu", "cpu"): [], ("cuda", "cuda"): ["tf32"], ("jax", "cpu"): [], ("jax", "tpu"): ["fp32-default"]}


def names(chosen: Sequence[Variant]) -> list[str]:
    return [variant.name for variant in chosen]


def variants_problem(
    w: Workload, device: str, platform: str, chosen: Sequence[Variant], without: Mapping[str, str]
) -> str:
    """Say what is wrong with the variants of a workload, whatever it is."""
    expected = {"fp32", *DEVICES[device, platform], *COMMON}
    found = names(chosen)
    if found[:2] != ["fp32", "fp32-aa"]:
        return f"the first two are {found[:2]}"
    if len(set(found)) < len(found) or set(found) & set(without):
        return "a variant is there twice, or both chosen and left out"
    if (told := (set(found) | set(without)) - {"fp32-aa"}) != expected:
        return f"nothing is said of {sorted(expected ^ told)}"
    if not all(without.values()):
        return "a reason is empty"
    slow = [variant.name for variant in chosen if variant.precision.low is torch.float16]
    if slow and device == "cpu" and not w.fp16_on_cpu:
        return f"{slow} would take minutes"
    mixed = isinstance(w, OpWorkload) and any(spec.dtype == torch.bfloat16 for spec in w.inputs)
    native = [variant.name for variant in chosen if variant.precision.convert]
    return f"{native} would convert what is not float32" if mixed and native else ""


@pytest.mark.parametrize(("device", "platform"), DEVICES)
def test_variants_are_whole_for_every_workload(device: str, platform: str) -> None:
    for w in WITH_VARIANTS:
        for compiler in compilers(w, device):
            assert variants_problem(w, device, platform, *variants(w, device, compiler, platform)) == "", w.name


def test_small_products_have_every_variant_on_a_cpu() -> None:
    assert names(variants(ALL["mm-64"], "cpu", "eager")[0]) == ["fp32", "fp32-aa", *COMMON]
    assert variants(ALL["mm-64"], "cpu", "eager")[1] == {}


def test_float16_is_left_out_where_a_cpu_has_no_kernels_for_it() -> None:
    for name in ("mm-256", "conv2d", "linear"):
        assert variants(ALL[name], "cpu", "compile")[1] == {"fp16": SLOW_FP16, "fp16-native": SLOW_FP16}
        assert variants(ALL[name], "cuda", "compile")[1] == {}
        assert variants(ALL[name], "jax", "jit", "cpu")[1] == {}


def test_inputs_in_lower_precision_are_not_converted() -> None:
    for name in ("softmax-half", "cat", "addcmul"):
        chosen, without = variants(ALL[name], "jax", "jit", "cpu")
        assert names(chosen) == ["fp32", "fp32-aa", "bf16", "fp16"]
        assert without == {"bf16-native": NOT_FLOAT32, "fp16-native": NOT_FLOAT32}
    assert "bf16-native" in names(variants(ALL["cross-entropy"], "jax", "jit", "cpu")[0])  # its integers stay integers


def test_shortened_products_are_there_where_there_are_products() -> None:
    assert "tf32" in names(variants(ALL["mm-64"], "cuda", "eager")[0])
    assert variants(ALL["softmax"], "cuda", "eager")[1] == {"tf32": NO_PRODUCT}
    assert "tf32" in names(variants(ALL["mlp-step"], "cuda", "eager")[0])
    assert "fp32-default" in names(variants(ALL["lstm-cell"], "jax", "jit", "tpu")[0])
    assert variants(ALL["prelu"], "jax", "jit", "tpu")[1] == {"fp32-default": NO_PRODUCT}


def test_a_step_in_float16_throughout_is_left_out_as_the_scaler_refuses_it() -> None:
    for w in ALL.values():
        if isinstance(w, StepWorkload):
            assert variants(w, "cuda", "eager")[1] == {"fp16-native": FP16_GRADIENTS}
    parameter = torch.ones(2, dtype=torch.float16, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([parameter], lr=1.0))


def test_overhead_has_no_variants() -> None:
    with pytest.raises(TypeError, match="region-enter measures overhead: its variants are made by `make`"):
        variants(ALL["region-enter"], "cpu", "eager")


def test_compilers() -> None:
    op, step, overhead = ALL["mm-64"], ALL["mlp-step"], ALL["region-enter"]
    assert compilers(op, "cpu") == compilers(step, "cuda") == ["eager", "compile"]
    assert compilers(op, "jax") == ["eager", "jit"]
    assert compilers(step, "jax") == ["eager", "jit", "compile"]
    assert compilers(op, "mydevice") == ["eager"]
    assert all(compilers(overhead, device) == ["eager"] for device in ("cpu", "cuda", "jax"))


# Selection


def selected(*patterns: str, quick: bool = False, heavy: bool = False) -> list[str]:
    return [w.name for w in select(patterns, quick, heavy)]


def test_all_without_patterns() -> None:
    assert selected(heavy=True) == list(ALL)
    assert selected() == [name for name, w in ALL.items() if not w.heavy]
    assert selected(quick=True) == [name for name, w in ALL.items() if w.quick]


def test_a_whole_name_is_that_workload_alone() -> None:
    assert selected("conv2d") == ["conv2d"]
    assert selected("mlp-step", "conv2d", "mlp-step") == ["conv2d", "mlp-step"]  # in the catalogue's order, once


def test_globs_parts_and_families() -> None:
    assert selected("conv2d*") == ["conv2d", "conv2d-nhwc"]
    assert selected("mm-10??") == ["mm-1001", "mm-1024"]
    assert selected("sdpa-[cm]*") == ["sdpa-causal", "sdpa-masked"]
    assert selected("nhwc") == [name for name, w in ALL.items() if "nhwc" in name and not w.heavy]
    assert selected("recurrent") == ["lstm-cell", "gru-cell"]
    assert selected("overhead") == [name for name, w in ALL.items() if w.family == "overhead"]


def test_who_names_a_workload_gets_it_in_the_quick_mode_too() -> None:
    assert not ALL["mm-256"].quick
    assert selected("mm-256", quick=True) == ["mm-256"]


def test_heavy_ones_are_left_out_of_a_pattern_and_cannot_be_all_of_it() -> None:
    assert "mm-8192" not in selected("mm-*")
    assert "mm-8192" in selected("mm-*", heavy=True)
    with pytest.raises(UsageError, match="'mm-8192' names workloads for a GPU or TPU only: mm-8192"):
        select(["mm-8192"])


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("mm-1042", "did you mean .*mm-1024"),
        ("sofmax", "did you mean .*softmax"),
        ("qqq*", "families are matmul, conv"),
    ],
)
def test_a_pattern_that_matches_nothing(pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as raised:
        select(["mm-16", pattern])
    assert repr(pattern) in str(raised.value)


def test_an_empty_pattern_matches_nothing() -> None:
    with pytest.raises(UsageError, match="no benchmark workload named ''"):
        select([""])


def test_a_workload_of_ones_own_has_variants() -> None:
    mine = dataclasses.replace(ALL["mm-16"], name="mine", fp16_on_cpu=False)
    assert names(variants(mine, "cpu", "eager")[0]) == ["fp32", "fp32-aa", "bf16", "bf16-native"]
