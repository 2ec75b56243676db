"""A PrivateUse1 backend whose storages PyTorch cannot read, with autocast from one call of `register_autocast`.

Its tensors are of ATen's class for such backends, OpaqueTensorImpl, which Python cannot make: `opaque.cpp` is compiled
when this is imported for the first time with a torch.
"""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from engine import Backend, Tested
from torch.utils._pytree import tree_map

from ampcheck.register import Registration

NAME = "opaque"
SOURCE = Path(__file__).with_suffix(".cpp")


def _built() -> Path:
    """The compiled source, compiled if that was not done for this torch before."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    target = SOURCE.parent / "build" / version / "_opaque.so"
    if target.exists():
        return target
    if compiler is None:
        raise RuntimeError(f"{SOURCE.name} needs a C++ compiler: install g++, or name one in CXX")
    folder = Path(torch.__file__).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    mine = target.with_suffix(f".{os.getpid()}.so")
    headers = (folder / "include", folder / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-O0", "-w", str(SOURCE), "-o", str(mine)]
    libraries = [f"-L{folder / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command, *(f"-I{path}" for path in headers), *libraries], check=True)
    mine.replace(target)  # two processes may build it at one time
    return target


sys.path.append(str(_built().parent))
_native: Any = importlib.import_module("_opaque")


class Opaque:
    """Tensors that hold a CPU tensor; a view holds a view of it."""

    guard = False
    everything = False
    host = staticmethod(_native.host)
    wrap = staticmethod(_native.wrap)

    def view(self, op: Any, args: Any, kwargs: Any) -> Any:
        def to_host(value: Any) -> Any:
            return self.host(value) if BACKEND.owns(value) else value

        made = op(*tree_map(to_host, args), **tree_map(to_host, kwargs))
        return tree_map(lambda value: self.wrap(value) if isinstance(value, torch.Tensor) else value, made)

    def resize(self, tensor: torch.Tensor, size: Any, stride: Any) -> None:
        """Give a tensor another size in place; its memory grows where it must."""
        held = self.host(tensor)
        last = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        needed = (last + held.storage_offset()) * held.dtype.itemsize
        if held.untyped_storage().nbytes() < needed:
            held.untyped_storage().resize_(needed)
        _native.hold(tensor, held.as_strided(size, stride))


LACKS, HAS = (os.environ.get(name, "").split() for name in ("LACKS", "HAS"))
"""Kernels to leave out, and composite ops to give a kernel of the backend's own."""
BACKEND = Backend(NAME, Opaque(), missing=LACKS, more=HAS)


def register(**overrides: str) -> Registration:
    """Give the backend autocast."""
    return BACKEND.register(overrides, memory=_native.host)


register()
DEVICES = (Tested(BACKEND),)
