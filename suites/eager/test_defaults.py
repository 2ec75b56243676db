"""Rule defaults: a region without options is enabled, in the device type's default dtype, with the cache as it was.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, and `__init__` of torch/amp/autocast_mode.py.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("defaults")

DTYPES = {
    **dict.fromkeys(("cpu", "xla", "hpu", "maia"), torch.bfloat16),
    **dict.fromkeys(("cuda", "xpu", "mps", "mtia", "privateuseone"), torch.float16),
}
"""The default dtype of each device type (amp.html#torch.autocast for CPU and CUDA, autocast_mode.cpp for the rest)."""


@scenario(dtypes="default")
def test_dtype(amp: Amp) -> None:
    """A region given no dtype runs in the device type's default (amp.html#torch.autocast, dtype)."""
    amp.assert_equal("get_autocast_dtype", torch.get_autocast_dtype(amp.type), amp.default)
    with amp.autocast():
        amp.assert_equal("dtype of the region", torch.get_autocast_dtype(amp.type), amp.default)
        amp.assert_equal("dtype of a product", amp.probe(), amp.default)


@scenario(types=("cpu",), dtypes="default")
def test_dtype_of_every_device_type(amp: Amp) -> None:
    """The default dtypes need no device (autocast_mode.cpp, autocast_dtype)."""
    for name, dtype in DTYPES.items():
        amp.assert_equal(f"default dtype of {name}", torch.get_autocast_dtype(name), dtype)


@scenario(types=("cpu",), dtypes="default")
def test_available_device_types(amp: Amp) -> None:
    """Autocast is available for the documented device types and not for meta (amp.html, is_autocast_available)."""
    for name in DTYPES:
        found = torch.amp.is_autocast_available(name), torch.amp.autocast_mode.is_autocast_available(name)
        amp.assert_equal(f"is_autocast_available({name!r}) of torch.amp and of autocast_mode", found, (True, True))
    for name in ("meta", "vulkan"):
        amp.assert_equal(f"is_autocast_available({name!r})", torch.amp.is_autocast_available(name), False)


@scenario(dtypes="default")
def test_enabled(amp: Amp) -> None:
    """A region is enabled unless told otherwise, and gives no warning (amp.html#torch.autocast, enabled)."""
    amp.assert_equal("enabled outside of any region", torch.is_autocast_enabled(amp.type), False)
    with amp.assert_no_warning("making a region without options", lambda: amp.autocast()):
        amp.assert_equal("enabled in a region without options", torch.is_autocast_enabled(amp.type), True)
    with amp.region(enabled=False), amp.autocast():
        amp.assert_equal("enabled in a region inside a disabled one", torch.is_autocast_enabled(amp.type), True)


@scenario(values=True, dtypes="default")
def test_options_by_place(amp: Amp) -> None:
    """torch.autocast needs a device type alone, and takes dtype, enabled and cache_enabled by place (amp.html)."""
    with torch.autocast(amp.type):
        amp.assert_state("in a region given nothing else", (True, amp.default, True))
        with torch.autocast(amp.type, amp.other, False, False):
            amp.assert_equal("state in a region given all by place", amp.state(), (False, amp.other, False))
        with torch.autocast(amp.type, None, True, False):
            amp.assert_equal("state in a region given no dtype", amp.state(), (True, amp.default, False))


@scenario(dtypes="default")
def test_spellings_of_the_class(amp: Amp) -> None:
    """torch.autocast and torch.amp.autocast are one class (amp.html: both names are used for it)."""
    amp.assert_equal("torch.amp.autocast", torch.amp.autocast is torch.autocast, True)
    amp.assert_equal("torch.amp.autocast_mode.autocast", torch.amp.autocast_mode.autocast is torch.autocast, True)
    amp.assert_equal("kind of the device's region", isinstance(amp.region(), torch.autocast), True)
