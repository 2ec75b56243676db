"""The look of a status: one mark, one label and one sentence each, the same on every page and in every export."""

from __future__ import annotations

from dataclasses import dataclass

from ampcheck.runner.record import RED


@dataclass(frozen=True, slots=True)
class Status:
    """A status as readers see it. `mark` is shown beside the colour, so that no status is told by colour alone."""

    name: str
    mark: str
    label: str
    meaning: str

    @property
    def red(self) -> bool:
        """Return whether it makes a run fail."""
        return self.name in RED


_ALL = (
    Status("pass", "✓", "as promised", "The case does what PyTorch promises."),
    Status("fail", "✗", "fail", "The case does not do what PyTorch promises, and no deviation explains it."),
    Status("broken", "!", "broken", "The op raises or is wrong without autocast, too."),
    Status("deviation", "≠", "known deviation", "It fails in the way a deviation entry describes, with a reason."),
    Status("fixed", "↑", "stale deviation", "A deviation entry says it fails, but it passes now: delete the entry."),
    Status("unsupported", "∅", "unsupported", "The device says that it lacks this, or PyTorch has no kernel for it."),
    Status("error", "E", "harness error", "The suite itself broke, so nothing is known of the device."),
    Status("crash", "C", "crash", "The case ended its process."),
    Status("timeout", "T", "timeout", "The case did not end in time."),
    Status("missing", "?", "missing", "The manifest lists the case, but it did not run."),
)

SHOWN = {status.name: status for status in _ALL}
"""Every status of `ampcheck.runner.record.STATUSES`, by name, in that order."""


def number(count: int) -> str:
    """Return a count with its thousands apart, e.g. "12 034" (with a no-break space)."""
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")
