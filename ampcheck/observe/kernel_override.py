"""Other kernels in place of registered autocast kernels: recorders, which note key and overload, and planted faults.

Each goes on with what it replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.library import Library, fallthrough_kernel, get_kernel

from ampcheck.register.torch_private import DispatchKeySet
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
    """Put other kernels in place of registered ones, each of a key and an overload; they are given the keyset, too.

    `torch.library.fallthrough_kernel` takes an op off the key's list.
    """
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # Replacing a kernel warns, once for each of them; here it is the purpose, and undone at the end.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            for key, overload, replacement in kernels:
                keyset = replacement is not fallthrough_kernel
                library.impl(overload, replacement, key, with_keyset=keyset, allow_override=True)
        yield
    finally:
        library._destroy()


def _recorder(key: str, overload: str, entered: set[tuple[str, str]]) -> Callable[..., Any]:
    kernel = get_kernel(f"aten::{overload}", key)

    def record(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        entered.add((key, overload))
        return kernel.call_boxed(keyset, *args, **kwargs)

    return record
