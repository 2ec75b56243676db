"""Run an op case with gradients and check them: the shared body of the op suites of `suites/autograd`.

The forward pass runs in a region on leaves that require grad, the backward pass outside of it. What a leaf must get is
what the same op gives on inputs cast inside the graph: a gradient of the leaf's dtype and shape, with the same
bits, made by kernels that received the same dtypes; and it lies near the float64 gradient, which the CPU computes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from zlib import crc32

import torch

from ampcheck.checks.cases import CallPlan, because, plan
from ampcheck.checks.comparisons import changed, far, same_bits, same_error, wrong_anyway
from ampcheck.checks.forward import DISABLED, float32_products, judged_at, require_inputs
from ampcheck.checks.program import OpCheck, PlainProgram, carrying, cast_blocks, region
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Broken, Unsupported, one_line
from ampcheck.observe.closeness import BACKWARD_PASSES, moved_by, mover
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.recorder import Recorder, exists, overload_name, tensors
from ampcheck.register.torch_private import OpOverload
from ampcheck.samples import catalogue
from ampcheck.spec.case import GRADIENT, Case
from ampcheck.spec.torch_dtypes import DTYPES, name_of

Gradients = Mapping[int, torch.Tensor]
"""Gradients by the place of their leaf among the tensors of a call."""

Exact = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Gradients in float64, each with how far half a rounding of every input moves its elements."""

_REPEATED = 4
"""How often passes whose bits differ are repeated outside of autocast, to see whether their bits repeat."""
_REFUSAL = "is not differentiable with respect to argument"
"""What PyTorch says of an argument that it takes as a constant."""

BOOKKEEPING = ("_to_copy", "detach", "new_empty_strided", "copy_", "add.Tensor")
"""What autograd itself does to cast, sum and keep gradients; it depends on who else holds them. So do the questions to
a tensor in the namespace prim, some of which are asked once and remembered."""

