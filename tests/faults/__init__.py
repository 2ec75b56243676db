"""Planted faults: ways in which torch could break a promise of autocast, each undone again.

`FAULTS` is what `tests/test_planted_faults.py` goes through. A fault belongs to the rule it breaks, and the suite file
of that rule must catch it. To add one, add it to the list of the module whose kind it is.
"""

from __future__ import annotations

from tests.faults import (
    autodiff,
    caches,
    casts,
    checkpoint,
    construction,
    customfn,
    decorators,
    deprecated,
    eligibility,
    functions,
    functorch,
    gradients,
    jit,
    limits,
    modules,
    optimizers,
    policies,
    regions,
    scaler,
    threads,
    unscale,
)
from tests.faults.fault import Fault

__all__ = ["FAULTS", "Fault"]

_KINDS = (
    casts,
    policies,
    eligibility,
    regions,
    construction,
    decorators,
    threads,
    functions,
    gradients,
    autodiff,
    customfn,
    deprecated,
    caches,
    modules,
    scaler,
    unscale,
    optimizers,
    checkpoint,
    functorch,
    limits,
    jit,
)

FAULTS: tuple[Fault, ...] = tuple(fault for kind in _KINDS for fault in kind.FAULTS)
"""Every fault."""
