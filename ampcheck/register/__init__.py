"""Autocast for a PrivateUse1 device: one call registers what PyTorch registers for CUDA or the CPU.

    from ampcheck.register import register_autocast

    register_autocast("mydevice", base="cuda")

PyTorch leaves the dispatch key AutocastPrivateUse1 empty: without a registration every op on the device raises inside
of `torch.autocast`. `docs/your_backend.md` has the whole story. Importing this module imports torch, and nothing
else of ampcheck's devices or suites.
"""

from ampcheck.register.registration import Registration, register_autocast

__all__ = ["Registration", "register_autocast"]
