"""Check a benchmark result: that the variant computed in its precision.

An autocast that casts nothing is as fast as float32, and a benchmark of it would say "1.00×". So every variant is asked
for its kernels' dtypes; its output is compared with float32's, its error with what its precision gives.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from ampcheck.bench.core.kernels import (
    BenchKernel,
    KernelProgram,
    compiled,
    computing,
    enters,
    observed,
    observed_step,
    program,
)
from ampcheck.bench.core.model import COMPILERS, Precision, StepWorkload, Workload
from ampcheck.bench.core.prepare import Prepared, flops
from ampcheck.devices.base import Device
from ampcheck.errors import one_line, unknown
from ampcheck.observe.closeness import relative_error
from ampcheck.spec.casting import LOW, expect, is_floating, widest
from ampcheck.spec.torch_dtypes import name_of


@dataclass(frozen=True, slots=True)
class PrecisionCheck:
    """`text`: the dtypes that were seen, e.g. "mm in bf16". `invalid`: how they contradict the variant, or ""."""

    text: str
    invalid: str = ""


def check_precision(
    prepared: Prepared,
    variant: Precision,
    workload: Workload,
    device: Device,
    compiler: str,
    reference: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    exact: torch.Tensor | None = None,
) -> PrecisionCheck:
    """Find out whether a variant computes in its precision.

    Its kernels are recorded (compiler "eager", and "graph", which replays the same), read in the StableHLO ("jit"), or
    read in the graphs ("compile"). The parameters of a step are restored afterwards.

    Args:
        reference: the float32 variant's output; None, or `output` itself, for that variant.
        output: the variant's own; `prepared.output()` where it is None.
        exact: float64's; without it the size of the error is not looked at.

    Raises UsageError for an unknown compiler.
    """
    if compiler not in COMPILERS:
        raise unknown("compiler", compiler, COMPILERS)
    output = prepared.output() if output is None else output
    try:
        text, invalid = _dtypes(prepared, variant, workload, device, compiler)
    except Exception as error:  # a recorder meets what a call does not, and then nothing is shown
        text, invalid = "", f"its dtypes could not be seen: {one_line(error)}"
    finally:
        prepared.restore()
    if reference is not None and reference is not output:
        invalid = invalid or differs(variant, workload, output, reference)
    if exact is None or not device.has_values:
        return PrecisionCheck(text, invalid)
    found, platform = relative_error(output, exact), device.describe().get("platform", device.type)
    if variant.low is None and variant.matmul != "highest" and not given_low(workload):
        kind = float32_kind(found, workload, platform)
        text = "; ".join(filter(None, (text, kind and f"error of {kind}")))
    return PrecisionCheck(text, invalid or beyond(found, variant, workload, platform))


def _dtypes(
    prepared: Prepared, variant: Precision, workload: Workload, device: Device, compiler: str
) -> tuple[str, str]:
    """Return the text about the kernels, and what is wrong with them."""
    policies, region = device.policies(), variant.region
    step = isinstance(workload, StepWorkload)
    seen: list[BenchKernel] = []
    launched = compiler in ("eager", "graph")
    if launched and step:
        seen = observed_step(prepared.eager, device, policies)
    elif not step and (launched or region is not None):
        seen = observed(prepared.eager, device, region, policies)
    promised = {policies[kernel.name] for kernel in seen if kernel.name in policies}
    read: KernelProgram | None = None
    if compiler == "jit":
        read = program(prepared.jitted.lower(*prepared.arguments).as_text())
        kernels = computing(read.kernels)
    else:
        kernels = computing(seen if launched else compiled(prepared.compiled_with))
    if not kernels:
        if read and workload.policy == "fallthrough":
            return "the program computes nothing", ""
        if compiler == "compile":
            return "", "torch.compile made no graph that computes anything, so the call ran op by op"
        where = "in the program" if compiler == "jit" else "as it ran"
        return "", f"no kernel that computes with floating point numbers was seen {where}"
    text = describe(kernels, read)
    wrong = ""
    if region is not None and not step:
        wrong = against_spec(seen, policies, name_of(region))
        # A device with another kind of region may keep its state elsewhere.
        if device.region == "torch.autocast" and not enters(prepared.eager, device.type, region):
            wrong = f"the call enters no autocast region of {name_of(region)}"
    if region is not None and not step and not promised and workload.policy in ("upcast", "promote"):
        text += f"; {device.name}'s autocast has no policy for it"
    return text, wrong or judge(kernels, variant, workload, promised, read)


def differs(variant: Precision, workload: Workload, output: torch.Tensor, reference: torch.Tensor) -> str:
    """Say why an output is too much like the float32 variant's, "" where it is not.

    An output in lower precision must differ where float32's has numbers that the lower precision does not have.
    """
    if output.shape != reference.shape:
        return f"the output has {output.numel()} numbers and the first variant's {reference.numel()}"
    low = variant.low
    casts = workload.policy in ("downcast", "mixed") or variant.convert is not None
    if low is None or not casts or getattr(workload, "overflows", False):
        return ""
    values = reference[reference.isfinite()]
    if torch.equal(values.to(low).double(), values.double()) or not torch.equal(output, reference):
        return ""
    return f"the output is float32's bit for bit, so nothing was computed in {name_of(low)}"


# ---- the rules for kernels, and their words


_FLOAT32 = frozenset(("upcast", "optdtype", "append"))
"""Policies that compute in float32."""
_NAMED = 4
"""A text names this many kernels at most."""


def against_spec(kernels: Sequence[BenchKernel], policies: Mapping[str, str], amp: str) -> str:
    """Return the first kernel that autocast did not give what its policy promises, in a sentence, or "".

    `kernels`: with what was given and received. `policies`: by overload. `amp`: the region's dtype.
    """
    missed = []
    for kernel in kernels:
        policy = policies.get(kernel.name, "fallthrough")
        if policy in ("downcast", "upcast", "promote"):
            expected = expect(policy, kernel.name, kernel.given, amp).leaves
            missed += [(kernel, got, want) for got, want in zip(kernel.received, expected, strict=True) if got != want]
        elif policy == "optdtype" and kernel.given and kernel.given[0].eligible and kernel.dtype_kwarg is None:
            missed.append((kernel, kernel.received[0], "dtype=fp32"))
    if not missed:
        return ""
    kernel, got, want = missed[0]
    if want == amp and not any(amp in one.received for one in computing(kernels)):
        return f"autocast cast nothing: {kernel.short} received {got}"
    return f"{kernel.short} received {got} where autocast promises {want}"


def judge(
    kernels: Sequence[BenchKernel],
    variant: Precision,
    workload: Workload,
    promised: Collection[str],
    read: KernelProgram | None = None,
) -> str:
    """Say why kernels are not those of a variant, "" where they are.

    `kernels`: those that compute, at least one. `promised`: the policies of what the workload calls. `read`: the
    program that they are of.
    """
    if variant.low is None:
        if given_low(workload):
            return ""
        below = [(k, low) for k in kernels for low in LOW if low in (*k.got, *k.out)]
        return f"{below[0][0].short} computes in {below[0][1]} in a variant named {variant.name}" if below else ""
    low = name_of(variant.low)
    products = [kernel for kernel in kernels if kernel.is_product]
    if products:
        return _products(products, low, variant.region is not None, read)
    if variant.region is None:
        taken = read.takes if read else tuple(dtype for kernel in kernels for dtype in kernel.got)
        return "" if low in taken else f"nothing is in {low}: {kernels[0].short} received {kernels[0].dtype}"
    return _without_products(kernels, workload, promised, low, read)


def _products(products: Sequence[BenchKernel], low: str, region: bool, read: KernelProgram | None) -> str:
    """Every product must be in the lower precision."""
    rest = [kernel for kernel in products if low not in kernel.got]
    if not rest:
        return ""
    who = f"{rest[0].short} received {rest[0].dtype}"
    if read and low in read.dtypes:
        return f"{len(rest)} of {len(products)} products compute in {rest[0].dtype}: what is {low} is widened for them"
    if len(rest) < len(products):
        return f"{len(rest)} of {len(products)} products are not in {low}: {who}"
    return f"autocast cast nothing: {who}" if region else f"nothing is in {low}: {who}"


def _without_products(
    kernels: Sequence[BenchKernel], workload: Workload, promised: Collection[str], low: str, read: KernelProgram | None
) -> str:
    """Return the rules for autocast on a workload without products.

    XLA has no kernels: a chain that begins and ends in lower precision may be computed in float32 in between.
    """
    some = kernels[0]
    if workload.policy in ("downcast", "mixed"):
        seen = low in read.dtypes if read else any(low in kernel.got for kernel in kernels)
        return "" if seen else f"autocast cast nothing: {some.short} received {some.dtype}"
    if workload.policy == "upcast" and _FLOAT32.intersection(promised):
        if not any(kernel.dtype == "fp32" for kernel in kernels):
            return f"{some.short} received {some.dtype} where autocast promises fp32"
    elif workload.policy == "promote" and "promote" in promised and read and read.takes:
        wide = widest(list(read.takes))
        narrow = next((kernel for kernel in kernels if kernel.dtype != wide), None)
        if narrow:
            return f"{narrow.short} computes in {narrow.dtype} where autocast promises {wide}"
    elif workload.policy == "fallthrough" and read:
        other = next((kernel for kernel in kernels if not {*read.takes, "fp32"}.issuperset(kernel.got)), None)
        if other:
            return f"{other.short} computes in {other.dtype}, which none of its inputs is"
    return ""


def describe(kernels: Sequence[BenchKernel], read: KernelProgram | None = None) -> str:
    """Kernels by dtype, in words: "mm in bf16", or "12 of 14 kernels in bf16, 2 in fp32 (mse_loss, softmax)".

    `read`: the program that they are of. Of one with products these are told, as they are what takes the time; and
    its inputs where it computes in another dtype: "exponential in fp32 on bf16 inputs".
    """
    if not read:
        return _by_dtype(kernels)
    products = [kernel for kernel in kernels if kernel.is_product]
    text = _by_dtype(products or [kernel for kernel in kernels if kernel.dtype != "fp64"] or kernels)
    taken = sorted({*read.takes}.intersection(LOW).difference(*(kernel.got for kernel in kernels)))
    if taken:
        text += f" on {'+'.join(taken)} inputs"
    rest = len(kernels) - len(products)
    return f"{text}; {rest} other instructions" if products and rest else text


def _by_dtype(kernels: Sequence[BenchKernel]) -> str:
    groups: dict[str, Counter[str]] = {}
    for kernel in kernels:
        label = kernel.dtype
        if kernel.is_product and kernel.out and set(kernel.out) != set(kernel.got):
            label += f" giving {'+'.join(sorted(set(kernel.out)))}"
        groups.setdefault(label, Counter())[kernel.short] += 1
    ordered = sorted(groups.items(), key=lambda group: -group[1].total())
    first, names = ordered[0]
    if len(ordered) == 1:
        return f"{_listed(names) if len(names) <= _NAMED else f'{names.total()} kernels'} in {first}"
    parts = [f"{names.total()} of {len(kernels)} kernels in {first}"]
    return ", ".join(parts + [f"{names.total()} in {label} ({_listed(names)})" for label, names in ordered[1:]])


def _listed(names: Counter[str]) -> str:
    shown = [f"{count} {name}" if count > 1 else name for name, count in sorted(names.items())]
    return ", ".join(shown[:_NAMED]) + (", …" if len(shown) > _NAMED else "")


# ---- the largest error against float64 that each precision may have, by `relative_error`
#
# The reference is `ampcheck.bench.core.prepare.reference`: the workload with the same values, in float64 on the
# CPU. Outputs are vectors as `Prepared.output` gives them, without integers and booleans.

# Limits on the relative error, about ten times what normal numbers give, so that only another kind of arithmetic
# exceeds them. Measured: products of normal numbers 2e-7 (float32, 4e-6 at 65536 terms), 3e-4 (TF32 and fp16), 2.4e-3
# (products of bf16 numbers, kept in float32), 2.9e-3 (bf16), 4.2e-3 (exp and softmax in bf16). A step adds up layers.
_OP = {"fp32": 3e-5, "tf32": 1e-3, "fp16": 8e-3, "bf16": 3e-2, "fp64": 1e-12}
_STEP = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 8e-2, "bf16": 3e-1, "fp64": 1e-11}


def limit(kind: str, workload: Workload) -> float:
    """Return the largest relative error that a precision gives on a workload.

    `kind`: "fp32", "tf32", "fp16", "bf16" or "fp64". Raises KeyError for another.
    """
    return (_STEP if isinstance(workload, StepWorkload) else _OP)[kind]


def given_low(workload: Workload) -> str:
    """Return the lower precision that the workload's own inputs have in every variant, "" where they are float32."""
    for spec in getattr(workload, "inputs", ()):
        name = name_of(spec.dtype)
        if is_floating(name) and spec.dtype.itemsize < 4:
            return name
    return ""


