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
from unittest.mock import patch

import torch
from torch.library import Library
from torch.utils._pytree import tree_map

from ampcheck.register import weight_cache
from tests.faults.fault import REFUSED, Fault

Kernel = Callable[..., Any]
"""A planted kernel: `(op, *args, **kwargs)` on CPU tensors, where `op` computes what is right."""

When = Callable[..., bool]
"""Whether a call with these arguments is the one to break."""

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
MakeKernel = Callable[[Any, str], Kernel]


@cache
def _subject(backend: str) -> Subject:
    """A backend of tests/backends. Making it names PrivateUse1, which a process can do once."""
    module = import_module(backend)
    return Subject(backend, module.BACKEND, module.DEVICES[0], module.register)


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
    """Compute kernels of the backend by `change`."""
    return lambda subject: patch.dict(subject.backend.mutants, dict.fromkeys(overloads.split(), change))


def fresh(overloads: str, make: Callable[[], Kernel]) -> InjectInto:
    """The same, of a kernel with a new state each time it is planted."""
    return lambda subject: kernels(overloads, make())(subject)


def copies(copy: Callable[[Tensor, Tensor], object]) -> InjectInto:
    """Make copies in, out and between dtypes by `copy(target, source)` on CPU tensors."""
    return lambda subject: patch.object(subject.backend, "copy", copy)


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


def autocast(name: str, make: MakeKernel) -> InjectInto:
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
    """Replace attributes and methods of the device as it is declared to ampcheck."""
    return lambda subject: patch.multiple(subject.device, create=True, **attributes)


