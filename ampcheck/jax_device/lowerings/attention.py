"""Attention: which way PyTorch goes, and the fast paths of the transformer modules."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.activation import gelu, masked_softmax
from ampcheck.jax_device.lowerings.normalization import layer_norm
from ampcheck.jax_device.lowerings.wide import pullback, wide
from ampcheck.jax_device.special import kernel

_MATH = 0  # at::SDPBackend


@kernel("_fused_sdp_choice")
def fused_sdp_choice(*_: Any, **__: Any) -> int:
    """The math path: XLA fuses it, and its parts are differentiable any number of times."""
    return _MATH


@kernel("_nested_tensor_from_mask_left_aligned")
def left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """No: nn.TransformerEncoder asks this before it makes a nested tensor, and the device has none."""
    return False


def _scores(query: Any, key: Any, scale: float | None) -> Any:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return wide(jnp.matmul(query, jnp.swapaxes(key, -1, -2))) * factor


@lower("_scaled_dot_product_flash_attention_for_cpu", random=True)
def attention(
    random_key: Any,
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """softmax(query key^T / sqrt(E) + mask) value of (N, heads, L, E), and the logarithms of the softmax's sums."""
    scores = _scores(query, key, scale)
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    if attn_mask is not None:
        masked = jnp.where(attn_mask, 0.0, -jnp.inf) if attn_mask.dtype == bool else attn_mask
        scores = scores + masked.astype(scores.dtype)
    sums = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - sums[..., None])
    if dropout_p:
        kept = jax.random.uniform(random_key, weights.shape, jnp.float32) >= dropout_p
        weights = jnp.where(kept, weights / (1 - dropout_p), 0)
    return jnp.matmul(weights.astype(value.dtype), value), sums


@lower("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """The gradients of query, key and value. Raises NotImplementedError with dropout, whose mask is not kept."""
    if dropout_p:
        raise NotImplementedError(f"fused attention has no backward pass with dropout (dropout_p={dropout_p}) on jax")

    def forward(q: Any, k: Any, v: Any) -> Any:
        return attention(None, q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]

    return pullback(forward, grad_out, query, key, value)


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
) -> Any:
    """The same for CUDA's overload, whose other results are empty."""
    from ampcheck.jax_device.install import computed

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
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> Any:
    """The same for CUDA's overload."""
    from ampcheck.jax_device.install import computed

    compute = computed("_scaled_dot_product_flash_attention_for_cpu_backward")
    return compute(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale)


def _projected(array: Any, weight: Any, bias: Any, heads: int) -> Any:
    out = jnp.matmul(array, weight.T) + bias
    return jnp.swapaxes(out.reshape(*out.shape[:2], heads, -1), 1, 2)


@lower("_native_multi_head_attention")
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Projections, attention and output projection of (N, L, E); and the weights, or None. Without gradients.

    A mask that is not bool masks where it is not zero, as PyTorch's own kernel takes it.
    """
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    q, k, v = (_projected(x, w, b, num_head) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    scores = _scores(q, k, None)
    attended = jax.nn.softmax(scores, -1) if mask is None else masked_softmax(scores, mask != 0, -1, mask_type)
    attended = attended.astype(v.dtype)
    context = jnp.swapaxes(jnp.matmul(attended, v), 1, 2).reshape(*query.shape[:2], embed_dim)
    out = jnp.matmul(context, proj_weight.T) + proj_bias
    if not need_weights:
        return out, None
    return out, jnp.mean(attended, axis=1).astype(out.dtype) if average_attn_weights else attended


@lower("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """A whole encoder layer in eval mode, (N, L, E)."""

    def first(x: Any) -> Any:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)[0].astype(src.dtype)

    def second(x: Any) -> Any:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)[0].astype(src.dtype)

    def attend(x: Any) -> Any:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *parts, mask, False, mask_type=mask_type)[0]

    def feed(x: Any) -> Any:
        inner = jnp.matmul(x, ffn_weight_1.T) + ffn_bias_1
        inner = gelu(inner).astype(src.dtype) if use_gelu else jnp.maximum(inner, 0)
        return jnp.matmul(inner, ffn_weight_2.T) + ffn_bias_2

    if norm_first:
        src_ = src + attend(first(src))
        return src_ + feed(second(src_))
    src_ = first(src + attend(src))
    return second(src_ + feed(src_))
