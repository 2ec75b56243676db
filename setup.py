"""Lists the packages, and builds the TorchScript operators and the emulated device where torch and a compiler are.

The suites ship inside the package, so that a backend's author needs no checkout.

A build under pip is isolated and does not see the torch of the environment it installs into, so that torch is looked
for where it would be installed. None is downloaded: without one the package installs all the same, and
ampcheck.torchscript uses operators written in Python.
"""

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

LIBRARIES = {
    "ampcheck.torchscript._operators": "ampcheck/torchscript/csrc/autocast_ops.cpp",
    "ampcheck.devices.emulated._emulated": "ampcheck/devices/emulated/csrc/emulated.cpp",
}


def torch_folder() -> Path | None:
    """Where torch is installed, in this environment or in the one below it; it is not imported."""
    spec = importlib.util.find_spec("torch")
    found = [Path(spec.origin).parent] if spec and spec.origin else []
    for base in (sys.prefix, sys.base_prefix):
        for place in ("purelib", "platlib"):
            found.append(Path(sysconfig.get_path(place, vars={"base": base, "platbase": base})) / "torch")
    return next((folder for folder in found if (folder / "include/torch/csrc").is_dir()), None)


def version(folder: Path) -> str:
    """Return the version of an installed torch, such as 2.13.0+cpu."""
    match = re.search(r"^__version__ = ['\"](.+?)['\"]", (folder / "version.py").read_text(encoding="utf-8"), re.M)
    if match is None:
        raise RuntimeError(f"{folder / 'version.py'} names no version")
    return match[1]


def extensions() -> list[Extension]:
    """Return the libraries; none where torch is not there."""
    folder = torch_folder()
    if folder is None or sys.platform != "linux":
        return []
    return [
        Extension(
            name,
            [source],
            include_dirs=[str(folder / "include"), str(folder / "include/torch/csrc/api/include")],
            library_dirs=[str(folder / "lib")],
            libraries=["torch_cpu", "c10"],  # found among those that `import torch` has loaded
            extra_compile_args=["-std=c++20", "-O1", "-g0", "-w"],
            language="c++",
            optional=True,
        )
        for name, source in LIBRARIES.items()
    ]


class Build(build_ext):
    """Puts the torch version it was built for into a library's file name, so that another torch does not load it."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = True  # a compiler for each library

    def get_ext_filename(self, fullname: str) -> str:
        folder = torch_folder()
        if not any(name.endswith(fullname) for name in LIBRARIES) or folder is None:
            return super().get_ext_filename(fullname)
        return f"{fullname.replace('.', '/')}-torch{version(folder)}.so"


def packages() -> list[str]:
    """Every folder of code or data below ampcheck, and the suites as `ampcheck.suites`."""
    found = find_namespace_packages(include=["ampcheck", "ampcheck.*", "suites", "suites.*"])
    return [name.replace("suites", "ampcheck.suites", 1) for name in found if "__pycache__" not in name]


setup(
    packages=packages(),
    package_dir={"ampcheck.suites": "suites"},
    ext_modules=extensions(),
    cmdclass={"build_ext": Build},
)
