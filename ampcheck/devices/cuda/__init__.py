"""A CUDA device: real, used where present."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property

import torch

from ampcheck.devices.base import Device, promised
from ampcheck.observe.driver import asked
from ampcheck.spec.case import ANYWHERE

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class Cuda(Device):
    """PyTorch's CUDA backend."""

    name = "cuda"
    token = "cuda"
    compilers: tuple[str, ...] = (*ANYWHERE, "inductor", "packaged")
    type = "cuda"
    key = "AutocastCUDA"
    refusals: tuple[str, ...] = (r"not implemented for '\w+'",)  # the kernel has no instance for the dtype

    def unavailable(self) -> str | None:
        if not torch.backends.cuda.is_built():
            return "this torch was built without CUDA"
        if not torch.cuda.is_available():
            return "no CUDA device was found"
        return None

    def policies(self) -> Mapping[str, str]:
        library = "miopen" if torch.version.hip else "cudnn"
        return promised(self.key, torch.__version__, (library,) if torch.backends.cudnn.is_available() else ())

    @cached_property
    def amp_dtypes(self) -> tuple[str, ...]:  # type: ignore[override]  # a chip's, where others have a class's
        return ("fp16", "bf16") if not torch.cuda.is_available() or torch.cuda.is_bf16_supported(False) else ("fp16",)

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        os.environ.setdefault(_WORKSPACE, ":4096:8")  # read when cuBLAS is first used
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def describe(self) -> dict[str, str]:
        major, minor = torch.cuda.get_device_capability()
        return {
            "model": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            **_hardware(str(getattr(torch.cuda.get_device_properties(), "uuid", ""))),
        }


_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "power.limit")


@cache  # the driver takes its time, and a benchmark describes its device often
def _hardware(uuid: str) -> dict[str, str]:
    """Return what decides a GPU's speed as its driver tells it, and how many programs use it, this one among them."""
    gpu = f"GPU-{uuid}" if uuid else ""
    rows = asked(",".join(_ASKED), gpu=gpu)
    if not rows:
        return {}
    return {**dict(zip(_ASKED, rows[0], strict=True)), "programs": str(len(asked("pid", of="compute-apps", gpu=gpu)))}
