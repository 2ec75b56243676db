"""What runs whole where PyTorch's composite kernels take it apart: attention of lower precision, LSTM and GRU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.jax_device import jit
from tests.jax.agreement import close, moved, same
from tests.jax.test_accumulate import kinds


class Seen(TorchDispatchMode):
    """The names of the overloads that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


FUSED = "_scaled_dot_product_flash_attention_for_cpu"


def leaves(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def heads(dtype: torch.dtype) -> list[torch.Tensor]:
    return leaves(dtype, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))


def ways(call: Callable[[], Any]) -> bool:
    """Whether the call takes the fused path."""
    with Seen() as seen:
        call()
    return FUSED in seen.names


def test_attention_of_lower_precision() -> None:
    mask = torch.randn(5, 7) > 0
    mask[2] = False  # a row that sees nothing
    for dtype, loose in ((torch.bfloat16, 8e3), (torch.float16, 1e3)):
        low = heads(dtype)
        for extra in (
            {},
            {"is_causal": True},
            {"attn_mask": mask},
            {"attn_mask": torch.randn(3, 5, 7)},
            {"scale": 0.3},
        ):
            given = {
                name: v.to(dtype) if isinstance(v, torch.Tensor) and v.dtype is not torch.bool else v
                for name, v in extra.items()
            }
            here = [t.detach().float().requires_grad_() for t in low]
            wide = {
                name: v.float() if isinstance(v, torch.Tensor) and v.dtype is not torch.bool else v
                for name, v in given.items()
            }
            expected = F.scaled_dot_product_attention(*here, **wide)
            there, rest = moved((low, given))
            found = F.scaled_dot_product_attention(*there, **rest)
            assert found.dtype is dtype
            close(found.float(), expected, loose)
            seed = torch.randn_like(expected).to(dtype)
            wanted = torch.autograd.grad(expected, here, seed.float())
            got = torch.autograd.grad(found, there, seed.to("jax"))
            assert {g.dtype for g in got} == {dtype}
            close([g.float() for g in got], wanted, loose)
            fused = ways(lambda there=there, rest=rest: F.scaled_dot_product_attention(*there, **rest))
            assert fused == (dtype is torch.bfloat16)


def test_which_attention_is_fused() -> None:
    q, k, v = moved(heads(torch.bfloat16))
    attend = F.scaled_dot_product_attention
    assert ways(lambda: attend(q, k, v))
    with torch.inference_mode():  # a mode sees the overload itself there
        text = jit(lambda: attend(q, k, v)).lower().as_text()
    assert kinds(text) == {"bf16 -> f32": 1, "bf16 -> f32 -> bf16": 1}
    assert not ways(lambda: attend(q.float(), k.float(), v.float()))
    assert not ways(lambda: attend(q, k, v, dropout_p=0.1))
    assert not ways(lambda: attend(q[0], k[0], v[0]))
    assert not ways(lambda: attend(q[:, :, :0], k, v))
    assert not ways(lambda: attend(q.repeat(1, 2, 1, 1), k, v, enable_gqa=True))
    mask = torch.zeros(5, 7, device="jax", dtype=torch.bfloat16, requires_grad=True)
    assert not ways(lambda: attend(q, k, v, mask))
    with torch.no_grad():
        assert ways(lambda: attend(q, k, v, mask))
    with sdpa_kernel(SDPBackend.MATH):
        assert not ways(lambda: attend(q, k, v))
    x = torch.randn(2, 3, 5, 8, device="jax")
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert ways(lambda: attend(x, x, x))
    with pytest.raises(RuntimeError, match="attn_mask should not be set"):  # as on CUDA
        attend(q, k, v, torch.ones(5, 7, device="jax", dtype=torch.bool), is_causal=True)


def test_attention_in_float32_is_twice_differentiable() -> None:
    q, k, v = heads(torch.float32)

    def penalty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.device.type == "jax":
            out = F.scaled_dot_product_attention(q, k, v)
        else:  # the CPU's own is not
            out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return grad.square().sum()

    same(penalty, q, k, v, loose=64)


