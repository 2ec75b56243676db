"""What each status of an op case claims (docs/statuses.md), by kernels made wrong on the device under test alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

from ampcheck import verdict
from ampcheck.cases import Case
from ampcheck.checks import Broken, CheckFailure, Unsupported
from ampcheck.devices.cpu import Cpu
from ampcheck.verdict import check_op

Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
mm = torch.ops.aten.mm.default


def in_region() -> bool:
    return torch.is_autocast_enabled("cpu")


def low(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 or in_region()


def raising(error: Exception) -> Kernel:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise error

    return kernel


def zeroing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = mm(x, y)
    x.zero_()
    return out


calls = count()
KERNELS: dict[str, tuple[Kernel, str, str]] = {
    "raises always": (raising(RuntimeError("kernel failed")), "broken", "RuntimeError: kernel failed; it raises that"),
    "raises another class": (raising(AttributeError("no x")), "broken", "AttributeError: no x; it raises that without"),
    "raises in low precision": (
        lambda x, y: raising(IndexError("oops"))(x, y) if low(x) else mm(x, y),
        "broken",
        "IndexError: oops; it raises that without autocast, too",
    ),
    "raises in a region": (
        lambda x, y: raising(RuntimeError("oops"))(x, y) if in_region() else mm(x, y),
        "fail",
        "raised RuntimeError: oops; the same call on inputs cast by hand succeeds",
    ),
    "claims that there is no kernel": (
        raising(NotImplementedError("Could not run 'aten::mm' with arguments from the 'CPU' backend.")),
        "broken",
        "Could not run 'aten::mm'",
    ),
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
    "wrong everywhere": (lambda x, y: mm(x, y) * 1.02, "broken", "it is wrong without autocast, too"),
    "wrong sign": (lambda x, y: -mm(x, y), "broken", "the float64 result on the CPU; it is wrong without"),
    "wrong in a region": (lambda x, y: mm(x, y) * (1.02 if in_region() else 1), "fail", "expected the same bits"),
    "wrong for large values": (
        lambda x, y: mm(x, y).clamp(-10, 10),
        "broken",
        "on large inputs: output 0 of aten::mm is",
    ),
    "wrong for what is not contiguous": (
        lambda x, y: mm(x if x.is_contiguous() else x.reshape(-1).view(x.shape) * 2, y),
        "broken",
        "on strided inputs: output 0",
    ),
    "writes to its input": (zeroing, "broken", "argument 0 of aten::mm holds other values after the call; it is only"),
    "of another shape": (lambda x, y: mm(x, y)[:1], "broken", "has shape (1, 5); expected (3, 5)"),
    "of another dtype": (lambda x, y: mm(x, y).double(), "broken", "is fp64; expected"),
    "of other strides": (lambda x, y: mm(x, y).t().contiguous().t(), "broken", "has strides (1, 3)"),
    "other values each time": (lambda x, y: mm(x, y) * (1 + next(calls)), "broken", "does not repeat"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, status, says = KERNELS[name]
    assert outcome() == ("pass", "")
    monkeypatch.setattr(verdict, "function", lambda op, sample: kernel)
    monkeypatch.setattr(verdict, "by_hand", by_hand(kernel))
    seen = watched()
    monkeypatch.setattr(verdict, "watch", lambda case, device, todo: seen)
    got, said = outcome()
    assert (got, says in said) == (status, True), said


def by_hand(kernel: Kernel) -> Any:
    real = verdict.by_hand

    def cast(todo: Any, args: Any, kwargs: Any) -> Any:
        return kernel, *real(todo, args, kwargs)[1:]

    return cast


CASE = Case("eager", "downcast", "mm", "", "bf16", "bf16", "cpu", "cpu")


def watched() -> Any:
    """What the recorder sees of the right kernel: autocast does its part for each of the wrong ones."""
    todo = verdict.plan(CASE, Cpu())
    args, _ = verdict.build(todo.sample, todo.dtypes, Cpu())
    with Cpu().autocast("bf16"):
        return Cpu().observe(lambda: mm(*args), {"mm"}, args)


def outcome() -> tuple[str, str]:
    try:
        differences = check_op(CASE, Cpu())
    except Broken as error:
        return "broken", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except CheckFailure as error:
        return "fail", str(error)
    return ("fail" if differences else "pass"), "\n".join(differences)


class Unreachable(Cpu):
    """A device that bfloat16 cannot be copied to."""

    def __init__(self, text: str) -> None:
        self.text = text

    def tensor(self, arg: Any, dtype: str, position: int) -> torch.Tensor:
        if dtype == "bf16":
            raise TypeError(self.text)
        return super().tensor(arg, dtype, position)


def test_inputs_that_cannot_be_made_are_broken() -> None:
    with pytest.raises(Broken, match="the inputs of aten::mm cannot be made on cpu: TypeError: no bfloat16"):
        check_op(CASE, Unreachable("no bfloat16"))
    with pytest.raises(Unsupported, match="not implemented for"):
        check_op(CASE, Unreachable("copy not implemented for 'BFloat16'"))
