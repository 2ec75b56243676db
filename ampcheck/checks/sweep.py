"""Cells: an op with a policy, the dtypes of its inputs, gradient mode, layout, and what runs it; and their sweep.

A case of an op reaches one cell as a rule. Those of sample `CELLS`, which nightly runs have, reach every cell of an op,
a gradient mode and a compiler. `ampcheck coverage` counts both.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch

from ampcheck import samples
from ampcheck.checks.backward import Pass, differentiable, leaf, run_passes
from ampcheck.checks.cases import (
    MODES,
    CallPlan,
    assignments,
    because,
    compilers,
    floating_count,
    plan,
    without_gradient,
)
from ampcheck.checks.comparisons import kernel, output_dtypes, refused, same_error, same_tensor
from ampcheck.checks.compiled import CompiledOpProgram, Parity, simulate_cuda
from ampcheck.checks.layouts import channels_last, contiguous, strided, transposed
from ampcheck.checks.product import Product
from ampcheck.checks.program import OpCheck, PlainProgram, carrying, cast_blocks, region
from ampcheck.checks.reference import raised_by_cpu
from ampcheck.compilers import source
from ampcheck.compilers.kinds import COMPILERS, quiet
from ampcheck.devices.base import Device
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Difference, Unsupported, error_of
from ampcheck.observe.recorder import exists, is_composite, observe
from ampcheck.samples.describe import Op, Sample, leaves
from ampcheck.spec.case import AROUND, CELLS, GRADIENT, Case, assign
from ampcheck.spec.casting import POLICIES, WITHOUT_GRADIENT, is_floating
from ampcheck.spec.torch_dtypes import name_of

GIVEN = "given"
"""The mix of an op without an argument whose dtype a case decides."""
FORMS = {layout.__name__: layout for layout in (contiguous, strided, transposed, channels_last)}
"""By layout, what makes another tensor of a floating one."""
_DIMS = {"contiguous": 0, "strided": 1, "transposed": 2, "channels_last": 4}
"""How many dimensions a tensor needs to be laid out so; of channels_last, how many it must have."""


UNFILLED = {"mkldnn_rnn_layer": (3,)}
"""By op, the places of outputs that no kernel fills, so that equal calls differ in them: a scratch buffer of oneDNN."""

_FLAGS = ("", "on", "off")
_ENTRIES = [f"enter_{on}_{dtype}_{cache}" for on in ("on", "off") for dtype in ("", "low", "other") for cache in _FLAGS]
_SETTINGS = ("enable", "disable", "set_low", "set_other", "cache_on", "cache_off", "clear")
TRANSITIONS = Product(
    {
        "enabled": ("on", "off"),
        "dtype": ("low", "other"),
        "cache": ("on", "off"),
        "depth": ("0", "1", "2"),
        "step": (*_ENTRIES, *_SETTINGS, "exit", "raise"),
    },
    {"there is no region to leave": lambda cell: cell["depth"] == "0" and cell["step"] in ("exit", "raise")},
)
"""The states of a device type, and what may be done in each: a region of any arguments is entered, a setter is called,
a region is left. `suites/eager/test_state.py` does each of them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One state of a call. `mix`: see `mixes`. `compiler`: "" for eager mode."""

    overload: str
    mix: str
    mode: str
    layout: str
    compiler: str


def mixes(number: int, amp: str) -> dict[str, str]:
    """Return the mixes of dtypes of `number` floating arguments, each with the first assignment that has it.

    A mix names the dtypes from the region's point of view: "low" is the region's, "other" the other lower precision.
    """
    found: dict[str, str] = {}
    for inputs in assignments(number, amp, integers=True):
        found.setdefault(_mix(assign(inputs, number), amp), inputs)
    return found


def _mix(dtypes: tuple[str, ...], amp: str) -> str:
    called = {"fp16": "other", "bf16": "other", amp: "low"}
    return "+".join(sorted({called.get(dtype, dtype) for dtype in dtypes})) or GIVEN


MIXES = (*mixes(2, "bf16"), GIVEN)


def cells(device: Device) -> Iterator[tuple[Cell, str]]:
    """Yield each cell of a device's ops with a policy, and why it cannot be; "" where it can.

    Runs each op eagerly in each mix of dtypes, as no program can be made of a call that eager mode refuses.
    """
    for op in _ops(device):
        refused = _refused(op, device)
        for compiler in ("", *compilers(device, nightly=True)):
            for mode in MODES:
                for mix in MIXES:
                    for layout in FORMS:
                        why = impossible(op, device, mix, mode, layout)
                        if not why and mode == "grad":
                            why = without_gradient(device, compiler)
                        if not why and compiler and mix in refused:
                            why = "eager mode refuses these dtypes, so that there is no program of them"
                        yield Cell(op.overload, mix, mode, layout, compiler), why


def reached(case: Case, device: Device) -> Iterator[Cell]:
    """Yield the cells that a case reaches; `cells` says which of them can be."""
    if case.rule not in POLICIES:
        return
    if case.sample == CELLS:
        for mix in MIXES:
            for layout in FORMS:
                yield Cell(case.op, mix, case.inputs, layout, case.compiler)
        return
    op = samples.catalogue()[case.op]
    sample = op.sample(case.sample) if case.sample and not case.compiler else op.samples[0]
    number = floating_count(sample)
    dtypes = assign(case.inputs.removesuffix(GRADIENT), number) if number else ()
    graph = bool(case.compiler) and not without_gradient(device, case.compiler)
    mode = "grad" if case.suite == "autograd" or graph else "plain"
    yield Cell(case.op, _mix(dtypes, case.amp), mode, "contiguous", case.compiler)


def impossible(op: Op, device: Device, mix: str, mode: str, layout: str) -> str:
    """Return why an op cannot be called so on a device, in a sentence; "" where it can."""
    sample = op.samples[0]
    if mix not in mixes_of(sample, device.default_amp):
        return "the op has fewer tensors whose dtype a caller chooses than the mix has dtypes"
    shapes = [leaf.shape for leaf in leaves(sample) if leaf.dtype is None or is_floating(leaf.dtype)]
    needed = _DIMS[layout]
    if needed and not any(len(shape) == needed if needed == 4 else len(shape) >= needed for shape in shapes):
        return "no floating tensor of the op has dimensions enough for the layout"
    if mode == "grad" and (op.overload in WITHOUT_GRADIENT or device.policies()[op.overload] == "banned"):
        return "the op has no gradient"
    if mode == "grad" and not any(_floats(sample, mix)):
        return "no tensor of these dtypes requires grad"
    return ""


def mixes_of(sample: Sample, amp: str) -> dict[str, str]:
    """Return the mixes that a sample's floating arguments can have, each with an assignment of dtypes."""
    number = floating_count(sample)
    return mixes(number, amp) if number else {GIVEN: GIVEN}