def both(kind: type[nn.Module], steps: torch.Tensor, *sizes: int, **options: Any) -> None:
    """A module's outputs, last states and gradients are the CPU's."""
    torch.manual_seed(1)
    here = kind(*sizes, **options)
    there = copy.deepcopy(here).to("jax")
    directions = (1 + options.get("bidirectional", False)) * options.get("num_layers", 1)
    shape = (directions, steps.shape[0 if options.get("batch_first") else 1], sizes[1])
    state = [torch.randn(shape, requires_grad=True) for _ in range(1 + (kind is nn.LSTM))]
    x = steps.clone().requires_grad_()
    y, other = moved((x, state))
    expected = tree_leaves(here(x, tuple(state) if kind is nn.LSTM else state[0]))
    found = tree_leaves(there(y, tuple(other) if kind is nn.LSTM else other[0]))
    close(found, expected, 16)
    seeds = [torch.randn_like(e) for e in expected]
    wanted = torch.autograd.grad(expected, [x, *state, *here.parameters()], seeds)
    close(torch.autograd.grad(found, [y, *other, *there.parameters()], moved(seeds)), wanted, 64)


def test_recurrent_layers() -> None:
    steps = torch.randn(3, 4, 5)
    for kind, count, turn in ((nn.LSTM, 2, True), (nn.GRU, 1, False)):  # more among the modules
        both(kind, steps, 5, 6, num_layers=count, bidirectional=count == 2, bias=not turn, batch_first=turn)
    projecting = nn.LSTM(5, 6, proj_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that oneDNN has no projections
        expected = projecting(steps)[0]
    close(copy.deepcopy(projecting).to("jax")(steps.to("jax"))[0], expected, 16)


@pytest.mark.nightly
def test_recurrent_layers_in_lower_precision() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 3, 16)
    for kind in (nn.LSTM, nn.GRU):
        here = kind(16, 32, 2)
        there = copy.deepcopy(here).to("jax")
        expected = here(x)[0]
        wanted = torch.autograd.grad(expected.square().sum(), list(here.parameters()))
        for dtype, bound in ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
            with torch.autocast("jax", dtype=dtype):
                found, state = there(x.to("jax"))
            assert {t.dtype for t in tree_leaves((found, state))} == {dtype}
            gradients = torch.autograd.grad(found.float().square().sum(), list(there.parameters()))
            for g, w in zip([found, *gradients], [expected, *wanted], strict=True):
                off = ((g.cpu().float() - w).norm() / w.norm()).item()
                assert 1e-6 < off < bound, off
            cells = Seen()
            with cells, torch.autocast("jax", dtype=dtype):  # a mode sees the cells, whose values are nearly the same
                apart = there(x.to("jax"))[0]
            assert any("cell" in name for name in cells.names)
            torch.testing.assert_close(apart.cpu(), found.cpu(), rtol=bound, atol=bound / 10)


def test_recurrent_layers_otherwise() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5)
    net = nn.LSTM(5, 6)
    there = copy.deepcopy(net).to("jax")

    def penalty(net: nn.Module, x: torch.Tensor) -> Any:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(net(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), list(net.parameters()))

    close(penalty(there, x.to("jax")), penalty(net, x), 64)  # a gradient's gradient
    errors = []
    for module, device in ((net, "cpu"), (there, "jax")):
        with pytest.raises(RuntimeError) as error:
            torch.lstm(
                x.to(device),
                [x.new_zeros(1, 2, 6).to(device)],
                list(module.parameters()),
                True,
                1,
                0.0,
                False,
                False,
                False,
            )
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    dropped = nn.LSTM(5, 6, 2, dropout=0.5).to("jax")
    y = x.to("jax")
    assert not torch.equal(dropped(y)[0].cpu(), dropped(y)[0].cpu())
    dropped.eval()
    assert torch.equal(dropped(y)[0].cpu(), dropped(y)[0].cpu())
    traced = jit(lambda: there(y)[0].sum().backward())
    traced()
    expected = [p.grad.clone() for p in there.parameters()]
    there.zero_grad()
    there(y)[0].sum().backward()
    torch.testing.assert_close([p.grad.cpu() for p in there.parameters()], [e.cpu() for e in expected])
