"""A CUDA device: real, used where present."""

from collections.abc import Mapping
from pathlib import Path

import torch

from ampcheck.devices.base import Device
from ampcheck.spec.compilers import ANYWHERE
from ampcheck.spec.policies import closest, table


class Cuda(Device):
    """PyTorch's CUDA backend."""

    name = "cuda"
    token = "cuda"
    compilers = (*ANYWHERE, "inductor", "packaged")
    type = "cuda"
    key = "AutocastCUDA"
    refusals = (r"not implemented for '\w+'",)  # the kernel has no instance for the dtype
    deviations = Path(__file__).parent / "deviations.toml"

    def unavailable(self) -> str | None:
        if not torch.backends.cuda.is_built():
            return "this torch was built without CUDA"
        if not torch.cuda.is_available():
            return "no CUDA device was found"
        return None

    def policies(self) -> Mapping[str, str]:
        library = "miopen" if torch.version.hip else "cudnn"
        return table(self.key, closest(torch.__version__), (library,) if torch.backends.cudnn.is_available() else ())

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def describe(self) -> dict[str, str]:
        major, minor = torch.cuda.get_device_capability()
        return {
            "model": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
        }