def _floats(sample: Sample, mix: str) -> Iterator[bool]:
    yield from (leaf.dtype is not None and is_floating(leaf.dtype) for leaf in leaves(sample))
    yield from (part not in ("int64", "bool", GIVEN) for part in mix.split("+"))


def _ops(device: Device) -> Iterator[Op]:
    policies = device.policies()
    for op in samples.catalogue().values():
        if policies.get(op.overload) in POLICIES and exists(op.overload) and device.type not in op.samples[0].not_on:
            yield op


def _refused(op: Op, device: Device) -> set[str]:
    """Return the mixes in which eager mode raises, or would if the device had values."""
    amp, rule = device.default_amp, device.policies()[op.overload]
    out = set()
    with device.activate():
        for mix, inputs in mixes_of(op.samples[0], amp).items():
            case = Case("eager", rule, op.overload, "", inputs, amp, device.name, device.token)
            call = SweepCall(case, device, "plain", "contiguous")
            # A device with values and without the op database compiles each op for each dtype: what the CPU does tells.
            slow = device.has_values and not device.database
            if (raised_by_cpu(call.todo) if slow else call.ran().error) is not None or call.refused_by_cpu:
                out.add(mix)
    return out


def parts(case: Case) -> list[Case]:
    """Return the cases that make one of a sweep's calls, each mix of dtypes alone."""
    single = replace(case, sample="")
    every = mixes_of(samples.catalogue()[case.op].samples[0], case.amp).values()
    return [replace(single, inputs=inputs) for inputs in every]


