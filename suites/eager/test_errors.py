"""Rule errors: a wrong argument is refused, or warned of and the region disabled, in words that name it.

Source: `__init__` of torch/amp/autocast_mode.py, and https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("errors")

UNSUPPORTED = {
    "single": torch.float32,
    "double": torch.float64,
    "whole": torch.int8,
    "complex": torch.complex64,
    "boolean": torch.bool,
}
CHECKED = ("cpu", "xpu", "mps", "mtia")
"""Device types whose regions take float16 and bfloat16 alone (torch/amp/autocast_mode.py, __init__)."""


@scenario(kind=UNSUPPORTED, types=CHECKED, dtypes="default")
def test_unsupported_dtype(amp: Amp, kind: str) -> None:
    """Any dtype but the lower precisions warns, lists those and disables the region (autocast_mode.py, __init__)."""
    dtype = UNSUPPORTED[kind]
    name = amp.type.upper()
    said = f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n{name} Autocast only"
    region = amp.assert_warns(f"a region of {dtype}", UserWarning, said, lambda: torch.autocast(amp.type, dtype=dtype))
    lists = "torch.bfloat16, torch.float16"
    amp.assert_warns(f"a region of {dtype}", UserWarning, lists, lambda: torch.autocast(amp.type, dtype=dtype))
    with region:
        amp.assert_equal("enabled in the region", torch.is_autocast_enabled(amp.type), False)
        amp.assert_equal("dtype of a product in the region", amp.probe(), torch.float32)
    amp.assert_equal("state after the region", amp.state(), (False, amp.default, True))


@scenario(types=CHECKED)
def test_unsupported_dtype_inside_a_region(amp: Amp) -> None:
    """A region that disables itself does so inside another one too, until it ends (autocast_mode.py)."""
    make = partial(torch.autocast, amp.type, dtype=torch.float32)
    with amp.region():
        with amp.assert_warns("a region of float32", UserWarning, "Disabling autocast", make):
            amp.assert_equal("dtype of a product in the inner region", amp.probe(), torch.float32)
        amp.assert_state("after the inner region", (True, amp.dtype, True))


@scenario(kind=UNSUPPORTED, dtypes="default")
def test_unsupported_dtype_disabled(amp: Amp, kind: str) -> None:
    """enabled=False takes any dtype without a warning (pytorch#96097, pytorch#100565)."""
    dtype = UNSUPPORTED[kind]
    make = partial(torch.autocast, amp.type, dtype=dtype, enabled=False)
    before = amp.state()
    with amp.assert_no_warning(f"a disabled region of {dtype}", make):
        amp.assert_equal("enabled in the region", torch.is_autocast_enabled(amp.type), False)
        amp.assert_equal("dtype of a product in the region", amp.probe(), torch.float32)
    amp.assert_equal("state after the region", amp.state(), before)


@scenario()
def test_supported_dtype_is_quiet(amp: Amp) -> None:
    """A lower precision gives no warning and enables the region (pytorch#67598, pytorch#163446)."""
    with amp.assert_no_warning(f"a region of {amp.dtype}", lambda: amp.region()):
        amp.assert_equal("enabled in the region", torch.is_autocast_enabled(amp.type), True)


@scenario(kind=["single", "double"], types=("cuda",), dtypes="default")
def test_any_dtype_where_unchecked(amp: Amp, kind: str) -> None:
    """CUDA takes any dtype; ops on the list of lower precision then run in it (autocast_mode.py, __init__)."""
    dtype = UNSUPPORTED[kind]
    with amp.assert_no_warning(f"a region of {dtype}", lambda: amp.region(dtype)):
        amp.assert_state("in the region", (True, dtype, True))


@scenario(types=("cuda",), dtypes="default")
def test_absent_hardware(amp: Amp) -> None:
    """Without CUDA a region warns and disables itself, a disabled one is quiet (autocast_mode.py; pytorch#67598)."""
    with patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: True):
        said = "CUDA is not available"
        region = amp.assert_warns("a region without CUDA", UserWarning, said, lambda: torch.autocast(amp.type))
        amp.assert_no_warning("a disabled region without CUDA", lambda: torch.autocast(amp.type, enabled=False))
    with region:
        amp.assert_equal("enabled in the region", torch.is_autocast_enabled(amp.type), False)


@scenario(types=("cuda",), dtypes="default")
def test_hardware_without_bfloat16(amp: Amp) -> None:
    """CUDA hardware without bfloat16 refuses a region of it and says what to use (autocast_mode.py, __init__)."""
    here = patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    with here, patch("torch.cuda.is_bf16_supported", lambda: False):
        said = "does not support bfloat16. Please switch dtype to float16."
        amp.assert_raises("a region", RuntimeError, said, lambda: torch.autocast(amp.type, dtype=torch.bfloat16))
        amp.assert_no_warning("a region of float16", lambda: torch.autocast(amp.type, dtype=torch.float16))


