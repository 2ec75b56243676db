"""Lower precision on a CPU: every product accumulates in float32 and is rounded once, forward and backward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from ampcheck.jax_device import jit
from ampcheck.jax_device.interop.functions import j2t_autograd
from ampcheck.jax_device.lowerings import accumulate
from tests.jax.agreement import same

LOW = {torch.bfloat16: "bf16", torch.float16: "f16"}
# What a product may go through on its way to its rounding.
_PASSED = ("optimization_barrier", "reshape", "slice", "transpose", "reverse", "broadcast_in_dim", "add")


def kinds(text: str) -> Counter[str]:
    """The dots and convolutions of a StableHLO program: operands' dtype, result's, and to what it is first converted.

    "bf16 -> f32 -> bf16": rounded once. "bf16 -> f32": computed with in float32, as scores are in a softmax.
    """
    lines = re.findall(r"(%\S+) = \"?stablehlo\.(\w+)\"?(.*)", text)
    found: Counter[str] = Counter()
    for name, op, rest in lines:
        if op in ("dot_general", "convolution"):
            given, result = re.findall(r"tensor<(?:\d+x)*(\w+)>", rest)[-2:]
            found[" -> ".join([given, result, *_rounding(lines, name)])] += 1
    return found


def _rounding(lines: list[tuple[str, str, str]], name: str) -> list[str]:
    used = [(n, op, rest) for n, op, rest in lines if re.search(rf"{re.escape(name)}\b", rest)]
    if len(used) != 1:
        return []
    after, op, rest = used[0]
    if op == "convert":
        return re.findall(r"-> tensor<(?:\d+x)*(\w+)>", rest)
    return _rounding(lines, after) if op in _PASSED else []


def step(compute: Callable[..., torch.Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]) -> Counter[str]:
    """The products of a jitted autocast step that computes from leaves of these shapes, forward and backward."""
    leaves = [torch.randn(shape, device="jax", requires_grad=True) for shape in shapes]

    def run() -> torch.Tensor:
        with torch.autocast("jax", dtype=dtype):
            out = compute(*leaves)
        out.float().square().sum().backward()
        return out.detach()

    text: str = jit(run).lower().as_text()
    return kinds(text)


def test_each_product_is_rounded_once() -> None:
    image, kernel = (2, 4, 8, 8), (6, 4, 3, 3)
    for dtype, low in LOW.items():
        once = f"{low} -> f32 -> {low}"
        assert step(torch.mm, dtype, (8, 16), (16, 8)) == {once: 3}
        assert step(torch.bmm, dtype, (2, 8, 16), (2, 16, 8)) == {once: 3}
        assert step(F.linear, dtype, (8, 16), (4, 16), (4,)) == {once: 3}
        assert step(F.conv2d, dtype, image, kernel, (6,)) == {once: 3}
        if dtype is torch.float16:  # which no kernel of its own computes: the same ways
            continue
        assert step(F.linear, dtype, (2, 8, 16), (4, 16), (4,)) == {once: 3}
        assert step(lambda x, w: torch.einsum("bij,bkj->bik", x, w), dtype, (2, 8, 16), (2, 4, 16)) == {once: 3}
        assert step(torch.addmm, dtype, (4,), (8, 16), (16, 4)) == {once: 3}
        assert step(F.conv1d, dtype, (2, 4, 8), (6, 4, 3)) == {once: 3}
        assert step(lambda x, w: F.conv2d(x, w, stride=2, groups=2), dtype, image, (6, 2, 3, 3)) == {once: 3}
        assert step(F.conv_transpose2d, dtype, image, (4, 6, 3, 3)) == {once: 3}


def test_attention_keeps_its_scores() -> None:
    """Forward: scores and output. Backward: scores again, the weights' gradient; those of query, key and value."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    calls: tuple[tuple[str, Callable[..., torch.Tensor]], ...] = (
        ("bf16", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        ("f16", lambda q, k, v: fused(q.half(), k.half(), v.half(), 0.0, True)[0]),
    )
    for low, call in calls:
        found = step(call, torch.bfloat16, *((2, 2, 8, 16),) * 3)
        assert found == {f"{low} -> f32": 3, f"{low} -> f32 -> {low}": 4}, found


