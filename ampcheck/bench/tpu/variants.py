"""Turn an estimate into a variant's result: its figures, its precision check, its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from ampcheck.bench.core.model import Precision, VariantResult, Workload
from ampcheck.bench.run import summary
from ampcheck.bench.tpu.chips import Chip
from ampcheck.bench.tpu.estimate import Estimate
from ampcheck.bench.tpu.program import floating

MOVES = frozenset(
    ("reshape", "copy", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad")
)
"""The kinds that take as long as their bytes take to move, where the compiler gives no cycles."""


def variant_result(workload: Workload, precision: Precision, found: Estimate, made: Chip) -> VariantResult:
    """Return the figures of a variant; its verdict is "invalid", "not measured", "ambiguous", or "" so far."""
    invalid = contradicts(workload, precision, found)
    loops = found.schedule.loops
    variant = VariantResult(
        precision.name,
        "invalid" if invalid else "",
        invalid,
        precision_check=precision_check(found),
        compile=found.compile,
    )
    variant.memory = found.memory
    if loops and not invalid:
        variant.verdict = "not measured"
        variant.reason = (
            f"how often {loops} loop{'s' if loops > 1 else ''} of the program run is not in the compiler's text"
        )
    if variant.verdict:
        return variant
    flops = workload.flops or found.flops
    variant.seconds = found.seconds
    variant.flops_per_second = flops / found.seconds if flops else None
    variant.bytes_per_second = found.bytes / found.seconds
    variant.intensity = flops / found.bytes if flops and found.bytes else None
    if workload.flops:
        summary.share(variant, workload.flops / found.seconds / made.flops, "published")
    unknown = {name: count for name, count in found.schedule.without.most_common() if name not in MOVES}
    if unknown:
        what = ", ".join(f"{count} × {name}" for name, count in unknown.items())
        variant.verdict = "ambiguous"
        variant.reason = f"the compiler gives no cycles for {what}: taken by the bytes they move, which is too little"
    return variant


def contradicts(workload: Workload, precision: Precision, found: Estimate) -> str:
    """Say why the program is not what the variant's name says, "" where it is."""
    if found.wide:
        return f"computes in float64: {found.wide[0]}"
    kinds = [product for product in found.products if any(map(floating, product.operands))]
    if precision.low is None:
        for product in kinds:
            if precision.matmul == "highest" and (product.passes < 6 or set(product.operands) != {"f32"}):
                return f"a product is in {product}, where float32 was asked for"
        return ""
    name = {"bfloat16": "bf16", "float16": "f16"}[str(precision.low).removeprefix("torch.")]
    expected = precision.convert is not None or workload.policy in ("downcast", "mixed")
    if kinds and expected and not any(name in product.operands for product in kinds):
        return f"no product is in {precision.name.partition('-')[0]}; there are {', '.join(map(str, kinds))}"
    return ""


def precision_check(found: Estimate) -> str:
    """Return the dtypes of the products and the casts that are left, and where the time comes from."""
    kinds = ", ".join(f"{count} × {kind}" for kind, count in found.products.most_common())
    parts = [f"products: {kinds or 'none'}", f"casts left: {found.cast_count}"]
    if found.casts:
        parts[-1] += f" ({', '.join(found.casts[:3])}{', …' if len(found.casts) > 3 else ''})"
    sources = {
        "cycles": f"time from {found.schedule.cycles} cycles of the compiler's",
        "optimal": "time from XLA's optimal_seconds, which knows no passes",
        "roofline": "time from flops by peak and bytes by bandwidth, the larger",
    }
    return "; ".join([*parts, sources[found.source]])


def judge(variants: Sequence[VariantResult]) -> None:
    """Give each variant its speed beside the first one and its verdict, ambiguous where a part's time is unknown."""
    first = variants[0]
    unclear = first.reason if first.verdict == "ambiguous" else ""
    first.verdict = "first" if first.verdict in ("", "ambiguous") else first.verdict
    for variant in variants[1:]:
        if variant.verdict not in ("", "ambiguous"):
            continue
        if not first.seconds or not variant.seconds:
            variant.verdict = "not measured"
            variant.reason = f"{first.name}, which it is compared with, is {first.verdict}: {first.reason}"
            continue
        variant.speed = first.seconds / variant.seconds
        if variant.verdict or unclear:
            variant.verdict, variant.reason = "ambiguous", variant.reason or f"{first.name}: {unclear}"
        else:
            variant.verdict = summary.estimated_verdict(variant.speed)
