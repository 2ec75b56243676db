"""Explain autocast's effect on an op from the specification: `ampcheck explain OP`."""

from __future__ import annotations

from ampcheck.tools.explain.text import explain

__all__ = ["explain"]