def _overload(name: str) -> Any:
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


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
    """The right kernel, whose output, or whose output number `which`, is changed."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if not when(*args, **kwargs):
            return out
        if isinstance(out, tuple):
            return (*out[:which], change(out[which]), *out[which + 1 :])
        return change(out)

    return kernel


def before(corrupt: Callable[..., object], when: When = always) -> Kernel:
    """The right kernel, which does something to its arguments when it is done."""

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        out = op(*args, **kwargs)
        if when(*args, **kwargs):
            corrupt(*args)
        return out

    return kernel


def on_arguments(change: Callable[[Tensor], Tensor], when: When = always) -> Kernel:
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


def warning(category: type[Warning], when: When = always) -> Kernel:
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
) -> MakeKernel:
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


def refusing(error: Exception) -> MakeKernel:
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


def promoting(choose: Callable[[list[torch.dtype]], torch.dtype]) -> MakeKernel:
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


def stale(subject: Subject) -> AbstractContextManager[object]:
    """Keep cached casts whatever happens to their weight."""
    return patch.object(weight_cache.Cache, "_fresh", lambda self, found, weight: found.weight() is weight)


# ---- declarations


def _promise(**further: str) -> InjectInto:
    def inject(subject: Subject) -> AbstractContextManager[object]:
        listed = {**subject.device.policies(), **{name.replace("__", "."): p for name, p in further.items()}}
        return declared(policies=lambda: listed)(subject)

    return inject


def _raise(error: Exception) -> Callable[[], Any]:
    def method() -> Any:
        raise error

    return method


# ---- tables


def _fault(
    name: str,
    where: str,
    inject: InjectInto,
    *says: str,
    statuses: tuple[str, ...] = FAIL,
    backends: tuple[str, ...] = BACKENDS,
) -> tuple[Fault, ...]:
    """Return a mistake once for each of some backends.

    `where`: `suite/rule/op/words`, which choose cases as `op` and `only` of a fault do; without words the op's main
    sample alone; "" where the run must be refused.
    """
    suite, rule, op, only = [*where.split("/"), f"{where.rpartition('/')[2]}-"][:4] if where else [""] * 4
    made = Fault(name, rule, nullcontext, says, suite, "", op, only, statuses=statuses)
    return tuple(replace(made, device=backend, inject=partial(_injected, inject, backend)) for backend in backends)


def _wrong(
    name: str, where: str, overloads: str, change: Kernel, *says: str, statuses: tuple[str, ...] = BROKEN, **rest: Any
) -> tuple[Fault, ...]:
    """Return the mistake of kernels, whose messages name the op, too."""
    op = where.split("/")[2].partition(".")[0]
    return _fault(name, where, kernels(overloads, change), op, *says, statuses=statuses, **rest)


def _wrong_mm(name: str, change: Kernel, *says: str, statuses: tuple[str, ...] = BROKEN) -> tuple[Fault, ...]:
    return _wrong(name, MM, "mm", change, *says, statuses=statuses)


def _raises(
    name: str, where: str, overloads: str, error: type[Exception], when: When = always, **rest: Any
) -> tuple[Fault, ...]:
    """Return the mistake of kernels that raise an error of a class."""
    planted = error("planted")
    return _wrong(name, where, overloads, raising(planted, when), f"{error.__name__}: {planted}", **rest)


def _cast_mm(name: str, make: MakeKernel, *says: str, **rest: Any) -> tuple[Fault, ...]:
    """Return the mistake of an autocast kernel of mm."""
    return _fault(name, MM, autocast("mm", make), *says, **rest)


def _refused(name: str, inject: InjectInto, *says: str) -> tuple[Fault, ...]:
    """Return the mistake of a declaration, for which the run must be refused."""
    return _fault(name, "", inject, *says, statuses=REFUSED)


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
    *_raises("raises-runtime-error-in-low", MM, "mm", RuntimeError, low),
    *_raises("raises-attribute-error-in-low", "eager/downcast/bmm", "bmm", AttributeError, low),
    *_raises("raises-index-error-in-low", "eager/downcast/addmm", "addmm", IndexError, low),
    *_raises("raises-type-error-in-low", "eager/fallthrough/tanh", "tanh", TypeError, low),
    *_raises("raises-not-implemented-in-low", MM, "mm", NotImplementedError, low),
    *_raises("raises-assertion-error-in-low", MM, "mm", AssertionError, low),
    *_raises("raises-out-of-memory-in-low", MM, "mm", torch.OutOfMemoryError, low),
    *_raises("raises-key-error-in-bf16", MM, "mm", KeyError, brain),
    *_raises("raises-runtime-error-in-fp16", MM, "mm", RuntimeError, half),
    *_raises("raises-runtime-error-always", "eager/upcast/exp", "exp", RuntimeError),
    *_raises("raises-attribute-error-always", "eager/optdtype/cumsum", "cumsum", AttributeError),
    *_raises("raises-index-error-always", "eager/optdtype/softmax.int", "_softmax", IndexError),
    *_raises("raises-not-implemented-always", "eager/upcast/layer_norm", "native_layer_norm", NotImplementedError),
    *_raises("raises-value-error-in-fp32", "eager/upcast/exp", "exp", ValueError, wide),
    *_raises("raises-for-other-strides", MM, "mm", RuntimeError, uneven, statuses=EITHER),
    *_raises("raises-for-no-elements", "eager/downcast/mm/empty-", "mm", RuntimeError, empty),
    *_raises("raises-in-regions-alone", MM, "mm", RuntimeError, in_region, statuses=FAIL),
    *_raises("raises-in-backward", SOFTMAX, "_softmax_backward_data", RuntimeError, backends=("opaque",)),
    *_raises("raises-in-backward-in-low", CONV, "convolution_backward", AttributeError, low, backends=("opaque",)),
    *_wrong_mm("says-there-is-no-kernel", raising(NotImplementedError(NO_KERNEL), low), "Could not run 'aten::mm'"),
    *_wrong_mm("says-so-as-a-runtime-error", raising(RuntimeError(NO_KERNEL), low), "Could not run 'aten::mm'"),
    *_wrong(
        "says-so-in-backward",
        MSE,
        "mse_loss_backward",
        raising(NotImplementedError(NO_KERNEL)),
        "Could not run 'aten::mm'",
        backends=("opaque",),
    ),
    *_wrong_mm(
        "says-so-in-regions-alone",
        raising(NotImplementedError(NO_KERNEL), in_region),
        "Could not run 'aten::mm'",
        statuses=FAIL,
    ),
)

VALUES = (
    *_wrong_mm("mm-wrong", giving(lambda out: out * 1.25)),
    *_wrong("tanh-wrong", "eager/fallthrough/tanh", "tanh", giving(lambda out: out * 0.9)),
    *_wrong("sum-wrong", "eager/optdtype/sum.dim_IntList", "sum.dim_IntList", giving(lambda out: out * 1.5)),
    *_wrong("cumsum-wrong", "eager/optdtype/cumsum", "cumsum", giving(lambda out: out.roll(1, 0))),
    *_wrong_mm("mm-a-quarter-off-in-bf16", giving(lambda out: out * 1.25, brain), "bf16"),
    *_wrong_mm("mm-2-percent-off-in-bf16", giving(lambda out: out * 1.02, brain), "bf16"),
    *_wrong_mm(
        "mm-a-fifth-of-a-percent-off-in-fp16", giving(lambda out: (out.float() * 1.002).to(out.dtype), half), "fp16"
    ),
    *_wrong_mm("mm-zero-in-fp16", giving(torch.zeros_like, half), "fp16"),
    *_wrong("exp-off-in-fp32", "eager/upcast/exp", "exp", giving(lambda out: out * 1.001, wide)),
    *_wrong("bmm-nan-in-low", "eager/downcast/bmm", "bmm", giving(lambda out: out * float("nan"), low)),
    *_wrong_mm(
        "one-element-wrong",
        giving(lambda out: out.index_fill(0, torch.tensor([out.shape[0] - 1]), 0) if out.numel() else out),
    ),
    *_wrong("addmm-without-beta", "eager/downcast/addmm/scaled-", "addmm", without_beta),
    *_wrong("layer-norm-without-weight", "eager/upcast/layer_norm", "native_layer_norm", without_weight),
    *_wrong("relu-wrong", "eager/fallthrough/neg", "neg", giving(torch.abs)),
    *_wrong("softmax-unnormalised", "eager/optdtype/softmax.int", "_softmax", giving(lambda out: out * 2)),
    *_wrong_mm("large-values-saturate", giving(lambda out: out.clamp(-64, 64))),
    *_wrong_mm("small-values-vanish", giving(lambda out: out * (out.abs() > 0.01))),
    *_wrong_mm("reads-strides-as-contiguous", on_arguments(flat), statuses=EITHER),
    *_fault("every-second-call-is-wrong", MM, fresh("mm", every_second), "mm", statuses=EITHER),
    *_fault(
        "remembers-the-first-result", "eager/downcast/addmm/", fresh("addmm", remembered), "addmm", statuses=EITHER
    ),
    *_fault("never-twice-the-same", MM, fresh("mm", noise), "mm", statuses=EITHER),
    *_wrong_mm("wrong-in-regions-alone", giving(lambda out: out * 1.25, in_region), statuses=FAIL),
    *_wrong(
        "wrong-for-integers",
        "eager/optdtype/sum.dim_IntList/IntList-int64-",
        "sum.dim_IntList",
        giving(lambda out: out + 1, lambda x, *a, **k: x.dtype == torch.int64),
    ),
    *_fault(
        "generator-ignores-its-seed",
        "eager/modules/network/Dropout_train-",
        fresh("native_dropout bernoulli_.float bernoulli.p", unseeded),
        "Dropout",
        statuses=EITHER,
    ),
)

SHAPES = (
    *_wrong_mm("another-shape", giving(lambda out: out.unsqueeze(0)), "shape"),
    *_wrong_mm("a-transposed-shape", giving(lambda out: out.T.contiguous()), "shape"),
    *_wrong(
        "a-dimension-kept",
        "eager/optdtype/sum.dim_IntList",
        "sum.dim_IntList",
        giving(lambda out: out.unsqueeze(-1)),
        "shape",
    ),
    *_wrong("another-shape-in-low", "eager/fallthrough/tanh", "tanh", giving(lambda out: out.flatten(), low), "shape"),
    *_wrong("float32-for-low", "eager/fallthrough/tanh", "tanh", giving(torch.Tensor.float), "fp32"),
    *_wrong("float64-for-float32", "eager/upcast/exp", "exp", giving(torch.Tensor.double), "fp64"),
    *_wrong_mm("the-other-low", giving(other_low)),
    *_wrong_mm("bf16-comes-out-as-fp16", giving(lambda out: out.half(), brain), "fp16"),
    *_wrong("column-major", "eager/fallthrough/tanh", "tanh", giving(column_major), "stride"),
    *_wrong_mm("column-major-mm-in-low", giving(column_major, low), "stride"),
    *_wrong(
        "strides-with-gaps",
        "eager/upcast/exp",
        "exp",
        giving(lambda out: torch.stack([out, out], -1)[..., 0]),
        "stride",
    ),
    *_wrong(
        "a-second-output-of-another-shape",
        "eager/upcast/native_layer_norm",
        "native_layer_norm",
        giving(lambda out: out.flatten(), which=1),
        "shape",
        backends=("opaque",),
    ),
)

MEMORY = (
    *_wrong_mm("zeroes-its-input", before(lambda a, b: a.zero_()), "argument 0"),
    *_wrong_mm("zeroes-its-second-input", before(lambda a, b: b.zero_()), "argument 1"),
    *_wrong(
        "negates-its-input",
        "eager/upcast/exp",
        "exp",
        before(lambda x: x.neg_() if x.is_floating_point() else x),
        "argument 0",
    ),
    *_wrong("writes-its-bias", "eager/downcast/addmm", "addmm", before(lambda bias, *rest: bias.add_(1)), "argument 0"),
    *_wrong("sums-in-place", "eager/optdtype/cumsum", "cumsum", before(lambda x, dim: x.cumsum_(dim)), "argument 0"),
    *_wrong_mm("writes-in-low-alone", before(lambda a, b: a.zero_(), low), "argument 0"),
    *_wrong("output-is-the-input", "eager/fallthrough/tanh", "tanh", over_the_input, "argument 0"),
    *_wrong("output-in-the-inputs-memory", "eager/fallthrough/tanh", "tanh", in_the_inputs_memory, "argument 0"),
    *_fault("one-buffer-for-all-outputs", MM, fresh("mm", one_buffer), "mm", statuses=EITHER),
)

GRADIENTS = (
    *_wrong("gradient-off", SOFTMAX, "_softmax_backward_data", giving(lambda out: out * 1.1), "gradient"),
    *_wrong("gradient-zero", LAYER, "native_layer_norm_backward", giving(torch.zeros_like, which=1), "gradient"),
    *_wrong("gradient-negated-in-low", CONV, "convolution_backward", giving(torch.neg, low, which=1), "gradient"),
    *_wrong("gradient-nan", MSE, "mse_loss_backward", giving(lambda out: out * float("nan")), "gradient"),
    *_wrong("gradient-of-another-shape", MSE, "mse_loss_backward", giving(lambda out: out.mT.contiguous())),
    *_wrong(
        "gradient-off-in-regions-alone", SOFTMAX, "_softmax", giving(lambda out: out * 0.5, in_region), statuses=FAIL
    ),
    *_wrong(
        "backward-writes-what-was-saved",
        SOFTMAX,
        "_softmax_backward_data",
        before(lambda grad, out, *rest: out.zero_()),
    ),
)

WARNINGS = (
    *_fault("warns", MM, kernels("mm", warning(UserWarning)), statuses=("pass",)),
    *_fault("warns-of-runtime", "eager/upcast/exp", kernels("exp", warning(RuntimeWarning)), statuses=("pass",)),
    *_fault("warns-in-low", MM, kernels("mm", warning(DeprecationWarning, low)), statuses=("pass",)),
    *_fault(
        "warns-in-backward",
        SOFTMAX,
        kernels("_softmax_backward_data", warning(UserWarning)),
        statuses=("pass",),
        backends=("opaque",),
    ),
    *_cast_mm("warns-when-casting", noisy_cast, statuses=("pass",)),
)

COPIES = (
    *_fault("copies-ignore-strides", "eager/fallthrough/permute", copies(without_strides), "permute", statuses=BROKEN),
    *_fault("copies-change-bf16", MM, copies(coarse), "bf16", statuses=BROKEN),
    *_fault("copies-refuse-bf16", MM, copies(refusing_brain), "bfloat16 cannot be copied", statuses=BROKEN),
    *_fault("casts-truncate", MM, copies(truncating), "bf16", statuses=BROKEN),
    *_fault("copies-lose-an-element", "eager/upcast/exp", copies(drops_the_last), "exp", statuses=BROKEN),
)

POLICIES = (
    *_fault(
        "mm-not-cast",
        MM,
        policies(mm="fallthrough"),
        "argument 0 of aten::mm was given as fp32 and reached the kernel as fp32",
    ),
    *_fault(
        "linear-not-cast",
        "eager/downcast/linear",
        policies(linear="fallthrough"),
        "argument 0 of aten::linear was given as fp32",
    ),
    *_fault("exp-in-low", "eager/upcast/exp", policies(exp="downcast"), "aten::exp", "expected fp32"),
    *_fault("mm-in-float32", MM, policies(mm="upcast"), "aten::mm", "expected fp16"),
    *_fault(
        "sum-not-filled-in",
        "eager/optdtype/sum.dim_IntList",
        policies(sum__dim_IntList="fallthrough"),
        "aten::sum.dim_IntList ran with dtype=None; expected dtype=fp32",
    ),
    *_fault("sum-cast", "eager/optdtype/sum.dim_IntList", policies(sum__dim_IntList="downcast"), "sum.dim_IntList"),
    *_fault(
        "norm-not-sent-on",
        "eager/append/norm.ScalarOpt_dim",
        policies(norm__ScalarOpt_dim="fallthrough"),
        "norm.ScalarOpt_dim_dtype",
    ),
    *_fault("addcmul-not-promoted", "eager/promote/addcmul", policies(addcmul="fallthrough"), "aten::addcmul"),
    *_fault(
        "banned-runs", "eager/banned//", policies(binary_cross_entropy="fallthrough"), "binary_cross_entropy", "ran"
    ),
    *_fault(
        "an-op-without-a-policy-cast", "eager/fallthrough/tanh", policies(tanh="upcast"), "aten::tanh", "expected fp16"
    ),
    *_cast_mm("cast-to-the-other-low", casting(to_the_other), "reached the kernel as bf16; expected fp16"),
    *_cast_mm(
        "cast-to-fp16-always", casting(lambda device: torch.float16), "reached the kernel as fp16; expected bf16"
    ),
    *_cast_mm(
        "integers-cast",
        casting(which=lambda t: t.dtype != torch.float64),
        "was given as int64 and reached the kernel as fp16",
    ),
    *_cast_mm(
        "doubles-cast", casting(which=torch.is_floating_point), "was given as fp64 and reached the kernel as fp16"
    ),
    *_cast_mm(
        "only-float32-cast",
        casting(which=lambda t: t.dtype == torch.float32),
        "was given as bf16 and reached the kernel as bf16; expected fp16",
    ),
    *_cast_mm(
        "only-what-needs-gradients-cast",
        casting(which=lambda t: t.requires_grad),
        "reached the kernel as fp32; expected fp16",
    ),
    *_fault(
        "a-list-element-forgotten",
        "eager/downcast/linalg_multi_dot",
        autocast("linalg_multi_dot", first_alone),
        "aten::linalg_multi_dot was given as fp32 and reached the kernel as fp32",
    ),
    *_fault(
        "keywords-dropped", "eager/downcast/addmm/scaled-", autocast("addmm", casting(keep=lambda kwargs: {})), "addmm"
    ),
    *_fault("arguments-dropped", "eager/optdtype/sum.dim_IntList/", autocast("sum.dim_IntList", forgetful), "sum"),
    *_fault(
        "the-callers-dtype-written-over",
        "eager/optdtype/sum.dim_IntList/",
        autocast("sum.dim_IntList", filling),
        "the caller's dtype=fp64 was to be left alone",
    ),
    *_fault(
        "no-kernel-where-gradients-are-needed",
        "autograd/downcast/mm",
        autocast("mm", refusing_gradients),
        "Could not run 'aten::mm'",
    ),
    *_cast_mm("raises-in-the-autocast-kernel", refusing(AttributeError("planted")), "AttributeError: planted", "mm"),
    *_cast_mm(
        "output-cast-back",
        casting(after=lambda out, args: out.to(args[0].dtype)),
        "output 0 of aten::mm is fp32; expected fp16",
    ),
    *_fault("detached", "autograd/downcast/mm", autocast("mm", casting(around=torch.no_grad)), "mm", "gradient"),
    *_cast_mm(
        "zeroes-what-it-cast", casting(after=zeroing), "argument 0 of aten::mm holds other values after the call"
    ),
    *_cast_mm(
        "casts-the-callers-tensors", in_place, "argument 0 of aten::mm was fp32 before the call and is fp16 after it"
    ),
    *_fault(
        "promotes-to-the-narrowest",
        "eager/promote/addcmul",
        autocast("addcmul", promoting(lambda found: min(found, key=lambda d: d.itemsize))),
        "aten::addcmul",
        "reached the kernel as fp16; expected fp32",
    ),
    *_fault(
        "promotes-to-the-first",
        "eager/promote/addcmul",
        autocast("addcmul", promoting(lambda found: found[0])),
        "aten::addcmul",
        "expected fp32",
    ),
    *_fault(
        "banned-as-a-value-error",
        "eager/banned//",
        autocast("binary_cross_entropy", refusing(ValueError("use binary_cross_entropy_with_logits"))),
        "binary_cross_entropy",
        "ValueError",
        "RuntimeError",
    ),
    *_fault(
        "banned-without-advice",
        "eager/banned//",
        autocast("binary_cross_entropy", refusing(RuntimeError("no"))),
        "binary_cross_entropy",
        "names binary_cross_entropy_with_logits",
    ),
)

CACHES = (*_fault("kept-casts-stay", "eager/cache/changed_weight/", stale, "product after the change"),)

SCENARIOS = (
    *_fault(
        "a-power-not-cast",
        "eager/eligibility/every_spelling_of_powers/",
        policies(pow__Tensor_Scalar="fallthrough"),
        "dtype of x ** 2",
    ),
    *_fault(
        "a-layer-changes-the-dtype",
        "eager/modules/layer/ReLU-low-",
        kernels("relu", giving(torch.Tensor.float)),
        "ReLU, which is not listed",
        statuses=EITHER,
    ),
)

DECLARED = (
    *_refused("misspelt-policy", _promise(mm="downcst"), "mm", "'downcst'", "did you mean 'downcast'"),
    *_refused("promise-for-no-op", _promise(matmull="downcast"), "matmull", "matmul"),
    *_refused("promise-for-no-overload", _promise(sum__dim="optdtype"), "sum.dim", "no such overload"),
    *_refused("a-key-that-does-not-exist", declared(key="AutocastPrivateUse9"), "AutocastPrivateUse9"),
    *_refused("the-key-of-another-type", declared(key="AutocastCUDA"), "AutocastCUDA", "AutocastPrivateUse1"),
    *_refused("policies-raise", declared(policies=_raise(KeyError("planted"))), "policies()", "KeyError: 'planted'"),
    *_refused(
        "unavailable-raises", declared(unavailable=_raise(OSError("planted"))), "unavailable()", "OSError: planted"
    ),
    *_refused("policies-is-a-list", declared(policies=lambda: ["mm"]), "policies()", "mapping"),
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
