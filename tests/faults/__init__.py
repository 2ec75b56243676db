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
    derivatives,
    eligibility,
    functions,
    functorch,
    gradients,
    jit,
    jit_scenarios,
    limits,
    modules,
    optimizers,
    persistence,
    policies,
    regions,
    replicas,
    scaler,
    seen,
    settings,
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
    persistence,
    unscale,
    optimizers,
    checkpoint,
    functorch,
    limits,
    jit,
    jit_scenarios,
    seen,
    derivatives,
    replicas,
    settings,
)

FAULTS: tuple[Fault, ...] = tuple(fault for kind in _KINDS for fault in kind.FAULTS)
"""Every fault."""
