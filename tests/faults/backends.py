"""Mistakes of backends: in a kernel, in the copies, in an autocast kernel, or in what the device declares.

Each is injected into two backends of tests/backends, one with opaque storages and one with a partial list of policies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.library import Library
from torch.utils._pytree import tree_map

from ampcheck.register import casts
from tests.faults.mutant import Inject, Mutant

Kernel = Callable[..., Any]
"""A wrong kernel: `(op, *args, **kwargs)` on CPU tensors, where `op` computes what is right."""

When = Callable[..., bool]
"""Whether a call with these arguments is the one to break."""

Tensor = torch.Tensor
LOW = (torch.float16, torch.bfloat16)
BACKENDS = ("opaque", "partial")


@dataclass(frozen=True)
class Subject:
    """A backend that mutants are injected into. `register`: gives it autocast, with these overrides of policies."""

    name: str
    backend: Any
    device: Any
    register: Callable[..., object]


@cache
def subject(backend: str) -> Subject:
    """Return a backend of tests/backends. Making it names PrivateUse1, which a process can do once."""
    module = import_module(backend)
    return Subject(backend, module.BACKEND, module.DEVICES[0], module.register)


# ---- ways to inject


def kernels(overloads: str, change: Kernel) -> Inject:
    """Compute kernels of the backend by `change`."""
    return lambda name: patch.dict(subject(name).backend.mutants, dict.fromkeys(overloads.split(), change))


def copies(copy: Callable[[Tensor, Tensor], object]) -> Inject:
    """Make copies in, out and between dtypes by `copy(target, source)` on CPU tensors."""
    return lambda name: patch.object(subject(name).backend, "copy", copy)


def policies(**overrides: str) -> Inject:
    """Register autocast with other policies than the device promises; in names, `__` is a dot."""

    @contextmanager
    def inject(name: str) -> Iterator[None]:
        register = subject(name).register
        register(**{op.replace("__", "."): policy for op, policy in overrides.items()})
        try:
            yield
        finally:
            register()

    return inject


def autocast(op: str, make: Callable[[Any, str], Kernel]) -> Inject:
    """Register an autocast kernel of the backend's own: `make(op, device type)` of an overload."""

    @contextmanager
    def inject(name: str) -> Iterator[None]:
        library, register = Library("aten", "IMPL"), subject(name).register
        packet, _, overload = op.partition(".")
        register(**{op: "fallthrough"})
        try:
            right = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(op, make(right, name), "AutocastPrivateUse1")
            yield
        finally:
            library._destroy()
            register()

    return inject


def declared(**attributes: Any) -> Inject:
    """Replace attributes and methods of the device as it is declared to ampcheck."""
    return lambda name: patch.multiple(subject(name).device, create=True, **attributes)


def promising(**further: str) -> Inject:
    """Declare policies beside those of the device; in names, `__` is a dot."""

    def inject(name: str) -> AbstractContextManager[object]:
        promised = {op.replace("__", "."): policy for op, policy in further.items()}
        listed = {**subject(name).device.policies(), **promised}
        return declared(policies=lambda: listed)(name)

    return inject


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
    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise error
        return op(*args, **kwargs)

    return kernel


def giving(change: Callable[[Tensor], Any], when: When = always, which: int = 0) -> Kernel:
    """Change the output, or the output number `which`, of the right kernel."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if not when(*args, **kwargs):
            return out
        if isinstance(out, tuple):
            return (*out[:which], change(out[which]), *out[which + 1 :])
        return change(out)

    return kernel


def before(corrupt: Callable[..., object], when: When = always) -> Kernel:
    """Do something to the arguments when the right kernel is done."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if when(*args, **kwargs):
            corrupt(*args)
        return out

    return kernel


def remembering(change: Callable[[Tensor, list[Any]], Any]) -> Callable[[str], Inject]:
    """Change outputs by what was remembered of earlier ones; the memory is new each time it is injected."""

    def of(overloads: str) -> Inject:
        def inject(name: str) -> AbstractContextManager[object]:
            memory: list[Any] = []
            return kernels(overloads, giving(lambda out: change(out, memory)))(name)

        return inject

    return of


