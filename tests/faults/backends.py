"""Mistakes of backends: in a kernel, in the copies, in an autocast kernel, or in what the device declares.

Each is planted in two backends of tests/backends, one with opaque storages and one with a partial list of policies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch.library import Library
from torch.utils._pytree import tree_map

from ampcheck.register import weight_cache
from tests.faults.fault import REFUSED, Fault

Kernel = Callable[..., Any]
"""A planted kernel: `(op, *args, **kwargs)` on CPU tensors, where `op` computes what is right."""

Tensor = torch.Tensor
LOW = (torch.float16, torch.bfloat16)
BACKENDS = ("opaque", "partial")


@dataclass(frozen=True)
class Subject:
    """A backend that faults are planted in. `register`: gives it autocast, with these overrides of policies."""

    name: str
    backend: Any
    device: Any
    register: Callable[..., object]


InjectInto = Callable[[Subject], AbstractContextManager[object]]


@cache
def _subject(backend: str) -> Subject:
    """A backend of tests/backends. Making it names PrivateUse1, which a process can do once."""
    module = import_module(backend)
    return Subject(backend, module.BACKEND, module.DEVICES[0], module.register)


def _fault(
    name: str,
    where: str,
    inject: InjectInto,
    statuses: tuple[str, ...],
    says: tuple[str, ...],
    backends: tuple[str, ...] = BACKENDS,
) -> tuple[Fault, ...]:
    """A mistake in each of some backends.

    `where`: `suite/rule/op/words`, which choose cases as `op` and `only` of a fault do; without words the op's main
    sample alone; "" where the run must be refused.
    """
    suite, rule, op, only = [*where.split("/"), f"{where.rpartition('/')[2]}-"][:4] if where else [""] * 4
    made = Fault(name, rule, nullcontext, says, suite, "", op, only, statuses=statuses)
    return tuple(replace(made, device=backend, inject=partial(_injected, inject, backend)) for backend in backends)


def _injected(inject: InjectInto, backend: str) -> AbstractContextManager[object]:
    return inject(_subject(backend))


MM = "eager/downcast/mm/" + " or ".join(
    f"mm-{inputs}-"
    for inputs in ("fp32-fp16", "fp32-bf16", "bf16-fp16", "fp16_fp32-fp16", "fp32_fp16-fp16", "int64-fp16", "fp64-fp16")
)
BROKEN, FAIL = ("broken",), ("fail",)
EITHER = ("broken", "fail")


# ---- ways to plant


def kernels(overloads: str, change: Kernel) -> InjectInto:
    """Kernels of the backend, computed by `change`."""

    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        mutants = subject.backend.mutants
        mutants.update(dict.fromkeys(overloads.split(), change))
        try:
            yield
        finally:
            mutants.clear()

    return inject


def fresh(overloads: str, make: Callable[[], Kernel]) -> InjectInto:
    """The same, of a kernel with a new state each time it is planted."""
    return lambda subject: kernels(overloads, make())(subject)


def copies(copy: Callable[[Tensor, Tensor], object]) -> InjectInto:
    """Copies in, out and between dtypes, made by `copy(target, source)` on CPU tensors."""

    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        right = subject.backend.copy
        subject.backend.copy = copy
        try:
            yield
        finally:
            subject.backend.copy = right

    return inject


def policies(**overrides: str) -> InjectInto:
    """Autocast registered with other policies than the device promises; in names, `__` is a dot."""

    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        subject.register(**{name.replace("__", "."): policy for name, policy in overrides.items()})
        try:
            yield
        finally:
            subject.register()

    return inject


def autocast(name: str, make: Callable[[Any, str], Kernel]) -> InjectInto:
    """An autocast kernel of the backend's own: `make(op, device type)` of an overload."""

    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        library = Library("aten", "IMPL")
        subject.register(**{name: "fallthrough"})
        try:
            library.impl(name, make(_overload(name), subject.name), "AutocastPrivateUse1")
            yield
        finally:
            library._destroy()
            subject.register()

    return inject


def declared(**attributes: Any) -> InjectInto:
    """Attributes and methods of the device as it is declared to ampcheck."""

    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        vars(subject.device).update(before := dict(vars(subject.device)) | attributes)
        try:
            yield
        finally:
            for name in attributes:
                delattr(subject.device, name)
            vars(subject.device).update({n: v for n, v in before.items() if n not in attributes})

    return inject


def _overload(name: str) -> Any:
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


# ---- what is asked of a call


