"""Other kernels in place of registered autocast kernels: recorders, which note key and overload, and planted faults.

Each goes on with what it replaced. Also kernels for ops that a backend has none for.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.library import Library, get_kernel

from ampcheck.register.casts import Cache, Casts
from ampcheck.register.kernels import KEY
from ampcheck.register.plan import plan
from ampcheck.register.registration import clear_with_torch
from ampcheck.register.torch_private import DispatchKeySet, dynamo_skip, has_fallback, has_kernel
from ampcheck.spec.torch_private import registered

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
