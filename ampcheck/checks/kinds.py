"""The kinds of case, and which kind a case is of."""

from ampcheck.checks.backward import BackwardCheck
from ampcheck.checks.compiled import CompiledCheck
from ampcheck.checks.drift import DriftCheck
from ampcheck.checks.forward import ForwardCheck
from ampcheck.checks.op_database import OpDatabaseCheck
from ampcheck.checks.program import Check
from ampcheck.checks.sweep import SweepCheck
from ampcheck.spec.case import Case

KINDS = (SweepCheck(), OpDatabaseCheck(), DriftCheck(), CompiledCheck(), BackwardCheck(), ForwardCheck())
"""The kinds of case about ops. A case of none of them is a scenario."""


def check_of(case: Case) -> Check | None:
    """Return the kind that a case is of; None for a scenario, which its suite file runs."""
    return next((kind for kind in KINDS if kind.takes(case)), None)
