"""Across the border, without a copy: arrays as tensors (`from_jax`), JAX functions as PyTorch ones (`j2t_autograd`).

And the reverse of both (`to_jax`, `t2j`), and what DLPack needs to know of the device's tensors."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from ampcheck.jax_device.annotations import NAME, Args, Device, Function, Kwargs, Tree
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import guarded, wrap
from ampcheck.jax_device.storage.transfer import values
from ampcheck.jax_device.torch_private import pytree


def to_jax(tensor: Tensor) -> jax.Array:
    """Return the values of a tensor of the device, as an array of its shape.

    No copy where the tensor is all of its storage: arrays never change, and a later write to the tensor gives its
    storage another array. Raises TypeError for a tensor of another device, RuntimeError for one that requires grad.
    """
    if tensor.device.type != NAME:
        raise TypeError(
            f"to_jax takes a tensor of the jax device, got one on {tensor.device}; use tensor.to('jax') first"
        )
    if tensor.requires_grad:
        raise RuntimeError("to_jax cannot take a tensor that requires grad; use tensor.detach()")
    return transfer.values(tensor.resolve_conj().resolve_neg())


def from_jax(array: jax.Array) -> Tensor:
    """Return a contiguous tensor of the device on the array, without a copy; writes to it leave the array as it is.

    Raises TypeError for what is no `jax.Array`, NotImplementedError for a dtype that PyTorch lacks.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax takes a jax.Array, got {type(array).__name__}")
    return wrap(array)


def _exported(tensor: Tensor) -> Tree:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    return transfer.values(tensor.resolve_neg())


def _capsule(
    tensor: Tensor, *, stream: int | None = -1, max_version: Tree = None, dl_device: Tree = None, copy: Tree = None
) -> Tree:
    """Return the tensor's values as a DLPack capsule on JAX's device.

    A capsule of DLPack 1.0 says that it is read only. An older one cannot, so it holds a copy: a consumer that writes
    would change an array that other tensors may share.
    """
    array = _exported(tensor)
    versioned = max_version is not None and max_version[0] >= 1
    if not versioned and copy is not False:
        copy = True
    if copy:
        array, copy = jnp.array(array, copy=True), None
    waited = None if stream == -1 else stream
    return array.__dlpack__(stream=waited, max_version=max_version, dl_device=dl_device, copy=copy)


def install() -> None:
    """Divert PyTorch's DLPack functions, which would export null pointers, for tensors of the device."""
    dlpack, dlpack_device = Tensor.__dlpack__, Tensor.__dlpack_device__
    from_dlpack: Function = torch.utils.dlpack.from_dlpack
    to_dlpack: Function = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]

    @functools.wraps(to_dlpack)
    def exported(tensor: Tensor, *args: Tree, **kwargs: Tree) -> Tree:
        return _capsule(tensor) if tensor.device.type == NAME else to_dlpack(tensor, *args, **kwargs)

    @functools.wraps(dlpack)
    def __dlpack__(self: Tensor, **kwargs: Any) -> Tree:
        return _capsule(self, **kwargs) if self.device.type == NAME else dlpack(self, **kwargs)

    @functools.wraps(dlpack_device)
    def __dlpack_device__(self: Tensor) -> Tree:
        return _exported(self).__dlpack_device__() if self.device.type == NAME else dlpack_device(self)

    @functools.wraps(from_dlpack)
    def imported(ext_tensor: Tree, *, device: Device = None, copy: bool | None = None) -> Tensor:
        """Import as PyTorch does; a tensor of the device gives a tensor of the device on the same storage."""
        if device is None or torch.device(device).type == NAME:
            if isinstance(ext_tensor, Tensor) and ext_tensor.device.type == NAME:
                return ext_tensor.detach().clone() if copy else ext_tensor.detach()
            if isinstance(ext_tensor, jax.Array) and device is not None:
                return wrap(ext_tensor)
        given: Kwargs = {"device": device, "copy": copy}
        made: Tensor = from_dlpack(ext_tensor, **{n: value for n, value in given.items() if value is not None})
        return made

    Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
    modules: Args = (torch, torch.utils.dlpack)
    for module in modules:
        module.from_dlpack, module.to_dlpack = imported, exported


