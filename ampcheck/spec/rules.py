"""The rules: what PyTorch promises of autocast, one name and one sentence each.

A rule's name is the name of its file in every suite, so `pytest suites -k promote` runs the rule everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

_AMP = "https://docs.pytorch.org/docs/2.13/amp.html"
_OPS = _AMP + "#autocast-op-reference"
_MODE = "aten/src/ATen/autocast_mode.h"


@dataclass(frozen=True, slots=True)
class Rule:
    """`sentence`: the promise, in the present tense. `source`: where PyTorch makes it. `since`, `until`: torch versions."""

    name: str
    sentence: str
    source: str
    since: str = "1.10"
    until: str | None = None


_ALL = (
    Rule("downcast", "eligible arguments are cast to the region's dtype", _OPS),
    Rule("upcast", "eligible arguments are cast to float32", _OPS),
    Rule("optdtype", "dtype=float32 is filled in if the caller gave none and the first argument is eligible", _MODE),
    Rule("append", "the overload with a dtype runs, in float32 if the first argument is eligible", _MODE),
    Rule("promote", "eligible arguments are cast to the widest dtype among them", _OPS),
    Rule("banned", "the call is refused with an error that says what to use instead", _OPS),
    Rule("fallthrough", "an op without a policy does under autocast what it does without", _OPS),
)

RULES = {rule.name: rule for rule in _ALL}
"""Every rule by name."""
