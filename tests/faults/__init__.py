"""Planted faults: ways in which torch could break a promise of autocast, each undone again.

`FAULTS` is the table that `test_faults.py` goes through. A fault belongs to the rule it breaks, and the cases of that
rule must catch it. To add one, add it to the list of the module whose kind it is: to `JAX` where the jax device, which
has a process of its own, must notice it, and to `FAULTS` otherwise.
"""

from __future__ import annotations

from tests.faults import (
    anydtype,
    autodiff,
    backends,
    caches,
    capture,
    casts,
    cells,
    checkpoint,
    compiled_gradients,
    construction,
    customfn,
    decorators,
    deprecated,
    derivatives,
    eligibility,
    failures,
    faketensor,
    functions,
    functorch,
    gradients,
    guards,
    holders,
    hops,
    interop,
    jit,
    jit_scenarios,
    limits,
    modes,
    modules,
    moves,
    optimizers,
    persistence,
    policies,
    precision,
    preflight,
    ranks,
    region_scenarios,
    regions,
    registration,
    replicas,
    reported,
    reproductions,
    scaler,
    scenarios,
    seen,
    settings,
    threads,
    torchscript_pass,
    transforms,
    unscale,
    variants,
)
from tests.faults.fault import Fault

__all__ = ["CONTROLS", "FAULTS", "Fault"]

_KINDS = (
    casts, cells, policies, eligibility, regions, region_scenarios, construction, decorators, threads, functions,
    gradients, autodiff, customfn, deprecated, caches, modules, moves, variants, anydtype, precision, holders,
    modes, transforms, scaler, persistence, unscale, optimizers, checkpoint, functorch, limits, jit, jit_scenarios,
    capture, guards, failures, faketensor, compiled_gradients, seen, derivatives, hops, replicas, ranks, settings,
    scenarios, torchscript_pass, backends, preflight, registration, reproductions, reported,
)  # fmt: skip
_ON_JAX = (autodiff, checkpoint, customfn, functorch, gradients, interop, moves, optimizers, persistence, scaler)

FAULTS: tuple[Fault, ...] = (
    *(fault for kind in _KINDS for fault in kind.FAULTS),
    *(fault for kind in _ON_JAX for fault in kind.JAX),
)
"""Every fault."""
CONTROLS = backends.CONTROLS
"""Cases of the backends that are right without a fault, beside those that a fault names."""
