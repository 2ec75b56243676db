"""Reference models in JAX, with the casts that PyTorch's autocast makes: the other side of bench/jax_steps.py.

Products accumulate in float32 and are rounded once, forward and backward (`preferred_element_type`), because a CPU is
fast only so. JAX's own derivative of such a product would multiply a float32 by a bfloat16 operand: hence `custom_vjp`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

LOW = jnp.bfloat16
Parameters = dict[str, jax.Array]


def _multiply(a: jax.Array, b: jax.Array, over: Any, batch: Any = ((), ())) -> jax.Array:
    """Return a product over some dimensions of each operand, accumulated in float32 and rounded once."""
    return jax.lax.dot_general(a, b, (over, batch), preferred_element_type=jnp.float32).astype(LOW)


@jax.custom_vjp
def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute x @ weight^T for x of (…, in) and a weight of (out, in)."""
    return _multiply(x, weight, ((x.ndim - 1,), (1,)))


def _product_backward(kept: Any, grad: jax.Array) -> Any:
    x, weight = kept
    rows = tuple(range(x.ndim - 1))
    return _multiply(grad, weight, ((x.ndim - 1,), (0,))), _multiply(grad, x, (rows, rows))


product.defvjp(lambda x, weight: (product(x, weight), (x, weight)), _product_backward)


@jax.custom_vjp
def biased(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """Compute x @ weight^T + bias, rounded once; PyTorch sums a bias's gradient in float32, JAX would in bfloat16."""
    over = ((x.ndim - 1,), (1,))
    out = jax.lax.dot_general(x, weight, (over, ((), ())), preferred_element_type=jnp.float32)
    return (out + bias).astype(LOW)


biased.defvjp(
    lambda x, weight, bias: (biased(x, weight, bias), (x, weight)),
    lambda kept, grad: (*_product_backward(kept, grad), jnp.sum(grad, range(grad.ndim - 1))),
)


@jax.custom_vjp
def batched(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute a @ b of (N, heads, m, k) and (N, heads, k, n)."""
    return _multiply(a, b, ((3,), (2,)), ((0, 1), (0, 1)))


def _batched_backward(kept: Any, grad: jax.Array) -> Any:
    a, b = kept
    each = ((0, 1), (0, 1))
    return _multiply(grad, b, ((3,), (3,)), each), _multiply(a, grad, ((2,), (2,)), each)


batched.defvjp(lambda a, b: (batched(a, b), (a, b)), _batched_backward)


def _convolved(x: jax.Array, weight: jax.Array, dtype: Any = LOW) -> jax.Array:
    return jax.lax.conv_general_dilated(x, weight, (1, 1), [(1, 1), (1, 1)], preferred_element_type=dtype)


@jax.custom_vjp
def convolution(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute a 3 x 3 convolution of (N, C, H, W), padded by 1."""
    return _convolved(x, weight, jnp.float32).astype(LOW)


convolution.defvjp(
    lambda x, weight: (convolution(x, weight), (x, weight)),
    lambda kept, grad: jax.vjp(_convolved, *kept)[1](grad),  # XLA's program is the one of float32 results
)


def linear(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    """Compute nn.Linear, which autocast runs in lower precision."""
    return biased(x.astype(LOW), p[f"{name}.weight"].astype(LOW), p[f"{name}.bias"].astype(LOW))


def layer_norm(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    """Compute nn.LayerNorm, which autocast runs in float32."""
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def batch_norm(p: Parameters, buffers: Parameters, name: str, x: jax.Array) -> tuple[jax.Array, Parameters]:
    """Compute nn.BatchNorm2d in training, whose result has its input's dtype; and its new running statistics."""
    values, places = x.astype(jnp.float32), (0, 2, 3)
    mean = values.mean(places)
    centred = values - mean[:, None, None]
    variance = (centred * centred).mean(places)
    factor = jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"]
    out = centred * factor[:, None, None] + p[f"{name}.bias"][:, None, None]
    count = values.size // values.shape[1]
    new = {
        f"{name}.running_mean": 0.9 * buffers[f"{name}.running_mean"] + 0.1 * mean,
        f"{name}.running_var": 0.9 * buffers[f"{name}.running_var"] + 0.1 * variance * (count / (count - 1)),
        f"{name}.num_batches_tracked": buffers[f"{name}.num_batches_tracked"] + 1,
    }
    return out.astype(x.dtype), jax.lax.stop_gradient(new)


def mlp(p: Parameters, buffers: Parameters, x: jax.Array, depth: int) -> tuple[jax.Array, Parameters]:
    """Run layers with ReLU between them."""
    for i in range(depth):
        x = linear(p, f"{2 * i}", x)
        x = jax.nn.relu(x) if i < depth - 1 else x
    return x, buffers


def block(
    p: Parameters, buffers: Parameters, x: jax.Array, heads: int, hidden: jax.Array | None = None
) -> tuple[jax.Array, Parameters]:
    """Run a transformer block, norm first. `hidden`: the pairs of places of which the first does not see the second."""
    b, t, w = x.shape
    split = linear(p, "qkv", layer_norm(p, "norm1", x)).reshape(b, t, 3, heads, w // heads)
    q, k, v = split.transpose(2, 0, 3, 1, 4)
    scores = batched(q, k.transpose(0, 1, 3, 2)) / math.sqrt(w // heads)
    scores = scores if hidden is None else jnp.where(hidden, -jnp.inf, scores)
    scores = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(LOW)
    mixed = batched(scores, v).transpose(0, 2, 1, 3).reshape(b, t, w)
    x = x + linear(p, "out", mixed).astype(jnp.float32)
    inner = jax.nn.relu(linear(p, "up", layer_norm(p, "norm2", x)))
    return x + linear(p, "down", inner).astype(jnp.float32), buffers


def resnet(p: Parameters, buffers: Parameters, x: jax.Array) -> tuple[jax.Array, Parameters]:
    """Run two convolutions with batch norm, and the input added."""
    out, first = batch_norm(p, buffers, "bn1", convolution(x.astype(LOW), p["conv1.weight"].astype(LOW)))
    out = convolution(jax.nn.relu(out), p["conv2.weight"].astype(LOW))
    out, second = batch_norm(p, buffers, "bn2", out)
    return jax.nn.relu(out.astype(jnp.float32) + x), {**first, **second}


def lstm(p: Parameters, buffers: Parameters, x: jax.Array) -> tuple[jax.Array, Parameters]:
    """Run an LSTM over (T, N, in) and a linear layer on each of its outputs."""
    by_hidden = p["lstm.weight_hh_l0"].astype(LOW)
    bias = sum(p[f"lstm.bias_{side}_l0"].astype(LOW).astype(jnp.float32) for side in ("ih", "hh"))

    def step(state: Any, gates: jax.Array) -> Any:
        hidden, cell = state
        gates = gates.astype(jnp.float32) + product(hidden, by_hidden).astype(jnp.float32) + bias
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell.astype(jnp.float32) + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(LOW)
        return (hidden, cell.astype(LOW)), hidden

    start = jnp.zeros((x.shape[1], by_hidden.shape[1]), LOW)
    by_input = product(x.astype(LOW), p["lstm.weight_ih_l0"].astype(LOW))
    return linear(p, "head", jax.lax.scan(step, (start, start), by_input)[1]), buffers