Backward = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""Runs a backward pass from outputs, given the gradient of each."""


@dataclass
class Pass:
    """A forward and a backward pass.

    `leaves`: the tensors that require grad, by their place among the call's tensors. `values`, `copies`: of the
    outputs, and of the gradients by the places of their leaves, on the CPU; none on a device without values. `written`:
    the places of the roots that held other values after the backward pass. `kernels`: each op of the backward pass with
    the dtypes it received, in order of their names; the order in which they ran is not told, because the casts of a
    call are made in any order.
    """

    leaves: dict[int, torch.Tensor]
    outputs: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    copies: dict[int, torch.Tensor] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    error: Exception | None = None

    @property
    def roots(self) -> list[torch.Tensor]:
        """Return the outputs that have a gradient."""
        return [x for x in self.outputs if x.requires_grad]

    def dtypes(self) -> list[torch.dtype]:
        """Return the dtypes of the roots."""
        return [x.dtype for x in self.roots]

    def gradients(self) -> dict[int, torch.Tensor]:
        """Return the gradient of each leaf that has one."""
        return {place: leaf.grad for place, leaf in self.leaves.items() if leaf.grad is not None}


class BackwardCheck(OpCheck):
    """An op with a policy, and its gradient."""

    def takes(self, case: Case) -> bool:
        return case.op in catalogue() and case.suite == "autograd"

    def describe(self, case: Case) -> str:
        return (
            f"The gradient of aten::{case.op}, called in a region of {case.amp}, has the dtype of its leaf and the "
            "bits that explicit casts in the graph give, and is right."
        )

    def run(self, case: Case, device: Device) -> list[str]:
        if device.without_autograd:
            raise Unsupported(device.without_autograd)
        with device.activate():
            if not exists(case.op):
                raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
            todo = planned(case, device)
            require_inputs(todo, device)
            places = differentiable(todo, device)
            want = run(todo, device, places)
            return _judge(case, device, todo, places, want) or _disabled(case, device)

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        return BackwardProgram(case, device, message, ran=ran).written(modules, ran=ran)


def _judge(
    case: Case, device: Device, todo: CallPlan, places: Collection[int], want: Pass, *, enabled: bool = True
) -> list[str]:
    """Compare both passes of a call in a region with those of the reference."""
    got = run(todo, device, places, device.autocast(case.amp, enabled=enabled))
    if differences := same_error(got.error, want.error, todo.name):
        return carrying(got.error, differences)
    if want.error is not None or not want.gradients():
        _require_gradient(todo, device, want)
    if want.written:
        raise Broken([SPOILED.format(place=place, name=todo.name) for place in want.written])
    why = why_back(case.rule)
    differences = output_grads(got.roots, want.roots, todo.name, why)
    differences += gradient_dtypes(got.leaves, got.gradients(), want.gradients(), todo.name, why)
    if device.has_values and not differences:
        differences = _values(todo, device, places, got, want)
    return differences or backward_kernels(got.kernels, want.kernels, todo.name, why)


def _disabled(case: Case, device: Device) -> list[str]:
    """Check the gradient of an op of lower precision in a disabled region, where its kernels for float32 run.

    A device may lack these, as it may lack the one of the forward pass.
    """
    if case.sample or case.rule != "downcast" or case.inputs != f"fp32{GRADIENT}":
        return []
    todo = planned(case, device, "fallthrough")
    places = differentiable(todo, device)
    want = run(todo, device, places)
    if want.error is not None and (lacks_kernel(want.error) or device.refuses(want.error)):
        return []
    return judged_at(DISABLED, partial(_judge, case, device, todo, places, want, enabled=False))


def why_back(rule: str) -> str:
    """Return why gradients are as expected, for the sentences."""
    return f"({because(rule)}, and its gradient passes the cast back)"


def planned(case: Case, device: Device, policy: str | None = None) -> CallPlan:
    """Return what the specification expects of the forward pass of a gradient case; of its rule, or of a policy."""
    return plan(replace(case, inputs=case.inputs.removesuffix(GRADIENT)), device, policy)


def _require_gradient(todo: CallPlan, device: Device, want: Pass) -> None:
    """Judge a case whose op has no gradient without autocast either.

    Raises Unsupported where the device declares such texts as refusals, PyTorch has none on the CPU in float64, or the
    op has no kernel for its forward pass; else Broken. PyTorch's Meta kernels, which some ops lack for the backward
    pass, are no part of a device without values.
    """
    if want.error is not None and device.refuses(want.error):
        raise Unsupported(one_line(want.error))
    if _reference(todo, device, want.dtypes()) in (None, {}):
        raise Unsupported(f"PyTorch has no gradient of {todo.name}, on the CPU in float64 neither")
    if want.error is None:
        raise Broken([NO_GRADIENT.format(name=todo.name, device=device.name)])
    if not lacks_kernel(want.error):
        raise Broken([raises_in_a_pass(want.error, todo.name)], want.error)
    forward = run(todo, device, (), forward_only=True)
    if not device.has_values or (forward.error is not None and lacks_kernel(forward.error)):
        raise Unsupported(one_line(want.error))
    raised = raises_in_a_pass(want.error, todo.name)
    raise Broken([UNDECLARED.format(name=todo.name, device=device.name, raised=raised)], want.error)


def differentiable(todo: CallPlan, device: Device) -> list[int]:
    """Return the places of the floating tensors that may require grad: PyTorch takes some arguments as constants."""
    places = [place for place, leaf in enumerate(todo.given) if leaf.on_device and DTYPES[leaf.dtype].is_floating_point]

    def refused(some: Collection[int]) -> bool:
        return _REFUSAL in str(run(todo, device, some, forward_only=True).error)

    return [place for place in places if not refused([place])] if refused(places) else places


def run(
    todo: CallPlan,
    device: Device,
    places: Collection[int],
    region: AbstractContextManager[object] | None = None,
    weights: Sequence[torch.dtype] | None = None,
    draw: int | None = None,
    *,
    forward_only: bool = False,
) -> Pass:
    """Run both passes of a case.

    `places`: of the tensors that require grad. `region`: None for the reference. `weights`: for one in float64:
    the dtypes of the outputs that are differentiated where the case itself runs. `draw`: moves the inputs of such a
    reference by half a rounding, by random signs of that seed. `forward_only`: leaves the backward pass out.
    """
    call = todo.call
    if weights is not None:
        call = todo.reference("fp64")
    elif region is None:
        call = partial(_in_graph, todo)

    def given() -> list[torch.Tensor]:
        made = todo.inputs(device)
        made = made if weights is None else todo.cast(made, "fp64")
        made = made if draw is None else list(map(mover(todo.narrowest, draw), made))
        device.seed()
        return made

    return run_passes(
        call,
        given,
        places,
        region or nullcontext(),
        None if forward_only else device.backward,
        device.leaf,
        device.native_ops,
        weights,
        device.snapshot if device.has_values else None,
    )


def _in_graph(todo: CallPlan, *given: torch.Tensor) -> Any:
    return todo.reference()(*todo.cast(given))


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf of a graph that requires grad, of the tensor's values."""
    return tensor.detach().requires_grad_()


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values on the CPU, in new memory."""
    return tensor.detach().cpu().clone()


def run_passes(
    call: Callable[..., object],
    given: Callable[[], Iterable[torch.Tensor]],
    places: Collection[int],
    region: AbstractContextManager[object],
    backward: Backward | None = torch.autograd.backward,
    leaf: Callable[[torch.Tensor], torch.Tensor] = leaf,
    native_ops: Callable[[], AbstractContextManager[object]] = nullcontext,
    weights: Sequence[torch.dtype] | None = None,
    snapshot: Callable[[torch.Tensor], torch.Tensor] | None = snapshot,
    mode: AbstractContextManager[object] | None = None,
    *,
    recorded: bool = True,
) -> Pass:
    """Run a forward pass in a region, and outside of it a backward pass from each output that has a gradient.

    Args:
        call: of the tensors that `given` makes, of which those at `places` are made leaves.
        backward: None leaves the backward pass out.
        leaf: makes a leaf of a tensor.
        native_ops: the context of work on results of `snapshot`.
        weights: the dtypes of the weights of the outputs; by default their own.
        snapshot: copies a tensor to the CPU; None where tensors have no values.
        mode: the gradient mode of the forward pass.
        recorded: whether to note the kernels of the backward pass, which then runs below a dispatch mode: there, what a
            Python backend raises ends the process (docs/findings/python-backend-hook-exception.md).
    """
    done = Pass({})

    def run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = overload_name(func)
        if not name.startswith("prim::") and name not in BOOKKEEPING:
            done.kernels.append(" ".join([name, *(name_of(x.dtype) for x in tensors((args, kwargs)))]))
        return func(*args, **kwargs)

    try:
        with mode or nullcontext():
            made = list(given())
            done.leaves = {place: leaf(x) for place, x in enumerate(made) if place in places}
            with region:
                done.outputs = list(tensors(call(*[done.leaves.get(place, x) for place, x in enumerate(made)])))
        done.values = [snapshot(x) for x in done.outputs] if snapshot else []
        if backward is None:
            return done
        wanted = weights or done.dtypes()
        weighted = [weight(place, *pair) for place, pair in enumerate(zip(done.roots, wanted, strict=True))]
        with Recorder(run) if recorded else nullcontext():
            backward(done.roots, weighted)
        if snapshot:
            done.copies = {place: snapshot(gradient) for place, gradient in done.gradients().items()}
            now = [snapshot(x) for x in done.roots]
            before = [value for value, x in zip(done.values, done.outputs, strict=True) if x.requires_grad]
            with native_ops():
                done.written = changed(now, before)
    except Exception as error:  # a kernel may raise anything, and that is what is to be seen
        done.error = error
    done.kernels.sort()
    return done


def weight(place: int, output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient of a scalar with respect to an output: of a weighted sum, with weights that all differ.

    For a complex output, of the weighted sum of its squared absolute values, so that a phase that is free has no say.
    """
    generator = torch.Generator().manual_seed(crc32(repr((tuple(output.shape), "unit", 0, place)).encode()))
    made = 0.05 + 0.9 * torch.rand(output.shape, generator=generator, dtype=torch.float64)
    if output.is_complex():
        return output.detach() * made.to(torch.float32).to(output.device)
    return made.to(dtype).to(output.device).to(output.dtype)


