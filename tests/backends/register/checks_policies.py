"""The policy of an overload: the base table and overrides."""

from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, NAME, WIDE, rand

from ampcheck.register import register_autocast
from ampcheck.spec.casting import APPENDED

aten = torch.ops.aten


def check_cpu_base() -> None:
    low = rand(2, 2, dtype=HALF)
    with register_autocast(NAME, base="cpu"), torch.autocast(NAME):
        assert torch.mm(rand(2, 2), rand(2, 2)).dtype is HALF
        assert torch.trace(low).dtype is WIDE  # the CPU's alone
        assert torch.exp(low).dtype is HALF  # CUDA's alone
        assert torch.softmax(low, 0).dtype is HALF
        least = torch.full((), 0.5, dtype=HALF, device=NAME)
        assert aten.linalg_matrix_rank.atol_rtol_tensor(low.new_tensor([[4, 0], [0, 4]]), atol=least).item() == 2


def check_overrides() -> None:
    x, low = rand(3, 3), rand(3, 3, dtype=HALF)
    changes = dict.fromkeys(("aten::softmax.int", "binary_cross_entropy"), "upcast")
    changes |= {"exp": "downcast", "linear": "fallthrough", "sin": "banned"}
    changes |= {"aten::add.Tensor": "promote", "mean.dim": "optdtype"}
    with register_autocast(NAME, overrides=changes) as handle, torch.autocast(NAME):
        assert handle.policies["aten::softmax.int"] == "upcast"
        assert "aten::linear" not in handle.policies
        assert torch.softmax(low, 0, dtype=HALF).dtype is HALF  # cast, and the caller's dtype obeyed
        assert aten.softmax.int(low, 0).dtype is WIDE
        assert torch.exp(x).dtype is HALF
        assert torch.mean(low, 0).dtype is WIDE
        assert (low + x).dtype is WIDE
        assert torch.nn.functional.binary_cross_entropy(low.sigmoid(), low.sigmoid()).dtype is WIDE
        with pytest.raises(RuntimeError, match="aten::sin is unsafe to autocast on npy"):
            torch.sin(x)
        with torch.autocast(NAME, enabled=False):
            torch.sin(x)
    with register_autocast(NAME), torch.autocast(NAME):
        assert torch.exp(x).dtype is WIDE
        torch.sin(x)


def check_override_of_another_namespace() -> None:
    with torch.library._scoped_library("ampcheck_register", "DEF") as library:
        library.define("scale(Tensor x, Tensor?[] more, *, Tensor? by=None, float factor=2.0) -> Tensor")
        seen: list[Any] = []

        def scale(x: Any, more: Any, *, by: Any = None, factor: float = 2.0) -> Any:
            seen.append((x.dtype, [m if m is None else m.dtype for m in more], by if by is None else by.dtype, factor))
            return x * factor

        library.impl("scale", scale, "PrivateUse1")
        call = torch.ops.ampcheck_register.scale.default
        x, low = rand(2), rand(2, dtype=BRAIN)
        with register_autocast(NAME, overrides={"ampcheck_register::scale": "promote"}), torch.autocast(NAME):
            call(low, [None, low])
            call(low, [None, x], by=low, factor=3.0)
            call(low, [], by=x)
        assert seen == [(BRAIN, [None, BRAIN], None, 2.0), (WIDE, [None, WIDE], WIDE, 3.0), (WIDE, [], WIDE, 2.0)], seen


def check_append_hands_on_what_was_left_out() -> None:
    low = rand(3, 4, dtype=HALF)
    assert {f"aten::{name}" for name in APPENDED} >= {"aten::norm.Scalar"}
    with register_autocast(NAME), torch.autocast(NAME):
        for p in ((), (2,), (1.5,)):
            got = aten.norm.Scalar(low, *p)
            assert got.dtype is WIDE
            assert torch.allclose(got.cpu(), low.cpu().float().norm(*p or (2,)))
        got = aten.norm.ScalarOpt_dim(low, None, [1])
        assert torch.allclose(got.cpu(), low.cpu().float().norm(2, 1))
        assert aten.norm.ScalarOpt_dim(low, 1, [1], keepdim=True).shape == (3, 1)
        assert aten.norm.Scalar(rand(3).double()).dtype is torch.float64
