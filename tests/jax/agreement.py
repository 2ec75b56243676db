"""The same computation on the CPU and on the jax device, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

NAN, INF = float("nan"), float("inf")


def moved(value: Any) -> Any:
    """CPU tensors inside `value` copied to the device, with their `requires_grad`."""
    return tree_map(
        lambda v: v.detach().to("jax").requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v, value
    )


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors inside `value`, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same(function: Callable[..., Any], *args: Any, loose: float = 1.0, **kwargs: Any) -> Any:
    """Asserts that results, and gradients where an argument asks for them, are CPU's; returns the device's result.

    `loose` multiplies the tolerances that `torch.testing` has for the dtype.
    """
    expected = function(*args, **kwargs)
    there = moved((args, kwargs))
    found = function(*there[0], **there[1])
    close(found, expected, loose)
    inputs = [t for t in tensors((args, kwargs)) if t.requires_grad]
    if inputs:
        outputs = [t for t in tensors(expected) if t.requires_grad]
        seeds = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.dtype) for t in outputs]
        mine = [t for t in tensors(found) if t.requires_grad]
        wanted = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
        theirs = [t for t in tensors(there) if t.requires_grad]
        close(torch.autograd.grad(mine, theirs, moved(seeds), allow_unused=True), wanted, loose)
    return found


def close(found: Any, expected: Any, loose: float = 1.0) -> None:
    """Asserts that the tensors inside are equal within the dtype's tolerance, with the same dtypes and shapes."""
    for mine, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert mine.device.type == "jax"
        rtol, atol = torch.testing._comparison.default_tolerances(theirs)
        torch.testing.assert_close(
            mine.detach().cpu(),
            theirs.detach(),
            rtol=rtol * loose,
            atol=atol * loose,
            equal_nan=True,
            check_stride=False,
        )
