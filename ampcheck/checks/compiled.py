"""A compiled program under autocast does what the same program does in eager mode."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch

from ampcheck.checks import layouts
from ampcheck.checks.cases import CallPlan, plan
from ampcheck.checks.comparisons import layout, output_dtypes, strides
from ampcheck.checks.forward import judge_raise, run_reference
from ampcheck.checks.program import OpCheck, PlainProgram, carrying, cast_blocks, region
from ampcheck.compilers import source
from ampcheck.compilers.kinds import COMPILERS, Compiler, Everything, quiet, source_of_making
from ampcheck.devices.base import Device
from ampcheck.errors import MOST, Unsupported, one_line
from ampcheck.observe.closeness import identical, largest_distance, rounding_bound
from ampcheck.observe.isolation import depth
from ampcheck.observe.recorder import Observation, exists, observe, tensors
from ampcheck.samples import catalogue
from ampcheck.spec.case import AROUND, Case
from ampcheck.spec.torch_dtypes import DTYPES, name_of

State = tuple[bool, torch.dtype, bool, int]


@dataclass(slots=True)
class ProgramOutcome:
    """What one call did: its tensors, the gradients of its inputs, what it raised, and autocast's state afterwards."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor | None] = field(default_factory=list)
    error: Exception | None = None
    state: State | None = None


class CompiledCheck(OpCheck):
    """An op as a program of one of the compilers."""

    def takes(self, case: Case) -> bool:
        return bool(case.compiler) and case.op in catalogue()

    def describe(self, case: Case) -> str:
        where = "around the program" if case.sample == AROUND else "inside the program"
        return (
            f"A program of aten::{case.op} with its region {where}, compiled by {case.compiler}, gives the dtypes, the "
            "values, the gradients and the state that it gives in eager mode, and its kernel receives the same."
        )

    def run(self, case: Case, device: Device) -> list[str]:
        compiler = COMPILERS[case.compiler]
        with device.activate(), simulate_cuda(device), quiet():
            if not exists(case.op):
                raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
            return Parity(case, device, compiler).differences()

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        return CompiledOpProgram(case, device).written(message, modules, ran=ran)


@contextmanager
def simulate_cuda(device: Device) -> Iterator[None]:
    """Enter a virtual device for a program that enters its regions: `torch.autocast("cuda")` looks for the hardware."""
    absent = "torch.cuda.amp.common.amp_definitely_not_available"
    if device.has_values or device.type != "cuda":
        yield
        return
    with patch(absent, lambda: False), patch("torch.cuda.is_bf16_supported", lambda *_, **__: True):
        yield


