"""Products, attention and recurrent layers: CPU's results, what runs whole, and the XLA program of hand-written JAX.

Lower precision on a CPU: every product accumulates in float32 and is rounded once, forward and backward.
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ampcheck.jax_device import jit
from ampcheck.jax_device.lowerings import accumulate
from ampcheck.jax_device.lowerings.matmul import experts_backward
from tests.jax.agreement import NAN, close, moved, same

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


def step(compute: Callable[..., Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]) -> Counter[str]:
    """The products of a jitted autocast step that computes from leaves of these shapes, forward and backward."""
    leaves = [torch.randn(shape, device="jax", requires_grad=True) for shape in shapes]

    def run() -> Tensor:
        with torch.autocast("jax", dtype=dtype):
            out = compute(*leaves)
        out.float().square().sum().backward()
        return out.detach()

    text: str = jit(run).lower().as_text()
    return kinds(text)


def test_attention_keeps_its_scores() -> None:
    """Forward: scores and output. Backward: scores again, the weights' gradient; those of query, key and value."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    calls: tuple[tuple[str, Callable[..., Tensor]], ...] = (
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

        def run(net: torch.nn.Module = net, x: Tensor = x) -> None:
            with torch.autocast("jax", dtype=torch.bfloat16):
                out = net(x)[0]
            out.float().sum().backward()

        text = jit(run).lower().as_text()
        assert text.count("stablehlo.while") == 2
        assert not re.search(r"dot_general.*-> tensor<\S*xbf16>", text)
        sizes.append(len(text.splitlines()))
    assert sizes[0] == sizes[1]


