"""Rule context, frozen and left early: `ampcheck.spec.rules` says what it promises."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("context")


class _Products(torch.nn.Module):
    """Multiplies what it is given and its own weight by that weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2, 2), 0.5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.mm(x, self.weight), torch.mm(self.weight, self.weight)


class _InARegion(_Products):
    """The same in a region whose options are constants."""

    __constants__ = ("kind", "low")

    def __init__(self, kind: str, low: torch.dtype) -> None:
        super().__init__()
        self.kind, self.low = kind, low

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(self.kind, dtype=self.low):
            return torch.mm(x, self.weight), torch.mm(self.weight, self.weight)


def _frozen(amp: Amp, module: torch.nn.Module) -> Any:
    with warnings.catch_warnings():  # TorchScript is deprecated as a whole
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.freeze(torch.jit.script(module.to(amp.type).eval()))


@scenario(types=("cpu", "cuda"), values=True)
@pytest.mark.parametrize("executor", ["script"])
def test_frozen_region(amp: Amp, executor: str) -> None:
    """A region keeps its dtype when the module around it is frozen (torch.jit.freeze: parameters become constants)."""
    frozen = _frozen(amp, _InARegion(amp.type, amp.dtype))
    for call in ("first", "second"):
        amp.expect(f"dtypes, {call} call", [out.dtype for out in frozen(amp.rand(2, 2))], [amp.dtype, amp.dtype])


@scenario(types=("cpu", "cuda"), values=True)
@pytest.mark.parametrize("executor", ["script"])
def test_frozen_then_called_in_a_region(amp: Amp, executor: str) -> None:
    """A frozen module is cast by the region that it is called in, as it was before (pytorch#72760, #74178)."""
    module = _Products()
    frozen = _frozen(amp, module)
    x = amp.rand(2, 2)
    amp.expect("dtypes outside", [out.dtype for out in frozen(x)], [torch.float32, torch.float32])
    with amp.region():
        amp.expect("dtypes in a region", [out.dtype for out in frozen(x)], [out.dtype for out in module(x)])


@scenario(types=("cpu", "cuda"))
@pytest.mark.parametrize("executor", ["script", "dynamo", "aot", "inductor"])
def test_left_early(amp: Amp, executor: str) -> None:
    """A region ends where its function returns from inside of it, on either way (Python's with statement)."""
    program = amp.program(
        """
        def program(x: torch.Tensor, early: bool):
            with torch.autocast(TYPE, dtype=DTYPE):
                y = torch.mm(x, x)
                if early:
                    return y
                z = torch.mm(y, x)
            return torch.mm(z.float(), x)
        """
    )
    x = amp.rand(2, 2)
    compiled = amp.compiled(executor, program, x, True)
    for early, dtype in ((True, amp.dtype), (False, torch.float32), (True, amp.dtype)):
        amp.expect(f"dtype, left {'early' if early else 'at its end'}", compiled(x, early).dtype, dtype)
        amp.expect("state after it", amp.state(), (False, amp.default, True))
