"""The pass for TorchScript: rewritten programs do what the same source does eagerly."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck import torchscript
from ampcheck.torchscript.regions import scripted
from tests.torchscript import programs

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.*torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*is_autocast_cpu_enabled:DeprecationWarning"),  # TorchScript has no other
]


class Recurrent(torch.nn.Module):
    """One layer used four times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(4):
                x = self.layer(x)
        return x


AMBIENT = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def given(requires_grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator).requires_grad_(requires_grad) for _ in range(3)]


def around(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def same(got: Any, want: Any) -> None:
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for place, (g, w) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(g, w), f"result {place} differs by {(g.double() - w.double()).abs().max()}"


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., list[torch.Tensor]], ambient: str) -> None:
    """Also as it was saved and loaded."""
    rewritten = torchscript.autocast(scripted(program))
    loaded = torch.jit.load(io.BytesIO(rewritten.save_to_buffer()))
    with around(AMBIENT[ambient]):
        same(loaded(*given(), True), program(*given(), True))
        for on in (True, False):
            for _ in range(3):  # as it is compiled, profiled and optimized
                same(rewritten(*given(), on), program(*given(), on))


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("name", ["one_region", "nested", "flag", "several", "loops", "biases", "upcasts", "no_region"])
def test_gradients(name: str, ambient: str) -> None:
    """As in eager without its weight cache, which sums the gradients of a weight's uses in the lower precision."""
    program = getattr(programs, name)
    rewritten = torchscript.autocast(scripted(program))

    def gradients(call: Callable[..., list[torch.Tensor]]) -> list[torch.Tensor]:
        inputs = given(requires_grad=True)
        with around(AMBIENT[ambient]):
            out = call(*inputs, True)
        torch.stack([o.float().sum() for o in out if o.requires_grad]).sum().backward()
        return [i.grad for i in inputs if i.grad is not None]

    torch.set_autocast_cache_enabled(False)
    try:
        want = gradients(program)
        for _ in range(3):
            for g, w in zip(gradients(rewritten), want, strict=True):
                assert g.dtype == w.dtype
                torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-6)
    finally:
        torch.set_autocast_cache_enabled(True)


def test_gradients_of_many_uses_are_summed_in_float32() -> None:
    """Nothing merges the casts of one weight, after which its gradients would be summed in the lower precision."""
    torch.manual_seed(0)
    module, x = Recurrent(), given()[0]
    rewritten = torchscript.autocast(scripted(module))

    def gradients(call: Any, *, cached: bool) -> list[torch.Tensor]:
        torch.set_autocast_cache_enabled(cached)
        try:
            return list(torch.autograd.grad(call(x).float().sum(), list(module.parameters())))
        finally:
            torch.set_autocast_cache_enabled(True)

    want, cached = gradients(module, cached=False), gradients(module, cached=True)
    assert not all(map(torch.equal, want, cached))
    for _ in range(3):
        same(gradients(rewritten, cached=True), want)
