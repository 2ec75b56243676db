"""The ways an op is computed: by PyTorch on the device of `ampcheck.jax_device`, or by torchax."""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import torch

from ampcheck.observe.torch_private import pytree


def _moved(tree: Any, move: Callable[[torch.Tensor], Any]) -> Any:
    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return move(leaf)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return "jax"
        return leaf

    return pytree.tree_map(one, tree)


def _named(given: Any) -> bool:
    """Return whether an argument names the device: a tensor on it, or its name."""
    return any(
        leaf == "jax" if isinstance(leaf, str) else isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(given)
    )


class Way:
    """A way for inputs to reach an implementation and for results to come back: that of plain tensors of the device.

    `caches`: whether a second call of the same kind takes another path than the first. `host_arguments`: whether
    arguments that PyTorch wants on the CPU stay there (`samples.HOST_ARGUMENTS`).
    """

    caches = True
    host_arguments = True

    def __init__(self) -> None:
        import ampcheck.jax_device  # noqa: F401, PLC0415  # makes the device

    def there(self, tree: Any) -> Any:
        """Return the CPU tensors of a sample on the implementation, devices named in it replaced."""
        return _moved(tree, self._to)

    def _to(self, tensor: torch.Tensor) -> Any:
        """Return a tensor there; one that is not contiguous keeps its strides."""
        tensor = tensor.detach()
        if tensor.layout == torch.strided and not tensor.is_contiguous() and 0 not in tensor.stride():
            strided = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="jax")
            return strided.copy_(tensor)
        return tensor.to("jax")

    def back(self, tree: Any) -> Any:
        """Return the results on the CPU. Raises RuntimeError where one is not the implementation's."""
        return pytree.tree_map(self._from, tree)

    def _from(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type != "jax":
            raise RuntimeError(f"a result lies on {leaf.device}")
        return leaf.detach().cpu()

    def around(self, given: Any) -> contextlib.AbstractContextManager[Any]:
        """Return the context to call the op in with these arguments, which `there` gave.

        Where no argument says which device is meant, the device is the default.
        """
        return contextlib.nullcontext() if _named(given) else torch.device("jax")


class Torchax(Way):
    """torchax's tensors under its default environment, in its accuracy mode (64-bit types, full matmul precision)."""

    caches = False
    host_arguments = False

    def __init__(self) -> None:
        torchax = importlib.import_module("torchax")
        torchax.enable_accuracy_mode()
        self._env: Any = torchax.default_env()

    def _to(self, tensor: torch.Tensor) -> Any:
        return self._env.to_xla(tensor.detach())

    def _from(self, leaf: Any) -> Any:
        if type(leaf).__module__.startswith("torchax"):
            return leaf.torch()
        if isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"a result is a plain tensor on {leaf.device}, not torchax's")
        return leaf

    def around(self, given: Any) -> contextlib.AbstractContextManager[Any]:
        """Return torchax's environment, which answers for its tensors, and the default device as another way does."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._env)
        stack.enter_context(super().around(given))
        return stack


IMPLEMENTATIONS: dict[str, Callable[[], Way]] = {"jax": Way, "torchax": Torchax}
"""Whose figures: this project's device, and torchax's tensors under its default environment."""
