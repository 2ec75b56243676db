"""The op cases of a device, and the call of one with everything the specification says of it."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any

import torch

from ampcheck import samples
from ampcheck.compilers.kinds import COMPILERS
from ampcheck.devices.base import Device
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.recorder import overload, tensors
from ampcheck.samples import op_database
from ampcheck.samples.describe import Op, Sample, leaves, map_leaves
from ampcheck.samples.tensors import MakesTensors, build
from ampcheck.spec.case import AROUND, CELLS, GRADIENT, RULES, Case, assign, one_off
from ampcheck.spec.casting import LOW, POLICIES, WITHOUT_GRADIENT, Expectation, Leaf, expect, is_floating
from ampcheck.spec.torch_dtypes import DTYPES, name_of

_DTYPE = re.compile(r"fp\d+|bf16|int64|bool|given")

# Beyond this many floating arguments (recurrent cells, fused attention) only the first and last ones are varied.
_VARIED = 6


def op_cases(device: Device, rule: str, suite: str = "eager", *, only: str | None = None) -> Iterator[Case]:
    """Yield every op case of a rule on a device, or those of one overload. Runs no op."""
    policies = device.policies()
    if rule == "drift":
        for overload in sorted(o for o, policy in policies.items() if policy == UNKNOWN):
            yield Case(suite, rule, overload, "", "all", device.default_amp, device.name, device.token)
        return
    for op in samples.catalogue().values():
        if only is not None and op.overload != only:
            continue
        policy = policies.get(op.overload, "fallthrough")
        if policy == rule:
            yield from (_gradients if suite == "autograd" else _of_op)(device, rule, suite, op)


def _of_op(device: Device, rule: str, suite: str, op: Op) -> Iterator[Case]:
    for number, sample in enumerate(op.samples):
        if device.type in sample.not_on:
            continue
        for amp, inputs in _variants(device, rule, sample, main=number == 0):
            yield Case(suite, rule, op.overload, sample.name if number else "", inputs, amp, device.name, device.token)


def _gradients(device: Device, rule: str, suite: str, op: Op) -> Iterator[Case]:
    """Yield the cases of an op's gradient: the main sample in few dtypes, the others in float32 if time allows."""
    if op.overload in WITHOUT_GRADIENT:
        return
    low = device.default_amp
    for number, sample in enumerate(op.samples):
        count = floating_count(sample)
        if device.type in sample.not_on or not count or (number and not device.database):
            continue
        pairs = [(low, "fp32")]
        if number == 0:
            pairs += [(amp, "fp32") for amp in device.amp_dtypes if amp != low]
            pairs += [(low, one_off("fp32", low, place, count)) for place in dict.fromkeys((count - 1, 0))]
        name = sample.name if number else ""
        for amp, inputs in pairs:
            yield Case(suite, rule, op.overload, name, f"{inputs}{GRADIENT}", amp, device.name, device.token)


def floating_count(sample: Sample) -> int:
    """Return how many arguments of a sample take the case's dtypes."""
    return sum(1 for leaf in leaves(sample) if leaf.dtype is None)


def _variants(device: Device, rule: str, sample: Sample, *, main: bool) -> Iterator[tuple[str, str]]:
    """Yield pairs of region dtype and dtype assignment, each once."""
    count = floating_count(sample)
    default = device.default_amp
    if count == 0:
        yield default, "given"
        return
    if not main or rule == "fallthrough":
        low = default
        yield default, "fp32"
        yield default, one_off(low, "fp32", 0, count) if count > 1 else low
        if main and count > 1:
            yield default, one_off(low, "fp32", count - 1, count)
        return
    for amp in device.amp_dtypes:
        seen = set()
        for inputs in assignments(count, amp, integers=amp == default):
            if inputs not in seen:
                seen.add(inputs)
                yield amp, inputs


