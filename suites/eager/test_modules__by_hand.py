"""Rule modules, of gradients and of modules beside their functions: `ampcheck.spec.rules` says what it promises."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ampcheck.checks import comparisons
from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("modules")


@scenario(values=True)
def test_gradients_of_a_module(amp: Amp) -> None:
    """Gradients have the dtype of the parameter they belong to, float32 (amp_examples.html, typical training)."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2))

    module = amp.module(make).requires_grad_()
    with amp.region():
        loss = nn.functional.mse_loss(module(amp.rand(3, 4)), amp.rand(3, 2))
    amp.expect("dtype of the loss", loss.dtype, torch.float32)
    loss.backward()
    for name, parameter in module.named_parameters():
        amp.expect(f"dtype of the gradient of {name}", getattr(parameter.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_same_as_its_function(amp: Amp) -> None:
    """A module gives what its function gives of parameters and inputs cast by hand (amp.html, Module/function/method).

    What a module does by itself, in a region or outside, cannot hide here: the module runs only once.
    """
    functional, low = nn.functional, amp.dtype
    x, y, line = amp.rand(3, 4), amp.rand(3, 4), amp.rand(2, 4, 5)
    lower, index = amp.rand(3, 4, dtype=amp.other), (amp.rand(2, 5) * 3).long()
    linear, conv = amp.module(lambda: nn.Linear(4, 3)), amp.module(lambda: nn.Conv1d(4, 2, 3))
    table = amp.module(lambda: nn.Embedding(3, 4))
    calls: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
        "Linear": (lambda: linear(x), lambda: functional.linear(x.to(low), linear.weight.to(low), linear.bias.to(low))),
        "Conv1d": (lambda: conv(line), lambda: functional.conv1d(line.to(low), conv.weight.to(low), conv.bias.to(low))),
        "MSELoss": (lambda: nn.MSELoss()(x, y), lambda: functional.mse_loss(x, y)),
        "MSELoss of low": (lambda: nn.MSELoss()(lower, y), lambda: functional.mse_loss(lower.float(), y)),
        "L1Loss": (lambda: nn.L1Loss()(x, lower), lambda: functional.l1_loss(x, lower.float())),
        "Embedding": (lambda: table(index), lambda: functional.embedding(index, table.weight)),
        "ReLU": (lambda: nn.ReLU()(lower), lambda: functional.relu(lower)),
    }
    for name, (in_region, by_hand) in calls.items():
        with amp.region():
            got = in_region()
        wanted = by_hand()
        amp.looked_at += 1
        amp.differences += comparisons.output_dtypes([got], [name_of(wanted.dtype)], name)
        amp.differences += comparisons.bitwise([amp.device.host(got)], [amp.device.host(wanted)], name)
