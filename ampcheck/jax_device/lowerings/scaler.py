"""The two ops of `torch.amp.GradScaler`, as PyTorch's CUDA kernels have them (ATen/native/cuda/AmpKernels.cu)."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower


def _single(name: str, array: Array, dtype: type) -> None:
    if array.size != 1:
        raise RuntimeError(f"{name} must be a 1-element tensor; it has {array.size} elements")
    if array.dtype != dtype:
        raise RuntimeError(f"{name} must be a {jnp.dtype(dtype).name} tensor; it is {array.dtype}")


@lower("_amp_foreach_non_finite_check_and_unscale")
def unscale(self: Sequence[Array], found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
    """Return gradients times `inv_scale`, and `found_inf`: 1 where a gradient was not finite before, else unchanged.

    Low precision is multiplied in float32. A scale of 1 leaves a gradient as it is, also where it is not finite.
    """
    _single("inv_scale", inv_scale, jnp.float32)
    _single("found_inf", found_inf, jnp.float32)
    scale, out, bad = inv_scale.reshape(()), [], jnp.asarray(False)
    for grad in self:
        if not jnp.issubdtype(grad.dtype, jnp.floating):
            raise RuntimeError(f"a gradient to unscale must be a floating tensor; it is {grad.dtype}")
        wide = grad.astype(jnp.promote_types(grad.dtype, jnp.float32))
        bad = bad | ~jnp.all(jnp.isfinite(wide))
        out.append(jnp.where(scale == 1, wide, wide * scale).astype(grad.dtype))
    return out, jnp.where(bad, jnp.float32(1), found_inf)


@lower("_amp_update_scale", traced=("scale_growth_factor", "scale_backoff_factor", "growth_interval"))
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: float | Array,
    scale_backoff_factor: float | Array,
    growth_interval: int | Array,
) -> tuple[Array, Array]:
    """Return the next scale, and how many steps since the last growth or overflow.

    After an overflow the scale backs off; after `growth_interval` steps without one it grows, where float32 holds it.
    """
    _single("current_scale", self, jnp.float32)
    _single("growth_tracker", growth_tracker, jnp.int32)
    _single("found_inf", found_inf, jnp.float32)
    overflow = found_inf.reshape(()) != 0
    successful = growth_tracker + 1
    grows = (successful == growth_interval) & ~overflow
    grown = (self.astype(jnp.float64) * scale_growth_factor).astype(jnp.float32)
    backed = (self.astype(jnp.float64) * scale_backoff_factor).astype(jnp.float32)
    scale = jnp.where(overflow, backed, jnp.where(grows & jnp.isfinite(grown), grown, self))
    return scale, jnp.where(overflow | grows, 0, successful).astype(jnp.int32)
