"""The overhead workloads do what they say, on the CPU and on jax."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.bench.core.model import OverheadWorkload
from ampcheck.bench.workloads import catalogue

OVERHEAD = {name: w for name, w in catalogue().items() if isinstance(w, OverheadWorkload)}
BF16 = torch.bfloat16


def casts(call: Callable[[], Any]) -> int:
    """Count the casts of tensors to bfloat16 in a call."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is BF16
            return func(*args, **(kwargs or {}))

    with Counting() as mode:
        call()
    return mode.count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("region-enter", dict.fromkeys(("none", "fresh", "reused", "decorator", "nested", "disabled"), 0)),
        ("op-without-cast", {"outside": 0, "inside": 0}),
        ("op-fallthrough", {"outside": 0, "inside": 0}),
        ("op-with-cast", {"outside": 0, "inside": 100, "by-hand": 100}),
        ("op-python-kernel", {"none": 0, "python": 0}),
        ("compile-toggle", {"steady": 0, "toggled": 0}),
        ("weight-cache", {"on": 1, "off": 8}),
        ("scaler-step", {"plain": 0, "scaler": 0}),
    ],
)
def test_overhead_casts_as_often_as_it_says_and_leaves_autocast_as_it_was(name: str, expected: dict[str, int]) -> None:
    variants = OVERHEAD[name].make("cpu")
    for call in variants.values():
        call()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == BF16
    assert [(variant, casts(call)) for variant, call in variants.items()] == [*expected.items()], (
        "the baseline is first"
    )


def test_every_workload_of_overhead_is_tested() -> None:
    assert len(OVERHEAD) == 8


def test_the_scaler_makes_the_same_updates() -> None:
    variants = OVERHEAD["scaler-step"].make("cpu")
    for _ in range(3):
        found = {name: call() for name, call in variants.items()}
    assert torch.equal(found["plain"], found["scaler"])
    assert not torch.equal(found["plain"], torch.ones(64, 64))


def test_the_python_kernel_is_entered_in_a_region_alone() -> None:
    variants = OVERHEAD["op-python-kernel"].make("cpu")
    entered = {}
    for name, call in variants.items():
        names: list[str] = []
        sys.setprofile(lambda frame, event, _, names=names: names.append(frame.f_code.co_name))
        try:
            call()
        finally:
            sys.setprofile(None)
        entered[name] = names.count("kernel") // 2  # its call and its return
    assert entered == {"none": 0, "python": 50}
