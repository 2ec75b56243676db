"""Run one call and record what happened: the dtypes each kernel received, the casts made, the outputs or the error.

The recorder is a dispatch mode that sits below autocast and, because the autograd keys are excluded while it records,
above every decomposition. So `linear` arrives as `aten::linear` with the arguments autocast gave it, not as the `t` and
`addmm` it is made of. A composite op without a policy is taken apart, because autocast acts on its parts.

Reproductions print the source of what they need from here, so nothing here needs more than torch.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from unittest.mock import patch

import torch

from ampcheck.observe.torch_private import (
    AutoDispatchBelowAutograd,
    TorchDispatchMode,
    dispatch_keys,
    load_dynamo,
    pytree,
)
from ampcheck.register.torch_private import DispatchKey, OpOverload, has_kernel
from ampcheck.spec.casting import POLICIES, Leaf, expect
from ampcheck.spec.torch_dtypes import DTYPES, name_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SeenLeaf:
    """A tensor argument as the kernel got it.

    `given`: its dtype before autocast cast it. `got`: the dtype the kernel received. `on_device`: whether it lives on
    the region's device type. `source`: its place among the call's own tensors, None for one made on the way.
    """

    given: str
    got: str
    on_device: bool
    source: int | None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel that ran.

    `overload`: without the aten namespace. `leaves`: its tensor arguments. `dtype_kwarg`: its `dtype=`, if it has one.
    """

    overload: str
    leaves: tuple[SeenLeaf, ...]
    dtype_kwarg: str | None


@dataclass(frozen=True, slots=True)
class Cast:
    """A dtype change on the way into a kernel. `source` as in `SeenLeaf`; `elements` is how many were cast."""

    given: str
    got: str
    source: int | None
    elements: int


@dataclass(slots=True)
class Observation:
    """What one call did. `outputs` are its tensors in order, nothing where it raised `error`.

    `changed`: those of its own tensors that have another dtype afterwards, as (place, before, after). `inputs`: its own
    tensors, and `values`: those of its outputs, on the CPU, as they were when it returned; where they are kept.
    """

    kernels: list[KernelCall] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    error: Exception | None = None
    changed: list[tuple[int, str, str]] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    def of(self, overload: str) -> KernelCall | None:
        """Return the first call of an overload's kernel, or None."""
        return next((call for call in self.kernels if call.overload == overload), None)


class OpTraits(NamedTuple):
    """What the recorder asks of an overload."""

    overload: str
    is_cast: bool
    composite: bool
    is_view: bool
    dtype_position: int | None


_COMPOSITE = DispatchKey.CompositeImplicitAutograd
CASTS = ("to.dtype", "to.device", "to.dtype_layout", "to.other", "_to_copy")


@cache
def traits(func: OpOverload) -> OpTraits:
    """Return what the recorder asks of an overload."""
    overload = overload_name(func)
    names = [argument.name for argument in func._schema.arguments]
    position = names.index("dtype") if "dtype" in names else None
    # prim operators belong to the TorchScript runtime; the dispatcher does not know them and refuses to be asked.
    composite = not overload.startswith("prim::") and func._can_decompose()
    returns = func._schema.returns
    alias = returns[0].alias_info if len(returns) == 1 else None
    is_view = alias is not None and not alias.is_write and overload not in CASTS
    return OpTraits(overload, overload in CASTS, composite, is_view, position)


@cache
def exists(name: str) -> bool:
    """Return whether the installed torch has an aten overload; a newer one may have dropped it."""
    try:
        overload(name)
    except AttributeError:
        return False
    return True


def is_composite(name: str) -> bool:
    """Return whether an aten overload is made of other ops on every device, so that autocast acts on those."""
    return traits(overload(name)).composite


def writes(name: str) -> bool:
    """Return whether an aten overload is in-place or has an `out=`."""
    return overload(name)._schema.is_mutable


