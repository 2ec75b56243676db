"""Watch which steps a GradScaler takes, and where gradients go wrong before one that it skips: `ampcheck.watch`."""

from __future__ import annotations

from ampcheck.tools.watch.steps import Culprit, WatchedStep
from ampcheck.tools.watch.watching import Watch, watch

__all__ = ["Culprit", "Watch", "WatchedStep", "watch"]
