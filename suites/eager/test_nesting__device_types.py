"""Rule nesting, of several device types at once: `ampcheck.spec.rules` says what it promises."""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("nesting")


def _beside(amp: Amp) -> str:
    """Another device type, the CPU where that is another one: its tensors can be made beside any device's."""
    return "xpu" if amp.type == "cpu" else "cpu"


def _other_state(name: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)


@scenario()
def test_two_device_types(amp: Amp) -> None:
    """Regions of two device types hold at once, each for its own tensors (amp.html: device_type; pytorch#57386)."""
    name = _beside(amp)
    with torch.autocast(name, dtype=amp.other):
        amp.expect("state of this device in the other's region", amp.state(), (False, amp.default, True))
        amp.expect("dtype a product on this device runs in", amp.probe(), torch.float32)
        with amp.region():
            amp.expect("state of this device in both regions", amp.state(), (True, amp.dtype, True))
            amp.expect(f"state of {name} in both regions", _other_state(name), (True, amp.other))
            amp.expect("dtype a product on this device runs in, in both", amp.probe(), amp.dtype)
            amp.expect("nesting depth in both regions", amp.depth(), 2)
        amp.expect(f"state of {name} after the inner region", _other_state(name), (True, amp.other))
    amp.expect("state of this device after both", amp.state(), (False, amp.default, True))


@scenario()
def test_two_device_types_other_way_round(amp: Amp) -> None:
    """A region of another device type inside this one's ends without a trace (autocast_mode.py, __exit__)."""
    name = _beside(amp)
    before = _other_state(name)
    with amp.region():
        with torch.autocast(name, dtype=amp.other):
            amp.expect("dtype a product on this device runs in", amp.probe(), amp.dtype)
        amp.expect(f"state of {name} after its region", _other_state(name), before)
        with torch.autocast(name, enabled=False):
            amp.expect("state while the other type is disabled", amp.state(), (True, amp.dtype, True))
            amp.expect("dtype a product runs in while it is", amp.probe(), amp.dtype)
        amp.expect("state after the other type's regions", amp.state(), (True, amp.dtype, True))


@scenario()
def test_disabled_beside_enabled(amp: Amp) -> None:
    """Disabling one device type leaves the other's region in force (autocast_mode.cpp: one dispatch key for each)."""
    name = _beside(amp)
    with torch.autocast(name, dtype=amp.other), amp.region(enabled=False):
        amp.expect(f"state of {name}", _other_state(name), (True, amp.other))
        amp.expect("dtype a product on this device runs in", amp.probe(), torch.float32)
    with amp.region(), torch.autocast(name, enabled=False):
        amp.expect(f"whether {name} is enabled", torch.is_autocast_enabled(name), False)
        amp.expect("dtype a product on this device runs in, enabled", amp.probe(), amp.dtype)


@scenario(types=("cuda", "xpu", "mps", "mtia"))
def test_ops_on_two_devices(amp: Amp) -> None:
    """In regions of two types a product runs in the dtype of its tensors' type (amp.html: op eligibility)."""

    def on_cpu() -> torch.dtype:
        return torch.mm(torch.ones(2, 2, device="cpu"), torch.ones(2, 2, device="cpu")).dtype

    with amp.region():
        amp.expect("dtype of a product on the CPU in this device's region", on_cpu(), torch.float32)
        with torch.autocast("cpu", dtype=amp.other):
            amp.expect("dtypes of products on both in both regions", (amp.probe(), on_cpu()), (amp.dtype, amp.other))
            with amp.region(enabled=False):
                amp.expect("dtypes with this device disabled", (amp.probe(), on_cpu()), (torch.float32, amp.other))
            with torch.autocast("cpu", enabled=False):
                amp.expect("dtypes with the CPU disabled", (amp.probe(), on_cpu()), (amp.dtype, torch.float32))
        amp.expect("dtypes after the CPU's region", (amp.probe(), on_cpu()), (amp.dtype, torch.float32))


@scenario()
def test_reuse_across_device_types(amp: Amp) -> None:
    """cache_enabled is one flag for all device types: an inner region of another type sets it, and puts it back."""
    name = _beside(amp)
    with amp.region():
        with torch.autocast(name, dtype=amp.other, cache_enabled=False):
            amp.expect("cache_enabled in the other type's region", torch.is_autocast_cache_enabled(), False)
        amp.expect("cache_enabled after it", torch.is_autocast_cache_enabled(), True)


@scenario()
def test_casts_kept_across_device_types(amp: Amp) -> None:
    """An inner region of another device type is not the outermost, so it drops no casts (autocast_mode.cpp)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    with amp.region():
        amp.expect("casts of a weight at first", amp.casts(lambda: torch.mm(x, weight), weight), 1)
        with torch.autocast(_beside(amp), dtype=amp.other):
            pass
        amp.expect("casts after another type's region", amp.casts(lambda: torch.mm(x, weight), weight), 0)
