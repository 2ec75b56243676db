"""Virtual devices: fake tensors that enter the real autocast kernels of a key on a machine without the hardware.

A fake tensor has a device, a dtype and a shape but no values, so only dtypes, casts and state can be checked.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from unittest.mock import patch

import torch
from torch.cuda.amp import common

from ampcheck.devices.base import Device
from ampcheck.devices.virtual import graphs
from ampcheck.observe.torch_private import (
    FakeTensorMode,
    can_fuse_on_gpu,
    get_cudnn_enabled,
    set_cudnn_enabled,
    set_fuse_on_gpu,
)
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.case import ANYWHERE
from ampcheck.spec.torch_dtypes import DTYPES

_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


class Virtual(Device):
    """Fake tensors of one device type."""

    has_values = False
    one_region_dtype = True  # what they compute by is the same for both
    compilers = ANYWHERE
    database = False  # fake tensors cannot run much of it
    deviations = Path(__file__).parent / "deviations.toml"

    # Some kernels ask for the hardware: of RNNs, of losses, of convolutions by name, of attention.
    refusals = (
        r"^Torch not compiled with CUDA enabled$",
        r"^Could not run 'aten::empty_strided' with arguments from the",
        r"An unexpected device type was provided",
    )

    def __init__(self, type_: str, token: str, key: str) -> None:
        self.name = f"virtual:{type_}"
        self.token = token
        self.type = type_
        self.key = key
        self._make = lru_cache(maxsize=4096)(self._empty)

    @cached_property
    def _mode(self) -> FakeTensorMode:
        return FakeTensorMode(allow_non_fake_inputs=True)

    def unavailable(self) -> str | None:
        return None

    def activate(self) -> AbstractContextManager[object]:
        # An op that refuses its arguments is an observation here; PyTorch would log a traceback for each.
        if _LOGGER.level != logging.CRITICAL:  # setting it makes every logger forget what it is to say
            _LOGGER.setLevel(logging.CRITICAL)
        return self._without_driver() if self.type == "cuda" else self._mode

    @contextmanager
    def _without_driver(self) -> Iterator[None]:
        """Enter the device, without the calls that ask the driver about absent hardware.

        That is cuDNN, and TorchScript's fusion, of a build that has CUDA.
        """
        cudnn, fuses = get_cudnn_enabled(), can_fuse_on_gpu()
        set_cudnn_enabled(False)
        set_fuse_on_gpu(False)
        try:
            with self._mode:
                yield
        finally:
            set_cudnn_enabled(cudnn)
            set_fuse_on_gpu(fuses)

    def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
        # A fake tensor holds nothing that a call could change, so one per place, shape and dtype is enough.
        return self._make(arg.shape, dtype, arg.device, position)

    def _empty(self, shape: tuple[int, ...], dtype: str, device: str, position: int) -> torch.Tensor:
        with torch.inference_mode(False), self._mode:  # a tensor of inference mode would stay one
            return torch.empty(shape, dtype=DTYPES[dtype], device="cpu" if device == "cpu" else self.type)

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        graphs.allow(self.type)
        return super().leaf(tensor)

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        graphs.backward(outputs, gradients)

    def seed(self) -> None:
        """Do nothing: no random number is drawn."""

    def autocast(
        self, dtype: str | None = None, *, enabled: bool = True, cache_enabled: bool | None = None
    ) -> torch.autocast:
        if self.type != "cuda":
            return super().autocast(dtype, enabled=enabled, cache_enabled=cache_enabled)
        # torch.autocast("cuda") disables itself where CUDA is absent; the kernels behind it are there all the same.
        there = patch.object(common, "amp_definitely_not_available", lambda: False)
        with there, patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True):
            return super().autocast(dtype, enabled=enabled, cache_enabled=cache_enabled)


DEVICES = (
    Virtual("cuda", "vcu", "AutocastCUDA"),
    Virtual("xpu", "vxp", "AutocastXPU"),
    Virtual("mps", "vmp", "AutocastMPS"),
    Virtual("mtia", "vmt", "AutocastMTIA"),
)
