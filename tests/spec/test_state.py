"""The model of the autocast state where no program of `suites/eager` runs it beside torch."""

import pytest
import torch

from ampcheck.spec.state import DEFAULTS, Process, State, Tensor, Thread
from ampcheck.spec.torch_dtypes import DTYPES

WEIGHT = Tensor("fp32", name="w", requires_grad=True)


@pytest.fixture
def thread() -> Thread:
    return Process().thread()


def _casts(thread: Thread, tensor: Tensor, *, policy: str = "downcast") -> int:
    return thread.op("cpu", policy, "mm", [tensor]).casts


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "privateuseone"])
def test_defaults_are_those_of_torch(name: str) -> None:
    assert torch.get_autocast_dtype(name) == DTYPES[DEFAULTS[name]]


def test_a_region_inside_itself_restores(thread: Thread) -> None:
    region = thread.construct("cpu")
    for _ in range(3):
        thread.enter(region)
    for _ in range(3):
        thread.exit(region)
    assert thread.state("cpu") == State(False, "bf16", True, 0)
    with pytest.raises(ValueError, match="not inside this region of cpu"):
        thread.exit(region)


def test_a_region_in_two_threads_restores_each() -> None:
    process = Process()
    one, two = process.thread(), process.thread()
    two.set_enabled("cpu", True)
    region = one.construct("cpu", "fp16")
    one.enter(region)
    two.enter(region)
    one.exit(region)
    assert one.state("cpu") == State(False, "bf16", True, 0)
    two.exit(region)
    assert two.state("cpu") == State(True, "bf16", True, 0)


@pytest.mark.parametrize(
    ("device", "dtype", "enabled", "region_enabled", "warns"),
    [
        ("cpu", "fp32", True, False, True),
        ("cpu", "fp32", False, False, False),
        ("cpu", "fp16", True, True, False),
        ("cuda", "fp32", True, True, False),
    ],
)
def test_unsupported(thread: Thread, device: str, dtype: str, enabled: bool, region_enabled: bool, warns: bool) -> None:
    region = thread.construct(device, dtype, enabled=enabled)
    assert (region.enabled, region.warns, region.dtype) == (region_enabled, warns, dtype)


@pytest.mark.parametrize(
    ("tensor", "casts"),
    [
        (WEIGHT, [1, 0, 0]),  # a weight is cast once
        (Tensor("fp32", name="no grad"), [1, 1, 1]),
        (Tensor("fp32", name="view", requires_grad=True, is_view=True), [1, 1, 1]),
        (Tensor("fp32", name="result", requires_grad=True, is_leaf=False), [1, 1, 1]),
        (Tensor("fp16", name="low", requires_grad=True), [1, 1, 1]),
        (Tensor("fp32", on_device=False, name="elsewhere", requires_grad=True), [0, 0, 0]),
    ],
)
def test_what_is_cast_once(tensor: Tensor, casts: list[int], thread: Thread) -> None:
    assert _casts(thread, tensor) == 0  # outside of a region
    thread.enter(thread.construct("cpu"))
    assert [_casts(thread, tensor) for _ in range(3)] == casts
    assert _casts(thread, tensor, policy="fallthrough") == 0