def first_like(out: Tensor, memory: list[Any]) -> Tensor:
    """Return the first output of this shape and dtype."""
    found = next((kept for kept in memory if (kept.shape, kept.dtype) == (out.shape, out.dtype)), None)
    if found is None:
        memory.append(out)
    return out if found is None else found


def every_second(out: Tensor, memory: list[Any]) -> Tensor:
    memory.append(True)
    return out * (len(memory) % 2)


def noise(out: Tensor, memory: list[Any]) -> Tensor:
    """Return other values at each call."""
    if not memory:
        memory.append(torch.Generator().manual_seed(1))
    return out + 0.05 * torch.rand(out.shape, generator=memory[0]).to(out.dtype)


def unseeded(overloads: str) -> Inject:
    """Let kernels that draw go on where they last ended, whatever the seed is set to."""

    def inject(name: str) -> AbstractContextManager[object]:
        own = torch.Generator().manual_seed(7).get_state()

        def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal own
            seeded = torch.get_rng_state()
            torch.set_rng_state(own)
            try:
                return op(*args, **kwargs)
            finally:
                own = torch.get_rng_state()
                torch.set_rng_state(seeded)

        return kernels(overloads, kernel)(name)

    return inject


def over_the_input(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return x.copy_(op(x, *args, **kwargs))


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


@contextmanager
def below() -> Iterator[None]:
    """Exclude the autocast key, as PyTorch's kernels do."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
    with torch._C._ExcludeDispatchKeyGuard(key):
        yield


def eligible(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type != "cpu"


def casting(
    to: Callable[[str], torch.dtype] = torch.get_autocast_dtype,
    which: Callable[[Tensor], bool] = eligible,
    *,
    first: Callable[[tuple[Any, ...]], object] = lambda args: None,
    after: Callable[[Any, tuple[Any, ...]], Any] = lambda out, args: out,
    keep: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Callable[[Any, str], Kernel]:
    """Make a kernel that casts to a dtype what is eligible, and makes one of the changes named here."""

    def make(op: Any, device: str) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = to(device)
            first(args)

            def cast(value: Any) -> Any:
                return value.to(dtype) if isinstance(value, Tensor) and which(value) else value

            with below(), around():
                return after(op(*tree_map(cast, args), **tree_map(cast, keep(kwargs))), args)

        return kernel

    return make


def to_the_other(device: str) -> torch.dtype:
    return torch.bfloat16 if torch.get_autocast_dtype(device) == torch.float16 else torch.float16


def first_alone(op: Any, device: str) -> Kernel:
    """Cast all but the last element of a list."""

    def kernel(tensors: list[Tensor]) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with below():
            return op([*(t.to(dtype) for t in tensors[:-1]), tensors[-1]])

    return kernel


def refuse(error: Exception, when: Callable[[tuple[Any, ...]], bool] = lambda args: True) -> Callable[..., None]:
    def first(args: tuple[Any, ...]) -> None:
        if when(args):
            raise error

    return first


def needing_gradients(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(args))


def cast_for_good(args: tuple[Any, ...]) -> None:
    """Give the caller's own tensors the lower precision."""
    for tensor in filter(eligible, _tensors(args)):
        if not tensor.requires_grad:
            tensor.data = tensor.to(torch.get_autocast_dtype(tensor.device.type))


def promoting(choose: Callable[[list[torch.dtype]], torch.dtype]) -> Callable[[Any, str], Kernel]:
    """Make a kernel that casts to one of the dtypes it is given."""

    def make(op: Any, device: str) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            found = [tensor.dtype for tensor in filter(eligible, _tensors(args, kwargs))]
            return casting(lambda _: choose(found) if found else torch.float32)(op, device)(*args, **kwargs)

        return kernel

    return make


def filling(op: Any, device: str) -> Kernel:
    """Write over the caller's own `dtype=`."""

    def kernel(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        with below():
            return op(*args, **kwargs, dtype=torch.float32 if eligible(args[0]) else dtype)

    return kernel


def forgetful(op: Any, device: str) -> Kernel:
    """Fill `dtype=` in, and drop what else the caller asked for."""

    def kernel(x: Tensor, dim: Any = None, *args: Any, dtype: Any = None) -> Any:
        with below():
            return op(x, dim, dtype=dtype or (torch.float32 if eligible(x) else None))

    return kernel


def zeroing(out: Any, args: tuple[Any, ...]) -> Any:
    for tensor in filter(eligible, _tensors(args)):
        tensor.detach().zero_()
    return out


def noisily(args: tuple[Any, ...]) -> None:
    warnings.warn("injected: autocast is experimental here", FutureWarning, stacklevel=1)


def fails(error: Exception) -> Callable[[], Any]:
    def method() -> Any:
        raise error

    return method


# ---- tables


def on(rule: str, op: str, table: Mapping[str, Inject], *backends: str) -> tuple[Mutant, ...]:
    """Return mutants that cases of an op, or of a scenario, must notice on both backends, or on some."""
    return tuple(Mutant(n, rule, inject, backends or BACKENDS, f"{op}[+-]*") for n, inject in table.items())


def of_kernel(rule: str, op: str, overload: str, table: Mapping[str, Kernel], *backends: str) -> tuple[Mutant, ...]:
    return on(rule, op, {name: kernels(overload, change) for name, change in table.items()}, *backends)


MM = {
    "says-there-is-no-kernel": raising(NotImplementedError(NO_KERNEL), low),
    "says-so-as-a-runtime-error": raising(RuntimeError(NO_KERNEL), low),
    "says-so-in-regions-alone": raising(NotImplementedError(NO_KERNEL), in_region),
    "raises-runtime-error-in-low": raising(RuntimeError("injected"), low),
    "raises-not-implemented-in-low": raising(NotImplementedError("injected"), low),
    "raises-assertion-error-in-low": raising(AssertionError("injected"), low),
    "raises-out-of-memory-in-low": raising(torch.OutOfMemoryError("injected"), low),
    "raises-key-error-in-bf16": raising(KeyError("injected"), brain),
    "raises-runtime-error-in-fp16": raising(RuntimeError("injected"), half),
    "raises-for-other-strides": raising(RuntimeError("injected"), uneven),
    "raises-for-no-elements": raising(RuntimeError("injected"), empty),
    "raises-in-regions-alone": raising(RuntimeError("injected"), in_region),
    "mm-wrong": giving(lambda out: out * 1.25),
    "mm-a-quarter-off-in-bf16": giving(lambda out: out * 1.25, brain),
    "mm-2-percent-off-in-bf16": giving(lambda out: out * 1.02, brain),
    "mm-a-fifth-of-a-percent-off-in-fp16": giving(lambda out: (out.float() * 1.002).to(out.dtype), half),
    "mm-zero-in-fp16": giving(torch.zeros_like, half),
    "one-element-wrong": giving(lambda o: o.index_fill(0, torch.tensor([o.shape[0] - 1]), 0) if o.numel() else o),
    "large-values-saturate": giving(lambda out: out.clamp(-64, 64)),
    "small-values-vanish": giving(lambda out: out * (out.abs() > 0.01)),
    "reads-strides-as-contiguous": on_flat,
    "wrong-in-regions-alone": giving(lambda out: out * 1.25, in_region),
    "another-shape": giving(lambda out: out.unsqueeze(0)),
    "a-transposed-shape": giving(lambda out: out.T.contiguous()),
    "the-other-low": giving(other_low),
    "bf16-comes-out-as-fp16": giving(lambda out: out.half(), brain),
    "column-major-mm-in-low": giving(column_major, low),
    "zeroes-its-input": before(lambda a, b: a.zero_()),
    "zeroes-its-second-input": before(lambda a, b: b.zero_()),
    "writes-in-low-alone": before(lambda a, b: a.zero_(), low),
}
TANH = {
    "raises-type-error-in-low": raising(TypeError("injected"), low),
    "tanh-wrong": giving(lambda out: out * 0.9),
    "another-shape-in-low": giving(lambda out: out.flatten(), low),
    "float32-for-low": giving(Tensor.float),
    "column-major": giving(column_major),
    "output-is-the-input": over_the_input,
    "output-in-the-inputs-memory": lambda op, x: over_the_input(op, x).view(-1).view(x.shape),
}
EXP = {
    "raises-runtime-error-always": raising(RuntimeError("injected")),
    "raises-value-error-in-fp32": raising(ValueError("injected"), wide),
    "exp-off-in-fp32": giving(lambda out: out * 1.001, wide),
    "float64-for-float32": giving(Tensor.double),
    "strides-with-gaps": giving(lambda out: torch.stack([out, out], -1)[..., 0]),
    "negates-its-input": before(lambda x: x.neg_() if x.is_floating_point() else x),
}
ADDMM = {
    "raises-index-error-in-low": raising(IndexError("injected"), low),
    "addmm-without-beta": lambda op, bias, *args, **kwargs: op(bias, *args),
    "writes-its-bias": before(lambda bias, *rest: bias.add_(1)),
}
SUM = {
    "sum-wrong": giving(lambda out: out * 1.5),
    "a-dimension-kept": giving(lambda out: out.unsqueeze(-1)),
    "wrong-for-integers": giving(lambda out: out + 1, lambda x, *args, **kwargs: x.dtype == torch.int64),
}
CUMSUM = {
    "raises-attribute-error-always": raising(AttributeError("injected")),
    "cumsum-wrong": giving(lambda out: out.roll(1, 0)),
    "sums-in-place": before(lambda x, dim: x.cumsum_(dim)),
}
SOFTMAX_BACKWARD = {
    "gradient-off": giving(lambda out: out * 1.1),
    "backward-writes-what-was-saved": before(lambda grad, out, *rest: out.zero_()),
}
MSE_BACKWARD = {
    "gradient-nan": giving(lambda out: out * float("nan")),
    "gradient-of-another-shape": giving(lambda out: out.mT.contiguous()),
}
MM_AUTOCAST = {
    "mm-not-cast": policies(mm="fallthrough"),
    "mm-cast-to-float32": policies(mm="upcast"),
    "cast-to-the-other-low": autocast("mm", casting(to_the_other)),
    "cast-to-fp16-always": autocast("mm", casting(lambda device: torch.float16)),
    "integers-cast": autocast("mm", casting(which=lambda t: t.dtype != torch.float64)),
    "doubles-cast": autocast("mm", casting(which=torch.is_floating_point)),
    "only-float32-cast": autocast("mm", casting(which=lambda t: t.dtype == torch.float32)),
    "only-what-needs-gradients-cast": autocast("mm", casting(which=lambda t: t.requires_grad)),
    "raises-in-the-autocast-kernel": autocast("mm", casting(first=refuse(AttributeError("injected")))),
    "output-cast-back": autocast("mm", casting(after=lambda out, args: out.to(args[0].dtype))),
    "zeroes-what-it-cast": autocast("mm", casting(after=zeroing)),
    "casts-the-callers-tensors": autocast("mm", casting(first=cast_for_good)),
    "copies-change-bf16": copies(coarse),
    "copies-refuse-bf16": copies(refusing_brain),
    "casts-truncate": copies(truncating),
    "every-second-call-is-wrong": remembering(every_second)("mm"),
    "one-buffer-for-all-outputs": remembering(lambda out, memory: first_like(out, memory).copy_(out))("mm"),
    "never-twice-the-same": remembering(noise)("mm"),
}
SUM_AUTOCAST = {
    "sum-not-filled-in": policies(sum__dim_IntList="fallthrough"),
    "sum-cast": policies(sum__dim_IntList="downcast"),
    "arguments-dropped": autocast("sum.dim_IntList", forgetful),
    "the-callers-dtype-written-over": autocast("sum.dim_IntList", filling),
}
LOSS = "binary_cross_entropy"
BANNED = {
    "banned-runs": policies(binary_cross_entropy="fallthrough"),
    "banned-as-a-value-error": autocast(LOSS, casting(first=refuse(ValueError(f"use {LOSS}_with_logits")))),
    "banned-without-advice": autocast(LOSS, casting(first=refuse(RuntimeError("no")))),
}
ADDCMUL = {
    "addcmul-not-promoted": policies(addcmul="fallthrough"),
    "promotes-to-the-narrowest": autocast("addcmul", promoting(lambda found: min(found, key=lambda d: d.itemsize))),
    "promotes-to-the-first": autocast("addcmul", promoting(lambda found: found[0])),
}
MM_OF_GRADIENTS = {
    "no-kernel-where-gradients-are-needed": autocast(
        "mm", casting(first=refuse(NotImplementedError(NO_KERNEL), needing_gradients))
    ),
    "detached": autocast("mm", casting(around=torch.no_grad)),
}
KEPT_CASTS = {
    "kept-casts-stay": lambda name: patch.object(
        casts.Cache, "_fresh", lambda self, found, weight: found.weight() is weight
    )
}
DECLARED = {
    "misspelt-policy": promising(mm="downcst"),
    "promise-for-no-op": promising(matmull="downcast"),
    "promise-for-no-overload": promising(sum__dim="optdtype"),
    "a-key-that-does-not-exist": declared(key="AutocastPrivateUse9"),
    "the-key-of-another-type": declared(key="AutocastCUDA"),
    "policies-raise": declared(policies=fails(KeyError("injected"))),
    "unavailable-raises": declared(unavailable=fails(OSError("injected"))),
    "policies-is-a-list": declared(policies=lambda: ["mm"]),
}
"""Declarations for which a run must be refused before its first case."""

HARMLESS = {
    "warns": kernels("mm", warning(UserWarning)),
    "warns-in-low": kernels("mm", warning(DeprecationWarning, low)),
    "warns-when-casting": autocast("mm", casting(first=noisily)),
}
"""What a backend may do without a case being red."""

REFUSED = tuple(Mutant(name, "eager/downcast", inject, BACKENDS) for name, inject in DECLARED.items())
WARNINGS = (
    *on("eager/downcast", "mm", HARMLESS),
    *on("eager/upcast", "exp", {"warns-of-runtime": kernels("exp", warning(RuntimeWarning))}),
    *on(
        "autograd/optdtype",
        "softmax.int",
        {"warns-in-backward": kernels("_softmax_backward_data", warning(UserWarning))},
    ),
)
_OPAQUE = BACKENDS[0]
MUTANTS = (
    *of_kernel("eager/downcast", "mm", "mm", MM),
    *on("eager/downcast", "mm", MM_AUTOCAST),
    *of_kernel("eager/fallthrough", "tanh", "tanh", TANH),
    *of_kernel("eager/fallthrough", "neg", "neg", {"neg-wrong": giving(torch.abs)}),
    *on("eager/fallthrough", "permute", {"copies-ignore-strides": copies(without_strides)}),
    *on("eager/fallthrough", "tanh", {"an-op-without-a-policy-cast": policies(tanh="upcast")}),
    *of_kernel("eager/upcast", "exp", "exp", EXP),
    *on(
        "eager/upcast",
        "exp",
        {"copies-lose-an-element": copies(drops_the_last), "exp-downcast": policies(exp="downcast")},
    ),
    *of_kernel(
        "eager/upcast",
        "layer_norm",
        "native_layer_norm",
        {
            "raises-not-implemented-always": raising(NotImplementedError("injected")),
            "layer-norm-without-weight": without_weight,
        },
    ),
    *of_kernel(
        "eager/upcast",
        "native_layer_norm",
        "native_layer_norm",
        {
            "a-second-output-of-another-shape": giving(lambda out: out.flatten(), which=1),
        },
        _OPAQUE,
    ),
    *of_kernel("eager/downcast", "addmm", "addmm", ADDMM),
    *on(
        "eager/downcast",
        "addmm",
        {
            "remembers-the-first-result": remembering(lambda out, memory: first_like(out, memory).clone())("addmm"),
            "keywords-dropped": autocast("addmm", casting(keep=lambda kwargs: {})),
        },
    ),
    *of_kernel(
        "eager/downcast",
        "bmm",
        "bmm",
        {
            "raises-attribute-error-in-low": raising(AttributeError("injected"), low),
            "bmm-nan-in-low": giving(lambda out: out * float("nan"), low),
        },
    ),
    *on("eager/downcast", "linear", {"linear-not-cast": policies(linear="fallthrough")}),
    *on("eager/downcast", "linalg_multi_dot", {"a-list-element-forgotten": autocast("linalg_multi_dot", first_alone)}),
    *of_kernel("eager/optdtype", "sum.dim_IntList", "sum.dim_IntList", SUM),
    *on("eager/optdtype", "sum.dim_IntList", SUM_AUTOCAST),
    *of_kernel("eager/optdtype", "cumsum", "cumsum", CUMSUM),
    *of_kernel(
        "eager/optdtype",
        "softmax.int",
        "_softmax",
        {
            "raises-index-error-always": raising(IndexError("injected")),
            "softmax-unnormalised": giving(lambda out: out * 2),
        },
    ),
    *on("eager/append", "norm.ScalarOpt_dim", {"norm-not-sent-on": policies(norm__ScalarOpt_dim="fallthrough")}),
    *on("eager/promote", "addcmul", ADDCMUL),
    *on("eager/banned", LOSS, BANNED),
    *of_kernel("autograd/optdtype", "softmax.int", "_softmax_backward_data", SOFTMAX_BACKWARD),
    *of_kernel(
        "autograd/optdtype",
        "softmax.int",
        "_softmax_backward_data",
        {
            "raises-in-backward": raising(RuntimeError("injected")),
        },
        _OPAQUE,
    ),
    *of_kernel(
        "autograd/optdtype",
        "softmax.int",
        "_softmax",
        {
            "gradient-off-in-regions-alone": giving(lambda out: out * 0.5, in_region),
        },
    ),
    *of_kernel(
        "autograd/upcast",
        "layer_norm",
        "native_layer_norm_backward",
        {
            "gradient-zero": giving(torch.zeros_like, which=1),
        },
    ),
    *of_kernel("autograd/upcast", "mse_loss", "mse_loss_backward", MSE_BACKWARD),
    *of_kernel(
        "autograd/upcast",
        "mse_loss",
        "mse_loss_backward",
        {
            "says-so-in-backward": raising(NotImplementedError(NO_KERNEL)),
        },
        _OPAQUE,
    ),
    *of_kernel(
        "autograd/downcast",
        "conv2d",
        "convolution_backward",
        {
            "gradient-negated-in-low": giving(torch.neg, low, which=1),
        },
    ),
    *of_kernel(
        "autograd/downcast",
        "conv2d",
        "convolution_backward",
        {
            "raises-in-backward-in-low": raising(AttributeError("injected"), low),
        },
        _OPAQUE,
    ),
    *on("autograd/downcast", "mm", MM_OF_GRADIENTS),
    *on("eager/cache", "changed_weight", KEPT_CASTS),
    *on(
        "eager/eligibility",
        "every_spelling_of_powers",
        {"a-power-not-cast": policies(pow__Tensor_Scalar="fallthrough")},
    ),
    *on("eager/modules", "layer", {"a-layer-changes-the-dtype": kernels("relu", giving(Tensor.float))}),
    *on(
        "eager/modules",
        "network",
        {
            "generator-ignores-its-seed": unseeded("native_dropout bernoulli_.float bernoulli.p"),
        },
    ),
)
