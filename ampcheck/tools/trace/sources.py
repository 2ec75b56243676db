"""The source of an op: the program's line, the module it runs in, and the names of the tensors it is given."""

import concurrent.futures
import os
import sys
import sysconfig
import threading
from traceback import walk_stack
from types import CodeType, FrameType

import torch

from ampcheck.observe import recorder
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.torch_private import FUNCTION_BACKWARD, MODULE_CALL, RUN_BACKWARD
from ampcheck.tools.trace.records import Kind

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PACKAGES = "-packages" + os.sep  # site-packages, dist-packages
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "scripts"))
_RECORDER = recorder.__file__  # calls each op for the trace
_STARTERS = (threading.__file__, os.path.dirname(concurrent.futures.__file__) + os.sep)  # of threads


class Sources:
    """Names and places, looked up while a trace runs. Modules seen are kept alive, so that their ids stay theirs.

    `packages`: whether a line of an installed package is a place, too, where the program has called it.
    """

    def __init__(self, *, packages: bool = True) -> None:
        self._packages = packages
        self._library: dict[CodeType, bool] = {}
        self._modules: dict[int, tuple[torch.nn.Module, dict[int, str]]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, str]] = {}

    def place(self) -> tuple[str, str]:
        """Return the module path and the program's file and line of what runs now; "" for unknown ones."""
        location = own = ""
        modules: list[torch.nn.Module] = []
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if code is MODULE_CALL:
                modules.append(frame.f_locals["self"])
            elif not own and not self._in_library(code):
                here = f"{_short(code.co_filename)}:{line}"
                location = location or here
                installed = code.co_filename.startswith(_INSTALLED) or _PACKAGES in code.co_filename
                own = here if self._packages or not installed else ""
        module = self.path(modules[-1], modules[0]) if modules else ""
        if own and own != location:  # what the program has called, where no module says it
            module = module or location.rpartition(_PACKAGES)[2]
        return module, own or location

    def in_hook(self) -> bool:
        """Return whether the program's own code runs in a backward pass, and is no autograd function's."""
        own = False
        for frame, _ in walk_stack(sys._getframe(1)):
            if frame.f_code in (RUN_BACKWARD, FUNCTION_BACKWARD):
                return own and frame.f_code is RUN_BACKWARD
            own |= not self._in_library(frame.f_code)
        return False

    def unit(self) -> tuple[str, FrameType | None]:
        """Return the part of the program that runs now, which can be told to run in float32.

        A line of the program, with its frame; or the path of a module whose code is a library's, with None.
        """
        modules: list[torch.nn.Module] = []
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if code is MODULE_CALL:
                modules.append(frame.f_locals["self"])
            elif not modules and not self._in_library(code) and _PACKAGES not in code.co_filename:
                return f"{_short(code.co_filename)}:{line}", frame
        return (self.path(modules[-1], modules[0]) if modules else ""), None

    def name(self, tensor: torch.Tensor) -> str:
        """Return the parameter's or buffer's name in the outermost module seen, else dtype and shape."""
        return self._tensors[id(tensor)][1] if self.known(tensor) else described(tensor)

    def named(self, tensor: torch.Tensor) -> str:
        """Return the name of a parameter or buffer of a module seen; "" for any other tensor."""
        return self.name(tensor) if self.known(tensor) else ""

    def known(self, tensor: torch.Tensor) -> bool:
        """Return whether it is a parameter or buffer of a module seen."""
        known = self._tensors.get(id(tensor))
        return known is not None and known[0] is tensor

    def kind(self, tensor: torch.Tensor, *, made: bool) -> Kind:
        """Return a tensor's role in the program. `made`: whether the traced program computed it."""
        if tensor._is_view() and isinstance(tensor._base, torch.nn.Parameter):
            return "view"
        if tensor.is_leaf and tensor.requires_grad and not tensor._is_view():
            return "weight"
        if isinstance(tensor, torch.nn.Parameter):
            return "frozen"
        if self.known(tensor):
            return "buffer"
        return "activation" if made or not tensor.is_leaf else "input"

    def _in_library(self, code: CodeType) -> bool:
        inside = self._library.get(code)
        if inside is None:
            # Generated code ("<string>") has no place to show, so the frame that called it is looked for.
            name = code.co_filename
            inside = name.startswith((_TORCH, _OWN, _RECORDER, *_STARTERS, "<")) and name != "<stdin>"
            self._library[code] = inside
        return inside

    def path(self, root: torch.nn.Module, module: torch.nn.Module) -> str:
        """Return the path of a module below the class of its root."""
        known = self._modules.get(id(root))
        if known is None or id(module) not in known[1]:
            known = self._modules[id(root)] = (root, {id(part): name for name, part in root.named_modules()})
            # A module that its root does not list is named by its class.
            known[1].setdefault(id(module), type(module).__name__)
            for tensors in (root.named_parameters(), root.named_buffers()):
                for name, tensor in tensors:
                    self._tensors.setdefault(id(tensor), (tensor, name))
        path = known[1][id(module)]
        return f"{type(root).__name__}.{path}" if path else type(root).__name__


def described(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype and shape, as in "fp32[2, 3]"."""
    return f"{name_of(tensor.dtype)}{list(tensor.shape)}"


def _short(path: str) -> str:
    return path.removeprefix(os.getcwd() + os.sep)