def output_grads(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], name: str, why: str) -> list[str]:
    """Compare the dtypes of the outputs that have a gradient with those of the reference."""
    found, right = (", ".join(name_of(x.dtype) for x in outputs) or "none" for outputs in (got, want))
    told = f"the outputs of {name} that require grad are {found}; expected {right} {why}"
    return [told] if found != right else []


def gradient_dtypes(
    leaves: Mapping[int, torch.Tensor], got: Gradients, want: Gradients, name: str, why: str
) -> list[str]:
    """Check that the same leaves have gradients as in the reference, each of its leaf's dtype and shape."""
    differences = []
    for place, leaf in leaves.items():
        what, gradient = f"the gradient of argument {place} of {name}", got.get(place)
        if (gradient is None) != (want.get(place) is None):
            found, right = ("missing" if side.get(place) is None else "there" for side in (got, want))
            differences.append(f"{what} is {found}; expected it to be {right} {why}")
        elif gradient is not None and (gradient.dtype, gradient.shape) != (leaf.dtype, leaf.shape):
            seen, right = (f"{name_of(x.dtype)} {tuple(x.shape)}" for x in (gradient, leaf))
            differences.append(f"{what} is {seen.replace(' ', ' of shape ', 1)}; expected {right}")
    return differences


def backward_kernels(got: Sequence[str], want: Sequence[str], name: str, why: str) -> list[str]:
    """Check that the kernels of the backward pass received the dtypes that they receive in the reference."""
    if got == want:
        return []
    more, fewer = (
        ", ".join(kernel for kernel in dict.fromkeys(a) if a.count(kernel) > b.count(kernel)) or "nothing"
        for a, b in ((got, want), (want, got))
    )
    return [f"the backward pass of {name} ran {more} in the place of {fewer} {why}"]