def assignments(count: int, amp: str, *, integers: bool) -> Iterator[str]:
    """Yield the dtype assignments of a main sample with `count` floating arguments, some of them more than once."""
    other = LOW[1] if amp == LOW[0] else LOW[0]
    yield from ("fp32", amp, other, "fp64")
    if integers:
        yield from ("int64", "bool")
    if count == 1:
        return
    positions = range(count) if count <= _VARIED else (0, 1, count - 1)
    for position in positions:
        yield one_off(amp, "fp32", position, count)
    yield one_off(amp, other, count - 1, count)
    yield one_off(amp, "fp64", 0, count)
    yield one_off("fp32", "fp64", count - 1, count)
    if integers:
        yield one_off("fp32", "int64", count - 1, count)


def smoke(cases: Sequence[Case]) -> list[bool]:
    """Choose the cases of a smoke run: on each device, the first one of each kind (`_kinds`).

    Args:
        cases: the cases of a full run, in its order.

    Returns: whether each case is kept.
    """
    rules, catalogue = list(RULES), samples.catalogue()

    def order(number: int) -> tuple[int, int]:
        case = cases[number]
        return rules.index(case.rule), len(case.op) if case.op in catalogue else 0  # common ops have short names

    seen: set[tuple[object, ...]] = set()
    kept = [False] * len(cases)
    for number in sorted(range(len(cases)), key=order):
        kinds = {(cases[number].device, *kind) for kind in _kinds(cases[number])}
        kept[number] = not kinds <= seen
        seen |= kinds
    return kept


def _kinds(case: Case) -> Iterator[tuple[object, ...]]:
    """Yield the kinds that a case is of: its rule, its compiler, the dtypes of its inputs, the program that it runs."""
    yield "rule", case.suite, case.rule
    if case.compiler:
        yield "compiler", case.suite, case.compiler, case.sample == AROUND
    elif case.rule in POLICIES or case.rule == "fallthrough":
        database = case.sample == "database"
        if database or not case.sample:
            yield "inputs", case.suite, case.rule, case.amp, frozenset(_DTYPE.findall(case.inputs)), database
    elif case.rule == "programs":
        yield "program", case.suite, case.op, case.inputs


def database_cases(device: Device, suite: str = "eager") -> Iterator[Case]:
    """Yield the database's cases on a device: every op but those that are one with a policy, in float32 and a low one.

    An op whose samples are not floating gets one case in the first dtype they have. Runs no op.
    """
    policies = device.policies()
    for row in op_database.rows().values():
        overloads = row.overloads.split()
        if overloads and all(overload in policies for overload in overloads):
            continue
        there = row.dtypes.split()
        chosen = [dtype for dtype in ("fp32", device.default_amp) if dtype in there] or there[:1]
        for inputs in chosen:
            yield Case(
                suite, "fallthrough", row.op, op_database.SAMPLE, inputs, device.default_amp, device.name, device.token
            )


_SLOW = ("inductor", "packaged")
"""Each program is compiled by a C++ or Triton compiler, which takes seconds: nightly."""
_AROUND = ("script", "traced", "dynamo", "aot", "inductor", "export", "decomposed", "jaxcompile", "jaxjit")

