"""Rule autodiff: a hook receives gradients in the dtype of its tensor and runs where backward is called.

Source: https://docs.pytorch.org/docs/2.13/notes/autograd.html#backward-hooks-execution.
"""

from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ampcheck.checks.training import copy_of
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")

NATIVE = ("cpu", "cuda", "xpu", "mps", "mtia")
"""Device types made in C++. On one made in Python an exception in a hook ends the process: the guard of its streams
calls Python while the exception is pending, and may not fail (`PythonDeviceGuard` in torch/csrc/acc/Module.cpp)."""


@scenario(values=True)
def test_tensor_hook_dtype(amp: Amp) -> None:
    """A hook gets a gradient of its tensor's dtype: low for a result of the region, float32 for a leaf."""
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    seen: dict[str, torch.dtype] = {}
    with amp.region():
        low = torch.mm(x, w)
        wide = low.float()
    tensors = {"a float32 copy": wide, "a result": low, "a leaf": w}
    for name, tensor in tensors.items():
        tensor.register_hook(lambda gradient, name=name: seen.setdefault(name, gradient.dtype) and None)
    wide.sum().backward()
    amp.assert_equal("dtypes of gradients", seen, {name: tensor.dtype for name, tensor in tensors.items()})


@scenario(values=True)
def test_tensor_hook_that_replaces(amp: Amp) -> None:
    """The tensor that a hook returns replaces the gradient, low or float32 (torch.Tensor.register_hook)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    reference = copy_of(w)
    with amp.region():
        out = torch.mm(x, w)
    out.register_hook(lambda gradient: gradient * 3)
    w.register_hook(lambda gradient: gradient / 7)
    out.float().sum().backward()
    want = torch.mm(x.to(amp.dtype), reference.to(amp.dtype))
    want.backward(torch.full_like(want, 3))
    amp.assert_identical("gradient of the leaf", w.grad, reference.grad / 7)


@scenario(values=True)
def test_hook_that_computes(amp: Amp) -> None:
    """An op in a hook is autocast where backward is called in a region, and nowhere else (pytorch#132715)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    seen: list[torch.dtype] = []
    w.register_hook(lambda gradient: seen.append(torch.mm(gradient, gradient).dtype))
    for place in (amp.region(enabled=False), amp.region(), amp.region(amp.other)):
        with amp.region():
            out = torch.mm(x, w).float().sum()
        with place:
            out.backward()
    amp.assert_equal("dtypes of a product of gradients", seen, [torch.float32, amp.dtype, amp.other])


@scenario(types=NATIVE, values=True)
def test_left_open_in_a_hook(amp: Amp) -> None:
    """An exception out of a region in a hook ends backward and leaves the state of its caller (autocast_mode.py)."""
    w = amp.rand(3, 3, requires_grad=True)

    def fails(gradient: torch.Tensor) -> None:
        with amp.region(amp.other, cache_enabled=False):
            raise KeyError("in a hook")

    with amp.region():
        out = torch.mm(w, w)
        out.register_hook(fails)
        before = amp.state(), amp.depth()
        amp.assert_raises("backward", KeyError, "in a hook", lambda: out.sum().backward())
        amp.assert_equal("state after backward", (amp.state(), amp.depth()), before)
        amp.assert_equal("dtype a product runs in", amp.probe(), amp.dtype)
    amp.assert_equal("state after the region", amp.state()[0], False)


@scenario(values=True)
def test_hooks_of_a_layer(amp: Amp) -> None:
    """Forward hooks run in the region of the call, backward hooks where backward is called (torch.nn.Module)."""
    layer = amp.module(lambda: torch.nn.Linear(3, 3)).requires_grad_()
    seen: dict[str, Any] = {}

    def noted(name: str, values: Any) -> None:
        seen[name] = (amp.state()[:2], [value.dtype for value in values])

    layer.register_forward_pre_hook(lambda module, given: noted("pre", given))
    layer.register_forward_hook(lambda module, given, out: noted("forward", (*given, out)))
    layer.register_full_backward_pre_hook(lambda module, gradients: noted("backward pre", gradients))
    layer.register_full_backward_hook(lambda module, into, gradients: noted("backward", (*into, *gradients)))
    with amp.region():
        out = layer(amp.rand(2, 3, requires_grad=True))
    with amp.region(amp.other, enabled=False):
        off = amp.state()[:2]
        out.float().sum().backward()
    on, wide, low = (True, amp.dtype), torch.float32, amp.dtype
    amp.assert_equal("before forward", seen.get("pre"), (on, [wide]))
    amp.assert_equal("after forward", seen.get("forward"), (on, [wide, low]))
    amp.assert_equal("before backward", seen.get("backward pre"), (off, [low]))
    amp.assert_equal("after backward", seen.get("backward"), (off, [wide, low]))


@scenario(values=True)
def test_saved(amp: Amp) -> None:
    """Autograd saves the casts of a product; unpacked unchanged, they give the gradient that explicit casts give."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    reference = copy_of(w)
    saved: list[torch.dtype] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.dtype)
        return tensor.clone()

    with amp.region(), saved_tensors_hooks(pack, lambda tensor: tensor):
        out = torch.mm(x, w)
    (out.float() / 3).sum().backward()
    (torch.mm(x.to(amp.dtype), reference.to(amp.dtype)).float() / 3).sum().backward()
    amp.assert_equal("dtypes saved", set(saved), {amp.dtype})
    amp.assert_identical("gradient of the leaf", w.grad, reference.grad)


@scenario(values=True)
def test_saved_elsewhere(amp: Amp) -> None:
    """save_on_cpu keeps dtype and values of what it moves, casts included (torch.autograd.graph.save_on_cpu)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    plain = copy_of(w)
    for leaf in (w, plain):
        with amp.region(), save_on_cpu() if leaf is w else amp.region():
            out = torch.mm(torch.mm(x, leaf).exp(), leaf)
        (out.float() / 3).sum().backward()
    amp.assert_identical("gradient of the leaf", w.grad, plain.grad)


@scenario(what=["unpack", "pack"], values=True)
def test_saved_and_computed(amp: Amp, what: str) -> None:
    """A pack or unpack hook sees the region its op, or backward, is called in: it is not a part of the op."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    seen: dict[str, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.setdefault("pack", (amp.state(), amp.probe()))
        return tensor.clone()

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        seen.setdefault("unpack", (amp.state(), amp.probe()))
        return tensor

    with amp.region(), saved_tensors_hooks(pack, unpack):
        called = {"pack": (amp.state(), amp.dtype)}
        out = torch.mm(x, w)
    with amp.region(amp.other):
        called["unpack"] = (amp.state(), amp.other)
        out.sum().backward()
    amp.assert_equal(f"state and dtype of a product in {what}", seen[what], called[what])


@scenario(values=True)
def test_optimizer_in_backward(amp: Amp) -> None:
    """An optimizer that steps in a hook of each weight trains as one that steps afterwards.

    The recipe is https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html.
    """
    nets = [amp.module(lambda: torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))) for _ in range(2)]
    for net in nets:
        net.requires_grad_()
    own = {leaf: torch.optim.SGD([leaf], lr=0.1, momentum=0.5) for leaf in nets[0].parameters()}
    after = torch.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.5)

    def step(leaf: torch.Tensor) -> None:
        own[leaf].step()
        own[leaf].zero_grad()

    for leaf in nets[0].parameters():
        leaf.register_post_accumulate_grad_hook(step)
    x = amp.rand(4, 3)
    for _ in range(3):
        for net in nets:
            with amp.region():
                loss = net(x).float().square().mean()
            loss.backward()
        after.step()
        after.zero_grad()
    for (name, leaf), other in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        amp.assert_identical(f"{name} after three steps", leaf, other)
        amp.assert_equal(f"gradient of {name} left", leaf.grad, None)