def float32_kind(found: float, workload: Workload, platform: str) -> str:
    """Name the arithmetic of a float32 variant, by the size of its error.

    "float32", "TF32", "bf16 products" (on a TPU its default), or "" where the error is larger than all of these give.
    `platform`: e.g. "cpu", "cuda", "tpu".
    """
    if found <= limit("fp32", workload):
        return "float32"
    if found <= limit("tf32", workload) and platform != "tpu":
        return "TF32"
    if found <= limit("bf16", workload):
        return "TPU default: bf16 products" if platform == "tpu" else "bf16 products"
    return ""


def beyond(found: float, precision: Precision, workload: Workload, platform: str = "") -> str:
    """Say why the precision does not explain an error, "" where it does.

    `found`: relative error. `platform` as for `float32_kind`.
    """
    if found == float("inf"):
        return "the output is not finite, or not zero, where float64's is"
    low = name_of(precision.low) if precision.low else given_low(workload)
    if low:
        most = max(limit(low, workload), limit(given_low(workload) or low, workload))
        return f"error {found:.1e} is beyond what {low} gives ({most:.0e} at most)" if found > most else ""
    kind = float32_kind(found, workload, platform)
    allowed = {"highest": ("float32",), "tf32": ("float32", "TF32")}.get(precision.matmul)
    if kind and (allowed is None or kind in allowed):
        return ""
    most = limit("tf32" if precision.matmul == "tf32" else "fp32" if allowed else "bf16", workload)
    what = f"error {found:.1e} is beyond what {precision.name} gives ({most:.0e} at most)"
    multiplies = flops(workload) > 0 or workload.policy in ("downcast", "mixed")
    return f"{what}: this is {kind}" if kind and multiplies else what
