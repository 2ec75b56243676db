"""Casts and their cache, kernels of overloads that make them, and those of higher-order operators.

Source: aten/src/ATen/autocast_mode.h, `is_eligible`, `cached_cast`. Casts of float32 leaves are cached until the
outermost region ends. PyTorch's own cache is in C++ and cannot be reached from Python (`cached_cast`,
aten/src/ATen/autocast_mode.cpp). This one caches the casts of the same tensors, for as long, and differs where
`docs/findings` shows PyTorch's to be wrong: a cached cast is found by its dtype too, is dropped when its weight
changes, stays out of fake, traced and functional programs, and lets gradients be summed in the weight's dtype.

The kernel of an overload is Python source written for its schema, so that a call looks nothing up. It does what
PyTorch's does (`WrapFunction_`, as above): exclude the autocast key in this thread, so that what the op calls is not
autocast again; cast; call the op from the top of the dispatcher; put the key back, exceptions included. A boxed kernel
is given positional arguments without trailing ones that have their default, and keyword-only ones by name.

Higher-order operators (`flex_attention`, `cond`, `wrap` and their like) have no dispatcher entry and so do not see the
backend fallback: each one keeps, in Python, a table of kernels and a set of keys it does not fall through. PyTorch
takes the CPU's, CUDA's and XPU's autocast keys out of that set for every new operator
(`HigherOrderOperator.__init__` in torch/_ops.py) and leaves AutocastPrivateUse1 in, so that all of them raise inside of
a region.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ampcheck.register import torch_private as private
from ampcheck.spec.casting import BANNED_MESSAGE

_FAKE, _PROXY, _FUNCTIONAL = (private.ModeKey.FAKE, private.ModeKey.PROXY, private.ModeKey.FUNCTIONAL)
_is_inference = torch.is_inference_mode_enabled
_is_grad = torch.is_grad_enabled


class _CachedCast(NamedTuple):
    """One cached cast, and the identity of its weight when it was made."""

    weight: weakref.ref[Tensor]
    memory: Callable[[], object]
    layout: tuple[object, ...]
    low: Tensor


class _Graph(torch.autograd.Function):
    """Makes a cast that was computed without a graph a function of its weight.

    Every use of the weight leads to this one node. Its output declares float32 gradients, so the engine widens each
    use's gradient before it sums them; summed in the lower precision they stop growing (cached-weight-gradient-in-low-
    precision in docs/findings).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, holder: list[Tensor]) -> Tensor:
        # In a list, the cast is not an input of the node, so that the node's output is the very same tensor.
        (low,) = holder
        if hasattr(ctx, "set_output_grad_dtype"):  # since torch 2.14, where the other way has no effect
            ctx.set_output_grad_dtype(weight.dtype)
        else:
            low.grad_dtype = weight.dtype
        return low

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Cache:
    """Cached casts, found by the weight's identity and the dtype; a weight is held weakly, its casts are not.

    `memory`: returns the memory of a weight that has no storage PyTorch can read (OpaqueTensorImpl).
    """

    def __init__(self, memory: Callable[[Tensor], object] | None = None) -> None:
        self._memory = memory
        self._casts: dict[tuple[int, torch.dtype], _CachedCast] = {}
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop every cast, in every thread."""
        self._casts.clear()

    def __len__(self) -> int:
        return len(self._casts)

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a weight cast to a dtype, cached for the next use unless the program must not see cached casts."""
        if _is_inference() or _foreign(weight):
            return weight.to(dtype)
        place = (id(weight), dtype)
        found = self._casts.get(place)
        if found is None or not self._fresh(found, weight):
            with torch.no_grad():
                low = weight.to(dtype)
            self._keep(place, weight, low)
        else:
            low = found.low
        return self._with_graph(weight, low) if _is_grad() and not low.requires_grad else low

    def _with_graph(self, weight: Tensor, low: Tensor) -> Tensor:
        """Return the cast once it is a function of its weight; of two threads that ask for it, one makes it so."""
        with self._lock:
            if not low.requires_grad:
                low = _Graph.apply(weight, [low])
        return low

    def _keep(self, place: tuple[int, torch.dtype], weight: Tensor, low: Tensor) -> None:
        casts = self._casts

        def forget(gone: weakref.ref[Tensor]) -> None:
            found = casts.get(place)
            if found is not None and found.weight is gone:
                del casts[place]

        now = self._held(weight)
        memory = weakref.ref(now) if isinstance(now, torch.UntypedStorage) else lambda: now
        casts[place] = _CachedCast(weakref.ref(weight, forget), memory, _layout(weight), low)

    def _fresh(self, found: _CachedCast, weight: Tensor) -> bool:
        """Return whether a cached cast is of this very tensor with its present values."""
        return found.weight() is weight and found.memory() is self._held(weight) and found.layout == _layout(weight)

    def _held(self, weight: Tensor) -> object:
        """Return the memory of a weight: its storage, else what the backend gives for it, or None."""
        if private.has_storage(weight):
            return weight.untyped_storage()
        return None if self._memory is None else self._memory(weight)


