"""The CPU."""

import platform
from functools import cache
from pathlib import Path

import torch

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import overload
from ampcheck.samples.describe import leaves
from ampcheck.samples.tensors import build
from ampcheck.spec.case import ANYWHERE


class Cpu(Device):
    """PyTorch's CPU backend; always there."""

    name = "cpu"
    token = "cpu"
    compilers = (*ANYWHERE, "inductor", "packaged")
    type = "cpu"
    key = "AutocastCPU"
    default_amp = "bf16"
    refusals = (
        r"not implemented for '\w+'",  # the kernel has no instance for the dtype
        r"[Ll]ow precision dtypes not supported|get_mkldnn_dtype: unsupported data type",
        "expected scalar type Float but found Double",  # of _grid_sampler_2d_cpu_fallback
        "could not create a primitive descriptor",  # oneDNN has no kernel for the dtype on this processor
    )
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


@cache
def lacks(op: str, dtype: str) -> bool:
    """Return whether this machine's processor has no kernel for an op in a dtype.

    Asked by running the op's main sample in that dtype, outside of autocast: oneDNN has some kernels only for
    processors with the instructions for them, and no setting of PyTorch's names those.

    Args:
        op: an overload of `ampcheck.samples`, e.g. "mkldnn_rnn_layer".
        dtype: the dtype of every floating argument, e.g. "bf16".

    Raises:
        KeyError: `ampcheck.samples` has no such overload.
    """
    sample = samples.catalogue()[op].samples[0]
    args, kwargs = build(sample, (dtype,) * len(list(leaves(sample))), Cpu())
    try:
        overload(op)(*args, **kwargs)
    except RuntimeError:  # NotImplementedError is one
        return True
    return False
