"""The devices under test: PyTorch's own, virtual ones, and those that other packages declare."""

from ampcheck.devices.base import Device

__all__ = ["Device"]
