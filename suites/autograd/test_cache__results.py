"""Rule cache, of results, with gradients: what is kept changes neither gradients nor what training does.

`ampcheck.spec.rules` says what the rule promises, `suites/eager/test_cache__results.py` is about results alone.
"""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("cache")


@scenario(values=True)
def test_gradient_of_many_uses(amp: Amp) -> None:
    """The gradient of a float32 weight is the sum over its uses in float32 (amp.html: "maintaining accuracy")."""
    weight, x = (torch.ones(1, 1, device=amp.type, requires_grad=grad) for grad in (True, False))
    for kept in (False, True):
        weight.grad = None
        with amp.region(cache_enabled=kept):
            out = torch.stack([torch.mm(x, weight).float() for _ in range(3000)]).sum()
        out.backward()
        amp.expect(f"gradient of 3000 uses, cache_enabled={kept}", amp.values(weight.grad), [[3000.0]])


def _losses(amp: Amp, outer: AbstractContextManager[object]) -> list[float]:
    """The loss of each of five training steps inside of a context."""
    weight, x = (torch.ones(4, 4, device=amp.type, requires_grad=grad) for grad in (True, False))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    found = []
    with outer:
        for _ in range(5):
            with amp.region():
                loss = torch.mm(x, weight).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(amp.device.host(loss.detach())))
    return found


@pytest.mark.parametrize("outer", ["disabled", "elsewhere"])
@scenario(values=True)
def test_training_inside_a_region(amp: Amp, outer: str) -> None:
    """Steps outside of the forward's region train, in a region that casts nothing too (amp_examples.html).

    That one is a disabled one, or one of another device type.
    """
    around = amp.region(enabled=False) if outer == "disabled" else torch.autocast("xpu" if amp.type == "cpu" else "cpu")
    amp.expect("losses of five steps inside a region", _losses(amp, around), _losses(amp, nullcontext()))
