"""segment_reduce on the jax device: CPU's values and gradients, and the corners."""

from __future__ import annotations

from typing import Any

import pytest
import torch

REDUCTIONS = ("max", "min", "sum", "mean", "prod")


def both(
    data: torch.Tensor, reduce: str, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result and gradient of `data` on the device, then the CPU's."""
    out: list[torch.Tensor] = []
    for device in ("jax", "cpu"):
        leaf = data.clone().to(device).requires_grad_()
        there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        result = torch.segment_reduce(leaf, reduce, unsafe=True, **there)
        result.backward(torch.linspace(1, 2, result.numel()).reshape(result.shape).to(device))
        assert leaf.grad is not None
        out += [result.detach().cpu(), leaf.grad.cpu()]
    return out[0], out[1], out[2], out[3]


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("initial", [None, 1.5])
def test_segments_along_the_first_dimension(reduce: str, initial: float | None) -> None:
    torch.manual_seed(0)
    data = torch.randn(7, 3)
    data[3, 1], data[4, 2] = 0, data[2, 2]  # a zero in a product, two equal extrema
    lengths = torch.tensor([2, 0, 4, 1])
    offsets = torch.tensor([0, 2, 2, 6, 7])
    for given in ({"lengths": lengths}, {"offsets": offsets}):
        result, grad, expected, expected_grad = both(data, reduce, initial=initial, **given)
        torch.testing.assert_close(result, expected, equal_nan=True)
        torch.testing.assert_close(grad, expected_grad, equal_nan=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_along_another_dimension(reduce: str) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([[2, 4, 0], [1, 1, 4]])
    result, grad, expected, expected_grad = both(torch.randn(2, 6, 3), reduce, lengths=lengths, axis=1)
    torch.testing.assert_close(result, expected, equal_nan=True)
    torch.testing.assert_close(grad, expected_grad, equal_nan=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_elements_in_no_segment_count_nowhere(reduce: str) -> None:
    """Offsets that neither start at the first element nor end after the last."""
    data, offsets = torch.arange(1.0, 7.0), torch.tensor([1, 3, 5])
    leaf = data.to("jax").requires_grad_()
    result = torch.segment_reduce(leaf, reduce, offsets=offsets.to("jax"), unsafe=True)
    parts = [data[1:3], data[3:5]]
    wanted = torch.stack([torch.segment_reduce(p, reduce, lengths=torch.tensor([2]), unsafe=True)[0] for p in parts])
    torch.testing.assert_close(result.detach().cpu(), wanted)
    result.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.cpu()[[0, 5]].tolist() == [0.0, 0.0]


def test_equal_extrema_share_a_negative_gradient() -> None:
    """Each of n equal extrema has 1/n of the gradient, whatever its sign."""
    leaf = torch.tensor([2.0, 1.0, 2.0], device="jax", requires_grad=True)
    torch.segment_reduce(leaf, "max", lengths=torch.tensor([3], device="jax")).backward(
        torch.tensor([-1.0], device="jax")
    )
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [-0.5, 0.0, -0.5]