def _layout(weight: Tensor) -> tuple[object, ...]:
    """Return properties that change with an in-place write, and with `weight.data = …` on the same storage."""
    return weight._version, weight.shape, weight.stride(), weight.storage_offset()


def _foreign(weight: Tensor) -> bool:
    """Return whether a cached cast would be a constant in a traced program, or a fake tensor outside of its mode.

    Also a tensor that CUDA graphs rewrite unnoticed, and any under functorch, whose levels end before the region does.
    """
    if private.tracing_state() is not None or private.functorch_level() is not None or private.is_rewritten(weight):
        return True
    if not private.dispatch_modes():
        return False
    if private.mode_of(_PROXY) is not None or private.mode_of(_FUNCTIONAL) is not None:
        return True
    fake = private.mode_of(_FAKE)
    return fake is not None and getattr(weight, "fake_mode", None) is not fake


Element = Tensor | None
"""What a list of tensors among the arguments holds."""
FLOAT32 = torch.float32
_DOUBLE = torch.float64
_cache_enabled = torch.is_autocast_cache_enabled


class Casts:
    """The casts of one device type. Kernels bind the methods they use when they are made."""

    def __init__(self, device_type: str, cache: Cache) -> None:
        self._type = device_type
        self._cached = cache.cast

    def eligible(self, tensor: Tensor) -> bool:
        """Return whether a tensor is of a floating dtype other than float64, on the device."""
        dtype = tensor.dtype
        return dtype.is_floating_point and dtype is not _DOUBLE and tensor.device.type == self._type

    def wide(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return an eligible tensor in `dtype`, another one as it is. For casts that are not cached."""
        return tensor.to(dtype) if tensor.dtype is not dtype and self.eligible(tensor) else tensor

    def low(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the same for the region's dtype; the cast of a float32 leaf that requires grad is cached."""
        given = tensor.dtype
        if given is dtype or not self.eligible(tensor):
            return tensor
        leaf = given is FLOAT32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        return self._cached(tensor, dtype) if leaf and _cache_enabled() else tensor.to(dtype)

    def wide_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `wide` to each tensor; None stays."""
        return [None if tensor is None else self.wide(tensor, dtype) for tensor in tensors]

    def low_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `low` to each tensor; None stays."""
        return [None if tensor is None else self.low(tensor, dtype) for tensor in tensors]

    def widest(self, *values: Element | Sequence[Element]) -> torch.dtype | None:
        """Return the dtype promotion goes to: the widest of the eligible tensors in tensors, lists and None.

        Of float16 and bfloat16 it is float32, which holds the values of both. None where no tensor is eligible.
        """
        found: set[torch.dtype] = set()
        for value in values:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if tensor is not None and self.eligible(tensor):
                    found.add(tensor.dtype)
        if len(found) < 2:
            return found.pop() if found else None
        top = max(dtype.itemsize for dtype in found)
        widest = [dtype for dtype in found if dtype.itemsize == top]
        return widest[0] if len(widest) == 1 else FLOAT32


def overload_name(op: private.OpOverload) -> str:
    """Return the overload with its namespace: `aten::mm`, `aten::softmax.int`."""
    return str(op.name())


def refusal(op: private.OpOverload, device_type: str) -> str:
    name, off = overload_name(op), f"with torch.autocast({device_type!r}, enabled=False)."
    if instead := BANNED_MESSAGE.get(name.removeprefix("aten::")):
        return (
            f"{name} is unsafe to autocast on {device_type}: its input is a probability, which a lower precision "
            f"rounds to 0 or 1, where the loss is infinite; call {instead} on what went into the sigmoid, or leave "
            f"autocast for this loss {off}"
        )
    return f"{name} is unsafe to autocast on {device_type}; leave autocast for it {off}"


Kernel = Callable[..., Any]
"""A function that takes what an overload takes, as the dispatcher passes it, and gives its results."""
KEY: private.DispatchKey = private.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]  # not in torch's stubs

TENSOR, OPTIONAL, LIST = "tensor", "optional", "list"
_LISTS = ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]")
_KINDS = {"Tensor": TENSOR, "Optional[Tensor]": OPTIONAL} | dict.fromkeys(_LISTS, LIST)