def test_a_recurrent_layer_has_one_loop_each_way() -> None:
    sizes = []
    for length in (4, 16):
        net = torch.nn.LSTM(8, 8).to("jax")
        x = torch.randn(length, 2, 8, device="jax")

        def run(net: torch.nn.Module = net, x: torch.Tensor = x) -> None:
            with torch.autocast("jax", dtype=torch.bfloat16):
                out = net(x)[0]
            out.float().sum().backward()

        text = jit(run).lower().as_text()
        assert text.count("stablehlo.while") == 2
        assert not re.search(r"dot_general.*-> tensor<\S*xbf16>", text)
        sizes.append(len(text.splitlines()))
    assert sizes[0] == sizes[1]


def test_another_program_is_told() -> None:
    def plain(x: Any, w: Any) -> Any:
        return jnp.matmul(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))

    unlike = step(j2t_autograd(plain), torch.bfloat16, (8, 16), (16, 8))
    assert {kind.partition(" -> f32")[0] for kind in unlike} == {"bf16 -> bf16"}
    twice = j2t_autograd(lambda x, w: jnp.tanh(accumulate.product(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))))
    assert "bf16 -> f32" in step(twice, torch.bfloat16, (8, 16), (16, 8))
    assert step(lambda x, w: x.double().float() @ w, torch.bfloat16, (8, 16), (16, 8)) == {"bf16 -> f32 -> bf16": 3}
    with torch.autocast("jax", enabled=False):
        wide = jit(torch.mm).lower(torch.ones(2, 2, device="jax"), torch.ones(2, 2, device="jax")).as_text()
    assert kinds(wide) == {"f32 -> f32": 1}


def exact(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
    """Sums that float32 holds exactly are rounded once: the same bits as float64 rounded to the dtype."""
    torch.manual_seed(0)
    for dtype in LOW:
        inputs = [torch.randint(-8, 9, shape).double() / 8 for shape in shapes]
        found = function(*[i.to(dtype).to("jax") for i in inputs])
        expected = function(*inputs).to(dtype)
        assert found.dtype is dtype
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


@pytest.mark.nightly
def test_products_have_one_rounding() -> None:
    for m, k, n in (
        (40, 70, 33),
        (1, 70, 33),
        (40, 70, 1),
        (1, 70, 1),
        (40, 1, 33),
        (2, 3, 2),
        (1, 5000, 3),
        (64, 64, 64),
    ):
        exact(torch.mm, (m, k), (k, n))
        exact(lambda x, y: x.t() @ y.t(), (k, m), (n, k))
        exact(lambda x, y: x.t() @ y, (k, m), (k, n))
        exact(F.linear, (m, k), (n, k), (n,))
        exact(F.linear, (3, m, k), (n, k), (n,))
        exact(torch.bmm, (3, m, k), (3, k, n))
        exact(lambda x, y: x.mT @ y.mT, (3, k, m), (3, n, k))
        exact(torch.mv, (m, k), (k,))
        exact(lambda x, y: x.t() @ y, (k, m), (k,))
        exact(lambda x, y: y @ x, (k, m), (k,))
    exact(torch.dot, (300,), (300,))
    exact(lambda b, x, y: torch.addmm(b, x, y, alpha=0.5, beta=0.25), (33,), (40, 70), (70, 33))
    exact(torch.addbmm, (40, 33), (3, 40, 7), (3, 7, 33))
    exact(torch.baddbmm, (3, 40, 33), (3, 40, 7), (3, 7, 33))
    exact(lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 5, 9, 8), (6, 5, 3, 3), (6,))
    exact(lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 5, 9, 8), (5, 6, 3, 3))
    with pytest.raises(AssertionError, match="not equal"):
        exact(lambda x, y, b: (x @ y) + b, (40, 70), (70, 33), (33,))  # rounded twice


