"""Higher-order operators that lose the region, change what they are given, or refuse to run in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey

# Importing these defines the operators.
from torch._higher_order_ops.flex_attention import flex_attention
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from tests.faults import compilers as wrong
from tests.faults.compilers import entering, handed_out, results
from tests.faults.fault import Fault, Inject

_HIGHER = torch.ops.higher_order
Kernel = Callable[..., Any]


@contextmanager
def kernel(op: Any, key: DispatchKey, make: Callable[[Kernel], Kernel]) -> Iterator[None]:
    """Replace a kernel of a higher-order operator."""
    right = op.py_kernels[key]
    op.py_kernels[key] = make(right)
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels[key] = right
        op._dispatch_cache.clear()


@contextmanager
def refusing(op: Any) -> Iterator[None]:
    """An operator that does not fall through on the CPU's autocast key."""
    keys = op.non_fallthrough_keys
    op.non_fallthrough_keys = keys.add(DispatchKey.AutocastCPU)
    try:
        yield
    finally:
        op.non_fallthrough_keys = keys


def in_region(**options: Any) -> Callable[[Kernel], Kernel]:
    """A kernel that runs its function in a region of its own."""

    def make(right: Kernel) -> Kernel:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", **options):
                return right(*args, **kwargs)

        return run

    return make


def counting_wrongly(right: Kernel) -> Kernel:
    """A region is entered and never left, as far as the count of regions knows."""

    def run(*args: Any, **kwargs: Any) -> Any:
        torch.autocast_increment_nesting()
        return right(*args, **kwargs)

    return run


def drawing_anew(right: Kernel) -> Kernel:
    """What is computed again draws other random numbers."""
    return lambda state, op, *args, **kwargs: op(*args, **kwargs)


def uncast(right: Kernel) -> Kernel:
    """Run attention in the dtypes that it is given."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(DispatchKey.AutocastCPU)):
            return flex_attention(*args, **kwargs)

    return run


def without_region(self: Any, kind: str, dtype: Any, enabled: bool, cache: Any, function: Kernel, *args: Any) -> Any:
    """`wrap_with_autocast` that enters no region."""
    return function(*args)


def not_registered() -> AbstractContextManager[object]:
    """`register_autocast` of a custom op that registers nothing."""
    return patch.object(torch._library.custom_ops.CustomOpDef, "register_autocast", lambda self, *args: None)


def _fault(name: str, inject: Inject, says: str, op: str = "called", only: str = "") -> Fault:
    return Fault(name, "hops", inject, (says,), "jit", op=op, only=only)


_DENSE = DispatchKey.CompositeExplicitAutograd
_OFF = in_region(enabled=False)
_OTHER = in_region(dtype=torch.float16)
FAULTS = (
    _fault(
        "branch-loses-region",
        lambda: kernel(_HIGHER.cond, _DENSE, _OFF),
        "dtype of the result: got torch.float32",
        only="called-chosen-product",
    ),
    _fault(
        "scan-in-another-dtype",
        lambda: kernel(_HIGHER.scan, _DENSE, _OTHER),
        "dtype of the result: got torch.float16",
        only="called-scanned-product",
    ),
    _fault(
        "loop-leaves-a-count",
        lambda: kernel(_HIGHER.while_loop, _DENSE, counting_wrongly),
        "state and depth afterwards",
        only="called-repeated-product",
    ),
    _fault(
        "wrapped-region-dropped",
        lambda: patch.object(type(_HIGHER.wrap_with_autocast), "__call__", without_region),
        "dtype of the result",
        only="called-entered-contracted",
    ),
    _fault(
        "library-op-uncast",
        not_registered,
        "dtype of the result: got torch.bfloat16; expected torch.float32",
        only="called-casting-contracted",
    ),
    _fault(
        "operator-refuses-regions",
        lambda: refusing(run_and_save_rng_state),
        "operators that refuse to run in a region: got ['run_and_save_rng_state']",
        op="every_operator",
    ),
    _fault(
        "attention-uncast",
        lambda: kernel(flex_attention, DispatchKey.AutocastCPU, uncast),
        "dtype of the result: got torch.float32",
        op="attention",
        only="attention-wide-none-around",
    ),
    _fault(
        "dropped-anew",
        lambda: kernel(run_with_rng_state, DispatchKey.BackendSelect, drawing_anew),
        "the gradient: differs by",
        op="random_numbers",
        only="product",
    ),
    _fault(
        "compiled-body-region-dropped",
        lambda: entering(wrong.not_at_all),
        "dtype of the result",
        op="compiled",
        only="passed-contracted-inside-on-dynamo or scanned-product-inside-off-dynamo",
    ),
    _fault(
        "operator-rounded",
        lambda: handed_out(results(wrong.rounded)),
        "the result: differs by",
        op="compiled",
        only="mapped-contracted-disabled-off-dynamo",
    ),
)
