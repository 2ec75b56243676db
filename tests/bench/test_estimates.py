"""Estimates for TPUs and GPUs: reading programs, their time, judging variants, and compiling where possible."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core.model import PRECISIONS, Group, OpWorkload, Spec, VariantResult
from ampcheck.bench.estimates import estimate
from ampcheck.bench.estimates.estimate import Chip, Estimate, available, chip, contradicts, duration, variant_result
from ampcheck.bench.estimates.program import Array, DotProduct, Schedule, casts, parse, products, schedule, wide
from ampcheck.bench.run.summary import by_estimate, compare
from ampcheck.bench.session import BenchOptions, choose
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError
from tests.cli_support import PROGRAMS, python

HERE = Path(__file__).parent
PROGRAM = (HERE / "program.hlo").read_text(encoding="utf-8")
"""A program for a TPU: a cast within a product's fusion, one by itself, a copy beside them, and a gather."""
MEBI = 1 << 20
CHIP = Chip("made:up", clock=1e9, flops=100e12, bandwidth=1e12)
SIX, ONE = DotProduct(("f32", "f32"), "f32", 6), DotProduct(("f32", "f32"), "f32", 1)
LOW = DotProduct(("bf16", "bf16"), "bf16", 1)
MM = OpWorkload(name="mm", family="matmul", policy="downcast", inputs=(Spec((1000, 1000)),), call=lambda x: x @ x)


def found(**changed: Any) -> Estimate:
    plan = Schedule(seconds=1e-3, cycles=1_000_000, hbm=10_000_000)
    whole = Estimate(
        1e-3, "cycles", plan, 5e-4, 2e9, 10_000_000, 8, 0.5, Counter({SIX: 1}), (), 0, ()
    )  # fmt: skip
    return replace(whole, **changed)


def judge(variants: list[VariantResult]) -> None:
    compare(Group("mm", "matmul", "op", "tpu-v5e", "jit", variants=variants), by_estimate)


def test_products_with_their_dtypes_and_passes() -> None:
    assert products(parse(PROGRAM)) == {LOW: 1}  # of bf16, whatever precision was asked for
    six = PROGRAM.replace("bf16", "f32")
    assert products(parse(six)) == {SIX: 1}
    assert products(parse(six.replace("{highest,highest}", "{high,high}"))) == {DotProduct(("f32", "f32"), "f32", 3): 1}
    assert products(parse(six.replace(", operand_precision={highest,highest}", ""))) == {ONE: 1}
    mixed = DotProduct(("bf16", "f32"), "f32", 1)
    assert [str(kind) for kind in (SIX, ONE, LOW, mixed)] == [
        "fp32 in 6 bf16 passes",
        "fp32 in 1 bf16 pass",
        "bf16",
        "bf16×fp32 to fp32 in 1 bf16 pass",
    ]


def test_casts_that_are_left_fused_and_by_themselves() -> None:
    assert {str(cast): count for cast, count in casts(parse(PROGRAM)).items()} == {
        "fp32 to bf16[1024,1024] by itself": 1,  # a fusion of nothing but the cast
        "fp32 to bf16[1024,1024]": 1,
        "bf16 to fp32[1024,1024]": 1,
    }
    assert not casts(parse(PROGRAM.replace("bf16", "f32")))


def test_float64_is_seen_but_for_single_numbers() -> None:
    assert wide(parse(PROGRAM)) == wide(parse(PROGRAM.replace("u32[]", "f64[]"))) == []
    assert wide(parse(PROGRAM.replace("f32[1048576]", "f64[1048576]")))[0] == Array("f64", (1048576,))
    sizes = {"f32": 40, "bf16": 20, "f8e4m3fn": 10, "pred": 10, "c64": 80, "s4": 5, "token": 0}
    assert {dtype: Array(dtype, (2, 5)).bytes for dtype in sizes} == sizes
    with pytest.raises(ValueError, match="no ENTRY computation"):
        parse("HloModule nothing\n")


