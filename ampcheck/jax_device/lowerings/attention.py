"""Attention: which way PyTorch goes, and the fast paths of the transformer modules.

Of lower precision the products are accumulated as accumulate.py says; scores and their softmax stay in float32, and the
softmax is rounded before it meets the values, as in PyTorch's own fused kernels.
"""

import math

import jax
import jax.numpy as jnp
import torch
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Args, Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import apart, composed, kernel
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.accumulate import linear, matmul, product, wide
from ampcheck.jax_device.lowerings.layers import gelu, layer_norm, masked_softmax
from ampcheck.jax_device.storage.arrays import Columns

_MATH, _FLASH = 0, 1  # at::SDPBackend
_REST: Args = (None, 0.0, False)  # the defaults of mask, dropout and causality


@kernel("_fused_sdp_choice")
def fused_sdp_choice(
    query: Tensor, key: Tensor, value: Tensor, *rest: Tree, enable_gqa: bool = False, **_: Tree
) -> int:
    """Choose the math path, whose parts are differentiable any number of times, unless it would leave low precision.

    PyTorch's math path computes float16 and bfloat16 in float32 throughout. They take the fused path where the lowering
    below can (no dropout, no gradient by the mask) and `torch.nn.attention.sdpa_kernel` allows it; but float16 not on
    a CPU, which has no kernel for it, so that its conversions only cost. `rest`: mask, dropout, whether it is causal.
    """
    attn_mask, dropout_p, is_causal = rest + _REST[len(rest) :]
    quick = torch.bfloat16 if jax.default_backend() == "cpu" else torch.float16
    low = query.dtype in (quick, torch.bfloat16) and torch.backends.cuda.flash_sdp_enabled()
    alike = query.dtype == key.dtype == value.dtype and query.dim() == key.dim() == value.dim() == 4
    if not low or not alike or dropout_p or enable_gqa or 0 in (query.numel(), key.numel()):
        return _MATH
    shapes = query.shape[:2] == key.shape[:2] and query.shape[3] == key.shape[3] and key.shape == value.shape
    if attn_mask is not None:
        shapes = shapes and not is_causal and attn_mask.dtype in (torch.bool, torch.float32, query.dtype)
        shapes = shapes and not (attn_mask.requires_grad and torch.is_grad_enabled())
    return _FLASH if shapes else _MATH


@composed("scaled_dot_product_attention")
def scaled_dot_product_attention(*args: Tree, **options: Tree) -> Tree:
    """Choose as `fused_sdp_choice` says; PyTorch's own kernel asks for no such choice on a PrivateUse1 device."""
    if fused_sdp_choice(*args, **options) == _MATH:
        return apart(torch.ops.aten.scaled_dot_product_attention.default, *args, **options)
    attn_mask, dropout_p, is_causal = args[3:] + _REST[len(args) - 3 :]
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return fused(*args[:3], dropout_p, is_causal, attn_mask=attn_mask, scale=options.get("scale"))[0]


# nn.TransformerEncoder asks this before it makes a nested tensor, and the device has none.
kernel("_nested_tensor_from_mask_left_aligned")(lambda t, mask: False)


def _factor(query: Array, scale: float | None = None, **_: Tree) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: Array, key: Array, is_causal: bool = False, *, attn_mask: Array | None = None, scale: float | None = None
) -> Array:
    """Compute query key^T, scaled, and -inf where it is masked; in float32 for lower precision."""
    scores = product(query, Columns(key), wide(query).dtype) * _factor(query, scale)
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    if attn_mask is not None:
        added = jnp.where(attn_mask, 0.0, -jnp.inf) if attn_mask.dtype == bool else attn_mask
        scores = scores + added.astype(scores.dtype)
    return scores


def _weights(scores: Array, sums: Array) -> Array:
    """Return the softmax of the scores from the logarithms of their sums: 0 in a row that is masked as a whole."""
    return jnp.exp(scores - jnp.where(sums == -jnp.inf, 0.0, sums).astype(scores.dtype)[..., None])


@lower("_scaled_dot_product_flash_attention_for_cpu", random=True)
def attention(
    random_key: Array, query: Array, key: Array, value: Array, dropout_p: float = 0.0, *causal: bool, **options: Tree
) -> tuple[Array, Array]:
    """Compute softmax(query key^T / sqrt(E) + mask) value of (N, heads, L, E), and the logarithms of its sums."""
    scores = _scores(query, key, *causal, **options)
    sums = jax.nn.logsumexp(scores, axis=-1)
    weights = _weights(scores, sums)
    if dropout_p:
        # Float32 whatever the dtype: in bfloat16 a uniform number has eight bits, and the chance is off.
        kept = jax.random.uniform(random_key, weights.shape, jnp.float32) >= dropout_p
        weights = jnp.where(kept, weights / (1 - dropout_p), 0)
    return product(weights.astype(value.dtype), value), sums


