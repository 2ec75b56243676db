"""Rule cache, of results: what is kept saves casts and changes nothing that an op gives.

`ampcheck.spec.rules` says what the rule promises; `test_cache.py` counts the casts. With gradients:
`suites/autograd/test_cache__results.py`.
"""

from collections.abc import Callable

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("cache")


@scenario()
def test_inner_region_of_another_dtype(amp: Amp) -> None:
    """In a nested region ops run in that region's dtype, whatever was kept before (amp.html#torch.autocast, dtype)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    inside = name_of(amp.other)
    with amp.region():
        amp.observe(lambda: torch.mm(x, weight))
        with amp.region(amp.other):
            got = amp.received("mm", lambda: torch.mm(x, weight))
            amp.expect("dtypes a product receives in the inner region", got, (inside, inside))


@scenario(values=True)
def test_other_dtype_set_inside(amp: Amp) -> None:
    """After set_autocast_dtype ops run in the new dtype, whatever was kept before (torch.get_autocast_dtype)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        torch.mm(x, weight)
        torch.set_autocast_dtype(amp.type, amp.other)
        amp.expect("dtype of a product of two weights", torch.mm(weight, weight).dtype, amp.other)


@scenario()
def test_other_dtype_in_a_thread(amp: Amp) -> None:
    """A region in another thread has its own dtype, whatever was kept here (amp.html: state is thread-local)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    other = name_of(amp.other)

    def elsewhere() -> tuple[str, ...] | None:
        with amp.region(amp.other):
            return amp.received("mm", lambda: torch.mm(x, weight))

    with amp.region():
        amp.observe(lambda: torch.mm(x, weight))
        amp.expect("dtypes a product receives in another thread's region", amp.thread(elsewhere), (other, other))


@scenario(values=True)
def test_layer_in_two_dtypes(amp: Amp) -> None:
    """A layer runs in a region of one dtype and in an inner one of the other (amp.html#torch.autocast, dtype)."""
    layer, x = amp.module(lambda: torch.nn.Linear(4, 4)).requires_grad_(), amp.rand(2, 4)
    with amp.region():
        amp.expect("dtype of the layer in the outer region", layer(x).dtype, amp.dtype)
        with amp.region(amp.other):
            try:
                found = str(layer(x).dtype)
            except RuntimeError as error:
                found = f"RuntimeError: {error}"
            amp.expect("dtype of the layer in the inner region", found, str(amp.other))


def _fill(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.fill_(9)


def _load(weight: torch.nn.Parameter) -> None:
    torch.nn.ParameterList([weight]).load_state_dict({"0": torch.full_like(weight, 9)})


def _replace(weight: torch.nn.Parameter) -> None:
    weight.data = torch.full((2, 5), 9.0, device=weight.device)


CHANGES: dict[str, Callable[[torch.nn.Parameter], None]] = {"in_place": _fill, "loaded": _load, "replaced": _replace}


@pytest.mark.parametrize("change", list(CHANGES))
@scenario(values=True)
def test_changed_weight(amp: Amp, change: str) -> None:
    """A product has the values its weight has now (torch.mm; amp.html: cache_enabled is no matter of values)."""
    weight, x = torch.nn.Parameter(torch.ones(2, 2, device=amp.type)), torch.ones(1, 2, device=amp.type)
    with amp.region():
        amp.expect("product before the change", amp.values(torch.mm(x, weight)), [[2.0, 2.0]])
        CHANGES[change](weight)
        amp.expect("product after the change", amp.values(torch.mm(x, weight)), [[18.0] * weight.shape[1]])


@scenario(values=True)
def test_after_a_fake_mode(amp: Amp) -> None:
    """An op on tensors with values gives values, though the weight was used in a fake mode before (amp.html)."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes over a second

    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(1, 2)
    if not torch._C._has_storage(weight):
        amp.unsupported("PyTorch makes no fake tensor of one whose storage it cannot read (OpaqueTensorImpl)")
    with amp.region():
        with FakeTensorMode(allow_non_fake_inputs=True):
            torch.mm(torch.ones(1, 2, device=amp.type), weight)
        amp.expect("class of a product after the fake mode", type(torch.mm(x, weight)).__name__, "Tensor")
