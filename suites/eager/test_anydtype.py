"""Rule anydtype: whatever dtype a setter is given, each op follows its policy with it, and nothing else changes.

`torch.autocast` warns of a dtype that the device type does not support and disables the region, except on CUDA;
`torch.set_autocast_dtype` takes any. An op that casts to the dtype then does what it does with tensors cast to it by
hand, errors included; every other op does what it does in a region of a lower precision. Sources: `__init__` of
torch/amp/autocast_mode.py, torch/csrc/autograd/init.cpp, and aten/src/ATen/autocast_mode.h for what a cast is.

The reference is the same op, outside of every region, on tensors with the casts that the policy tables prescribe.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from ampcheck.runner.suite import Amp, Product, scenario

pytestmark = pytest.mark.rule("anydtype")

DTYPES = {
    "half": torch.float16,
    "brain": torch.bfloat16,
    "single": torch.float32,
    "double": torch.float64,
    "eight_bits": torch.float8_e4m3fn,
    "whole": torch.int8,
    "unsigned": torch.uint16,
    "boolean": torch.bool,
    "complex": torch.complex64,
    "complex_half": torch.complex32,
    "quantized": torch.qint8,
}
GIVEN = {"wide": torch.float32, "low": torch.bfloat16, "double": torch.float64, "whole": torch.int32}
OPS: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "product": ("mm", torch.mm),
    "loss": ("huber_loss", torch.nn.functional.huber_loss),
    "joined": ("cat", lambda x, y: torch.cat([x, y])),
    "shares": ("softmax.int", lambda x, y: torch.softmax(x, -1)),
    "larger": ("maximum", torch.maximum),
}
"""An op for each policy that a device type may have, and one without any; their overloads say which they have."""
PARTS = {"dtype": tuple(DTYPES), "op": tuple(OPS), "given": tuple(GIVEN)}
SETTERS = Product({"setter": ("region", "region_off", "set", "set_then_region"), **PARTS})
LEGACY = Product({"dtype": tuple(DTYPES), "op": ("product", "joined")})
OWN = {"cpu": "cpu", "cuda": "gpu"}
"""How the setter of a device type's own is called: `torch.set_autocast_cpu_dtype`."""


@contextmanager
def _put(amp: Amp, setter: str, dtype: torch.dtype) -> Iterator[bool]:
    """Set a dtype for the body, and give whether autocast is to be enabled there."""
    # Where CUDA is absent a region of it disables itself, whatever the dtype.
    here = patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    modern = patch("torch.cuda.is_bf16_supported", lambda *args: True)
    before = torch.get_autocast_dtype(amp.type)
    try:
        with warnings.catch_warnings(record=True) as seen, here, modern:
            warnings.simplefilter("always")
            if setter == "legacy":
                getattr(torch, f"set_autocast_{OWN[amp.type]}_dtype")(dtype)
            elif setter.startswith("set"):
                torch.set_autocast_dtype(amp.type, dtype)
            given = None if setter == "set_then_region" else dtype
            region = torch.autocast(amp.type, dtype=given, enabled=setter != "region_off")
        if "region" not in setter:
            torch.set_autocast_enabled(amp.type, True)
            yield True
            return
        supported = amp.supports(dtype)
        said = [str(warning.message) for warning in seen if "Disabling autocast" in str(warning.message)]
        want = int(not supported and setter != "region_off")
        amp.assert_equal("number of warnings that autocast is disabled", len(said), want)
        with region:
            yield supported and setter != "region_off"
        amp.assert_equal("whether autocast is enabled after the region", torch.is_autocast_enabled(amp.type), False)
    finally:
        torch.set_autocast_enabled(amp.type, False)
        torch.set_autocast_dtype(amp.type, before)


def _wanted(amp: Amp, overload: str, dtype: torch.dtype, given: torch.dtype) -> torch.dtype:
    """Return the dtype that an op of two tensors of a dtype runs in, by its policy."""
    eligible = given.is_floating_point and given != torch.float64
    policy = amp.policies.get(overload, "")
    wide = policy in ("upcast", "optdtype")
    return given if not eligible else dtype if policy == "downcast" else torch.float32 if wide else given


def _outcome(call: Callable[..., object], *given: torch.Tensor) -> object:
    """Return the dtype of a result, or the class and the first line of an error."""
    try:
        return getattr(call(*given), "dtype", None)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]


def _check(amp: Amp, setter: str, dtype: str, op: str, given: str) -> None:
    """Compare an op while a dtype is set with the op on tensors cast by hand."""
    wanted, (overload, function) = DTYPES[dtype], OPS[op]
    made = [amp.rand(2, 2).to(GIVEN[given]) for _ in range(2)]
    to = _wanted(amp, overload, wanted, GIVEN[given])
    by_hand = _outcome(lambda: function(*(tensor.to(to) for tensor in made)))
    outside = _outcome(function, *made)
    with _put(amp, setter, wanted) as enabled:
        amp.assert_equal("whether autocast is enabled", torch.is_autocast_enabled(amp.type), enabled)
        amp.assert_equal("dtype that is set", torch.get_autocast_dtype(amp.type), wanted)
        amp.assert_equal(f"what {overload} gives", _outcome(function, *made), by_hand if enabled else outside)
        amp.assert_equal("dtypes of what it was given", [each.dtype for each in made], [GIVEN[given]] * 2)
    amp.assert_equal(f"what {overload} gives afterwards", _outcome(function, *made), outside)


@scenario(SETTERS, dtypes="default")
def test_setter(amp: Amp, setter: str, dtype: str, op: str, given: str) -> None:
    """An op follows its policy under any dtype that a region or a setter takes (autocast_mode.py, init.cpp)."""
    _check(amp, setter, dtype, op, given)


@scenario(LEGACY, types=tuple(OWN), dtypes="default")
def test_setter_of_one_type(amp: Amp, dtype: str, op: str) -> None:
    """A deprecated setter of one device type does what `torch.set_autocast_dtype` does (autograd/init.cpp)."""
    _check(amp, "legacy", dtype, op, "wide")
