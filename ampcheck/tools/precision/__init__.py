"""Where a program loses accuracy to its regions, and the least of it to keep in float32: `ampcheck precision`.

`shadow` computes each kernel beside the program in float64, `runs` repeats the program and looks for the least set,
`report` writes it as code and says what was found.
"""

from ampcheck.tools.precision.report import command

__all__ = ["command"]
