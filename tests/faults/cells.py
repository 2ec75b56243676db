"""Casts lost in one state of a call: a gradient mode, a layout, a mix of dtypes, a compiler. A sweep sees each."""

from __future__ import annotations

from typing import Any

import torch

from tests.faults.casts import CPU, CUDA, to
from tests.faults.fault import Fault
from tests.faults.kernels import Body, Call, kernel


def swept(name: str, device: str, op: str, body: Body, *says: str, rule: str = "downcast", **chosen: Any) -> Fault:
    """A fault of one op on one device, seen by its sweep, which nightly runs have."""
    mode = chosen.pop("mode")
    return Fault(
        name,
        rule,
        lambda: kernel(device, op, body),
        says,
        device=device,
        op=op,
        only=f"cells-{mode}",
        nightly=True,
        **chosen,
    )


def integers_of_a_mix(call: Call) -> Any:
    """Integers are cast where a floating tensor is beside them."""
    mixed = {t.is_floating_point() for t in call.tensors()} == {True, False}
    return call.run(lambda place, t: t.to(call.low) if call.eligible(t) or (mixed and t.dtype == torch.int64) else t)


def without_graph(call: Call) -> Any:
    """The result has no gradient."""
    return call.registered().detach()


not_in_inference = to("low", lambda call, place, t: torch.is_inference_mode_enabled())
not_without_grad = to("low", lambda call, place, t: t.requires_grad and not torch.is_grad_enabled())
not_channels_last = to("low", lambda call, place, t: t.dim() == 4 and not t.is_contiguous())
not_while_captured = to("low", lambda call, place, t: type(t) is not torch.Tensor and not t.is_contiguous())

FAULTS = (
    swept(
        "mm-lost-in-inference",
        CPU,
        "mm",
        not_in_inference,
        "[fp32, contiguous]",
        "reached the kernel as fp32",
        mode="inference",
    ),
    swept(
        "linear-lost-in-no-grad", CPU, "linear", not_without_grad, "[fp32, contiguous]", "aten::linear", mode="no_grad"
    ),
    swept(
        "conv-lost-in-channels-last", CUDA, "conv2d", not_channels_last, "[fp32, channels_last]", "conv2d", mode="plain"
    ),
    swept("mm-casts-integers-of-a-mix", CPU, "mm", integers_of_a_mix, "[fp32+int64, contiguous]", mode="plain"),
    swept(
        "bmm-without-graph", CPU, "bmm", without_graph, "requires_grad of output 0 of aten::bmm is False", mode="grad"
    ),
    swept(
        "mm-lost-while-captured",
        CPU,
        "mm",
        not_while_captured,
        "[fp32, transposed]",
        suite="jit",
        compiler="aot",
        mode="plain",
    ),
)
