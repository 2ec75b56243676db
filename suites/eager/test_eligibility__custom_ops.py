"""Rule eligibility, of ops of one's own: `ampcheck.spec.rules` says what it promises; the rest is torch.library's."""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("eligibility")


@scenario(since="2.13")  # before, it was promised for the CPU and CUDA alone
def test_custom_op(amp: Amp) -> None:
    """An op of one's own casts eligible tensors where register_autocast asks (torch.library.register_autocast)."""
    library = torch.library
    whole, double = (torch.zeros(2, 2, dtype=dtype, device=amp.type) for dtype in (torch.int64, torch.float64))
    with library._scoped_library("ampcheck_eligibility", "FRAGMENT") as lib:
        library.define("ampcheck_eligibility::twice", "(Tensor x) -> Tensor", lib=lib)
        library.impl("ampcheck_eligibility::twice", "CompositeExplicitAutograd", lambda x: x + x, lib=lib)
        try:
            library.register_autocast("ampcheck_eligibility::twice", amp.type, amp.dtype, lib=lib)
        except Exception as error:  # whatever it raises is the finding
            amp.expect(f"what registering for {amp.type} raises", f"{type(error).__name__}: {error}", None)
            return
        twice = torch.ops.ampcheck_eligibility.twice
        x = amp.rand(2, 2)
        amp.expect("dtype outside", twice(x).dtype, torch.float32)
        with amp.region():
            amp.expect("dtype inside", twice(x).dtype, amp.dtype)
            amp.expect("dtype of int64 inside", twice(whole).dtype, torch.int64)
            amp.expect("dtype of float64 inside", twice(double).dtype, torch.float64)
        with amp.region(enabled=False):
            amp.expect("dtype in a disabled region", twice(x).dtype, torch.float32)


def _double(x: torch.Tensor) -> None:
    x.mul_(2)


@scenario(values=True)
def test_custom_op_that_mutates(amp: Amp) -> None:
    """An op of one's own changes the tensor that it says it changes (torch.library.custom_op, mutates_args).

    Where register_autocast refuses such an op there is nothing to see.
    """
    library, name = torch.library, "ampcheck_eligibility::double_"
    with library._scoped_library("ampcheck_eligibility", "FRAGMENT") as lib:
        library.define(name, "(Tensor(a!) x) -> ()", lib=lib)
        library.impl(name, "CompositeExplicitAutograd", _double, lib=lib)
        try:
            library.register_autocast(name, amp.type, amp.dtype, lib=lib)
        except RuntimeError as error:
            amp.expect("does the refusal say why", bool(str(error)), True)
            return
        outside, inside = (torch.ones(2, device=amp.type) for _ in range(2))
        torch.ops.ampcheck_eligibility.double_(outside)
        with amp.region():
            torch.ops.ampcheck_eligibility.double_(inside)
        amp.expect("a tensor that was doubled outside", amp.values(outside), [2.0, 2.0])
        amp.expect("a tensor that was doubled inside", amp.values(inside), [2.0, 2.0])


@scenario(values=True)
def test_custom_op_with_keyword(amp: Amp) -> None:
    """An op with a keyword-only argument takes it in a region too (torch.library.register_autocast).

    Where register_autocast refuses such an op there is nothing to see.
    """
    library, name = torch.library, "ampcheck_eligibility::scaled"
    with library._scoped_library("ampcheck_eligibility", "FRAGMENT") as lib:
        library.define(name, "(Tensor x, *, float factor) -> Tensor", lib=lib)
        library.impl(name, "CompositeExplicitAutograd", lambda x, *, factor: x * factor, lib=lib)
        try:
            library.register_autocast(name, amp.type, amp.dtype, lib=lib)
        except RuntimeError as error:
            amp.expect("does the refusal say why", bool(str(error)), True)
            return
        x = amp.rand(2)
        amp.expect("dtype outside", torch.ops.ampcheck_eligibility.scaled(x, factor=2.0).dtype, torch.float32)
        with amp.region():
            try:
                found = str(torch.ops.ampcheck_eligibility.scaled(x, factor=2.0).dtype)
            except AssertionError as error:
                found = f"AssertionError: {error}"
        amp.expect("dtype inside", found, str(amp.dtype))
