"""The CPU."""

import platform
from pathlib import Path

import torch

from ampcheck.devices.base import Device
from ampcheck.spec.executors import ANYWHERE


class Cpu(Device):
    """PyTorch's CPU backend; always there."""

    name = "cpu"
    token = "cpu"
    compilers = (*ANYWHERE, "inductor")
    type = "cpu"
    key = "AutocastCPU"
    default_amp = "bf16"
    deviations = Path(__file__).parent / "deviations.toml"

    def unavailable(self) -> str | None:
        return None

    def seed(self) -> None:
        torch.default_generator.manual_seed(0)

    def describe(self) -> dict[str, str]:
        return {
            "processor": platform.processor() or platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
