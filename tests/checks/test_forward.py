"""What each status of an op case claims (docs/using.md), by kernels made wrong on the device under test alone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ampcheck.checks import forward
from ampcheck.checks.cases import CallPlan, plan
from ampcheck.checks.forward import ForwardCheck, judge_raise
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import Broken, CheckFailure, Unsupported
from ampcheck.spec.case import Case

Kernel = Callable[[torch.Tensor, torch.Tensor], Any]
mm = torch.ops.aten.mm.default
CASE = Case("eager", "downcast", "mm", "", "bf16", "bf16", "cpu", "cpu")


def grads() -> bool:
    return torch.is_grad_enabled() or torch.is_inference_mode_enabled()


def in_region() -> bool:
    return torch.is_autocast_enabled("cpu")


def raising(error: Exception) -> Kernel:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise error

    return kernel


def buffered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the same memory each time."""
    out = buffers.setdefault((x.dtype, x.shape, y.shape), torch.empty(x.shape[0], y.shape[1], dtype=x.dtype))
    return out.copy_(mm(x, y)) if x.dtype == y.dtype else mm(x, y)


def writing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return wrong values twice, and change an argument."""
    out = mm(x, y) * 2
    x.zero_()
    return out, out


buffers: dict[object, torch.Tensor] = {}
calls = count()
KERNELS: dict[str, tuple[Kernel, str, str]] = {  # further ones are injected by tests/faults/backends.py
    "has no kernel": (
        raising(NotImplementedError("Could not run 'aten::_mps_convolution' with arguments from the 'CPU' backend.")),
        "unsupported",
        "Could not run",
    ),
    "refuses as declared": (
        raising(RuntimeError("\"addmm_impl_cpu_\" not implemented for 'BFloat16'")),
        "unsupported",
        "not implemented for",
    ),
    "uncast without gradients": (
        lambda x, y: mm(x, y).float() if in_region() and not grads() else mm(x, y),
        "fail",
        "on positive inputs, in torch.no_grad(): output 0 of aten::mm is fp32; expected bf16",
    ),
    "uncast in inference mode": (
        lambda x, y: mm(x, y).float() if in_region() and torch.is_inference_mode_enabled() else mm(x, y),
        "fail",
        "on large inputs, in torch.inference_mode(): output 0 of aten::mm is fp32; expected bf16",
    ),
    "of other strides outside": (lambda x, y: mm(x, y) if in_region() else mm(x, y).t().contiguous().t(), "pass", ""),
    "two outputs": (lambda x, y: (mm(x, y), mm(x, y)), "broken", "returned 2 tensors; expected 1"),
    "a write that shows later": (buffered, "broken", "changed when the op was called again"),
    "sums in another order each time": (lambda x, y: mm(x, y) * (1 + 2**-8 * (next(calls) % 2)), "pass", ""),
    "other values each time": (lambda x, y: mm(x, y) * (1 + next(calls)), "broken", "does not repeat"),
    "a write to an argument": (writing, "broken", "argument 0"),
    "another dtype": (lambda x, y: mm(x, y).double() * 2, "broken", "is fp64; expected bf16"),
}
ALONE = ("a write to an argument", "another dtype")
"""Mistakes that are said alone, though more is wrong."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what puts a kernel in the place of mm, where the device under test runs it; what is observed is right."""

    def replace_by(kernel: Kernel, case: Case = CASE) -> None:
        watched = forward.watch(case, Cpu(), plan(case, Cpu()))
        reference(case)
        monkeypatch.setattr(forward, "watch", lambda *_, **__: watched)
        monkeypatch.setattr(CallPlan, "function", property(lambda todo: kernel))

    return replace_by


def reference(case: Case) -> None:
    """Compute what the kernel is compared with, before it is replaced on the CPU, too."""
    todo = plan(case, Cpu())
    for form in ("", *forward.FORMS):
        forward.reference(forward.in_layout(todo, form) or todo if form else todo)


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel(name: str, replaced: Callable[..., None]) -> None:
    kernel, status, says = KERNELS[name]
    assert outcome(CASE) == ("pass", "")
    replaced(kernel)
    got, said = outcome(CASE)
    assert (got, says in said) == (status, True), said
    assert name not in ALONE or said.count("\n") == 0, said


def outcome(case: Case, device: Cpu | None = None) -> tuple[str, str]:
    try:
        differences = ForwardCheck().run(case, device or Cpu())
    except Broken as error:
        return "broken", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except CheckFailure as error:
        return "fail", str(error)
    return ("fail" if differences else "pass"), "\n".join(differences)


class Elsewhere(Cpu):
    """A device that is not the CPU and has no op database."""

    type = "elsewhere"
    database = False
    refusals = ("not on elsewhere",)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


class Slow(Cpu):
    """A CPU without an op database."""

    database = False


@pytest.mark.parametrize(
    ("device", "changes", "status"),
    [
        (Cpu(), {}, "broken"),
        (Cpu(), {"inputs": "fp32"}, "broken"),
        (Cpu(), {"inputs": "fp64", "rule": "fallthrough"}, "pass"),
        (Cpu(), {"sample": "torch"}, "pass"),
        (Slow(), {}, "broken"),
        (Slow(), {"inputs": "fp32"}, "pass"),
    ],
)
def test_other_values(device: Cpu, changes: dict[str, str], status: str, replaced: Callable[..., None]) -> None:
    case = replace(CASE, **changes)  # type: ignore[arg-type]  # all fields are strings
    replaced(lambda x, y: mm(x, y).clamp(-10, 10), case)
    assert outcome(case, device)[0] == status


MIXED = replace(CASE, rule="fallthrough", inputs="bf16_fp32")


@pytest.mark.parametrize(
    ("case", "device", "raised", "on_cpu", "status"),
    [
        (CASE, Cpu(), "boom", None, "broken"),
        (CASE, Cpu(), "boom", "boom", "broken"),  # the device is the CPU
        (CASE, Elsewhere(), "boom", None, "broken"),
        (CASE, Elsewhere(), "boom", "boom", "unsupported"),
        (CASE, Elsewhere(), "boom", "another", "broken"),
        (CASE, Elsewhere(), "boom", ValueError("boom"), "broken"),
        (CASE, Elsewhere(), "not on elsewhere", None, "unsupported"),
        (CASE, Elsewhere(), "expected scalar type Half", "another", "broken"),
        (MIXED, Elsewhere(), "expected scalar type Half", None, "pass"),
        (MIXED, Elsewhere(), "boom", "another", "pass"),
        (MIXED, Elsewhere(), "boom", None, "broken"),
        (replace(MIXED, inputs="int64"), Elsewhere(), "boom", "another", "pass"),
    ],
)
def test_what_is_raised_without_autocast_too(
    case: Case, device: Cpu, raised: str, on_cpu: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = RuntimeError(on_cpu) if isinstance(on_cpu, str) else on_cpu
    monkeypatch.setattr(forward, "raised_by_cpu", lambda todo: cpu)
    got = "pass"
    try:
        judge_raise(RuntimeError(raised), device, plan(case, Cpu()))
    except (Broken, Unsupported) as error:
        got = type(error).__name__.lower()
    assert got == status


def test_inputs_that_the_device_refuses_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "tensor", Mock(side_effect=RuntimeError("copy not implemented for 'BFloat16'")))
    with pytest.raises(Unsupported, match="not implemented for"):
        ForwardCheck().run(CASE, Cpu())
