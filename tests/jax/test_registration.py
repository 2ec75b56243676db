"""An overload of the device has one kernel and one lowering."""

import pytest

from ampcheck.jax_device.dispatch.special import SPECIAL, kernel
from ampcheck.jax_device.lowering import OWN, lower


def test_a_second_kernel_is_refused() -> None:
    before = SPECIAL["as_strided_"]
    with pytest.raises(ValueError, match=r"^as_strided_ has two kernels$"):
        kernel("as_strided_")(lambda *_: None)
    assert SPECIAL["as_strided_"] is before


def test_a_second_lowering_is_refused() -> None:
    before = OWN["mm"]
    with pytest.raises(ValueError, match=r"^mm has two lowerings$"):
        lower("mm")(lambda a, b: a)
    assert OWN["mm"] is before
