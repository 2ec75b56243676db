"""Run one op case on a device and check it: the shared body of every op suite."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from ampcheck.checks import comparisons
from ampcheck.checks.cases import CallPlan, because, plan
from ampcheck.checks.program import (
    Needed,
    OpCheck,
    PlainProgram,
    carrying,
    cast_blocks,
    cast_expression,
    overload_path,
    reference_blocks,
    region,
    written_call,
)
from ampcheck.checks.reference import Reference, raised_by_cpu, reference
from ampcheck.compilers import source
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Difference, Unsupported, error_of, one_line
from ampcheck.observe.closeness import dense, moved_by, mover
from ampcheck.observe.dispatcher import lacks_kernel, recording, replaceable
from ampcheck.observe.recorder import (
    Observation,
    Recorder,
    attempt,
    exists,
    is_composite,
    observe,
    overload,
    overload_name,
    tensors,
    writes,
)
from ampcheck.observe.torch_private import AutoDispatchBelowAutograd
from ampcheck.register.torch_private import DispatchKey, has_kernel
from ampcheck.samples import catalogue, sums_products
from ampcheck.samples.describe import FORMS, TensorArg, in_form
from ampcheck.spec.case import Case
from ampcheck.spec.casting import APPENDED, POLICIES, Leaf, expect
from ampcheck.spec.torch_dtypes import DTYPES, name_of

MODES = {
    ("fp32", "small"): "no_grad",
    ("fp32", "strided"): "inference_mode",
    ("low", "large"): "inference_mode",
    ("low", "positive"): "no_grad",
}
"""In which of torch's gradient modes an op is run in a form, by the dtype of its inputs; all others in none. So each op
sees each mode with and without a cast, and each form in some mode and in none."""

_OF_DTYPES = re.compile(r"dtype|scalar ?type|same type|not implemented for", re.IGNORECASE)
"""How kernels refuse a mixture of dtypes."""

_REPEATED = 4
"""How often a call whose bits differ is repeated outside of autocast, to see whether its bits repeat."""

DISABLED = "in a disabled region"


class ForwardCheck(OpCheck):
    """An op in a region: what its kernel receives, what comes out, and whether that is right."""

    def takes(self, case: Case) -> bool:
        return case.op in catalogue() and not case.compiler and case.suite != "autograd" and case.rule != "drift"

    def describe(self, case: Case) -> str:
        return f"aten::{case.op} in a region of {case.amp}, by the {because(case.rule)}."

    def run(self, case: Case, device: Device) -> list[str]:
        with device.activate():
            if not exists(case.op):
                raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
            todo = plan(case, device)
            require_inputs(todo, device)
            if case.rule == "fallthrough" and is_composite(case.op):
                return _parts(case, device, todo)
            watched = watch(case, device, todo)
            if todo.expected.error:
                told = comparisons.refused(watched.error, case.op, todo.expected.error, because(case.rule))
                return carrying(watched.error, told)
            if device.has_values and watched.error is not None and watched.of(todo.expected.overload) is None:
                outside = run_reference(device, todo)
                if outside.error is not None and not comparisons.same_error(watched.error, outside.error, todo.name):
                    judge_raise(watched.error, device, todo)
            whole = device.observes_composite_ops or watched.of(todo.expected.overload) is not None
            differences = received(case, todo, watched) if whole else []
            if differences:
                return differences
            if not device.has_values:
                outside = run_reference(device, todo)
                return _same_error(watched, outside, todo) or _same_dtypes(watched, outside, todo)
            if case.rule == "fallthrough" and _calls_a_policy(case, device, todo):
                return []
            return _results(case, device, todo) or _forms(case, device, todo) or _disabled(case, device)

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        return ForwardProgram(case, device, message).written(modules, ran=ran)


def _results(case: Case, device: Device, todo: CallPlan, *, enabled: bool = True) -> list[str]:
    """Compare the outputs of a call in a region with those of the reference and with the exact ones.

    Raises Unsupported and Broken as `Check.run` does.
    """
    native, outside = run(case, device, todo, enabled=enabled), run_reference(device, todo)
    if differences := _same_error(native, outside, todo):
        return differences
    if native.error is not None:
        judge_raise(native.error, device, todo)
        return []
    if differences := _same_dtypes(native, outside, todo):
        return differences
    unsteady = False
    if _same_bits(device, todo, native, outside):
        with device.repeatable():
            inside = run(case, device, todo, enabled=enabled)
            first, *others = (run_reference(device, todo) for _ in range(_REPEATED))
        unsteady = any(_same_bits(device, todo, other, first) for other in others)
        if not unsteady and (differences := _same_bits(device, todo, inside, first)):
            return differences
    # What adds in another order each time, as atomics do, is right where it is near enough.
    found = _wrong(device, todo, native)
    anyway = _wrong(device, todo, outside) if found else []
    told = comparisons.wrong_anyway(found, anyway)
    if unsteady and (anyway or todo.op.values != "exact"):
        raise Broken([comparisons.UNSTEADY.format(name=todo.name)])
    if anyway:
        raise Broken(told)
    return told


def _forms(case: Case, device: Device, todo: CallPlan) -> list[str]:
    """Check an op on other values than its sample's, on tensors that are not contiguous, and without gradients."""
    if case.sample or todo.op.values != "exact" or case.inputs not in ("fp32", case.amp):
        return []
    if case.inputs == "fp32" and not device.database:  # such a device compiles each op for each dtype
        return []
    if writes(case.op):  # where its output lies is the caller's to say
        return []
    first = run(case, device, todo)
    for form in FORMS:
        other = in_layout(todo, form)
        if other is None or reference(other).error is not None:  # PyTorch refuses these values
            continue
        mode = MODES.get(("fp32" if case.inputs == "fp32" else "low", form), "")
        where = f"on {form} inputs, in torch.{mode}()" if mode else f"on {form} inputs"
        if differences := judged_at(where, partial(_in_mode, mode, case, device, other)):
            return differences
        # After each form, for the last one has the values of the first call again.
        now = [device.host(x) for x in first.outputs]
        with device.native_ops():
            places = comparisons.changed(now, first.values)
        if places:
            raise Broken([comparisons.OVERWRITTEN.format(place=place, name=todo.name) for place in places])
    return []


