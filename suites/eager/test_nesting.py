"""Rule nesting: an inner region decides alone until it ends, then the outer one does again.

This holds for enabled, dtype and cache, to any depth, also for regions of several device types at once. Source:
https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast ("Autocast-enabled regions can be nested").
"""

from itertools import product

import pytest
import torch

from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("nesting")


def _orders(*depths: int) -> list[object]:
    """Return every order of on and off to the depths."""
    orders = [order for depth in depths for order in product((True, False), repeat=depth)]
    return named(**{"_".join("on" if enabled else "off" for enabled in order): order for order in orders})


@scenario(order=_orders(2, 3, 4), dtypes="default")
def test_order(amp: Amp, order: tuple[bool, ...]) -> None:
    """On and off in every order to depth 4: each region decides alone, on the way in and on the way out (amp.html)."""

    def check(depth: int, when: str) -> None:
        amp.assert_state(f"at depth {depth + 1} {when}", (order[depth], amp.dtype, True), depth + 1)

    def down(depth: int) -> None:
        if depth == len(order):
            return
        with amp.region(enabled=order[depth]):
            check(depth, "on the way in")
            down(depth + 1)
            check(depth, "on the way out")

    down(0)
    amp.assert_equal("state after all regions", amp.state(), (False, amp.default, True))


DTYPES = {"low": "dtype", "other": "other"}
DTYPE_ORDERS = [order for depth in (2, 3, 4) for order in product(DTYPES, repeat=depth) if len(set(order)) == 2]


@scenario(order=named(**{"_".join(order): order for order in DTYPE_ORDERS}))
def test_dtype_order(amp: Amp, order: tuple[str, ...]) -> None:
    """Ops run in the innermost region's dtype; the outer one's is back after it (amp.html#torch.autocast, dtype)."""
    dtypes = [getattr(amp, DTYPES[name]) for name in order]

    def down(depth: int) -> None:
        if depth == len(dtypes):
            return
        with amp.region(dtypes[depth]):
            amp.assert_equal(f"dtype a product runs in at depth {depth + 1}", amp.probe(), dtypes[depth])
            down(depth + 1)
            amp.assert_equal(f"dtype a product runs in, back at depth {depth + 1}", amp.probe(), dtypes[depth])
            amp.assert_equal(f"state, back at depth {depth + 1}", amp.state(), (True, dtypes[depth], True))

    down(0)
    amp.assert_equal("state after all regions", amp.state(), (False, amp.default, True))


# ---- what a region takes over when it is made
@scenario()
def test_dtype_left_out(amp: Amp) -> None:
    """Without a dtype a region takes the one in force where it is made (amp.html: get_autocast_dtype)."""
    with amp.region(amp.other):
        inner = torch.autocast(amp.type, enabled=False)
        with inner:
            amp.assert_equal("dtype in force inside", torch.get_autocast_dtype(amp.type), amp.other)
    with amp.region(), inner:
        amp.assert_equal("dtype in force where it is entered later", torch.get_autocast_dtype(amp.type), amp.other)
    with inner:
        amp.assert_equal("dtype in force where it is entered outside", torch.get_autocast_dtype(amp.type), amp.other)


@scenario(outer=named(kept=True, dropped=False))
def test_reuse_left_out(amp: Amp, outer: bool) -> None:
    """Without cache_enabled a region takes the flag in force where it is made (autocast_mode.py, __init__)."""
    with amp.region(cache_enabled=outer):
        inner = amp.region()
        with inner:
            amp.assert_equal("cache_enabled inside", torch.is_autocast_cache_enabled(), outer)
    with amp.region(cache_enabled=not outer):
        with inner:
            amp.assert_equal("cache_enabled where it is entered later", torch.is_autocast_cache_enabled(), outer)
        amp.assert_equal("cache_enabled after that", torch.is_autocast_cache_enabled(), not outer)


# ---- one region object
@scenario()
def test_one_object_around_another(amp: Amp) -> None:
    """A region object entered again inside another region restores, at each exit, what that entry found (amp.html)."""
    region = amp.region()
    with region:
        with amp.region(amp.other, cache_enabled=False):
            with region:
                amp.assert_equal("state innermost", amp.state(), (True, amp.dtype, True))
            amp.assert_equal("state between", amp.state(), (True, amp.other, False))
        amp.assert_equal("state outermost", amp.state(), (True, amp.dtype, True))
    amp.assert_equal("state after the region", amp.state(), (False, amp.default, True))