class SweepCheck(OpCheck):
    """An op in every mix of dtypes and every layout, in one gradient mode, eagerly or through a compiler."""

    def takes(self, case: Case) -> bool:
        return case.sample == CELLS

    def describe(self, case: Case) -> str:
        how = f"compiled by {case.compiler}" if case.compiler else "in eager mode"
        return f"aten::{case.op} {how}, in gradient mode {case.inputs}, in every mix of dtypes and every layout."

    def run(self, case: Case, device: Device) -> list[str]:
        """Run an op in every mix of dtypes and every layout, in one gradient mode, and return every difference.

        Each difference ends with the cell it is of. A compiled case makes one program of all calls, and of each call
        alone where that one differs from eager mode.
        """
        if not exists(case.op):
            raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
        if case.inputs == "grad" and device.without_autograd:
            raise Unsupported(device.without_autograd)
        with device.activate():
            calls = list(_calls(case, device))
            if not calls:
                raise Unsupported(f"aten::{case.op} has no cell of gradient mode {case.inputs}")
            if case.compiler:
                return _compiled(case, device, calls)
            return [_named(call, text) for call in calls for text in call.differences()]

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        """Write the first cell that the message names, or the op's first one; see `Check.program`."""
        found = mixes_of(samples.catalogue()[case.op].samples[0], case.amp)
        mix, layout = cell_of(message) or (next(iter(found)), "contiguous")
        single = replace(case, sample="", inputs=found[mix])
        if case.compiler:
            return CompiledOpProgram(single, device, case.inputs, FORMS[layout]).written(message, modules, ran=ran)
        return _cell_program(SweepCall(single, device, case.inputs, layout, f"[{mix}, {layout}]"), modules, ran=ran)


def _calls(case: Case, device: Device) -> "Iterator[SweepCall]":
    op = samples.catalogue()[case.op]
    for (mix, inputs), layout in product(mixes_of(op.samples[0], case.amp).items(), FORMS):
        if not impossible(op, device, mix, case.inputs, layout):
            single = replace(case, sample="", inputs=inputs)
            yield SweepCall(single, device, case.inputs, layout, f"[{mix}, {layout}]")


def _named(call: "SweepCall", text: str) -> str:
    return Difference(f"{text} {call.name}", error_of(text))


_MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


class SweepCall:
    """A call of an op in one cell. `case`: its inputs are an assignment of dtypes."""

    def __init__(self, case: Case, device: Device, mode: str, layout: str, name: str = "") -> None:
        self.case, self.device, self.mode, self.name = case, device, mode, name
        self.todo: CallPlan = plan(case, device)
        self.layout = FORMS[layout]

    def context(self) -> AbstractContextManager[object]:
        """Return the gradient mode, not yet entered."""
        return _MODES.get(self.mode, nullcontext)()

    @cached_property
    def places(self) -> Collection[int]:
        """Return the places of the tensors that require grad."""
        if self.mode == "grad":
            return differentiable(self.todo, self.device)
        floating = [place for place, leaf in enumerate(self.todo.given) if is_floating(leaf.dtype)]
        return floating if self.mode == "no_grad" else ()

    def inputs(self) -> list[torch.Tensor]:
        """Return fresh tensors, laid out and with what requires grad."""
        made = [self.layout(x) if x.is_floating_point() else x for x in self.todo.inputs(self.device)]
        return [self.device.leaf(x) if place in self.places else x for place, x in enumerate(made)]

    @cached_property
    def refused_by_cpu(self) -> bool:
        """Whether the CPU refuses the mix, where the device is another one: fake and XLA's kernels look at less.

        The CPU is not asked about one floating dtype, of which it may lack a kernel that the device has.
        """
        floating = {dtype for dtype in self.todo.expected.leaves if is_floating(dtype)}
        return len(floating) != 1 and self.device.type != "cpu" and raised_by_cpu(self.todo) is not None

    def ran(self, *, by_hand: bool = False) -> Pass:
        """Run it in a region, with a backward pass where the mode is `grad`; or outside, with its arguments cast."""

        def given() -> list[torch.Tensor]:
            made = self.inputs()
            self.device.seed()
            return made

        def cast(*given: torch.Tensor) -> object:
            return self.todo.reference()(*self.todo.cast(given))

        call = cast if by_hand else self.todo.call
        region = nullcontext() if by_hand else self.device.autocast(self.case.amp)
        device, mode = self.device, self.context()
        backward = device.backward if self.mode == "grad" else None
        snapshot = device.snapshot if device.has_values else None
        places, ops = self.places, device.native_ops
        return run_passes(call, given, places, region, backward, device.leaf, ops, None, snapshot, mode, recorded=False)

    def right(self) -> Pass:
        """Run it as it is to run in a region: with its arguments cast by hand, unless autocast is to refuse it."""
        return self.ran(by_hand=not self.todo.expected.error)

    def differences(self) -> list[str]:
        """Compare what the kernel received, the outputs and the gradients with what is promised."""
        case, device, todo, expected = self.case, self.device, self.todo, self.todo.expected
        with self.context():
            given = self.inputs()
            device.seed()
            with device.autocast(case.amp):
                watched = device.observe(lambda: todo.call(*given), {*device.policies(), case.op}, given)
        rule = because(case.rule)
        if expected.error:
            return carrying(watched.error, refused(watched.error, case.op, expected.error, rule))
        want, received = self.ran(by_hand=True), watched.of(expected.overload)
        if received is not None or (device.observes_composite_ops and want.error is None):
            wanted = expected.overload, todo.given_dtypes, expected.leaves, expected.dtype_kwarg
            if found := kernel(watched, *wanted, rule):
                return carrying(watched.error if received is None else None, found)
        got = self.ran()
        with device.native_ops():
            return compare_cells(got, want, f"aten::{case.op}", UNFILLED.get(case.op, ()))