def test_gradients_have_one_rounding() -> None:
    def gradients(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            leaves = [t.detach().requires_grad_() for t in tensors[:-1]]
            found = torch.autograd.grad(function(*leaves), leaves, tensors[-1])
            return torch.cat([g.reshape(-1) for g in found])

        return run

    exact(gradients(torch.mm), (40, 70), (70, 33), (40, 33))
    exact(gradients(F.linear), (40, 70), (33, 70), (33,), (40, 33))
    exact(gradients(F.linear), (1, 70), (33, 70), (33,), (1, 33))
    exact(gradients(torch.bmm), (3, 40, 7), (3, 7, 33), (3, 40, 33))
    exact(gradients(F.conv2d), (2, 5, 9, 8), (6, 5, 3, 3), (6,), (2, 6, 7, 6))
    exact(gradients(F.conv_transpose2d), (2, 5, 9, 8), (5, 6, 3, 3), (6,), (2, 6, 11, 10))


def test_strided_operands() -> None:
    x, y = torch.randn(12, 10), torch.randn(9, 12)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = x.to(dtype), y.to(dtype)
        loose = 4 if dtype is torch.float32 else 1
        same(lambda a, b: a[2:8, 1:9].t() @ b[3:7, ::2].t(), a, b, loose=loose)
        same(lambda a, b: a[:, :1].t() @ b.t(), a, b, loose=loose)
        same(lambda a, b: b.t()[:, :1].expand(12, 12) @ a, a, b, loose=loose)
        same(lambda a, b: a.as_strided((3, 4), (1, 2)) @ b.as_strided((4, 3), (1, 2)), a, b, loose=loose)
        same(lambda a, b: a.reshape(3, 4, 10).permute(1, 2, 0) @ a.reshape(4, 3, 10), a, b, loose=loose)
        same(lambda a, b: torch.addmm(b.t(), a, a[:9].t()[:, :9]), a, b, loose=loose)
        same(lambda a, b: a[:0].t() @ b[:, :0].t(), a, b)
    turned = torch.complex(x, x.flip(0))
    same(lambda z: z.mH @ z, turned, loose=4)


def test_a_later_pass_moves_no_transpose_into_a_dot() -> None:
    """XLA's CPU backend would fail when the program runs: BF16 x BF16 = F32 of a transposed left operand."""
    x, y = (torch.randn(64, 64, device="jax").bfloat16() for _ in range(2))
    always = torch.arange(64, device="jax")[:, None] >= 0

    def wide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out_dtype=torch.float32)

    programs: tuple[Callable[..., torch.Tensor], ...] = (
        lambda: wide(x, y).t().contiguous(),
        lambda: wide(x, y).t() + 1,
        lambda: torch.where(always, x.t(), 0) @ y,
        lambda: x @ torch.where(always, y.t(), 0),
        lambda: ((x @ y).t() @ (x @ y)).t() @ x,
        lambda: wide(wide(x, y).bfloat16().t(), x).t().contiguous(),
        lambda: torch.einsum("nej,ejl->nel", x.reshape(16, 4, 64), y.reshape(4, 64, 16)),
        lambda: torch.eye(64, device="jax", dtype=torch.bfloat16).t() @ y,
    )
    for program in programs:
        torch.testing.assert_close(jit(program)().cpu(), program().cpu(), rtol=2e-2, atol=1e-3)

    def naive(a: Any, b: Any) -> Any:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32).T

    low = jnp.ones((64, 64), jnp.bfloat16)
    message = ""
    try:  # what the barriers are for; where it runs one day, they can go
        jax.jit(naive)(low, low).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
    assert not message or "BF16 x BF16 = F32" in message


def test_other_platforms_get_the_plain_dot() -> None:
    low = jnp.ones((4, 4), jnp.bfloat16)

    def traced() -> str:  # anew each time: JAX keeps what it traced of a function
        return str(jax.make_jaxpr(lambda x: (accumulate.matmul(x, x), accumulate.linear(x, x, x[0])))(low))

    default, jax.default_backend = jax.default_backend, lambda: "tpu"
    try:
        text = traced()
    finally:
        jax.default_backend = default
    assert text.count("dot_general[") == 2
    assert "preferred_element_type=float32" not in text
    assert "optimization_barrier" not in text
    assert traced().count("preferred_element_type=float32") == 2


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, True),
        ({"architecture": "aarch64"}, True),
    ],
)
def test_the_kernel_is_left_where_nothing_multiplies_bfloat16(
    processor: dict[str, object], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor)
    found = accumulate.has_bfloat16_instructions.__wrapped__()
    assert found is expected

    monkeypatch.setattr(accumulate, "has_bfloat16_instructions", lambda: found)
    low = jnp.ones((4, 4), jnp.bfloat16)
    lowered = jax.jit(lambda x: accumulate.matmul(x, x)).lower(low).as_text()
    (product,) = (line for line in lowered.splitlines() if "dot_general" in line)
    assert "(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>" in product
    assert ("contracting_dims = [1] x [0]" in product) is expected
