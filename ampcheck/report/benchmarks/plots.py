"""Scatter plots and rooflines as inline SVG, drawn by matplotlib, which is in the extra `bench`.

Colours become the site's CSS variables, so that a plot follows the reader's light or dark scheme. The same figures give
the same bytes.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "matplotlib is not installed here, so this plot is missing; pip install 'ampcheck[bench]' brings it."
MARKERS = {"op": "o", "step": "s", "overhead": "^"}
"""The shape of a point, by kind of workload."""

_COLORS = tuple(f"#a{number:x}c0d{number:x}" for number in range(12))
"""Placeholders in the drawing of the CSS variables --a0 to --a11, which `_styled` puts in."""

_POINT = re.compile(r"<(use|path) ([^>]*?(?:xlink:href|clip-path)[^>]*?)/>")
"""A drawn point: several of a look use one shape, a single one is a path."""

_FOREGROUND, _MUTED, _LINE = "#f0c0d0", "#f0c0d1", "#f0c0d2"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _FOREGROUND,
    "axes.titlecolor": _FOREGROUND,
    "text.color": _FOREGROUND,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "grid.color": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a plot: its place, the number of its variant's colour, what it is called, and how it is marked."""

    x: float
    y: float
    color: int
    title: str
    kind: str = "op"
    estimate: bool = False


def available() -> bool:
    """Return whether matplotlib is here, without importing it."""
    return importlib.util.find_spec("matplotlib") is not None


def scatter(name: str, dots: Sequence[Dot], label: str) -> str:
    """Speed over error, both on logarithmic axes. `name` keeps the ids of plots on one page apart."""
    figure, axes = _figure(name)
    axes.axhline(1, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    _dots(axes, dots)
    errors = [dot.x for dot in dots]
    axes.set_xlim(min(errors, default=1e-3) / 3, max(errors, default=1e-3) * 3)
    axes.tick_params(which="minor", labelbottom=False)
    axes.set_xlabel("relative error against float64 (log)")
    axes.set_ylabel("speed beside the baseline (log)")
    _plain_ratios(axes, [dot.y for dot in dots])
    return _svg(name, figure, label, dots)


def roofline(name: str, dots: Sequence[Dot], ceilings: Mapping[str, float], label: str) -> str:
    """Flops per second over flops per byte. `ceilings`: flop/s by precision, and bytes/s as "bandwidth", as known."""
    figure, axes = _figure(name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    bandwidth = ceilings.get("bandwidth")
    peaks = {precision: peak for precision, peak in ceilings.items() if precision != "bandwidth"}
    low = min([dot.x for dot in dots], default=1.0) / 4
    high = max([dot.x for dot in dots] + [2 * peak / bandwidth for peak in peaks.values() if bandwidth] + [low]) * 2
    # The slope ends at the highest ceiling; without one it crosses the whole plot.
    top = max(peaks.values(), default=math.inf)
    if bandwidth:
        end = min(high, top / bandwidth)
        axes.plot([low, end], [low * bandwidth, end * bandwidth], color=_MUTED, linewidth=1.2)
        middle = math.sqrt(low * end)
        place = (middle, middle * bandwidth)
        axes.annotate("memory", place, xytext=(6, -10), textcoords="offset points", color=_FOREGROUND)
    for precision, peak in sorted(peaks.items(), key=lambda item: item[1]):
        start = max(low, peak / bandwidth) if bandwidth else low
        axes.plot([start, high], [peak, peak], color=_MUTED, linewidth=1.2, linestyle=(0, (6, 2)))
        axes.annotate(
            precision, (high, peak), xytext=(-2, 3), textcoords="offset points", ha="right", color=_FOREGROUND
        )
    _dots(axes, dots)
    heights = [dot.y for dot in dots] + list(peaks.values())
    axes.set_xlim(low, high)
    axes.set_ylim(min(heights, default=1) / 3, max(heights, default=1) * 3)
    axes.tick_params(which="minor", labelleft=False, labelbottom=False)
    axes.set_xlabel("intensity, FLOP per byte (log)")
    axes.set_ylabel("FLOP/s (log)")
    return _svg(name, figure, label, dots)


def _figure(name: str) -> tuple[Figure, Axes]:
    import matplotlib  # noqa: PLC0415  # matplotlib takes a second to load
    from matplotlib.figure import Figure as Made  # noqa: PLC0415  # matplotlib takes a second to load

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Made(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.add_subplot()
    axes.grid(True, which="major", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _dots(axes: Axes, dots: Sequence[Dot]) -> None:
    """Draw each look apart, named so that `_titled` finds it again: a hollow point is an estimate."""
    for look, members in _looks(dots).items():
        color, kind, estimate = look
        drawn = axes.scatter(
            [dot.x for dot in members],
            [dot.y for dot in members],
            s=34,
            marker=MARKERS.get(kind, "D"),
            facecolors="none" if estimate else _COLORS[color],
            edgecolors=_COLORS[color],
            linewidths=1.4 if estimate else 0.8,
            alpha=None if estimate else 0.85,
        )
        drawn.set_gid(_gid(look))


def _looks(dots: Sequence[Dot]) -> dict[tuple[int, str, bool], list[Dot]]:
    found: dict[tuple[int, str, bool], list[Dot]] = {}
    for dot in dots:
        found.setdefault((dot.color, dot.kind, dot.estimate), []).append(dot)
    return found


def _gid(look: tuple[int, str, bool]) -> str:
    color, kind, estimate = look
    return f"dots-{color}-{re.sub('[^a-z]', '', kind)}{'-estimate' if estimate else ''}"


def _plain_ratios(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at powers of two that read as ratios; every other one where there are many."""
    low = math.floor(math.log2(min([*values, 0.9])))
    high = math.ceil(math.log2(max([*values, 1.1])))
    step = max(1, math.ceil((high - low) / 9))
    ticks = [2.0**power for power in range(low, high + 1) if power % step == 0]
    axes.set_yticks(ticks, [f"{tick:.3g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(2.0 ** (low - 0.1), 2.0 ** (high + 0.1))


def _svg(name: str, figure: Figure, label: str, dots: Sequence[Dot]) -> str:
    import matplotlib  # noqa: PLC0415  # matplotlib takes a second to load

    out = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _styled(name, _titled(out.getvalue(), dots), label)


def _titled(svg: str, dots: Sequence[Dot]) -> str:
    """Give each point its title: the points of a look are drawn in their order."""
    for look, members in _looks(dots).items():
        head, found, rest = svg.partition(f'<g id="{_gid(look)}">')
        titles = iter(members)

        def titled(point: re.Match[str], titles: Iterator[Dot] = titles) -> str:
            return f"<{point[1]} {point[2]}><title>{escape(next(titles).title)}</title></{point[1]}>"

        svg = head + found + _POINT.sub(titled, rest, count=len(members))
    return svg


def _styled(name: str, svg: str, label: str) -> str:
    """Make the drawing part of a page: no prolog, distinct ids, the site's colours, a name for those who cannot see."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    for number, stand_in in enumerate(_COLORS):
        svg = svg.replace(stand_in, f"var(--a{number})")
    for stand_in, variable in ((_FOREGROUND, "--fg"), (_MUTED, "--muted"), (_LINE, "--line")):
        svg = svg.replace(stand_in, f"var({variable})")
    head, _, body = svg.partition(">")
    head = re.sub(r' (?:width|height|version|xmlns(?::xlink)?)="[^"]*"', "", head)
    spaced = re.sub(r"\s*\n\s*", "\n", body)
    return f'{head} class="plot" role="img" aria-label="{escape(label)}">{spaced}'
