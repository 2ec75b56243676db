"""Rule decorator, of what the caller sees: `ampcheck.spec.rules` says what it promises. Sources are PyTorch 2.13's."""

import inspect

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("decorator")


@scenario(dtypes="default")
def test_keeps_its_name(amp: Amp) -> None:
    """functools.wraps: name, docstring, module, annotations and signature stay (autocast_mode.py)."""

    def plain(x: int, *, y: str = "a") -> bool:
        """What it does."""
        return bool(x and y)

    wrapped = amp.region()(plain)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        amp.expect(name, getattr(wrapped, name), getattr(plain, name))
    amp.expect("signature", str(inspect.signature(wrapped)), str(inspect.signature(plain)))
    amp.expect("whether __wrapped__ is the function", inspect.unwrap(wrapped) is plain, True)
    plain.mark = 1  # type: ignore[attr-defined]  # a function takes any attribute
    amp.expect("an attribute of the function", getattr(amp.region()(plain), "mark", None), 1)


@scenario(dtypes="default")
def test_arguments_and_result(amp: Amp) -> None:
    """Arguments and result go through as they are (autocast_mode.py, autocast_decorator)."""

    @amp.region()
    def function(first: object, *rest: object, key: object = None, **more: object) -> tuple[object, ...]:
        return first, rest, key, more

    one, two = object(), object()
    amp.expect("arguments as received", function(one, two, 3, key=4, other=5), (one, (two, 3), 4, {"other": 5}))
    amp.expect("default arguments", function(one), (one, (), None, {}))
    result = amp.region()(lambda: one)()
    amp.expect("whether the result is the function's own object", result is one, True)


@scenario()
def test_tensors_pass_through(amp: Amp) -> None:
    """The decorator casts neither what goes in nor what comes out (amp.html: only ops cast)."""

    @amp.region()
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.mm(x, x)

    x = amp.rand(2, 2)
    same, low = function(x)
    amp.expect("whether the argument came back as the same tensor", same is x, True)
    amp.expect("dtypes that came out", (same.dtype, low.dtype), (torch.float32, amp.dtype))


@scenario(dtypes="default")
def test_exception_passes_through(amp: Amp) -> None:
    """What the function raises reaches the caller, and the state is restored (autocast_mode.py, __exit__)."""
    planned = KeyError("planned")

    @amp.region()
    def function() -> None:
        raise planned

    try:
        function()
        raised = None
    except BaseException as error:  # whatever comes out is what is to be seen
        raised = error
    amp.expect("whether the function's own exception came out", raised is planned, True)
    amp.expect("state after the exception", amp.state(), (False, amp.default, True))
    amp.expect("nesting depth after the exception", amp.depth(), 0)
