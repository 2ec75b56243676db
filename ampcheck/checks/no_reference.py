"""Check calls on devices without a reference replay; see `Device.observes_composite_ops`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from ampcheck.checks.scenario import Amp
from ampcheck.errors import Difference, one_line
from ampcheck.observe.recorder import tensors


def compare(amp: Amp, call: Callable[[], object], name: str) -> list[torch.Tensor]:
    """Note where a call raises in a region and not outside. Returns what it gives in the region, nothing if it raises.

    A scenario that compares nothing further is unsupported.
    """
    amp.unjudged = (
        f"PyTorch takes the ops of {name} apart before {amp.device.name} is asked, so none is cast explicitly"
    )
    outside, inside = _run(amp, call, nullcontext()), _run(amp, call, amp.region())
    if not isinstance(inside, Exception):
        return inside
    if isinstance(outside, Exception):
        amp.unjudged = one_line(inside)
    else:
        said = f"{name} raised {one_line(inside)} in a region; outside it raises nothing"
        amp.differences.append(Difference(said, inside))
    return []


def _run(
    amp: Amp, call: Callable[[], object], region: AbstractContextManager[object]
) -> list[torch.Tensor] | Exception:
    amp.device.seed()
    try:
        with region:
            return list(tensors(call()))
    except Exception as error:  # the call under test may raise anything
        return error
