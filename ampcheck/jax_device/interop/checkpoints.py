"""Files of safetensors that are read to the device, where that package is installed: `load_file(path, device="jax")`.

Its Rust code refuses names of devices that it does not know, and takes any index of the accelerator.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ampcheck.jax_device.device import index_of

_NAME = "jax"


def install() -> None:
    """Replace `safe_open` by one that gives the index for the device, once a process."""
    if find_spec("safetensors") is None:
        return
    modules = [import_module(name) for name in ("safetensors", "safetensors.torch")]
    opened = modules[0].safe_open

    @functools.wraps(opened)
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        if str(device).partition(":")[0] == _NAME:
            device = index_of(str(device))
        return opened(filename, framework, device=device, **options)

    for module in modules:
        module.safe_open = safe_open  # type: ignore[attr-defined]