def _in_mode(mode: str, case: Case, device: Device, todo: CallPlan) -> list[str]:
    require_inputs(todo, device)  # outside of the mode, since their values are kept for other cases
    with getattr(torch, mode or "enable_grad")():
        return _results(case, device, todo)


def judged_at(where: str, judge: Callable[[], list[str]]) -> list[str]:
    """Return the differences that `judge` finds, or raise its Broken, with `where` before each sentence."""
    try:
        differences = judge()
    except Broken as broken:
        raise Broken([f"{where}: {text}" for text in broken.differences], broken.error) from None
    return [Difference(f"{where}: {text}", error_of(text)) for text in differences]


def _disabled(case: Case, device: Device) -> list[str]:
    """Check an op of lower precision in a disabled region, where its kernel for float32 runs.

    A device may lack that kernel or declare in `refusals` that it takes the lower precisions alone, as PyTorch's may.
    """
    if case.sample or case.rule != "downcast" or case.inputs != "fp32":
        return []
    todo = plan(case, device, "fallthrough")
    error = run_reference(device, todo).error
    refused = error is not None and (lacks_kernel(error) or device.refuses(error))
    if refused or reference(todo).error is not None:
        return []
    return judged_at(DISABLED, partial(_results, case, device, todo, enabled=False))


def in_layout(todo: CallPlan, form: str) -> CallPlan | None:
    """Return a call in one of `ampcheck.samples.describe.FORMS`; None where none of its arguments changes."""
    sample = in_form(todo.sample, form)
    return replace(todo, sample=replace(sample, name=f"{sample.name}, {form}")) if sample else None


def require_inputs(todo: CallPlan, device: Device) -> None:
    """Raise Broken where a call's tensors cannot be made on the device, or Unsupported as `judge_raise` does."""
    try:
        todo.inputs(device)
    except Exception as error:  # a copy to the device may raise anything
        if lacks_kernel(error) or device.refuses(error):
            raise Unsupported(one_line(error)) from error
        told = comparisons.NO_INPUTS.format(name=todo.name, device=device.name, error=one_line(error))
        raise Broken([told], error) from error


def judge_raise(error: Exception, device: Device, todo: CallPlan) -> None:
    """Judge an exception that a call raises in a region, and outside of it on the same dtypes as well.

    Returns where the kernel was given a mixture of dtypes, or integers, and refuses them in words about dtypes, or the
    CPU's kernel refuses them, too: autocast did its part. Raises Unsupported where the dispatcher has no kernel for the
    op, the device declares such texts as refusals, or PyTorch raises the same on the CPU; else Broken.
    """
    if lacks_kernel(error):
        raise Unsupported(one_line(error))
    cpu = raised_by_cpu(todo)
    if not todo.asks_for_one_dtype and (_OF_DTYPES.search(str(error)) or cpu is not None):
        return
    if device.refuses(error):
        raise Unsupported(one_line(error))
    if device.type != "cpu" and type(cpu) is type(error) and str(cpu) == str(error):
        raise Unsupported(f"PyTorch itself raises {one_line(error)}")
    raise Broken([comparisons.raises_anyway(error, todo.name)], error)


