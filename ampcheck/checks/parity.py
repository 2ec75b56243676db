"""Parity: a compiled program under autocast does what the same program does in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.checks import comparisons
from ampcheck.checks.call import CallPlan, plan
from ampcheck.checks.forward import asks_for_one_dtype, judge_raise, run_reference
from ampcheck.compilers import source
from ampcheck.compilers.kinds import COMPILERS, Compiler, Everything, quiet
from ampcheck.devices.base import Device
from ampcheck.errors import MOST, Difference, Unsupported, one_line
from ampcheck.observe.isolation import depth
from ampcheck.observe.recorder import KernelCall, Observation, exists, tensors
from ampcheck.samples.tensors import build
from ampcheck.spec.case import AROUND, Case
from ampcheck.spec.torch_dtypes import DTYPES, name_of

State = tuple[bool, torch.dtype, bool, int]


@dataclass(slots=True)
class ParityOutcome:
    """What one call did: its tensors, the gradients of its inputs, what it raised, and autocast's state afterwards."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    grads: list[torch.Tensor | None] = field(default_factory=list)
    error: Exception | None = None
    state: State | None = None


@contextmanager
def simulate_cuda(device: Device) -> Iterator[None]:
    """Enter a virtual device for a program that enters its regions: `torch.autocast("cuda")` looks for the hardware."""
    absent = "torch.cuda.amp.common.amp_definitely_not_available"
    if device.has_values or device.type != "cuda":
        yield
        return
    with patch(absent, lambda: False), patch("torch.cuda.is_bf16_supported", lambda *_, **__: True):
        yield


def check(case: Case, device: Device) -> list[str]:
    """Run a case through its compiler and return every difference from eager mode."""
    compiler = COMPILERS[case.compiler]
    with device.activate(), simulate_cuda(device), quiet():
        if not exists(case.op):
            raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
        return Parity(case, device, compiler).differences()