_TEMPLATE = """\
def kernel({parameters}):
    exclude(key, True)
    try:
{body}
        return call({arguments})
    finally:
        exclude(key, False)
"""


def kind(argument: private.Argument) -> str | None:
    """Return a schema argument's kind for autocast: "tensor", "optional", "list", or None for no tensors."""
    return _KINDS.get(str(argument.type))


@dataclass(slots=True)
class _CastSignature:
    """A kernel's parameters and how it hands them on. `values`: tensor parameters as (name, kind), in order."""

    parameters: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)
    defaults: dict[str, object] = field(default_factory=dict)


def _signature(op: private.OpOverload, needed: Callable[[private.Argument], object]) -> _CastSignature:
    """Return the signature of a kernel that names the arguments it needs and hands the others on as they come."""
    schema = op._schema.arguments
    positional = [a for a in schema if not a.kwarg_only]
    last = max((place for place, a in enumerate(positional) if needed(a)), default=-1)
    out = _CastSignature()
    for place, argument in enumerate(positional[: last + 1]):
        _add(out, argument, f"a{place}", f"a{place}")
    if last + 1 < len(positional):
        out.parameters.append("*rest")
        out.arguments.append("*rest")
    named = [a for a in schema if a.kwarg_only]
    wanted = [a for a in named if needed(a)]
    if wanted and "*rest" not in out.parameters:
        out.parameters.append("*")
    for argument in wanted:
        _add(out, argument, argument.name, f"{argument.name}={argument.name}")
    if len(wanted) < len(named):
        out.parameters.append("**more")
        out.arguments.append("**more")
    return out


def _add(out: _CastSignature, argument: private.Argument, name: str, handed_on: str) -> None:
    has_default = argument.has_default_value()
    if has_default:
        out.defaults[f"default_{name}"] = argument.default_value
    out.parameters.append(f"{name}=default_{name}" if has_default else name)
    out.arguments.append(handed_on)
    if what := kind(argument):
        out.values.append((name, what))


def _casting(values: list[tuple[str, str]]) -> list[str]:
    """Write lines that cast each value to `to`; what has the dtype already costs one comparison."""
    one, several = "if {0} is not None and {0}.dtype is not to: {0} = cast({0}, to)", "if {0}: {0} = cast_list({0}, to)"
    return [(several if what == LIST else one).format(name) for name, what in values]


def _promoting(values: list[tuple[str, str]]) -> list[str]:
    """Write lines that cast to the widest dtype; tensors that all have one dtype cost a comparison each."""
    names = ", ".join(name for name, _ in values)
    inner = ["to = widest(" + names + ")", "if to is not None:", *("    " + line for line in _casting(values))]
    if any(what != TENSOR for _, what in values) or len(values) < 2:
        return inner
    (first, _), *others = values
    differ = " or ".join(f"{name}.dtype is not to" for name, _ in others)
    return [f"to = {first}.dtype", f"if {differ}:", *("    " + line for line in inner)]


@cache
def _compiled(source: str) -> CodeType:
    return compile(source, "<ampcheck autocast kernel>", "exec")


def _made(
    op: private.OpOverload, call: Kernel, signature: _CastSignature, body: list[str], bound: Mapping[str, object]
) -> Kernel:
    source = _TEMPLATE.format(
        parameters=", ".join(signature.parameters),
        arguments=", ".join(signature.arguments),
        body="\n".join(" " * 8 + line for line in body),
    )
    scope = {"exclude": private.exclude_key, "key": KEY, "call": call, **bound, **signature.defaults}
    exec(_compiled(source), scope)  # the source is made of argument names of registered schemas, and nothing else
    kernel: Kernel = private.dynamo_skip(cast(FunctionType, scope["kernel"]))
    kernel.__name__ = kernel.__qualname__ = f"autocast_{op._opname}_{op._overloadname}"
    return kernel


def _call(op: private.OpOverload, signature: _CastSignature) -> Kernel:
    """Return the fastest way to call an overload from the top of the dispatcher.

    PyTorch's own Python function reads its arguments faster than the one every overload has. It chooses the overload by
    them, and its defaults differ from the schema's for losses (`torch._C._nn.mse_loss` reduces nothing), so it is taken
    where no other overload could be meant and every argument is given.
    """
    if "*rest" in signature.parameters or "**more" in signature.parameters:
        return op._op
    packet = op._overloadpacket
    others = (getattr(packet, variant) for variant in packet.overloads())
    if any(other is not op and _takes(other, op) for other in others):
        return op._op
    for home in (private.functions, private.nn_functions):
        if op.namespace == "aten" and (found := getattr(home, op._opname, None)) is not None:
            function: Kernel = found
            return function
    return op._op


