"""How to reproduce a case: once as a pytest line, once as a few lines of plain torch that need no ampcheck.

A reproduction prints a line for each thing it looks at: `ok`, or `FAIL` with what was got and what was expected.
"""

from ampcheck.repro.common import preamble, pytest_line
from ampcheck.repro.gradients import of_gradient
from ampcheck.repro.ops import of_op
from ampcheck.repro.scenarios import of_scenario

__all__ = ["of_gradient", "of_op", "of_scenario", "preamble", "pytest_line"]