class Parity:
    """A case as a program, compiled and in eager mode. A subclass runs another program, on other inputs."""

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
        return self.device.autocast(self.case.amp) if self.case.sample == AROUND else nullcontext()

    def inputs(self) -> list[torch.Tensor]:
        return list(tensors(build(self.todo.sample, self.todo.dtypes, self.device)))

    def leaves(self, *, grads: bool) -> list[torch.Tensor]:
        return [x.clone().requires_grad_(grads and x.is_floating_point()) for x in self.inputs()]

    def mode(self) -> AbstractContextManager[object]:
        return nullcontext()

    def differences(self) -> list[str]:
        grads = self.grads
        want = self.run(self.eager, grads=grads)
        if want.error is not None and grads:
            grads = False
            want = self.run(self.eager, grads=False)
        self.require_kernel(want)
        compiled = None
        try:
            with self.region():
                compiled = self.compiler.make(self.function, self.inputs())
        except Unsupported:  # this torch has no such compiler
            raise
        except Exception as error:  # a compiler may raise anything, and that is what is to be seen
            return self.refused(error, want)
        for call in ("first", "second"):
            got = self.run(compiled.call, grads=grads)
            if found := self.compared(got, want):
                return [*found, *([] if call == "first" else ["the first call was right"])]
        if compiled.observe is None or want.error is not None:
            return []
        with self.region():
            seen = compiled.observe(self.device, self.inputs())
        return self.kernels(seen)

    def require_kernel(self, want: ParityOutcome) -> None:
        """Raise Unsupported or Broken where eager mode raises what the reference raises.

        Then the device has no kernel for what autocast gives the op, e.g. oneDNN's LSTM on a processor without bf16
        instructions, and there is nothing to hold a program against.
        """
        if want.error is None or not self.device.has_values or not asks_for_one_dtype(self.todo):
            return
        reference = run_reference(self.device, self.todo)
        if type(reference.error) is type(want.error) and str(reference.error) == str(want.error):
            judge_raise(want.error, self.device, self.todo, f"aten::{self.case.op}")

    def run(self, call: Callable[..., Any], *, grads: bool) -> ParityOutcome:
        out = ParityOutcome()
        try:
            with self.mode():
                leaves = self.leaves(grads=grads)
                self.device.seed()
                with self.region():
                    out.outputs = list(tensors(call(*leaves)))
            if grads:
                out.grads = _gradients(out.outputs, leaves)
        except Exception as error:  # the program under test may raise anything
            out.error = error
        own = self.device.type
        out.state = (
            torch.is_autocast_enabled(own),
            torch.get_autocast_dtype(own),
            torch.is_autocast_cache_enabled(),
            depth(),
        )
        return out

    def refused(self, error: Exception, want: ParityOutcome) -> list[str]:
        """Check what compiling raised: it must say what eager mode says; compilers wrap that in their own text."""
        # Since torch 2.14 Dynamo quotes the error in another one, with its quotation marks escaped.
        if want.error is not None and said(want.error) in str(error).replace("\\'", "'"):
            return []
        eager = f"eager mode raises {one_line(want.error)}" if want.error else "eager mode runs it"
        return [Difference(f"{self.name} was not compiled: {_said(error)}; {eager}", error)]

    def compared(self, got: ParityOutcome, want: ParityOutcome) -> list[str]:
        if got.error is not None:
            return self.refused(got.error, want)
        if want.error is not None:
            return [f"{self.name} ran; eager mode raises {one_line(want.error)}"]
        out = [] if got.state == want.state else [f"{self.name} left the state {got.state}; eager mode {want.state}"]
        out += comparisons.output_dtypes(got.outputs, [name_of(x.dtype) for x in want.outputs], self.name)
        if len(got.grads) != len(want.grads):
            out.append(f"{self.name} gave {len(got.grads)} gradients; eager mode {len(want.grads)}")
        for place, (a, b) in enumerate(zip(got.grads, want.grads, strict=False)):
            if (a is None) != (b is None) or (a is not None and b is not None and a.dtype != b.dtype):
                out.append(f"gradient {place} of {self.name} is {_dtype(a)}; eager mode gives {_dtype(b)}")
        if out or not self.device.has_values or self.todo.op.values == "none":
            return out
        out = self.values("output", got.outputs, want.outputs)
        if self.todo.op.values == "exact":
            pairs = [(a, b) for a, b in zip(got.grads, want.grads, strict=True) if a is not None and b is not None]
            out += self.values("gradient", [a for a, _ in pairs], [b for _, b in pairs])
        return out

    def values(self, what: str, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> list[str]:
        out = []
        for place, (a, b) in enumerate(zip(got, want, strict=True)):
            x, y = self.device.host(a.detach()), self.device.host(b.detach())
            with self.device.native_ops():
                if x.shape != y.shape:
                    out.append(f"{what} {place} of {self.name} has shape {[*x.shape]}; eager mode {[*y.shape]}")
                elif not comparisons.identical(x, y) and (error := _distance(x, y)) > self.bound(y):
                    out.append(
                        f"{what} {place} of {self.name} is {error:.3g} away from eager mode's; "
                        f"expected at most {self.bound(y):.3g}"
                    )
        return out

    def bound(self, want: torch.Tensor) -> float:
        if not self.compiler.rounds or not want.is_floating_point():
            return 0.0
        finite = want[want.isfinite()].double()
        scale = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
        low = [x for x in (want.dtype, *(t.dtype for t in self.lowest())) if x.is_floating_point]
        eps = max(torch.finfo(x).eps for x in low)
        wide = eps == torch.finfo(torch.float32).eps
        return max(self.compiler.rounds, self.compiler.wide if wide else 0) * eps * scale

    def lowest(self) -> list[torch.Tensor]:
        return [torch.empty(0, dtype=DTYPES[leaf]) for leaf in self.todo.expected.leaves if leaf in DTYPES]

    def kernels(self, seen: Observation) -> list[str]:
        """Check that the op's kernel received what it receives in eager mode, and ran with the same `dtype=`."""
        inputs = self.inputs()
        with self.region():
            eager = self.device.observe(lambda: self.eager(*inputs), Everything(), inputs)
        overload = self.todo.expected.overload
        # A graph may hold the parts of a composite op; that they got the same shows in the values.
        for call, wanted in zip(_calls(seen, overload), _calls(eager, overload), strict=False):
            got, want = [leaf.got for leaf in call.leaves], [leaf.got for leaf in wanted.leaves]
            out = [] if got == want else [f"the kernel of {self.name} received {got}; in eager mode {want}"]
            if call.dtype_kwarg != wanted.dtype_kwarg:
                out.append(f"{self.name} ran with dtype={call.dtype_kwarg}; in eager mode dtype={wanted.dtype_kwarg}")
            if out:
                return out
        return []


def _calls(seen: Observation, overload: str) -> list[KernelCall]:
    return [kernel for kernel in seen.kernels if kernel.overload == overload]


def _gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradient of each floating input, every output's elements weighted alike. None where there is none."""
    wanted = [x for x in leaves if x.requires_grad]
    roots = [x for x in outputs if x.requires_grad]
    if not wanted or not roots:
        return []
    return list(torch.autograd.grad(roots, wanted, [torch.ones_like(x) for x in roots], allow_unused=True))


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    wide = torch.complex128 if got.is_complex() else torch.float64
    a, b = (x.to_dense() if x.layout != torch.strided else x for x in (got, want))
    far = (a.to(wide) - b.to(wide)).abs()
    simulate_cuda = a.isfinite() & b.isfinite()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    return float(far[simulate_cuda].max()) if bool(simulate_cuda.any()) else 0.0


def _dtype(tensor: torch.Tensor | None) -> str:
    return name_of(tensor.dtype) if tensor is not None else "absent"


def said(error: BaseException) -> str:
    """Return the first line of an exception's text."""
    return str(error).strip().partition("\n")[0]


def _said(error: Exception) -> str:
    """Return an error with its last line, too: TorchScript and Dynamo put the cause there."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip(" ^~|")]
    kind = type(error).__name__
    return f"{kind}: {' … '.join(dict.fromkeys(line[: MOST // 3] for line in (*lines[:2], *lines[-1:])))}"
