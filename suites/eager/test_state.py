"""Rule state: the state functions read and set what a region uses and refuse arguments of a wrong type.

These are torch.is_autocast_enabled, torch.set_autocast_enabled, the same for dtype and cache, and the nesting count.
Source: torch/csrc/autograd/init.cpp.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from packaging.version import Version

from ampcheck.checks.sweep import TRANSITIONS
from ampcheck.observe.isolation import reset
from ampcheck.programs.regions import Model, OnDevices, compare
from ampcheck.runner.suite import Amp, DeviceAmp, scenario

pytestmark = pytest.mark.rule("state")

TYPES = ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "xla", "hpu", "ipu", "privateuseone")
"""Every device type that has an autocast state (autocast_mode.h, is_autocast_available)."""


@scenario()
def test_enabled_round_trip(amp: Amp) -> None:
    """set_autocast_enabled(type, bool) sets what is_autocast_enabled(type) reads, and ops obey it (init.cpp)."""
    torch.set_autocast_dtype(amp.type, amp.dtype)
    for enabled in (True, False, False, True):
        torch.set_autocast_enabled(amp.type, enabled)
        amp.assert_equal(f"enabled after setting {enabled}", torch.is_autocast_enabled(amp.type), enabled)
        want = amp.dtype if enabled else torch.float32
        amp.assert_equal(f"dtype of a product after setting {enabled}", amp.probe(), want)


@scenario()
def test_dtype_round_trip(amp: Amp) -> None:
    """set_autocast_dtype sets what get_autocast_dtype reads, and ops obey it (init.cpp)."""
    torch.set_autocast_enabled(amp.type, True)
    for dtype in (amp.dtype, amp.other, amp.dtype):
        torch.set_autocast_dtype(amp.type, dtype)
        amp.assert_equal(f"dtype after setting {dtype}", torch.get_autocast_dtype(amp.type), dtype)
        amp.assert_equal(f"dtype of a product after setting {dtype}", amp.probe(), dtype)


def other_types(amp: Amp) -> list[str]:
    """Every device type but the region's own, whose second name PrivateUse1's may be."""
    own = {amp.type, *(["privateuseone"] if amp.type == torch._C._get_privateuse1_backend_name() else [])}
    return [name for name in TYPES if name not in own]


@scenario()
def test_device_types_are_independent(amp: Amp) -> None:
    """Enabled and dtype belong to one device type (autocast_mode.cpp: a key and an array element for each)."""
    others = other_types(amp)

    def rest() -> list[tuple[bool, torch.dtype]]:
        return [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in others]

    before = rest()
    torch.set_autocast_enabled(amp.type, True)
    amp.assert_equal("the other types after enabling this one", rest(), before)
    torch.set_autocast_dtype(amp.type, amp.other)
    amp.assert_equal("the other types after setting this one's dtype", rest(), before)
    with amp.region():
        amp.assert_equal("the other types in a region", rest(), before)
    amp.assert_equal("the other types after a region", rest(), before)


@scenario()
def test_others_leave_this_alone(amp: Amp) -> None:
    """Settings of another device type do not touch this one (autocast_mode.cpp)."""
    for name in other_types(amp):
        before, dtype = amp.state(), torch.get_autocast_dtype(name)
        torch.set_autocast_enabled(name, True)
        torch.set_autocast_dtype(name, torch.float32)
        try:
            amp.assert_state(f"while {name} is enabled", before)
        finally:
            torch.set_autocast_enabled(name, False)
            torch.set_autocast_dtype(name, dtype)


@scenario(types=("cuda",))
def test_without_a_device_type(amp: Amp) -> None:
    """Without a device type the functions speak of CUDA (init.cpp: the signature kept for that use).

    Since torch 2.14 they speak of the accelerator (pytorch#191916): where a PrivateUse1 backend is loaded, of that one.
    """
    accelerator = torch.accelerator.current_accelerator() if Version(torch.__version__) >= Version("2.14") else None
    meant = accelerator.type if accelerator else "cuda"
    for enabled in (True, False):
        torch.set_autocast_enabled(enabled)
        amp.assert_equal(f"is_autocast_enabled({meant!r})", torch.is_autocast_enabled(meant), enabled)
        amp.assert_equal("is_autocast_enabled()", torch.is_autocast_enabled(), enabled)
    with amp.region() if meant == amp.type else torch.autocast(meant):
        amp.assert_equal("is_autocast_enabled() in a region", torch.is_autocast_enabled(), True)
        with amp.region(enabled=False) if meant == amp.type else torch.autocast(meant, enabled=False):
            amp.assert_equal("is_autocast_enabled() in a disabled region", torch.is_autocast_enabled(), False)


@scenario()
def test_depth(amp: Amp) -> None:
    """Each region is one level, and the functions return the new depth (autocast_mode.cpp, increment_nesting)."""

    def depth() -> int:
        torch.autocast_increment_nesting()
        return torch.autocast_decrement_nesting()

    amp.assert_equal("depth outside", depth(), 0)
    amp.assert_equal("what incrementing returns", torch.autocast_increment_nesting(), 1)
    amp.assert_equal("what decrementing returns", torch.autocast_decrement_nesting(), 0)
    with amp.region():
        amp.assert_equal("depth in a region", depth(), 1)
        with amp.region(enabled=False), amp.region():
            amp.assert_equal("depth in three regions", depth(), 3)
        amp.assert_equal("depth after two of them", depth(), 1)
    amp.assert_equal("depth afterwards", depth(), 0)


Call = Callable[[str], object]
WRONG: dict[str, tuple[str, Call]] = {
    "read_number": ("must be str, not int", lambda name: torch.is_autocast_enabled(1)),
    "read_nothing": ("must be str, not NoneType", lambda name: torch.is_autocast_enabled(None)),
    "read_device": ("must be str, not torch.device", lambda name: torch.is_autocast_enabled(torch.device(name))),
    "read_unknown": ("nosuchdevice", lambda name: torch.is_autocast_enabled("nosuchdevice")),
    "read_meta": ("unknown device type for autocast", lambda name: torch.is_autocast_enabled("meta")),
    "set_missing": ("must be bool, not str", lambda name: torch.set_autocast_enabled(name)),
    "set_none": ("set_autocast_enabled", lambda name: torch.set_autocast_enabled()),
    "set_number": ("must be bool, not int", lambda name: torch.set_autocast_enabled(name, 1)),
    "set_nothing": ("must be bool, not NoneType", lambda name: torch.set_autocast_enabled(name, None)),
    "set_swapped": ("must be str, not bool", lambda name: torch.set_autocast_enabled(True, name)),
    "set_device": ("must be str, not torch.device", lambda name: torch.set_autocast_enabled(torch.device(name), True)),
    "set_unknown": ("nosuchdevice", lambda name: torch.set_autocast_enabled("nosuchdevice", True)),
    "set_meta": ("unknown device type for autocast", lambda name: torch.set_autocast_enabled("meta", True)),
    "set_one_number": ("must be bool, not int", lambda name: torch.set_autocast_enabled(1)),
    "set_three": ("set_autocast_enabled", lambda name: torch.set_autocast_enabled(name, True, True)),
    "dtype_missing": ('"device_type"', lambda name: torch.get_autocast_dtype()),
    "dtype_nothing": ("must be str, not NoneType", lambda name: torch.get_autocast_dtype(None)),
    "dtype_device": ("must be str, not torch.device", lambda name: torch.get_autocast_dtype(torch.device(name))),
    "dtype_unknown": ("nosuchdevice", lambda name: torch.get_autocast_dtype("nosuchdevice")),
    "setdtype_text": ("must be torch.dtype, not str", lambda name: torch.set_autocast_dtype(name, "half")),
    "setdtype_nothing": ("must be torch.dtype, not NoneType", lambda name: torch.set_autocast_dtype(name, None)),
    "setdtype_missing": ('"dtype"', lambda name: torch.set_autocast_dtype(name)),
    "setdtype_swapped": ("must be str, not torch.dtype", lambda name: torch.set_autocast_dtype(torch.float16, name)),
    "setdtype_unknown": ("nosuchdevice", lambda name: torch.set_autocast_dtype("nosuchdevice", torch.float16)),
    "reuse_number": ("must be a bool", lambda name: torch.set_autocast_cache_enabled(1)),
    "reuse_nothing": ("must be a bool", lambda name: torch.set_autocast_cache_enabled(None)),
    "reuse_missing": ("one argument", lambda name: torch.set_autocast_cache_enabled()),
    "readreuse_extra": ("no arguments", lambda name: torch.is_autocast_cache_enabled(1)),
    "clear_extra": ("no arguments", lambda name: torch.clear_autocast_cache(1)),
    "depth_extra": ("no arguments", lambda name: torch.autocast_increment_nesting(1)),
    "available_number": ("must be str, not int", lambda name: torch.amp.is_autocast_available(1)),
    "available_nothing": ("must be str, not NoneType", lambda name: torch.amp.is_autocast_available(None)),
    "available_device": ("not torch.device", lambda name: torch.amp.is_autocast_available(torch.device(name))),
    "available_missing": ("device_type", lambda name: torch.amp.is_autocast_available()),
    "available_unknown": ("nosuchdevice", lambda name: torch.amp.is_autocast_available("nosuchdevice")),
}
"""What the error of each wrong call says. `name` is the device type."""
UNKNOWN = ("nosuchdevice", "unknown device type for autocast")
"""What a RuntimeError says; the others are TypeErrors."""


@scenario(wrong=WRONG, dtypes="default")
def test_wrong_argument(amp: Amp, wrong: str) -> None:
    """A wrong argument is refused by an error that names it, and the state is unchanged (init.cpp)."""
    text, call = WRONG[wrong]
    kind = RuntimeError if text in UNKNOWN else TypeError
    with amp.region():
        before = amp.state()
        amp.assert_raises(f"the wrong call {wrong}", kind, text, lambda: call(amp.type))
        amp.assert_equal(f"state after the wrong call {wrong}", amp.state(), before)


FLAGS = {"": None, "on": True, "off": False}


def _walk(side: Any, amp: DeviceAmp, cell: Sequence[str]) -> None:
    """Bring a side to a state, make a step there, and leave all regions. It notes the state after each."""
    enabled, dtype, cache, depth, step = cell
    kind, dtypes = amp.type, {"": None, "low": amp.dtype, "other": amp.other}
    inside: list[Any] = []

    def enter(enabled: bool, dtype: torch.dtype | None, cache: bool | None) -> None:
        inside.append(side.autocast(kind, dtype, enabled, cache))
        inside[-1].__enter__()

    def leave(error: Exception | None = None) -> None:
        inside.pop().__exit__(type(error) if error else None, error, None)

    for _ in range(int(depth)):
        enter(True, amp.dtype, None)
    side.set_enabled(kind, enabled == "on")
    side.set_dtype(kind, dtypes[dtype])
    side.set_cache_enabled(cache == "on")
    what, *options = step.split("_")
    if what == "enter":
        enter(options[0] == "on", dtypes[options[1]], FLAGS[options[2]])
    elif what in ("exit", "raise"):
        leave(ValueError("planned") if what == "raise" else None)
    elif what == "clear":
        side.clear_cache()
    elif what in ("enable", "disable"):
        side.set_enabled(kind, what == "enable")
    elif what == "set":
        side.set_dtype(kind, dtypes[options[0]])
    else:
        side.set_cache_enabled(FLAGS[options[0]])
    while inside:
        leave()


@scenario(dtypes="default")
def test_every_transition(amp: DeviceAmp) -> None:
    """Each step from each state leads to the state that the model says, and its end back (spec/state.py)."""
    for cell in TRANSITIONS.reachable:
        reset({amp.type: amp.device.default_amp})
        sides = OnDevices([amp.device]), Model([amp.device])
        found = compare(*(side.run(lambda side, cell=cell: _walk(side, amp, cell)) for side in sides))
        amp.check(found is None, f"states of {' '.join(cell)}", found or "are the model's")
