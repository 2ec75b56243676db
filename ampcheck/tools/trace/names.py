"""The overload of a public call, and its policy under a device type's dispatch key."""

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

import torch

from ampcheck.devices.registry import known as devices
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.recorder import overload_name
from ampcheck.observe.torch_private import OpOverloadPacket
from ampcheck.register.torch_private import OpOverload, backend_name
from ampcheck.spec.policies import KEYS, closest, table
from ampcheck.spec.torch_private import registrations
from ampcheck.tools.torch_private import resolve

_KEY_OF = {key.removeprefix("Autocast").lower(): key for key in KEYS}

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
        return overload_name(func)
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
    return _KEY_OF.get(device_type, f"Autocast{device_type.upper()}")


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
