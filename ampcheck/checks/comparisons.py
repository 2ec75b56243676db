"""The checks: compare an observation with the specification and say every difference in a sentence.

They know nothing of suites, devices or compilers, so each suite shares them. Every function returns the differences it
found; none means the behaviour is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ampcheck.errors import Difference, one_line
from ampcheck.observe.recorder import KernelCall, Observation
from ampcheck.spec.casting import POLICIES, Expectation, expect
from ampcheck.spec.rules import RULES
from ampcheck.spec.torch_dtypes import name_of


def kernel(observation: Observation, expected: Expectation, sources: Sequence[str], rule: str) -> list[str]:
    """Check the dtypes that the op's kernel received, its `dtype=` and the number of casts.

    `sources`: the dtype of each tensor of the call as the caller gave it.
    """
    because = f"rule {rule}: {RULES[rule].sentence}"
    name = f"aten::{expected.overload}"
    call = observation.of(expected.overload)
    if call is None:
        if observation.error is not None:
            told = f"{name} raised before its kernel ran: {one_line(observation.error)} ({because})"
            return [Difference(told, observation.error)]
        ran = ", ".join(k.overload for k in observation.kernels) or "nothing"
        return [f"the kernel of {name} never ran; what ran was: {ran} ({because})"]
    differences = _arguments(call, expected, name, because)
    differences += [
        f"argument {place} of {name} was {given} before the call and is {after} after it; autocast casts copies"
        for place, given, after in observation.changed
    ]
    if call.dtype_kwarg != expected.dtype_kwarg and expected.dtype_kwarg is not None:
        differences.append(
            f"{name} ran with dtype={call.dtype_kwarg}; expected dtype={expected.dtype_kwarg} ({because})"
        )
    wanted = sum(1 for given, got in zip(sources, expected.leaves, strict=True) if given != got)
    made = sum(1 for cast in observation.casts if cast.source is not None)
    # Otherwise the call's own tensors were changed on the way.
    followed = all(leaf.source is not None for leaf in call.leaves)
    if made != wanted and followed and not differences:
        differences.append(f"autocast made {made} casts of the arguments of {name}; expected {wanted} ({because})")
    return differences


def _arguments(call: KernelCall, expected: Expectation, name: str, because: str) -> list[str]:
    differences = []
    for place, seen in enumerate(call.leaves):
        if seen.source is None:
            continue
        wanted = expected.leaves[seen.source]
        if seen.got != wanted:
            differences.append(
                f"argument {place} of {name} was given as {seen.given} and reached the kernel as {seen.got}; "
                f"expected {wanted} ({because})"
            )
    return differences


def parts(observation: Observation, policies: Mapping[str, str], amp_dtype: str) -> list[str]:
    """Check that every kernel with a policy that a composite op ran received what its policy says.

    What the parts without one receive is the composite op's own affair: it may cast.
    """
    differences = []
    for call in observation.kernels:
        policy = policies.get(call.overload)
        if policy not in POLICIES:
            continue
        given = [seen.leaf for seen in call.leaves]
        expected = expect(policy, call.overload, given, amp_dtype)
        differences += [
            f"argument {place} of aten::{call.overload} was given as {seen.given} and reached the kernel as "
            f"{seen.got}; expected {wanted} (rule {policy}: {RULES[policy].sentence})"
            for place, (seen, wanted) in enumerate(zip(call.leaves, expected.leaves, strict=True))
            if seen.got != wanted
        ]
    return differences


def untouched_dtype(call: KernelCall | None, given: str | None, rule: str) -> list[str]:
    """Check that autocast changed no `dtype=` that the caller chose, and filled none in where it must not."""
    if call is None or call.dtype_kwarg == given:
        return []
    return [
        f"aten::{call.overload} ran with dtype={call.dtype_kwarg}; the caller's dtype={given} was to be left alone "
        f"(rule {rule}: {RULES[rule].sentence})"
    ]


def refused(error: Exception | None, overload: str, mention: str, rule: str) -> list[str]:
    """Check that a banned overload raises a RuntimeError that names what to use instead."""
    because = f"rule {rule}: {RULES[rule].sentence}"
    if error is None:
        return [f"aten::{overload} ran; expected a RuntimeError that names {mention} ({because})"]
    if not isinstance(error, RuntimeError) or mention not in str(error):
        told = f"aten::{overload} raised {one_line(error)}; expected a RuntimeError that names {mention} ({because})"
        return [Difference(told, error)]
    return []


def same_error(got: Exception | None, reference: Exception | None, name: str) -> list[str]:
    """Check that a call raises under autocast exactly where the reference raises."""
    if (got is None) == (reference is None):
        if type(got) is type(reference):
            return []
        reference_error = f"the same call on explicitly cast inputs raised {one_line(reference)}"
        return [Difference(f"{name} raised {one_line(got)}; {reference_error}", got)]
    if got is not None:
        return [Difference(f"{name} raised {one_line(got)}; the same call on explicitly cast inputs succeeds", got)]
    return [f"{name} succeeded; the same call on explicitly cast inputs raised {one_line(reference)}"]


def output_dtypes(got: Sequence[torch.Tensor], wanted: Sequence[str], name: str) -> list[str]:
    """Check the dtype of every output."""
    seen = [name_of(tensor.dtype) for tensor in got]
    if len(seen) != len(wanted):
        return [f"{name} returned {len(seen)} tensors; expected {len(wanted)}"]
    return [
        f"output {place} of {name} is {s}; expected {w}"
        for place, (s, w) in enumerate(zip(seen, wanted, strict=True))
        if s != w
    ]


def bitwise(got: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], name: str) -> list[str]:
    """Check that every output equals the reference bit for bit."""
    pairs = enumerate(zip(got, reference, strict=True))
    return [text for place, (a, b) in pairs for text in same_bits(a, b, f"output {place} of {name}")]


def same_bits(got: torch.Tensor, reference: torch.Tensor, what: str) -> list[str]:
    """Check that a tensor, called `what`, has the bits of the reference; not compared where dtypes differ."""
    if got.shape != reference.shape:
        return [f"{what} has shape {tuple(got.shape)}; expected {tuple(reference.shape)}"]
    if got.dtype != reference.dtype or identical(got, reference):
        return []
    difference = (got.to(torch.complex128) - reference.to(torch.complex128)).abs().max().item()
    return [
        f"{what} differs from the same op on explicitly cast inputs by up to {difference:.3g}; expected the same bits"
    ]


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same values, nan where the other has nan."""
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():  # half-precision complex cannot be compared
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if torch.equal(a, b):
        return True
    if not a.is_floating_point():
        return False
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
