"""The text of `ampcheck explain`."""

import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from textwrap import shorten

import torch
from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.cases import floating_count, op_cases, plan
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import UsageError, one_line, unknown
from ampcheck.observe.dispatcher import live_registrations
from ampcheck.observe.recorder import is_composite, tensors
from ampcheck.observe.recorder import overload as callable_of
from ampcheck.register.torch_private import op_names
from ampcheck.runner.deviations import Deviation, KnownDeviations
from ampcheck.samples.describe import Sample, TensorArg, leaves, map_leaves
from ampcheck.spec.case import RULES, Case
from ampcheck.spec.casting import LOW, Expectation, Leaf, expect, is_floating
from ampcheck.spec.policies import KEYS, closest, rows
from ampcheck.spec.torch_dtypes import DTYPES, name_of
from ampcheck.tools.user_program import wrapped

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
    """Say what happens on the devices, those of this machine first, and then where each policy is registered."""
    groups: dict[tuple[str, str], list[Device]] = {}
    for device in sorted(devices, key=lambda device: device.unavailable() is not None or not device.has_values):
        policy = device.policies().get(overload, "fallthrough")
        groups.setdefault((policy, amp or device.default_amp), []).append(device)
    found = keys(overload, devices)
    out = [f"aten::{overload}"]
    if nowhere := all(policy == "fallthrough" for _, policy, _ in found):
        groups = {("fallthrough", amp or devices[0].default_amp): list(devices)}
        out = wrapped(f"{out[0]} {_NONE}")
    for (policy, dtype), members in groups.items():
        out += ["", *_group(overload, policy, dtype, members, inputs)]
    for (policy, _), members in groups.items():
        for deviation, count in deviations(overload, policy, members).items():
            cases = "case" if count == 1 else "cases"
            out += wrapped(f"Known deviation {deviation.id!r} ({count} {cases}): {deviation.reason} {deviation.link}")
    if not nowhere:
        headers = ["dispatch key", "policy", f"source in torch {closest(torch.__version__)}"]
        out += ["", *tabulate(found, headers=headers).splitlines()]
    sources = {policy: RULES[policy].source for policy, _ in groups}
    return [*out, "", *(f"{policy}: {source}" for policy, source in sources.items())]


def _group(overload: str, policy: str, dtype: str, members: list[Device], inputs: tuple[str, ...]) -> list[str]:
    """Describe an op on devices that share a policy and a region's dtype."""
    where = ", ".join(device.name for device in members)
    out = wrapped(f"On {where} in a region of {dtype}: {policy}: {RULES[policy].sentence}.")
    headers = ["given", "the kernel gets", "comes out", "and"]
    if policy == "fallthrough" and is_composite(overload):
        headers[1] = "its parts get"
        shown = _parts(overload, members, dtype, inputs)
    else:
        shown = [
            [_dtypes(e.given), _dtypes(e.kernel) if e.out != "nothing" else "-", e.out, e.also]
            for e in effects(overload, policy, members[0], dtype, inputs)
        ]
    if not any(row[-1] for row in shown):
        headers, shown = headers[:-1], [row[:-1] for row in shown]
    return out + [f"  {line}" for line in tabulate(shown, headers=headers).splitlines()]


def _parts(overload: str, members: Sequence[Device], amp: str, inputs: tuple[str, ...]) -> list[list[str]]:
    """Run a composite op in a region, and say what its parts get: on a device that needs no backend, else the CPU."""
    if overload not in samples.catalogue():
        return [["-", "no sample of it is here to run", "see ampcheck trace", ""]]
    device = next((one for one in members if one.type == "cpu" or not one.has_values), Cpu())
    todo = plan(Case("eager", "fallthrough", overload, "", "fp32", amp, device.name, device.token), device)
    rows = []
    for dtypes in _chosen(overload, len(todo.dtypes), amp, inputs):
        with device.activate(), warnings.catch_warnings(action="ignore"):
            given = replace(todo, dtypes=dtypes).inputs(device)
            with device.autocast(amp):
                seen = device.observe(partial(todo.call, *given), device.policies(), given)
        got = [f"{kernel.overload} {_dtypes(tuple(leaf.got for leaf in kernel.leaves))}" for kernel in seen.kernels]
        out = one_line(seen.error) if seen.error else _dtypes(tuple(name_of(x.dtype) for x in seen.outputs))
        shown = (shorten(text, _WIDEST, placeholder=" …") for text in ("; ".join(dict.fromkeys(got)), out))
        rows.append([_dtypes(dtypes), *shown, ""])
    return rows


_WIDEST = 40
"""The most characters of a cell of a table."""


