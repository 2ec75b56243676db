"""Mistakes of backends: in a kernel, in the copies, in an autocast kernel, or in what the device declares.

Each is injected into two backends of tests/backends, one with opaque storages and one with a partial list of policies.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

from ampcheck.observe.recorder import tensors
from tests.faults.gradients import without_a_graph
from tests.faults.kernels import Body, Call, kernel
from tests.faults.mutant import Inject, Mutant, both

Kernel = Callable[..., Any]
"""A wrong kernel: `(op, *args, **kwargs)` on CPU tensors, where `op` computes what is right."""

When = Callable[..., bool]
"""Whether a call with these arguments is the one to break."""

Tensor = torch.Tensor
BACKENDS = ("opaque", "partial")


# ---- ways to inject


def kernels(overload: str, change: Kernel) -> Inject:
    """Compute the kernel of an overload by `change`."""
    return lambda name: patch.dict(import_module(name).BACKEND.mutants, {overload: change})


def copies(copy: Callable[[Tensor, Tensor], object]) -> Inject:
    """Make copies in, out and between dtypes by `copy(target, source)` on CPU tensors."""
    return lambda name: patch.object(import_module(name).BACKEND, "copy", copy)


def policies(**overrides: str) -> Inject:
    """Register autocast with other policies than the device promises; in names, `__` is a dot."""

    @contextmanager
    def inject(name: str) -> Iterator[None]:
        register = import_module(name).register
        register(**{op.replace("__", "."): policy for op, policy in overrides.items()})
        try:
            yield
        finally:
            register()

    return inject


def autocast(op: str, body: Body) -> Inject:
    """Register an autocast kernel of the backend's own for an overload."""
    return both(policies(**{op: "fallthrough"}), kernel(op, body))


# ---- what is asked of a call


def low(*args: Any, **kwargs: Any) -> bool:
    """Return whether a tensor of a lower precision is among the arguments."""
    return any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors((args, kwargs)))


def in_region(*args: Any, **kwargs: Any) -> bool:
    """Return whether the thread is inside of a region, which a kernel can ask and should not."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


# ---- kernels


def raising(error: BaseException, when: When) -> Kernel:
    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise error
        return op(*args, **kwargs)

    return run


def giving(change: Callable[[Tensor], Any], when: When = lambda *args, **kwargs: True) -> Kernel:
    """Change the output of the right kernel."""

    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        return change(out) if when(*args, **kwargs) else out

    return run


def before(corrupt: Callable[..., object]) -> Kernel:
    """Do something to the arguments when the right kernel is done."""

    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        corrupt(*args)
        return out

    return run


warning = before(lambda *args: warnings.warn("injected: this kernel is slow", UserWarning, stacklevel=1))


def flat(tensor: Tensor) -> Tensor:
    """Read a tensor's memory as if it were contiguous."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def on_flat(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*tree_map(lambda value: flat(value) if isinstance(value, Tensor) else value, args), **kwargs)


def rounding_to(bits: int) -> Kernel:
    """Round the elements of float32 arguments to significands of so many bits, as TF32 (11) and bfloat16 (8) have."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        spare = 24 - bits
        whole = value.contiguous().view(torch.int32) + (1 << (spare - 1))
        return whole.bitwise_and(-(1 << spare)).view(torch.float32)

    return lambda op, *args, **kwargs: op(*tree_map(cut, args), **tree_map(cut, kwargs))


# ---- copies


def refusing_brain(target: Tensor, source: Tensor) -> None:
    if torch.bfloat16 in (target.dtype, source.dtype):
        raise RuntimeError("injected: bfloat16 cannot be copied")
    target.copy_(source)


# ---- autocast kernels


def noisily(call: Call) -> Any:
    warnings.warn("injected: autocast is experimental here", FutureWarning, stacklevel=1)
    return call.cast(call.low)


# ---- tables


def made(tables: Mapping[str, Mapping[str, Inject]]) -> tuple[Mutant, ...]:
    """Return the mutants of some tables, each of a rule and of the op or scenario whose cases must notice them."""
    return tuple(
        Mutant(name, rule, inject, BACKENDS, f"{op}[+-]*")
        for key, table in tables.items()
        for rule, op in [key.split()]
        for name, inject in table.items()
    )


_SOFTMAX = "_softmax_backward_data"
WARNINGS = made(
    {
        "eager/downcast mm": {"warns": kernels("mm", warning), "warns-when-casting": autocast("mm", noisily)},
        "autograd/optdtype softmax.int": {"warns-in-backward": kernels(_SOFTMAX, warning)},
    }
)
"""What a backend may do without a case being red."""
MUTANTS = made(
    {
        "eager/downcast mm": {
            "raises-runtime-error-in-low": kernels("mm", raising(RuntimeError("injected"), low)),
            "raises-in-regions-alone": kernels("mm", raising(RuntimeError("injected"), in_region)),
            "mm-wrong": kernels("mm", giving(lambda out: out * 1.25)),
            "one-element-wrong": kernels(
                "mm", giving(lambda out: out.index_fill(0, torch.tensor([out.shape[0] - 1]), 0) if out.numel() else out)
            ),
            "reads-strides-as-contiguous": kernels("mm", on_flat),
            "wrong-in-regions-alone": kernels("mm", giving(lambda out: out * 1.25, in_region)),
            "another-shape": kernels("mm", giving(lambda out: out.unsqueeze(0))),
            "zeroes-its-input": kernels("mm", before(lambda a, b: a.zero_())),
            "float32-factors-in-tf32": kernels("mm", rounding_to(11)),
            "mm-not-cast": policies(mm="fallthrough"),
            "copies-refuse-bf16": copies(refusing_brain),
        },
        "eager/fallthrough tanh": {
            "float32-for-low": kernels("tanh", giving(Tensor.float)),
            "column-major": kernels("tanh", giving(lambda out: out.mT.contiguous().mT)),
        },
        "eager/upcast log": {"positive-inputs-saturate": kernels("log", lambda op, x: op(x.clamp(max=4)))},
        "eager/optdtype sum.dim_IntList": {
            "wrong-for-integers": kernels(
                "sum.dim_IntList", giving(lambda out: out + 1, lambda x, *args, **kwargs: x.dtype == torch.int64)
            )
        },
        "eager/promote addcmul": {"addcmul-not-promoted": policies(addcmul="fallthrough")},
        "eager/banned binary_cross_entropy": {"banned-runs": policies(binary_cross_entropy="fallthrough")},
        "autograd/optdtype softmax.int": {
            "gradient-off": kernels(_SOFTMAX, giving(lambda out: out * 1.1)),
            "gradient-off-in-regions-alone": kernels("_softmax", giving(lambda out: out * 0.5, in_region)),
        },
        "autograd/upcast mse_loss": {
            "gradient-of-another-shape": kernels("mse_loss_backward", giving(lambda out: out.mT.contiguous()))
        },
        "autograd/downcast mm": {"detached": autocast("mm", without_a_graph)},
        "eager/eligibility every_spelling_of_powers": {"a-power-not-cast": policies(pow__Tensor_Scalar="fallthrough")},
    }
)
