"""The record of a trace: ops, policies, casts, bytes, cache hits, places."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ampcheck.devices.virtual import DEVICES
from ampcheck.tools.trace import trace
from tests.tools.trace_programs import GRAD, Mlp, casts, region


def test_bytes_and_dtypes_of_one_linear() -> None:
    layer, x = torch.nn.Linear(8, 16), torch.randn(2, 8)
    with trace() as t, region():
        layer(x)
    (op,) = t.ops
    assert (op.name, op.policy, op.dtype, op.out, op.ran_in) == ("linear", "downcast", "bf16", "bf16", "low")
    assert {cast.source: cast.bytes for cast in op.casts} == {"fp32[2, 8]": 16 * 6, "weight": 128 * 6, "bias": 16 * 6}
    assert {cast.kind for cast in op.casts} == {"input", "weight"}
    assert op.module == "Linear"
    assert op.location.startswith("tests/tools/test_tracing.py:") or "test_tracing.py:" in op.location
    assert str(op.region) == "cpu bf16"
    totals = json.loads(t.to_json())["totals"]
    assert (totals["ops"], totals["low"], totals["casts"], totals["bytes"]) == (1, 1, 3, 960)


@pytest.mark.parametrize(
    ("options", "frozen", "mode", "casts_made", "hits"),
    [
        ({}, False, "grad", 1, 2),
        ({"cache_enabled": False}, False, "grad", 3, 0),
        ({}, True, "grad", 3, 0),
        ({}, False, "no_grad", 1, 2),
        ({}, False, "inference", 3, 0),
    ],
)
def test_three_uses_of_a_weight(options: dict[str, Any], frozen: bool, mode: str, casts_made: int, hits: int) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4), requires_grad=not frozen)
    x = torch.randn(2, 4).bfloat16()
    with trace() as t, region(**options), GRAD[mode]():
        for _ in range(3):
            F.linear(x, weight)
    assert [op.name for op in t.ops] == ["linear"] * 3
    assert len(casts(t, "autocast")) == casts_made
    assert sum(op.cache_hits for op in t.ops) == hits


def test_conversions_of_the_program_are_not_autocasts() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with trace() as t, region():
        y = x.half().to(torch.bfloat16)
        (y.float() * 2).sum().backward()
    assert not casts(t, "autocast", "gradient")
    assert [cast.got for cast in casts(t, "user")] == ["fp16", "bf16", "fp32", "bf16", "fp16", "fp32"]
    assert "6 further casts by the program or by ops themselves" in t.summary()


def test_a_cast_that_an_op_makes_by_itself_is_the_ops() -> None:
    x = torch.randn(3, 3).bfloat16()
    with trace() as t, region():
        x.softmax(-1, dtype=torch.float64)
        x.log_softmax(-1, dtype=torch.float32)
    assert not casts(t, "autocast")
    assert [cast.got for cast in casts(t, "op")] == ["fp64", "fp32"]


def test_nested_and_disabled_regions() -> None:
    a = torch.randn(3, 3)
    with trace() as t:
        torch.mm(a, a)
        with region(dtype=torch.float16):
            torch.mm(a, a)
            with region(dtype=torch.bfloat16):
                torch.mm(a, a)
            with region(enabled=False):
                torch.mm(a, a)
    assert [(str(op.region), op.dtype, len(op.casts)) for op in t.ops] == [
        ("off", "fp32", 0),
        ("cpu fp16", "fp16", 2),
        ("cpu bf16", "bf16", 2),
        ("off", "fp32", 0),
    ]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_policies_are_those_of_the_device_type(device: Any) -> None:
    with device.activate():
        a, b = torch.empty(4, 4, device=device.type), torch.empty(4, 4, device=device.type).half()
        with trace() as t, device.autocast("fp16"):
            torch.mm(a, a)
            F.layer_norm(b, (4,))
            torch.atan2(a, b)
            b.sum()
            torch.stack([a, b])
    policies = device.policies()
    assert [op.policy for op in t.ops] == [
        policies.get(name, "fallthrough") for name in ("mm", "layer_norm", "atan2", "sum", "stack")
    ]
    assert [op.region.device for op in t.ops] == [device.type] * 5
    assert t.ops[0].dtype == "fp16"
    assert [cast.got for cast in t.ops[2].casts] == ["fp32"]
    if policies["sum"] == "optdtype":
        assert (t.ops[3].dtype, t.ops[3].out, t.ops[3].ran_in, t.ops[3].casts) == ("fp16", "fp32", "float32", [])


def test_places_and_modules() -> None:
    model = torch.nn.Sequential(Mlp(), torch.nn.Linear(4, 2))
    with trace() as t:
        with region():
            loss = model(torch.randn(2, 8)).sum()
        loss.backward()
    modules = {op.name: op.module for op in t.ops if op.phase == "forward"}
    assert [op.module for op in t.ops if op.name == "linear"] == [
        "Sequential.0.fc1",
        "Sequential.0.fc2",
        "Sequential.1",
    ]
    assert modules["gelu"] == "Sequential.0"
    assert modules["sum"] == ""
    backward = [(op.name, op.module) for op in t.ops if op.name == "AddmmBackward0"]
    assert [module for _, module in backward] == ["Sequential.1", "Sequential.0.fc2", "Sequential.0.fc1"]
    files = {op.location.rpartition(":")[0].rpartition("/")[2] for op in t.ops}
    assert files == {"test_tracing.py", "trace_programs.py"}
    lines = {op.location for op in t.ops if op.name == "gelu"}
    assert len(lines) == 1
