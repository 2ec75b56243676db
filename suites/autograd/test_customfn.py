"""Rule customfn: the autocast state and the dtypes that a torch.autograd.Function runs in.

`ampcheck.spec.rules` says what the rule promises; amp.html#torch.amp.custom_fwd and #torch.amp.custom_bwd where no
case names a source. Containers and other arguments stand in test_eligibility.py, cache_enabled in test_context.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("customfn")

Seen = dict[str, Any]


def _with_call(amp: Amp, **options: Any) -> tuple[Any, Any]:
    return torch.amp.custom_fwd(device_type=amp.type, **options), torch.amp.custom_bwd(device_type=amp.type)


def _without_call(amp: Amp, **options: Any) -> tuple[Any, Any]:
    return (
        lambda function: torch.amp.custom_fwd(function, device_type=amp.type, **options),
        lambda function: torch.amp.custom_bwd(function, device_type=amp.type),
    )


def _by_keyword(amp: Amp, **options: Any) -> tuple[Any, Any]:
    return (
        lambda function: torch.amp.custom_fwd(fwd=function, device_type=amp.type, **options),
        lambda function: torch.amp.custom_bwd(bwd=function, device_type=amp.type),
    )


SPELLINGS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "call": _with_call,
    "no_call": _without_call,
    "keyword": _by_keyword,
}


def _function(amp: Amp, seen: Seen, spelling: str = "call", **options: Any) -> Any:
    """A product whose forward and backward note their state, the dtypes they get and the dtype of a product."""
    forwards, backwards = SPELLINGS[spelling](amp, **options)

    class Product(torch.autograd.Function):
        @staticmethod
        @forwards
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            """Forward's own docstring."""
            seen["forward"] = (amp.state()[:2], x.dtype, w.dtype, amp.probe())
            ctx.save_for_backward(x, w)
            return torch.mm(x, w)

        @staticmethod
        @backwards
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen["backward"] = (amp.state()[:2], gradient.dtype, amp.probe())
            x, w = ctx.saved_tensors
            return torch.mm(gradient, w.t()), torch.mm(x.t(), gradient)

    return Product


@pytest.mark.parametrize("spelling", list(SPELLINGS))
@scenario(values=True)
def test_region_of_forward(amp: Amp, spelling: str) -> None:
    """Without cast_inputs forward runs in the region it is called in, and backward does wherever that is called."""
    seen: Seen = {}
    product = _function(amp, seen, spelling)
    for place in (amp.region(enabled=False), amp.region(amp.other)):
        x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
        with amp.region():
            out = product.apply(x, w)
        with place:
            before = amp.state()
            out.sum().backward()
            amp.expect("state after backward", amp.state(), before)
        amp.expect("in forward", seen.get("forward"), ((True, amp.dtype), torch.float32, torch.float32, amp.dtype))
        amp.expect("in backward", seen.get("backward"), ((True, amp.dtype), amp.dtype, amp.dtype))
        for leaf in (x, w):
            amp.expect("dtype of a gradient", getattr(leaf.grad, "dtype", None), torch.float32)


