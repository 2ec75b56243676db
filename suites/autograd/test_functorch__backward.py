"""Rule functorch, backward passes that are mapped over: `ampcheck.spec.rules` says what the rule promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("functorch")

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

LAYERS: dict[str, Layer] = {
    "product": lambda x, scale, shift: torch.mm(x, x.new_ones(4, 4)) * scale,
    "activation": lambda x, scale, shift: torch.tanh(x * scale + shift),
    "softmax": lambda x, scale, shift: torch.softmax(x, -1) * scale,
    "layer_norm": lambda x, scale, shift: functional.layer_norm(x, (4,), scale, shift),
    "batch_norm": lambda x, scale, shift: functional.batch_norm(x, None, None, scale, shift, training=True),
    "instance_norm": lambda x, scale, shift: functional.instance_norm(x[None], None, None, None, None)[0] * scale,
    "group_norm": lambda x, scale, shift: functional.group_norm(x, 2, scale, shift),
}
"""What stands between two products of a region."""


@pytest.mark.parametrize("layer", list(LAYERS))
@scenario(values=True)
def test_mapped_backward(amp: Amp, layer: str) -> None:
    """vmap of autograd.grad of a region's result is what a loop over it is (torch.func's notes; pytorch#184890)."""
    scale, shift = amp.rand(4, requires_grad=True), amp.rand(4, requires_grad=True)
    x, weight, last = amp.rand(5, 3), amp.rand(3, 4, requires_grad=True), amp.rand(4, 1)
    with amp.region():
        out = torch.mm(LAYERS[layer](torch.mm(x, weight), scale, shift), last)[:, 0]

    def gradient(row: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(out, weight, row, retain_graph=True)[0]

    rows = torch.eye(5, dtype=out.dtype).to(amp.type)
    looped = torch.stack([amp.device.host(gradient(row)) for row in rows])
    try:
        mapped = torch.vmap(gradient)(rows)
    except RuntimeError as error:
        amp.expect(f"what mapping the backward of {layer} raises", str(error).splitlines()[0], None)
        return
    amp.expect("dtype", mapped.dtype, torch.float32)
    amp.close("gradients", mapped, looped, 16 * torch.finfo(amp.dtype).eps)
