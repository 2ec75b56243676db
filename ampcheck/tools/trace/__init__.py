"""Autocast's effect on a program: every op it runs, the casts made for each, and their place in the program.

`ampcheck.trace()` around user code, or `ampcheck trace SCRIPT.py` on the command line. A function mode sees each public
call before autocast (`linear`), a dispatch mode sees the casts and what runs below autocast (`t` and `addmm`); what the
second sees belongs to the innermost call of the first.
"""

from ampcheck.tools.trace.records import CastRecord, OpRecord
from ampcheck.tools.trace.session import Trace, command, trace

__all__ = ["CastRecord", "OpRecord", "Trace", "command", "trace"]
