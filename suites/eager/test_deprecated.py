"""Rule deprecated: a deprecated spelling warns, names its replacement and does the same.

The spellings are torch.cpu.amp.autocast, torch.cuda.amp.autocast, custom_fwd and custom_bwd of torch.cuda.amp, and
state functions without a device type, such as torch.is_autocast_cpu_enabled. Source: the warnings of
https://docs.pytorch.org/docs/2.13/amp.html and TORCH_WARN_DEPRECATION in torch/csrc/autograd/init.cpp.
"""

from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("deprecated")

# torch.cuda.amp.autocast switches itself off where CUDA is absent; a virtual device replaces it.
_CUDA_IS_THERE = "torch.cuda.amp.common.amp_definitely_not_available"


def _deprecated_region(amp: Amp, *args: object, **kwargs: object) -> torch.autocast:
    """Return a region made by the device type's deprecated class; a missing warning is noted."""
    module = getattr(torch, amp.type).amp
    said = f"`torch.{amp.type}.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('{amp.type}'"
    with patch(_CUDA_IS_THERE, lambda: False), patch("torch.cuda.is_bf16_supported", lambda: True):
        return amp.assert_warns("the deprecated class", FutureWarning, said, partial(module.autocast, *args, **kwargs))


@scenario(types=("cpu", "cuda"))
def test_class(amp: Amp) -> None:
    """torch.<type>.amp.autocast warns, names torch.amp.autocast and makes the same region (amp.html, warning)."""
    before = amp.state()
    with _deprecated_region(amp, dtype=amp.dtype):
        amp.assert_state("in the region", (True, amp.dtype, True))
    amp.assert_equal("state after the region", amp.state(), before)


@scenario(types=("cpu", "cuda"))
def test_class_options(amp: Amp) -> None:
    """enabled, dtype and cache_enabled of the deprecated class act as in torch.autocast (amp.html)."""
    with amp.region():
        with _deprecated_region(amp, False):
            amp.assert_equal("dtype of a product with enabled=False", amp.probe(), torch.float32)
        with _deprecated_region(amp, True, amp.other, False):
            amp.assert_equal("state with all three by place", amp.state(), (True, amp.other, False))
        with _deprecated_region(amp, enabled=False, dtype=amp.other, cache_enabled=False):
            amp.assert_equal("state with all three by name", amp.state(), (False, amp.other, False))
        amp.assert_equal("state afterwards", amp.state(), (True, amp.dtype, True))


@scenario(types=("cpu", "cuda"), dtypes="default")
def test_class_default(amp: Amp) -> None:
    """Without options it is enabled in the device type's default dtype (amp.html#torch.cuda.amp.autocast)."""
    with _deprecated_region(amp):
        amp.assert_equal("state in the region", amp.state(), (True, amp.default, True))


@scenario(dtypes="default")
def test_replacement_is_quiet(amp: Amp) -> None:
    """The spellings that the warnings name give none (amp.html, warning)."""

    def use() -> None:
        with amp.region():
            torch.set_autocast_enabled(amp.type, torch.is_autocast_enabled(amp.type))
            torch.set_autocast_dtype(amp.type, torch.get_autocast_dtype(amp.type))
        torch.amp.custom_fwd(lambda ctx: None, device_type=amp.type)
        torch.amp.custom_bwd(lambda ctx: None, device_type=amp.type)

    amp.assert_no_warning("the current spellings", use)