def _takes(other: private.OpOverload, op: private.OpOverload) -> bool:
    """Return whether a call of `op` could mean `other`: it needs no more positional or other keyword-only arguments.

    Overloads without tensors belong to TorchScript; PyTorch's Python functions do not have them.
    """
    required = [a for a in other._schema.arguments if not a.has_default_value()]
    given = [a for a in op._schema.arguments if not a.kwarg_only]
    named = {a.name for a in op._schema.arguments if a.kwarg_only}
    return (
        any(kind(a) for a in other._schema.arguments)
        and sum(not a.kwarg_only for a in required) <= len(given)
        and {a.name for a in required if a.kwarg_only} <= named
    )


def downcast(op: private.OpOverload, device_type: str, casts: Casts) -> Kernel:
    signature = _signature(op, kind)
    bound = {"amp_dtype": torch.get_autocast_dtype, "type": device_type, "cast": casts.low, "cast_list": casts.low_list}
    return _made(op, _call(op, signature), signature, ["to = amp_dtype(type)", *_casting(signature.values)], bound)


def upcast(op: private.OpOverload, device_type: str, casts: Casts) -> Kernel:
    signature = _signature(op, kind)
    bound = {"to": FLOAT32, "cast": casts.wide, "cast_list": casts.wide_list}
    return _made(op, _call(op, signature), signature, _casting(signature.values), bound)


def promote(op: private.OpOverload, device_type: str, casts: Casts) -> Kernel:
    signature = _signature(op, kind)
    bound = {"widest": casts.widest, "cast": casts.wide, "cast_list": casts.wide_list}
    return _made(op, _call(op, signature), signature, _promoting(signature.values), bound)


def optdtype(op: private.OpOverload, device_type: str, casts: Casts) -> Kernel:
    first = op._schema.arguments[0]
    signature = _signature(op, lambda a: a.name in (first.name, "dtype"))
    place = next(n for n, a in enumerate(op._schema.arguments) if a.name == "dtype")
    name = "dtype" if op._schema.arguments[place].kwarg_only else f"a{place}"
    body = [f"if {name} is None and eligible(a0): {name} = wide"]
    return _made(op, _call(op, signature), signature, body, {"eligible": casts.eligible, "wide": FLOAT32})


def append(op: private.OpOverload, device_type: str, casts: Casts, other: private.OpOverload) -> Kernel:
    """Return the kernel of an overload that is sent to `other`, whose arguments are the same and `dtype`."""
    signature = _signature(op, lambda a: True)
    signature.arguments.append("dtype=wide if eligible(a0) else a0.dtype")
    return _made(op, other._op, signature, ["pass"], {"eligible": casts.eligible, "wide": FLOAT32})


def banned(op: private.OpOverload, device_type: str, casts: Casts) -> Kernel:
    message = refusal(op, device_type)

    def kernel(*args: object, **kwargs: object) -> object:
        raise RuntimeError(message)

    return kernel


_MASK = private.DispatchKeySet(KEY)


class HigherOrder:
    """The registration on every higher-order operator, those defined later included."""

    def __init__(self, base: private.DispatchKey) -> None:
        """Take over the kernels of the dispatch key `base`; a kernel that is there already stays."""
        self._registered: list[private.HigherOrderOperator] = []
        self._defaults = private.fallthrough_keys
        self._added = KEY not in self._defaults
        # Those that fall through already are not to be changed back at the end.
        self._before = {id(op) for op in _all() if not op.non_fallthrough_keys.has(KEY)}
        if self._added:
            self._defaults.append(KEY)
        for op in _all():
            if KEY in op.py_kernels:
                self._before.add(id(op))
            elif base in op.py_kernels:
                op.py_impl(KEY)(_kernel(op.py_kernels[base]))
                self._registered.append(op)
            else:
                op.fallthrough(KEY)

    def unregister(self) -> None:
        """Put every operator back."""
        for op in self._registered:
            del op.py_kernels[KEY]
            op._dispatch_cache.clear()
        if not self._added:
            return
        self._defaults.remove(KEY)
        for op in _all():
            if id(op) not in self._before:
                op.non_fallthrough_keys = op.non_fallthrough_keys.add(KEY)


def _all() -> list[private.HigherOrderOperator]:
    return list(private.higher_order_ops.values())


def _kernel(base: Kernel) -> Kernel:
    """Return the base device's kernel, run with this device's key excluded.

    It asks the query's own device for its dtype, and then calls the operator again with its own key excluded.
    """

    def kernel(*args: object, **kwargs: object) -> object:
        with private.ExcludeDispatchKeyGuard(_MASK):
            return base(*args, **kwargs)

    return kernel