def exact(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
    """Sums that float32 holds exactly are rounded once: the same bits as float64 rounded to the dtype."""
    torch.manual_seed(0)
    for dtype in LOW:
        inputs = [torch.randint(-8, 9, shape).double() / 8 for shape in shapes]
        found = function(*[i.to(dtype).to("jax") for i in inputs])
        expected = function(*inputs).to(dtype)
        assert found.dtype is dtype
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def gradients(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function's gradients, one after the other, by that of its result, which is the last argument."""

    def run(*tensors: Tensor) -> Tensor:
        inputs = [t.detach().requires_grad_() for t in tensors[:-1]]
        found = torch.autograd.grad(function(*inputs), inputs, tensors[-1])
        return torch.cat([g.reshape(-1) for g in found])

    return run


PRODUCTS: dict[str, tuple[Callable[..., Tensor], *tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, (40, 70), (70, 33)),
    "addmm": (torch.addmm, (33,), (40, 70), (70, 33)),
    "einsum": (lambda x, w: torch.einsum("bij,bkj->bik", x, w), (2, 8, 16), (2, 4, 16)),
    "linear": (F.linear, (40, 70), (33, 70), (33,)),
    "conv1d": (F.conv1d, (2, 4, 8), (6, 4, 3)),
    "conv2d": (F.conv2d, (2, 5, 9, 8), (6, 5, 3, 3), (6,)),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, stride=2, groups=2), (2, 4, 8, 8), (6, 2, 3, 3)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_product_is_rounded_once(name: str) -> None:
    """In the program of a step, and by the values of results and gradients."""
    function, *shapes = PRODUCTS[name]
    for dtype, low in LOW.items():
        assert step(function, dtype, *shapes) == {f"{low} -> f32 -> {low}": 3}
    exact(function, *shapes)
    exact(gradients(function), *shapes, tuple(function(*map(torch.empty, shapes)).shape))


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

    def wide(a: Tensor, b: Tensor) -> Tensor:
        return torch.mm(a, b, out_dtype=torch.float32)

    programs: tuple[Callable[..., Tensor], ...] = (
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


def test_other_platforms_get_the_plain_dot() -> None:
    low = jnp.ones((4, 4), jnp.bfloat16)

    def traced() -> str:  # anew each time: JAX keeps what it traced of a function
        return str(jax.make_jaxpr(lambda x: (accumulate.matmul(x, x), accumulate.linear(x, x, x[0])))(low))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "tpu")
        text = traced()
    assert text.count("dot_general[") == 2
    assert "preferred_element_type=float32" not in text
    assert "optimization_barrier" not in text
    assert traced().count("preferred_element_type=float32") == 2


torch.manual_seed(0)
LEFT, RIGHT = torch.randn(4, 6), torch.randn(6, 5)
BATCH1, BATCH2 = torch.randn(3, 4, 6), torch.randn(3, 6, 5)


def test_products_in_a_wider_dtype() -> None:
    left, right = LEFT.bfloat16(), RIGHT.bfloat16()
    close(torch.mm(left.to("jax"), right.to("jax"), out_dtype=torch.float32), left.float() @ right.float(), 10)
    bytes_ = torch.arange(-8, 8, dtype=torch.int8).reshape(4, 4)
    close(torch._int_mm(bytes_.to("jax"), bytes_.to("jax")), (bytes_.int() @ bytes_.int()))


def test_alpha_is_not_rounded_to_bfloat16() -> None:
    ones = torch.ones(2, 2, dtype=torch.bfloat16, device="jax")
    found = torch.addmm(ones * 0, ones * 256, ones, alpha=0.999)  # 511.488; 0.999 in bfloat16 is 1, which gives 512
    assert found[0, 0].item() == 512 or found[0, 0].item() == 510
    same(torch.addmm, *(torch.full((1, 1), value).bfloat16() for value in (0.0, 100.0, 1.0)), alpha=0.98)


def test_beta_zero_ignores_self() -> None:
    holes = torch.full((5,), NAN)
    batches = (torch.baddbmm, BATCH1, BATCH2), (torch.addbmm, BATCH1, BATCH2)
    for function, first, second in ((torch.addmm, LEFT, RIGHT), *batches):
        found = same(function, holes, first, second, beta=0, loose=10)
        assert not found.isnan().any()
        assert function(holes.to("jax"), first.to("jax"), second.to("jax"), beta=1).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((8, 16), (3, 16, 8), [2, 2, 8]),  # rows in groups, of which one is empty
        ((3, 8, 16), (16, 24), [8, 8, 24]),  # columns
        ((8, 16), (16, 8), [0, 8, 16]),  # the inner dimension
        ((3, 8, 16), (3, 16, 8), None),
    ],
)
def test_of_groups(left: tuple[int, ...], right: tuple[int, ...], ends: list[int] | None, dtype: torch.dtype) -> None:
    """Forward and gradients are the CPU's, and the groups' lengths are values that a program takes."""
    a, b, weight = torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype), torch.arange(8.0)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)

    def both(a: Tensor, b: Tensor, offs: Tensor | None) -> list[Tensor]:
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        out = torch.nn.functional.grouped_mm(a, b, offs=offs)
        loss = (out.float() * weight.to(out.device).repeat(out.shape[-1] // 8)).sum()
        return [out.detach(), *torch.autograd.grad(loss, (a, b))]

    expected = both(a, b, offs)
    given = (a.to("jax"), b.to("jax"), None if offs is None else offs.to("jax"))
    for found in (both(*given), jit(both, fullgraph=True)(*given)):
        for one, other in zip(found, expected, strict=True):
            close(one, other, 4)


def test_the_experts_of_hugging_face() -> None:
    """The backward of their op is what autograd makes of the product that it stands for."""
    a, b = torch.randn(8, 16).to("jax").requires_grad_(), torch.randn(3, 16, 4).to("jax").requires_grad_()
    offs, grad = torch.tensor([2, 2, 8], dtype=torch.int32).to("jax"), torch.randn(8, 4).to("jax")
    expected = torch.autograd.grad(torch.nn.functional.grouped_mm(a, b, offs=offs), (a, b), grad)
    for one, other in zip(experts_backward(a.detach(), b.detach(), offs, grad), expected, strict=True):
        close(one, other.cpu())


def test_grouped_products_that_do_not_fit() -> None:
    a, b, offs = torch.randn(8, 16), torch.randn(3, 12, 8), torch.tensor([2, 4, 8], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="contraction dimension"):
        torch.nn.functional.grouped_mm(a.to("jax"), b.to("jax"), offs=offs.to("jax"))


def heads(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, length, 8).to(dtype).requires_grad_() for length in (5, 7, 7)]


def cast(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return options with their floating tensors in a dtype."""
    return {n: v.to(dtype) if isinstance(v, Tensor) and v.dtype is not torch.bool else v for n, v in given.items()}


def test_attention_of_lower_precision() -> None:
    mask = torch.randn(5, 7) > 0
    mask[2] = False  # a row that sees nothing
    added: list[dict[str, Any]] = [{}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": torch.randn(3, 5, 7)}]
    for dtype, loose in ((torch.bfloat16, 8e3), (torch.float16, 1e3)):
        low = heads(dtype)
        for given in (cast(extra, dtype) for extra in (*added, {"scale": 0.3})):
            here = [t.detach().float().requires_grad_() for t in low]
            expected = F.scaled_dot_product_attention(*here, **cast(given, torch.float32))
            there, rest = moved((low, given))
            found = F.scaled_dot_product_attention(*there, **rest)
            assert found.dtype is dtype
            close(found.float(), expected, loose)
            seed = torch.randn_like(expected).to(dtype)
            wanted = torch.autograd.grad(expected, here, seed.float())
            got = torch.autograd.grad(found, there, seed.to("jax"))
            assert {g.dtype for g in got} == {dtype}
            close([g.float() for g in got], wanted, loose)


def test_attention_in_float32_is_twice_differentiable() -> None:
    q, k, v = heads(torch.float32)

    def penalty(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.device.type == "jax":
            out = F.scaled_dot_product_attention(q, k, v)
        else:  # the CPU's own is not
            out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return grad.square().sum()

    same(penalty, q, k, v, loose=64)


def test_recurrent_layers_otherwise() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5)
    net = nn.LSTM(5, 6)
    there = copy.deepcopy(net).to("jax")

    def penalty(x: Tensor, *given: Any) -> Tensor:
        (grad,) = torch.autograd.grad(torch.lstm(x, *given)[0].square().sum(), x, create_graph=True)
        return grad.square().sum()

    states, weights = [x.new_zeros(1, 2, 6)] * 2, list(net.parameters())
    same(penalty, x.clone().requires_grad_(), states, weights, True, 1, 0.0, True, False, False, loose=64)
    errors = []
    for module, device in ((net, "cpu"), (there, "jax")):
        state, options = [x.new_zeros(1, 2, 6).to(device)], (True, 1, 0.0, False, False, False)
        with pytest.raises(RuntimeError) as error:
            torch.lstm(x.to(device), state, list(module.parameters()), *options)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    dropped = nn.LSTM(5, 6, 2, dropout=0.5).to("jax")
    y = x.to("jax")
    assert not torch.equal(dropped(y)[0].cpu(), dropped(y)[0].cpu())
    dropped.eval()
    assert torch.equal(dropped(y)[0].cpu(), dropped(y)[0].cpu())
    traced = jit(lambda: there(y)[0].sum().backward())
    traced()
    expected = [p.grad.clone() for p in there.parameters()]
    there.zero_grad()
    there(y)[0].sum().backward()
    torch.testing.assert_close([p.grad.cpu() for p in there.parameters()], [e.cpu() for e in expected])


pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Inductor's imports
]
LENGTH = 16


def flex_inputs(grad: bool = True) -> list[Tensor]:
    """Query, key, value and a bias of the scores."""
    torch.manual_seed(0)
    sizes = [(2, 4, LENGTH, 8)] * 3 + [(LENGTH, LENGTH)]
    return [torch.randn(size, device="jax", requires_grad=grad) for size in sizes]


def flexible(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, LENGTH, LENGTH, device="jax")
    return flex_attention(query, key, value, lambda score, b, h, q, k: score + bias[q, k], mask)


def test_a_jitted_step_trains_what_the_score_reads() -> None:
    """Weights, bias and loss are those of an eager step."""
    seen = []
    for compiled in (False, True):
        weight, bias = nn.Parameter(torch.ones(8, device="jax")), nn.Parameter(flex_inputs(False)[3])
        optimizer = torch.optim.SGD([weight, bias], lr=0.1)
        given = [*flex_inputs(False)[:3], weight, bias, optimizer]

        def step(query: Any, key: Any, value: Any, weight: Any, bias: Any, optimizer: Any) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("jax", dtype=torch.bfloat16):
                loss = flexible(query * weight, key, value, bias).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = jit(step, fullgraph=True) if compiled else step
        losses = [run(*given).item() for _ in range(3)]
        seen.append([torch.tensor(losses), weight.detach().cpu(), bias.detach().cpu()])
    torch.testing.assert_close(seen[1], seen[0], rtol=4e-3, atol=4e-3)
    assert seen[1][0][-1] < seen[1][0][0]
    assert not torch.equal(seen[1][2], flex_inputs(False)[3].cpu())


def test_grouped_heads_layouts_and_what_is_returned_besides() -> None:
    query, key, value, _ = flex_inputs(False)
    besides = AuxRequest(lse=True, max_scores=True)
    out, aux = flex_attention(query, key[:, :2], value[:, :2], enable_gqa=True, return_aux=besides)
    whole = [t[:, :2].repeat_interleave(2, 1) for t in (key, value)]
    scores = query @ whole[0].mT / math.sqrt(8)
    torch.testing.assert_close(out, scores.softmax(-1) @ whole[1])
    torch.testing.assert_close(aux.lse, scores.logsumexp(-1))
    torch.testing.assert_close(aux.max_scores, scores.amax(-1))
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert jit(lambda x: flex_attention(x, x, x))(turned).stride() == turned.stride()