class Parity:
    """A case as a program, compiled and in eager mode. A subclass runs another program, on other inputs.

    `without_region`: the program without its region; where there is one, strides are compared, too.
    """

    without_region: Callable[..., object] | None = None

    def __init__(self, case: Case, device: Device, compiler: Compiler) -> None:
        self.case, self.device, self.compiler = case, device, compiler
        self.todo: CallPlan = plan(replace(case, sample=""), device)
        self.function = source.define(source.text(case, device, self.todo.sample))
        eager = replace(case, compiler="") if case.compiler == "script" else case
        self.eager = source.define(source.text(eager, device, self.todo.sample))
        self.name = f"{case.compiler}: aten::{case.op}"
        # autograd asks for the device behind a fake tensor
        self.grads = compiler.grads and device.has_values

    def region(self) -> AbstractContextManager[object]:
        """Return the region around the program, if it is not inside."""
        return self.device.autocast(self.case.amp) if self.case.sample == AROUND else nullcontext()

    def inputs(self) -> list[torch.Tensor]:
        """Return fresh inputs."""
        return self.todo.inputs(self.device)

    def leaves(self, *, grads: bool) -> list[torch.Tensor]:
        """Return fresh inputs, of which the floating ones require grad where `grads` says so."""
        return leaves_of(self.inputs(), grads)

    def mode(self) -> AbstractContextManager[object]:
        """Return the gradient mode of the calls, not yet entered."""
        return nullcontext()

    def differences(self) -> list[str]:
        """Return how the program differs from eager mode. Raises as `Check.run` does."""
        grads = self.grads
        want = self.run(self.eager, grads=grads)
        if want.error is not None and grads:
            if found := self._by_hand(want, grads=True):
                return carrying(want.error, found)
            grads = False
            want = self.run(self.eager, grads=False)
        self._require_kernel(want)
        try:
            with self.region():
                compiled = self.compiler.make(self.function, self.inputs())
        except Unsupported:  # this torch has no such compiler
            raise
        except Exception as error:  # a compiler may raise anything, and that is what is to be seen
            found = refusal(error, want.error, self.name) or self._by_hand(ProgramOutcome(error=error), grads=grads)
            return carrying(error, found)
        for call in ("first", "second"):
            got = self.run(compiled.call, grads=grads)
            found = carrying(got.error, compare_programs(got, want, self.name)) or self._values(got, want)
            if found and got.error and want.error and self.device.refuses(want.error):  # in the compiler's own words
                raise Unsupported(one_line(want.error))
            found = found or self._by_hand(got, grads=grads)
            if found:
                return [*found, *([] if call == "first" else ["the first call was right"])]
        if compiled.observe is None or want.error is not None:
            return []
        with self.region():
            seen = compiled.observe(self._observe, self.inputs())
        inputs = self.inputs()
        with self.region():
            eager = self._observe(lambda: self.eager(*inputs), inputs)
        return same_kernels(seen, eager, self.todo.expected.overload, self.name) or self._parts(seen)

    def _parts(self, seen: Observation) -> list[str]:
        """Compare the kernels that a compiler made of an op with those it makes of the call on inputs cast by hand.

        Where there are values, they show what the parts received.
        """
        program = self.without_region
        if program is None or self.device.has_values or seen.of(self.todo.expected.overload) is not None:
            return []
        given = self.cast(*self.inputs())
        observe = self.compiler.make(program, given).observe
        return same_parts(seen, observe(self._observe, given), self.name) if observe else []

    def _observe(self, call: Callable[[], object], inputs: Sequence[torch.Tensor]) -> Observation:
        return self.device.observe(call, Everything(), inputs)

    def _require_kernel(self, want: ProgramOutcome) -> None:
        """Raise Unsupported or Broken where eager mode raises what the reference raises.

        Then the device has no kernel for what autocast gives the op, e.g. oneDNN's LSTM on a processor without bf16
        instructions, and there is nothing to compare a program with.
        """
        if want.error is None or not self.device.has_values or not self.todo.asks_for_one_dtype:
            return
        reference = run_reference(self.device, self.todo)
        if type(reference.error) is type(want.error) and str(reference.error) == str(want.error):
            judge_raise(want.error, self.device, self.todo)

    def run(
        self, call: Callable[..., object], *, grads: bool, region: AbstractContextManager[object] | None = None
    ) -> ProgramOutcome:
        """Run a program once on fresh leaves, in the region around it unless another context is given."""

        def leaves() -> list[torch.Tensor]:
            made = self.leaves(grads=grads)
            self.device.seed()
            return made

        return run_program(call, leaves, self.mode(), region or self.region(), self.device.type, grads)

    def by_hand(self, *given: torch.Tensor) -> object:
        """Return what the program gives if its inputs are cast by hand and no region is entered."""
        return self.todo.reference()(*self.todo.cast(given))

    def _by_hand(self, got: ProgramOutcome, *, grads: bool) -> list[str]:
        """Compare the program with the call on inputs cast by hand: eager mode may have the same fault.

        Where both raise, a sweep asks whether that call raises, too; otherwise the eager case of the same call does.
        """
        asked = got.error is None or (self.without_region is not None and not self.todo.expected.error)
        want = self.run(self.by_hand, grads=grads, region=nullcontext()) if asked else got
        if got.error is not None and want.error is not None:
            return []
        found = compare_programs(got, want, self.name) or self._strides(got, want, grads=grads)
        found = found or self._values(got, want)
        return [f"{text} (eager mode is the call on explicitly cast inputs, without a region)" for text in found]

    def _strides(self, got: ProgramOutcome, want: ProgramOutcome, *, grads: bool) -> list[str]:
        """Compare strides with those of the call on inputs cast by hand, as it is and compiled by the same compiler.

        TorchScript makes `mm` and `add` of `addmm`, for one, whose results may lie in memory in another way: in its
        second call, when it has seen shapes.
        """
        program = self.without_region
        if program is None or not same_strides(got, [want], self.name):
            return []
        compiled = self.compiler.make(program, self.cast(*self.inputs()))
        call = lambda *given: compiled.call(*self.cast(*given))  # noqa: E731  # one line, as in the reproduction
        plain = [self.run(call, grads=grads, region=nullcontext()) for _ in range(2)]
        return same_strides(got, [want, *(each for each in plain if each.error is None)], self.name)

    def cast(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Return the inputs of the program as autocast is to cast them."""
        return self.todo.cast(given)

    def _values(self, got: ProgramOutcome, want: ProgramOutcome) -> list[str]:
        if not self.device.has_values or self.todo.op.values == "none":
            return []
        pairs = {"output": list(zip(got.outputs, want.outputs, strict=True))}
        if self.todo.op.values == "exact":
            grads = zip(got.grads, want.grads, strict=True)
            pairs["gradient"] = [(a, b) for a, b in grads if a is not None and b is not None]
        hosted = {what: [(self.device.host(a), self.device.host(b)) for a, b in both] for what, both in pairs.items()}
        compiler, dtypes = self.compiler, kernel_dtypes(self.todo)

        def near(want: torch.Tensor) -> float:
            return rounding_bound(want, dtypes, compiler.roundings, compiler.in_float32)

        with self.device.native_ops():
            return [text for what, both in hosted.items() for text in within(what, both, near, self.name)]


def kernel_dtypes(todo: CallPlan) -> list[torch.dtype]:
    """Return the dtypes that the kernel of a call receives."""
    return [DTYPES[leaf] for leaf in todo.expected.leaves if leaf in DTYPES]


def leaves_of(inputs: Sequence[torch.Tensor], grads: bool) -> list[torch.Tensor]:
    """Return inputs as leaves; with `grads`, the floating ones require grad."""
    return [x.detach().requires_grad_(grads and x.is_floating_point()) for x in inputs]


def run_program(
    call: Callable[..., object],
    leaves: Callable[[], Sequence[torch.Tensor]],
    mode: AbstractContextManager[object],
    region: AbstractContextManager[object],
    device_type: str,
    grads: bool,
) -> ProgramOutcome:
    """Run a program on what `leaves` makes, in a gradient mode and a region, and with `grads` its backward pass."""
    out = ProgramOutcome()
    try:
        with mode:
            made = leaves()
            with region:
                out.outputs = list(tensors(call(*made)))
        if grads:
            out.grads = input_grads(out.outputs, made)
    except Exception as error:  # the program under test may raise anything
        out.error = error
    out.state = (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
        depth(),
    )
    return out


def input_grads(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradient of each floating input, every output's elements weighted alike. None where there is none."""
    wanted = [x for x in leaves if x.requires_grad]
    roots = [x for x in outputs if x.requires_grad]
    if not wanted or not roots:
        return []
    return list(torch.autograd.grad(roots, wanted, [torch.ones_like(x) for x in roots], allow_unused=True))


def said(error: BaseException) -> str:
    """Return the first line of an exception's text."""
    return str(error).strip().partition("\n")[0]


def dtypes_named(error: BaseException) -> set[str]:
    """Return the scalar types that an exception names."""
    return set(re.findall(r"\b(?:BFloat16|Half|Float|Double|Int|Long|Bool)\b", str(error)))


def refusal(error: Exception, want: Exception | None, name: str) -> list[str]:
    """Check what compiling raised: it must say what eager mode says; compilers wrap that in their own text."""
    if type(error) is type(want) and want is not None and dtypes_named(error) == dtypes_named(want) != set():
        return []  # another kernel refuses the same dtypes in its own words
    # Since torch 2.14 Dynamo quotes the error in another one, with its quotation marks escaped.
    if want is not None and said(want) in str(error).replace("\\'", "'"):
        return []
    # TorchScript and Dynamo put the cause into the last line.
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip(" ^~|")]
    quoted = [line for line in lines if "): got " in line]  # by Dynamo, behind the tensors
    told = " … ".join(dict.fromkeys(line[: MOST // 3] for line in (*lines[:2], *quoted[:1], *lines[-1:])))
    eager = f"eager mode raises {one_line(want)}" if want else "eager mode runs it"
    return [f"{name} was not compiled: {type(error).__name__}: {told}; {eager}"]


def compare_programs(got: ProgramOutcome, want: ProgramOutcome, name: str) -> list[str]:
    """Compare what a compiled program did with eager mode, but for the values."""
    if got.error is not None:
        return refusal(got.error, want.error, name)
    if want.error is not None:
        return [f"{name} ran; eager mode raises {one_line(want.error)}"]
    out = [] if got.state == want.state else [f"{name} left the state {got.state}; eager mode {want.state}"]
    out += output_dtypes(got.outputs, [name_of(x.dtype) for x in want.outputs], name)
    for place, (x, y) in enumerate(zip(got.outputs, want.outputs, strict=False)):
        if x.shape != y.shape:
            out.append(f"output {place} of {name} has shape {[*x.shape]}; eager mode {[*y.shape]}")
    if len(got.grads) != len(want.grads):
        out.append(f"{name} gave {len(got.grads)} gradients; eager mode {len(want.grads)}")
    for place, pair in enumerate(zip(got.grads, want.grads, strict=False)):
        a, b = ("absent" if x is None else name_of(x.dtype) for x in pair)
        if a != b:
            out.append(f"gradient {place} of {name} is {a}; eager mode gives {b}")
    return out


def within(
    what: str, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], near: Callable[[torch.Tensor], float], name: str
) -> list[str]:
    """Compare tensors of a compiled program with eager mode's. `near`: how far they may be from one of these."""
    out = []
    for place, (x, y) in enumerate(pairs):
        if x.shape != y.shape:
            out.append(f"{what} {place} of {name} has shape {[*x.shape]}; eager mode {[*y.shape]}")
        elif not identical(x, y) and (error := largest_distance(x, y)) > near(y):
            away = f"{what} {place} of {name} is {error:.3g} away from eager mode's"
            out.append(f"{away}; expected at most {near(y):.3g}")
    return out


def same_strides(got: ProgramOutcome, right: Sequence[ProgramOutcome], name: str) -> list[str]:
    """Check that each output of a program lies in memory as in one of the right outcomes."""
    outputs = zip(got.outputs, zip(*(each.outputs for each in right), strict=True), strict=True)
    return [
        text
        for place, (x, known) in enumerate(outputs)
        for text in strides(x, {layout(y) for y in known}, f"output {place} of {name}")
    ]


def same_kernels(seen: Observation, eager: Observation, overload: str, name: str) -> list[str]:
    """Check that an op's kernel received what it receives in eager mode, and ran with the same `dtype=`."""
    calls = ([kernel for kernel in side.kernels if kernel.overload == overload] for side in (seen, eager))
    # A graph may hold the parts of a composite op; that they got the same shows in the values.
    for call, wanted in zip(*calls, strict=False):
        got, want = [leaf.got for leaf in call.leaves], [leaf.got for leaf in wanted.leaves]
        out = [] if got == want else [f"the kernel of {name} received {got}; in eager mode {want}"]
        if call.dtype_kwarg != wanted.dtype_kwarg:
            out.append(f"{name} ran with dtype={call.dtype_kwarg}; in eager mode dtype={wanted.dtype_kwarg}")
        if out:
            return out
    return []


def same_parts(seen: Observation, plain: Observation, name: str) -> list[str]:
    """Check that the kernels that a compiler made of an op received what they do of inputs cast by hand."""
    casts = ("_to_copy", "_autocast_to_reduced_precision", "_autocast_to_full_precision")
    got, want = (
        [
            (kernel.overload, [leaf.got for leaf in kernel.leaves])
            for kernel in side.kernels
            if kernel.overload not in casts
        ]
        for side in (seen, plain)
    )
    return [] if got == want else [f"the parts of {name} received {got}; of the call on inputs cast by hand {want}"]


class CompiledOpProgram(PlainProgram):
    """A compiled op case as plain torch: the program compiled, beside itself in eager mode.

    `mode`, `layout`: of a sweep, the gradient mode and what lays out each floating input.
    """

    def __init__(self, case: Case, device: Device, mode: str = "", layout: layouts.Layout | None = None) -> None:
        super().__init__(device, plan(replace(case, sample=""), device), layout)
        self.case, self.compiler, self.name = case, COMPILERS[case.compiler], f"{case.compiler}: aten::{case.op}"
        self.called = self.blocks[1] if self.reference == "call" else ""
        self.blocks[1] = source.text(case, device, self.todo.sample).rstrip()
        self.eager = "program"
        if case.compiler == "script":  # in Python, a name without the overload may find another one
            self.eager = "eager"
            text = source.text(replace(case, compiler=""), device, self.todo.sample)
            self.add([], text.replace("def program", "def eager").rstrip())
        self.around = region(device, case.amp) if case.sample == AROUND else "nullcontext()"
        self.grads = mode == "grad" if mode else self.compiler.grads and device.has_values
        modes = {"no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}
        entered = f"{modes.get(mode, 'nullcontext()')}, {self.around}, {device.type!r}"
        self.unregioned = f"{modes.get(mode, 'nullcontext()')}, nullcontext(), {device.type!r}"
        self.strides = mode and f" or same_strides(got, [want, *compiled_without_region()], {self.name!r})"
        self.refused_by_hand = bool(mode) and not self.todo.expected.error
        self.leaves = "True" if mode == "no_grad" else "grads"
        how, expression = source_of_making(case.compiler, "program", "inputs()")
        self.without_region = source_of_making(case.compiler, "without_region", "cast(inputs())")[1] if mode else ""
        self.make = f"with {self.around}:\n        compiled = {expression}"
        self.add(
            [nullcontext, how, run_program, leaves_of],
            "def run(call, grads):\n"
            f"    leaves = lambda: leaves_of(inputs(), grads{' or True' * (mode == 'no_grad')})\n"
            f"    return run_program(call, leaves, {entered}, grads)",
        )

    def written(self, message: str, modules: Sequence[str], *, ran: bool) -> str:
        """Return the program; see `Check.program`."""
        if not ran:
            self.add([], f"if True:\n    {self.make}\nprint(run(compiled.call, {self.grads}))")
            return self.text(modules)
        first = '    report("the backward pass", beside(want))\n' * self.refused_by_hand
        again = f"if want.error:\n{first}    grads = False\n    want = run({self.eager}, grads)\n" * self.grads
        self.add(
            [refusal, compare_programs, run_program, leaves_of, *([same_strides] if self.strides else [])],
            *cast_blocks(self.todo, self.case.rule),
            *filter(None, [self.called]),
            *self._plain(),
            f"""\
by_hand = lambda *given: {self.reference}(*cast(given))
def compared(got, want):
    found = compare_programs(got, want, {self.name!r})
{self._values()}    return found

def beside(got):
    want = run_program(by_hand, lambda: leaves_of(inputs(), {self.leaves}), {self.unregioned}, grads)
    if got.error{" and want.error" * self.refused_by_hand}:
        return []
    return compared(got, want){self.strides}

grads = {self.grads}
want = run({self.eager}, grads)
{again}try:
    {self.make}
except Exception as error:
    compiled = None
    report("compiling", refusal(error, want.error, {self.name!r}) or beside(ProgramOutcome(error=error)))
else:
    for turn in ("first", "second"):
        got = run(compiled.call, grads)
        report(f"the {{turn}} call", compared(got, want))
    report("the call beside explicit casts", beside(got))""",
        )
        parts = "the parts of" in message
        if not message or parts or "the kernel of" in message or "ran with dtype=" in message:
            found = f"same_kernels(seen, eagerly, {self.todo.expected.overload!r}, {self.name!r})"
            if parts:
                found = f"same_parts(seen, {self.without_region}.observe(watch, cast(inputs())), {self.name!r})"
            self.add(
                [observe, same_parts if parts else same_kernels, Everything],
                f"""\
if compiled and compiled.observe and not want.error:
    watch = lambda call, inputs: observe(call, {self.device.type!r}, Everything(), inputs)
    given = inputs()
    with {self.around}:
        seen, eagerly = compiled.observe(watch, inputs()), watch(lambda: {self.eager}(*given), given)
    {self.say("what the kernel received", found)}""",
            )
        return self.text(modules)

    def _plain(self) -> list[str]:
        """Write what compiles the call of a cell on inputs cast by hand, whose strides are right, too."""
        if not self.strides:
            return []
        text = source.text(replace(self.case, sample=AROUND), self.device, self.todo.sample)
        run = f"run_program(call, lambda: leaves_of(inputs(), {self.leaves}), {self.unregioned}, grads)"
        return [
            text.replace("def program", "def without_region").rstrip(),
            f"""\
def compiled_without_region():
    compiled = {self.without_region}
    call = lambda *given: compiled.call(*cast(given))
    return [one for one in ({run} for _ in range(2)) if not one.error]""",
        ]

    def _values(self) -> str:
        """Return the lines that compare values, where there are some that can be compared."""
        if not self.device.has_values or self.todo.op.values == "none":
            return ""
        self.needed += [within, rounding_bound]
        given = f"{kernel_dtypes(self.todo)}, {self.compiler.roundings}, {self.compiler.in_float32}"
        kinds = {"output": "outputs", "gradient": "grads"}
        return f"""\
    both = lambda *lists: [pair for pair in zip(*lists) if pair[0] is not None and pair[1] is not None]
    hosts = lambda *lists: [(a.detach().cpu(), b.detach().cpu()) for a, b in both(*lists)]
    near = lambda want: rounding_bound(want, {given})
""" + "".join(
            f'    found = found or within("{what}", hosts(got.{name}, want.{name}), near, {self.name!r})\n'
            for what, name in kinds.items()
            if what == "output" or (self.todo.op.values == "exact" and self.grads)
        )