_COMMON = {
    *("mm", "linear", "conv2d", "scaled_dot_product_attention", "mse_loss", "exp", "layer_norm", "avg_pool3d"),
    *("softmax.int", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim", "cat", "stack", "addcmul"),
    *("atan2", "index_copy", "binary_cross_entropy", "relu", "add.Tensor", "batch_norm"),
}
"""These and all with a policy go through the quick compilers in every run, where a device has values and compiles no op
by itself, and in a nightly run through every compiler on every device."""
_EVERYWHERE = (
    *("mm", "mse_loss", "exp", "softmax.int", "norm.Scalar", "addcmul", "cat"),
    *("binary_cross_entropy", "add.Tensor"),
)
"""Those that every run sends through every compiler on every device."""
_QUICK = ("script", "traced", "dynamo", "export")


def compilers(device: Device, *, nightly: bool = False) -> tuple[str, ...]:
    """Return the compilers that take programs on a device; the slow ones in a nightly run only."""
    return tuple(name for name in device.compilers if nightly or name not in _SLOW)


def compiled_cases(device: Device, rule: str, suite: str = "jit", *, nightly: bool = False) -> Iterator[Case]:
    """Yield the cases of a rule that run through a compiler on a device. Runs no op."""
    policies = device.policies()
    for op in samples.catalogue().values():
        if policies.get(op.overload, "fallthrough") != rule or device.type in op.samples[0].not_on:
            continue
        for compiler in compilers(device, nightly=nightly):
            if _runs(device, rule, op.overload, compiler, nightly):
                yield from _compiled(device, rule, suite, op, compiler)


MODES = ("plain", "grad", "no_grad", "inference")
"""Gradient modes of a sweep: no tensor requires grad; all floating ones do, and a backward pass follows; they do, in
`torch.no_grad()`; everything is in `torch.inference_mode()`."""


def cell_cases(device: Device, rule: str, suite: str) -> Iterator[Case]:
    """Yield the sweeps of a rule's ops on a device, for nightly runs: through each compiler in the suite jit.

    `ampcheck.checks.sweep` says what they run. Runs no op.
    """
    if rule not in POLICIES:
        return
    policies = device.policies()
    # Eager mode refuses a banned op, so that there is no program of one.
    names = ("",) if suite != "jit" else () if rule == "banned" else compilers(device, nightly=True)
    for op in samples.catalogue().values():
        if policies.get(op.overload) != rule or device.type in op.samples[0].not_on:
            continue
        for compiler in names:
            graph = rule != "banned" and op.overload not in WITHOUT_GRADIENT and not without_gradient(device, compiler)
            for mode in MODES if graph else ("plain", "no_grad", "inference"):
                where = (device.default_amp, device.name, device.token)
                yield Case(suite, rule, op.overload, CELLS, mode, *where, compiler)


def without_gradient(device: Device, compiler: str) -> str:
    """Return why no gradient flows through a device's programs of a compiler; "" where one does, and in eager mode."""
    if compiler and not COMPILERS[compiler].grads:
        return "no gradient flows through such a program"
    if compiler and not device.has_values:
        return "autograd asks for the device behind a fake tensor, which is not there"
    return ""


def _runs(device: Device, rule: str, op: str, compiler: str, nightly: bool) -> bool:
    """Return whether an op goes through a compiler: XLA takes long, and fake tensors tell less."""
    quick = device.has_values and device.type != "jax" and compiler in _QUICK
    return op in _EVERYWHERE or ((quick or nightly) and (op in _COMMON or rule != "fallthrough"))


def _compiled(device: Device, rule: str, suite: str, op: Op, compiler: str) -> Iterator[Case]:
    amp, count = device.default_amp, floating_count(op.samples[0])
    mixed = one_off(amp, "fp32", 0, count) if count > 1 else amp
    placed = ("", AROUND) if compiler in _AROUND and op.overload in _EVERYWHERE else ("",)
    for inputs in ("fp32", mixed) if count else ("given",):
        for sample in placed:
            yield Case(suite, rule, op.overload, sample, inputs, amp, device.name, device.token, compiler)


@cache
def eager(op: str, call: str) -> Callable[..., Any]:
    """Return the function a path names; "aten" is the overload itself.

    Raises AttributeError where torch has no such function.
    """
    if call == "aten":
        return overload(op)
    root, *names = call.split(".")
    roots: dict[str, Any] = {"torch": torch, "operator": operator}
    found: Callable[..., Any] = reduce(getattr, names, roots[root])
    return found


def because(rule: str) -> str:
    """Return the rule as a sentence of a difference names it."""
    return f"rule {rule}: {RULES[rule].sentence}"


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A case with everything the specification says of it.

    `given`: the call's tensors. `dtype_given`: the caller's `dtype=`, or None.
    """

    op: Op
    sample: Sample
    dtypes: tuple[str, ...]
    given: tuple[Leaf, ...]
    dtype_given: str | None
    expected: Expectation

    @property
    def name(self) -> str:
        """Return the call's name in sentences."""
        return f"aten::{self.op.overload}" if self.sample.call == "aten" else self.sample.call

    @property
    def function(self) -> Callable[..., Any]:
        """Return what the sample calls, run eagerly."""
        return eager(self.op.overload, self.sample.call)

    @property
    def given_dtypes(self) -> list[str]:
        """Return the dtype of each tensor of the call."""
        return [leaf.dtype for leaf in self.given]

    @property
    def narrowest(self) -> torch.dtype:
        """Return the least precise floating dtype that the kernel receives; float32 for none."""
        floating = [DTYPES[dtype] for dtype in self.expected.leaves if dtype in ("fp16", "bf16", "fp32", "fp64")]
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)

    @property
    def asks_for_one_dtype(self) -> bool:
        """Return whether the kernel got one floating dtype throughout; it may refuse a mixture, or integers."""
        floating = {dtype for dtype in self.expected.leaves if is_floating(dtype)}
        return len(floating) == 1 and not {"int64", "bool"} & set(self.dtypes)

    def inputs(self, device: MakesTensors) -> list[torch.Tensor]:
        """Return fresh tensors of the call on a device."""
        return list(tensors(build(self.sample, self.dtypes, device)))

    def call(self, *given: torch.Tensor) -> Any:
        """Return what the call gives for these tensors in the places of its own."""
        return self.called(self.function, given)

    def cast(self, given: Iterable[torch.Tensor], dtype: str | None = None) -> list[torch.Tensor]:
        """Return the call's tensors cast as autocast is to cast them for the kernel.

        A spelling may not take the `dtype=` that autocast fills in; its tensors are cast to that dtype instead.
        `dtype`: what all floating ones are cast to in the end.
        """
        dtype = dtype or (None if self.sample.call == "aten" else self.expected.dtype_kwarg)
        made = [x.to(DTYPES[wanted]) for x, wanted in zip(given, self.expected.leaves, strict=True)]
        return [x.to(DTYPES[dtype]) if dtype and x.is_floating_point() else x for x in made]

    def reference(self, dtype: str | None = None) -> Callable[..., Any]:
        """Return the call that autocast makes of this one, for tensors that were `cast` to the same dtype."""
        filled = self.expected.dtype_kwarg
        if self.sample.call != "aten" or not filled:
            return self.call
        return partial(self._filled_in, dtype or filled)

    def _filled_in(self, dtype: str, *given: torch.Tensor) -> Any:
        return self.called(overload(self.expected.overload), given, dtype=DTYPES[dtype])

    def called(self, function: Callable[..., Any], given: Iterable[torch.Tensor], **more: Any) -> Any:
        """Return what a function gives for the arguments of the call, with these tensors among them."""
        remaining = iter(given)
        args = map_leaves(self.sample.args, lambda _: next(remaining))
        kwargs = {name: map_leaves(value, lambda _: next(remaining)) for name, value in self.sample.kwargs.items()}
        return function(*args, **(kwargs | more))


def plan(case: Case, device: Device, policy: str | None = None) -> CallPlan:
    """Return what the specification expects of a case; of its rule, or of another policy."""
    op = samples.catalogue()[case.op]
    sample = op.sample(case.sample) if case.sample else op.samples[0]
    count = floating_count(sample)
    dtypes = assign(case.inputs, count) if count else ()
    remaining = iter(dtypes)
    own = device.type
    given = tuple(
        Leaf(leaf.dtype or next(remaining), on_device=leaf.device != "cpu" or own == "cpu") for leaf in leaves(sample)
    )
    chosen = _dtype_argument(sample)
    expected = expect(policy or case.rule, op.overload, given, case.amp, dtype_given=chosen is not None)
    return CallPlan(op, sample, dtypes, given, chosen, expected)


def _dtype_argument(sample: Sample) -> str | None:
    """Return the dtype the caller asks for: samples hold `torch.dtype`s only as `dtype=` arguments."""
    values = (*sample.args, *sample.kwargs.values())
    return next((name_of(v) for v in values if isinstance(v, torch.dtype)), None)
