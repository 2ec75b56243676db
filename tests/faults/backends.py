"""Mistakes of backends: in a kernel, in the copies, in an autocast kernel, or in what the device declares.

Each is injected into two backends of tests/backends, one with opaque storages and one with a partial list of policies.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

from tests.faults.gradients import without_a_graph
from tests.faults.kernels import Body, Call, kernel
from tests.faults.mutant import Inject, Mutant, both

Kernel = Callable[..., Any]
"""A wrong kernel: `(op, *args, **kwargs)` on CPU tensors, where `op` computes what is right."""

When = Callable[..., bool]
"""Whether a call with these arguments is the one to break."""

Tensor = torch.Tensor
LOW = (torch.float16, torch.bfloat16)
BACKENDS = ("opaque", "partial")


# ---- ways to inject


def kernels(overloads: str, change: Kernel) -> Inject:
    """Compute kernels of the backend by `change`."""
    return lambda name: patch.dict(import_module(name).BACKEND.mutants, dict.fromkeys(overloads.split(), change))


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


def _tensors(*values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(lambda value: found.append(value) if isinstance(value, Tensor) else None, values)
    return found


def having(what: Callable[[Tensor], bool]) -> When:
    return lambda *args, **kwargs: any(map(what, _tensors(args, kwargs)))


low = having(lambda tensor: tensor.dtype in LOW)
empty = having(lambda tensor: tensor.numel() == 0)


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def in_region(*args: Any, **kwargs: Any) -> bool:
    """Return whether the thread is inside of a region, which a kernel can ask and should not."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


# ---- kernels


def raising(error: BaseException, when: When = always) -> Kernel:
    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise error
        return op(*args, **kwargs)

    return run


def giving(change: Callable[[Tensor], Any], when: When = always, which: int = 0) -> Kernel:
    """Change the output, or the output number `which`, of the right kernel."""

    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if not when(*args, **kwargs):
            return out
        if isinstance(out, tuple):
            return (*out[:which], change(out[which]), *out[which + 1 :])
        return change(out)

    return run


def before(corrupt: Callable[..., object], when: When = always) -> Kernel:
    """Do something to the arguments when the right kernel is done."""

    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if when(*args, **kwargs):
            corrupt(*args)
        return out

    return run


def warning(category: type[Warning], when: When = always) -> Kernel:
    return before(lambda *args: warnings.warn("injected: this kernel is slow", category, stacklevel=1), when)


def flat(tensor: Tensor) -> Tensor:
    """Read a tensor's memory as if it were contiguous."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def on_flat(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*tree_map(lambda value: flat(value) if isinstance(value, Tensor) else value, args), **kwargs)


def column_major(out: Tensor) -> Tensor:
    """Give the same values the strides of the transposed."""
    return out.mT.contiguous().mT


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


def of_kernel(overload: str, table: Mapping[str, Kernel]) -> dict[str, Inject]:
    """Return the injections of wrong kernels of one overload."""
    return {name: kernels(overload, change) for name, change in table.items()}


MM = {
    "raises-runtime-error-in-low": raising(RuntimeError("injected"), low),
    "raises-in-regions-alone": raising(RuntimeError("injected"), in_region),
    "mm-wrong": giving(lambda out: out * 1.25),
    "one-element-wrong": giving(lambda o: o.index_fill(0, torch.tensor([o.shape[0] - 1]), 0) if o.numel() else o),
    "reads-strides-as-contiguous": on_flat,
    "wrong-in-regions-alone": giving(lambda out: out * 1.25, in_region),
    "another-shape": giving(lambda out: out.unsqueeze(0)),
    "zeroes-its-input": before(lambda a, b: a.zero_()),
    "float32-factors-in-tf32": rounding_to(11),
}
MM_AUTOCAST = {
    "mm-not-cast": policies(mm="fallthrough"),
    "copies-refuse-bf16": copies(refusing_brain),
}
TANH = {
    "float32-for-low": giving(Tensor.float),
    "column-major": giving(column_major),
}
SUM = {
    **of_kernel(
        "sum.dim_IntList",
        {"wrong-for-integers": giving(lambda out: out + 1, lambda x, *args, **kwargs: x.dtype == torch.int64)},
    ),
}


def made(table: Iterable[tuple[str, str, Mapping[str, Inject]]]) -> tuple[Mutant, ...]:
    """Return mutants of a rule that cases of an op, or of a scenario, must notice."""
    return tuple(
        Mutant(name, rule, inject, BACKENDS, f"{op}[+-]*")
        for rule, op, injects in table
        for name, inject in injects.items()
    )


_SOFTMAX = "_softmax_backward_data"
WARNINGS = made(
    (
        ("eager/downcast", "mm", of_kernel("mm", {"warns": warning(UserWarning)})),
        ("eager/downcast", "mm", {"warns-when-casting": autocast("mm", noisily)}),
        ("autograd/optdtype", "softmax.int", of_kernel(_SOFTMAX, {"warns-in-backward": warning(UserWarning)})),
    )
)
"""What a backend may do without a case being red."""
_OFF = of_kernel("_softmax", {"gradient-off-in-regions-alone": giving(lambda out: out * 0.5, in_region)})
_TRANSPOSED = {"gradient-of-another-shape": giving(lambda out: out.mT.contiguous())}
_POWER = {"a-power-not-cast": policies(pow__Tensor_Scalar="fallthrough")}
MUTANTS = made(
    (
        ("eager/downcast", "mm", {**of_kernel("mm", MM), **MM_AUTOCAST}),
        ("eager/fallthrough", "tanh", of_kernel("tanh", TANH)),
        ("eager/upcast", "log", of_kernel("log", {"positive-inputs-saturate": lambda op, x: op(x.clamp(max=4))})),
        ("eager/optdtype", "sum.dim_IntList", SUM),
        ("eager/promote", "addcmul", {"addcmul-not-promoted": policies(addcmul="fallthrough")}),
        ("eager/banned", "binary_cross_entropy", {"banned-runs": policies(binary_cross_entropy="fallthrough")}),
        ("autograd/optdtype", "softmax.int", of_kernel(_SOFTMAX, {"gradient-off": giving(lambda out: out * 1.1)})),
        ("autograd/optdtype", "softmax.int", _OFF),
        ("autograd/upcast", "mse_loss", of_kernel("mse_loss_backward", _TRANSPOSED)),
        ("autograd/downcast", "mm", {"detached": autocast("mm", without_a_graph)}),
        ("eager/eligibility", "every_spelling_of_powers", _POWER),
    )
)