def j2t_autograd(fn: Function | None = None, *, cast_inputs: torch.dtype | None = None) -> Function:
    """Return a differentiable PyTorch function out of a JAX function; also a decorator.

    `fn` takes and returns arrays in any nesting of tuples, lists and dicts. Tensors of the device among the arguments
    reach it as arrays; everything else reaches it as it is and is part of the compiled program (so it is hashed; what
    cannot be hashed is not compiled). It is differentiated by JAX, to any order, with respect to the floating-point and
    complex tensors that require grad; integer and boolean results have no gradient. Gradients follow PyTorch's
    convention for complex numbers, the conjugate of JAX's.

    `cast_inputs`: as in `torch.amp.custom_fwd`: inside an enabled `torch.autocast("jax")` region, floating-point
    tensors of the device other than float64 are cast to that dtype first. None leaves them as given, in every region.

    Raises RuntimeError for a tensor on another device, TypeError where `fn` returns what is no array.
    """
    if fn is None:
        return functools.partial(j2t_autograd, cast_inputs=cast_inputs)
    forms: dict[object, Function] = {}  # by what is not a tensor among the arguments

    @functools.wraps(fn)
    def call(*args: Tree, **kwargs: Tree) -> Tree:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if cast_inputs is not None and torch.is_autocast_enabled(NAME):
            with torch.autocast(NAME, enabled=False):
                leaves = [_cast(leaf, cast_inputs) for leaf in leaves]
        return guarded(_across)(fn, forms, leaves, tree)

    return call


def _cast(leaf: Tree, dtype: torch.dtype) -> Tree:
    eligible = (
        isinstance(leaf, Tensor)
        and leaf.is_floating_point()
        and leaf.device.type == NAME
        and leaf.dtype is not torch.float64
    )
    return leaf.to(dtype) if eligible else leaf


