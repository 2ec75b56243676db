"""The report of a trace: hints, table, sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import UsageError
from ampcheck.tools.trace import trace
from ampcheck.tools.trace.report import size
from tests.tools.trace_programs import Mlp, region


def test_a_region_entered_per_call_is_named_as_the_cause() -> None:
    model = Mlp()
    x = torch.randn(2, 8).bfloat16()
    with trace() as t:
        for _ in range(5):
            with region():
                model.fc1(x)
    with trace() as off, region(cache_enabled=False):
        model.fc1(x), model.fc1(x)
    with trace() as fine, region():
        model(x), model(x)
    assert any(
        hint.startswith("5 casts of weight weight (3.8 kB): the region that its copy was cached for had ended")
        for hint in t.hints()
    )
    assert any(hint.startswith("2 casts of weight weight (1.5 kB): the weight cache is off") for hint in off.hints())
    assert not any("casts of weight" in hint for hint in fine.hints())


def test_weights_that_training_changed_are_cast_again_without_a_hint() -> None:
    model, x = Mlp(), torch.randn(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace() as t:
        for _ in range(3):
            with region():
                loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not any("casts of weight" in hint for hint in t.hints())
    assert any("is cast fp32→bf16 3 times" in hint and hint.endswith("give it as bf16") for hint in t.hints())


def test_a_frozen_weight_and_a_view_say_why_they_are_cast_again() -> None:
    layer = torch.nn.Linear(4, 4, bias=False).requires_grad_(False)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(2, 4).bfloat16()
    with trace() as t, region():
        layer(x), layer(x)
        torch.mm(x, weight.t()), torch.mm(x, weight.t())
    found = "\n".join(t.hints())
    assert "2 casts of parameter weight (192 B): only tensors that require grad are cached" in found
    assert "2 casts of views of weight fp32[4, 4] (192 B): a view is not cached" in found


def test_a_stale_copy_of_a_weight_is_reported() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    x = torch.ones(1, 4).bfloat16()
    with trace() as t, region():
        before = torch.mm(x, weight)
        with torch.no_grad():
            weight.mul_(2)
        after = torch.mm(x, weight)
    assert any("was changed in place inside the region" in hint for hint in t.hints()) == torch.equal(before, after)
    with trace() as fresh, region():
        torch.mm(x, weight), torch.mm(x, weight)
    assert not any(op.stale for op in fresh.ops)


@pytest.mark.parametrize(
    ("uses", "options", "hinted"), [(64, {}, True), (63, {}, False), (64, {"cache_enabled": False}, False)]
)
def test_a_gradient_summed_in_low_precision_is_reported(uses: int, options: dict[str, Any], hinted: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2).bfloat16()
    with trace() as t, region(**options):
        for _ in range(uses):
            torch.mm(x, weight)
        with torch.no_grad():
            torch.mm(x, weight)
    found = [hint for hint in t.hints() if "through one cached copy" in hint]
    assert bool(found) == hinted
    if hinted:
        assert found == [
            "weight fp32[2, 2] is used 64 times through one cached copy, so that many terms of its gradient are summed "
            "in bf16; cache_enabled=False sums them in float32"
        ]


def test_a_banned_op_is_recorded_with_its_error() -> None:
    device = DEVICES[0]
    with device.activate():
        p = torch.empty(4, device=device.type)
        with trace() as t, device.autocast("fp16"), pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(p, p)
    assert [(op.name, op.policy) for op in t.ops] == [("binary_cross_entropy", "banned")]
    assert t.ops[0].error.startswith("RuntimeError: ")
    assert any(hint.startswith("binary_cross_entropy at ") for hint in t.hints())


def test_table_sorts_limits_and_refuses() -> None:
    a = torch.randn(4, 4)
    with trace() as t, region():
        a + 1
        torch.mm(a, a)
        torch.mm(torch.ones(32, 32), torch.ones(32, 32, dtype=torch.bfloat16))
    first = [line.split()[0] for line in t.table().splitlines()[2:]]
    assert first == ["add", "mm", "ones", "ones", "mm"]
    by_bytes = t.table("bytes", limit=1).splitlines()
    assert "6.1 kB" in by_bytes[2]
    assert by_bytes[3] == "1 of 5 rows"
    assert t.table("casts").splitlines()[2].split()[:7] == ["mm", "downcast", "cpu", "bf16", "bf16", "1", "2"]
    with pytest.raises(UsageError, match="cannot be sorted by 'size'; it can by order, bytes, casts"):
        t.table("size")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(UsageError, match="1 or more rows, not 0"):
        t.table(limit=0)


def test_an_empty_trace() -> None:
    with trace() as t:
        pass
    assert t.summary() == "no op ran on a tensor"
    assert json.loads(t.to_json())["totals"]["ops"] == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_960, "1.0 MB"), (3 * 10**12, "3000.0 GB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
