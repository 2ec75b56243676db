"""Checks of values, off unless asked for: what PyTorch's CPU kernels refuse, as an index out of range, is an error.

A program cannot raise, so JAX takes the last element or drops a write. With checks on, each of these ops first looks at
its tensors; where something may be wrong, PyTorch's CPU kernel is given copies of them and raises. A step in `jit`
computes whether something was wrong, and is then run eagerly, before it changed anything.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from ampcheck.jax_device.annotations import Args, Kernel, Kwargs, Tree
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.torch_private import pytree

VARIABLE = "AMPCHECK_JAX_CHECKS"


class _Switch(threading.local):
    inside = False
    """Whether this thread runs the parts of an op, which was checked as a whole."""
    on = os.environ.get(VARIABLE, "0") not in ("", "0")

    @staticmethod
    def flag(wrong: jax.Array) -> None:
        """Take note of a value of the program that is being traced; `jit` puts its own function here."""


switch = _Switch()


def set_checks(enabled: bool) -> None:
    """Have ops raise what PyTorch's CPU kernels raise by the values of tensors, or not: `torch.jax.set_checks`.

    Each of these ops then waits for its values. The environment variable AMPCHECK_JAX_CHECKS=1 switches it on from the
    start. Programs of `torch.compile` and of `jit(fullgraph=True)` are not checked.
    """
    _Switch.on = bool(enabled)  # in every thread


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Run the parts of an op unchecked."""
    before, switch.inside = switch.inside, True
    try:
        yield
    finally:
        switch.inside = before


def get_checks() -> bool:
    """Return whether ops check the values of tensors."""
    return switch.on


def _outside(index: Any, end: int, start: int = 0) -> Any:
    return (index < start) | (index >= end)


def _along(x: Any, dim: int, index: Any, *_: Tree) -> Any:
    return _outside(index, int(jnp.atleast_1d(x).shape[dim]))


def _rows(table: Any, index: Any, *_: Tree) -> Any:
    return _outside(index, table.shape[0])


def _labels(x: Any, target: Any, weight: Tree = None, reduction: int = 1, ignored: int = -100) -> Any:
    return (target != ignored) & _outside(target, x.shape[min(x.ndim - 1, 1)])


def _places(x: Any, indices: Any, *_: Tree) -> Any:
    wrong, dim = jnp.zeros((), jnp.bool_), 0
    for index in indices:
        if index is not None and index.dtype != jnp.bool_:
            wrong = wrong | jnp.any(_outside(index, x.shape[dim], -x.shape[dim]))
        dim += index.ndim if index is not None and index.dtype == jnp.bool_ else 1
    return wrong


def _by_zero(x: Any, divisor: Any, **_: Tree) -> Any:
    return jnp.logical_not(jnp.issubdtype(jnp.result_type(x, divisor), jnp.inexact)) & (jnp.asarray(divisor) == 0)


def _no_amount(x: Any, *_: Tree, **__: Tree) -> Any:
    return jnp.logical_not((x >= 0) & (x < jnp.inf))


def _no_chance(x: Any, p: Any = None, **_: Tree) -> Any:
    p = x if p is None else p
    return jnp.logical_not((p >= 0) & (p <= 1))


def _no_weights(x: Any, count: int, replacement: bool = False, **_: Tree) -> Any:
    few = (x > 0).sum(-1) < (0 if replacement else count)
    return jnp.any(_no_amount(x)) | jnp.any(x.sum(-1) <= 0) | jnp.any(few)


_WRONG: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("index.Tensor", "index_put", "_unsafe_index.Tensor", "_unsafe_index_put"), _places),
    **dict.fromkeys(("gather", "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce"), _along),
    **dict.fromkeys(("scatter_add", "scatter_reduce.two", "index_select", "index_add", "index_copy"), _along),
    **dict.fromkeys(("index_fill.int_Scalar", "index_fill.int_Tensor", "index_reduce"), _along),
    **dict.fromkeys(("take", "put"), lambda x, index, *_: _outside(index, x.size, -x.size)),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm"), _rows),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _labels),
    "multi_margin_loss": lambda x, target, *_: _outside(target, x.shape[-1]),
    "multilabel_margin_loss_forward": lambda x, target, *_: _outside(target, x.shape[-1], -1),
    "max_unpool2d": lambda x, index, size: _outside(index, size[0] * size[1]),
    "max_unpool3d": lambda x, index, size, *_: _outside(index, size[0] * size[1] * size[2]),
    **dict.fromkeys(("floor_divide", "div.Tensor_mode", "remainder.Tensor", "fmod.Tensor"), _by_zero),
    **dict.fromkeys(("remainder.Scalar", "fmod.Scalar", "div.Scalar_mode", "floor_divide.Scalar"), _by_zero),
    "remainder.Scalar_Tensor": _by_zero,
    **dict.fromkeys(("bernoulli", "bernoulli.Tensor"), _no_chance),
    "multinomial": _no_weights,
    "poisson": _no_amount,
    "binomial": lambda count, p, **_: jnp.any(_no_amount(count)) | jnp.any(_no_chance(p)),
    **dict.fromkeys(("normal.Tensor_Tensor", "normal.float_Tensor"), lambda mean, std, **_: jnp.logical_not(std >= 0)),
    "bincount": lambda x, *_: x < 0,
    "repeat_interleave.Tensor": lambda x, **_: x < 0,
}
"""By the name of a functional overload: a function of its arguments, as arrays: where some may be wrong."""


UNCHECKED = frozenset({"complex", "masked_scatter", "as_strided_scatter", "_histogramdd_from_bin_cts", "histc"})
"""What PyTorch's Meta kernels take of any shape and dtype; the CPU is asked at the first call of each kind."""


def checked(name: str, kernel: Kernel) -> Kernel:
    """Return the kernel of an overload, which with checks on looks at the values of its tensors first."""
    wrong = _WRONG.get(name)
    if wrong is None:
        return kernel

    def run(*args: Tree, **kwargs: Tree) -> Tree:
        if switch.on and not switch.inside:
            _look(name, wrong, args, kwargs)
        return kernel(*args, **kwargs)

    return run


def _look(name: str, wrong: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
    given = {k: v for k, v in kwargs.items() if not isinstance(v, torch.Generator)}
    arrays, by_name = pytree.tree_map_only(
        Tensor, lambda t: transfer.values(t) if t.device.type == "jax" else transfer.to_numpy(t), (list(args), given)
    )
    try:
        found = jnp.any(wrong(*arrays, **by_name))
    except (IndexError, TypeError, ValueError):  # of shapes that do not fit
        found = jnp.ones((), jnp.bool_)
    if isinstance(found, jax.core.Tracer):
        switch.flag(found)
    elif found:
        on_cpu(name, (args, given))


def on_cpu(name: str, given: tuple[Sequence[Tree], Kwargs]) -> None:
    """Run an overload on copies of its arguments on the CPU, for the error that PyTorch raises there."""
    packet, _, which = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), which or "default")
    there = pytree.tree_map_only(Tensor, lambda t: transfer.to_host(t) if t.device.type == "jax" else t, given)
    with torch.random.fork_rng(devices=[]):
        op(*there[0], **there[1])
