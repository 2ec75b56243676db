"""Fill the page of ops: each op's policy by device type, what it receives and returns, and where that differs.

The figures are those of `ampcheck explain`: the tables of policies, the devices' own promises, and the newest run.
"""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.observe.recorder import is_composite
from ampcheck.report.conformance.data import SHOWN
from ampcheck.report.history import History, torch_release
from ampcheck.runner.record import Result
from ampcheck.runner.summarize import devices
from ampcheck.spec.case import RULES
from ampcheck.spec.policies import KEY_OF, KEYS, closest, table, versions
from ampcheck.tools.explain import Effect, effects, spellings, without_policy
from ampcheck.tools.lists import MEANING

_SHORT = "torch.nn.functional."


def ops(history: History | None) -> dict[str, object]:
    """Return the ops with a policy on some device type, each with what autocast does to it there.

    `history`: the runs, whose newest gives the torch version, further devices and known deviations; None without any.
    """
    release = torch_release(history.newest) if history else ""
    version = closest(release or torch.__version__)
    by_key = {device.key: device for device in known().values() if device.key in KEYS}
    other = next(device for device in by_key.values() if device.type != "cpu")
    columns = {kind: (table(key, version), by_key.get(key, other)) for kind, key in KEY_OF.items()}
    for name in devices(history.newest) if history else ():
        device = known().get(name)  # one of a module that is not loaded here says nothing of its policies
        if device is not None and device.key not in KEYS:
            columns[name] = (device.policies(), device)
    older = {v: {kind: table(key, v) for kind, key in KEY_OF.items()} for v in versions()}
    hits = _hits(history)
    rows = sorted({op for policies, _ in columns.values() for op in policies}, key=lambda op: (op.lstrip("_"), op))
    named = spellings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated ops, which are only looked at
        shown = [_op(op, columns, older, named.get(op, ()), hits.get(op, ())) for op in rows]
    return {
        "version": version,
        "versions": versions(),
        "types": {kind: re.sub(r"\W", "_", kind) for kind in columns},
        "policies": {name: RULES[name].sentence for name in _used(columns)},
        "meaning": MEANING,
        "plain": sorted({op.partition(".")[0] for op in without_policy()} - {op.partition(".")[0] for op in rows}),
        "ops": shown,
    }


Columns = Mapping[str, tuple[Mapping[str, str], Device]]
"""By device type, or device with a promise of its own: the policy of each overload, and a device of that kind."""


def _used(columns: Columns) -> list[str]:
    found = {policy for policies, _ in columns.values() for policy in policies.values()}
    return [name for name in RULES if name in found or name == "fallthrough"]


def _op(
    op: str,
    columns: Columns,
    older: Mapping[str, Mapping[str, Mapping[str, str]]],
    called: Sequence[str],
    results: Sequence[Result],
) -> dict[str, Any]:
    """Return an op: its policies, groups of device types where the same happens, changes of versions, deviations."""
    policies = {kind: found.get(op, "fallthrough") for kind, (found, _) in columns.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, policy in policies.items():
        groups.setdefault((policy, columns[kind][1].default_amp), []).append(kind)
    called = [name for name in called if "._" not in name]
    names = dict.fromkeys([op, op.partition(".")[0], *called, *(name.replace(_SHORT, "F.") for name in called)])
    return {
        "name": op,
        "policies": policies,
        "called": called,
        "text": " ".join((*names, *set(policies.values()))).lower(),
        "groups": [
            {"policy": policy, "amp": amp, "types": kinds, "effects": _effects(op, policy, columns[kinds[0]][1], amp)}
            for (policy, amp), kinds in groups.items()
        ],
        "changes": _changes(op, older),
        "deviations": dict(Counter(id_ for result in results for id_ in result.deviation.split(", ") if id_)),
        "red": sum(1 for result in results if SHOWN[result.status].red),
        "cases": len(results),
    }


@cache
def _effects(op: str, policy: str, device: Device, amp: str) -> list[Effect]:
    """Return what happens to float32, float16, bfloat16 and mixed inputs; nothing where the parts of the op decide."""
    if policy == "fallthrough" and is_composite(op):
        return []
    out = [effect for dtype in ("fp32", "fp16", "bf16") for effect in effects(op, policy, device, amp, (dtype,))]
    try:
        return list({effect.given: effect for effect in [*out, *effects(op, policy, device, amp)]}.values())
    except UsageError:
        return out


def _changes(op: str, older: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    """Say in which versions of torch the op got, lost or changed a policy, and on which device types."""
    found: dict[str, list[str]] = {}
    for before, after in pairwise(older):
        for kind in older[after]:
            was, now = (older[v][kind].get(op, "no policy") for v in (before, after))
            if was != now:
                found.setdefault(f"torch {after}: {was} → {now}", []).append(kind)
    return [f"{change} on {', '.join(kinds)}" for change, kinds in found.items()]


def _hits(history: History | None) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in history.newest.results.values() if history else ():
        if result.op in samples.catalogue():
            found.setdefault(result.op, []).append(result)
    return found
