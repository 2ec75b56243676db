"""The device virtual:tpu: fake tensors that enter the autocast kernels of torch_tpu, where there is no TPU."""

from collections.abc import Mapping

import torch
from torch_tpu import _loader

from ampcheck.devices.virtual import Virtual
from ampcheck.spec.policies import closest, table

_loader._init_device("tpu")  # what PyTorch's autoload does where a TPU is found


class Tpu(Virtual):
    """Fake tensors of torch_tpu. It promises nothing in writing; AutocastCPU's list is what it is compared with."""

    compilers = ()
    without_autograd = "its backward passes ask for hardware"

    def policies(self) -> Mapping[str, str]:
        return table("AutocastCPU", closest(torch.__version__))


DEVICES = (Tpu("tpu", "vtp", "AutocastPrivateUse1"),)
