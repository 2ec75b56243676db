"""Run an op case with gradients and check them: the shared body of the op suites of `suites/autograd`.

The forward pass runs in a region on leaves that require grad, the backward pass outside of it. What a leaf must get is
what the same op gives on inputs cast inside the graph: a gradient of the leaf's dtype and shape, with the same
bits, made by kernels that received the same dtypes; and it lies near the float64 gradient, which the CPU computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ampcheck.checks import comparisons
from ampcheck.checks.call import CallPlan, plan
from ampcheck.checks.forward import require_inputs
from ampcheck.checks.reference import DRAWS, cast_call, distance, far, mover, narrowest
from ampcheck.compilers import function
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import Broken, Unsupported, one_line
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.recorder import exists, map_tensors, overload_name, tensors
from ampcheck.observe.torch_private import TorchDispatchMode
from ampcheck.samples.describe import TensorArg
from ampcheck.samples.tensors import build
from ampcheck.spec.case import GRADIENT, Case
from ampcheck.spec.rules import RULES
from ampcheck.spec.torch_dtypes import DTYPES, name_of

Gradients = dict[int, torch.Tensor]
"""Gradients by the place of their leaf among the tensors of a call."""

Exact = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Gradients in float64, each with how far half a rounding of every input moves its elements."""

PASSES = 2
"""What the bound of one op is multiplied by: a backward pass takes what the forward pass rounded."""

_REFUSAL = "is not differentiable with respect to argument"
"""What PyTorch says of an argument that it takes as a constant."""


BOOKKEEPING = ("_to_copy", "detach", "new_empty_strided", "copy_", "add.Tensor")
"""What autograd itself does to cast, sum and keep gradients; it depends on who else holds them. So do the questions to
a tensor in the namespace prim, some of which are asked once and remembered."""


