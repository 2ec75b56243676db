"""Mutants: ways in which torch, a backend or a compiler can break a promise of autocast, each undone again.

`MUTANTS` is the table. A mutant belongs to a rule, whose cases must be red under it; `kills.csv` has, for each mutant,
a case that is, and, for each scenario and rule of ops, a mutant under which it is. `python -m tests.faults matrix`
measures which cases notice which mutants. To add one, add it to `edits.toml` if it changes a line of Python, else to
the module of its kind, and measure it.
"""

from tests.faults import backends, compilers, edits, gradients, kernels, scaler, state
from tests.register import mutants as register
from tests.torchscript import mutants as torchscript

_MODULES = (edits, state, kernels, gradients, scaler, compilers, backends, register, torchscript)
MUTANTS = tuple(mutant for module in _MODULES for mutant in module.MUTANTS)
"""Every mutant."""
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
