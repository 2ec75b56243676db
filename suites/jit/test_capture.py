"""Rule ambient: the autocast state around a compiled function is the one it is called in, not the one it was made in.

The promise, its sources, and what is compared: docs/coverage/capture.md.
"""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.fx.experimental import proxy_tensor

from ampcheck.runner.suite import Amp, Product, scenario, where

pytestmark = pytest.mark.rule("ambient")

_STATES = ("out", "low", "other", "off", "unkept")
_CALLS = ("low", "other", "off", "unkept", "out")
"""The same in another order, so that cells of each run are made and called in different ones."""
_BODIES = ("bare", "region", "disabled", "default", "asking")

ON_THE_CPU = Product(
    {
        "compiler": ("script", "traced", "dynamo", "aot", "inductor", "export", "strict", "decomposed", "packaged"),
        "body": _BODIES,
        "capture": _STATES,
        "call": _CALLS,
        "caller": ("same", "resized", "worker", "bystander"),
    },
    {
        "a scripted function that asks for the state ends the process (finding script-query-crashes)": where(
            compiler="script", body="asking"
        ),
        "a package takes ten seconds to make; with other sizes none is": where(compiler="packaged", caller="resized"),
    },
)
ELSEWHERE = Product(
    {
        "compiler": ("dynamo", "aot", "export", "jaxcompile", "jaxjit"),
        "body": ("bare", "region", "disabled"),
        "capture": ("out", "low"),
        "call": ("low", "other", "out"),
        "caller": ("same", "bystander"),
    }
)
TOOLS = Product(
    {"tool": ("fx", "makefx", "symbolic"), "body": ("bare", "region", "disabled"), "capture": _STATES, "call": _CALLS}
)
FOUND = Product(
    {"body": ("bare", "default"), "first": ("low", "other", "off"), "second": ("other", "off", "low")}, nightly=True
)

_BODY = {
    "bare": "x, h = x, h",
    "region": "with torch.autocast(TYPE, dtype=OTHER):",
    "disabled": "with torch.autocast(TYPE, enabled=False):",
    "default": "with torch.autocast(TYPE):",
    "asking": "asked = x.double() if torch.is_autocast_enabled(TYPE) else x.float()",
}
"""What stands before the ops of a program, or around them."""


def _program(amp: Amp, body: str) -> Any:
    """Return a product of float32 matrices and a loss of the lower precision, behind or in what a body says."""
    first = _BODY[body].replace("OTHER", str(amp.other))
    indent = "    " if first.startswith("with") else ""
    result = "torch.mm(x, x), torch.nn.functional.mse_loss(h, h)" + (", asked" if body == "asking" else "")
    lines = [first, f"{indent}return {result}"]
    return amp.program("def program(x: torch.Tensor, h: torch.Tensor):\n" + "\n".join(f"    {line}" for line in lines))


def _entered(amp: Amp, state: str) -> ExitStack:
    """Enter the regions of a state; those of `off` are a disabled one in one, that of `unkept` keeps no cast."""
    regions = {
        "out": [],
        "low": [amp.region()],
        "other": [amp.region(amp.other)],
        "off": [amp.region(), amp.region(enabled=False)],
        "unkept": [amp.region(cache_enabled=False)],
    }
    stack = ExitStack()
    for region in regions[state]:
        stack.enter_context(region)
    return stack


def _dtype_in(amp: Amp, state: str) -> torch.dtype | None:
    """Return the dtype that a state casts to, None where autocast is off."""
    return {"low": amp.dtype, "other": amp.other, "unkept": amp.dtype}.get(state)