def test_copies_run_beside_the_computation() -> None:
    plan = schedule(parse(PROGRAM), clock=1e9, bandwidth=1e12)
    copied = 4 * MEBI / 1e12  # longer than the 1000 cycles beside it
    gathered = 8 * MEBI / 1e12
    assert plan.seconds == pytest.approx(copied + 50000 / 1e9 + gathered)
    assert (plan.cycles, plan.loops, plan.without) == (51000, 0, {"gather": 1})
    # x and y are read, the kernel's second result is written, the gather reads and writes; the rest is on the chip.
    assert plan.hbm == 20 * MEBI
    quick = schedule(parse(PROGRAM), clock=1e8, bandwidth=1e12)  # now the copy has ended before the cast
    assert quick.seconds == pytest.approx(51000 / 1e8 + gathered)
    text = PROGRAM.replace("  %copy-done = f32[1024,1024]{1,0:T(8,128)S(1)} copy-done(%copy-start)\n", "")
    unwaited = schedule(parse(text), clock=1e15, bandwidth=1e9)  # waited for at the end
    assert unwaited.seconds == pytest.approx(8 * MEBI / 1e9)


def test_a_loop_is_counted_and_its_body_once() -> None:
    plan = schedule(parse(PROGRAMS["estimates-loop"]), clock=1e9, bandwidth=1e12)
    assert (plan.loops, plan.cycles) == (1, 70)
    variant = variant_result(MM, PRECISIONS["fp32"], found(schedule=plan), CHIP)
    assert (variant.verdict, variant.seconds) == ("not measured", None)
    assert variant.reason == "how often 1 loop of the program run is not in the compiler's text"


def test_where_the_seconds_come_from() -> None:
    some = Schedule(seconds=2e-3, cycles=5)
    assert duration(some, 1e-3, 1.0, 1.0, CHIP) == (2e-3, "cycles")
    none = Schedule()
    assert duration(none, 1e-3, 1.0, 1.0, CHIP) == (1e-3, "optimal")
    for optimal in (None, -11.96, 0.0, float("nan")):  # -1 for each instruction that XLA knows nothing of
        assert duration(none, optimal, 100e12, 1e12, CHIP) == (1.0, "roofline")
        assert duration(none, optimal, 100e12, 3e12, CHIP) == (3.0, "roofline")
    with pytest.raises(ValueError, match="neither cycles nor seconds, operations or bytes"):
        duration(none, -1.0, 0.0, 0.0, CHIP)


@pytest.mark.parametrize(
    ("precision", "kinds", "said"),
    [
        ("fp32", {SIX: 2}, ""),
        ("fp32", {SIX: 2, ONE: 1}, "a product is in fp32 in 1 bf16 pass, where float32 was asked for"),
        ("fp32", {LOW: 1}, "a product is in bf16, where float32 was asked for"),
        ("fp32", {DotProduct(("s8", "s8"), "s32", 1): 1}, ""),
        ("fp32-default", {ONE: 1}, ""),
        ("bf16", {LOW: 1, SIX: 1}, ""),
        ("bf16", {SIX: 1}, "no product is in bf16; there are fp32 in 6 bf16 passes"),
        ("bf16-native", {SIX: 1}, "no product is in bf16; there are fp32 in 6 bf16 passes"),
        ("fp16", {LOW: 1}, "no product is in fp16; there are bf16"),
        ("bf16", {}, ""),
    ],
)
def test_a_variant_is_what_its_name_says(precision: str, kinds: dict[DotProduct, int], said: str) -> None:
    estimate = found(products=Counter(kinds))
    assert contradicts(MM, PRECISIONS[precision], estimate) == said
    assert contradicts(MM, PRECISIONS[precision], found(wide=("fp64[8,8]",))) == "computes in float64: fp64[8,8]"
    variant = variant_result(MM, PRECISIONS[precision], estimate, CHIP)
    assert (variant.verdict, variant.reason, variant.seconds) == (("invalid", said, None) if said else ("", "", 1e-3))


def test_parts_of_unknown_time_make_a_verdict_ambiguous() -> None:
    def variant(seconds: float, **without: int) -> VariantResult:
        plan = Schedule(seconds, 1, 1, 0, Counter(without))
        return variant_result(MM, PRECISIONS["fp32"], found(seconds=seconds, schedule=plan), CHIP)

    reason = "the compiler gives no cycles for 4 × gather: taken by the bytes they move, which is too little"
    some = [variant(1.0, reshape=3), variant(0.5, gather=4, copy=2), variant(0.5, copy=2)]
    judge(some)
    assert [(a.verdict, a.reason, a.speed) for a in some] == [
        ("first", "", None),
        ("ambiguous", reason, 2.0),
        ("faster", "", 2.0),
    ]
    some = [variant(1.0, gather=4), variant(0.5)]
    judge(some)
    assert [(a.verdict, a.reason) for a in some] == [("first", reason), ("ambiguous", f"fp32: {reason}")]