@pytest.mark.parametrize("spelling", list(SPELLINGS))
@pytest.mark.parametrize("to", ["wide", "low", "other"])
@scenario(values=True)
def test_cast_inputs(amp: Amp, to: str, spelling: str) -> None:
    """cast_inputs casts what forward gets, and both passes run with autocast off, in a region of any dtype."""
    dtype = {"wide": torch.float32, "low": amp.dtype, "other": amp.other}[to]
    seen: Seen = {}
    product = _function(amp, seen, spelling, cast_inputs=dtype)
    x, w = amp.rand(3, 3, dtype=amp.dtype, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        before = amp.state()
        out = product.apply(x, w)
        amp.expect("state after forward", amp.state(), before)
        out.sum().backward()
        amp.expect("state after backward", amp.state(), before)
    off = (False, amp.dtype)
    amp.expect("in forward", seen.get("forward"), (off, dtype, dtype, torch.float32))
    amp.expect("in backward", seen.get("backward"), (off, dtype, torch.float32))
    amp.expect("dtype of the result", out.dtype, dtype)
    amp.expect("dtype of a low leaf's gradient", getattr(x.grad, "dtype", None), amp.dtype)
    amp.expect("dtype of a float32 leaf's gradient", getattr(w.grad, "dtype", None), torch.float32)


@pytest.mark.parametrize("how", ["disabled", "none"])
@scenario(values=True)
def test_cast_inputs_outside(amp: Amp, how: str) -> None:
    """Outside of an enabled region custom_fwd does nothing, and backward runs as forward did, also in a region."""
    seen: Seen = {}
    product = _function(amp, seen, cast_inputs=amp.dtype)
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    if how == "disabled":
        with amp.region(), amp.region(enabled=False):
            out = product.apply(x, w)
    else:
        out = product.apply(x, w)
    with amp.region():
        out.sum().backward()
    wide = torch.float32
    amp.expect("in forward", (seen["forward"][0][0], *seen["forward"][1:]), (False, wide, wide, wide))
    amp.expect("in backward", (seen["backward"][0][0], *seen["backward"][1:]), (False, wide, wide))


@pytest.mark.parametrize("place", ["inside", "after", "thread"])
@scenario(values=True)
def test_backward_of_no_region(amp: Amp, place: str) -> None:
    """What ran outside of a region has its backward outside of one, wherever and in whatever thread it is called."""
    seen: Seen = {}
    product = _function(amp, seen)
    w = amp.rand(3, 3, requires_grad=True)
    out = product.apply(amp.rand(3, 3), w)

    def backward() -> None:
        with amp.region(enabled=place != "after"):
            out.sum().backward()

    if place == "thread":
        amp.thread(backward)
    else:
        backward()
    amp.expect("in backward", (seen["backward"][0][0], seen["backward"][2]), (False, torch.float32))


@scenario(values=True)
def test_never_cast(amp: Amp) -> None:
    """cast_inputs leaves float64, integer, bool, complex and other devices' tensors, and what is no tensor, alone."""
    seen: list[Any] = []
    kinds = (torch.float64, torch.int32, torch.bool, torch.complex64)

    class Takes(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=amp.dtype)
        def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            seen.extend(value.dtype if isinstance(value, torch.Tensor) else value for value in rest)
            return x * 2

    given = [torch.ones(2, dtype=kind, device=amp.type) for kind in kinds]
    other = torch.ones(2, device="meta")
    plain = (None, True, 3, 2.5, "text", torch.float64)
    with amp.region():
        out = Takes.apply(amp.rand(2), *given, other, *plain)
    amp.expect("dtypes and values in forward", seen, [*kinds, torch.float32, *plain])
    amp.expect("dtype of what was cast", out.dtype, amp.dtype)


@scenario(values=True)
def test_called_with_keywords(amp: Amp) -> None:
    """A decorated forward casts keyword arguments as well as positional ones (autocast_mode.py, custom_fwd)."""

    def plain(ctx: Any, x: torch.Tensor, *, scale: Any = None, parts: Any = ()) -> tuple[Any, ...]:
        return x.dtype, scale, [part.dtype for part in parts]

    forward = torch.amp.custom_fwd(plain, device_type=amp.type, cast_inputs=amp.dtype)
    uncast = torch.amp.custom_fwd(plain, device_type=amp.type)

    class Context:
        """What takes the place of autograd's."""

    x, half = amp.rand(2), amp.rand(2)
    with amp.region():
        amp.expect("a default", forward(Context(), x), (amp.dtype, None, []))
        amp.expect("a list", forward(Context(), x=x, parts=[half, x])[2], [amp.dtype] * 2)
        amp.expect("a tensor", forward(Context(), x, scale=half)[1].dtype, amp.dtype)
        amp.expect("is what is not to be cast the same", uncast(Context(), x, scale=half)[1] is half, True)
    amp.expect("a tensor outside", forward(Context(), x, scale=half)[1].dtype, torch.float32)


@scenario(values=True)
def test_names_are_kept(amp: Amp) -> None:
    """Decorated passes keep their names and docstrings (functools.wraps in autocast_mode.py)."""
    product = _function(amp, {})
    amp.expect("name of forward", product.forward.__name__, "forward")
    amp.expect("docstring of forward", product.forward.__doc__, "Forward's own docstring.")
    amp.expect("name of backward", product.backward.__name__, "backward")


@scenario(values=True)
def test_of_another_device_type(amp: Amp) -> None:
    """Decorators of another device type cast nothing here and leave this one's region on (device_type)."""
    elsewhere = "xpu" if amp.type == "cpu" else "cpu"
    seen: list[Any] = []

    class Takes(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=elsewhere, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, amp.state()[:2]))
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=elsewhere)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((gradient.dtype, amp.state()[:2]))
            return gradient * 2

    x = amp.rand(2, dtype=amp.dtype, requires_grad=True)
    with amp.region(), torch.autocast(elsewhere, dtype=torch.bfloat16):
        Takes.apply(x).sum().backward()
    amp.expect("dtype and state in both passes", seen, [(amp.dtype, (True, amp.dtype))] * 2)


@scenario(values=True)
def test_undecorated(amp: Amp) -> None:
    """A function without the decorators runs forward in its region and backward in that of whoever calls it."""
    seen: list[Any] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, amp.state()[:2], amp.probe()))
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((gradient.dtype, amp.state()[:2], amp.probe()))
            return gradient * 2

    for place in (amp.region(enabled=False), amp.region(amp.other)):
        seen.clear()
        x = amp.rand(2, requires_grad=True)
        with amp.region():
            out = Twice.apply(x)
        with place:
            caller = torch.float32, amp.state()[:2], amp.probe()
            out.sum().backward()
        amp.expect("in forward", seen[0], (torch.float32, (True, amp.dtype), amp.dtype))
        amp.expect("in backward", seen[1], caller)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("cast", ["cast", "uncast"])
@scenario(values=True)
def test_that_raises(amp: Amp, cast: str, where: str) -> None:
    """An exception in a decorated pass leaves the state of its caller (autocast_mode.py: a with statement)."""

    def fails(here: str) -> None:
        if here == where:
            raise KeyError(f"in {here}")

    class Fails(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32 if cast == "cast" else None)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            fails("forward")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            fails("backward")
            return gradient * 2

    x = amp.rand(2, requires_grad=True)
    with amp.region(cache_enabled=False):
        before, depth = amp.state(), amp.depth()
        amp.raises("the function", KeyError, f"in {where}", lambda: Fails.apply(x).sum().backward())
        amp.expect("state and depth after it", (amp.state(), amp.depth()), (before, depth))
        amp.expect("dtype a product runs in", amp.probe(), amp.dtype)


@scenario(values=True)
def test_one_inside_another(amp: Amp) -> None:
    """A function that is called inside another's forward sees that one's state: off, so it casts nothing."""
    inner_seen: Seen = {}
    inner = _function(amp, inner_seen, cast_inputs=amp.dtype)

    class Outer(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = inner.apply(x, x)
            return out

    with amp.region():
        out = Outer.apply(amp.rand(3, 3, dtype=amp.dtype))
    wide = torch.float32
    amp.expect("in the inner forward", inner_seen.get("forward"), ((False, amp.dtype), wide, wide, wide))
    amp.expect("dtype of the result", out.dtype, wide)
