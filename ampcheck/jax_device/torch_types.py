"""Classes of PyTorch that take a device: `torch.Generator`, `torch.Stream` and `torch.Event`.

PyTorch asks C++ hooks for those of a device, which a device made in Python cannot provide or whose methods raise. So
their names in `torch` are given to classes that make the device's own objects where those are asked for.
"""

from __future__ import annotations

from typing import Any

import torch

from ampcheck.jax_device.annotations import Function, Tree
from ampcheck.jax_device.torch_private import CGenerator


class _OfAnyDevice(type(CGenerator)):  # type: ignore[misc]  # the generator's class has a metaclass
    """Make PyTorch's objects or the device's, by the device asked for; both are instances, and so are subclasses'."""

    _theirs: type
    _ours: Function
    _default: str

    def __call__(cls, *args: Tree, **kwargs: Tree) -> Tree:
        if "_theirs" not in vars(cls):  # a subclass that somebody derived
            return super().__call__(*args, **kwargs)
        asked = args[0] if args else kwargs.get("device", cls._default)
        # An index, and no device at all, mean the accelerator, which a PrivateUse1 device is whatever else there is.
        ours = asked is None or isinstance(asked, int) or torch.device(asked).type == "jax"
        return (cls._ours if ours else cls._theirs)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._theirs) if "_theirs" in vars(cls) else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._theirs) if "_theirs" in vars(cls) else super().__subclasscheck__(subclass)


def replace(theirs: type, ours: Function, default: str | None) -> None:
    """Replace a class of the namespace `torch`, once a process.

    Args:
        theirs: PyTorch's class.
        ours: what makes the device's objects; it takes the same arguments.
        default: the device that is meant where none is given; None is the accelerator.
    """
    name = theirs.__name__
    members = {"__module__": "torch", "_theirs": theirs, "_ours": staticmethod(ours), "_default": default}
    setattr(torch, name, _OfAnyDevice(name, (theirs,), members))
