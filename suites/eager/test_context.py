"""Rule context: a `with` statement sets enabled, dtype and cache for its body and restores all three afterwards.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, and `__enter__` and `__exit__` of
torch/amp/autocast_mode.py.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("context")


@scenario()
def test_restores_on_exit(amp: Amp) -> None:
    """A with statement enables autocast for its body alone (amp.html#torch.autocast)."""
    before, depth = amp.state(), amp.depth()
    with amp.region():
        amp.assert_state("inside the region", (True, amp.dtype, True), depth + 1)
    amp.assert_state("after the region", before, depth)


@scenario(
    outer=named(in_on=True, in_off=False),
    enabled=named(on=True, off=False),
    cache_enabled=named(kept=True, dropped=False),
)
def test_restores_all_three_parts(amp: Amp, outer: bool, enabled: bool, cache_enabled: bool) -> None:
    """Enabled, dtype and cache_enabled are the region's inside and the former ones after it (autocast_mode.py)."""
    torch.set_autocast_enabled(amp.type, outer)
    torch.set_autocast_dtype(amp.type, amp.other)
    torch.set_autocast_cache_enabled(not cache_enabled)
    before = amp.state()
    with amp.region(enabled=enabled, cache_enabled=cache_enabled):
        amp.assert_state("inside the region", (enabled, amp.dtype, cache_enabled))
    amp.assert_equal("state after the region", amp.state(), before)
    amp.assert_equal("dtype a product runs in after it", amp.probe(), amp.other if outer else torch.float32)


@scenario()
def test_enter_returns_the_region(amp: Amp) -> None:
    """`with autocast(...) as region` gives the region itself (autocast_mode.py, __enter__)."""
    region = amp.region()
    with region as entered:
        amp.assert_equal("whether __enter__ returned the region", entered is region, True)


@scenario()
def test_construction_changes_nothing(amp: Amp) -> None:
    """A region that is made and not entered has no effect (autocast_mode.py: the state is set in __enter__)."""
    before = amp.state()
    regions = [amp.region(), amp.region(amp.other, cache_enabled=False), amp.region(enabled=False)]
    amp.assert_state("after making regions", before)
    with amp.region():
        regions += [amp.region(enabled=False), amp.region(amp.other)]
        amp.assert_equal("state inside a region after making others", amp.state(), (True, amp.dtype, True))
        del regions
        amp.assert_equal("state after they are gone", amp.state(), (True, amp.dtype, True))


@scenario()
def test_used_again_after_its_end(amp: Amp) -> None:
    """A region object may be entered again after it was left (autocast_mode.py: __init__ fixes options only)."""
    region = amp.region(cache_enabled=False)
    for time in range(3):
        before = amp.state()
        with region:
            amp.assert_state(f"inside, time {time}", (True, amp.dtype, False))
        amp.assert_equal(f"state after, time {time}", amp.state(), before)


@scenario()
def test_options_by_keyword(amp: Amp) -> None:
    """Every argument has the name it has in the documentation (amp.html#torch.autocast)."""
    torch.set_autocast_dtype(amp.type, amp.other)
    region = torch.autocast(device_type=amp.type, dtype=amp.dtype, enabled=False, cache_enabled=False)
    with region:
        amp.assert_equal("state inside the region", amp.state(), (False, amp.dtype, False))
    with torch.autocast(cache_enabled=False, enabled=False, dtype=amp.dtype, device_type=amp.type):
        amp.assert_equal("state with the arguments in another order", amp.state(), (False, amp.dtype, False))


@scenario()
def test_results_outlive_the_region(amp: Amp) -> None:
    """A tensor made in a region keeps its dtype after it (amp.html#torch.autocast, the example of f_float16)."""
    with amp.region():
        low = torch.mm(amp.rand(2, 2), amp.rand(2, 2))
    amp.assert_equal("dtype of the result after the region", low.dtype, amp.dtype)
    amp.assert_equal("dtype of a product after .float()", torch.mm(amp.rand(2, 2), low.float()).dtype, torch.float32)
