"""The bound on a right kernel's distance from the float64 result, and what else an output is compared in."""

from dataclasses import replace

import pytest
import torch

from ampcheck.checks import reference as own
from ampcheck.checks.cases import CallPlan, plan
from ampcheck.checks.comparisons import far
from ampcheck.checks.reference import reference
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known as known_devices
from ampcheck.samples.describe import in_form
from ampcheck.samples.tensors import host_values as own_values
from ampcheck.spec.case import Case
from ampcheck.spec.torch_dtypes import DTYPES


def planned(op: str, inputs: str, amp: str = "bf16", rule: str = "downcast") -> CallPlan:
    return plan(Case("eager", rule, op, "", inputs, amp, "cpu", "cpu"), Cpu())


@pytest.mark.parametrize(
    ("op", "rule"), [("mm", "downcast"), ("conv2d", "downcast"), ("tanh", "fallthrough"), ("addmm", "downcast")]
)
@pytest.mark.parametrize(("dtype", "off"), [("bf16", 0.02), ("fp16", 0.002), ("fp32", 1.5e-4), ("fp64", 3e-13)])
def test_two_percent_in_bf16_and_two_per_mille_in_fp16_are_seen(op: str, rule: str, dtype: str, off: float) -> None:
    todo = planned(
        op, dtype, dtype if dtype in ("bf16", "fp16") else "bf16", "fallthrough" if dtype[-2:] != "16" else rule
    )
    exact = reference(todo)
    low = DTYPES[dtype]
    (want,), (moved,) = exact.outputs, exact.moved
    assert far(want.to(low), want, moved, low, "it") == []
    (said,) = far((want * (1 + off)).to(low), want, moved, low, "it")
    assert f"a right kernel in {dtype} by at most" in said
    assert "the float64 result on the CPU" in said


def test_rounded_inputs_are_what_the_reference_computes_with() -> None:
    exact = reference(planned("mm", "fp32")).outputs[0]
    given = reference(planned("mm", "fp64", rule="fallthrough")).outputs[0]
    assert 1e-4 < (exact - given).abs().max() < 1e-1


def test_whole_numbers_and_shapes_are_equal() -> None:
    want, moved = torch.tensor([3, 4]), torch.zeros(2, dtype=torch.float64)
    assert far(torch.tensor([3, 4]), want, moved, DTYPES["bf16"], "it") == []
    assert far(torch.tensor([3, 5]), want, moved, DTYPES["bf16"], "it") == [
        "it is 5 at [1]; expected 4, the float64 result on the CPU"
    ]
    assert far(torch.tensor([3]), want, moved, DTYPES["bf16"], "it") == ["it has shape (1,); expected (2,)"]


@pytest.mark.parametrize("sample", ["", "torch", "method"])
def test_the_dtype_that_autocast_fills_in_is_the_kernels(sample: str) -> None:
    device = known_devices()["virtual:cuda"]
    todo = plan(Case("eager", "optdtype", "cumprod", sample, "fp16", "fp16", device.token, device.name), device)
    given = todo.cast(todo.inputs(Cpu()))
    assert given[0].dtype is (torch.float16 if todo.sample.call == "aten" else torch.float32)
    assert todo.reference()(*given).dtype is torch.float32
    assert todo.reference("fp64")(*todo.cast(todo.inputs(Cpu()), "fp64")).dtype is torch.float64


def test_forms_change_normal_values_alone() -> None:
    sample = planned("mm", "fp32").sample
    large, strided = in_form(sample, "large"), in_form(sample, "strided")
    assert large is not None
    assert strided is not None
    assert [arg.fill for arg in large.args] == ["large", "large"]
    assert [arg.strided for arg in strided.args] == [True, True]
    assert in_form(replace(sample, args=(replace(sample.args[0], fill="unit"),)), "large") is None
    positive = in_form(replace(sample, args=(replace(sample.args[0], fill="positive"),)), "large")
    assert positive is not None
    for made, least in ((large, -18), (positive, 0.5)):
        values = own_values(made.args[0], 0)
        assert (values.abs().max().item(), values.min().item() >= least) == (18, True)


def test_a_virtual_device_leaves_no_fake_tensor_to_others() -> None:
    own_values.cache_clear()
    todo = planned("mm", "fp32")
    with known_devices()["virtual:cuda"].activate():
        assert own.raised_by_cpu(todo) is None
        values = own_values(todo.sample.args[0], 0)
    assert type(values) is torch.Tensor
    assert values.abs().sum().item() > 0
