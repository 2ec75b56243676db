"""PyTorch on JAX: the device that `ampcheck.jax_device` makes.

Importing this imports neither jax nor torchax; they are imported when the first case runs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.register.torch_private import backend_name
from ampcheck.spec.case import ANYWHERE
from ampcheck.spec.policies import closest, table

_PROGRAMS = 400
"""How many compiled ops stay in memory. Few cases share one, and each holds more than a megabyte."""


def products_of_xla() -> str:
    """Return what XLA rounds the factors of float32 products to, as `Device.float32_products` does."""
    import jax  # noqa: PLC0415  # a device is imported where a case runs on it

    chosen = jax.config.jax_default_matmul_precision or "default"  # type: ignore[attr-defined]  # jax makes it later
    platform = jax.default_backend()
    if platform == "cpu" or chosen in ("highest", "float32", "F32_F32_F32"):
        return "ieee"
    return "bf16" if platform == "tpu" and chosen in ("default", "bfloat16", "fastest") else "tf32"


class Jax(Device):
    """`torch.device("jax")`, with CUDA's policies on AutocastPrivateUse1."""

    name = "jax"
    token = "jax"
    compilers = (*ANYWHERE, "jaxcompile", "jaxjit")
    type = "jax"
    key = "AutocastPrivateUse1"
    database = False  # XLA compiles a program for each of its samples
    one_region_dtype = True  # and for each dtype
    deviations = Path(__file__).parent / "deviations.toml"
    backend = "ampcheck.jax_device"
    refusals = (
        r"has no kernel on the jax device|the jax device has no \S+(: JAX has no such dtype| tensors)",
        # linear algebra, of JAX and of PyTorch
        r"not implemented for '\w+'|Unsupported dtype \w+|[Ll]ow precision dtypes not supported",
    )
    setup = ("import ampcheck.jax_device",)

    def unavailable(self) -> str | None:
        for package in ("jax", "torchax"):
            if find_spec(package) is None:
                return f"{package} is not installed; the extra ampcheck[jax] brings it"
        named = backend_name()
        if named not in ("privateuseone", self.type):
            return f"PrivateUse1 is {named!r} in this process already, and has one name for good"
        return None

    def policies(self) -> Mapping[str, str]:
        """Return CUDA's policies, which the device registers."""
        return table("AutocastCUDA", closest(torch.__version__))

    def new_parameters(self) -> str:
        """Return "": the device lets a module keep its parameters (`jax_device.storage.moving`)."""
        return ""

    @contextmanager
    def activate(self) -> Iterator[None]:
        import ampcheck.jax_device  # noqa: F401, PLC0415  # makes the device
        from ampcheck.jax_device.dispatch.program import program_cache  # noqa: PLC0415  # a device is imported where a case runs on it

        program_cache.limit = _PROGRAMS
        yield

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        from ampcheck.jax_device.interop.functions import j2t_autograd  # noqa: PLC0415  # a device is imported where a case runs on it

        return j2t_autograd(fn, cast_inputs=cast_inputs)

    def float32_products(self, kind: str) -> str:
        """Return what JAX rounds factors to, which its own setting decides, and on a CPU nothing."""
        return products_of_xla()

    def synchronize(self) -> None:
        torch.jax.synchronize()  # type: ignore[attr-defined]  # the module exists once the device does

    def describe(self) -> dict[str, str]:
        import jax  # noqa: PLC0415  # a device is imported where a case runs on it

        devices = jax.local_devices()
        found = {"platform": devices[0].platform, "model": devices[0].device_kind, "devices": str(len(devices))}
        return {"jax": version("jax"), "torchax": version("torchax")} | found
