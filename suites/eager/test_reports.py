"""Rule reports: what users reported as wrong, and PyTorch has neither promised nor changed, is as they ask.

Each case is known to fail, as a deviation with the link of its report. None belongs to the promises that the other
files check; a case that starts to pass turns red as fixed, so that a change in PyTorch is noticed. Source: the issue in
the docstring of each case.
"""

from collections.abc import Callable

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("reports")

MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_put": lambda wide, low: torch.index_put(wide, (torch.arange(4),), low),
    "scatter_add": lambda wide, low: torch.scatter_add(wide, 0, torch.arange(4), low),
    "dot": torch.dot,
    "vdot": torch.vdot,
    "tensordot": lambda wide, low: torch.tensordot(wide, low, 1),
    "cross": lambda wide, low: torch.linalg.cross(wide[:3], low[:3]),
    "lerp": lambda wide, low: torch.lerp(wide, low, 0.5),
    "masked_scatter": lambda wide, low: torch.masked_scatter(wide, wide > 0, low),
}


@scenario(op=MIXED, types=("cpu",), dtypes="default")
def test_mixed_dtypes_on_the_host(amp: Amp, op: str) -> None:
    """These ops take mixed dtypes under CUDA's autocast and refuse them under the CPU's (pytorch/pytorch#41035)."""
    wide, low = amp.rand(4), amp.rand(4, dtype=amp.dtype)
    with amp.region():
        got = amp.outcome(lambda: MIXED[op](wide, low).dtype)
    amp.assert_equal(f"{op} of float32 and {amp.dtype}", str(got), "torch.float32")


@scenario(types=("cpu",), dtypes="default")
def test_grouped_products(amp: Amp) -> None:
    """torch._grouped_mm is a matrix product that autocast leaves alone (pytorch/pytorch#174763)."""
    left, right = amp.rand(2, 16, 16), amp.rand(2, 16, 16, dtype=amp.dtype)
    with amp.region():
        got = amp.outcome(lambda: torch._grouped_mm(left, right).dtype)
    amp.assert_equal("dtype of _grouped_mm", str(got), str(amp.dtype))


@scenario(types=("cpu", "xpu", "mps", "mtia"), dtypes="default")
def test_question_without_a_device_type(amp: Amp) -> None:
    """torch.is_autocast_enabled() speaks of CUDA alone, in a region of another device (pytorch/pytorch#110966)."""
    with amp.region():
        amp.assert_equal("torch.is_autocast_enabled() in the region", torch.is_autocast_enabled(), True)


@scenario(dtypes="default")
def test_device_object(amp: Amp) -> None:
    """torch.autocast refuses a torch.device (pytorch/pytorch#153539)."""
    found = amp.outcome(lambda: torch.autocast(torch.device(amp.type)) and "a region")
    amp.assert_equal("torch.autocast of a torch.device", found, "a region")


@scenario(types=("cpu",), dtypes="default")
def test_meta_tensors(amp: Amp) -> None:
    """torch.autocast has no region for the meta device (pytorch/pytorch#130067)."""
    amp.assert_equal('torch.autocast("meta")', amp.outcome(lambda: torch.autocast("meta") and "a region"), "a region")


@scenario(types=("cpu",), dtypes="default")
def test_float32_region(amp: Amp) -> None:
    """A region in float32 is switched off on the CPU where CUDA has one (pytorch/pytorch#100565, sglang#36632)."""
    said = "target dtype is not supported"
    with amp.assert_warns("a region in float32", UserWarning, said, lambda: amp.region(torch.float32)):
        amp.assert_equal("is autocast enabled in a float32 region", torch.is_autocast_enabled(amp.type), True)


@scenario(types=("cpu",), dtypes="default")
def test_recurrent_net_in_half(amp: Amp) -> None:
    """nn.LSTM in float16 needs a kernel that not every CPU has (OpenVerifiableLLM#100)."""
    layer, x = torch.nn.LSTM(4, 4), amp.rand(3, 2, 4)
    with amp.region(torch.float16):
        amp.assert_equal("dtype of nn.LSTM's output", str(amp.outcome(lambda: layer(x)[0].dtype)), "torch.float16")


@scenario(dtypes="default")
def test_frozen_weight(amp: Amp) -> None:
    """A weight that does not require grad is cast at each use (Lightning-AI/pytorch-lightning#19950)."""
    x, weight = amp.rand(3, 3), amp.rand(3, 3)
    with amp.region():
        low = x.to(amp.default)
        seen = amp.observe(lambda: [torch.mm(low, weight) for _ in range(5)], low, weight)
    amp.assert_equal("casts of a frozen weight used five times", sum(cast.source == 1 for cast in seen.casts), 1)
