"""Write the device class of a PrivateUse1 backend from what its package makes known to PyTorch."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ampcheck.devices.registry import loaded
from ampcheck.errors import UsageError
from ampcheck.register.torch_private import backend_name
from ampcheck.spec.casting import LOW
from ampcheck.spec.policies import KEYS, closest, table
from ampcheck.spec.torch_dtypes import DTYPES, name_of
from ampcheck.spec.torch_private import registered

_MODULE = '''\
"""{name} as ampcheck tests it; written from what `import {package}` registered with torch {torch}."""

import torch
import {package}
from ampcheck.devices import Device
{register}from ampcheck.spec.policies import closest, table

{constants}
class {cls}(Device):
    name = token = type = "{name}"
    key = "AutocastPrivateUse1"
    amp_dtypes = {dtypes}
    default_amp = "{default}"

    def unavailable(self):
        return {unavailable}

    def policies(self):
        {promise}
{synchronize}

DEVICES = ({cls}(),)
'''

_REGISTER = 'register_autocast("{name}", base="cuda", dtypes=({dtypes},))\n\n'
_SYNCHRONIZE = "\n    def synchronize(self):\n        torch.{name}.synchronize()\n"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found: the backend's `name`, the `module` that describes it, and `notes` for its author."""

    name: str
    module: str
    notes: tuple[str, ...]


def discover(package: str) -> Discovery:
    """Import a package and describe the PrivateUse1 backend that it makes.

    Raises UsageError where the import fails or names no backend.
    """
    loaded(f"package {package}", partial(importlib.import_module, package))
    name = backend_name()
    if name == "privateuseone":
        raise UsageError(f"importing {package} names no PrivateUse1 backend (torch.utils.rename_privateuse1_backend)")
    own = getattr(torch, name, None)
    dtypes, notes = _dtypes(name, own)
    constants, promise, told = _promise()
    default = name_of(torch.get_autocast_dtype(name))
    if bare := not registered("AutocastPrivateUse1"):
        constants = _REGISTER.format(name=name, dtypes=", ".join(str(DTYPES[low]) for low in dtypes))
    module = _MODULE.format(
        name=name,
        package=package,
        torch=torch.__version__,
        cls="".join(part.capitalize() for part in name.split("_")),
        register="from ampcheck.register import register_autocast\n" if bare else "",
        constants=constants,
        dtypes=str(dtypes).replace("'", '"'),
        default=default if default in dtypes else dtypes[0],
        unavailable=f'None if torch.{name}.is_available() else "no {name} was found"' if _answers(own) else "None",
        promise=promise,
        synchronize=_SYNCHRONIZE.format(name=name) if hasattr(own, "synchronize") else "",
    )
    return Discovery(name, module, (*notes, *told))


def _answers(own: object) -> bool:
    """Return whether a device module says if its device is there; torch_tpu's takes no question from others."""
    try:
        getattr(own, "is_available")()  # noqa: B009  # a module that nothing types
    except (AttributeError, RuntimeError):
        return False
    return True


def _dtypes(name: str, own: object) -> tuple[tuple[str, ...], list[str]]:
    """Return the lower precisions that regions of a backend may have, and what is to be said of its list."""
    ask = getattr(own, "get_amp_supported_dtype", None)
    if ask is None:
        told = []
        if registered("AutocastPrivateUse1"):  # else the module calls register_autocast, which gives one
            told.append(f"torch.{name} has no get_amp_supported_dtype, without which no region can be made")
        refused = {low: said for low in LOW if (said := _refusal(name, low))}
        told += [f"{low} is left out of amp_dtypes: a tensor of it on {name} raised {refused[low]}" for low in refused]
        return tuple(low for low in LOW if low not in refused) or LOW, told
    listed: Sequence[torch.dtype] = list(ask())
    low = tuple(name_of(dtype) for dtype in listed if dtype in (torch.float16, torch.bfloat16))
    others = [str(dtype) for dtype in listed if dtype not in (torch.float16, torch.bfloat16)]
    notes = [f"get_amp_supported_dtype() lists what is no lower precision: {', '.join(others)}"] if others else []
    return low or LOW, notes if low else [*notes, "get_amp_supported_dtype() lists no lower precision"]


def _refusal(name: str, low: str) -> str | None:
    """Return what a backend raises where a tensor of a dtype is copied to it and back."""
    try:
        torch.ones(2, dtype=DTYPES[low]).to(name).cpu()
    except Exception as error:  # whatever a backend raises is its answer
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _promise() -> tuple[str, str, list[str]]:
    """Return the constants and body of `policies` for the list of PyTorch's that is nearest, and notes."""
    live, version = registered("AutocastPrivateUse1"), closest(torch.__version__)
    lists: Mapping[str, Mapping[str, str]] = {key: table(key, version) for key in KEYS}
    nearest = max(KEYS, key=lambda key: (len(live & set(lists[key])), live == set(lists[key]), key == "AutocastCUDA"))
    key = nearest if live else "AutocastCUDA"
    whole = f'table("{key}", closest(torch.__version__))'
    lacks = sorted(set(lists[key]) - live)
    if not live:
        told = "no autocast kernel is registered: the module calls register_autocast, with CUDA's list"
        return "", f"return {whole}", [told]
    extra = sorted(live - set(lists[key]))
    told = f"{len(extra)} ops have an autocast kernel and are not on {key}'s list: {', '.join(extra)}"
    notes = [told] if extra else []
    if not lacks:
        return "", f"return {whole}", notes
    told = f"{len(lacks)} of the {len(lists[key])} ops of {key}'s list have no autocast kernel"
    few = len(lacks) <= len(lists[key]) // 2
    names = lacks if few else sorted(live & set(lists[key]))
    constant = "LACKS" if few else "PROMISED"
    rows = "".join(f'    "{overload}",\n' for overload in names)
    chosen = f"{{op: policy for op, policy in {whole}.items() if op {'not ' * few}in {constant}}}"
    what = "take out of this list what the backend means to promise" if few else "these have one"
    notes.append(f"{told}: is it a smaller promise? {constant} of the module says so")
    return f"# {told}: {what}.\n{constant} = (\n{rows})\n\n", f"return {chosen}", notes