def compare_cells(got: Pass, want: Pass, name: str, unfilled: Collection[int] = ()) -> list[str]:
    """Compare what a call did with the reference, which runs the same kernels on the same inputs.

    Compares errors, and of outputs and gradients the dtypes, shapes, strides and bits, and what autograd knows of them.
    `unfilled`: the places of the outputs that no kernel fills.
    """
    out: list[str] = []
    out += [Difference(text, got.error) for text in same_error(got.error, want.error, name)]
    out = out or output_dtypes(got.outputs, [name_of(x.dtype) for x in want.outputs], name)
    if out:
        return out
    hand = "of the same call on explicitly cast inputs"
    for place, (x, y) in enumerate(zip(got.outputs, want.outputs, strict=True)):
        if x.requires_grad != y.requires_grad:
            out.append(f"requires_grad of output {place} of {name} is {x.requires_grad}; {hand} {y.requires_grad}")
        if x.is_inference() != y.is_inference():
            out.append(f"is_inference() of output {place} of {name} is {x.is_inference()}; {hand} {y.is_inference()}")
        values = (got.values[place], want.values[place]) if got.values and place not in unfilled else None
        out += same_tensor(x, y, values, f"output {place} of {name}")
    for number, (place, x) in enumerate(got.leaves.items()):
        what, grad, right = f"gradient {number} of {name}", x.grad, want.leaves[place].grad
        if grad is None or right is None:
            out += [] if grad is right else [f"{what} is {grad}; {hand} {right}"]
            continue
        if grad.dtype != x.dtype:
            out.append(f"{what} is {grad.dtype}; expected {x.dtype}, the dtype of its leaf")
        values = (got.copies[place], want.copies[place]) if got.copies else None
        out += same_tensor(grad, right, values, what)
    return out


