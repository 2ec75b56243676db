"""How to reproduce a scenario: as a few lines of plain torch that need no ampcheck.

A reproduction prints a line for each thing it looks at: `ok`, or `FAIL` with what was got and what was expected. Those
of cases about ops are in `ampcheck.checks`.
"""

from ampcheck.reproduce.scenarios import of_scenario

__all__ = ["of_scenario"]