def received(case: Case, todo: CallPlan, watched: Observation) -> list[str]:
    """Compare what the op's kernel received with what it was to receive."""
    wanted, rule = todo.expected, because(case.rule)
    found = comparisons.kernel(watched, wanted.overload, todo.given_dtypes, wanted.leaves, wanted.dtype_kwarg, rule)
    if watched.of(wanted.overload) is None and watched.error is not None:
        return carrying(watched.error, found)
    if wanted.dtype_kwarg is None and case.rule in ("optdtype", "append"):
        found += comparisons.untouched_dtype(watched, wanted.overload, todo.dtype_given, rule)
    return found


def received_by_parts(seen: Observation, device: Device, amp: str) -> list[str]:
    """Check that every kernel with a policy that a call without one ran received what its policy says.

    What the parts without one receive is the op's own affair: it may cast.
    """
    return [text for kernel in kernels_with_policy(seen, device, amp) for text in comparisons.received(*kernel)]


def kernels_with_policy(
    seen: Observation, device: Device, amp: str
) -> list[tuple[list[str], list[str], tuple[str, ...], str, str]]:
    """Return, for each kernel with a policy that ran, the arguments of `ampcheck.checks.comparisons.received`."""
    found, policies = [], device.policies()
    for call in seen.kernels:
        policy = policies.get(call.overload)
        if policy in POLICIES:
            given, got = [leaf.given for leaf in call.leaves], [leaf.got for leaf in call.leaves]
            leaves = [Leaf(leaf.given, leaf.on_device) for leaf in call.leaves]
            wanted = expect(policy, call.overload, leaves, amp).leaves
            found.append((given, got, wanted, f"aten::{call.overload}", because(policy)))
    return found


def _parts(case: Case, device: Device, todo: CallPlan) -> list[str]:
    """Check a composite op without a policy: each op it is made of follows its own, and its outputs depend on them."""
    arrived = watch(case, device, todo)
    if arrived.of(case.op) is not None and (differences := received(case, todo, arrived)):
        return differences  # a spelling may lead past it
    watched = watch(case, device, todo, whole=False)
    if not watched.kernels and watched.error is None:
        return [comparisons.NOTHING_RAN.format(name=f"aten::{case.op}")]
    differences = received_by_parts(watched, device, case.amp)
    if differences or not device.has_values or any(k.overload in device.policies() for k in watched.kernels):
        return differences
    try:
        differences = _results(case, device, todo)
    except Broken:
        if _hides_a_policy(case, device, todo):
            return []
        raise
    return [] if differences and _hides_a_policy(case, device, todo) else differences


def _calls_a_policy(case: Case, device: Device, todo: CallPlan) -> bool:
    """Return whether an op without a policy runs one kernel of PyTorch on every backend, which calls an op with one.

    Autocast acts on that op, so what comes out is not what comes out without autocast.
    """
    op, explicit = overload(case.op), DispatchKey.CompositeExplicitAutograd
    backend = device.key.removeprefix("Autocast")
    if has_kernel(op.name(), backend) or not has_kernel(op.name(), "CompositeExplicitAutograd"):
        return False
    if todo.sample.call != "aten":  # another spelling: the op's main sample shows it
        todo = plan(replace(case, sample="", inputs=(*todo.dtypes, case.inputs)[0]), device)
    given = todo.inputs(device)
    device.seed()
    listed = {*device.policies(), *(APPENDED[name] for name in device.policies() if name in APPENDED)}
    with device.autocast(case.amp):
        seen = device.observe(
            lambda: todo.called(lambda *args, **kwargs: op._op_dk(explicit, *args, **kwargs), given), listed
        )
    return any(kernel.overload in listed for kernel in seen.kernels)


def _hides_a_policy(case: Case, device: Device, todo: CallPlan) -> bool:
    """Return whether a part calls, inside its own kernel where no recorder sees it, an op with a policy.

    Raises `Unsupported` where the key's kernels cannot be replaced by recorders.
    """
    if not replaceable(device.key):
        raise Unsupported(
            f"aten::{case.op} gives something else in a region, and under {device.key} it cannot be seen whether a "
            "part of it calls an op with a policy"
        )
    with recording([device.key]) as entered:
        run(case, device, todo)
    return any(overload in device.policies() for _, overload in entered)


def _same_error(native: Observation, outside: Observation, todo: CallPlan) -> list[str]:
    return carrying(native.error, comparisons.same_error(native.error, outside.error, todo.name))


def _same_dtypes(native: Observation, outside: Observation, todo: CallPlan) -> list[str]:
    return comparisons.output_dtypes(native.outputs, [name_of(x.dtype) for x in outside.outputs], todo.name)


