"""Rule autodiff: gradients of recurrent networks. `ampcheck.spec.rules` says what the rule promises."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers": {"num_layers": 2},
    "both_ways": {"bidirectional": True},
    "no_bias": {"bias": False},
    "batch_first": {"batch_first": True},
    "packed": {},
}


def _result(net: nn.Module, x: torch.Tensor, layout: str) -> torch.Tensor:
    """The output and the last state of a network, as one tensor."""
    given: Any = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 1])) if layout == "packed" else x
    out, state = net(given)
    last = state[-1] if isinstance(state, tuple) else state
    return torch.cat([(out.data if layout == "packed" else out).float().flatten(), last.float().flatten()])


def _gradients(amp: Amp, call: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        with amp.region():
            out = call()
    except RuntimeError as error:
        if "could not create a primitive" in str(error):
            amp.unsupported("this processor has no LSTM in float16 (reports-recurrent-net-in-half)")
        raise
    many = torch.arange(1, out.numel() + 1, device=out.device, dtype=torch.float32)
    return list(torch.autograd.grad((out * many / out.numel()).sum(), leaves))


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@scenario(values=True)
def test_recurrent(amp: Amp, kind: str, layout: str) -> None:
    """Gradients of a recurrent network are float32, near those of float32 (test_autocast_rnn of PyTorch).

    The float32 network on the CPU, without a region, says what they are near to.
    """
    net = amp.module(lambda: getattr(nn, kind)(4, 3, **LAYOUTS[layout])).requires_grad_()
    wide = getattr(nn, kind)(4, 3, **LAYOUTS[layout])
    wide.load_state_dict({name: amp.device.host(held.detach()) for name, held in net.state_dict().items()})
    x = amp.rand(3, 2, 4, requires_grad=True)
    x_wide = amp.device.host(x.detach()).requires_grad_()
    got = _gradients(amp, lambda: _result(net, x, layout), [x, *net.parameters()])
    out = _result(wide, x_wide, layout)
    many = torch.arange(1, out.numel() + 1, dtype=torch.float32)
    want = torch.autograd.grad((out * many / out.numel()).sum(), [x_wide, *wide.parameters()])
    names = ["the input", *(name for name, _ in wide.named_parameters())]
    for name, gradient, wanted in zip(names, got, want, strict=True):
        amp.close(f"gradient of {name}", gradient, wanted, 8 * torch.finfo(amp.dtype).eps)