def _tensors(*values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(lambda value: found.append(value) if isinstance(value, Tensor) else None, values)
    return found


def low(*args: Any, **kwargs: Any) -> bool:
    return any(tensor.dtype in LOW for tensor in _tensors(args, kwargs))


def brain(*args: Any, **kwargs: Any) -> bool:
    return any(tensor.dtype == torch.bfloat16 for tensor in _tensors(args, kwargs))


def half(*args: Any, **kwargs: Any) -> bool:
    return any(tensor.dtype == torch.float16 for tensor in _tensors(args, kwargs))


def wide(*args: Any, **kwargs: Any) -> bool:
    return any(tensor.dtype == torch.float32 for tensor in _tensors(args, kwargs))


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def uneven(*args: Any, **kwargs: Any) -> bool:
    return any(not tensor.is_contiguous() for tensor in _tensors(args, kwargs))


def empty(*args: Any, **kwargs: Any) -> bool:
    return any(tensor.numel() == 0 for tensor in _tensors(args, kwargs))


def in_region(*args: Any, **kwargs: Any) -> bool:
    """Return whether the thread is inside of a region, which a kernel can ask and should not."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


# ---- kernels


def raising(error: BaseException, when: Callable[..., bool] = always) -> Kernel:
    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise error
        return op(*args, **kwargs)

    return kernel


def giving(change: Callable[[Tensor], Any], when: Callable[..., bool] = always, which: int = 0) -> Kernel:
    """The right kernel, whose output, or whose output number `which`, is changed."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if not when(*args, **kwargs):
            return out
        if isinstance(out, tuple):
            return (*out[:which], change(out[which]), *out[which + 1 :])
        return change(out)

    return kernel


def before(corrupt: Callable[..., object], when: Callable[..., bool] = always) -> Kernel:
    """The right kernel, which does something to its arguments when it is done."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if when(*args, **kwargs):
            corrupt(*args)
        return out

    return kernel


def on_arguments(change: Callable[[Tensor], Tensor], when: Callable[..., bool] = always) -> Kernel:
    """The right kernel on changed arguments."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        if not when(*args, **kwargs):
            return op(*args, **kwargs)
        return op(*tree_map(lambda value: change(value) if isinstance(value, Tensor) else value, args), **kwargs)

    return kernel


def over_the_input(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The output is the input, overwritten."""
    return x.copy_(op(x, *args, **kwargs))


def in_the_inputs_memory(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The output is a view of the input, overwritten."""
    return x.copy_(op(x, *args, **kwargs)).view(-1).view(x.shape)


def aliased(op: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The output is a view of the input, with the right values."""
    return x.view(x.shape)


def one_buffer() -> Kernel:
    """Outputs of one shape and dtype are all the same memory."""
    cached: dict[Any, Tensor] = {}

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        return cached.setdefault((out.shape, out.dtype), out).copy_(out)

    return kernel


def remembered() -> Kernel:
    """Return the first result for a shape and dtype at every call."""
    cached: dict[Any, Tensor] = {}

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        return cached.setdefault((out.shape, out.dtype), out).clone()

    return kernel


def every_second() -> Kernel:
    """Every second call gives zeros."""
    calls = 0

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return op(*args, **kwargs) * (calls % 2)

    return kernel


def noise() -> Kernel:
    """Other values at each call."""
    generator = torch.Generator().manual_seed(1)

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        return out + 0.05 * torch.rand(out.shape, generator=generator).to(out.dtype)

    return kernel


def unseeded() -> Kernel:
    """A kernel that draws goes on where it last ended, whatever the seed is set to."""
    own = torch.Generator().manual_seed(7).get_state()

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal own
        outside = torch.get_rng_state()
        torch.set_rng_state(own)
        try:
            return op(*args, **kwargs)
        finally:
            own = torch.get_rng_state()
            torch.set_rng_state(outside)

    return kernel


def warning(category: type[Warning], when: Callable[..., bool] = always) -> Kernel:
    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            warnings.warn("planted: this kernel is slow", category, stacklevel=1)
        return op(*args, **kwargs)

    return kernel


def flat(tensor: Tensor) -> Tensor:
    """A tensor's memory read as if it were contiguous."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def column_major(out: Tensor) -> Tensor:
    """The same values with the strides of the transposed."""
    return out.mT.contiguous().mT


def other_low(out: Tensor) -> Tensor:
    return out.to({torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}.get(out.dtype, out.dtype))


def without_beta(op: Any, bias: Tensor, *args: Any, **kwargs: Any) -> Any:
    return op(bias, *args)


def without_weight(op: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return op(x, shape, None, bias, eps)


def says(kind: type[Exception], text: str = "planted") -> Exception:
    return kind(text)


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
        raise RuntimeError("planted: bfloat16 cannot be copied")
    target.copy_(source)


def truncating(target: Tensor, source: Tensor) -> None:
    """Casts to bfloat16 cut bits off in the place of rounding."""
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
    """The autocast key excluded, as PyTorch's kernels do."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
    with torch._C._ExcludeDispatchKeyGuard(key):
        yield


def eligible(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type != "cpu"


def casting(
    to: Callable[[str], torch.dtype] = torch.get_autocast_dtype,
    which: Callable[[Tensor], bool] = eligible,
    *,
    after: Callable[[Any, tuple[Any, ...]], Any] = lambda out, args: out,
    keep: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    around: Callable[[], AbstractContextManager[object]] = ExitStack,
) -> Callable[[Any, str], Kernel]:
    """A kernel that casts to a dtype what is eligible, and makes one of the changes named here."""

    def make(op: Any, device: str) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = to(device)

            def cast(value: Any) -> Any:
                return value.to(dtype) if isinstance(value, Tensor) and which(value) else value

            with below(), around():
                return after(op(*tree_map(cast, args), **tree_map(cast, keep(kwargs))), args)

        return kernel

    return make


def to_the_other(device: str) -> torch.dtype:
    return torch.bfloat16 if torch.get_autocast_dtype(device) == torch.float16 else torch.float16


def first_alone(op: Any, device: str) -> Kernel:
    """Of a list, all but the last element are cast."""

    def kernel(tensors: list[Tensor]) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with below():
            return op([*(t.to(dtype) for t in tensors[:-1]), tensors[-1]])

    return kernel


def refusing_gradients(op: Any, device: str) -> Kernel:
    right = casting()(op, device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(args)):
            raise NotImplementedError(NO_KERNEL)
        return right(*args, **kwargs)

    return kernel


def refusing(error: Exception) -> Callable[[Any, str], Kernel]:
    def make(op: Any, device: str) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            raise error

        return kernel

    return make


def in_place(op: Any, device: str) -> Kernel:
    """The caller's own tensors are given the lower precision."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        for tensor in filter(eligible, _tensors(args)):
            if not tensor.requires_grad:
                tensor.data = tensor.to(torch.get_autocast_dtype(device))
        return casting()(op, device)(*args, **kwargs)

    return kernel


def promoting(choose: Callable[[list[torch.dtype]], torch.dtype]) -> Callable[[Any, str], Kernel]:
    """A kernel that casts to one of the dtypes it is given."""

    def make(op: Any, device: str) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            found = [tensor.dtype for tensor in filter(eligible, _tensors(args, kwargs))]
            return casting(lambda _: choose(found) if found else torch.float32)(op, device)(*args, **kwargs)

        return kernel

    return make


def filling(op: Any, device: str) -> Kernel:
    """The caller's own `dtype=` is written over."""

    def kernel(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        with below():
            return op(*args, **kwargs, dtype=torch.float32 if eligible(args[0]) else dtype)

    return kernel


def forgetful(op: Any, device: str) -> Kernel:
    """`dtype=` is filled in, and what else the caller asked for is dropped."""

    def kernel(x: Tensor, dim: Any = None, *args: Any, dtype: Any = None) -> Any:
        with below():
            return op(x, dim, dtype=dtype or (torch.float32 if eligible(x) else None))

    return kernel


def noisy_cast(op: Any, device: str) -> Kernel:
    right = casting()(op, device)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("planted: autocast is experimental here", FutureWarning, stacklevel=1)
        return right(*args, **kwargs)

    return kernel


def zeroing(out: Any, args: tuple[Any, ...]) -> Any:
    for tensor in filter(eligible, _tensors(args)):
        tensor.detach().zero_()
    return out


@contextmanager
def stale(subject: Subject) -> Iterator[None]:
    """Kept casts stay whatever happens to their weight."""
    right = weight_cache.Cache._fresh
    weight_cache.Cache._fresh = lambda self, found, weight: found.weight() is weight  # type: ignore[method-assign]
    try:
        yield
    finally:
        weight_cache.Cache._fresh = right  # type: ignore[method-assign]


# ---- declarations


def _promise(**further: str) -> InjectInto:
    @contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        listed = {**subject.device.policies(), **{name.replace("__", "."): p for name, p in further.items()}}
        with declared(policies=lambda: listed)(subject):
            yield

    return inject


def _raise(error: Exception) -> Callable[[], Any]:
    def method() -> Any:
        raise error

    return method


SOFTMAX, LAYER, MSE, CONV = (
    f"autograd/{rule}/{op}/{op}- and grad-"
    for rule, op in (
        ("optdtype", "softmax.int"),
        ("upcast", "layer_norm"),
        ("upcast", "mse_loss"),
        ("downcast", "conv2d"),
    )
)

RAISING = (
    *_fault(
        "raises-runtime-error-in-low",
        MM,
        kernels("mm", raising(says(RuntimeError), low)),
        BROKEN,
        ("RuntimeError: planted", "mm"),
    ),
    *_fault(
        "raises-attribute-error-in-low",
        "eager/downcast/bmm",
        kernels("bmm", raising(says(AttributeError), low)),
        BROKEN,
        ("AttributeError: planted", "bmm"),
    ),
    *_fault(
        "raises-index-error-in-low",
        "eager/downcast/addmm",
        kernels("addmm", raising(says(IndexError), low)),
        BROKEN,
        ("IndexError: planted", "addmm"),
    ),
    *_fault(
        "raises-type-error-in-low",
        "eager/fallthrough/tanh",
        kernels("tanh", raising(says(TypeError), low)),
        BROKEN,
        ("TypeError: planted", "tanh"),
    ),
    *_fault(
        "raises-not-implemented-in-low",
        MM,
        kernels("mm", raising(says(NotImplementedError), low)),
        BROKEN,
        ("NotImplementedError: planted", "mm"),
    ),
    *_fault(
        "raises-assertion-error-in-low",
        MM,
        kernels("mm", raising(says(AssertionError), low)),
        BROKEN,
        ("AssertionError: planted", "mm"),
    ),
    *_fault(
        "raises-out-of-memory-in-low",
        MM,
        kernels("mm", raising(torch.OutOfMemoryError("planted"), low)),
        BROKEN,
        ("OutOfMemoryError: planted", "mm"),
    ),
    *_fault(
        "raises-key-error-in-bf16",
        MM,
        kernels("mm", raising(says(KeyError), brain)),
        BROKEN,
        ("KeyError: 'planted'", "mm"),
    ),
    *_fault(
        "raises-runtime-error-in-fp16",
        MM,
        kernels("mm", raising(says(RuntimeError), half)),
        BROKEN,
        ("RuntimeError: planted", "mm"),
    ),
    *_fault(
        "raises-runtime-error-always",
        "eager/upcast/exp",
        kernels("exp", raising(says(RuntimeError))),
        BROKEN,
        ("RuntimeError: planted", "exp"),
    ),
    *_fault(
        "raises-attribute-error-always",
        "eager/optdtype/cumsum",
        kernels("cumsum", raising(says(AttributeError))),
        BROKEN,
        ("AttributeError: planted", "cumsum"),
    ),
    *_fault(
        "raises-index-error-always",
        "eager/optdtype/softmax.int",
        kernels("_softmax", raising(says(IndexError))),
        BROKEN,
        ("IndexError: planted", "softmax"),
    ),
    *_fault(
        "raises-not-implemented-always",
        "eager/upcast/layer_norm",
        kernels("native_layer_norm", raising(says(NotImplementedError))),
        BROKEN,
        ("NotImplementedError: planted", "layer_norm"),
    ),
    *_fault(
        "raises-value-error-in-fp32",
        "eager/upcast/exp",
        kernels("exp", raising(says(ValueError), wide)),
        BROKEN,
        ("ValueError: planted", "exp"),
    ),
    *_fault(
        "raises-for-other-strides",
        MM,
        kernels("mm", raising(says(RuntimeError), uneven)),
        EITHER,
        ("RuntimeError: planted", "mm"),
    ),
    *_fault(
        "raises-for-no-elements",
        "eager/downcast/mm/empty-",
        kernels("mm", raising(says(RuntimeError), empty)),
        BROKEN,
        ("RuntimeError: planted", "mm"),
    ),
    *_fault(
        "raises-in-regions-alone",
        MM,
        kernels("mm", raising(says(RuntimeError), in_region)),
        FAIL,
        ("RuntimeError: planted", "mm"),
    ),
    *_fault(
        "raises-in-backward",
        SOFTMAX,
        kernels("_softmax_backward_data", raising(says(RuntimeError))),
        BROKEN,
        ("RuntimeError: planted", "softmax"),
        ("opaque",),
    ),
    *_fault(
        "raises-in-backward-in-low",
        CONV,
        kernels("convolution_backward", raising(says(AttributeError), low)),
        BROKEN,
        ("AttributeError: planted", "conv2d"),
        ("opaque",),
    ),
    *_fault(
        "says-there-is-no-kernel",
        MM,
        kernels("mm", raising(NotImplementedError(NO_KERNEL), low)),
        BROKEN,
        ("Could not run 'aten::mm'",),
    ),
    *_fault(
        "says-so-as-a-runtime-error",
        MM,
        kernels("mm", raising(RuntimeError(NO_KERNEL), low)),
        BROKEN,
        ("Could not run 'aten::mm'",),
    ),
    *_fault(
        "says-so-in-backward",
        MSE,
        kernels("mse_loss_backward", raising(NotImplementedError(NO_KERNEL))),
        BROKEN,
        ("Could not run 'aten::mm'", "mse_loss"),
        ("opaque",),
    ),
    *_fault(
        "says-so-in-regions-alone",
        MM,
        kernels("mm", raising(NotImplementedError(NO_KERNEL), in_region)),
        FAIL,
        ("Could not run 'aten::mm'",),
    ),
)

VALUES = (
    *_fault("mm-wrong", MM, kernels("mm", giving(lambda out: out * 1.25)), BROKEN, ("mm",)),
    *_fault("tanh-wrong", "eager/fallthrough/tanh", kernels("tanh", giving(lambda out: out * 0.9)), BROKEN, ("tanh",)),
    *_fault(
        "sum-wrong",
        "eager/optdtype/sum.dim_IntList",
        kernels("sum.dim_IntList", giving(lambda out: out * 1.5)),
        BROKEN,
        ("sum",),
    ),
    *_fault(
        "cumsum-wrong",
        "eager/optdtype/cumsum",
        kernels("cumsum", giving(lambda out: out.roll(1, 0))),
        BROKEN,
        ("cumsum",),
    ),
    *_fault(
        "mm-a-quarter-off-in-bf16", MM, kernels("mm", giving(lambda out: out * 1.25, brain)), BROKEN, ("mm", "bf16")
    ),
    *_fault(
        "mm-2-percent-off-in-bf16", MM, kernels("mm", giving(lambda out: out * 1.02, brain)), BROKEN, ("mm", "bf16")
    ),
    *_fault(
        "mm-a-fifth-of-a-percent-off-in-fp16",
        MM,
        kernels("mm", giving(lambda out: (out.float() * 1.002).to(out.dtype), half)),
        BROKEN,
        ("mm", "fp16"),
    ),
    *_fault("mm-zero-in-fp16", MM, kernels("mm", giving(torch.zeros_like, half)), BROKEN, ("mm", "fp16")),
    *_fault(
        "exp-off-in-fp32", "eager/upcast/exp", kernels("exp", giving(lambda out: out * 1.001, wide)), BROKEN, ("exp",)
    ),
    *_fault(
        "bmm-nan-in-low",
        "eager/downcast/bmm",
        kernels("bmm", giving(lambda out: out * float("nan"), low)),
        BROKEN,
        ("bmm",),
    ),
    *_fault(
        "one-element-wrong",
        MM,
        kernels(
            "mm", giving(lambda out: out.index_fill(0, torch.tensor([out.shape[0] - 1]), 0) if out.numel() else out)
        ),
        BROKEN,
        ("mm",),
    ),
    *_fault("addmm-without-beta", "eager/downcast/addmm/scaled-", kernels("addmm", without_beta), BROKEN, ("addmm",)),
    *_fault(
        "layer-norm-without-weight",
        "eager/upcast/layer_norm",
        kernels("native_layer_norm", without_weight),
        BROKEN,
        ("layer_norm",),
    ),
    *_fault("relu-wrong", "eager/fallthrough/neg", kernels("neg", giving(torch.abs)), BROKEN, ("neg",)),
    *_fault(
        "softmax-unnormalised",
        "eager/optdtype/softmax.int",
        kernels("_softmax", giving(lambda out: out * 2)),
        BROKEN,
        ("softmax",),
    ),
    *_fault("large-values-saturate", MM, kernels("mm", giving(lambda out: out.clamp(-64, 64))), BROKEN, ("mm",)),
    *_fault("small-values-vanish", MM, kernels("mm", giving(lambda out: out * (out.abs() > 1e-2))), BROKEN, ("mm",)),
    *_fault("reads-strides-as-contiguous", MM, kernels("mm", on_arguments(flat)), EITHER, ("mm",)),
    *_fault("every-second-call-is-wrong", MM, fresh("mm", every_second), EITHER, ("mm",)),
    *_fault("remembers-the-first-result", "eager/downcast/addmm/", fresh("addmm", remembered), EITHER, ("addmm",)),
    *_fault("never-twice-the-same", MM, fresh("mm", noise), EITHER, ("mm",)),
    *_fault("wrong-in-regions-alone", MM, kernels("mm", giving(lambda out: out * 1.25, in_region)), FAIL, ("mm",)),
    *_fault(
        "wrong-for-integers",
        "eager/optdtype/sum.dim_IntList/IntList-int64-",
        kernels("sum.dim_IntList", giving(lambda out: out + 1, lambda x, *a, **k: x.dtype == torch.int64)),
        BROKEN,
        ("sum",),
    ),
    *_fault(
        "generator-ignores-its-seed",
        "eager/modules/network/Dropout_train-",
        fresh("native_dropout bernoulli_.float bernoulli.p", unseeded),
        EITHER,
        ("Dropout",),
    ),
)

SHAPES = (
    *_fault("another-shape", MM, kernels("mm", giving(lambda out: out.unsqueeze(0))), BROKEN, ("mm", "shape")),
    *_fault("a-transposed-shape", MM, kernels("mm", giving(lambda out: out.T.contiguous())), BROKEN, ("mm", "shape")),
    *_fault(
        "a-dimension-kept",
        "eager/optdtype/sum.dim_IntList",
        kernels("sum.dim_IntList", giving(lambda out: out.unsqueeze(-1))),
        BROKEN,
        ("sum", "shape"),
    ),
    *_fault(
        "another-shape-in-low",
        "eager/fallthrough/tanh",
        kernels("tanh", giving(lambda out: out.flatten(), low)),
        BROKEN,
        ("tanh", "shape"),
    ),
    *_fault(
        "float32-for-low",
        "eager/fallthrough/tanh",
        kernels("tanh", giving(torch.Tensor.float)),
        BROKEN,
        ("tanh", "fp32"),
    ),
    *_fault(
        "float64-for-float32", "eager/upcast/exp", kernels("exp", giving(torch.Tensor.double)), BROKEN, ("exp", "fp64")
    ),
    *_fault("the-other-low", MM, kernels("mm", giving(other_low)), BROKEN, ("mm",)),
    *_fault("bf16-comes-out-as-fp16", MM, kernels("mm", giving(lambda out: out.half(), brain)), BROKEN, ("mm", "fp16")),
    *_fault(
        "column-major", "eager/fallthrough/tanh", kernels("tanh", giving(column_major)), BROKEN, ("tanh", "stride")
    ),
    *_fault("column-major-mm-in-low", MM, kernels("mm", giving(column_major, low)), BROKEN, ("mm", "stride")),
    *_fault(
        "strides-with-gaps",
        "eager/upcast/exp",
        kernels("exp", giving(lambda out: torch.stack([out, out], -1)[..., 0])),
        BROKEN,
        ("exp", "stride"),
    ),
    *_fault(
        "a-second-output-of-another-shape",
        "eager/upcast/native_layer_norm",
        kernels("native_layer_norm", giving(lambda out: out.flatten(), which=1)),
        BROKEN,
        ("native_layer_norm", "shape"),
        ("opaque",),
    ),
)

MEMORY = (
    *_fault("zeroes-its-input", MM, kernels("mm", before(lambda a, b: a.zero_())), BROKEN, ("mm", "argument 0")),
    *_fault("zeroes-its-second-input", MM, kernels("mm", before(lambda a, b: b.zero_())), BROKEN, ("mm", "argument 1")),
    *_fault(
        "negates-its-input",
        "eager/upcast/exp",
        kernels("exp", before(lambda x: x.neg_() if x.is_floating_point() else x)),
        BROKEN,
        ("exp", "argument 0"),
    ),
    *_fault(
        "writes-its-bias",
        "eager/downcast/addmm",
        kernels("addmm", before(lambda bias, *rest: bias.add_(1))),
        BROKEN,
        ("addmm", "argument 0"),
    ),
    *_fault(
        "sums-in-place",
        "eager/optdtype/cumsum",
        kernels("cumsum", before(lambda x, dim: x.cumsum_(dim))),
        BROKEN,
        ("cumsum", "argument 0"),
    ),
    *_fault(
        "writes-in-low-alone", MM, kernels("mm", before(lambda a, b: a.zero_(), low)), BROKEN, ("mm", "argument 0")
    ),
    *_fault(
        "output-is-the-input", "eager/fallthrough/tanh", kernels("tanh", over_the_input), BROKEN, ("tanh", "argument 0")
    ),
    *_fault(
        "output-in-the-inputs-memory",
        "eager/fallthrough/tanh",
        kernels("tanh", in_the_inputs_memory),
        BROKEN,
        ("tanh", "argument 0"),
    ),
    *_fault("one-buffer-for-all-outputs", MM, fresh("mm", one_buffer), EITHER, ("mm",)),
)

GRADIENTS = (
    *_fault(
        "gradient-off",
        SOFTMAX,
        kernels("_softmax_backward_data", giving(lambda out: out * 1.1)),
        BROKEN,
        ("gradient", "softmax"),
    ),
    *_fault(
        "gradient-zero",
        LAYER,
        kernels("native_layer_norm_backward", giving(torch.zeros_like, which=1)),
        BROKEN,
        ("gradient", "layer_norm"),
    ),
    *_fault(
        "gradient-negated-in-low",
        CONV,
        kernels("convolution_backward", giving(torch.neg, low, which=1)),
        BROKEN,
        ("gradient", "conv2d"),
    ),
    *_fault(
        "gradient-nan",
        MSE,
        kernels("mse_loss_backward", giving(lambda out: out * float("nan"))),
        BROKEN,
        ("gradient", "mse_loss"),
    ),
    *_fault(
        "gradient-of-another-shape",
        MSE,
        kernels("mse_loss_backward", giving(lambda out: out.mT.contiguous())),
        BROKEN,
        ("mse_loss",),
    ),
    *_fault(
        "gradient-off-in-regions-alone",
        SOFTMAX,
        kernels("_softmax", giving(lambda out: out * 0.5, in_region)),
        FAIL,
        ("softmax",),
    ),
    *_fault(
        "backward-writes-what-was-saved",
        SOFTMAX,
        kernels("_softmax_backward_data", before(lambda grad, out, *rest: out.zero_())),
        BROKEN,
        ("softmax",),
    ),
)

WARNINGS = (
    *_fault("warns", MM, kernels("mm", warning(UserWarning)), ("pass",), ()),
    *_fault("warns-of-runtime", "eager/upcast/exp", kernels("exp", warning(RuntimeWarning)), ("pass",), ()),
    *_fault("warns-in-low", MM, kernels("mm", warning(DeprecationWarning, low)), ("pass",), ()),
    *_fault(
        "warns-in-backward",
        SOFTMAX,
        kernels("_softmax_backward_data", warning(UserWarning)),
        ("pass",),
        (),
        ("opaque",),
    ),
    *_fault("warns-when-casting", MM, autocast("mm", noisy_cast), ("pass",), ()),
)

COPIES = (
    *_fault("copies-ignore-strides", "eager/fallthrough/permute", copies(without_strides), BROKEN, ("permute",)),
    *_fault("copies-change-bf16", MM, copies(coarse), BROKEN, ("bf16",)),
    *_fault("copies-refuse-bf16", MM, copies(refusing_brain), BROKEN, ("bfloat16 cannot be copied",)),
    *_fault("casts-truncate", MM, copies(truncating), BROKEN, ("bf16",)),
    *_fault("copies-lose-an-element", "eager/upcast/exp", copies(drops_the_last), BROKEN, ("exp",)),
)

POLICIES = (
    *_fault(
        "mm-not-cast",
        MM,
        policies(mm="fallthrough"),
        FAIL,
        ("argument 0 of aten::mm was given as fp32 and reached the kernel as fp32",),
    ),
    *_fault(
        "linear-not-cast",
        "eager/downcast/linear",
        policies(linear="fallthrough"),
        FAIL,
        ("argument 0 of aten::linear was given as fp32",),
    ),
    *_fault("exp-in-low", "eager/upcast/exp", policies(exp="downcast"), FAIL, ("aten::exp", "expected fp32")),
    *_fault("mm-in-float32", MM, policies(mm="upcast"), FAIL, ("aten::mm", "expected fp16")),
    *_fault(
        "sum-not-filled-in",
        "eager/optdtype/sum.dim_IntList",
        policies(sum__dim_IntList="fallthrough"),
        FAIL,
        ("aten::sum.dim_IntList ran with dtype=None; expected dtype=fp32",),
    ),
    *_fault(
        "sum-cast", "eager/optdtype/sum.dim_IntList", policies(sum__dim_IntList="downcast"), FAIL, ("sum.dim_IntList",)
    ),
    *_fault(
        "norm-not-sent-on",
        "eager/append/norm.ScalarOpt_dim",
        policies(norm__ScalarOpt_dim="fallthrough"),
        FAIL,
        ("norm.ScalarOpt_dim_dtype",),
    ),
    *_fault("addcmul-not-promoted", "eager/promote/addcmul", policies(addcmul="fallthrough"), FAIL, ("aten::addcmul",)),
    *_fault(
        "banned-runs",
        "eager/banned//",
        policies(binary_cross_entropy="fallthrough"),
        FAIL,
        ("binary_cross_entropy", "ran"),
    ),
    *_fault(
        "an-op-without-a-policy-cast",
        "eager/fallthrough/tanh",
        policies(tanh="upcast"),
        FAIL,
        ("aten::tanh", "expected fp16"),
    ),
    *_fault(
        "cast-to-the-other-low",
        MM,
        autocast("mm", casting(to_the_other)),
        FAIL,
        ("reached the kernel as bf16; expected fp16",),
    ),
    *_fault(
        "cast-to-fp16-always",
        MM,
        autocast("mm", casting(lambda device: torch.float16)),
        FAIL,
        ("reached the kernel as fp16; expected bf16",),
    ),
    *_fault(
        "integers-cast",
        MM,
        autocast("mm", casting(which=lambda t: t.dtype != torch.float64)),
        FAIL,
        ("was given as int64 and reached the kernel as fp16",),
    ),
    *_fault(
        "doubles-cast",
        MM,
        autocast("mm", casting(which=torch.is_floating_point)),
        FAIL,
        ("was given as fp64 and reached the kernel as fp16",),
    ),
    *_fault(
        "only-float32-cast",
        MM,
        autocast("mm", casting(which=lambda t: t.dtype == torch.float32)),
        FAIL,
        ("was given as bf16 and reached the kernel as bf16; expected fp16",),
    ),
    *_fault(
        "only-what-needs-gradients-cast",
        MM,
        autocast("mm", casting(which=lambda t: t.requires_grad)),
        FAIL,
        ("reached the kernel as fp32; expected fp16",),
    ),
    *_fault(
        "a-list-element-forgotten",
        "eager/downcast/linalg_multi_dot",
        autocast("linalg_multi_dot", first_alone),
        FAIL,
        ("aten::linalg_multi_dot was given as fp32 and reached the kernel as fp32",),
    ),
    *_fault(
        "keywords-dropped",
        "eager/downcast/addmm/scaled-",
        autocast("addmm", casting(keep=lambda kwargs: {})),
        FAIL,
        ("addmm",),
    ),
    *_fault(
        "arguments-dropped", "eager/optdtype/sum.dim_IntList/", autocast("sum.dim_IntList", forgetful), FAIL, ("sum",)
    ),
    *_fault(
        "the-callers-dtype-written-over",
        "eager/optdtype/sum.dim_IntList/",
        autocast("sum.dim_IntList", filling),
        FAIL,
        ("the caller's dtype=fp64 was to be left alone",),
    ),
    *_fault(
        "no-kernel-where-gradients-are-needed",
        "autograd/downcast/mm",
        autocast("mm", refusing_gradients),
        FAIL,
        ("Could not run 'aten::mm'",),
    ),
    *_fault(
        "raises-in-the-autocast-kernel",
        MM,
        autocast("mm", refusing(says(AttributeError))),
        FAIL,
        ("AttributeError: planted", "mm"),
    ),
    *_fault(
        "output-cast-back",
        MM,
        autocast("mm", casting(after=lambda out, args: out.to(args[0].dtype))),
        FAIL,
        ("output 0 of aten::mm is fp32; expected fp16",),
    ),
    *_fault(
        "detached", "autograd/downcast/mm", autocast("mm", casting(around=torch.no_grad)), FAIL, ("mm", "gradient")
    ),
    *_fault(
        "zeroes-what-it-cast",
        MM,
        autocast("mm", casting(after=zeroing)),
        FAIL,
        ("argument 0 of aten::mm holds other values after the call",),
    ),
    *_fault(
        "casts-the-callers-tensors",
        MM,
        autocast("mm", in_place),
        FAIL,
        ("argument 0 of aten::mm was fp32 before the call and is fp16 after it",),
    ),
    *_fault(
        "promotes-to-the-narrowest",
        "eager/promote/addcmul",
        autocast("addcmul", promoting(lambda found: min(found, key=lambda d: d.itemsize))),
        FAIL,
        ("aten::addcmul", "reached the kernel as fp16; expected fp32"),
    ),
    *_fault(
        "promotes-to-the-first",
        "eager/promote/addcmul",
        autocast("addcmul", promoting(lambda found: found[0])),
        FAIL,
        ("aten::addcmul", "expected fp32"),
    ),
    *_fault(
        "banned-as-a-value-error",
        "eager/banned//",
        autocast("binary_cross_entropy", refusing(ValueError("use binary_cross_entropy_with_logits"))),
        FAIL,
        ("binary_cross_entropy", "ValueError", "RuntimeError"),
    ),
    *_fault(
        "banned-without-advice",
        "eager/banned//",
        autocast("binary_cross_entropy", refusing(RuntimeError("no"))),
        FAIL,
        ("binary_cross_entropy", "names binary_cross_entropy_with_logits"),
    ),
)

CACHES = (*_fault("kept-casts-stay", "eager/cache/changed_weight/", stale, FAIL, ("product after the change",)),)

SCENARIOS = (
    *_fault(
        "a-power-not-cast",
        "eager/eligibility/every_spelling_of_powers/",
        policies(pow__Tensor_Scalar="fallthrough"),
        FAIL,
        ("dtype of x ** 2",),
    ),
    *_fault(
        "a-layer-changes-the-dtype",
        "eager/modules/layer/ReLU-low-",
        kernels("relu", giving(torch.Tensor.float)),
        EITHER,
        ("ReLU, which is not listed",),
    ),
)

DECLARED = (
    *_fault("misspelt-policy", "", _promise(mm="downcst"), REFUSED, ("mm", "'downcst'", "did you mean 'downcast'")),
    *_fault("promise-for-no-op", "", _promise(matmull="downcast"), REFUSED, ("matmull", "matmul")),
    *_fault("promise-for-no-overload", "", _promise(sum__dim="optdtype"), REFUSED, ("sum.dim", "no such overload")),
    *_fault("a-key-that-does-not-exist", "", declared(key="AutocastPrivateUse9"), REFUSED, ("AutocastPrivateUse9",)),
    *_fault(
        "the-key-of-another-type", "", declared(key="AutocastCUDA"), REFUSED, ("AutocastCUDA", "AutocastPrivateUse1")
    ),
    *_fault(
        "policies-raise",
        "",
        declared(policies=_raise(KeyError("planted"))),
        REFUSED,
        ("policies()", "KeyError: 'planted'"),
    ),
    *_fault(
        "unavailable-raises",
        "",
        declared(unavailable=_raise(OSError("planted"))),
        REFUSED,
        ("unavailable()", "OSError: planted"),
    ),
    *_fault("policies-is-a-list", "", declared(policies=lambda: ["mm"]), REFUSED, ("policies()", "mapping")),
)

FAULTS: tuple[Fault, ...] = (
    *RAISING,
    *VALUES,
    *SHAPES,
    *MEMORY,
    *GRADIENTS,
    *WARNINGS,
    *COPIES,
    *POLICIES,
    *CACHES,
    *SCENARIOS,
    *DECLARED,
)
"""Every fault."""

CONTROLS: tuple[Fault, ...] = tuple(
    Fault(f"right-{number}", rule, nullcontext, (), "eager", backend, only=only, statuses=("pass",))
    for backend in BACKENDS
    for number, (rule, only) in enumerate(
        (
            ("", "-fp32-fp16- and not +"),
            ("cache", ""),
            ("eligibility", "every_spelling_of_powers-"),
            ("modules", "Loss-low-"),
            ("fallthrough", "binary_cross_entropy_with_logits+posweight- or norm.Scalar-"),
        )
    )
)
"""Cases that the right kernels pass, too: main samples of all ops, and what a partial list once turned red."""