def has_comparable_bits(todo: CallPlan) -> bool:
    """Return whether a call has the bits of the reference: not where its values are open, or the reference's casts
    round elsewhere, because the spelling takes no `dtype=`."""
    return todo.op.values != "none" and (todo.sample.call == "aten" or not todo.expected.dtype_kwarg)


def _same_bits(device: Device, todo: CallPlan, got: Observation, outside: Observation) -> list[str]:
    """Compare the outputs of a call bit for bit with those of the reference."""
    with device.native_ops():
        return comparisons.bitwise(got.values, outside.values, todo.name) if has_comparable_bits(todo) else []


def _wrong(device: Device, todo: CallPlan, seen: Observation) -> list[str]:
    """Compare what a call writes to, and its outputs, with the same call on the CPU."""
    exact = reference(todo)
    now, then = ([device.host(x) for x in given] for given in (seen.inputs, _fresh(device, todo, seen.inputs)))
    with device.native_ops():
        places = sorted(set(comparisons.changed(now, then)) - exact.changed)
    out = [comparisons.WRITTEN.format(place=place, name=todo.name) for place in places]
    if out or exact.error is not None:
        return out
    if len(seen.outputs) != len(exact.outputs):
        return comparisons.output_dtypes(seen.outputs, [""] * len(exact.outputs), todo.name)
    products = float32_products(device, todo)
    for place, got in enumerate(seen.outputs):
        what = f"output {place} of {todo.name}"
        out += placed(got, exact, place, seen.inputs, device.type, what)
        if not out and todo.op.values == "exact":
            values = seen.values[place], exact.outputs[place], exact.moved[place]
            with device.native_ops():
                out += comparisons.far(*values, todo.narrowest, what, todo.op.passes, products)
    return out or shared_when_written(device, exact, seen, todo)


def float32_products(device: Device, todo: CallPlan) -> str:
    """Return the `products` of `ampcheck.observe.closeness.bound` for a call."""
    kind = sums_products(todo.op.overload)
    return device.float32_products(kind) if kind in ("matmul", "conv") else kind


