"""The variants, compilers and workloads of a run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ampcheck.bench.core.model import OverheadWorkload, Variant
from ampcheck.bench.run.variants import FP16_GRADIENTS, NO_PRODUCT, NOT_FLOAT32, SLOW_FP16, compilers, select, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError

ALL = catalogue()
WITH_VARIANTS = [w for w in ALL.values() if not isinstance(w, OverheadWorkload)]
HALF, NATIVE = ("fp16", "fp16-native"), ("bf16-native", "fp16-native")
COMMON = ["bf16", "fp16", "bf16-native", "fp16-native"]
DEVICES = {("cpu", "cpu"): [], ("cuda", "cuda"): ["tf32"], ("jax", "cpu"): [], ("jax", "tpu"): ["fp32-default"]}


def names(chosen: Sequence[Variant]) -> list[str]:
    return [variant.name for variant in chosen]


@pytest.mark.parametrize(("device", "platform"), DEVICES)
def test_variants_are_whole_for_every_workload(device: str, platform: str) -> None:
    """float32 and its A/A baseline come first; each other variant is there once, or has a reason why it is not."""
    for w in WITH_VARIANTS:
        for compiler in compilers(w, device):
            chosen, without = variants(w, device, compiler, platform)
            found = names(chosen)
            assert found[:2] == ["fp32", "fp32-aa"], w.name
            assert sorted([*found, *without]) == sorted(["fp32", "fp32-aa", *DEVICES[device, platform], *COMMON])
            assert all(without.values())


@pytest.mark.parametrize(
    ("name", "where", "without"),
    [
        ("mm-64", ("cpu", "eager"), {}),
        *((name, ("cpu", "compile"), dict.fromkeys(HALF, SLOW_FP16)) for name in ("mm-256", "conv2d", "linear")),
        *((name, ("cuda", "compile"), {}) for name in ("mm-256", "conv2d", "linear")),
        ("conv2d", ("jax", "jit", "cpu"), {}),
        *((name, ("jax", "jit", "cpu"), dict.fromkeys(NATIVE, NOT_FLOAT32)) for name in ("softmax-half", "cat")),
        ("cross-entropy", ("jax", "jit", "cpu"), {}),  # its integers stay integers
        ("softmax", ("cuda", "eager"), {"tf32": NO_PRODUCT}),
        ("mlp-step", ("cuda", "eager"), {"fp16-native": FP16_GRADIENTS}),
        ("lstm-cell", ("jax", "jit", "tpu"), {}),
        ("prelu", ("jax", "jit", "tpu"), {"fp32-default": NO_PRODUCT}),
    ],
)
def test_variants_that_say_nothing_are_left_out(name: str, where: tuple[str, ...], without: dict[str, str]) -> None:
    assert variants(ALL[name], *where)[1] == without


def test_the_scaler_refuses_a_step_in_float16_throughout() -> None:
    parameter = torch.ones(2, dtype=torch.float16, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([parameter], lr=1.0))


def test_compilers() -> None:
    op, step, overhead = ALL["mm-64"], ALL["mlp-step"], ALL["region-enter"]
    assert compilers(op, "cpu") == compilers(step, "cuda") == ["eager", "compile"]
    assert compilers(op, "cuda") == ["eager", "graph", "compile"]
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


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["conv2d"], ["conv2d"]),
        (["mlp-step", "conv2d", "mlp-step"], ["conv2d", "mlp-step"]),  # in the catalogue's order, once
        (["conv2d*"], ["conv2d", "conv2d-nhwc"]),
        (["mm-10??"], ["mm-1001", "mm-1024"]),
        (["sdpa-[cm]*"], ["sdpa-causal", "sdpa-masked"]),
        (["nhwc"], [name for name, w in ALL.items() if "nhwc" in name and not w.heavy]),
        (["recurrent"], ["lstm-cell", "gru-cell"]),
    ],
)
def test_names_globs_parts_and_families(patterns: list[str], names: list[str]) -> None:
    assert selected(*patterns) == names


def test_heavy_ones_are_left_out_of_a_pattern_and_cannot_be_all_of_it() -> None:
    assert selected("mm-256", quick=True) == ["mm-256"], "who names a workload gets it in the quick mode too"
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
        ("", "no benchmark workload named ''"),
    ],
)
def test_a_pattern_that_matches_nothing(pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as raised:
        select(["mm-16", pattern])
    assert repr(pattern) in str(raised.value)