def _across(fn: Function, forms: dict[object, Function], leaves: Sequence[Tree], tree: pytree.TreeSpec) -> Tree:
    """Call a JAX function on the leaves of its arguments, by its compiled form."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.device.type != NAME:
            raise RuntimeError(f"j2t_autograd: leaf {position} of the arguments is on {leaf.device}, not on {NAME}")
    static = tuple(None if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
    key = (static, tree)
    try:
        form = forms.get(key)
        if form is None:
            form = forms[key] = _formed(fn, static, tree, compiled=True)
    except TypeError:  # an argument that cannot be hashed
        form = _formed(fn, static, tree, compiled=False)
    return form(tensors)


def _formed(fn: Function, static: Sequence[Tree], tree: Tree, *, compiled: bool) -> Function:
    """Return a JAX function as one of the tensors among its arguments."""
    out_tree: list[Tree] = []

    def flat(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        rest = iter(arrays)
        args, kwargs = pytree.tree_unflatten([next(rest) if s is None else s[1] for s in static], tree)
        leaves, spec = jax.tree.flatten(fn(*args, **kwargs))
        out_tree[:] = [spec]
        return tuple(_array(leaf) for leaf in leaves)

    form = _Form(flat, compiled=compiled)

    def run(tensors: Sequence[Tensor]) -> Tree:
        out = form(tensors)
        return jax.tree.unflatten(out_tree[0], out)

    return run


class _Form:
    """A JAX function of arrays alone, flat in and out."""

    def __init__(self, flat: Function, *, compiled: bool) -> None:
        self.flat, self.compiled = flat, compiled
        self.jit = functools.partial(jax.jit, inline=True) if compiled else (lambda fn: fn)
        self.forward = self.jit(flat)
        self.with_vjp: dict[tuple[int, ...], Function] = {}
        self.backward: Function = self.jit(lambda vjp, cotangents: vjp(cotangents))
        self.gradients: dict[tuple[tuple[int, ...], int], _Form] = {}

    def __call__(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        out: Sequence[Tensor] = _FormCall.apply(self, _Holder(), *tensors)
        return out

    def linearized(self, wanted: tuple[int, ...], arrays: Sequence[jax.Array]) -> tuple[Tree, Tree]:
        """Return the results, and the function from their cotangents to those of the arguments `wanted`."""
        if wanted not in self.with_vjp:

            def run(*all_arrays: jax.Array) -> tuple[Tree, Tree]:
                return jax.vjp(_only(self.flat, wanted, all_arrays), *(all_arrays[i] for i in wanted))

            self.with_vjp[wanted] = self.jit(run)
        out, vjp = self.with_vjp[wanted](*arrays)
        return out, vjp

    def gradient(self, wanted: tuple[int, ...], count: int) -> "_Form":
        """Return the function from `count` arguments and cotangents to the cotangents of the arguments `wanted`."""

        def gradient(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            primals, cotangents = arrays[:count], arrays[count:]
            out, vjp = jax.vjp(_only(self.flat, wanted, primals), *(primals[i] for i in wanted))
            return tuple(_conjugated(vjp(_cotangents(out, cotangents))))

        key = (wanted, count)
        if key not in self.gradients:
            self.gradients[key] = _Form(gradient, compiled=self.compiled)
        return self.gradients[key]


def _only(flat: Function, wanted: tuple[int, ...], arrays: Sequence[jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
    """Return `flat` as a function of the arguments `wanted` alone."""

    def run(*chosen: jax.Array) -> tuple[jax.Array, ...]:
        full = list(arrays)
        for i, array in zip(wanted, chosen, strict=True):
            full[i] = array
        out: tuple[jax.Array, ...] = flat(*full)
        return out

    return run


def _array(leaf: Tree) -> jax.Array:
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise TypeError(f"j2t_autograd: the function returned {type(leaf).__name__}, which is no array") from error


def _inexact(array: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def _conjugated(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Convert gradients of complex numbers from JAX's convention to PyTorch's, or back."""
    return [jnp.conj(a) if jnp.iscomplexobj(a) else a for a in arrays]


def _cotangents(out: Sequence[jax.Array], given: Sequence[jax.Array]) -> Args:
    """Return JAX's cotangents of the results: one for each inexact one from `given`, float0 for the others."""
    rest = iter(_conjugated(given))
    return tuple(next(rest).astype(o.dtype) if _inexact(o) else jnp.zeros(o.shape, jax.dtypes.float0) for o in out)


class _Holder:
    """What the forward keeps for the backward: it has no place of its own in `setup_context`."""

    vjp: Function | None = None
    wanted: tuple[int, ...] = ()
    out: Sequence[jax.ShapeDtypeStruct] = ()


class _FormCall(torch.autograd.Function):
    """One call of a `_Form` on tensors."""

    @staticmethod
    def forward(form: _Form, holder: _Holder, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = [values(t) for t in tensors]
        wanted = tuple(i for i, t in enumerate(tensors) if t.requires_grad and _inexact(arrays[i]))
        if wanted:
            out, holder.vjp = form.linearized(wanted, arrays)
            holder.wanted = wanted
        else:
            out = form.forward(*arrays)
        holder.out = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in out]
        return tuple(wrap(o) for o in out)

    @staticmethod
    def setup_context(ctx: Tree, inputs: Args, output: Sequence[Tensor]) -> None:
        form, holder, *tensors = inputs
        ctx.form, ctx.out, ctx.held, ctx.vjp = form, holder.out, holder.wanted, holder.vjp
        ctx.wanted = tuple(
            i for i, t in enumerate(tensors) if t.requires_grad and (t.is_floating_point() or t.is_complex())
        )
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(o for o in output if not (o.is_floating_point() or o.is_complex())))

    @staticmethod
    def backward(ctx: Tree, *grads: Tensor) -> Tree:
        tensors = ctx.saved_tensors
        cotangents = [g for g, o in zip(grads, ctx.out, strict=True) if _inexact(o)]
        # With create_graph=True from the arguments again, so that the gradient has one in turn; also under torch.func,
        # whose forward cannot tell which tensors require grad.
        if torch.is_grad_enabled() or ctx.held != ctx.wanted:
            found = ctx.form.gradient(ctx.wanted, len(tensors))([*tensors, *cotangents])
        else:
            arrays = _cotangents(ctx.out, [values(g) for g in cotangents])
            found = [wrap(a) for a in _conjugated(ctx.form.backward(ctx.vjp, arrays))]
        out: list[Tree] = [None] * len(tensors)
        for i, gradient_of in zip(ctx.wanted, found, strict=True):
            out[i] = gradient_of
        return None, None, *out


