"""The TPU chips there are estimates for, and whether there can be any here."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from ampcheck.errors import UsageError


@dataclass(frozen=True, slots=True)
class Chip:
    """One JAX device of a TPU generation, by its maker's figures.

    `topology`: what libtpu calls the smallest slice. `clock`: cycles a second, the peak divided by what the matrix
    units do in a cycle. `flops`: peak of bf16 products, a second. `bandwidth`: of HBM, bytes a second. `note`: what of
    a chip a JAX device is, where it is not the whole.
    """

    topology: str
    clock: float
    flops: float
    bandwidth: float
    note: str = ""


TPUS: Mapping[str, Chip] = {
    "v4": Chip("v4:2x2x1", 1.05e9, 137.5e12, 614e9, "one of the chip's two cores"),
    "v5e": Chip("v5e:2x2", 1.5e9, 197e12, 819e9),
    "v5p": Chip("v5p:2x2x1", 1.75e9, 459e12, 2765e9),
    "v6e": Chip("v6e:2x2", 1.75e9, 918e12, 1640e9),
}
"""https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm gives the peaks and bandwidths of chips."""


def available() -> str | None:
    """Say why there can be no estimates here, None where there can. Imports neither JAX nor libtpu."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed; the extra ampcheck[tpu-estimate] brings it"
    if importlib.util.find_spec("libtpu") is None:
        return "libtpu is not installed; the extra ampcheck[tpu-estimate] brings it"
    return None


def chip(tpu: str) -> Chip:
    """Return the chip of a name such as "v5e" or "tpu-v5e". Raises UsageError for an unknown one."""
    found = TPUS.get(tpu.removeprefix("tpu-"))
    if found is None:
        raise UsageError(f"there are no estimates for {tpu!r}; there are tpu-{', tpu-'.join(TPUS)}")
    return found
