"""Rules cache, context, decorator and nesting under TorchScript: scripted, traced and frozen programs alone.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; cases name the upstream test or issue they come
from. What every compiler is asked is in the files of `suites/jit`.
"""

import warnings
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario


@pytest.mark.rule("cache")
@scenario(compiler=["traced"], values=True)
def test_tracing_with_the_cache_on(amp: Amp, compiler: str) -> None:
    """A layer used twice is traced in a region whose cache is on, as it is (pytorch#50231, #84092)."""
    layer = amp.module(lambda: torch.nn.Linear(2, 2)).requires_grad_(True)
    x = amp.rand(2, 2)
    with amp.region():
        got = amp.compiled(compiler, lambda x: layer(layer(x)), x)(x)
        want = layer(layer(x))
    amp.assert_equal("dtype", got.dtype, amp.dtype)
    amp.assert_close("the traced layer", got.float(), want.detach().float(), 0.02)
    got.float().sum().backward()
    amp.assert_equal("whether its weight has a gradient", layer.weight.grad is not None, True)


@pytest.mark.rule("cache")
@scenario(compiler=["traced"], values=True)
def test_tracing_with_the_cache_off(amp: Amp, compiler: str) -> None:
    """A layer used twice is traced in a region whose cache is off (upstream test_generate_autocast_jit_trace_model)."""
    layer = amp.module(lambda: torch.nn.Linear(2, 2)).requires_grad_(True)
    x = amp.rand(2, 2)
    with amp.region(cache_enabled=False):
        got = amp.compiled(compiler, torch.nn.Sequential(layer, layer), x)(x)
    amp.assert_equal("dtype", got.dtype, amp.dtype)
    got.float().sum().backward()
    amp.assert_equal("dtype of its weight's gradient", getattr(layer.weight.grad, "dtype", None), torch.float32)


@pytest.mark.rule("context")
@scenario(compiler=["script"])
def test_body_alone_in_a_source(amp: Amp, compiler: str) -> None:
    """TorchScript's region holds for its body alone (pytorch#63939 brought it)."""
    source = """
    def program(x: torch.Tensor):
        before = torch.mm(x, x)
        with torch.autocast(TYPE, dtype=DTYPE):
            inside = torch.mm(x, x)
        return before, inside, torch.mm(x, x)
    """
    x, compiled = amp.compiled_with_matrix(compiler, amp.program(source))
    for call in ("first", "second", "third"):
        dtypes = [out.dtype for out in compiled(x)]
        want = [torch.float32, amp.dtype, torch.float32]
        amp.assert_equal(f"dtypes before, inside and behind, {call} call", dtypes, want)
        amp.assert_equal(f"state after the {call} call", amp.state(), (False, amp.default, True))


@pytest.mark.rule("context")
@scenario(compiler=["script", "traced"])
def test_static_called_in_and_out(amp: Amp, compiler: str) -> None:
    """A function that TorchScript compiled outside of regions is cast by the one it is called in (pytorch#72760)."""
    source = """
    def program(x: torch.Tensor):
        return torch.mm(x, x)
    """
    x, compiled = amp.compiled_with_matrix(compiler, amp.program(source))
    for _ in range(3):
        amp.assert_equal("dtype outside", compiled(x).dtype, torch.float32)
        with amp.region():
            amp.assert_equal("dtype in a region", compiled(x).dtype, amp.dtype)
        with amp.region(amp.other):
            amp.assert_equal("dtype in a region of another dtype", compiled(x).dtype, amp.other)


