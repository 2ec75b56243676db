"""`torch.device("jax")`: PyTorch tensors whose arithmetic JAX does.

Importing this package makes the device. float64 and int64 are what PyTorch says, so JAX's 64-bit mode is on.
"""

from __future__ import annotations

import torch

from ampcheck.jax_device import backend, install, lowerings

backend.make([torch.bfloat16, torch.float16])
install.install()

__all__ = ["lowerings"]