def test_verdicts_beside_the_first_variant() -> None:
    def variants(*seconds: float) -> list[VariantResult]:
        return [VariantResult(str(n), "", seconds=s) for n, s in enumerate(seconds)]

    some = variants(1.0, 0.5, 1.5, 1.019, 0.981, 1.021, 0.98)
    judge(some)
    assert [variant.verdict for variant in some] == ["first", "faster", "slower", "same", "same", "slower", "faster"]
    assert [variant.speed for variant in some[:2]] == [None, 2.0]
    absent = VariantResult("x", "not measured", "why")
    some = [VariantResult("fp32", "invalid", "computes in float64"), *variants(1.0), absent]
    judge(some)
    assert [variant.verdict for variant in some] == ["invalid", "not measured", "not measured"]
    assert some[1].reason == "fp32, which it is compared with, is invalid: computes in float64"
    assert some[2].reason == "why"


def test_what_cannot_be_estimated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("v5e", "tpu-v9", "cuda-l4", ""):
        with pytest.raises(UsageError, match="there are tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, cuda-h100, cuda-b200"):
            estimate.groups([], wrong, print)
    there = {"jax", "libtpu"}
    monkeypatch.setattr(estimate.importlib.util, "find_spec", lambda name: object() if name in there else None)
    with pytest.raises(UsageError, match="'mm' is not in the catalogue"):
        estimate.groups([MM], "tpu-v5e", print)
    for package, words in (("libtpu", "libtpu is not installed"), ("jax", "JAX is not installed")):
        there.remove(package)
        with pytest.raises(UsageError, match=words):
            estimate.groups([], "tpu-v5e", print)


def test_a_process_that_ends_or_hangs_costs_one_variant() -> None:
    lines: list[str] = []
    ended = dict(estimate._results("tpu-v5e", [("nonesuch", "fp32"), ("nonesuch", "bf16")], lines.append, 120.0))
    reason = "the process ended with exit code 1: KeyError: 'nonesuch'"
    assert [*ended.values()] == [VariantResult(name, "not measured", reason) for name in ("fp32", "bf16")]
    assert lines == ["1 of 2: tpu-v5e/jit/nonesuch fp32", "2 of 2: tpu-v5e/jit/nonesuch bf16"]
    ((_, late),) = estimate._results("tpu-v5e", [("mm-16", "fp32")], lines.append, 0.001)
    assert late == VariantResult("fp32", "not measured", "took more than 0 s to compile")


def test_programs_for_which_no_time_is_left_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "available", lambda device: None)  # also where libtpu is not installed
    begun: list[str] = []
    (group,) = estimate.groups([catalogue()["mm-16"]], "tpu-v5e", begun.append, until=0.0)
    assert begun == []
    reason = "left out, as the run had to end"
    assert group.variants == [VariantResult(name, "not measured", reason) for name in estimate.VARIANTS]


PRODUCT = (HERE / "product.hlo").read_text(encoding="utf-8")
"""A product of 1024 by 512 by 256, for which XLA says 40 µs, behind a cast for which it says five minutes."""


