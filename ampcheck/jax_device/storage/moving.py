"""Parameters that stay the same objects when their module moves to the device or from it.

`Module.to` writes `param.data = moved` where PyTorch allows that: between the CPU and CUDA, not between the CPU and a
PrivateUse1 device. There it makes new parameters, which unties shared ones and leaves optimizers with the old. So a
parameter is turned into a tensor of the other device first, and the assignment is allowed. That is safe because the
device's tensors are plain TensorImpls, as those of the CPU; another backend's need not be (pytorch#96026).
"""

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.storage.overrides import libc10
from ampcheck.jax_device.torch_private import DisableTorchFunction, has_compatible_type

Move = Callable[[Tensor], Tensor]
_CHANGE = "_ZN3c1010TensorImpl30_change_backend_component_keysENS_6DeviceE"
_TYPES = {"cpu": 0, "jax": 20}  # c10::DeviceType


@functools.cache
def change_device_type() -> Callable[[Tensor, str], None] | None:
    """Find the function that makes a tensor one of another device type, values aside; None if PyTorch exports none."""
    function = getattr(libc10(), _CHANGE, None)
    if function is None:
        return None
    function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_uint16]  # c10::Device: type, index
    return lambda tensor, kind: function(tensor._cdata, _TYPES[kind])


def become(tensor: Tensor, moved: Tensor) -> Tensor:
    """Give a tensor the values and the device of another one; the tensor, which others refer to, stays the object.

    Returns what `tensor.data` is. Where PyTorch does not take the two for alike, `moved`, and nothing is changed.
    Raises RuntimeError where this build of PyTorch has no way.
    """
    change = change_device_type()
    if change is None:
        raise RuntimeError(
            "this build of PyTorch cannot move a parameter to or from the jax device and keep the object; call "
            "torch.__future__.set_swap_module_params_on_conversion(True) before"
        )
    if tensor.is_inference() != moved.is_inference():
        with torch.inference_mode(tensor.is_inference()):
            moved = moved.clone()
    before = tensor.device.type
    change(tensor, moved.device.type)
    if has_compatible_type(tensor, moved):
        tensor.data = moved
    else:
        change(tensor, before)
    return moved


def _crosses(tensor: Tensor, moved: Tensor) -> bool:
    """Return whether a tensor with values of its own was moved between the CPU and the device."""
    plain = all(type(t).__torch_dispatch__ is Tensor.__torch_dispatch__ for t in (tensor, moved))
    return plain and {tensor.device.type, moved.device.type} == _TYPES.keys()


class _Mover:
    """What a module applies to its tensors; parameters and their gradients stay the same objects."""

    def __init__(self, move: Move) -> None:
        self._move = move
        self._grad: Tensor | None = None
        self._loaded: list[Tensor] = []

    def know(self, module: Module) -> None:
        """Note a module's parameters where they are no `Parameter`s: those that `torch.jit.load` reads."""
        if isinstance(module, torch.jit.ScriptModule):
            self._loaded.extend(module.parameters(recurse=False))

    def _kept(self, tensor: Tensor) -> bool:
        """Return whether the tensor stays the same object: parameters and their gradients, not buffers."""
        return isinstance(tensor, Parameter) or tensor is self._grad or any(tensor is p for p in self._loaded)

    def __call__(self, tensor: Tensor) -> Tensor:
        moved = self._move(tensor)
        with DisableTorchFunction():
            if not self._kept(tensor) or not _crosses(tensor, moved):
                return moved
            self._grad = tensor.grad  # a module moves a parameter first, then its gradient
            return become(tensor, moved)


def install() -> None:
    """Replace `Module._apply`, through which every conversion of a module goes, by one that keeps parameters."""
    original = Module._apply
    future = torch.__future__

    @functools.wraps(original)
    def _apply(self: Module, fn: Move, *args: Tree, **kwargs: Tree) -> Module:
        chosen = future.get_swap_module_params_on_conversion() or future.get_overwrite_module_params_on_conversion()
        if not chosen and not isinstance(fn, _Mover):
            fn = _Mover(fn)
        if isinstance(fn, _Mover):
            fn.know(self)
        moved: Module = original(self, fn, *args, **kwargs)
        return moved

    Module._apply = _apply  # type: ignore[method-assign]