_STR = "Expected `device_type` of type `str`"
Make = Callable[[str], object]
REFUSED: dict[str, tuple[type[Exception], str, Make]] = {
    "unknown": (RuntimeError, "nosuchdevice", lambda name: torch.autocast("nosuchdevice")),
    "meta": (RuntimeError, "device_type 'meta'", lambda name: torch.autocast("meta", torch.float16)),
    "device": (ValueError, _STR, lambda name: torch.autocast(torch.device(name))),
    "nothing": (ValueError, _STR, lambda name: torch.autocast(None)),
    "number": (ValueError, _STR, lambda name: torch.autocast(0)),
    "dtype_first": (ValueError, _STR, lambda name: torch.autocast(torch.float16, name)),
    "missing": (TypeError, "'device_type'", lambda name: torch.autocast()),
    "dtype_alone": (TypeError, "'device_type'", lambda name: torch.autocast(dtype=torch.float16)),
    "class_on_function": (ValueError, _STR, lambda name: torch.autocast(lambda: 0)),
    "upper_case": (RuntimeError, "device type at start of device string", lambda name: torch.autocast(name.upper())),
    "empty": (RuntimeError, "must not be empty", lambda name: torch.autocast("")),
    "unknown_option": (TypeError, "'fast'", lambda name: torch.autocast(name, fast=True)),
    "custom_fwd": (ValueError, _STR, lambda name: torch.amp.custom_fwd(device_type=torch.device(name))),
    "custom_bwd": (ValueError, _STR, lambda name: torch.amp.custom_bwd(device_type=torch.device(name))),
    "custom_missing": (TypeError, "'device_type'", lambda name: torch.amp.custom_fwd(lambda ctx: None)),
}
"""What each refused call raises and says. `name` is the device type."""


@scenario(wrong=REFUSED, dtypes="default")
def test_refused(amp: Amp, wrong: str) -> None:
    """A wrong argument is refused by an error that names it, and the state is unchanged (autocast_mode.py)."""
    kind, text, make = REFUSED[wrong]
    with amp.region(cache_enabled=False):
        before, around = amp.state(), (amp.depth(), amp.probe())
        amp.assert_raises(f"the wrong call {wrong}", kind, text, lambda: make(amp.type))
        amp.assert_equal(f"state after the wrong call {wrong}", amp.state(), before)
        amp.assert_equal(f"depth and dtype of a product after {wrong}", (amp.depth(), amp.probe()), around)


@scenario(wrong=["enabled_second", "text"], dtypes="default")
def test_dtype_that_is_none(amp: Amp, wrong: str) -> None:
    """A dtype of a wrong type is refused at the latest on entry, and the outer state is back (rule exceptions).

    `torch.autocast(type, True)` is read as a dtype, for `enabled` comes third.
    """
    value: object = {"enabled_second": True, "text": "half"}[wrong]

    def enter() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            region = torch.autocast(amp.type, value)
        with region:
            pass

    with amp.region():
        before = amp.state()
        amp.assert_raises(f"a region with dtype {value!r}", TypeError, "must be torch.dtype", enter)
        amp.assert_equal(f"state after dtype {value!r} was refused", amp.state(), before)


@scenario(dtypes="default")
def test_index_in_the_device_type(amp: Amp) -> None:
    """A device with an index is refused or means its type, checks and all (amp.html: `Tensor.device.type`)."""
    for dtype in (amp.default, torch.float32):
        try:
            indexed, said = _enabled_and_warnings(f"{amp.type}:0", dtype)
        except (RuntimeError, ValueError):
            continue
        plain, usual = _enabled_and_warnings(amp.type, dtype)
        amp.assert_equal(f"warnings for {amp.type}:0 and {dtype}, as against {amp.type}", said, usual)
        amp.assert_equal(f"enabled for {amp.type}:0 and {dtype}, as against {amp.type}", indexed, plain)


def _enabled_and_warnings(name: str, dtype: torch.dtype) -> tuple[bool, int]:
    """Return whether a region of a device string enables autocast, and the number of its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with torch.autocast(name, dtype=dtype):
            return torch.is_autocast_enabled(name.partition(":")[0]), len(seen)


@scenario(dtypes="default")
def test_warning_names_the_caller(amp: Amp) -> None:
    """A warning about a dtype points at the line that made the region (autocast_mode.py: stacklevel=2)."""
    # CUDA takes any dtype; its warning is about the hardware.
    absent = patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: True)
    with absent if amp.type == "cuda" else nullcontext(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.autocast(amp.type, dtype=torch.float32)
    amp.assert_equal("files that the warning points at", [w.filename for w in seen], [__file__])
    amp.assert_equal("kind of the warning", [issubclass(w.category, UserWarning) for w in seen], [True])


@scenario(dtypes="default")
def test_refused_loss(amp: Amp) -> None:
    """binary_cross_entropy raises, names the safe loss and harms nothing, where it is refused (amp.html).

    Where the device type refuses no op, it runs: in float32 if that is its policy.
    """
    x, target = amp.rand(3, 2), amp.rand(3, 2)
    policy = amp.policies.get("binary_cross_entropy")
    with amp.region():
        before = amp.state()
        functions = torch.nn.functional
        for what, loss in (("the function", functions.binary_cross_entropy), ("the module", torch.nn.BCELoss())):
            if policy == "banned":
                said = "binary_cross_entropy_with_logits"
                amp.assert_raises(what, RuntimeError, said, lambda call=loss: call(x, target))
                amp.assert_raises(what, RuntimeError, "unsafe to autocast", lambda call=loss: call(x, target))
            else:
                amp.assert_equal(f"dtype of {what}", loss(x, target).dtype, torch.float32)
                low, goal = x.to(amp.dtype), target.to(amp.dtype)
                wanted = torch.float32 if policy == "upcast" else amp.dtype
                amp.assert_equal(f"dtype of {what} of low inputs", loss(low, goal).dtype, wanted)
        safe = functions.binary_cross_entropy_with_logits(x.to(amp.dtype), target)
        amp.assert_equal("dtype of the safe loss", safe.dtype, torch.float32)
        amp.assert_equal("state after the loss", amp.state(), before)
    with amp.region(enabled=False):
        amp.assert_equal("dtype in a disabled region", functions.binary_cross_entropy(x, target).dtype, torch.float32)
