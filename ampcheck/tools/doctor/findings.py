"""Findings of the doctor: what was seen where, under which rule of the catalogue, and the screen that tells it."""

import linecache
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ampcheck.tools.catalogue import COSTS, RULES
from ampcheck.tools.user_program import screen_width


@dataclass(slots=True)
class Finding:
    """One mistake at one place.

    Attributes:
        rule: its name in the catalogue.
        place: the user's file and line, "model.py:12"; "" where no line of the program is known.
        module: the path of the module that ran, below the class of the outermost one; outside of modules the line of an
            installed package that the program called, or "".
        seen: what was seen, with values and dtypes.
        step: the number of the step in which it was first seen, from 1 on.
        count: in how many calls it was seen.
        instead: what to write; "" for the rule's own sentence.
    """

    rule: str
    place: str
    module: str
    seen: str
    step: int
    count: int = 1
    instead: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Sort by what it costs, dearest first, then by when it was seen."""
        return COSTS.index(RULES[self.rule].costs), self.step

    def fields(self) -> dict[str, object]:
        """Return its fields by name, with those of its rule, for JSON."""
        rule = RULES[self.rule]
        return asdict(self) | {"id": rule.id, "costs": rule.costs, "instead": self.instead or rule.instead}


class Findings:
    """Findings by rule and place. `step`: the number of the step that runs."""

    def __init__(self) -> None:
        self.step = 1
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, rule: str, place: tuple[str, str], seen: str, instead: str = "") -> None:
        """Note that a rule was broken at a place, a module's path and the program's line."""
        module, location = place
        known = self._found.get((rule, location))
        if known is not None:
            known.count += 1
        else:
            self._found[rule, location] = Finding(rule, location, module, seen, self.step, instead=instead)

    def ranked(self) -> list[Finding]:
        """Return all of them, the dearest first."""
        return sorted(self._found.values(), key=lambda found: found.rank)

    def __contains__(self, rule: str) -> bool:
        return any(found.rule == rule for found in self._found.values())


_MOST = 5
"""How many findings fit a terminal of 24 lines."""


def screen(found: Sequence[Finding], ran: str, *, everything: bool = False) -> str:
    """Return the answer as text: what is wrong first, the dearest before the others.

    Args:
        found: the findings, ranked.
        ran: what was watched, in one sentence.
        everything: show every finding, not those alone that fit a screen.
    """
    width = screen_width()
    if not found:
        return f"Nothing is wrong with the mixed precision of this program, as far as it ran.\n{ran}"
    things = "1 thing is" if len(found) == 1 else f"{len(found)} things are"
    lines = [f"{things} wrong with the mixed precision of this program.", ran]
    shown = found if everything else found[:_MOST]
    # The first one, which is the answer, has room for all it has to tell.
    for number, one in enumerate(shown, 1):
        lines += _told(number, one, width, most=6 if number == 1 or everything else 1)
    if left := found[len(shown) :]:
        others = ", ".join(dict.fromkeys(f"{RULES[one.rule].id} {one.rule}" for one in left))
        lines.append(textwrap.shorten(f"{len(left)} more (--all shows them): {others}", width, placeholder=" …"))
    return "\n".join(lines)


def _told(number: int, one: Finding, width: int, most: int) -> list[str]:
    rule = RULES[one.rule]
    where = one.place or "no line of the program"
    times = f", {one.count} times" if one.count > 1 else ""
    head = f"{number}. {rule.costs}: {rule.id} {one.rule}, "
    if (over := len(head) + len(where) - width) > 0:  # the line is at the end of a place, so its begin goes
        where = f"…{where[over + 1 :]}"
    for more in (f" in {one.module}" if one.module else "", times):
        where += more if len(head) + len(where) + len(more) <= width else ""
    told = [head + where]
    if source := _source(one.place):
        told.append(textwrap.indent(textwrap.shorten(source, width - 5, placeholder=" …"), "   > "))
    fit = textwrap.TextWrapper(width, "   ", "     ", max_lines=most, placeholder=" …")
    return [*told, *fit.wrap(f"seen: {one.seen}"), *fit.wrap(f"write: {one.instead or rule.instead}")]


def _source(place: str) -> str:
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if file and line.isdigit() else ""