@lower("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Array, query: Array, key: Array, value: Array, out: Array, sums: Array, *rest: Tree, **options: Tree
) -> tuple[Array, Array, Array]:
    """Return the gradients of query, key and value. Raises NotImplementedError with dropout, whose mask is not kept."""
    dropout_p, is_causal = rest
    if dropout_p:
        raise NotImplementedError(f"fused attention has no backward pass with dropout (dropout_p={dropout_p}) on jax")
    grad_out = grad_out.astype(query.dtype)
    weights = _weights(_scores(query, key, is_causal, **options), sums)
    by_weights = product(grad_out, Columns(value), weights.dtype)
    shared = jnp.sum(wide(grad_out) * wide(out), -1, keepdims=True)  # each row's sum of weights * by_weights
    by_scores = (weights * (by_weights - shared) * _factor(query, **options)).astype(query.dtype)
    by_value = product(Columns(weights.astype(query.dtype)), grad_out)
    return product(by_scores, key), product(Columns(by_scores), query), by_value


@kernel("_scaled_dot_product_flash_attention")
def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *_: bool, **scale: Tree
) -> Tree:
    compute = computed("_scaled_dot_product_flash_attention_for_cpu")
    out, sums = compute(query, key, value, dropout_p, is_causal, **scale)
    state, unused, debug = (query.new_empty(0, dtype=torch.int64) for _ in range(3))
    return out, sums, None, None, query.shape[2], key.shape[2], state, unused, debug.to(query.dtype)


@kernel("_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(*args: Tree, **scale: Tree) -> Tree:
    """Compute the same for CUDA's overload, which is given the lengths of sequences and a seed besides."""
    grad_out, query, key, value, out, logsumexp, _, _, _, _, dropout_p, is_causal, *_seed = args
    compute = computed("_scaled_dot_product_flash_attention_for_cpu_backward")
    return compute(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, **scale)


def _projected(array: Array, weight: Array, bias: Array, heads: int) -> Array:
    out = linear(array, weight, bias)
    return jnp.swapaxes(out.reshape(*out.shape[:2], heads, -1), 1, 2)


@lower("_native_multi_head_attention")
def multi_head_attention(
    query: Array, key: Array, value: Array, embed_dim: int, num_head: int, *given: Tree
) -> tuple[Array, Array | None]:
    """Project, attend and project (N, L, E); also return the weights, or None. Without gradients.

    `given`: weight and bias of the projections in and out; mask, whether the weights are wanted, and averaged over the
    heads, and what the mask's shape is. A mask that is not bool masks where it is not zero, as PyTorch's own kernel
    takes it.
    """
    qkv_weight, qkv_bias, proj_weight, proj_bias = given[:4]
    defaults: Args = (None, True, True, None)
    mask, need_weights, average_attn_weights, mask_type = given[4:] + defaults[len(given) - 4 :]
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    q, k, v = (_projected(x, w, b, num_head) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    scores = _scores(q, k)
    attended = jax.nn.softmax(scores, -1) if mask is None else masked_softmax(scores, mask != 0, -1, mask_type)
    attended = attended.astype(v.dtype)
    context = jnp.swapaxes(matmul(attended, v), 1, 2).reshape(*query.shape[:2], embed_dim)
    out = linear(context, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, jnp.mean(attended, axis=1).astype(out.dtype) if average_attn_weights else attended


@lower("_transformer_encoder_layer_fwd")
def encoder_layer(src: Array, embed_dim: int, num_heads: int, *given: Tree) -> Array:
    """Run a whole encoder layer in eval mode, (N, L, E).

    `given`: weight and bias of the attention's projections; whether gelu is used and the norms come first, their eps;
    weight and bias of the norms and of the feed-forward layers, twice each; a mask and its kind, or none.
    """
    projections, (use_gelu, norm_first, eps), norms, layers = given[:4], given[4:7], given[7:11], given[11:15]
    mask, mask_type = (*given[15:], None, None)[:2]

    def normed(x: Array, weight: Array, bias: Array) -> Array:
        return layer_norm(x, (embed_dim,), weight, bias, eps)[0].astype(src.dtype)

    def attend(x: Array) -> Array:
        return multi_head_attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed(x: Array) -> Array:
        inner = linear(x, *layers[:2])
        inner = gelu(inner).astype(src.dtype) if use_gelu else jnp.maximum(inner, 0)
        return linear(inner, *layers[2:])

    if norm_first:
        src_ = src + attend(normed(src, *norms[:2]))
        return src_ + feed(normed(src_, *norms[2:]))
    src_ = normed(src + attend(src), *norms[:2])
    return normed(src_ + feed(src_), *norms[2:])
