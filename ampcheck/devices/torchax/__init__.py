"""torchax as it is: tensors that JAX computes with, in torchax's own mode and under two kinds of region.

Importing this imports neither jax nor torchax.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from ampcheck.devices.base import Device
from ampcheck.devices.jax import products_of_xla
from ampcheck.errors import Unsupported
from ampcheck.observe.recorder import Observation, observe_by, overload_name
from ampcheck.observe.torch_private import DisableTorchFunction, no_dispatch
from ampcheck.samples.describe import TensorArg
from ampcheck.samples.tensors import host_tensor
from ampcheck.spec.policies import closest, table
from ampcheck.spec.torch_dtypes import DTYPES

OLDEST = "0.0.14.dev20260814"
"""The first torchax that can be imported on torch 2.13, where named tensors are gone (google/torchax#102)."""

STRIDES = {"strides": "JAX gives its arrays one memory layout, and torchax tells the strides of that"}
REGION = {"region": "torchax answers for ops before PyTorch's autocast kernels do; docs/torchax.md has what follows"}


class TorchTorchax(Device):
    """torchax's tensors under `torch.autocast("jax")`."""

    name = "torchax:torch-autocast"
    token = "txt"
    type = "jax"
    key = "AutocastPrivateUse1"
    deviations = Path(__file__).parent / "torch_autocast.toml"
    on_request = "it is another project's backend, and what it lacks differs between its versions"
    backend = "torchax"
    observes_composite_ops = False
    refusals = (r"Operator with name \S+ has no lowering",)
    known_preflight = STRIDES | REGION
    without_autograd = "torchax takes gradients with JAX; most of what it answers for is no node of autograd's graph"
    setup = ("import jax", "import torchax", 'jax.config.update("jax_enable_x64", True)', "torchax.enable_globally()")

    def unavailable(self) -> str | None:
        for package in ("jax", "torchax"):
            if find_spec(package) is None:
                return f"{package} is not installed; the extra ampcheck[jax] brings it"
        if "ampcheck.jax_device" in sys.modules:
            return 'ampcheck.jax_device was loaded first, and one process has one device type "jax"'
        try:
            found = version("torchax")
        except PackageNotFoundError:
            return "torchax lies on the path but is not installed, so that its version is unknown"
        if Version(found) < Version(OLDEST) and Version(torch.__version__).release >= (2, 13):
            return f"torchax {found} cannot be imported on torch {torch.__version__} (google/torchax#101); {OLDEST} can"
        return None

    def policies(self) -> Mapping[str, str]:
        """Return those of the CPU: torchax/amp.py lists them, with a link to where PyTorch registers AutocastCPU's."""
        return table("AutocastCPU", closest(torch.__version__))

    @contextmanager
    def activate(self) -> Iterator[None]:
        import jax  # noqa: PLC0415  # a device is imported where a case runs on it
        import torchax  # noqa: PLC0415  # a device is imported where a case runs on it

        env = torchax.default_env()
        # A region that a case left open is no region of the next one.
        with warnings.catch_warnings(), jax.enable_x64(True), env, env.override_property(autocast_dtype=None):
            yield

    @contextmanager
    def native_ops(self) -> Iterator[None]:
        # torchax's modes also answer for ops on CPU tensors, and take those without a dimension for numbers.
        with no_dispatch(), DisableTorchFunction():
            yield

    def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
        with self.native_ops():
            made = host_tensor(arg, dtype, position)
        return made if arg.device == "cpu" else made.to(self.type)

    def observe(
        self, call: Callable[[], Any], opaque_ops: Collection[str], inputs: Sequence[torch.Tensor] = ()
    ) -> Observation:
        import torchax  # noqa: PLC0415  # a device is imported where a case runs on it

        from ampcheck.devices.torchax.recorder import TorchaxRecorder  # noqa: PLC0415  # a device is imported where a case runs on it

        return observe_by(TorchaxRecorder(torchax.default_env(), opaque_ops, inputs), call, inputs)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        import torchax  # noqa: PLC0415  # a device is imported where a case runs on it

        if not hasattr(tensor, "jax"):  # some lowerings give tensors of the CPU
            return tensor.detach()
        with warnings.catch_warnings(action="ignore"):  # JAX's memory cannot be written; the copy made of it can
            copied: torch.Tensor = torchax.default_env().j2t_copy(tensor.jax()).clone()
        return copied

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        from torchax.interop import j2t_autograd  # noqa: PLC0415  # a device is imported where a case runs on it

        if cast_inputs is not None:
            raise Unsupported("torchax.interop.j2t_autograd knows no cast_inputs")
        found: Callable[..., Any] = j2t_autograd(fn)
        return found

    def seed(self) -> None:
        import torchax  # noqa: PLC0415  # a device is imported where a case runs on it

        torch.manual_seed(0)
        torchax.default_env().manual_seed(0)

    def describe(self) -> dict[str, str]:
        return {"torchax": version("torchax"), "jax": version("jax")}


class Torchax(TorchTorchax):
    """torchax's tensors under `torchax.amp.autocast`."""

    name = "torchax"
    token = "txo"
    default_amp = "bf16"
    deviations = Path(__file__).parent / "deviations.toml"
    region = "torchax.amp.autocast"
    known_preflight = STRIDES

    def listed(self) -> tuple[Mapping[str, str], str]:
        from torchax.amp import autocast_policy  # noqa: PLC0415  # a device is imported where a case runs on it

        found = {overload_name(op): _POLICIES[policy.name] for op, policy in autocast_policy.items()}
        return found, f"torchax.amp.autocast_policy of torchax {version('torchax')}"

    def float32_products(self, kind: str) -> str:
        """Return what JAX rounds factors to, which its own setting decides, and on a CPU nothing."""
        return products_of_xla()

    def autocast(self, dtype: str | None = None, *, enabled: bool = True, cache_enabled: bool | None = None) -> Any:
        """Return a region of torchax's own. It takes no `enabled`: without a dtype it is off. It caches nothing."""
        import torchax  # noqa: PLC0415  # a device is imported where a case runs on it

        if not enabled:
            return torchax.amp.autocast(self.type, dtype=None)
        return torchax.amp.autocast(self.type, dtype=DTYPES[dtype]) if dtype else torchax.amp.autocast(self.type)


_POLICIES = {"LOWER_PRECISION_FP": "downcast", "FP32": "upcast", "PROMOTE": "promote"}
"""Those of torchax that some overload has."""

DEVICES = (Torchax(), TorchTorchax())