class _Kernels(TorchDispatchMode):
    """Writes down each op that runs, but for autograd's bookkeeping, with the dtypes of its tensor arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = overload_name(func)
        if not name.startswith("prim::") and name not in BOOKKEEPING:
            self.seen.append(" ".join([name, *(name_of(t.dtype) for t in tensors((args, kwargs)))]))
        return func(*args, **kwargs)


@dataclass
class Pass:
    """A forward and a backward pass.

    `leaves`: the tensors that require grad, by their place among the call's tensors. `outputs`: the dtypes of what
    came out. `written`: the places of the outputs that held other values after the backward pass. `kernels`: each op of
    the backward pass with the dtypes it received, in order of their names; the order in
    which they ran is not told, because the casts of a call are made in any order.
    """

    leaves: dict[int, torch.Tensor]
    outputs: list[str] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    error: Exception | None = None

    def gradients(self) -> Gradients:
        """Return the gradient of each leaf that has one."""
        return {place: leaf.grad for place, leaf in self.leaves.items() if leaf.grad is not None}


def planned(case: Case, device: Device) -> CallPlan:
    """Return what the specification expects of the forward pass of a gradient case."""
    return plan(replace(case, inputs=case.inputs.removesuffix(GRADIENT)), device)


def check_backward(case: Case, device: Device) -> list[str]:
    """Run an op case with gradients and return every difference from the specification.

    Raises `Unsupported` where the device cannot run the op, or has no gradient of it without autocast either.
    """
    if device.without_autograd:
        raise Unsupported(device.without_autograd)
    with device.activate():
        if not exists(case.op):
            raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
        todo = planned(case, device)
        name = f"aten::{case.op}" if todo.sample.call == "aten" else todo.sample.call
        require_inputs(todo, device, name)
        places = differentiable(todo, device)
        hand = run(todo, device, places)
        under = run(todo, device, places, device.autocast(case.amp))
        differences = comparisons.same_error(under.error, hand.error, name)
        if differences:
            return differences
        if hand.error is not None or not hand.gradients():
            _require_gradient(todo, device, hand, name)
        if hand.written:
            told = "holds other values after the backward pass, which only reads it; it does so without autocast, too"
            raise Broken([f"output {place} of {name} {told}" for place in hand.written])
        because = f"(rule {case.rule}: {RULES[case.rule].sentence}, and its gradient passes the cast back)"
        differences = _dtypes(under, hand, name, because)
        if device.has_values and not differences:
            differences = _values(todo, device, places, under, hand, name)
        return differences or _kernels(under, hand, name, because)


def _require_gradient(todo: CallPlan, device: Device, hand: Pass, name: str) -> None:
    """Judge a case whose op has no gradient without autocast either.

    Raises Unsupported where PyTorch has none on the CPU in float64, the dispatcher has no kernel or the device declares
    such texts as refusals; else Broken.
    """
    if _reference(todo, device, hand.outputs) in (None, {}):
        raise Unsupported(f"PyTorch has no gradient of {name}, on the CPU in float64 neither")
    if hand.error is None:
        raise Broken([f"{name} has no gradient on {device.name}, with and without autocast; the CPU has one"])
    places = "in the forward or backward pass"
    if lacks_kernel(hand.error) or device.refuses(hand.error):
        raise Unsupported(one_line(hand.error))
    said = one_line(hand.error)
    raise Broken([f"{name} raised {said} {places}; it raises that without autocast, too"], hand.error)


def differentiable(todo: CallPlan, device: Device) -> list[int]:
    """Return the places of the floating tensors that may require grad: PyTorch takes some arguments as constants."""
    places = [place for place, leaf in enumerate(todo.given) if leaf.on_device and DTYPES[leaf.dtype].is_floating_point]
    if not _refused(_forward(todo, device, places)[0]):
        return places
    return [place for place in places if not _refused(_forward(todo, device, [place])[0])]


def _refused(done: Pass) -> bool:
    return _REFUSAL in str(done.error)


def run(
    todo: CallPlan,
    device: Device,
    places: Collection[int],
    region: AbstractContextManager[object] | None = None,
    weights: Sequence[str] | None = None,
    draw: int | None = None,
) -> Pass:
    """Run both passes of a case.

    `places`: of the tensors that require grad. `region`: None for the reference. `weights`: for one in float64:
    the dtypes of the outputs that are differentiated where the case itself runs. `draw`: moves the inputs of such a
    reference by half a rounding, by random signs of that seed.
    """
    done, outputs = _forward(todo, device, places, region, exact=weights is not None, draw=draw)
    if done.error is None:
        try:
            given = list(_weights(outputs, weights or done.outputs, device))
            before = [device.snapshot(output) for output in outputs] if device.has_values else []
            with _Kernels() as seen:
                device.backward(outputs, given)
            done.kernels = sorted(seen.seen)
            for place, (output, value) in enumerate(zip(outputs, before, strict=False)):
                now = device.host(output)
                with device.native_ops():
                    done.written += [] if comparisons.identical(now, value) else [place]
        except Exception as error:  # a backward kernel may raise anything, and that is what is to be seen
            done.error = error
    return done


def _forward(
    todo: CallPlan,
    device: Device,
    places: Collection[int],
    region: AbstractContextManager[object] | None = None,
    *,
    exact: bool = False,
    draw: int | None = None,
) -> tuple[Pass, list[torch.Tensor]]:
    """Run the forward pass; return it and the outputs that have a gradient, in float64 where it is to be `exact`."""
    done = Pass({})
    args, kwargs = build(todo.sample, todo.dtypes, device)
    call = function(todo.op, todo.sample)
    if exact:
        call, args, kwargs = cast_call(todo, args, kwargs, "fp64")
    if draw is not None:
        move = mover(narrowest(todo), draw)
        args, kwargs = map_tensors(args, move), {name: map_tensors(value, move) for name, value in kwargs.items()}
    numbers = iter(range(len(todo.given)))

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        place = next(numbers)
        if place in places:
            done.leaves[place] = tensor = device.leaf(tensor)
        return tensor

    args = map_tensors(args, leaf)
    kwargs = {key: map_tensors(value, leaf) for key, value in kwargs.items()}
    outputs: list[torch.Tensor] = []
    try:
        if region is None and not exact:
            call, args, kwargs = cast_call(todo, args, kwargs)
        device.seed()
        with region or nullcontext():
            outputs = [tensor for tensor in tensors(call(*args, **kwargs)) if tensor.requires_grad]
        done.outputs = [name_of(tensor.dtype) for tensor in outputs]
    except Exception as error:  # the call under test may raise anything, and that is what is to be seen
        done.error = error
    return done, outputs


def _weights(outputs: Sequence[torch.Tensor], dtypes: Sequence[str], device: Device) -> Iterator[torch.Tensor]:
    """Yield the gradient of a scalar with respect to each output: of a weighted sum, with weights that all differ.

    For a complex output, of the weighted sum of its squared absolute values, so that a phase that is free has no say.
    """
    for place, (output, dtype) in enumerate(zip(outputs, dtypes, strict=True)):
        arg = TensorArg(tuple(output.shape), fill="unit")
        if output.is_complex():
            yield output.detach() * device.tensor(arg, "fp32", place)
        else:
            yield device.tensor(arg, dtype, place).to(output.dtype)


def _dtypes(under: Pass, hand: Pass, name: str, because: str) -> list[str]:
    """Check that the same leaves have gradients as in the reference, each of its leaf's dtype and shape."""
    got, wanted = under.gradients(), hand.gradients()
    differences = []
    if under.outputs != hand.outputs:
        found, right = (", ".join(dtypes) or "none" for dtypes in (under.outputs, hand.outputs))
        differences.append(f"the outputs of {name} that require grad are {found}; expected {right} {because}")
    for place, leaf in under.leaves.items():
        what = f"the gradient of argument {place} of {name}"
        dtype, shape = name_of(leaf.dtype), tuple(leaf.shape)
        if (place in got) != (place in wanted):
            found, right = ("there" if place in passes else "missing" for passes in (got, wanted))
            differences.append(f"{what} is {found}; expected it to be {right} {because}")
        elif place in got and (name_of(got[place].dtype), tuple(got[place].shape)) != (dtype, shape):
            seen = got[place]
            differences.append(
                f"{what} is {name_of(seen.dtype)} of shape {tuple(seen.shape)}; expected {dtype} {shape}"
            )
    return differences


