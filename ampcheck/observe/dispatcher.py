"""What this build's dispatcher registers for autocast, what of it no policy table knows, and kernels in its place.

Only aten overloads count: torchvision and other libraries register their own policies under the same keys
(`torchvision::nms`), which are theirs to promise and to test.

Kernels in place of registered ones are recorders, which note key and overload, planted faults, and those of ops that a
backend has none for. Each of the first two goes on with what it replaced.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import Library, get_kernel

from ampcheck.observe.torch_private import dispatch_dump
from ampcheck.register.kernels import KEY, Cache, Casts
from ampcheck.register.plan import plan
from ampcheck.register.registration import clear_with_torch
from ampcheck.register.torch_private import DispatchKeySet, backend_name, dynamo_skip, has_fallback, has_kernel
from ampcheck.spec.policies import KEYS, closest, covered, drift, rows
from ampcheck.spec.torch_private import registered

_ATEN = "aten::"

UNKNOWN = "unknown"
"""The policy of an overload that is registered but is not in a table; no casting can be expected of it."""


def live_registrations() -> dict[str, frozenset[str]]:
    """Return, per autocast dispatch key, the aten overloads registered in this process, without the namespace.

    A key is there even where nothing is registered under it. No device is needed: a CPU build registers all six keys.
    """
    return {key: registered(key) for key in KEYS}


def live_drift() -> list[str]:
    """Return how this build differs from the table closest to its version, one sentence each; none where they agree.

    On a version without its own table a first sentence says which table it is compared with.
    """
    version = closest(torch.__version__)
    found = drift(live_registrations(), version)
    if found and not covered(torch.__version__):
        found.insert(
            0, f"torch {torch.__version__} has no policy table; it is compared with the table of torch {version}"
        )
    return found


def unlisted(key: str) -> list[str]:
    """Return the overloads registered under a key that the closest table lacks, sorted; their policy is `UNKNOWN`.

    Raises ValueError for a key that is none of `ampcheck.spec.policies.KEYS`.
    """
    if key not in KEYS:
        raise ValueError(f"unknown autocast key {key!r}; known: {', '.join(KEYS)}")
    listed = {row.overload for row in rows(closest(torch.__version__)) if row.key == key}
    return sorted(registered(key) - listed)


def compiled(key: str) -> bool:
    """Tell whether kernels registered under an autocast key are C++ functions, as PyTorch's helpers make them.

    A kernel that is written in Python cannot use those helpers, nor PyTorch's cache of weights behind them.
    """
    pattern = re.compile(rf"^{key}: .*\bunboxed\b", re.MULTILINE)
    return any(pattern.search(dispatch_dump(_ATEN + name)) for name in sorted(registered(key)))


_LACKING = re.compile(r"Could not run 'aten::(?P<op>[\w.]+)' with arguments from the '(?P<key>\w+)' backend")
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")

_UNWRITTEN = re.compile(r"(?P<op>convolution(_backward)?_overrideable) not implemented")
_NO_HOOKS = "You should register `PrivateUse1HooksInterface`"


def lacks_kernel(error: BaseException) -> bool:
    """Return whether an exception is PyTorch's word that a backend has no kernel for an aten op, or no such hook.

    A registered kernel that raises the same text is not missing. An autocast kernel is: without one or a fallthrough
    an op fails in regions alone, and that is the backend's fault.
    """
    text = str(error)
    if not isinstance(error, NotImplementedError):
        return False
    if text.startswith(_NO_HOOKS):
        return True
    if unwritten := _UNWRITTEN.match(text):
        return not has_kernel(f"aten::{unwritten['op']}", "PrivateUse1")
    match = _LACKING.match(text)
    if match is None:
        return False
    # The message has the name that the backend was given in the place of PrivateUse1, as in "Sparsejax".
    own = match["key"].replace(backend_name(), "PrivateUse1")
    keys = (own, *_COMPOSITE)
    if own.startswith("Autocast"):
        return False
    try:
        return not any(has_kernel(f"aten::{match['op']}", key) for key in keys)
    except RuntimeError:  # there is no such op or dispatch key
        return False


Kernel = Callable[..., Any]


def replaceable(key: str) -> bool:
    """Return whether a recorder can be put in place of the kernels of a dispatch key.

    Not of a backend's own Python kernels: torch.library neither calls a replacement of one as it should nor puts it
    back.
    """
    return key in ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")


@contextmanager
def recording(keys: Iterable[str]) -> Iterator[set[tuple[str, str]]]:
    """Put a recorder in place of every registered kernel of the keys; gives the (key, overload) pairs entered."""
    entered: set[tuple[str, str]] = set()
    made = [(key, overload, _recorder(key, overload, entered)) for key in keys for overload in registered(key)]
    with replaced(made):
        yield entered


@contextmanager
def replaced(kernels: Iterable[tuple[str, str, Kernel]]) -> Iterator[None]:
    """Put other kernels in place of registered ones, each of a key and an overload; they are given the keyset, too."""
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # Replacing a kernel warns, once for each of them; here it is the purpose, and undone at the end.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            for key, overload, replacement in kernels:
                library.impl(overload, replacement, key, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


@contextmanager
def added(device_type: str, overloads: Collection[str]) -> Iterator[Counter[str]]:
    """Give the PrivateUse1 backend CUDA's autocast kernels of ops for which it has none.

    Gives how often each of them is called. A backend without a fallback gets none: all else raises in its regions.
    """
    calls: Counter[str] = Counter()
    cache = Cache()
    casts = Casts(device_type, cache)
    library, restore = Library("aten", "IMPL"), clear_with_torch(cache)
    try:
        for planned in plan("cuda", {}).planned if has_fallback(KEY) else ():
            overload = planned.op.name().removeprefix("aten::")
            if overload in overloads and not has_kernel(planned.op.name(), KEY):
                calls[overload] = 0
                library.impl(overload, _counted(calls, overload, planned.kernel(device_type, casts)), KEY.name)
        yield calls
    finally:
        library._destroy()
        restore()


def _counted(calls: Counter[str], overload: str, kernel: Kernel) -> Kernel:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[overload] += 1
        return kernel(*args, **kwargs)

    return dynamo_skip(counted)


def _recorder(key: str, overload: str, entered: set[tuple[str, str]]) -> Callable[..., Any]:
    kernel = get_kernel(f"aten::{overload}", key)

    def record(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        entered.add((key, overload))
        return kernel.call_boxed(keyset, *args, **kwargs)

    return record
