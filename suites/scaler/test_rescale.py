"""Rule rescale: the scale backs off after an overflow and grows after growth_interval steps without one.

A scale that would not be finite in float32 does not grow. `_amp_update_scale_` is the op that `GradScaler.update` asks
of a device. Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler.update.
"""

from functools import partial

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("rescale")

INF = float("inf")
TOP, SMALLEST = 2.0**127, 2.0**-126
"""The largest power of two in float32, and its smallest normal number."""


def _rescale(
    amp: Amp, scale: float, tracker: int, found: float, factors: tuple[float, float] = (2.0, 0.5), interval: int = 3
) -> tuple[float, int]:
    held = torch.full((), scale, device=amp.type)
    count = torch.full((), tracker, dtype=torch.int32, device=amp.type)
    torch._amp_update_scale_(held, count, torch.full((), found, device=amp.type), *factors, interval)
    return held.item(), int(count.item())


def _rounded(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).float().item()


@scenario(values=True, dtypes="default")
def test_sequence(amp: Amp) -> None:
    """Two steps without overflow and a third that grows, an overflow, and again (test_grad_scaling_update_scale)."""
    scale, tracker = 4.0, 0
    found = [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    scales = [4.0, 4.0, 8.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0]
    trackers = [1, 2, 0, 0, 1, 0, 0, 1, 2, 0, 1, 2, 0]
    for step, want in enumerate(zip(scales, trackers, strict=True)):
        scale, tracker = _rescale(amp, scale, tracker, found[step])
        amp.assert_equal(f"scale and tracker after step {step}", (scale, tracker), want)


@scenario(interval=[1, 2, 3, 2000, 2**31 - 1], values=True, dtypes="default")
def test_interval(amp: Amp, interval: int) -> None:
    """The scale grows at the interval, not one step before it nor one after (amp.html#torch.amp.GradScaler)."""
    for tracker in {0, max(interval - 2, 0), interval - 1}:
        want = (8.0, 0) if tracker + 1 == interval else (4.0, tracker + 1)
        got = _rescale(amp, 4.0, tracker, 0.0, interval=interval)
        amp.assert_equal(f"scale and tracker after {tracker}", got, want)


@scenario(found=["1.0", "2.0", "8.0", "0.5", "nan"], values=True, dtypes="default")
def test_overflow(amp: Amp, found: str) -> None:
    """Any found_inf but 0 is an overflow: the scale backs off and the count starts at 0 (AmpKernels.cu).

    GradScaler.update adds up what several optimizers found, so it may be more than 1.
    """
    for tracker in (0, 1, 2, 1999):
        got = _rescale(amp, 4.0, tracker, float(found))
        amp.assert_equal(f"scale and tracker with {found} found after {tracker} steps", got, (2.0, 0))


@pytest.mark.parametrize("scale", [65536.0, 3.0, 1 / 3, 1e-3, 12345.678])
@pytest.mark.parametrize(("grow", "back"), [(2.0, 0.5), (1.1, 0.3), (1.0001, 0.9999), (1000.0, 1e-3)])
@scenario(values=True, dtypes="default")
def test_factors(amp: Amp, grow: float, back: float, scale: float) -> None:
    """The factors multiply the scale in float64, and the product is rounded once to float32 (AmpKernels.cu)."""
    held = _rounded(scale)
    amp.assert_equal("scale grown", _rescale(amp, held, 2, 0.0, (grow, back)), (_rounded(held * grow), 0))
    amp.assert_equal("scale backed off", _rescale(amp, held, 2, 1.0, (grow, back)), (_rounded(held * back), 0))
    amp.assert_equal("scale between", _rescale(amp, held, 1, 0.0, (grow, back)), (held, 2))


@scenario(values=True, dtypes="default")
def test_top_of_float32(amp: Amp) -> None:
    """A scale whose growth float32 cannot hold is kept, and the count begins anew (test_grad_scale_will_not_overflow).

    pytorch#85030 asked for it: a scale that became infinite could never come back.
    """
    largest = torch.finfo(torch.float32).max
    for scale, grow, want in (
        (TOP / 2, 2.0, TOP),
        (TOP, 2.0, TOP),
        (TOP, 1.5, TOP * 1.5),
        (largest, 2.0, largest),
        (largest, 1.0000001, largest),
        (1e38, 1e300, _rounded(1e38)),
        (1.0, INF, 1.0),
    ):
        amp.assert_equal(f"scale {scale} times {grow}", _rescale(amp, scale, 2, 0.0, (grow, 0.5)), (_rounded(want), 0))
    amp.assert_equal("the largest scale backed off", _rescale(amp, TOP, 2, 1.0), (TOP / 2, 0))


@scenario(values=True, dtypes="default")
def test_bottom_of_normal_numbers(amp: Amp) -> None:
    """The scale backs off to the smallest normal number and from 0 stays 0 (amp.html#torch.amp.GradScaler.update).

    The documentation warns that nothing keeps the scale above 1.
    """
    amp.assert_equal("twice the smallest", _rescale(amp, 2 * SMALLEST, 0, 1.0), (SMALLEST, 0))
    amp.assert_equal("the smallest grown", _rescale(amp, SMALLEST, 2, 0.0), (2 * SMALLEST, 0))
    amp.assert_equal("zero backed off", _rescale(amp, 0.0, 0, 1.0), (0.0, 0))
    amp.assert_equal("zero grown", _rescale(amp, 0.0, 2, 0.0), (0.0, 0))


@scenario(values=True, dtypes="default")
def test_subnormal(amp: Amp) -> None:
    """Below the normal numbers the scale is halved down to the last one, then 0, and grows back (IEEE 754)."""
    for before, after in ((SMALLEST, SMALLEST / 2), (2.0**-148, 2.0**-149), (2.0**-149, 0.0)):
        amp.assert_equal(f"{before} backed off", _rescale(amp, before, 0, 1.0), (after, 0))
    amp.assert_equal("the last one grown", _rescale(amp, 2.0**-149, 2, 0.0), (2.0**-148, 0))


@scenario(values=True, dtypes="default")
def test_infinite_scale(amp: Amp) -> None:
    """A scale set to infinity stays infinite, as in float32 (AmpKernels.cu)."""
    for tracker, found in ((2, 0.0), (1, 0.0), (0, 1.0)):
        amp.assert_equal(f"scale after {found} found", _rescale(amp, INF, tracker, found)[0], INF)


@scenario(values=True, dtypes="default")
def test_in_place(amp: Amp) -> None:
    """The scale and the tracker are written where they are, of either shape of one element; found_inf is only read."""
    for shape in ((), (1,)):
        scale, tracker = torch.full(shape, 4.0, device=amp.type), torch.full(shape, 2, device=amp.type).int()
        found = torch.zeros(shape, device=amp.type)
        out = torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)
        amp.assert_equal("whether the scale is returned", out is scale, True)
        amp.assert_identical("scale", scale, torch.full(shape, 8.0))
        amp.assert_identical("tracker", tracker, torch.zeros(shape, dtype=torch.int32))
        amp.assert_identical("found_inf", found, torch.zeros(shape))


@scenario(which=["current_scale", "growth_tracker", "found_inf"], values=True, dtypes="default")
def test_wrong_argument(amp: Amp, which: str) -> None:
    """Scale and found_inf are float32, the tracker int32, each of one element; another is refused (AmpKernels.cu)."""
    good = {
        "current_scale": torch.ones(()),
        "growth_tracker": torch.zeros((), dtype=torch.int32),
        "found_inf": torch.zeros(()),
    }
    wrong_sizes = [torch.zeros(size, dtype=good[which].dtype) for size in (2, 0)]
    wrong_dtypes = [torch.zeros((), dtype=dtype) for dtype in (torch.float64, torch.float16, torch.int64)]
    for wrong in (*wrong_sizes, *wrong_dtypes):
        given = [tensor.to(amp.type) for tensor in {**good, which: wrong}.values()]
        what, text = f"{which} of {list(wrong.shape)} {wrong.dtype}", f"{which} must be a"
        amp.assert_raises(what, RuntimeError, text, partial(torch._amp_update_scale_, *given, 2.0, 0.5, 3))
