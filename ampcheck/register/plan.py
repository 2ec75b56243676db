"""From a base table and overrides to the overloads that get a kernel; every mistake is told before anything is done."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from ampcheck.errors import UsageError
from ampcheck.register import kernels
from ampcheck.register.kernels import Casts, Kernel, kind, overload_name
from ampcheck.register.torch_private import Argument, OpOverload, op_names
from ampcheck.spec.casting import APPENDED, POLICIES
from ampcheck.spec.policies import closest, table

BASES = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}
"""The tables a registration can start from, and the dispatch key each is of."""

FALLTHROUGH = "fallthrough"
"""The override that gives an op no kernel."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An overload and its policy. `other`: the overload with a dtype that `append` sends it to."""

    op: OpOverload
    policy: str
    other: OpOverload | None = None

    def kernel(self, device_type: str, casts: Casts) -> Kernel:
        if self.other is not None:
            return kernels.append(self.op, device_type, casts, self.other)
        made: Kernel = getattr(kernels, self.policy)(self.op, device_type, casts)
        return made


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Registrations to make. `missing`: overloads of the table that the installed torch does not have."""

    planned: tuple[Planned, ...]
    missing: tuple[str, ...]


def plan(base: str, overrides: Mapping[str, str]) -> PolicyPlan:
    """Return the overloads of a base table, changed by overrides.

    Raises UsageError for an unknown base, overload or policy, and for a policy that does not suit the overload.
    """
    if base not in BASES:
        raise UsageError(f"base is {base!r}; it is one of {_listed(BASES)}")
    policies = {f"aten::{o}": p for o, p in table(BASES[base], closest(torch.__version__)).items()}
    missing = tuple(name for name in policies if find(name) is None)
    wanted = {name: policy for name, policy in policies.items() if name not in missing}
    for given, policy in overrides.items():
        if policy not in (known := (*POLICIES, FALLTHROUGH)):
            raise UsageError(f"overrides: {given!r} has policy {policy!r}; it is one of {_listed(known)}")
        wanted[_existing(given)] = policy
    planned = (_planned(name, policy) for name, policy in wanted.items() if policy != FALLTHROUGH)
    return PolicyPlan(tuple(planned), missing)


def find(name: str) -> OpOverload | None:
    """Return the overload of a name such as `aten::softmax.int`, or None where this torch does not have it."""
    namespace, _, rest = name.partition("::")
    packet, _, variant = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), variant or "default")
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, OpOverload) else None


def _existing(given: str) -> str:
    """Return the full name of an overload that exists. A name without a namespace is aten's."""
    name = given if "::" in given else f"aten::{given}"
    op = find(name)
    if op is not None:
        return overload_name(op)
    close = _similar(name)
    said = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"overrides: torch {torch.__version__} has no overload {name}{said}")


def _similar(name: str) -> list[str]:
    """Find overloads whose name is like a given one: those of the same op, else of the op of the closest name."""
    overloads: dict[str, list[str]] = {}
    for known in sorted(op_names()):
        overloads.setdefault(known.partition(".")[0], []).append(known)
    for packet in get_close_matches(name.partition(".")[0], overloads, n=1, cutoff=0.7):
        found = [known for known in overloads[packet] if "out" not in known.partition(".")[2]]
        return get_close_matches(name, found, n=3, cutoff=0.0)
    return []


def _planned(name: str, policy: str) -> Planned:
    op = find(name)
    if op is None:
        raise UsageError(f"torch {torch.__version__} has no overload {name}")
    arguments = op._schema.arguments
    if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
        raise UsageError(
            f"overrides: {name} writes to one of its arguments, so a cast would be written to and lost; "
            f"only {FALLTHROUGH!r} suits it"
        )
    if policy in ("downcast", "upcast", "promote") and not any(kind(a) for a in arguments):
        raise UsageError(f"overrides: {name} takes no tensors, so it cannot have policy {policy!r}")
    takes_tensor = bool(arguments) and kind(arguments[0]) == kernels.TENSOR
    if policy == "optdtype" and not (takes_tensor and any(_is_optional_dtype(a) for a in arguments)):
        raise UsageError(f"overrides: {name} takes no tensor first and no optional dtype, which 'optdtype' needs")
    if policy == "append":
        return Planned(op, policy, _with_dtype(op, takes_tensor))
    return Planned(op, policy)


def _is_optional_dtype(argument: Argument) -> bool:
    # A ScalarType is an int to a schema's type; its text tells them apart.
    return argument.name == "dtype" and str(argument.type) == "Optional[int]"


def _with_dtype(op: OpOverload, takes_tensor: bool) -> OpOverload:
    """Return the overload with the same arguments and a dtype."""
    packet = op._overloadpacket
    names = [a.name for a in op._schema.arguments]
    known = APPENDED.get(overload_name(op).removeprefix("aten::"))
    for variant in packet.overloads():
        other: OpOverload = getattr(packet, variant)
        same = [a.name for a in other._schema.arguments] == [*names, "dtype"]
        if takes_tensor and same and known in (None, overload_name(other).removeprefix("aten::")):
            return other
    raise UsageError(
        f"overrides: {overload_name(op)} has no overload of the same arguments and a dtype, which 'append' needs"
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
