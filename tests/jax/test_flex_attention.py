"""`flex_attention` on the jax device, eagerly and in `jit`, against attention written out; jit/hops has it compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ampcheck.jax_device import jit

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # Dynamo looks
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Inductor's imports
]
LENGTH = 16
WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda fn: fn,
    "compile": lambda fn: torch.compile(fn, fullgraph=True),
}


def inputs(grad: bool = True) -> list[torch.Tensor]:
    """Query, key, value and a bias of the scores."""
    torch.manual_seed(0)
    sizes = [(2, 4, LENGTH, 8)] * 3 + [(LENGTH, LENGTH)]
    return [torch.randn(size, device="jax", requires_grad=grad) for size in sizes]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def flexible(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> Any:
    def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + bias[q, k]

    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="jax")
    return flex_attention(query, key, value, score_mod=biased, block_mask=mask)


def written_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="jax").triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


@pytest.mark.parametrize("way", ["eager", pytest.param("compile", marks=pytest.mark.nightly)])
def test_results_and_gradients(way: str) -> None:
    given, twin = inputs(), inputs()
    out, expected = WAYS[way](flexible)(*given), written_out(*twin)
    torch.testing.assert_close(out, expected)
    for tensor in (out, expected):
        tensor.square().sum().backward()
    for tensor, other in zip(given, twin, strict=True):
        torch.testing.assert_close(tensor.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_jitted_step_trains_what_the_score_reads(dtype: torch.dtype) -> None:
    """Weights, bias and loss are those of an eager step."""
    seen = []
    for compiled in (False, True):
        weight, bias = nn.Parameter(torch.ones(8, device="jax")), nn.Parameter(inputs(False)[3])
        optimizer = torch.optim.SGD([weight, bias], lr=0.1)
        given = [*inputs(False)[:3], weight, bias, optimizer]

        def step(query: Any, key: Any, value: Any, weight: Any, bias: Any, optimizer: Any) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("jax", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = flexible(query * weight, key, value, bias).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = jit(step, fullgraph=True) if compiled else step
        losses = [run(*given).item() for _ in range(3)]
        seen.append([torch.tensor(losses), weight.detach().cpu(), bias.detach().cpu()])
    bound = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(seen[1], seen[0], rtol=bound, atol=bound)
    assert seen[1][0][-1] < seen[1][0][0]
    assert not torch.equal(seen[1][2], inputs(False)[3].cpu())


def test_grouped_heads_layouts_and_what_is_returned_besides() -> None:
    query, key, value, _ = inputs(False)
    besides = AuxRequest(lse=True, max_scores=True)
    out, aux = flex_attention(query, key[:, :2], value[:, :2], enable_gqa=True, return_aux=besides)
    whole = [t[:, :2].repeat_interleave(2, 1) for t in (key, value)]
    scores = query @ whole[0].mT / math.sqrt(8)
    torch.testing.assert_close(out, scores.softmax(-1) @ whole[1])
    torch.testing.assert_close(aux.lse, scores.logsumexp(-1))
    torch.testing.assert_close(aux.max_scores, scores.amax(-1))
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert jit(lambda x: flex_attention(x, x, x))(turned).stride() == turned.stride()


def test_other_devices_are_checked_as_before() -> None:
    with pytest.raises(ValueError, match="Found input tensors on meta device"):
        flex_attention(*(torch.empty(1, 1, 4, 8, device="meta") for _ in range(3)))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*(torch.empty(1, 1, 4, 8, requires_grad=True) for _ in range(3)))
