"""Virtual devices: fake tensors that enter the real autocast kernels of a key on a machine without the hardware.

A fake tensor has a device, a dtype and a shape but no values, so only dtypes, casts and state can be checked.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.devices.base import Device
from ampcheck.ops.describe import TensorArg
from ampcheck.torch_dtypes import DTYPES


class Virtual(Device):
    """Fake tensors of one device type."""

    has_values = False
    deviations = Path(__file__).parent / "deviations.toml"

    def __init__(self, type_: str, token: str, key: str) -> None:
        self.name = f"virtual:{type_}"
        self.token = token
        self.type = type_
        self.key = key
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._make = lru_cache(maxsize=4096)(self._empty)

    def unavailable(self) -> str | None:
        return None

    def running(self) -> AbstractContextManager[object]:
        # An op that refuses its arguments is an observation here; PyTorch would log a traceback for each.
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
        return self._mode

    def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
        # A fake tensor holds nothing that a call could change, so one per place, shape and dtype is enough.
        return self._make(arg.shape, dtype, arg.device, position)

    def _empty(self, shape: tuple[int, ...], dtype: str, device: str, position: int) -> torch.Tensor:
        with self._mode:
            return torch.empty(shape, dtype=DTYPES[dtype], device="cpu" if device == "cpu" else self.type)

    def seed(self) -> None:
        """Nothing is drawn."""

    def autocast(
        self, dtype: str | None = None, *, enabled: bool = True, cache_enabled: bool | None = None
    ) -> torch.autocast:
        # torch.autocast("cuda") disables itself where CUDA is absent; the kernels behind it are there all the same.
        with patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False):
            with patch("torch.cuda.is_bf16_supported", return_value=True):
                return super().autocast(dtype, enabled=enabled, cache_enabled=cache_enabled)


DEVICES = (
    Virtual("cuda", "vcu", "AutocastCUDA"),
    Virtual("xpu", "vxp", "AutocastXPU"),
    Virtual("mps", "vmp", "AutocastMPS"),
    Virtual("mtia", "vmt", "AutocastMTIA"),
)