def t2j(fn: Function) -> Function:
    """Make a JAX function of a PyTorch one: differentiable in reverse mode, to any order, and traceable by `jax.jit`.

    `fn` takes tensors of the device and returns them, in any nesting of tuples, lists and dicts; arrays among the
    arguments reach it as such tensors, everything else as it is. The gradient is PyTorch's: what `fn` detaches, or
    computes in a `torch.autograd.Function`, is honoured. It is computed from the arguments again; under `jax.jit` XLA
    merges that with the forward. `jax.jvp` is not served.
    """

    @functools.wraps(fn)
    def call(*args: Tree, **kwargs: Tree) -> Tree:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        shell = [None if _is_array(leaf) else (leaf,) for leaf in leaves]
        out_tree: list[Tree] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors)
            inner_args, inner_kwargs = jax.tree.unflatten(tree, [next(rest) if s is None else s[0] for s in shell])
            out, spec = pytree.tree_flatten(fn(*inner_args, **inner_kwargs))
            out_tree[:] = [spec]
            return out

        out = _on_arrays(flat)(*arrays)
        return pytree.tree_unflatten(out, out_tree[0])

    return call


def _is_array(leaf: Tree) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _on_arrays(flat: Callable[..., Sequence[Tensor]]) -> Function:
    """Return a flat function of tensors as one of arrays, with PyTorch's gradient."""

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        with torch.enable_grad():
            return tuple(values(t) for t in flat(*(wrap(jnp.asarray(a)) for a in arrays)))

    def forward(*arrays: jax.Array) -> tuple[Tree, Tree]:
        return run(*arrays), arrays

    def backward(arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> Args:
        wanted = [i for i, a in enumerate(arrays) if _inexact(a)]
        given = _conjugated([c for c in cotangents if c.dtype != jax.dtypes.float0])
        found = iter(_conjugated(_on_arrays(_gradient(flat, wanted, len(arrays)))(*arrays, *given)))
        return tuple(next(found) if i in wanted else None for i in range(len(arrays)))

    differentiable = jax.custom_vjp(run)
    differentiable.defvjp(forward, backward)
    return differentiable


def _gradient(flat: Callable[..., Sequence[Tensor]], wanted: Sequence[int], count: int) -> Function:
    """Return a function from arguments and gradients of `flat`'s inexact results to those of the arguments `wanted`."""

    def gradient(*tensors: Tensor) -> list[Tensor]:
        primals, grads = list(tensors[:count]), tensors[count:]
        again = any(t.requires_grad for t in tensors)
        # JAX's tracers belong to a thread, so the backward stays on this one.
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            for i in wanted:
                primals[i] = primals[i] if primals[i].requires_grad else primals[i].detach().requires_grad_()
            out = [o for o in flat(*primals) if o.is_floating_point() or o.is_complex()]
            reached = [(o, g) for o, g in zip(out, grads, strict=True) if o.requires_grad]
            inputs, options = [primals[i] for i in wanted], {"allow_unused": True, "materialize_grads": True}
            if not reached:
                return [torch.zeros_like(given) for given in inputs]
            outs, gradients = zip(*reached, strict=True)
            return list(torch.autograd.grad(outs, inputs, gradients, create_graph=again, **options))

    return gradient