def _cast(amp: Amp, overload: str, given: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which an op computes by its policy; `dtype` is what autocast casts to, or None."""
    policy = amp.policies.get(overload) if dtype else None
    return {"downcast": dtype or given, "upcast": torch.float32}.get(policy or "", given)


def _results(amp: Amp, body: str, state: str) -> list[torch.dtype]:
    """Return the dtypes that a program gives eagerly in a state."""
    around = _dtype_in(amp, state)
    inside = {"region": amp.other, "disabled": None, "default": around or amp.dtype}.get(body, around)
    asked = [torch.float64 if around else torch.float32] if body == "asking" else []
    return [_cast(amp, "mm", torch.float32, inside), _cast(amp, "mse_loss", amp.dtype, inside), *asked]


def _recorded(amp: Amp, body: str, capture: str, call: str) -> list[torch.dtype]:
    """Return the dtypes that a record of a program gives: its casts, and those of a region that has no other inside."""
    mm, loss, *asked = _results(amp, body, capture)
    if body in ("bare", "asking"):
        dtype = _dtype_in(amp, call)
        mm, loss = _cast(amp, "mm", mm, dtype), _cast(amp, "mse_loss", loss, dtype)
    return [mm, loss, *asked]


def _wanted(amp: Amp, compiler: str, body: str, capture: str, call: str) -> list[torch.dtype]:
    if compiler == "packaged":
        return _results(amp, body, capture)
    if compiler in ("traced", "makefx", "symbolic"):
        return _recorded(amp, body, capture, call)
    return _results(amp, body, call)


def _called(amp: Amp, program: Any, when: str, want: list[torch.dtype], size: int = 2) -> None:
    """Call a program in the present state: its dtypes, its product, and the state afterwards."""
    x, h = amp.rand(size, size), amp.rand(size, size, dtype=amp.dtype)
    before = (*amp.state(), amp.depth())
    out = program(x, h)
    amp.assert_equal(f"dtypes {when}", [y.dtype for y in out], want)
    amp.assert_equal(f"state {when}", (*amp.state(), amp.depth()), before)
    if amp.has_values:
        exact = amp.host(x).double()  # float64 is not cast
        tolerance = 1e-5 if want[0] == torch.float32 else 0.02
        amp.assert_close(f"product {when}", out[0].float(), (exact @ exact).float(), tolerance)


_PACKAGES: dict[tuple[object, ...], Any] = {}
"""Packages by what they are made of: making one takes ten seconds, and it keeps no state."""


def _check(amp: Amp, compiler: str, body: str, capture: str, call: str, caller: str) -> None:
    options = {"dynamic": True} if caller == "resized" else {}
    sizes = (3, 5) if caller == "resized" else (2, 2)
    with _entered(amp, capture):
        program = _PACKAGES.get((amp.type, amp.dtype, body, capture)) if compiler == "packaged" else None
        if program is None:
            x, h = amp.rand(2, 2), amp.rand(2, 2, dtype=amp.dtype)
            program = amp.compiled(compiler, _program(amp, body), x, h, **options)
        if compiler == "packaged":
            _PACKAGES[amp.type, amp.dtype, body, capture] = program
        _called(amp, program, f"where it was made, in {capture}", _wanted(amp, compiler, body, capture, capture))

    def twice(state: str) -> None:
        want = _wanted(amp, compiler, body, capture, state)
        for turn, size in zip(("first", "second"), sizes, strict=True):
            _called(amp, program, f"of the {turn} call in {state}", want, size)

    def entering() -> None:
        with _entered(amp, call):
            twice(call)

    if caller == "worker":
        amp.thread(entering)
    elif caller == "bystander":
        with _entered(amp, call):
            amp.thread(lambda: twice("out"))
    else:
        entering()
    amp.assert_equal("state after it all", (*amp.state(), amp.depth()), (False, amp.default, True, 0))


@scenario(ON_THE_CPU, types=("cpu",), dtypes="default")
def test_made_and_called(amp: Amp, compiler: str, body: str, capture: str, call: str, caller: str) -> None:
    """A function made in one state acts in another as its compiler promises.

    `caller`: the thread that made it, with other sizes than it was made for, a new thread that enters the state, or a
    new thread in no region while the one that made it is in the state.
    """
    _check(amp, compiler, body, capture, call, caller)


@scenario(ELSEWHERE, types=("cuda", "xpu", "mps", "mtia", "jax"), dtypes="default")
def test_made_and_called_elsewhere(amp: Amp, compiler: str, body: str, capture: str, call: str, caller: str) -> None:
    """A function made in one state acts in another as its compiler promises, on device types that are not the CPU."""
    _check(amp, compiler, body, capture, call, caller)


@scenario(TOOLS, types=("cpu", "jax"), values=True, dtypes="default")
def test_recorded_and_called(amp: Amp, tool: str, body: str, capture: str, call: str) -> None:
    """A graph of torch.fx acts in the state that it is called in; one of make_fx has the casts of its making, too."""
    program, x, h = _program(amp, body), amp.rand(2, 2), amp.rand(2, 2, dtype=amp.dtype)
    with _entered(amp, capture):
        if tool == "fx":
            graph: Any = torch.fx.symbolic_trace(program)
        else:
            mode = "symbolic" if tool == "symbolic" else "real"
            graph = proxy_tensor.make_fx(program, tracing_mode=mode)(x, h)
    want = _wanted(amp, tool, body, capture, call)
    for turn in ("first", "second"):
        with _entered(amp, call):
            _called(amp, graph, f"of the {turn} call in {call}", want)


@scenario(FOUND, types=("cpu",), dtypes="default")
def test_found_on_disk(amp: Amp, body: str, first: str, second: str) -> None:
    """What Inductor wrote to its folder in one state is not what it finds there in another (pytorch#181564)."""
    program, x, h = _program(amp, body), amp.rand(2, 2), amp.rand(2, 2, dtype=amp.dtype)
    for turn, state in (("first", first), ("second", second)):
        torch._dynamo.reset()  # as in a new process, which has the folder alone
        with _entered(amp, state):
            compiled = amp.compiled("inductor", program, x, h)
            _called(amp, compiled, f"of the {turn} program, of {state}", _results(amp, body, state))
