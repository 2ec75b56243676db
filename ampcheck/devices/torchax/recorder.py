"""Records what each lowering of torchax receives, by standing where torchax looks lowerings up.

torchax casts inside of `Environment.dispatch`, below every mode that could be entered, so the recorder of
`ampcheck.observe.recorder` would see arguments before their casts. Nothing is excluded or taken apart for it: what is
recorded is the call as a user makes it. Composite ops that PyTorch takes apart before torchax is asked are not seen
whole.
"""

import dataclasses
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import jax
import torch
from torchax.ops import mappings
from torchax.tensor import Environment, Tensor
from torchax.view import View

from ampcheck.observe.recorder import CASTS, Cast, KernelCall, SeenLeaf, overload_name, tensors
from ampcheck.observe.torch_private import OpOverloadPacket, pytree
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.torch_dtypes import name_of

Value: TypeAlias = Any
"""A tensor of torchax or another one, a view, an array, or what else an op takes or gives."""
Array: TypeAlias = jax.Array | torch.Tensor
Lowering = Callable[..., Value]
Known = tuple[Array | None, str, int | None]
"""An array, its dtype before the casts, and the place of the input that it comes from."""


class TorchaxRecorder:
    """Records lowerings and casts of one thread while entered. `env`: a `torchax.tensor.Environment`.

    `opaque_ops`: overloads with a policy; the calls inside their lowerings are not recorded. `inputs`: the tensors that
    are followed into lowerings.
    """

    def __init__(self, env: Environment, opaque_ops: Collection[str], inputs: Sequence[torch.Tensor]) -> None:
        self.kernels: list[KernelCall] = []
        self.casts: list[Cast] = []
        self._env = env
        self._opaque_ops = opaque_ops
        self._thread = threading.get_ident()
        self._depth = 0
        # By identity of the JAX array, kept alive so that no identity is used twice: (array, dtype before, source).
        self._known: dict[int, Known] = {}
        for place, tensor in enumerate(inputs):
            self._know(tensor, _dtype(_array(tensor)), place)

    def __enter__(self) -> "TorchaxRecorder":
        # Attributes of the instance hide the methods of its class until they are taken away again.
        self._env.dispatch = self._dispatched
        self._env._get_op_or_decomp = self._looked_up
        self._env._to_copy = self._copied
        self._env.v2t_iso = self._materialised
        return self

    def __exit__(self, *exc: object) -> None:
        del self._env.dispatch, self._env._get_op_or_decomp, self._env._to_copy, self._env.v2t_iso

    def _mine(self) -> bool:
        return threading.get_ident() == self._thread

    def _dispatched(self, func: Value, types: Value, args: Value, kwargs: Value) -> Value:
        """Run a call as torchax does, which hands on calls without torchax tensors; nothing is looked up for those."""
        given = list(tensors((args, kwargs or {})))
        other = given and not any(isinstance(tensor, (Tensor, View)) for tensor in given)
        if other and isinstance(func, OpOverload) and self._mine() and not self._depth:
            self._record(overload_name(func), (args, kwargs or {}))
        return type(self._env).dispatch(self._env, func, types, args, kwargs)

    def _looked_up(self, func: Value) -> Value:
        lowering = type(self._env)._get_op_or_decomp(self._env, func)
        return dataclasses.replace(lowering, func=self._recorded(func, lowering.func)) if self._mine() else lowering

    def _recorded(self, func: Value, run: Lowering) -> Lowering:
        name = self._name(func)

        def recorded(*args: Value, **kwargs: Value) -> Value:
            if name in CASTS:
                out = run(*args, **kwargs)
                self._note(args[0], out)
                return out
            if not self._depth:
                self._record(name, (args, {key: value for key, value in kwargs.items() if key != "env"}))
            self._depth += name in self._opaque_ops
            try:
                return run(*args, **kwargs)
            finally:
                self._depth -= name in self._opaque_ops

        return recorded

    def _record(self, name: str, given: tuple[Value, dict[str, Value]]) -> None:
        dtype = given[1].get("dtype")
        told = name_of(dtype) if isinstance(dtype, torch.dtype) else None
        arrays = filter(lambda array: array is not None, map(_array, pytree.tree_leaves(given)))
        self.kernels.append(KernelCall(name, tuple(map(self._leaf, arrays)), told))

    def _name(self, func: Value) -> str:
        """Return the overload that a lowering stands for; the function's own name where it stands for no single one."""
        if isinstance(func, OpOverload):
            return overload_name(func)
        name = str(getattr(func, "__name__", func))
        plain = name.removeprefix("aten::") if isinstance(func, OpOverloadPacket) else name
        found = [overload for overload in self._opaque_ops if overload.partition(".")[0] == plain]
        return found[0] if len(found) == 1 else f"torch.{plain}"

    def _copied(self, tensor: Value, dtype: Value, device: Value) -> Value:
        out = type(self._env)._to_copy(self._env, tensor, dtype, device)
        if self._mine():
            self._note(tensor, out)
        return out

    def _materialised(self, values: Value) -> Value:
        """Make tensors of views before a lowering gets them; those count as the tensors they are views of."""

        def tensor(view: Value) -> Value:
            out = view.torch()
            if (known := self._of(view)) is not None:
                self._know(out, known[1], known[2])
            return out

        return pytree.tree_map_only(View, tensor, values)

    def _note(self, before: Value, after: Value) -> None:
        """Note a cast; its result has the source of its argument."""
        old, new = _dtype(_array(before)), _dtype(_array(after))
        if old == new or self._depth:
            return
        known = self._of(before)
        source = known[2] if known else None
        self._know(after, old, source)
        self.casts.append(Cast(old, new, source, int(after.numel() if isinstance(after, torch.Tensor) else after.size)))

    def _know(self, value: Value, given: str, source: int | None) -> None:
        array = value.source_jax() if isinstance(value, View) else _array(value)
        self._known[id(array)] = (array, given, source)

    def _of(self, value: Value) -> Known | None:
        array = value.source_jax() if isinstance(value, View) else _array(value)
        return self._known.get(id(array))

    def _leaf(self, array: Array) -> SeenLeaf:
        got = _dtype(array)
        _, given, source = self._known.get(id(array), (None, got, None))
        return SeenLeaf(given, got, not isinstance(array, torch.Tensor) or array.device.type == "jax", source)


def _array(value: Value) -> Value:
    """Return the JAX array of a torchax tensor, an array or another tensor as it is, and None for the rest."""
    if isinstance(value, Tensor):
        return value._elem
    if isinstance(value, View):
        return value.jax()
    return value if isinstance(value, (jax.Array, torch.Tensor)) else None


def _dtype(array: Value) -> str:
    return name_of(array.dtype if isinstance(array, torch.Tensor) else mappings.j2t_dtype(array.dtype))
