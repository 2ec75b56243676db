"""`flex_attention` on the device, which PyTorch refuses for devices that it does not know by name.

Eagerly and in `torch.compile` PyTorch's own way serves: its operator, run by plain ops. `flex_attention` itself calls
`torch.compile`, which cannot be done in the middle of a trace of `jit`; there the plain ops run without it.
"""

from __future__ import annotations

from ampcheck.jax_device.jit.watch import KEY, watching
from ampcheck.jax_device.torch_private import flex_attention_function
from ampcheck.register.torch_private import DispatchKey, flex_attention


class _InATrace:
    """Whether this thread is traced by `jit`, in the place of a flag that keeps `flex_attention` from compiling."""

    def __init__(self, flag: bool) -> None:
        self._flag = flag

    def __bool__(self) -> bool:
        return self._flag or watching()


def install() -> None:
    """Let `flex_attention` take tensors of the device, once a process."""
    module = flex_attention_function
    code = module._validate_device.__code__
    # The function stays PyTorch's own, which Dynamo follows; the names of devices are a constant in it.
    known = [c | {"jax"} if isinstance(c, frozenset) and "cuda" in c else c for c in code.co_consts]
    module._validate_device.__code__ = code.replace(co_consts=tuple(known))
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _InATrace(module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)
    # In a trace autograd differentiates the ops, with respect to what score_mod reads as well.
    flex_attention.py_impl(KEY)(flex_attention.py_kernels[DispatchKey.CompositeExplicitAutograd])
