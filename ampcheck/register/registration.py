"""`register_autocast`, and the handle it returns."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, TracebackType

import torch
from torch.library import Library, fallthrough_kernel

from ampcheck.errors import UsageError
from ampcheck.register.kernels import KEY, Cache, Casts, HigherOrder, overload_name
from ampcheck.register.plan import BASES, FALLTHROUGH, PolicyPlan, plan
from ampcheck.register.torch_private import DispatchKey, backend_name, has_fallback, has_kernel

Memory = Callable[[torch.Tensor], object]

DTYPES = (torch.bfloat16, torch.float16)
"""The lower precisions a device can have."""

_KEY_NAME = KEY.name
_SUPPORTED = "get_amp_supported_dtype"
_lock = threading.RLock()
_current: "Registration | None" = None


class Registration:
    """The result of `register_autocast`; also a context manager that unregisters at its end.

    `device`: the device type. `policies`: the policy of each overload that has one, by full name (`aten::mm`).
    `missing`: overloads of the base table that the installed torch does not have.
    """

    def __init__(
        self, device: str, base: str, made: PolicyPlan, dtypes: Sequence[torch.dtype], memory: Memory | None = None
    ) -> None:
        self.device = device
        self.base = base
        self.policies: Mapping[str, str] = {overload_name(planned.op): planned.policy for planned in made.planned}
        self.missing = made.missing
        self.cache = Cache(memory)
        self._undo: list[Callable[[], None]] = []
        try:
            self._register(made, tuple(dtypes))
        except BaseException:
            self._run_undo()
            raise

    @property
    def active(self) -> bool:
        """Return whether it is in force."""
        return bool(self._undo)

    def unregister(self) -> None:
        """Put the dispatcher, the higher-order operators, the device module and `torch.clear_autocast_cache` back.

        A second call does nothing. Regions that are open stay open: inside of them every op raises, as without a
        registration.
        """
        global _current
        with _lock:
            self._run_undo()
            if _current is self:
                _current = None

    def __enter__(self) -> "Registration":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = "" if self.active else ", unregistered"
        return f"<autocast of {self.device!r} after {self.base!r}: {len(self.policies)} overloads{state}>"

    def _run_undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _register(self, made: PolicyPlan, dtypes: tuple[torch.dtype, ...]) -> None:
        self._undo.append(_state_supported(getattr(torch, self.device), self.device, dtypes))
        self._undo.append(_copied_by_name(getattr(torch, self.device), self.device))
        self._undo.append(clear_with_torch(self.cache))
        self._undo.append(HigherOrder(getattr(DispatchKey, BASES[self.base])).unregister)
        casts = Casts(self.device, self.cache)
        libraries: dict[str, Library] = {}
        for planned in made.planned:
            if planned.op.namespace not in libraries:
                library = libraries[planned.op.namespace] = Library(planned.op.namespace, "IMPL")
                self._undo.append(library._destroy)
            kernel = planned.kernel(self.device, casts)
            libraries[planned.op.namespace].impl(overload_name(planned.op), kernel, _KEY_NAME)
        # A backend in C++ may have registered its own; a second one would stay in the dispatcher's books.
        if not has_fallback(KEY):
            others = Library("_", "IMPL")
            self._undo.append(others._destroy)
            others.fallback(fallthrough_kernel, _KEY_NAME)


def register_autocast(
    device: str,
    *,
    base: str = "cuda",
    overrides: Mapping[str, str] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    memory: Memory | None = None,
) -> Registration:
    """Give the PrivateUse1 device autocast, as PyTorch has it for another device.

    Args:
        device: the name the backend gave PrivateUse1, e.g. by `torch.utils.rename_privateuse1_backend`.
        base: whose policies it takes over, "cuda" or "cpu", as the installed torch registers them.
        overrides: other policies for single overloads, e.g. `{"aten::softmax.int": "upcast"}`: "downcast", "upcast",
            "optdtype", "append", "promote", "banned", or "fallthrough" for none. `aten::` may be left out; overloads of
            other namespaces can be given a policy too.
        dtypes: the lower precisions a region may have. A device module that has `get_amp_supported_dtype` says it
            itself, and what is given here must agree.
        memory: for a backend whose tensors have no storage that PyTorch can read: returns the object that holds a
            tensor's values, the same one (`is`) as long as they are there. Without it a cast of a weight is kept when
            `weight.data = …` gives the weight other memory of the same shape.

    Returns: a handle whose `unregister()` puts everything back.

    Raises UsageError, with nothing changed, for a name that is not the PrivateUse1 backend's or has no device module,
    an unknown base, overload, policy or dtype, a policy that does not suit its overload, an overload that has an
    autocast kernel already, and a registration that is still in force.
    """
    global _current
    with _lock:
        _check_device(device)
        if _current is not None:
            raise UsageError(f"autocast is registered for {device!r} already; unregister() it first")
        _check_dtypes(dtypes)
        made = plan(base, overrides or {})
        _check_free(made)
        _current = Registration(device, base, made, dtypes, memory)
        return _current


def _check_device(device: str) -> None:
    name = backend_name()
    if device != name:
        taken = "" if name == "privateuseone" else "; a process has one such backend, the first that is imported"
        raise UsageError(f"{device!r} is not the PrivateUse1 backend, whose name in this process is {name!r}{taken}")
    if not hasattr(torch, device):
        raise UsageError(
            f"torch.{device} does not exist; call torch._register_device_module({device!r}, module) before"
        )


def _check_dtypes(dtypes: Sequence[torch.dtype]) -> None:
    if not dtypes:
        raise UsageError("dtypes is empty; autocast needs a lower precision to cast to")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"dtypes has {dtype}; a lower precision is one of {', '.join(map(str, DTYPES))}")


def _check_free(made: PolicyPlan) -> None:
    """Raise where somebody registered a kernel before.

    A Python kernel over another does not take its place well, and does not give it back (torch.library).
    """
    for planned in made.planned:
        name = overload_name(planned.op)
        if has_kernel(name, _KEY_NAME):
            raise UsageError(
                f"{name} has a kernel for {_KEY_NAME} already; keep that one with overrides={{{name!r}: "
                f"{FALLTHROUGH!r}}}, or do not register it"
            )


def _state_supported(module: ModuleType, device: str, dtypes: tuple[torch.dtype, ...]) -> Callable[[], None]:
    """Give a device module that lacks it the function `torch.autocast` asks for the dtypes; returns the way back."""
    if hasattr(module, _SUPPORTED):
        own = getattr(module, _SUPPORTED)()
        if dtypes != DTYPES and set(dtypes) != set(own):
            raise UsageError(f"torch.{device}.{_SUPPORTED}() says {own}; leave dtypes out, or give the same")
        return lambda: None

    try:
        # A device module that is no Python module may be pickled by its attributes, and then with this one.
        setattr(module, _SUPPORTED, functools.partial(list, dtypes))
    except (AttributeError, TypeError) as error:
        raise UsageError(f"torch.{device} has no {_SUPPORTED} and takes none: {error}") from error
    return lambda: delattr(module, _SUPPORTED)


def _copied_by_name(module: ModuleType, device: str) -> Callable[[], None]:
    """Let a region be pickled and copied deeply: it refers to the device module, and Python pickles no modules."""
    own = type(module)
    if not isinstance(module, ModuleType) or own.__reduce__ is not ModuleType.__reduce__:
        return lambda: None
    found = {"__reduce__": lambda self: (torch.get_device_module, (device,)), "__module__": own.__module__}
    try:
        module.__class__ = type(own.__name__, (own,), found)
    except TypeError:  # a class that no other can inherit or replace: regions stay as PyTorch has them
        return lambda: None
    return lambda: setattr(module, "__class__", own)


def clear_with_torch(cache: Cache) -> Callable[[], None]:
    """Let `torch.clear_autocast_cache`, which ends every outermost region, clear this cache too."""
    before = torch.clear_autocast_cache

    @functools.wraps(before)
    def clear_autocast_cache(*args: object, **kwargs: object) -> None:
        before(*args, **kwargs)  # which takes none, and says so in its own words
        cache.clear()

    torch.clear_autocast_cache = clear_autocast_cache

    def restore() -> None:
        cache.clear()
        # Whoever replaced it since holds this one and puts it back; it then clears an empty cache.
        if torch.clear_autocast_cache is clear_autocast_cache:
            torch.clear_autocast_cache = before

    return restore
