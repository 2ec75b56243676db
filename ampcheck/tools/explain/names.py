"""The ops that a name means, and the dtypes that a command names."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache, reduce

import torch

from ampcheck import samples
from ampcheck.errors import UsageError, unknown
from ampcheck.register.torch_private import op_names
from ampcheck.spec.policies import closest, rows
from ampcheck.spec.torch_dtypes import DTYPES

_ABBREVIATIONS = {"F.": "torch.nn.functional.", "Tensor.": "torch.Tensor.", "nn.functional.": "torch.nn.functional."}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a name: `overloads` of aten, and a sentence on how the name leads to them, or ""."""

    overloads: tuple[str, ...]
    how: str = ""


@cache
def _aten() -> frozenset[str]:
    """Every aten overload of this torch, without the namespace; `mm` for the default one."""
    names = op_names()
    return frozenset(
        name.removeprefix("aten::").removesuffix(".default") for name in names if name.startswith("aten::")
    )


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
    plain = [overload for overload in packet if not overload.endswith("out")]
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