def gradient_bits(got: Gradients, want: Gradients, exact: Gradients, name: str) -> list[str]:
    """Check that each gradient has the bits of the reference, or is nearer to the float64 one.

    Nearer, because a backend may sum the gradients of a cast's uses in float32, where autograd sums them in the dtype
    of the cast: cached-weight-gradient-in-low-precision in docs/findings.
    """
    differences = []
    for place, gradient in got.items():
        found = same_bits(gradient, want[place], f"the gradient of argument {place} of {name}")
        right = exact.get(place)
        if found and not (right is not None and squares(gradient, right) < squares(want[place], right)):
            differences += found
    return differences


def squares(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the sum of squares between a gradient and the float64 one; infinity for another shape, or nan or inf."""
    if gradient.shape != exact.shape or not gradient.isfinite().all():
        return float("inf")
    return (gradient.double() - exact.double()).square().sum().item()


def gradient_accuracy(got: Gradients, exact: Exact, kernel: torch.dtype, name: str, products: str = "") -> list[str]:
    """Check that each gradient is near the float64 one.

    `kernel`: the least precise dtype that took part. `products`: as in `ampcheck.observe.closeness.bound`.
    """
    differences = []
    for place, (gradient, moved) in exact.items():
        what = f"the gradient of argument {place} of {name}"
        if place in got:
            differences += far(got[place], gradient, moved, kernel, what, BACKWARD_PASSES, products)
        elif gradient.any():
            differences.append(f"{what} is missing, with and without autocast; in float64 it is there")
    return differences


def raises_in_a_pass(error: Exception, name: str) -> str:
    """Return the difference of passes that raise the same with and without a region."""
    return f"{name} raised {one_line(error)} in the forward or backward pass; it raises that without autocast, too"


SPOILED = (
    "output {place} of {name} holds other values after the backward pass, which only reads it; it does so without "
    "autocast, too"
)
UNDECLARED = (
    "{name} runs on {device}, and its gradient has no kernel: write one, or match the error in the device's refusals, "
    "or declare without_autograd for a device without any gradients; {raised}"
)
NO_GRADIENT = "{name} has no gradient on {device}, with and without autocast; the CPU has one"


def _values(todo: CallPlan, device: Device, places: Collection[int], under: Pass, outside: Pass) -> list[str]:
    """Check that gradients have the bits of the reference, where these do not change, and are near the float64 ones.

    Raises Broken where those of the reference are not near them either.
    """
    if todo.op.values == "none":
        return []
    got, want = under.copies, outside.copies
    exact = (_reference(todo, device, outside.dtypes()) if todo.op.values == "exact" else None) or {}
    with device.native_ops():
        differences = gradient_bits(got, want, {place: gradient for place, (gradient, _) in exact.items()}, todo.name)
    if differences:
        with device.repeatable():
            first, *others = (list(run(todo, device, places).copies.values()) for _ in range(_REPEATED))
        with device.native_ops():
            if not any(changed(other, first) for other in others):
                return differences
    how = narrowest(todo, outside.dtypes()), todo.name, float32_products(device, todo)
    with device.native_ops():
        found = gradient_accuracy(got, exact, *how)
        anyway = gradient_accuracy(want, exact, *how) if found else []
    told = wrong_anyway(found, anyway)
    if anyway:
        raise Broken(told)
    return told


def narrowest(todo: CallPlan, outputs: Sequence[torch.dtype]) -> torch.dtype:
    """Return the least precise dtype that takes part in both passes of a call, float64 for none."""
    low = (torch.float16, torch.bfloat16, torch.float32)
    floating = [dtype for dtype in (*(DTYPES[leaf] for leaf in todo.expected.leaves), *outputs) if dtype in low]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _reference(todo: CallPlan, device: Device, dtypes: Sequence[torch.dtype]) -> Exact | None:
    """Return the gradients in float64, computed on the CPU, or on the device where the CPU lacks the op, or None.

    `dtypes`: of the outputs that are differentiated where the case itself runs.
    """
    for origin in (Cpu(), device):
        with device.native_ops() if origin is not device else nullcontext():
            places = differentiable(todo, origin)
            exact = run(todo, origin, places, weights=dtypes)
            if exact.error is not None:
                continue
            gradients = exact.copies or exact.gradients()
            moved = [torch.zeros(x.shape, dtype=torch.float64) for x in gradients.values()]
            if origin.type == "cpu":
                moved = moved_by(partial(_moved, todo, origin, places, dtypes), list(gradients.values()))
        return dict(zip(gradients, zip(gradients.values(), moved, strict=True), strict=True))
    return None


def _moved(
    todo: CallPlan, device: Device, places: Collection[int], weights: Sequence[torch.dtype], draw: int
) -> list[torch.Tensor]:
    return list(run(todo, device, places, weights=weights, draw=draw).copies.values())


class BackwardProgram(PlainProgram):
    """A gradient case as plain torch: both passes, beside explicit casts in the graph."""

    def __init__(self, case: Case, device: Device, message: str, *, ran: bool) -> None:
        disabled = f"{DISABLED}: " in message
        todo = planned(case, device, "fallthrough" if disabled else None)
        super().__init__(device, todo, where=DISABLED if disabled else "")
        self.message = message
        with device.activate():
            asked = differentiable(todo, device) if ran else None
        self.places = [n for n, leaf in enumerate(todo.given) if leaf.eligible] if asked is None else asked
        self.options = "" if device.has_values else ", snapshot=None"
        self.rule = case.rule
        self.add([run_passes, nullcontext], *cast_blocks(todo, case.rule))
        if not device.has_values and device.name.startswith("virtual:"):
            self.add([graphs.allow, graphs.backward], f"allow({device.type!r})")
            self.options += ", backward=backward"
        within = region(device, case.amp, enabled=not disabled)
        self.first = f"got = run_passes(call, inputs, {self.places}, {within}{self.options})"

    def written(self, modules: Sequence[str], *, ran: bool) -> str:
        """Return the program; see `Check.program`."""
        message = self.message
        if not ran:
            self.add([], f"{self.first}\nprint(got)")
            return self.text(modules)
        call = f"lambda *given: {self.reference}(*cast(given))"
        self.add(
            [],
            f"{self.first}\n"
            f"want = run_passes({call}, inputs, {self.places}, nullcontext(){self.options})\n"
            "a, b = (dict(done.gradients()) for done in (got, want))",
        )
        name = self.todo.name
        if "raised" in message:
            found = f"same_error(got.error, want.error, {name!r})"
            anyway = f"[raises_in_a_pass(x, {name!r}) for x in [got.error] if x]"
            self.add([same_error, raises_in_a_pass], self.say("what was raised", f"{found} or {anyway}"))
        elif "has no gradient on" in message:
            told = NO_GRADIENT.format(name=name, device=self.device.name)
            self.add([], self.say("whether there is a gradient", f"[{told!r}] * (not a and not b)"))
        elif "holds other values after the backward pass" in message:
            found = f"[{SPOILED!r}.format(place=place, name={name!r}) for place in want.written]"
            self.add([], self.say("whether outputs are only read", found))
        elif "float64" in message:
            self._accuracy()
        else:
            self._compared(message)
        return self.text(modules)

    def _host(self) -> None:
        self.blocks[-1] += "\na, b = got.copies, want.copies"

    def _accuracy(self) -> None:
        """Write the distance from the float64 gradients."""
        filled = ", dtype=torch.float64" if self.reference == "reference" else ""
        call = f"lambda *given: {self.reference}(*given{filled})"
        with self.device.activate():
            outputs = run(self.todo, self.device, self.places, forward_only=True).dtypes()
        products = float32_products(self.device, self.todo)
        given = f"exact, {narrowest(self.todo, outputs)}, {self.todo.name!r}, {products!r}"
        self._host()
        self.add(
            [gradient_accuracy, wrong_anyway, mover, moved_by],
            f"""\
def exact(draw=None):  # on the CPU in float64, of inputs that are half a rounding off if there is a draw
    given = [x.to(torch.float64) if x.is_floating_point() else x for x in cast({self.cpu_inputs()})]
    given = given if draw is None else list(map(mover({self.todo.narrowest}, draw), given))
    return run_passes({call}, lambda: given, {self.places}, nullcontext(), weights=want.dtypes()).gradients()

in_float64 = exact()
moved = moved_by(lambda draw: list(exact(draw).values()), list(in_float64.values()))
exact = {{place: (x, far) for (place, x), far in zip(in_float64.items(), moved)}}
wrong, outside = (gradient_accuracy(side, {given}) for side in (a, b))
{self.say("the distance from the float64 gradients", "wrong_anyway(wrong, outside)")}""",
        )

    def _compared(self, message: str) -> None:
        """Write the comparison with explicit casts: dtypes, bits, and what the kernels received."""
        end = f"{self.todo.name!r}, {why_back(self.rule)!r})"
        grads = self.say("outputs that require grad", f"output_grads(got.roots, want.roots, {end}")
        dtypes = self.say("dtypes of the gradients", f"gradient_dtypes(got.leaves, a, b, {end}")
        self.add([output_grads, gradient_dtypes], f"{grads}\n{dtypes}")
        has_bits = self.device.has_values and self.todo.op.values != "none"
        if has_bits and (not message or "same bits" in message or "shape" in message):
            self._host()
            bits = f"gradient_bits(a, b, {{}}, {self.todo.name!r})"
            self.add([gradient_bits], self.say("bits of the gradients", bits))
        if not message or "the backward pass of" in message:
            found = f"backward_kernels(got.kernels, want.kernels, {end}"
            self.add([backward_kernels], self.say("kernels of the backward pass", found))
