"""The device virtual:npu: fake tensors that enter the autocast kernels of torch_npu; docs/your_backend.md."""

import warnings
from collections.abc import Mapping

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its sources, and of the hardware that is not there
    import torch_npu  # noqa: F401

from ampcheck.devices.virtual import Virtual
from ampcheck.spec.policies import closest, table

# torch.autocast asks, and the answer comes from the hardware.
torch.npu.is_bf16_supported = lambda: True


class Npu(Virtual):
    """Fake tensors of torch_npu. It promises nothing in writing; AutocastXPU's list is what it is compared with."""

    compilers = ()
    without_autograd = "torch_npu is not imported with its vendor's libraries, and its backward passes ask for them"

    def policies(self) -> Mapping[str, str]:
        return table("AutocastXPU", closest(torch.__version__))


DEVICES = (Npu("npu", "vnp", "AutocastPrivateUse1"),)
