"""Rule decorator: a decorated function runs in the region on every call and keeps its name.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast ("can also be used as a decorator") and
`autocast_decorator` of torch/amp/autocast_mode.py.

PyTorch promises nothing about a decorated generator function or coroutine function: the region spans the call that
makes the generator or coroutine, and its body runs later. Only what follows from that is checked.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("decorator")


# ---- what may be decorated
@scenario()
def test_other_callables(amp: Amp) -> None:
    """Any callable can be decorated: a lambda, a partial, a torch function (autocast_mode.py, __call__)."""
    a, b = amp.rand(2, 2), amp.rand(2, 2)
    amp.assert_equal("lambda", amp.region()(lambda: torch.mm(a, b).dtype)(), amp.dtype)
    amp.assert_equal("partial", amp.region()(partial(torch.mm, a))(b).dtype, amp.dtype)
    amp.assert_equal("torch.mm", amp.region()(torch.mm)(a, b).dtype, amp.dtype)
    amp.assert_equal("bound method", amp.region()(a.mm)(b).dtype, amp.dtype)
    amp.assert_equal("state after the calls", amp.state(), (False, amp.default, True))


@scenario(dtypes="default", since="2.12")
def test_not_callable(amp: Amp) -> None:
    """An object that is not callable is refused by an error that names its type (pytorch#172178; torch 2.12)."""
    for wrong in (amp.rand(2), None, classmethod(lambda cls: None)):
        kind = type(wrong).__name__
        said = f"requires a callable, but got {kind}"
        amp.assert_raises(f"decorating a {kind}", TypeError, said, partial(amp.region(), wrong))
    amp.assert_equal("state after the refusals", amp.state(), (False, amp.default, True))


# ---- the region
@scenario(enabled=named(on=True, off=False), cache_enabled=named(kept=True, dropped=False))
def test_options(amp: Amp, enabled: bool, cache_enabled: bool) -> None:
    """The body has the dtype, enabled and cache_enabled of the decorator (amp.html#torch.autocast)."""

    @amp.region(enabled=enabled, cache_enabled=cache_enabled)
    def function() -> tuple[object, torch.dtype]:
        return amp.state(), amp.probe()

    want = ((enabled, amp.dtype, cache_enabled), amp.dtype if enabled else torch.float32)
    for time in range(3):
        amp.assert_equal(f"state and dtype of a product inside, call {time}", function(), want)
        amp.assert_state(f"after call {time}", (False, amp.default, True), 0)
    with amp.region(amp.other):
        amp.assert_equal("the same, called in a region", function(), want)
        amp.assert_equal("state of that region after the call", amp.state(), (True, amp.other, True))


@scenario()
def test_decorated_inside_a_region(amp: Amp) -> None:
    """Applied in another region, a decorator takes only omitted options from there (autocast_mode.py, __init__)."""
    with amp.region(amp.other, cache_enabled=False):
        explicit = amp.region(cache_enabled=True)(lambda: amp.state())
        left_out = torch.autocast(amp.type, enabled=False)(lambda: amp.state())
    amp.assert_equal("state of a function with all options", explicit(), (True, amp.dtype, True))
    amp.assert_equal("state of one that takes dtype and cache_enabled over", left_out(), (False, amp.other, False))
    amp.assert_equal("state after the calls", amp.state(), (False, amp.default, True))


@scenario()
def test_several_decorators(amp: Amp) -> None:
    """The decorator next to the function is the innermost region (Python's order of decorators)."""

    @amp.region(amp.other)
    @amp.region(enabled=False)
    @amp.region()
    def inner_on() -> torch.dtype:
        return amp.probe()

    @amp.region()
    @amp.region(amp.other, enabled=False)
    def inner_off() -> torch.dtype:
        return amp.probe()

    amp.assert_equal("dtype with this dtype innermost", inner_on(), amp.dtype)
    amp.assert_equal("dtype with a disabled region innermost", inner_off(), torch.float32)
    amp.assert_equal("state after the calls", amp.state(), (False, amp.default, True))


@scenario()
def test_one_calls_another(amp: Amp) -> None:
    """A decorated function called by another one runs in its own region, and the caller's is back (amp.html)."""

    @amp.region(enabled=False)
    def callee() -> torch.dtype:
        return amp.probe()

    @amp.region()
    def caller() -> list[torch.dtype]:
        return [amp.probe(), callee(), amp.probe()]

    amp.assert_equal("dtypes in caller, callee, caller", caller(), [amp.dtype, torch.float32, amp.dtype])


@scenario()
def test_recursion(amp: Amp) -> None:
    """A decorated function that calls itself is left as often as it is entered (amp.html; pytorch#44531)."""

    @amp.region()
    def function(times: int) -> int:
        amp.assert_equal(f"state with {times} calls to go", amp.state(), (True, amp.dtype, True))
        return 1 + function(times - 1) if times else 0

    amp.assert_equal("result", function(3), 3)
    amp.assert_state("after the recursion", (False, amp.default, True))


@scenario()
def test_one_region_for_two_functions(amp: Amp) -> None:
    """Two functions decorated with one region object, one calling the other, restore the state (amp.html)."""
    region = amp.region()
    inner = region(lambda: amp.probe())
    amp.assert_equal("dtype a product runs in, inside both", region(lambda: inner())(), amp.dtype)
    amp.assert_equal("state after both", amp.state(), (False, amp.default, True))


@scenario()
def test_casts_per_call(amp: Amp) -> None:
    """Each call is an outermost region: casts are shared in it and dropped after it (autocast_mode.cpp, nesting)."""
    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(2, 2)

    @amp.region()
    def function() -> int:
        return amp.casts(lambda: [torch.mm(x, weight) for _ in range(3)], weight)

    amp.assert_equal("casts in the first and the second call", [function(), function()], [1, 1])
    with amp.region():
        amp.assert_equal("casts in two calls in one region", [function(), function()], [1, 0])


# ---- what the caller sees
@scenario(dtypes="default")
def test_keeps_its_name(amp: Amp) -> None:
    """functools.wraps: name, docstring, module, annotations and signature stay (autocast_mode.py)."""

    def plain(x: int, *, y: str = "a") -> bool:
        """What it does."""
        return bool(x and y)

    wrapped = amp.region()(plain)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        amp.assert_equal(name, getattr(wrapped, name), getattr(plain, name))
    amp.assert_equal("signature", str(inspect.signature(wrapped)), str(inspect.signature(plain)))
    amp.assert_equal("whether __wrapped__ is the function", inspect.unwrap(wrapped) is plain, True)
    plain.mark = 1
    amp.assert_equal("an attribute of the function", getattr(amp.region()(plain), "mark", None), 1)


@scenario(dtypes="default")
def test_arguments_and_result(amp: Amp) -> None:
    """Arguments and result go through as they are (autocast_mode.py, autocast_decorator)."""

    @amp.region()
    def function(first: object, *rest: object, key: object = None, **more: object) -> tuple[object, ...]:
        return first, rest, key, more

    one, two = object(), object()
    amp.assert_equal("arguments as received", function(one, two, 3, key=4, other=5), (one, (two, 3), 4, {"other": 5}))
    amp.assert_equal("default arguments", function(one), (one, (), None, {}))
    amp.assert_equal("whether the result is the function's own object", amp.region()(lambda: one)() is one, True)


@scenario()
def test_tensors_pass_through(amp: Amp) -> None:
    """The decorator casts neither arguments nor results (amp.html: only ops cast)."""

    @amp.region()
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.mm(x, x)

    x = amp.rand(2, 2)
    same, low = function(x)
    amp.assert_equal("whether the argument came back as the same tensor", same is x, True)
    amp.assert_equal("dtypes that came out", (same.dtype, low.dtype), (torch.float32, amp.dtype))


# ---- threads
@scenario()
def test_called_in_a_thread(amp: Amp) -> None:
    """A decorated function may be called in a new thread; it is enabled there (amp.html: state is thread-local)."""

    @amp.region()
    def function() -> torch.dtype:
        return amp.probe()

    got = amp.thread(lambda: (function(), amp.state()))
    amp.assert_equal("dtype inside, and state after it", got, (amp.dtype, (False, amp.default, True)))
    amp.assert_equal("state here", amp.state(), (False, amp.default, True))


@scenario()
def test_called_twice_at_once(amp: Amp) -> None:
    """Calls of one decorated function that overlap in two threads leave each as it was (amp.html: thread-local)."""

    @amp.region()
    def function(meanwhile: Callable[[], None]) -> None:
        amp.assert_equal("state inside", amp.state(), (True, amp.dtype, True))
        meanwhile()

    def second() -> None:
        with amp.region(amp.other):
            function(lambda: None)
            amp.assert_equal("state in the second thread after its call", amp.state(), (True, amp.other, True))

    function(lambda: amp.thread(second))
    amp.assert_equal("state in the first thread after its call", amp.state(), (False, amp.default, True))


# ---- generators and coroutines
@scenario(dtypes="default")
def test_generator_function(amp: Amp) -> None:
    """A decorated generator function gives its values and leaks no state; its body's state is left open by PyTorch."""

    @amp.region()
    def count(start: int) -> Iterator[int]:
        yield start
        amp.assert_equal("what was sent", (yield start + 1), "sent")

    before = amp.state()
    made = count(3)
    amp.assert_equal("state after the call", amp.state(), before)
    amp.assert_equal("first value", next(made), 3)
    amp.assert_equal("second value", next(made), 4)
    amp.assert_equal("values that are left", _send_and_drain(made, "sent"), [])
    amp.assert_state("after the generator's end", before, 0)


def _send_and_drain(made: Iterator[int], value: object) -> list[int]:
    try:
        return [made.send(value), *made]
    except StopIteration:
        return []
