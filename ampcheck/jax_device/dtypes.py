"""PyTorch dtypes and JAX dtypes, one for one, and PyTorch's type promotion."""

from collections.abc import Iterable
from numbers import Number

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.torch_private import PromotionKind, elementwise_dtypes, pytree
from ampcheck.register.torch_private import OpOverload

_SHARED = (
    "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
TO_JAX: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(jnp.bool_),
    **{getattr(torch, name): np.dtype(getattr(jnp, name)) for name in _SHARED.split()},
}
_LOW = frozenset({TO_JAX[torch.float16], TO_JAX[torch.bfloat16]})
TO_TORCH: dict[np.dtype, torch.dtype] = {ours: theirs for theirs, ours in TO_JAX.items()}


def jax_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the JAX dtype that holds the same numbers.

    Raises NotImplementedError for one JAX lacks (quantized, complex32).
    """
    try:
        return TO_JAX[dtype]
    except KeyError:
        raise NotImplementedError(f"the jax device has no {dtype}: JAX has no such dtype") from None


def opmath_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which PyTorch computes with numbers of a dtype: float32 for float16 and bfloat16.

    ATen/OpMathType.h. A formula of several steps is then rounded once, and 0.999 beside bfloat16 does not become 1.
    """
    return TO_JAX[torch.float32] if dtype in _LOW else dtype


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the PyTorch dtype of an array's dtype. Raises NotImplementedError for one PyTorch lacks (int4, keys)."""
    try:
        return TO_TORCH[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise NotImplementedError(f"PyTorch has no dtype for JAX's {dtype}") from None


_UNPROMOTED = {torch.uint16, torch.uint32, torch.uint64}


def _operands(args: Iterable[Tree]) -> list[Tree]:
    return [leaf for leaf in pytree.tree_leaves(list(args)) if isinstance(leaf, (torch.Tensor, Number))]


def common_dtype(args: Iterable[Tree]) -> np.dtype | None:
    """Return the dtype in which an elementwise op computes on these tensors and numbers; None without tensors.

    Numbers meet float16 and bfloat16 in float32, as PyTorch's opmath type does (ATen/OpMathType.h): 0.999 in bfloat16
    would be 1.
    """
    operands = _operands(args)
    if not any(isinstance(o, torch.Tensor) for o in operands):
        return None
    _, result = elementwise_dtypes(*operands, type_promotion_kind=PromotionKind.DEFAULT)
    if result in (torch.float16, torch.bfloat16) and any(not isinstance(o, torch.Tensor) for o in operands):
        return jax_dtype(torch.float32)
    return jax_dtype(result)


def check_promotion(op: OpOverload, args: Iterable[Tree]) -> None:
    """Raise RuntimeError, as PyTorch does, where an op would promote uint16, uint32 or uint64 to another integer dtype.

    PyTorch's Meta kernels written in Python promote them by rules of their own. A bool tensor may be a mask.
    """
    tensors = [o for o in _operands(args) if isinstance(o, torch.Tensor) and o.dtype is not torch.bool]
    if (torch.Tag.pointwise in op.tags or op is torch.ops.aten.cat.default) and any(
        t.dtype in _UNPROMOTED for t in tensors
    ):
        for other in tensors[1:]:
            torch.result_type(tensors[0], other)


_NORMS = (
    "native_layer_norm native_group_norm _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_with_update_functional"
)
_ALIKE: dict[str, tuple[int, ...]] = {
    "mm bmm mv dot addmm addmv baddbmm addbmm convolution_overrideable linalg_cross heaviside": (),
    "grid_sampler_2d grid_sampler_3d _softmax_backward_data histogram.bins_tensor histogram.bin_ct": (),
    "_histogramdd_bin_edges _histogramdd_from_bin_tensors _histogramdd_from_bin_cts": (),
    _NORMS: (),
    "index_put _unsafe_index_put _index_put_impl put nll_loss_forward nll_loss2d_forward": (0, 2),
    "index_add index_copy index_reduce": (0, 3),
    "_embedding_bag _embedding_bag_forward_only": (0, 6),
    "binary_cross_entropy": (0, 1),
}
_PLACES = {name: places for names, places in _ALIKE.items() for name in names.split()}
"""Overloads whose tensors, or those at some places, CPU kernels want in one dtype; Meta kernels take more."""


def check_one_dtype(name: str, args: list[Tree], kwargs: dict[str, Tree]) -> None:
    """Raise RuntimeError, as PyTorch does, for tensors of two dtypes that an overload does not take together.

    Normalizations take a low-precision input with float32 beside it.
    """
    if (places := _PLACES.get(name)) is None:
        return
    given = [args[place] for place in places if place < len(args)] if places else [args, kwargs]
    dtypes = list(dict.fromkeys(x.dtype for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)))
    beside = dtypes[0] in (torch.float16, torch.bfloat16) and dtypes[1:] == [torch.float32] and name in _NORMS.split()
    if len(dtypes) > 1 and not beside:
        raise RuntimeError(f"aten::{name} expected tensors of the same dtype, but got {', '.join(map(str, dtypes))}")


def convert(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return the array in another dtype, as `Tensor.to` converts: a complex number gives its real part."""
    if array.dtype == dtype:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        array = (array != 0) if dtype == jnp.bool_ else array.real
    return array.astype(dtype)


def common_dtype_of(operands: Iterable[Tree]) -> np.dtype | None:
    """Return `common_dtype` inside a lowering, of arrays and traced numbers, which are weakly typed arrays."""
    return common_dtype([_example(o) for o in operands])


def _example(operand: Tree) -> Tree:
    if not isinstance(operand, jax.Array):
        return operand
    # Promotion asks for the type of a number, not for its value.
    if operand.weak_type and not operand.shape:
        return operand.dtype.type(1).item()
    return torch.empty(operand.shape, dtype=torch_dtype(operand.dtype), device="meta")
