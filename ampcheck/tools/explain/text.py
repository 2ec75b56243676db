"""The text of `ampcheck explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from ampcheck.devices.base import Device
from ampcheck.errors import UsageError, unknown
from ampcheck.observe.recorder import is_composite
from ampcheck.spec.dtypes import LOW
from ampcheck.spec.rules import RULES
from ampcheck.tools.explain.effects import deviations, effects
from ampcheck.tools.explain.effects import keys as keys_of
from ampcheck.tools.explain.names import floating_names, resolve

_PARTS = "It is composite, so what comes out depends on the ops it is made of; ampcheck trace shows them."
_NONE = (
    "has no policy under any dispatch key, so autocast lets it fall through to its kernel as if there were no region."
)


def explain(op: str, devices: Sequence[Device], amp: str | None = None, inputs: str | None = None) -> Iterator[str]:
    """Yield lines on what autocast does to an op.

    Args:
        op: a name that `resolve` takes.
        devices: at least one, each with a promise to explain.
        amp: the region's dtype; by default each device's default.
        inputs: the dtypes of the floating tensors, separated by commas; by default the typical ones.

    Raises UsageError for an unknown op or dtype, and for dtypes that no overload takes.
    """
    if amp is not None and amp not in LOW:
        raise unknown("region dtype", amp, LOW)
    dtypes = floating_names(inputs) if inputs is not None else ()
    found = resolve(op)
    if len(found.overloads) > 1:
        yield f"{op} means {len(found.overloads)} overloads: {', '.join(found.overloads)}"
    if found.how:
        yield f"({found.how})"
    refused = []
    for overload in found.overloads:
        try:
            lines = _overload(overload, devices, amp, dtypes)
        except UsageError as error:  # another overload may take as many tensors
            refused.append(error)
        else:
            yield from ("", *lines)
    if len(refused) == len(found.overloads):
        raise refused[0]


def _overload(overload: str, devices: Sequence[Device], amp: str | None, inputs: tuple[str, ...]) -> list[str]:
    out = [f"aten::{overload}", ""]
    keys = keys_of(overload, devices)
    if all(policy == "fallthrough" for _, policy, _ in keys):
        groups = {("fallthrough", amp or devices[0].default_amp): list(devices)}
        out[0] += f" {_NONE}"
    else:
        out.append(tabulate(keys, headers=["dispatch key", "policy", "source"]))
        groups = {}
        for device in devices:
            policy = device.policies().get(overload, "fallthrough")
            groups.setdefault((policy, amp or device.default_amp), []).append(device)
    for (policy, dtype), members in groups.items():
        out += ["", *_group(overload, policy, dtype, members, inputs)]
    return out


def _group(overload: str, policy: str, dtype: str, members: list[Device], inputs: tuple[str, ...]) -> list[str]:
    """Describe an op on devices that share a policy and a region's dtype."""
    where = ", ".join(device.name for device in members)
    rule = RULES[policy]
    out = [f"On {where}, in a region of {dtype}: {policy}: {rule.sentence}.", f"  {rule.source}", ""]
    if policy == "fallthrough" and is_composite(overload):
        out.append(f"  {_PARTS}")
    else:
        rows = effects(overload, policy, members[0], dtype, inputs)
        headers = ["given", "the kernel gets", "and", "comes out"]
        shown = [
            [_dtypes(e.given), _dtypes(e.kernel) if e.out != "nothing" else "-", e.also or "-", e.out] for e in rows
        ]
        out += [f"  {line}" for line in tabulate(shown, headers=headers).splitlines()]
    for deviation, count in deviations(overload, policy, members).items():
        cases = "case" if count == 1 else "cases"
        out += ["", f"  Known deviation {deviation.id!r} ({count} {cases}): {deviation.reason} {deviation.link}"]
    return out


def _dtypes(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "no tensor"
