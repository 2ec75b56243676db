"""How to reproduce a case: once as a pytest line, once as a few lines of plain torch that need no ampcheck.

A reproduction prints a line for each thing it looks at: `ok`, or `FAIL` with what was got and what was expected.
"""

from ampcheck.reproduce.cells import of_cells
from ampcheck.reproduce.common import preamble, pytest_line
from ampcheck.reproduce.compiled import of_compiled
from ampcheck.reproduce.gradients import of_gradient
from ampcheck.reproduce.op_database import of_op_database
from ampcheck.reproduce.ops import of_layout, of_op
from ampcheck.reproduce.scenarios import of_scenario

__all__ = [
    "of_cells",
    "of_compiled",
    "of_gradient",
    "of_layout",
    "of_op",
    "of_op_database",
    "of_scenario",
    "preamble",
    "pytest_line",
]
