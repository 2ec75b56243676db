"""Our own lowerings, one file per family: where torchax's table is wrong, imprecise or has none."""

from ampcheck.jax_device.lowerings import copies, pointwise

__all__ = ["copies", "pointwise"]