# ---- weights
# ---- several device types at once
def _state_of(name: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)


@scenario()
def test_two_device_types(amp: Amp) -> None:
    """Regions of two device types hold at once, each for its own tensors (amp.html: device_type; pytorch#57386)."""
    name = amp.elsewhere
    with torch.autocast(name, dtype=amp.other):
        amp.assert_state("of this device in the other's region", (False, amp.default, True))
        with amp.region():
            amp.assert_equal("state of this device in both regions", amp.state(), (True, amp.dtype, True))
            amp.assert_equal(f"state of {name} in both regions", _state_of(name), (True, amp.other))
            amp.assert_equal("dtype a product on this device runs in, in both", amp.probe(), amp.dtype)
            amp.assert_equal("nesting depth in both regions", amp.depth(), 2)
        with amp.region(enabled=False):
            amp.assert_equal(f"state of {name}, this device disabled", _state_of(name), (True, amp.other))
            amp.assert_equal("dtype a product on this device runs in, disabled", amp.probe(), torch.float32)
        amp.assert_equal(f"state of {name} after the inner regions", _state_of(name), (True, amp.other))
    amp.assert_equal("state of this device after both", amp.state(), (False, amp.default, True))


@scenario()
def test_two_device_types_other_way_round(amp: Amp) -> None:
    """A region of another device type inside this one's ends without a trace (autocast_mode.py, __exit__)."""
    name = amp.elsewhere
    before = _state_of(name)
    with amp.region():
        with torch.autocast(name, dtype=amp.other):
            amp.assert_equal("dtype a product on this device runs in", amp.probe(), amp.dtype)
        amp.assert_equal(f"state of {name} after its region", _state_of(name), before)
        with torch.autocast(name, enabled=False):
            amp.assert_equal(f"whether {name} is enabled", torch.is_autocast_enabled(name), False)
            amp.assert_state("while the other type is disabled", (True, amp.dtype, True))
        amp.assert_equal("state after the other type's regions", amp.state(), (True, amp.dtype, True))


@scenario(types=("cuda", "xpu", "mps", "mtia"))
def test_ops_on_two_devices(amp: Amp) -> None:
    """In regions of two types a product runs in its tensors' type's dtype (amp.html: op eligibility; pytorch#57386)."""

    def on_cpu() -> torch.dtype:
        return torch.mm(torch.ones(2, 2, device="cpu"), torch.ones(2, 2, device="cpu")).dtype

    with torch.autocast("cpu", dtype=amp.other):
        amp.assert_equal("dtypes of products in the CPU's region", (amp.probe(), on_cpu()), (torch.float32, amp.other))
        for enabled, dtype in ((True, amp.dtype), (False, torch.float32)):
            with amp.region(enabled=enabled):
                amp.assert_equal(f"dtypes, enabled={enabled} inside it", (amp.probe(), on_cpu()), (dtype, amp.other))
    with amp.region():
        amp.assert_equal("dtype of a product on the CPU in this device's region", on_cpu(), torch.float32)
        with torch.autocast("cpu", dtype=amp.other):
            got = (amp.probe(), on_cpu())
            amp.assert_equal("dtypes of products on both in both regions", got, (amp.dtype, amp.other))
            with amp.region(enabled=False):
                want = (torch.float32, amp.other)
                amp.assert_equal("dtypes with this device disabled", (amp.probe(), on_cpu()), want)
            with torch.autocast("cpu", enabled=False):
                amp.assert_equal("dtypes with the CPU disabled", (amp.probe(), on_cpu()), (amp.dtype, torch.float32))
        amp.assert_equal("dtypes after the CPU's region", (amp.probe(), on_cpu()), (amp.dtype, torch.float32))


@scenario()
def test_casts_kept_across_device_types(amp: Amp) -> None:
    """An inner region of another device type is not the outermost, so it drops no casts (autocast_mode.cpp)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)
    with amp.region():
        amp.assert_equal("casts of a weight at first", amp.casts(lambda: torch.mm(x, weight), weight), 1)
        with torch.autocast(amp.elsewhere, dtype=amp.other):
            pass
        amp.assert_equal("casts after another type's region", amp.casts(lambda: torch.mm(x, weight), weight), 0)
