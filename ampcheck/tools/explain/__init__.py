"""Explain autocast's effect on an op from the specification: `ampcheck explain OP`."""

from __future__ import annotations

from ampcheck.tools.explain.effects import deviations, effects, keys
from ampcheck.tools.explain.names import floating_names, resolve

__all__ = ["deviations", "effects", "floating_names", "keys", "resolve"]