def _cell_program(call: SweepCall, modules: Sequence[str], *, ran: bool) -> str:
    """Write a call of a sweep as plain torch: what the kernel receives, and what comes out beside explicit casts."""
    case, device, todo, want = call.case, call.device, call.todo, call.todo.expected
    plain = PlainProgram(device, todo, None if call.layout is contiguous else call.layout)
    inside, rule = region(device, case.amp), because(case.rule)
    mode = {"no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}.get(call.mode, "nullcontext()")
    with device.activate():
        floating = [place for place, arg in enumerate(todo.given) if is_floating(arg.dtype)]
        places = list(call.places) if ran else floating
    plain.needed += [leaf, nullcontext]
    given = f"leaf(x) if place in {places} else x for place, x in enumerate(inputs())"
    if not ran:
        plain.add([], f"with {mode}, {inside}:\n    print(call(*({given})))")
        return plain.text(modules)
    listed = sorted(name for name in {*device.policies(), case.op} if exists(name) and is_composite(name))
    watch = f"""\
with {mode}:
    made = [{given}]
    with {inside}:
        seen = observe(lambda: call(*made), {device.type!r}, {listed!r}, made)"""

    def say(what: str, found: str) -> str:
        return plain.say(what, f'[f"{{text}} {call.name}" for text in {found}]')

    if want.error:
        found = f"refused(seen.error, {case.op!r}, {want.error!r}, {rule!r})"
        plain.add([observe, refused], f"{watch}\n{say('what was raised', found)}")
        return plain.text(modules)
    backward = "torch.autograd.backward" if call.mode == "grad" else "None"
    if call.mode == "grad" and not device.has_values and device.name.startswith("virtual:"):
        plain.add([graphs.allow, graphs.backward], f"allow({device.type!r})")
        backward = "backward"
    hand = f"lambda *x: {plain.reference}(*cast(x))"
    options = f"{backward}, mode={mode}{', snapshot=None' * (not device.has_values)}, recorded=False"
    plain.add(
        [run_passes, compare_cells],
        *cast_blocks(todo, case.rule),
        f"want = run_passes({hand}, inputs, {places}, nullcontext(), {options})",
    )
    if device.observes_composite_ops:
        wanted = f"{want.overload!r}, {todo.given_dtypes}, {list(want.leaves)}, {want.dtype_kwarg!r}, {rule!r}"
        found = f"(kernel(seen, {wanted}) if seen.of({want.overload!r}) or not want.error else [])"
        plain.add([observe, kernel], f"{watch}\n{say('what the kernel received', found)}")
    found = f"compare_cells(got, want, 'aten::{case.op}', {UNFILLED.get(case.op, ())})"
    plain.add([], f"got = run_passes(call, inputs, {places}, {inside}, {options})\n{say('what came out', found)}")
    return plain.text(modules)


def _compiled(case: Case, device: Device, calls: list[SweepCall]) -> list[str]:
    """Compile all calls that can be made as one program and compare it with eager mode and with casts by hand."""
    with simulate_cuda(device), quiet():
        taken = [call for call in calls if call.right().error is None and not call.refused_by_cpu]
        if not taken:
            raise Unsupported(f"aten::{case.op} is refused in every cell")
        if not (found := SweepParity(case, device, taken).differences()):
            return []
        alone = [_named(call, text) for call in taken for text in SweepParity(case, device, [call]).differences()]
        return alone or [f"{text} [all calls in one program]" for text in found]


class SweepParity(Parity):
    """Some calls as one program."""

    def __init__(self, case: Case, device: Device, calls: list[SweepCall]) -> None:
        super().__init__(replace(case, inputs=calls[0].case.inputs), device, COMPILERS[case.compiler])
        self.calls, self.grads = calls, calls[0].mode == "grad"
        called = [call.todo.sample for call in calls]
        self.function = source.define(source.several(case, device, called))
        self.eager = source.define(source.several(replace(case, compiler=""), device, called))
        self.without_region = source.define(source.several(replace(case, sample=AROUND), device, called))

    def inputs(self) -> list[torch.Tensor]:
        return [x.detach() for call in self.calls for x in call.inputs()]

    def leaves(self, *, grads: bool) -> list[torch.Tensor]:
        return [x for call in self.calls for x in call.inputs()]

    def mode(self) -> AbstractContextManager[object]:
        return self.calls[0].context()

    def by_hand(self, *given: torch.Tensor) -> object:
        return [call.todo.reference()(*call.todo.cast(own)) for call, own in self._own(given)]

    def cast(self, *given: torch.Tensor) -> list[torch.Tensor]:
        return [x for call, own in self._own(given) for x in call.todo.cast(own)]

    def _own(self, given: Sequence[torch.Tensor]) -> Iterator[tuple[SweepCall, list[torch.Tensor]]]:
        remaining = iter(given)
        for call in self.calls:
            yield call, [next(remaining) for _ in call.todo.given]


def cell_of(message: str) -> tuple[str, str] | None:
    """Return the mix and the layout that the first difference of a sweep is of; None where it names none."""
    match = re.search(r" \[([\w+]+), (\w+)\]$", message, re.MULTILINE)
    return (match[1], match[2]) if match else None