class _Products(torch.nn.Module):
    """Multiplies what it is given and its own weight by that weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2, 2), 0.5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.mm(x, self.weight), torch.mm(self.weight, self.weight)


class _InARegion(_Products):
    """Multiplies in the same way, in a region whose options are constants."""

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


@pytest.mark.rule("context")
@scenario(compiler=["script"], types=("cpu", "cuda"), values=True)
def test_frozen_region(amp: Amp, compiler: str) -> None:
    """A region keeps its dtype when the module around it is frozen (torch.jit.freeze: parameters become constants)."""
    frozen = _frozen(amp, _InARegion(amp.type, amp.dtype))
    for call in ("first", "second"):
        amp.assert_equal(f"dtypes, {call} call", [out.dtype for out in frozen(amp.rand(2, 2))], [amp.dtype, amp.dtype])


@pytest.mark.rule("context")
@scenario(compiler=["script"], types=("cpu", "cuda"), values=True)
def test_frozen_then_called_in_a_region(amp: Amp, compiler: str) -> None:
    """A frozen module is cast by the region that it is called in, as it was before (pytorch#72760, #74178)."""
    module = _Products()
    frozen = _frozen(amp, module)
    x = amp.rand(2, 2)
    amp.assert_equal("dtypes outside", [out.dtype for out in frozen(x)], [torch.float32, torch.float32])
    with amp.region():
        amp.assert_equal("dtypes in a region", [out.dtype for out in frozen(x)], [out.dtype for out in module(x)])


@pytest.mark.rule("decorator")
@scenario(compiler=["script"])
def test_decorated_in_a_source(amp: Amp, compiler: str) -> None:
    """TorchScript refuses a decorated function (upstream test_autocast_decorator is skipped)."""

    @torch.autocast(amp.type, dtype=amp.dtype)
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    amp.assert_raises("scripting it", RuntimeError, "not supported", lambda: amp.compiled(compiler, program))


@pytest.mark.rule("nesting")
@scenario(compiler=["script"])
def test_three_deep_in_a_source(amp: Amp, compiler: str) -> None:
    """TorchScript's regions nest (upstream test_nested_autocast)."""
    source = f"""
    def program(x: torch.Tensor):
        with torch.autocast(TYPE, dtype=DTYPE):
            first = torch.mm(x, x)
            with torch.autocast(TYPE, dtype={amp.other}):
                second = torch.mm(x, x)
                with torch.autocast(TYPE, enabled=False):
                    third = torch.mm(x, x)
                fourth = torch.mm(x, x)
            fifth = torch.mm(x, x)
        return first, second, third, fourth, fifth, torch.mm(x, x)
    """
    x, compiled = amp.compiled_with_matrix(compiler, amp.program(source))
    want = [amp.dtype, amp.other, torch.float32, amp.other, amp.dtype, torch.float32]
    for _ in range(3):
        amp.assert_equal("dtypes on the way in and out", [out.dtype for out in compiled(x)], want)


@pytest.mark.rule("nesting")
@scenario(compiler=["script"])
def test_disabled_in_a_source_called_in_a_region(amp: Amp, compiler: str) -> None:
    """A disabled region inside a scripted function is off where the function is called in a region."""
    source = """
    def program(x: torch.Tensor):
        with torch.autocast(TYPE, enabled=False):
            off = torch.mm(x, x)
        return off, torch.mm(x, x)
    """
    x, compiled = amp.compiled_with_matrix(compiler, amp.program(source))
    with amp.region():
        amp.assert_equal("dtypes inside and behind", [out.dtype for out in compiled(x)], [torch.float32, amp.dtype])


@pytest.mark.rule("nesting")
@scenario(compiler=["script"], types=("cpu", "cuda"))
def test_dtype_of_its_own_in_a_source_called_in_a_region(amp: Amp, compiler: str) -> None:
    """A region inside a scripted function decides alone where the function is called in a region of another dtype."""
    source = f"""
    def program(x: torch.Tensor):
        with torch.autocast(TYPE, dtype={amp.other}):
            own = torch.mm(x, x)
        return own, torch.mm(x, x)
    """
    x, compiled = amp.compiled_with_matrix(compiler, amp.program(source))
    with amp.region():
        for _ in range(2):
            amp.assert_equal("dtypes inside and behind", [out.dtype for out in compiled(x)], [amp.other, amp.dtype])