def _dtypes(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "no tensor"


def keys(overload: str, devices: Iterable[Device]) -> list[tuple[str, str, str]]:
    """Dispatch key, policy and source for an overload, for each key of PyTorch's tables and of the devices."""
    out = []
    table = {row.key: row for row in rows(closest(torch.__version__)) if row.overload == overload}
    live = live_registrations()
    for key in KEYS:
        if row := table.get(key):
            builds = f", in builds with {row.builds}" if row.builds else ""
            out.append((key, row.policy, f"{row.source.removeprefix('aten/src/ATen/')} ({row.verified}){builds}"))
        elif overload in live[key]:
            out.append((key, "unknown", "registered in this torch, but in no table"))
        else:
            out.append((key, "fallthrough", "not registered"))
    for device in devices:
        if device.key not in KEYS:
            out.append((device.key, device.policies().get(overload, "fallthrough"), f"declared by {device.name}"))
    return list(dict.fromkeys(out))


@dataclass(frozen=True, slots=True)
class Effect:
    """Autocast's effect on one call: the dtypes `given`, those the kernel gets, other effects, the result's dtypes."""

    given: tuple[str, ...]
    kernel: tuple[str, ...]
    also: str
    out: str


def effects(overload: str, policy: str, device: Device, amp: str, inputs: Sequence[str] = ()) -> list[Effect]:
    """Return the effects of autocast on calls of an overload with the `inputs`' dtypes, or with the typical ones.

    One dtype in `inputs` is for all. Raises UsageError where the overload takes another number of floating tensors.
    """
    sample = _sample(overload, inputs)
    args = list(leaves(sample)) if sample else _schema_leaves(overload)
    out = []
    for dtypes in _chosen(overload, sum(arg.dtype is None for arg in args), amp, inputs):
        remaining = iter(dtypes)
        on_device = (device.type == "cpu" or arg.device != "cpu" for arg in args)
        given = [Leaf(arg.dtype or next(remaining), on) for arg, on in zip(args, on_device, strict=True)]
        out.append(_effect(overload, policy, amp, sample, given))
    return out


def _chosen(overload: str, count: int, amp: str, inputs: Sequence[str]) -> list[tuple[str, ...]]:
    if len(inputs) > 1 and len(inputs) != count:
        raise UsageError(f"aten::{overload} takes {count} floating tensors; --inputs names {len(inputs)} dtypes")
    return [tuple(inputs) if len(inputs) == count else tuple(inputs) * count] if inputs else _typical(count, amp)


def _sample(overload: str, inputs: Sequence[str]) -> Sample | None:
    """Return the sample whose call is shown: the first that takes as many floating tensors as asked for."""
    op = samples.catalogue().get(overload)
    if op is None:
        return None
    fitting = [sample for sample in op.samples if sample.call == "aten" and floating_count(sample) == len(inputs)]
    return fitting[0] if len(inputs) > 1 and fitting else op.samples[0]


def _schema_leaves(overload: str) -> list[TensorArg]:
    try:
        schema = callable_of(overload)._schema
    except AttributeError:  # an op of the TorchScript runtime, which torch.ops does not offer
        return []
    wanted = [a for a in schema.arguments if "Tensor" in str(a.type) and "Optional" not in str(a.type)]
    return [TensorArg((2, 2)) for _ in wanted]


def _typical(count: int, amp: str) -> list[tuple[str, ...]]:
    if count == 0:
        return [()]
    out = [("fp32",) * count, (amp,) * count]
    return [*out, ("fp32", *(amp,) * (count - 1))] if count > 1 else out


def _effect(overload: str, policy: str, amp: str, sample: Sample | None, given: Sequence[Leaf]) -> Effect:
    caller = sample is not None and any(isinstance(v, torch.dtype) for v in (*sample.args, *sample.kwargs.values()))
    expected = expect(policy, overload, given, amp, dtype_given=caller)
    shown = tuple(leaf.dtype for leaf in given)
    if expected.error:
        return Effect(shown, (), f"refused: use {expected.error}", "nothing")
    also = []
    if expected.overload != overload:
        also.append(f"runs aten::{expected.overload}")
    if expected.dtype_kwarg:
        also.append(f"dtype={str(DTYPES[expected.dtype_kwarg]).removeprefix('torch.')} filled in")
    return Effect(shown, expected.leaves, ", ".join(also), _comes_out(overload, sample, expected))


def _comes_out(overload: str, sample: Sample | None, expected: Expectation) -> str:
    """Return the dtypes of the outputs, from a run on meta tensors; in words where there is none to be had."""
    reached = {dtype for dtype in expected.leaves if is_floating(dtype)}
    if sample is None or sample.call != "aten" or len(reached) > 1:  # kernels differ in what they make of mixed dtypes
        return "as the kernel gives"
    wanted = iter(expected.leaves)

    def make(arg: TensorArg) -> torch.Tensor:
        return torch.empty(arg.shape, dtype=DTYPES[next(wanted)], device="meta")

    try:
        args = map_leaves(sample.args, make)
        kwargs = {name: map_leaves(value, make) for name, value in sample.kwargs.items()}
        if expected.dtype_kwarg:
            kwargs["dtype"] = DTYPES[expected.dtype_kwarg]
        out = callable_of(expected.overload)(*args, **kwargs)
    except Exception as error:  # whatever an op refuses its arguments with
        text = str(error).strip().splitlines()
        if isinstance(error, (RuntimeError, TypeError, ValueError)) and "meta" not in str(error).lower():
            return f"the kernel refuses it: {text[0] if text else type(error).__name__}"
        return "as the kernel gives"
    return ", ".join(name_of(tensor.dtype) for tensor in tensors(out)) or "no tensor"


def deviations(overload: str, policy: str, devices: Iterable[Device]) -> Counter[Deviation]:
    """Return the known deviations that speak of cases of an overload on some devices, with how many cases."""
    devices = list(devices)
    known = KnownDeviations(devices)
    cases = ((device.name, case.name) for device in devices for case in op_cases(device, policy, only=overload))
    return Counter(found for device, case in cases for found in known.of(device, case))


def spellings() -> dict[str, list[str]]:
    """Return the Python spellings that reach each overload, as the samples show."""
    out: dict[str, list[str]] = {}
    for path, overloads in _spellings().items():
        for name in overloads:
            out.setdefault(name, []).append(path)
    return out


def without_policy() -> frozenset[str]:
    """Return the overloads of this torch that have no policy under any of PyTorch's dispatch keys."""
    return frozenset(name for name in _aten() if not _is_out(name)) - _with_policy()


def _is_out(overload: str) -> bool:
    return overload.partition(".")[2].endswith("out")


_ABBREVIATIONS = {"F.": "torch.nn.functional.", "Tensor.": "torch.Tensor.", "nn.functional.": "torch.nn.functional."}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a name: `overloads` of aten, and a sentence on how the name leads to them, or ""."""

    overloads: tuple[str, ...]
    how: str = ""


@cache
def _aten() -> frozenset[str]:
    """Every aten overload of this torch, without the namespace; `mm` for the default one."""
    names = (name.removesuffix(".default") for name in op_names() if name.startswith("aten::"))
    return frozenset(name.removeprefix("aten::") for name in names)


@cache
def _with_policy() -> frozenset[str]:
    return frozenset(row.overload for row in rows(closest(torch.__version__)))


@cache
def _spellings() -> dict[str, tuple[str, ...]]:
    """Return the overloads that each Python spelling of a sample reaches."""
    out: dict[str, dict[str, None]] = {}
    for op in samples.catalogue().values():
        for sample in op.samples:
            if sample.call != "aten":
                out.setdefault(sample.call, {})[op.overload] = None
    return {path: tuple(overloads) for path, overloads in out.items()}


def resolve(name: str) -> Resolved:
    """Return the overloads that a name means.

    `name`: an overload (`sum.dim_IntList`, `aten::mm`, `torch.ops.aten.mm.default`), a packet (`softmax`) or a Python
    spelling (`torch.softmax`, `F.linear`, `Tensor.mm`). Raises UsageError with close matches for any other.
    """
    plain = name.strip()
    for prefix in ("torch.ops.aten.", "aten::", "aten."):
        if plain.startswith(prefix):
            return _overloads(name, plain.removeprefix(prefix), exact=True)
    for short, long in _ABBREVIATIONS.items():
        if plain.startswith(short):
            plain = long + plain.removeprefix(short)
    if plain in _spellings():
        return Resolved(_spellings()[plain], f"{plain} reaches it, as the samples show")
    root, *path = plain.split(".")
    if root not in ("torch", "operator"):
        return _overloads(name, plain, exact="." in plain)
    try:
        reduce(getattr, path, {"torch": torch, "operator": operator}[root])
        found = _overloads(name, path[-1] if path else "", exact=False)
    except AttributeError:
        raise _unknown(name) from None
    return Resolved(found.overloads, f"found by the name; no sample says what {plain} reaches")


def _overloads(asked: str, name: str, *, exact: bool) -> Resolved:
    full = name.removesuffix(".default")
    if exact and (full in _aten() or full in samples.catalogue()):
        return Resolved((full,))
    packet = [overload for overload in sorted(_aten()) if overload.partition(".")[0] == full]
    plain = [overload for overload in packet if not _is_out(overload)]
    shown = [overload for overload in plain if overload in _with_policy() or overload in samples.catalogue()] or plain
    if not shown:
        raise _unknown(asked)
    return Resolved(tuple(shown))


def _unknown(name: str) -> UsageError:
    known = [*samples.catalogue(), *_spellings(), *_aten(), *{overload.partition(".")[0] for overload in _aten()}]
    return unknown("op", name, known)


def floating_names(text: str) -> tuple[str, ...]:
    """Return the dtypes of `--inputs fp32,fp16`. Raises UsageError for one that is unknown."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"there is no dtype named {name!r}; there are {', '.join(DTYPES)}")
    if not names:
        raise UsageError("--inputs names no dtype; e.g. --inputs fp32,fp16")
    return names
