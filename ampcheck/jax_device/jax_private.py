"""The private names of JAX that the jax device uses. They save memory and time; the device works without them.

JAX promises nothing of them, so none is needed: each is None where the installed JAX lacks it.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

NAMES = (
    "jax._src.compilation_cache.get_file_cache",
    "jax._src.interpreters.pxla._cached_lowering_to_hlo.cache_clear",
    "jax._src.pjit._pjit_lower.cache_clear",
    "jax._src.core.trace_state_clean",
)
"""Every name; tests/jax looks for them, so that a JAX which lost one is noticed."""


def find(path: str) -> tuple[Any, Any]:
    """Return the object of a dotted path and its owner; None for both where the installed JAX lacks it."""
    parts = path.split(".")
    owner: Any = None
    found: Any = import_module(parts[0])
    try:
        for place, name in enumerate(parts[1:], 2):
            if isinstance(found, ModuleType) and not hasattr(found, name):
                import_module(".".join(parts[:place]))
            owner, found = found, getattr(found, name)
    except (AttributeError, ImportError):
        return None, None
    return found, owner


get_file_cache, compilation_cache = find(NAMES[0])
"""How JAX makes the cache of a folder, and the module in which the function is replaced."""


def forget_lowered() -> None:
    """Drop the StableHLO of compiled programs, which JAX keeps with an MLIR context of a megabyte for each.

    A jitted function that is called with arguments of another kind, or lowered by hand, is lowered anew.
    """
    for clear in (find(name)[0] for name in NAMES[1:3]):
        if clear is not None:
            clear()


_clean = find(NAMES[3])[0]


def traced() -> bool | None:
    """Return whether JAX traces something in this thread; None where the installed JAX does not say."""
    return None if _clean is None else not _clean()
