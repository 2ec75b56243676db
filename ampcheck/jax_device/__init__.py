"""`torch.device("jax")`: PyTorch tensors whose arithmetic JAX does.

Importing this package makes the device. float64 and int64 are what PyTorch says, so JAX's 64-bit mode is on.
"""

import torch

from ampcheck.jax_device import backend, lowerings
from ampcheck.jax_device.annotations import NAME
from ampcheck.jax_device.dispatch import install
from ampcheck.jax_device.interop.functions import from_jax, j2t_autograd, t2j, to_jax
from ampcheck.jax_device.jit.transform import Bucket, jit
from ampcheck.register import register_autocast

backend.make()
install.install()
autocast = register_autocast(NAME, base="cuda", dtypes=(torch.bfloat16, torch.float16))

__all__ = ["Bucket", "from_jax", "j2t_autograd", "jit", "lowerings", "t2j", "to_jax"]