@pytest.mark.parametrize(
    ("given", "gives", "how", "kind", "seconds"),
    [
        ("f32", "f32", "DEFAULT", "tf32 to fp32", 40e-6),
        ("f32", "f32", "HIGHEST", "fp32", 2 * 1024 * 512 * 256 / 67e12),
        ("bf16", "bf16", "HIGHEST", "bf16", 40e-6),
        ("f16", "f16", "HIGHEST", "fp16", 40e-6 / 8),
        ("bf16", "f32", "HIGHEST", "bf16 to fp32", 40e-6 / 64),
    ],
)
def test_xlas_prices_of_a_gpus_products_are_put_right(
    given: str, gives: str, how: str, kind: str, seconds: float
) -> None:
    text = PRODUCT.replace("HOW", how).replace("IN", given).replace("OUT", gives)
    program, gpu = parse(text), chip("cuda-h100")
    assert [str(product) for product in gpu.products(program)] == [kind]
    size = {"f32": 4, "bf16": 2, "f16": 2}
    cast = 1024 * 512 * (4 + size[given])  # by the bytes it moves: XLA's other figures are of another model
    moved = (1024 * 512 + 512 * 256) * size[given] + 1024 * 256 * size[gives]  # without the workspace
    found = gpu.schedule(program)
    assert found.seconds == pytest.approx(cast / 3.35e12 + max(seconds, moved / 3.35e12))
    assert (found.rated, found.hbm) == (1, cast + moved)
    assert duration(found, None, 1.0, 1.0, gpu) == (found.seconds, "rates")
    with pytest.raises(ValueError, match="XLA has no rate for a product of"):
        gpu.schedule(parse(text.replace('"name":"sol"', '"name":"other"')))


def test_only_large_products_have_an_estimate_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "available", lambda device: None)
    options = BenchOptions(("cuda-h100",), filters=("mm-", "add", "region-enter"))
    assert choose(options).estimated == {"cuda-h100": [(f"mm-{n}", "jit") for n in (2048, 4096, 8192)]}
    with pytest.raises(UsageError, match=r"cuda-h100 has estimates of mm-2048, .*mlp-step-4096 alone"):
        choose(replace(options, filters=("add",)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "jax" else None)
    assert available("cuda-h100") == "jax-cuda13-plugin is not installed; the extra ampcheck[cuda-estimate] brings it"


# ---- programs that are compiled


def _needs(device: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(estimate.available(device) is not None, reason=str(estimate.available(device)))


def test_a_compiler_that_says_no_cycles() -> None:
    said = python("-c", PROGRAMS["estimates-cpu"], JAX_PLATFORMS="cpu")
    source, flops, memory, variant = json.loads(said.splitlines()[-1])
    assert (source, flops, memory) == ("roofline", 2 * 64**3, 3 * 64 * 64 * 4)
    assert variant["seconds"] == pytest.approx(3 * 64 * 64 * 4 / estimate.TPUS["tpu-v5e"].bandwidth, rel=0.5)
    assert "products: 1 × fp32" in variant["precision_check"]


@_needs("tpu-v5e")
def test_an_estimate_of_each_precision() -> None:
    lines: list[str] = []
    (group,) = estimate.groups([catalogue()["mm-1024"], catalogue()["region-enter"]], "tpu-v5e", lines.append)
    assert (group.key, group.estimate, group.note, len(lines)) == ("tpu-v5e/jit/mm-1024", True, Chip.claim, 6)
    variants = {variant.name: variant for variant in group.variants}
    assert list(variants) == list(estimate.VARIANTS)
    assert [variant.verdict for variant in group.variants] == ["first", *["faster"] * 4]
    products = ("fp32 in 6 bf16 passes", "fp32 in 1 bf16 pass", "bf16", "fp16", "bf16")
    for variant, product in zip(group.variants, products, strict=True):
        assert variant.precision_check.startswith(f"products: 1 × {product};")
        assert 0 < (variant.share or 0) <= 1
    assert "casts left: 0" in variants["bf16-native"].precision_check
    assert "2 × fp32 to bf16[1024,1024]" in variants["bf16"].precision_check
    assert (variants["fp32"].memory, variants["bf16-native"].memory) == (3 * 4 * 1024**2, 3 * 2 * 1024**2)


@_needs("cuda-h100")
def test_an_estimate_of_each_precision_on_a_gpu() -> None:
    (group,) = estimate.groups([catalogue()["mm-2048"], catalogue()["add"]], "cuda-h100", print)
    assert (group.key, group.estimate) == ("cuda-h100/jit/mm-2048", True)
    assert [variant.verdict for variant in group.variants] == ["first", *["faster"] * 4]
    for variant, product in zip(group.variants, ("fp32", "tf32 to fp32", "bf16", "fp16", "bf16"), strict=True):
        assert variant.precision_check.startswith(f"products: 1 × {product};")
        assert 0 < (variant.share or 0) <= 1
    bf16 = group.variants[2]
    assert (bf16.speed or 0) > 3 * (bf16.default_speed or 0) > 3  # beside full float32 and beside TF32
