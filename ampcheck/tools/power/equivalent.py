"""Mutants that no case can notice: they compute the same, or differ only on hardware that no test machine has.

A mutant that a user could notice on the CPU, or on a virtual device, is never among them.
"""

import re
import tomllib
from pathlib import Path

from ampcheck.tools.power.source import SourceMutant

_FILE = Path(__file__).with_name("equivalent.toml")
EQUIVALENT = [(e["where"], e["change"], e["why"]) for e in tomllib.loads(_FILE.read_text(encoding="utf-8"))["mutant"]]
"""Where a mutant is (`module:function: statement`), what it changes, both as searched, and why it is not counted."""


def why_equivalent(mutant: SourceMutant) -> str:
    """Return why no case can notice a mutant; "" where one might."""
    where = f"{mutant.module.rpartition('.')[2]}:{mutant.function}: {mutant.statement}"
    found = (why for place, change, why in EQUIVALENT if re.search(place, where) and re.search(change, mutant.change))
    return next(found, "")
