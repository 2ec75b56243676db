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
from tests.faults.kernels import FP32, Body, Call, in_other, kernel, low_but, low_but_last, low_for_good, refuses, to
from tests.faults.mutant import Inject, Mutant, both, fresh

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
brain = having(lambda tensor: tensor.dtype == torch.bfloat16)
half = having(lambda tensor: tensor.dtype == torch.float16)
wide = having(lambda tensor: tensor.dtype == torch.float32)
uneven = having(lambda tensor: not tensor.is_contiguous())
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


def unseeded(overloads: str) -> Inject:
    """Let kernels that draw go on where they last ended, whatever the seed is set to."""

    def make() -> Inject:
        own = [torch.Generator().manual_seed(7).get_state()]

        def run(op: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(own[0])
                out = op(*args, **kwargs)
                own[0] = torch.get_rng_state()
            return out

        return kernels(overloads, run)

    return fresh(make)


def over_the_input(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return x.copy_(op(x, *args, **kwargs))


def warning(category: type[Warning], when: When = always) -> Kernel:
    return before(lambda *args: warnings.warn("injected: this kernel is slow", category, stacklevel=1), when)


def flat(tensor: Tensor) -> Tensor:
    """Read a tensor's memory as if it were contiguous."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def on_flat(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*tree_map(lambda value: flat(value) if isinstance(value, Tensor) else value, args), **kwargs)


def in_the_first_dtype(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Give what is right where the first of two tensors has the wider dtype."""
    return op(x, *args, **kwargs).to(x.dtype)


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


def other_low(out: Tensor) -> Tensor:
    return out.to({torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}.get(out.dtype, out.dtype))


def without_weight(op: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return op(x, shape, None, bias, eps)


NO_KERNEL = (
    "Could not run 'aten::mm' with arguments from the 'PrivateUse1' backend. This could be because the operator "
    "doesn't exist for this backend, or was omitted during the selective/custom build process."
)


# ---- copies


def without_strides(target: Tensor, source: Tensor) -> None:
    target.copy_(flat(source) if source.dim() > 1 else source)


def coarse(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
    if target.dtype == torch.bfloat16:
        target.view(torch.int16).bitwise_and_(-16)


def refusing_brain(target: Tensor, source: Tensor) -> None:
    if torch.bfloat16 in (target.dtype, source.dtype):
        raise RuntimeError("injected: bfloat16 cannot be copied")
    target.copy_(source)


def truncating(target: Tensor, source: Tensor) -> None:
    """Cut bits off in casts to bfloat16 in the place of rounding."""
    if target.dtype == torch.bfloat16 and source.dtype == torch.float32 and source.numel():
        source = source.contiguous().view(torch.int32).bitwise_and(-65536).view(torch.float32)
    target.copy_(source)


def drops_the_last(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
    if target.numel() > 1 and target.is_floating_point() and target.is_contiguous():
        target.view(-1)[-1] = 0


# ---- autocast kernels


def needing_gradients(call: Call) -> Any:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors()):
        raise NotImplementedError(NO_KERNEL)
    return call.cast(call.low)


def zeroing(call: Call) -> Any:
    """Zero what was cast."""
    out = call.cast(call.low)
    for tensor in filter(call.eligible, call.tensors()):
        tensor.detach().zero_()
    return out


def forgetful(call: Call) -> Any:
    """Fill `dtype=` in, and drop what else the caller asked for."""
    dtype = FP32 if call.eligible(call.args[0]) else None
    return call.op(*call.args[:2], dtype=call.kwargs.get("dtype") or dtype)


def noisily(call: Call) -> Any:
    warnings.warn("injected: autocast is experimental here", FutureWarning, stacklevel=1)
    return call.cast(call.low)


# ---- tables


def of_kernel(overload: str, table: Mapping[str, Kernel]) -> dict[str, Inject]:
    """Return the injections of wrong kernels of one overload."""
    return {name: kernels(overload, change) for name, change in table.items()}


MM = {
    "says-there-is-no-kernel": raising(NotImplementedError(NO_KERNEL), low),
    "says-so-in-regions-alone": raising(NotImplementedError(NO_KERNEL), in_region),
    "raises-runtime-error-in-low": raising(RuntimeError("injected"), low),
    "raises-out-of-memory-in-low": raising(torch.OutOfMemoryError("injected"), low),
    "raises-for-other-strides": raising(RuntimeError("injected"), uneven),
    "raises-for-no-elements": raising(RuntimeError("injected"), empty),
    "raises-in-regions-alone": raising(RuntimeError("injected"), in_region),
    "mm-refuses-float32": raising(RuntimeError("injected: mm takes data type fp16 or bf16"), wide),
    "mm-wrong": giving(lambda out: out * 1.25),
    "mm-2-percent-off-in-bf16": giving(lambda out: out * 1.02, brain),
    "mm-a-fifth-of-a-percent-off-in-fp16": giving(lambda out: (out.float() * 1.002).to(out.dtype), half),
    "one-element-wrong": giving(lambda o: o.index_fill(0, torch.tensor([o.shape[0] - 1]), 0) if o.numel() else o),
    "large-values-saturate": giving(lambda out: out.clamp(-64, 64)),
    "small-values-vanish": giving(lambda out: out * (out.abs() > 0.01)),
    "reads-strides-as-contiguous": on_flat,
    "wrong-in-regions-alone": giving(lambda out: out * 1.25, in_region),
    "another-shape": giving(lambda out: out.unsqueeze(0)),
    "a-transposed-shape": giving(lambda out: out.T.contiguous()),
    "the-other-low": giving(other_low),
    "column-major-mm-in-low": giving(column_major, low),
    "zeroes-its-input": before(lambda a, b: a.zero_()),
    "zeroes-its-second-input": before(lambda a, b: b.zero_()),
    "float32-factors-in-tf32": rounding_to(11),
    "float32-factors-in-bf16": rounding_to(8),
    "float32-factors-of-16-bits": rounding_to(16),
}
MM_AUTOCAST = {
    "mm-not-cast": policies(mm="fallthrough"),
    "cast-to-the-other-low": autocast("mm", in_other),
    "cast-to-fp16-always": autocast("mm", to(lambda call: torch.float16)),
    "only-float32-cast": autocast("mm", low_but(lambda t: t.dtype != FP32)),
    "raises-in-the-autocast-kernel": autocast("mm", refuses(AttributeError("injected"))),
    "zeroes-what-it-cast": autocast("mm", zeroing),
    "casts-the-callers-tensors": autocast("mm", low_for_good),
    "copies-change-bf16": copies(coarse),
    "copies-refuse-bf16": copies(refusing_brain),
    "casts-truncate": copies(truncating),
}
TANH = {
    "float32-for-low": giving(Tensor.float),
    "column-major": giving(column_major),
    "output-is-the-input": over_the_input,
    "output-in-the-inputs-memory": lambda op, x: over_the_input(op, x).view(-1).view(x.shape),
}
EXP = {
    "exp-off-in-fp32": giving(lambda out: out * 1.001, wide),
    "float64-for-float32": giving(Tensor.double),
    "strides-with-gaps": giving(lambda out: torch.stack([out, out], -1)[..., 0]),
}
ADDMM = {
    "addmm-without-beta": lambda op, bias, *args, **kwargs: op(bias, *args),
    "writes-its-bias": before(lambda bias, *rest: bias.add_(1)),
}
SUM = {
    **of_kernel(
        "sum.dim_IntList",
        {
            "float32-terms-in-tf32": rounding_to(11),
            "wrong-for-integers": giving(lambda out: out + 1, lambda x, *args, **kwargs: x.dtype == torch.int64),
        },
    ),
    "sum-not-filled-in": policies(sum__dim_IntList="fallthrough"),
    "arguments-dropped": autocast("sum.dim_IntList", forgetful),
}
SOFTMAX_BACKWARD = {
    "gradient-off": giving(lambda out: out * 1.1),
    "backward-writes-what-was-saved": before(lambda grad, out, *rest: out.zero_()),
    "raises-in-backward": raising(RuntimeError("injected")),
}
MSE_BACKWARD = {
    "gradient-nan": giving(lambda out: out * float("nan")),
    "gradient-of-another-shape": giving(lambda out: out.mT.contiguous()),
}


def made(table: Iterable[tuple[str, str, Mapping[str, Inject]]]) -> tuple[Mutant, ...]:
    """Return mutants of a rule that cases of an op, or of a scenario, must notice."""
    return tuple(
        Mutant(name, rule, inject, BACKENDS[: 1 if name in OPAQUE_ALONE else 2], f"{op}[+-]*")
        for rule, op, injects in table
        for name, inject in injects.items()
    )


OPAQUE_ALONE = ("a-second-output-of-another-shape", "raises-in-backward")
WARNINGS = made(
    (
        ("eager/downcast", "mm", of_kernel("mm", {"warns": warning(UserWarning)})),
        ("eager/downcast", "mm", of_kernel("mm", {"warns-in-low": warning(DeprecationWarning, low)})),
        ("eager/downcast", "mm", {"warns-when-casting": autocast("mm", noisily)}),
        ("eager/upcast", "exp", of_kernel("exp", {"warns-of-runtime": warning(RuntimeWarning)})),
        (
            "autograd/optdtype",
            "softmax.int",
            of_kernel("_softmax_backward_data", {"warns-in-backward": warning(UserWarning)}),
        ),
    )
)
"""What a backend may do without a case being red."""
_LAYER_NORM = {"layer-norm-without-weight": without_weight}
_SECOND_OUTPUT = {"a-second-output-of-another-shape": giving(lambda out: out.flatten(), which=1)}
_CONV = {"float32-convolved-in-tf32": kernels("convolution", rounding_to(11))}
_CONV_BACKWARD = {
    "gradient-negated-in-low": giving(torch.neg, low, which=1),
    "float32-gradient-in-tf32": rounding_to(11),
}
MUTANTS = made(
    (
        ("eager/downcast", "mm", {**of_kernel("mm", MM), **MM_AUTOCAST}),
        ("eager/fallthrough", "tanh", of_kernel("tanh", TANH)),
        ("eager/fallthrough", "mul.Tensor", of_kernel("mul.Tensor", {"mul-in-the-first-dtype": in_the_first_dtype})),
        ("eager/fallthrough", "permute", {"copies-ignore-strides": copies(without_strides)}),
        ("eager/fallthrough", "tanh", {"an-op-without-a-policy-cast": policies(tanh="upcast")}),
        ("eager/upcast", "exp", {**of_kernel("exp", EXP), "copies-lose-an-element": copies(drops_the_last)}),
        ("eager/upcast", "log", of_kernel("log", {"positive-inputs-saturate": lambda op, x: op(x.clamp(max=4))})),
        ("eager/upcast", "layer_norm", of_kernel("native_layer_norm", _LAYER_NORM)),
        ("eager/upcast", "native_layer_norm", of_kernel("native_layer_norm", _SECOND_OUTPUT)),
        ("eager/downcast", "conv2d", _CONV),
        ("eager/downcast", "addmm", {**of_kernel("addmm", ADDMM)}),
        ("eager/downcast", "bmm", of_kernel("bmm", {"bmm-nan-in-low": giving(lambda out: out * float("nan"), low)})),
        (
            "eager/downcast",
            "linalg_multi_dot",
            {"a-list-element-forgotten": autocast("linalg_multi_dot", low_but_last)},
        ),
        ("eager/optdtype", "sum.dim_IntList", SUM),
        ("eager/promote", "addcmul", {"addcmul-not-promoted": policies(addcmul="fallthrough")}),
        ("eager/banned", "binary_cross_entropy", {"banned-runs": policies(binary_cross_entropy="fallthrough")}),
        ("autograd/optdtype", "softmax.int", of_kernel("_softmax_backward_data", SOFTMAX_BACKWARD)),
        (
            "autograd/optdtype",
            "softmax.int",
            of_kernel("_softmax", {"gradient-off-in-regions-alone": giving(lambda out: out * 0.5, in_region)}),
        ),
        ("autograd/upcast", "mse_loss", of_kernel("mse_loss_backward", MSE_BACKWARD)),
        ("autograd/downcast", "conv2d", of_kernel("convolution_backward", _CONV_BACKWARD)),
        (
            "autograd/downcast",
            "mm",
            {
                "no-kernel-where-gradients-are-needed": autocast("mm", needing_gradients),
                "detached": autocast("mm", without_a_graph),
            },
        ),
        (
            "eager/eligibility",
            "every_spelling_of_powers",
            {"a-power-not-cast": policies(pow__Tensor_Scalar="fallthrough")},
        ),
        ("eager/modules", "layer", {"a-layer-changes-the-dtype": kernels("relu", giving(Tensor.float))}),
        (
            "eager/modules",
            "network",
            {"generator-ignores-its-seed": unseeded("native_dropout bernoulli_.float bernoulli.p")},
        ),
    )
)