def _values(todo: CallPlan, device: Device, places: Collection[int], under: Pass, hand: Pass, name: str) -> list[str]:
    """Check that gradients have the bits of the reference, where these do not change, and are near the float64 ones.

    Raises Broken where those of the reference are not near them either.
    """
    if todo.op.values == "none":
        return []
    got, wanted = _hosted(under, device), _hosted(hand, device)
    exact = (_reference(todo, device, hand.outputs) if todo.op.values == "exact" else None) or {}
    with device.native_ops():
        differences = _bits(got, wanted, {place: gradient for place, (gradient, _) in exact.items()}, name)
    if differences:
        again = _hosted(run(todo, device, places), device)
        with device.native_ops():
            if all(comparisons.identical(gradient, again[place]) for place, gradient in wanted.items()):
                return differences
    with device.native_ops():
        wrong = _accuracy(todo, got, exact, hand.outputs, name)
        if wrong and _accuracy(todo, wanted, exact, hand.outputs, name):
            raise Broken([f"{text}; it is wrong without autocast, too" for text in wrong])
    return wrong


def _bits(under: Gradients, hand: Gradients, exact: Gradients, name: str) -> list[str]:
    """Check that each gradient has the bits of the reference, or is nearer to the float64 one.

    Nearer, because a backend may sum the gradients of a cast's uses in float32, where autograd sums them in the dtype
    of the cast: cached-weight-gradient-in-low-precision in docs/findings.
    """
    differences = []
    for place, gradient in under.items():
        found = comparisons.same_bits(gradient, hand[place], f"the gradient of argument {place} of {name}")
        if found and not (place in exact and _distance(gradient, exact[place]) < _distance(hand[place], exact[place])):
            differences += found
    return differences


def _distance(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """Return how far a gradient is from the float64 one; infinity for another shape or values that are not finite."""
    if gradient.shape != exact.shape or not gradient.isfinite().all():
        return float("inf")
    return (gradient.double() - exact.double()).square().sum().item()


def _reference(todo: CallPlan, device: Device, dtypes: Sequence[str]) -> Exact | None:
    """Return the gradients in float64, computed on the CPU, or on the device where the CPU lacks the op, or None.

    `dtypes`: of the outputs that are differentiated where the case itself runs.
    """
    for source in (Cpu(), device):
        with device.native_ops() if source is not device else nullcontext():
            places = differentiable(todo, source)
            exact = run(todo, source, places, weights=dtypes)
            if exact.error is not None:
                continue
            gradients = _hosted(exact, source)
            moved = {place: torch.zeros(x.shape, dtype=torch.float64) for place, x in gradients.items()}
            for draw in range(DRAWS if source.type == "cpu" else 0):
                for place, x in _hosted(run(todo, source, places, weights=dtypes, draw=draw), source).items():
                    moved[place] = torch.maximum(moved[place], distance(x, gradients[place]))
        return {place: (gradient, moved[place]) for place, gradient in gradients.items()}
    return None


def _accuracy(todo: CallPlan, got: Gradients, exact: Exact, dtypes: Sequence[str], name: str) -> list[str]:
    """Check that each gradient is near the float64 one."""
    floating = [dtype for dtype in (*todo.expected.leaves, *dtypes) if dtype in ("fp16", "bf16", "fp32")]
    kernel = max(floating, key=lambda dtype: torch.finfo(DTYPES[dtype]).eps, default="fp64")
    differences = []
    for place, (gradient, moved) in exact.items():
        what = f"the gradient of argument {place} of {name}"
        if place in got:
            differences += far(got[place], gradient, moved, kernel, what, PASSES)
        elif gradient.any():
            differences.append(f"{what} is missing, with and without autocast; in float64 it is there")
    return differences


def _hosted(done: Pass, device: Device) -> Gradients:
    """Return the gradients of a pass on the CPU."""
    return {place: device.host(gradient) for place, gradient in done.gradients().items()}


def _kernels(under: Pass, hand: Pass, name: str, because: str) -> list[str]:
    """Check that the kernels of the backward pass received the dtypes that they receive in the reference."""
    if under.kernels == hand.kernels:
        return []
    more, fewer = (
        ", ".join(kernel for kernel in dict.fromkeys(a) if a.count(kernel) > b.count(kernel)) or "nothing"
        for a, b in ((under.kernels, hand.kernels), (hand.kernels, under.kernels))
    )
    return [f"the backward pass of {name} ran {more} in the place of {fewer} {because}"]
