"""Attention: which way PyTorch goes, and the fast paths of the transformer modules.

Of lower precision the products are accumulated as accumulate.py says; scores and their softmax stay in float32, and the
softmax is rounded before it meets the values, as in PyTorch's own fused kernels.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import apart, composed, kernel
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.accumulate import linear, matmul, product
from ampcheck.jax_device.lowerings.activation import gelu, masked_softmax
from ampcheck.jax_device.lowerings.normalization import layer_norm
from ampcheck.jax_device.lowerings.wide import wide
from ampcheck.jax_device.storage.arrays import Columns

_MATH, _FLASH = 0, 1  # at::SDPBackend


@kernel("_fused_sdp_choice")
def fused_sdp_choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Choose the math path, whose parts are differentiable any number of times, unless it would leave low precision.

    PyTorch's math path computes float16 and bfloat16 in float32 throughout. They take the fused path where the lowering
    below can (no dropout, no gradient by the mask) and `torch.nn.attention.sdpa_kernel` allows it; but float16 not on
    a CPU, which has no kernel for it, so that its conversions only cost.
    """
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
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Choose as `fused_sdp_choice` says; PyTorch's own kernel asks for no such choice on a PrivateUse1 device."""
    rest = (attn_mask, dropout_p, is_causal)
    out: torch.Tensor
    if fused_sdp_choice(query, key, value, *rest, scale=scale, enable_gqa=enable_gqa) == _FLASH:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out = fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
        return out
    whole = torch.ops.aten.scaled_dot_product_attention.default
    out = apart(whole, query, key, value, *rest, scale=scale, enable_gqa=enable_gqa)
    return out


@kernel("_nested_tensor_from_mask_left_aligned")
def left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return False: nn.TransformerEncoder asks this before it makes a nested tensor, and the device has none."""
    return False


def _factor(query: Array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Array, key: Array, scale: float | None, is_causal: bool = False, mask: Array | None = None) -> Array:
    """Compute query key^T, scaled, and -inf where it is masked; in float32 for lower precision."""
    scores = product(query, Columns(key), wide(query).dtype) * _factor(query, scale)
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    if mask is not None:
        added = jnp.where(mask, 0.0, -jnp.inf) if mask.dtype == bool else mask
        scores = scores + added.astype(scores.dtype)
    return scores


def _weights(scores: Array, sums: Array) -> Array:
    """Return the softmax of the scores from the logarithms of their sums: 0 in a row that is masked as a whole."""
    return jnp.exp(scores - jnp.where(sums == -jnp.inf, 0.0, sums).astype(scores.dtype)[..., None])


@lower("_scaled_dot_product_flash_attention_for_cpu", random=True)
def attention(
    random_key: Array,
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Compute softmax(query key^T / sqrt(E) + mask) value of (N, heads, L, E), and the logarithms of its sums."""
    scores = _scores(query, key, scale, is_causal, attn_mask)
    sums = jax.nn.logsumexp(scores, axis=-1)
    weights = _weights(scores, sums)
    if dropout_p:
        # Float32 whatever the dtype: in bfloat16 a uniform number has eight bits, and the chance is off.
        kept = jax.random.uniform(random_key, weights.shape, jnp.float32) >= dropout_p
        weights = jnp.where(kept, weights / (1 - dropout_p), 0)
    return product(weights.astype(value.dtype), value), sums


@lower("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients of query, key and value. Raises NotImplementedError with dropout, whose mask is not kept."""
    if dropout_p:
        raise NotImplementedError(f"fused attention has no backward pass with dropout (dropout_p={dropout_p}) on jax")

    grad_out = grad_out.astype(query.dtype)
    weights = _weights(_scores(query, key, scale, is_causal, attn_mask), logsumexp)
    by_weights = product(grad_out, Columns(value), weights.dtype)
    shared = jnp.sum(wide(grad_out) * wide(out), -1, keepdims=True)  # each row's sum of weights * by_weights
    by_scores = (weights * (by_weights - shared) * _factor(query, scale)).astype(query.dtype)
    by_value = product(Columns(weights.astype(query.dtype)), grad_out)
    return product(by_scores, key), product(Columns(by_scores), query), by_value


@kernel("_scaled_dot_product_flash_attention")
def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Tree:
    """Compute the same for CUDA's overload, whose other results are empty."""
    compute = computed("_scaled_dot_product_flash_attention_for_cpu")
    out, sums = compute(query, key, value, dropout_p, is_causal, scale=scale)
    state, unused, debug = (query.new_empty(0, dtype=torch.int64) for _ in range(3))
    return out, sums, None, None, query.shape[2], key.shape[2], state, unused, debug.to(query.dtype)


@kernel("_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> Tree:
    """Compute the same for CUDA's overload."""
    compute = computed("_scaled_dot_product_flash_attention_for_cpu_backward")
    return compute(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale)


def _projected(array: Array, weight: Array, bias: Array, heads: int) -> Array:
    out = linear(array, weight, bias)
    return jnp.swapaxes(out.reshape(*out.shape[:2], heads, -1), 1, 2)


@lower("_native_multi_head_attention")
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array | None]:
    """Project, attend and project (N, L, E); also return the weights, or None. Without gradients.

    A mask that is not bool masks where it is not zero, as PyTorch's own kernel takes it.
    """
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    q, k, v = (_projected(x, w, b, num_head) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    scores = _scores(q, k, None)
    attended = jax.nn.softmax(scores, -1) if mask is None else masked_softmax(scores, mask != 0, -1, mask_type)
    attended = attended.astype(v.dtype)
    context = jnp.swapaxes(matmul(attended, v), 1, 2).reshape(*query.shape[:2], embed_dim)
    out = linear(context, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, jnp.mean(attended, axis=1).astype(out.dtype) if average_attn_weights else attended


@lower("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    """Run a whole encoder layer in eval mode, (N, L, E)."""

    def first(x: Array) -> Array:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)[0].astype(src.dtype)

    def second(x: Array) -> Array:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)[0].astype(src.dtype)

    def attend(x: Array) -> Array:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *parts, mask, False, mask_type=mask_type)[0]

    def feed(x: Array) -> Array:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        inner = gelu(inner).astype(src.dtype) if use_gelu else jnp.maximum(inner, 0)
        return linear(inner, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src_ = src + attend(first(src))
        return src_ + feed(second(src_))
    src_ = first(src + attend(src))
    return second(src_ + feed(src_))
