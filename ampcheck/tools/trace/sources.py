"""The source of an op: the program's line, its module, the names of its tensors, its overload and its policy."""

import concurrent.futures
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from traceback import walk_stack
from types import CodeType, FrameType

import torch

from ampcheck.devices.registry import known as devices
from ampcheck.devices.registry import short
from ampcheck.observe import recorder
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.torch_private import OpOverloadPacket
from ampcheck.register.torch_private import OpOverload, backend_name
from ampcheck.spec.policies import KEY_OF, KEYS, closest, table
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.spec.torch_private import registrations
from ampcheck.tools.torch_private import FUNCTION_BACKWARD, MODULE_CALL, RUN_BACKWARD, resolve
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
                here = f"{short(code.co_filename)}:{line}"
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
                return f"{short(code.co_filename)}:{line}", frame
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


# ---- the overload of a public call, and its policy under a device type's dispatch key

# The operators' methods whose name is not the op's between underscores.
_OPERATORS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "invert": "bitwise_not"}
_OPERATORS["getitem"] = "index"
_REFLECTED = ("radd", "rmul", "rmatmul", "rpow", "rdiv", "rtruediv", "rfloordiv", "rmod")
_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "idiv", "ipow")
_DUNDER = re.compile(r"__(\w+)__")

_SCALAR_TYPES = ("float", "half", "bfloat16", "double", "int", "long", "short", "char", "byte", "bool")
_DEVICES = ("cpu", "cuda", "xpu", "npu", "mtia", "hpu", "ipu")
CONVERSIONS = frozenset(("to", "type", "type_as", "cfloat", "cdouble", "chalf", *_SCALAR_TYPES, *_DEVICES))
"""The tensor methods a program converts dtypes with."""


@lru_cache(maxsize=4096)
def public_name(func: Callable[..., object]) -> str:
    """Return the op's name: `matmul` for `Tensor.__rmatmul__`, `sum.dim_IntList` for that overload, else its own."""
    if isinstance(func, OpOverload):
        return recorder.overload_name(func)
    if isinstance(func, OpOverloadPacket):
        namespace, _, name = func._qualified_op_name.partition("::")
        return name if namespace == "aten" else f"{namespace}::{name}"
    name = getattr(func, "__name__", None) or type(func).__name__
    match = _DUNDER.fullmatch(name)
    if not match:
        return name
    short = match[1]
    if short in _REFLECTED:
        short = short[1:]
    elif short in _IN_PLACE:
        return _OPERATORS.get(short[1:], short[1:]) + "_"
    return _OPERATORS.get(short, short)


def key_of(device_type: str) -> str:
    """Return the autocast dispatch key of a device type. The name of a third-party backend means PrivateUse1."""
    if device_type == backend_name():
        return "AutocastPrivateUse1"
    return KEY_OF.get(device_type, f"Autocast{device_type.upper()}")


@cache
def _policies(device_type: str) -> Mapping[str, str]:
    """Return the policies of a device type: the table's, or for PrivateUse1 those that its device declares."""
    key = key_of(device_type)
    known: dict[str, str] = dict(table(key, closest(torch.__version__)))
    if key not in KEYS:
        for device in devices().values():
            if device.type == device_type:
                known = dict(device.policies())
    try:
        live = registrations(key)
    except RuntimeError:  # there is no such key: such a device type has no autocast
        return known
    return {name.removeprefix("aten::"): UNKNOWN for name in live} | known


@cache
def _packets(device_type: str) -> Mapping[str, Mapping[str, str]]:
    """Return the policies again, by overload packet."""
    out: dict[str, dict[str, str]] = {}
    for name, policy in _policies(device_type).items():
        out.setdefault(name.partition(".")[0], {})[name] = policy
    return out


def forget() -> None:
    """Look up registrations anew: a backend may have registered more since the last trace."""
    _policies.cache_clear()
    _packets.cache_clear()


def kernel_policy(device_type: str, overload: str) -> str:
    """Return the policy of an exact overload, e.g. `addmm`."""
    return _policies(device_type).get(overload, "fallthrough")


def call_policy(device_type: str, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """Return the policy of a public call. Which overload it is matters only where a packet's overloads have several."""
    if "." in name:
        return kernel_policy(device_type, name)
    overloads = _packets(device_type).get(name)
    # out= variants are other overloads, and none of them has a policy.
    if not overloads or kwargs.get("out") is not None:
        return "fallthrough"
    policies = set(overloads.values())
    if len(policies) == 1:
        return policies.pop()
    try:
        variant = resolve(f"aten::{name}", *args, **kwargs)
    except RuntimeError:  # the public signature is not the schema's
        return UNKNOWN
    return overloads.get(name if variant == "default" else f"{name}.{variant}", "fallthrough")