def _check_functions(amp: Amp, old: str, new: str) -> None:
    """Note which of the four functions of a device type, `old` in their names, differ from those that take `new`."""
    before = torch.is_autocast_enabled(new), torch.get_autocast_dtype(new)
    try:
        if old != "gpu":
            for enabled in (True, False):
                name = f"set_autocast_{old}_enabled"
                said = f"{name}(enabled) is deprecated. Please use torch.set_autocast_enabled('{new}'"
                setter = getattr(torch, name)
                amp.assert_warns(name, DeprecationWarning, said, partial(setter, enabled))
                amp.assert_equal(f"enabled after {name}", torch.is_autocast_enabled(new), enabled)
                said = f"torch.is_autocast_{old}_enabled() is deprecated. Please use torch.is_autocast_enabled('{new}')"
                getter = getattr(torch, f"is_autocast_{old}_enabled")
                got = amp.assert_warns(f"is_autocast_{old}_enabled", DeprecationWarning, said, getter)
                amp.assert_equal(f"what is_autocast_{old}_enabled reads", got, enabled)
            amp.assert_raises(f"set_autocast_{old}_enabled(1)", TypeError, "must be a bool", lambda: setter(1))
        for dtype in (torch.bfloat16, torch.float16):
            said = f"set_autocast_{old}_dtype(dtype) is deprecated. Please use torch.set_autocast_dtype('{new}', dtype)"
            set_dtype = getattr(torch, f"set_autocast_{old}_dtype")
            amp.assert_warns(f"set_autocast_{old}_dtype", DeprecationWarning, said, lambda s=set_dtype, d=dtype: s(d))
            amp.assert_equal(f"dtype after set_autocast_{old}_dtype", torch.get_autocast_dtype(new), dtype)
            said = f"torch.get_autocast_{old}_dtype() is deprecated. Please use torch.get_autocast_dtype('{new}')"
            name = f"get_autocast_{old}_dtype"
            got = amp.assert_warns(name, DeprecationWarning, said, getattr(torch, name))
            amp.assert_equal(f"what {name} reads", got, dtype)
        amp.assert_raises(f"set_autocast_{old}_dtype(3)", TypeError, "must be a torch.dtype", lambda: set_dtype(3))
    finally:
        torch.set_autocast_enabled(new, before[0])
        torch.set_autocast_dtype(new, before[1])


@scenario(types=("cpu", "cuda"), dtypes="default")
def test_functions(amp: Amp) -> None:
    """torch.is_autocast_cpu_enabled, torch.get_autocast_gpu_dtype and the like (init.cpp: TORCH_WARN_DEPRECATION)."""
    _check_functions(amp, "gpu" if amp.type == "cuda" else amp.type, amp.type)


@scenario(name=["xla", "ipu"], types=("cpu",), dtypes="default")
def test_functions_of(amp: Amp, name: str) -> None:
    """The functions of XLA and IPU need no device (init.cpp: TORCH_WARN_DEPRECATION)."""
    _check_functions(amp, name, name)


@scenario(types=("cuda",))
def test_custom_functions(amp: Amp) -> None:
    """torch.cuda.amp.custom_fwd and custom_bwd warn and name the device type (amp.html#torch.cuda.amp.custom_fwd).

    Behaviour is that of torch.amp.custom_fwd: backward runs in the autocast state forward ran in.
    """
    ctx = SimpleNamespace()
    said = "`torch.cuda.amp.{}(args...)` is deprecated. Please use `torch.amp.{}(args..., device_type='cuda')`"
    decorated = []
    for name, old in (("custom_fwd", torch.cuda.amp.custom_fwd), ("custom_bwd", torch.cuda.amp.custom_bwd)):
        make = partial(old, lambda ctx: amp.probe())
        decorated.append(amp.assert_warns(name, FutureWarning, said.format(name, name), make))
    forward, backward = decorated
    with amp.region():
        amp.assert_equal("dtype of a product in forward", forward(ctx), amp.dtype)
    with patch(_CUDA_IS_THERE, lambda: False), patch("torch.cuda.is_bf16_supported", lambda: True):
        amp.assert_equal("dtype of a product in backward, outside", backward(ctx), amp.dtype)
        amp.assert_equal("dtype of a product in forward, outside", forward(ctx), torch.float32)
        with amp.region():
            amp.assert_equal("dtype of a product in backward, inside", backward(ctx), torch.float32)


@scenario(types=("cuda",))
def test_custom_forward_that_casts(amp: Amp) -> None:
    """cast_inputs casts eligible tensors and disables autocast (amp.html#torch.cuda.amp.custom_fwd)."""
    x, whole = amp.rand(2, 2, dtype=amp.dtype), amp.rand(2, 2, dtype=torch.int64)
    make = partial(torch.cuda.amp.custom_fwd, cast_inputs=torch.float32)
    decorate = amp.assert_warns("custom_fwd(cast_inputs=)", FutureWarning, "deprecated", make)
    decorated = decorate(lambda ctx, x, whole: (x.dtype, whole.dtype, amp.probe()))
    with amp.region():
        got = decorated(SimpleNamespace(), x, whole)
        wanted = (torch.float32, torch.int64, torch.float32)
        amp.assert_equal("dtypes inside a region: low input, int64 input, a product", got, wanted)
    got = decorated(SimpleNamespace(), x, whole)
    amp.assert_equal("dtypes outside a region: the same", got, (amp.dtype, torch.int64, torch.float32))