def overload_name(func: OpOverload) -> str:
    """Return the overload's name: `mm` for aten::mm, `sum.dim_IntList`, and `mylib::op` outside aten."""
    namespace, _, name = func._schema.name.partition("::")
    full = f"{name}.{func._schema.overload_name}" if func._schema.overload_name else name
    return full if namespace == "aten" else f"{namespace}::{full}"


def overload(name: str) -> OpOverload:
    """Return the callable of an overload by the name that `overload_name` gives, e.g. `overload("sum.dim_IntList")`."""
    namespace, _, own = name.rpartition("::")
    packet, _, variant = own.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), variant or "default")
    return found


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments or outputs, in order."""
    yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested arguments with each tensor changed, in the order of `tensors`."""
    return pytree.tree_map_only(torch.Tensor, change, value)


def parts(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a composite op returns, run so that a dispatch mode that is entered sees the ops it is made of."""
    # The dispatcher runs the C++ kernel; `decompose` would prefer a Python one that makes other calls.
    if has_kernel(func.name(), _COMPOSITE):
        return func._op_dk(_COMPOSITE, *args, **kwargs)
    return func.decompose(*args, **kwargs)


class Recorder(TorchDispatchMode):
    """The dispatch mode of everything that looks at ops: it runs each one, below autocast, by a function.

    `run`: called with the op, its arguments and its keyword arguments. It returns what the op is to return.
    """

    def __init__(self, run: Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})


class KernelRecorder(Recorder):
    """Record kernels and autocast's casts while entered.

    `device_type`: of the region. `opaque_ops`: overloads that are recorded as they are and not taken apart: those with
    a policy. `inputs`: the tensors that are followed into kernels.

    Enter it inside the region. What is recorded should not cast by itself: such a cast cannot be told from autocast's.
    """

    def __init__(self, device_type: str, opaque_ops: Collection[str], inputs: Sequence[torch.Tensor] = ()) -> None:
        super().__init__(self._record)
        self.kernels: list[KernelCall] = []
        self.casts: list[Cast] = []
        self._device_type = device_type
        self._opaque_ops = opaque_ops
        self._sources = {id(tensor): place for place, tensor in enumerate(inputs)}
        self._enabled = False
        self._depth = 0
        # A view of a call's own tensor counts as that tensor; kept alive so that no identity is used twice.
        self._views: list[torch.Tensor] = []
        # Cast tensors by identity, kept alive so that no identity is used twice: (tensor, dtype before, source).
        self._cast: dict[int, tuple[torch.Tensor, str, int | None]] = {}

    def __enter__(self) -> Self:
        # It is entered again around the parts of a composite op, where PyTorch reports autocast as disabled.
        if not self._depth:
            self._enabled = torch.is_autocast_enabled(self._device_type)
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._depth -= 1
        super().__exit__(*exc)

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, is_cast, composite, is_view, dtype_position = traits(func)
        if is_cast:
            return self._record_cast(func, args, kwargs)
        if composite and name not in self._opaque_ops:
            return self._parts(func, args, kwargs)
        if not name.startswith("prim::"):
            dtype = kwargs.get("dtype")
            if dtype is None and dtype_position is not None and dtype_position < len(args):
                dtype = args[dtype_position]
            seen = tuple(self._seen(tensor) for tensor in tensors((args, kwargs)))
            self.kernels.append(KernelCall(name, seen, name_of(dtype) if isinstance(dtype, torch.dtype) else None))
        out = func(*args, **kwargs)
        if is_view and isinstance(out, torch.Tensor) and id(args[0]) in self._sources:
            self._sources[id(out)] = self._sources[id(args[0])]
            self._views.append(out)
        return out

    def _parts(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite op so that its parts are recorded, under the autocast state its caller has.

        PyTorch excludes every autocast key while a dispatch mode runs.
        """
        torch.set_autocast_enabled(self._device_type, self._enabled)
        try:
            with self:
                return parts(func, args, kwargs)
        finally:
            torch.set_autocast_enabled(self._device_type, False)

    def _record_cast(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        before = args[0]
        if out.dtype != before.dtype:
            source = self._sources.get(id(before))
            if source is None and id(before) in self._cast:  # cast for the second time
                source = self._cast[id(before)][2]
            given = name_of(before.dtype)
            self._cast[id(out)] = (out, given, source)
            self.casts.append(Cast(given, name_of(out.dtype), source, out.numel()))
        return out

    def _seen(self, tensor: torch.Tensor) -> SeenLeaf:
        got = name_of(tensor.dtype)
        on_device = tensor.device.type == self._device_type
        if cast := self._cast.get(id(tensor)):
            return SeenLeaf(cast[1], got, on_device, cast[2])
        return SeenLeaf(got, got, on_device, self._sources.get(id(tensor)))


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what a call gives, and what it raises in its place."""
    try:
        return call(), None
    except Exception as error:  # the call under test may raise anything, and that is what is to be seen
        return None, error


def observe(
    call: Callable[[], Any], device_type: str, opaque_ops: Collection[str], inputs: Sequence[torch.Tensor] = ()
) -> Observation:
    """Run `call` and record it, with an exception that it raises; see `KernelRecorder` for the arguments."""
    with AutoDispatchBelowAutograd():
        return observe_by(KernelRecorder(device_type, opaque_ops, inputs), call, inputs)


class Recording(Protocol):
    """A recorder: it records while it is entered."""

    kernels: list[KernelCall]
    casts: list[Cast]

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


def observe_by(recorder: Recording, call: Callable[[], Any], inputs: Sequence[torch.Tensor]) -> Observation:
    """Run `call` under a recorder, and return what it recorded, the outputs or the error, and the inputs changed."""
    observation = Observation(recorder.kernels, recorder.casts)
    before = [name_of(tensor.dtype) for tensor in inputs]
    with recorder:
        out, observation.error = attempt(call)
    observation.outputs = list(tensors(out))
    after = [name_of(tensor.dtype) for tensor in inputs]
    observation.changed = [(place, a, b) for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return observation


CALLERS = ("_transformer_encoder_layer_fwd",)
"""Kernels of a backend, without a policy, that call ops with one: autocast acts inside of them."""
_BACKENDS = tuple(getattr(DispatchKey, name) for name in ("CPU", "CUDA", "XPU", "MPS", "MTIA", "PrivateUse1"))


class Casting(NamedTuple):
    """What autocast makes of a call of an op.

    `overload`: the op whose kernel runs. `dtypes`: of each tensor that it receives, None for one of another device
    type. `dtype`: the `dtype=` that is filled in. `refusal`: a part of the message where the call must be refused.
    """

    overload: str
    dtypes: tuple[torch.dtype | None, ...]
    dtype: torch.dtype | None = None
    refusal: str = ""


class CastRule(Protocol):
    """Says what autocast makes of a call of an overload, whose tensors have the dtypes `given`."""

    def __call__(self, overload: str, given: Sequence[torch.dtype | None], *, dtype_given: bool) -> Casting: ...


def casting(
    policy: str,
    overload: str,
    given: Sequence[torch.dtype | None],
    dtype: torch.dtype,
    *,
    enabled: bool = True,
    dtype_given: bool = False,
) -> Casting:
    """Return what the specification says of a call; see `ampcheck.spec.casting.expect`.

    `given`: the dtype of each tensor argument, None for one of another device type.
    """
    leaves = [Leaf(name_of(own or torch.float32), own is not None) for own in given]
    wanted = expect(policy, overload, leaves, name_of(dtype), enabled=enabled, dtype_given=dtype_given)
    dtypes = tuple(own and DTYPES.get(name, own) for own, name in zip(given, wanted.leaves, strict=True))
    filled = DTYPES[wanted.dtype_kwarg] if wanted.dtype_kwarg else None
    return Casting(wanted.overload, dtypes, filled, wanted.error or "")


class Replay(Recorder):
    """Cast the arguments of each op with a policy while entered outside of any region.

    `device_type`: of the region that is replayed. `policies`: of the device, by overload. `casts`: says what they ask
    for.
    """

    def __init__(self, device_type: str, policies: Mapping[str, str], casts: CastRule) -> None:
        super().__init__(self._replayed)
        self._type = device_type
        self._policies = policies
        self._casts = casts
        self.kernels: list[tuple[str, tuple[str, ...]]] = []
        """Each op with a policy that ran: its overload and the dtypes of its tensor arguments."""

    def _replayed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = overload_name(func)
        policy = self._policies.get(name)
        if policy not in POLICIES:
            return self._without_policy(func, name, args, kwargs)
        positions = [argument.name for argument in func._schema.arguments]
        place = positions.index("dtype") if "dtype" in positions else len(args)
        chosen = kwargs.get("dtype", args[place] if place < len(args) else None)
        given = [t.dtype if t.device.type == self._type else None for t in tensors((args, kwargs))]
        wanted = self._casts(name, given, dtype_given=chosen is not None)
        if wanted.refusal:
            raise RuntimeError(wanted.refusal)
        if wanted.overload == name:
            pairs = zip(wanted.dtypes, tensors((args, kwargs)), strict=True)
            self.kernels.append((name, tuple(name_of(dtype or tensor.dtype) for dtype, tensor in pairs)))
        remaining = iter(wanted.dtypes)

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(next(remaining) or tensor.dtype)

        args = map_tensors(args, cast)
        kwargs = {key: map_tensors(value, cast) for key, value in kwargs.items()}
        if wanted.dtype:
            args, kwargs["dtype"] = args[:place], wanted.dtype
            if wanted.overload != name:  # the other overload has no defaults
                args += tuple(argument.default_value for argument in func._schema.arguments[len(args) :])
        return overload(wanted.overload)(*args, **kwargs)

    def _without_policy(self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in CALLERS and (backend := _backend(func, args)) is not None:
            seen = len(self.kernels)
            with self:
                out = func._op_dk(backend, *args, **kwargs)
            del self.kernels[seen:]  # a recorder does not see inside it either
            return out
        if "::" not in name and is_composite(name):
            with self:
                return parts(func, args, kwargs)
        return func(*args, **kwargs)


def _backend(func: OpOverload, args: tuple[Any, ...]) -> DispatchKey | None:
    """Return the dispatch key of the kernel for the first tensor; None where its backend has none."""
    keys = dispatch_keys(next(tensors(args)))
    key = next(key for key in _BACKENDS if keys.has(key))
    return key if has_kernel(func.name(), key) else None


@contextmanager
def _reported(device_type: str) -> Iterator[None]:
    """Tell Python code that asks whether autocast is on what it would be told inside the region."""
    # Dynamo keeps the functions it folds by their identity as it is imported; it must not meet the ones put in here.
    load_dynamo()

    def enabled(asked: str = "cuda") -> bool:
        return asked == device_type

    with patch("torch.is_autocast_enabled", enabled), patch("torch._C._is_any_autocast_enabled", lambda: True):
        yield


def by_policies(policies: Mapping[str, str], dtype: torch.dtype) -> CastRule:
    """Return what says how a region of a dtype casts by some policies."""

    def casts(overload: str, given: Sequence[torch.dtype | None], *, dtype_given: bool) -> Casting:
        return casting(policies[overload], overload, given, dtype, dtype_given=dtype_given)

    return casts


def replay(
    call: Callable[[], Any], device_type: str, policies: Mapping[str, str], casts: CastRule
) -> tuple[Observation, list[tuple[str, tuple[str, ...]]]]:
    """Run `call` outside of any region with the casts of one; see `Replay` for the arguments.

    No gradient is recorded: the autograd keys are excluded, so that composite ops arrive whole.

    Returns: its outputs or its error, and each op with a policy that ran, with the dtypes it received.
    """
    seen = Observation()
    mode = Replay(device_type, policies, casts)
    with AutoDispatchBelowAutograd(), _reported(device_type), mode:
        out, seen.error = attempt(call)
    seen.outputs = list(tensors(out))
    return seen, mode.kernels
