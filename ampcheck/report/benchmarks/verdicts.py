"""The look of a verdict: one mark, one label and one sentence each, the same on every page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as readers see it. `mark` is shown beside the colour, so that none is told by colour alone.

    `style`: the end of its CSS class.
    """

    name: str
    mark: str
    label: str
    meaning: str

    @property
    def style(self) -> str:
        """Its name as part of a CSS class."""
        return self.name.replace(" ", "-")


_ALL = (
    Verdict("slower", "▼", "slower", "The whole interval lies below 1 ± the bound and that of the A/A baseline."),
    Verdict("faster", "▲", "faster", "The whole interval lies above 1 ± the bound and that of the A/A baseline."),
    Verdict("same", "=", "same", "The whole interval lies where two equal variants may lie."),
    Verdict("ambiguous", "?", "ambiguous", "None of these, or the A/A baseline shows as much."),
    Verdict("unstable", "~", "unstable", "The spread is too wide to say anything."),
    Verdict("invalid", "✗", "invalid", "It was measured, but not in the precision it is named for, or not to its end."),
    Verdict("not measured", "∅", "not measured", "It could not be measured; the reason says why."),
    Verdict("first", "·", "baseline", "What the other variants of its group are compared with."),
)

SHOWN = {verdict.name: verdict for verdict in _ALL}
"""Every verdict of `ampcheck.bench.core.model.VERDICTS`, and "first", by name."""
