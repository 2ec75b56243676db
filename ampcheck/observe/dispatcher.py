"""What this build's dispatcher registers for autocast, and what of it no policy table knows.

Only aten overloads count: torchvision and other libraries register their own policies under the same keys
(`torchvision::nms`), which are theirs to promise and to test.
"""

import re

import torch

from ampcheck.observe.torch_private import dispatch_dump
from ampcheck.register.torch_private import backend_name, has_kernel
from ampcheck.spec.drift import covered, drift
from ampcheck.spec.policies import KEYS, closest, rows
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