def _fresh(device: Device, todo: CallPlan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what the inputs of a call were made as, in the dtypes that they have now."""
    return [then.to(now.dtype) for now, then in zip(inputs, todo.inputs(device), strict=True)]


def placed(
    got: torch.Tensor, want: Reference, place: int, inputs: Sequence[torch.Tensor], device: str, what: str
) -> list[str]:
    """Compare an output with PyTorch's in its device, dtype and strides, and in the memory that it shares.

    Args:
        place: of the output among those of `want`.
        inputs: the call's tensors; the output is on the device of the first one of type `device`.
    """
    out = comparisons.pytorch_dtype(got, want.dtypes[place], what) if want.dtypes else []
    out += comparisons.on_device(got, inputs, device, what)
    if want.layouts and got.shape == want.outputs[place].shape:
        out += comparisons.strides(got, want.layouts[place], what)
    return out + comparisons.own_memory(got, inputs, [number for made, number in want.aliases if made == place], what)


def shared_when_written(device: Device, exact: Reference, seen: Observation, todo: CallPlan) -> list[str]:
    """Return the arguments of a call that change as its outputs are written to: only a write shows shared memory.

    A tensor may have no storage that PyTorch can compare. The outputs are zero afterwards, where the device can do so.
    """
    if device.type == "cpu" or not seen.inputs:
        return []
    before = [device.host(t) for t in seen.inputs]
    own = [output for place, output in enumerate(seen.outputs) if not any(out == place for out, _ in exact.aliases)]
    if not comparisons.zeroed(own):
        return []
    now = [device.host(t) for t in seen.inputs]
    with device.native_ops():
        places = comparisons.changed(now, before)
    return [comparisons.SHARED.format(place=place, name=todo.name) for place in places]


def watch(case: Case, device: Device, todo: CallPlan, *, whole: bool = True) -> Observation:
    """Run a case under its region with the recorder on, its op taken `whole` or apart. The device must be entered."""
    given = todo.inputs(device)
    device.seed()
    recorded = {*device.policies(), case.op} if whole else device.policies()
    with device.autocast(case.amp):
        return device.observe(lambda: todo.call(*given), recorded, given)


def run(case: Case, device: Device, todo: CallPlan, *, enabled: bool = True) -> Observation:
    """Run a case as a user does, with nothing between it and PyTorch."""
    given = todo.inputs(device)
    device.seed()
    return _plain(device, todo.call, given, device.autocast(case.amp, enabled=enabled))


def _plain(
    device: Device, call: Callable[..., object], given: list[torch.Tensor], region: AbstractContextManager[object]
) -> Observation:
    observation = Observation(inputs=given)
    try:
        with region:
            observation.outputs = list(tensors(call(*given)))
        device.synchronize()
        observation.values = [device.snapshot(t) for t in observation.outputs]
    except Exception as error:  # the call under test may raise anything, and that is what is to be seen
        observation.error = error
    return observation


def run_reference(device: Device, todo: CallPlan) -> Observation:
    """Run the same call outside of autocast on explicitly cast inputs."""
    try:
        given = todo.cast(todo.inputs(device))
    except Exception as error:  # a cast may raise anything
        return Observation(error=error)
    device.seed()
    call = todo.reference()
    if not device.has_values:
        # What it is compared with was recorded, which takes composite ops apart elsewhere than fake tensors do.
        recorded = {*device.policies(), todo.op.overload, todo.expected.overload}
        return device.observe(lambda: call(*given), recorded)
    return _plain(device, call, given, nullcontext())


_OF_KERNELS = re.compile(
    r"reached the kernel|ran with dtype=|never ran|its kernel ran|casts of the arg|ran no kernel|casts copies"
)
"""How the differences read that only a recorder shows."""


class ForwardProgram(PlainProgram):
    """An op case as plain torch: its call in a region, and the comparison that found its differences."""

    def __init__(self, case: Case, device: Device, message: str, layout: Callable[..., object] | None = None) -> None:
        self.case, self.message = case, message
        found = re.search(rf"on ({'|'.join(FORMS)}) inputs(?:, in torch\.(\w+)\(\))?", message)
        where, self.form, mode = (found[0], found[1], found[2]) if found else ("", "", "")
        enabled = f"{DISABLED}: " not in message
        planned = plan(case, device) if enabled else plan(case, device, "fallthrough")
        todo = (in_layout(planned, self.form) if self.form else None) or planned
        super().__init__(device, todo, layout, where=where if enabled else DISABLED)
        self.region = region(device, case.amp, enabled=enabled)
        if mode:
            self.blocks.append(f"mode = torch.{mode}()\nmode.__enter__()  # for all that follows")

    def written(self, modules: Sequence[str], *, ran: bool) -> str:
        """Return the program; see `Check.program`."""
        if not ran:
            self.add([], f"with {self.region}:\n    print(call(*inputs()))")
        else:
            for compare in self._comparisons():
                compare()
        return self.text(modules)

    def _comparisons(self) -> list[Callable[[], None]]:
        """Return what writes the comparisons that found the differences of the message; of "" the usual ones."""
        if self.todo.expected.error:
            return [self._refused]
        parts = self.case.rule == "fallthrough" and is_composite(self.case.op) and self.device.observes_composite_ops
        if parts and (not self.message or _OF_KERNELS.search(self.message)):
            return [self._parts]
        # A dispatch mode does not see what the kernels of every device receive; what comes out shows it, too.
        if self.device.observes_composite_ops and _OF_KERNELS.search(self.message):
            return [self._plain_kernel() or self._kernel]
        found = next((how for pattern, how in _HOW.items() if re.search(pattern, self.message)), "")
        if found and (self.device.has_values or found == "_error"):
            compare: Callable[[], None] = getattr(self, found)
            return [compare]
        bits = self.device.has_values and has_comparable_bits(self.todo)
        outputs = [self._dtypes, *([self._bits] if bits else [])]
        if not self.message:
            with self.device.activate():  # kernels refuse some mixtures of dtypes, with and without autocast
                outputs = outputs if run_reference(self.device, self.todo).error is None else [self._error]
            return [*([self._kernel] if self.device.observes_composite_ops else []), *outputs]
        return outputs[1:] if re.search("differs from the same op|has shape", self.message) else outputs[:1]

    def _plain_kernel(self) -> Callable[[], None] | None:
        """Return what compares a kernel that gets the call's tensors in order, if that is all that differed."""
        texts = self.message.splitlines()
        if self.todo.sample.call != "aten" or is_composite(self.todo.op.overload):
            return None
        if all("reached the kernel as" in text for text in texts):
            return self._received
        return self._never_ran if re.search("never ran|before its kernel ran", self.message) else None

    # What the recorder shows.

    def _received(self) -> None:
        """Write what a kernel received that gets the call's own tensors, in their order."""
        want, rule = self.todo.expected, because(self.case.rule)
        flat = all(isinstance(value, TensorArg) for value in self.todo.sample.args) and not self.todo.sample.kwargs
        given = "args" if flat else "tensors((args, kwargs))"
        wanted = f"{self.todo.given_dtypes}, seen, {list(want.leaves)}"
        found = f"received({wanted}, 'aten::{want.overload}', {rule!r})"
        names = source.names(self.todo.sample)
        self.blocks = ["\n".join(f"{name} = {text}" for name, text in zip(names, self.made, strict=True))]
        self.add(
            [AutoDispatchBelowAutograd, Recorder, comparisons.received, name_of, *([] if flat else [tensors])],
            f"""\
seen = []

def run(func, args, kwargs):
    if func is torch.ops.aten.{overload_path(want.overload)} and not seen:
        seen.extend(name_of(x.dtype) for x in {given})
    return func(*args, **kwargs)""",
            f"""\
with {self.region}, _AutoDispatchBelowAutograd(), Recorder(run):
    {written_call(self.todo)}
{self.say("what the kernel received", found)}""",
        )

    def _never_ran(self) -> None:
        want, rule = self.todo.expected, because(self.case.rule)
        self.add(
            [AutoDispatchBelowAutograd, Recorder, comparisons.never_ran, overload_name, attempt],
            """\
ran = []

def run(func, args, kwargs):
    ran.append(overload_name(func))
    return func(*args, **kwargs)""",
            f"""\
with {self.region}, _AutoDispatchBelowAutograd(), Recorder(run):
    _, error = attempt(lambda: call(*inputs()))
found = [] if {want.overload!r} in ran else never_ran({want.overload!r}, ran, error, {rule!r})
{self.say("whether the kernel ran", "found")}""",
        )

    def _observed(self, listed: Sequence[str], call: str = "call(*given)", *, inside: bool = True) -> str:
        self.needed.append(observe)
        head = f"with {self.region}:\n    " if inside else ""
        return f"{head}seen = observe(lambda: {call}, {self.device.type!r}, {list(listed)!r}, given)"

    def _opaque(self) -> list[str]:
        """Return the overloads that are not taken apart: of all with a policy, only composite ones could be."""
        listed = {*self.device.policies(), self.todo.op.overload, self.todo.expected.overload}
        return sorted(name for name in listed if exists(name) and is_composite(name))

    def _kernel(self) -> None:
        want, rule = self.todo.expected, because(self.case.rule)
        wanted = f"{want.overload!r}, {self.todo.given_dtypes}, {list(want.leaves)}, {want.dtype_kwarg!r}, {rule!r}"
        lines = ["given = inputs()", self._observed(self._opaque()), f"found = kernel(seen, {wanted})"]
        self.needed.append(comparisons.kernel)
        if want.dtype_kwarg is None and self.case.rule in ("optdtype", "append"):
            self.needed.append(comparisons.untouched_dtype)
            lines.append(f"found += untouched_dtype(seen, {want.overload!r}, {self.todo.dtype_given!r}, {rule!r})")
        self.add([], "\n".join([*lines, self.say("what the kernel received", "found")]))

    def _parts(self) -> None:
        if f"of aten::{self.case.op} " in self.message:
            return self._kernel()
        with self.device.activate():
            seen = watch(self.case, self.device, self.todo, whole=False)
            expected = [found[2:] for found in kernels_with_policy(seen, self.device, self.case.amp)]
        listed = sorted({name.removeprefix("aten::") for _, name, _ in expected})
        rows = "".join(f"    {row!r},\n" for row in expected)
        nothing = comparisons.NOTHING_RAN.format(name=f"aten::{self.case.op}")
        self.add(
            [comparisons.received],
            f"EXPECTED = [\n{rows}]  # what each op with a policy must receive" if rows else "EXPECTED = []",
            f"""\
given = inputs()
{self._observed(listed)}
report("whether a kernel ran", [{nothing!r}] * (not seen.kernels and not seen.error))
listed = [kernel for kernel in seen.kernels if kernel.overload in {listed!r}]
for kernel, wanted in zip(listed, EXPECTED):
    leaves = [leaf.given for leaf in kernel.leaves], [leaf.got for leaf in kernel.leaves]
    {self.say("what a listed op received", "received(*leaves, *wanted)")}""",
        )

    # What comes out.

    def _refused(self) -> None:
        refused = f"refused(error, {self.case.op!r}, {self.todo.expected.error!r}, {because(self.case.rule)!r})"
        self.add(
            [attempt, comparisons.refused],
            f"with {self.region}:\n    _, error = attempt(lambda: call(*inputs()))\n"
            + self.say("what was raised", refused),
        )

    def _unmade(self) -> None:
        self.add(
            [attempt, one_line],
            f"_, error = attempt(inputs)\n"
            f"told = {comparisons.NO_INPUTS!r}.format(name={self.todo.name!r}, device={self.device.name!r}, "
            "error=one_line(error))\n" + self.say("whether the inputs can be made", "[told] * (error is not None)"),
        )

    def _outputs(self, call: str) -> str:
        """Return the list of the tensors that a call gives, as an expression."""
        returns = overload(self.todo.op.overload)._schema.returns
        if self.todo.sample.call == "aten" and [str(one.type) for one in returns] == ["Tensor"]:
            return f"[{call}]"
        self.needed.append(tensors)
        return f"list(tensors({call}))"

    def _run(self, *, errors: bool = False, inputs: bool = False) -> str:
        """Return the lines that run the case in its region and the reference outside of it.

        `errors`: they keep what is raised. `inputs`: they keep the inputs of both calls.
        """
        if inputs:
            self.blocks += cast_blocks(self.todo, self.case.rule)
            return f"""\
given = inputs()
with {self.region}:
    got = {self._outputs("call(*given)")}
cast_inputs = cast(inputs())
want = {self._outputs(f"{self.reference}(*cast_inputs)")}"""
        self.blocks += reference_blocks(self.todo)
        cast = f"{self.reference}(*{cast_expression(self.todo, 'inputs()')})"
        if not self.device.has_values:
            inside = ["given = inputs()", self._observed(self._opaque()), "got, error = seen.outputs, seen.error"]
            outside = self._observed(self._opaque(), cast, inside=False)
            return "\n".join([*inside, outside, "want, expected = seen.outputs, seen.error"])
        rule = f"  # rule {self.case.rule}"
        if errors:
            self.needed.append(attempt)
            return f"""\
with {self.region}:
    _, error = attempt(lambda: call(*inputs()))
_, expected = attempt(lambda: {cast}){rule}"""
        return f"""\
with {self.region}:
    got = {self._outputs("call(*inputs())")}
want = {self._outputs(cast)}{rule}"""

    def _error(self) -> None:
        name, run = self.todo.name, self._run(errors=True)
        found = f"same_error(error, expected, {name!r})"
        if "raises that without autocast" in self.message:
            found += f" or [raises_anyway(x, {name!r}) for x in [error] if x]"
            self.needed.append(comparisons.raises_anyway)
        self.add([comparisons.same_error], f"{run}\n{self.say('what was raised', found)}")

    def _dtypes(self) -> None:
        found = f"output_dtypes(got, [name_of(x.dtype) for x in want], {self.todo.name!r})"
        run = self._run()
        self.add([comparisons.output_dtypes, name_of], f"{run}\n{self.say('the dtypes of the outputs', found)}")

    def _bits(self) -> None:
        run = [] if "\nwant = " in self.blocks[-1] else [self._run()]
        got, want = ("[x.detach().cpu() for x in got]", "[x.detach().cpu() for x in want]")
        line = self.say("the bits of the outputs", f"bitwise({got}, {want}, {self.todo.name!r})")
        if tensors in self.needed:
            self.add([comparisons.bitwise], "\n".join([*run, line]))
        else:  # there is one output
            pair = "got[0].detach().cpu(), want[0].detach().cpu()"
            line = self.say("the bits of the output", f"same_bits({pair}, 'output 0 of {self.todo.name}')")
            self.add([comparisons.same_bits], "\n".join([*run, line]))

    def _unsteady(self) -> None:
        self.blocks += cast_blocks(self.todo, self.case.rule)
        again = f"[x.detach().cpu() for x in {self._outputs(f'{self.reference}(*cast(inputs()))')}]"
        told = comparisons.UNSTEADY.format(name=self.todo.name)
        found = f"[{told!r}] * bool(bitwise(first, second, {self.todo.name!r}))"
        line = self.say("whether equal calls give the same bits", found)
        self.add([comparisons.bitwise], f"first = {again}\nsecond = {again}\n{line}")

    def _overwritten(self) -> None:
        found = f"[{comparisons.OVERWRITTEN!r}.format(place=x, name={self.todo.name!r}) for x in changed(now, then)]"
        self.add(
            [comparisons.changed],
            f"""\
with {self.region}:
    first = {self._outputs("call(*inputs())")}
    then = [x.detach().cpu().clone() for x in first]
for factor in range(2, 6):
    with {self.region}:
        call(*(x * factor if x.is_floating_point() else x for x in inputs()))
now = [x.detach().cpu() for x in first]
{self.say("whether the outputs are the call's own", found)}""",
        )

    def _wrong(self, what: str, needed: Sequence[Needed], found: str) -> None:
        """Write a comparison with PyTorch's CPU, in the region and outside. `found`: of outputs `x` at `place`."""
        run = self._run(inputs=True)
        body = f"    return [text for place, x in enumerate(got) for text in {found}]"
        both = "wrong_anyway(wrong(got, given), wrong(want, cast_inputs))"
        self.add(
            [*needed, comparisons.wrong_anyway], f"def wrong(got, given):\n{body}", f"{run}\n{self.say(what, both)}"
        )

    def _placed(self, what: str, function: Needed, known: str) -> None:
        """Write a comparison of where outputs lie. `known`: what is right, as an expression behind the output."""
        found = f'{function.__name__}(x, {known}, f"output {{place}} of {self.todo.name}")'
        self._wrong(f"the {what} of the outputs", [function], found)

    def _strides(self) -> None:
        self._placed("strides", comparisons.strides, f"{list(map(set, reference(self.todo).layouts))!r}[place]")

    def _pytorch_dtypes(self) -> None:
        self._placed("dtypes", comparisons.pytorch_dtype, f"{list(map(set, reference(self.todo).dtypes))!r}[place]")

    def _device(self) -> None:
        self._placed("devices", comparisons.on_device, f"given, {self.device.type!r}")

    def _memory(self) -> None:
        known = [[place for out, place in reference(self.todo).aliases if out == number] for number in range(9)]
        self._placed("memory", comparisons.own_memory, f"given, {known!r}[place]")

    def _count(self) -> None:
        count = len(reference(self.todo).outputs)
        found = f"output_dtypes(got, [''] * {count}, {self.todo.name!r}) if len(got) != {count} and not place else []"
        self._wrong("the number of outputs", [comparisons.output_dtypes], found)

    def _inputs(self) -> None:
        allowed = sorted(reference(self.todo).changed)
        found = f"[{comparisons.WRITTEN!r}.format(place=place, name={self.todo.name!r})] * (place in written)"
        self.add(
            [comparisons.changed],
            f"""\
def written_to(given):
    then = [x.to(y.dtype).cpu() for x, y in zip(inputs(), given)]
    return [x for x in changed([x.detach().cpu() for x in given], then) if x not in {allowed}]""",
        )
        self._wrong("whether inputs are only read", [], found.replace("in written)", "in written_to(given))"))
        self.blocks[-2] = self.blocks[-2].replace("enumerate(got)", "enumerate(given)")

    def _shared(self) -> None:
        aliases = sorted({out for out, _ in reference(self.todo).aliases})
        found = f"[{comparisons.SHARED!r}.format(place=place, name={self.todo.name!r})] * (place in shared)"
        self.add(
            [comparisons.changed, comparisons.zeroed],
            f"""\
def shared_with(got, given):
    before = [x.detach().cpu().clone() for x in given]
    zeroed([x for place, x in enumerate(got) if place not in {aliases}])
    return changed([x.detach().cpu() for x in given], before)""",
        )
        self._wrong("whether outputs have memory of their own", [], found)
        self.blocks[-2] = (
            "def wrong(got, given):\n    shared = shared_with(got, given)\n"
            f"    return [text for place in range(len(given)) for text in {found}]"
        )

    def _far(self) -> None:
        exact = reference(self.todo)
        wide, kernel = DTYPES[exact.dtype], self.todo.narrowest
        cpu = cast_expression(self.todo, self.cpu_inputs())
        filled = f", dtype={wide}" if self.todo.sample.call == "aten" and self.todo.expected.dtype_kwarg else ""
        self.add(
            [dense, mover, moved_by, comparisons.far],
            f"""\
def exact(draw=None):  # on the CPU in {wide}, of inputs that are half a rounding off if there is a draw
    given = [x.to({wide}) if x.is_floating_point() else x for x in {cpu}]
    given = given if draw is None else list(map(mover({kernel}, draw), given))
    return [dense(x) for x in {self._outputs(f"{self.reference}(*given{filled})")}]""",
        )
        place = len(self.blocks) - 1
        what = f'f"output {{place}} of {self.todo.name}"'
        products = float32_products(self.device, self.todo)
        products = f", {products!r}" if products else ""
        found = (
            f"far(x.detach().cpu(), in_float64[place], moved[place], {kernel}, {what}, {self.todo.op.passes}{products})"
        )
        self._wrong("the distance from the float64 result on the CPU", [], found)
        text = self.blocks.pop(place)
        self.blocks.insert(len(self.blocks) - 1, f"{text}\n\nin_float64 = exact()\nmoved = moved_by(exact, in_float64)")


_HOW = {
    "cannot be made on": "_unmade",
    "same call on explicitly cast inputs (raised|succeeds)|raises that without autocast": "_error",
    "does not repeat": "_unsteady",
    "changed when the op was called again": "_overwritten",
    "holds other values after the call": "_inputs",
    "as the outputs are written to": "_shared",
    "shares memory with": "_memory",
    "has strides": "_strides",
    "as PyTorch's CPU and Meta": "_pytorch_dtypes",
    "where the inputs are": "_device",
    "float64 result on the CPU|has shape.*it is wrong without": "_far",
    "returned .*it is wrong without": "_count",
}
"""By how a difference reads, what writes its comparison; dtypes and bits beside the reference are all others."""
