"""Rule state, compiled: the state functions inside a compiled function answer and act as they do in eager mode.

Source: torch/csrc/autograd/init.cpp; in parentheses are the names of upstream tests.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, Product, other_than, scenario, where
from ampcheck.spec.case import DYNAMO, GUARDED

pytestmark = pytest.mark.rule("state")


@scenario(compiler=GUARDED)
def test_enabled_asked_inside(amp: Amp, compiler: str) -> None:
    """`is_autocast_enabled` inside a compiled function answers for its place (test_is_autocast_cpu_enabled)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out: tuple[torch.Tensor, ...] = (x + 1 if torch.is_autocast_enabled(kind) else x - 1,)
        with torch.autocast(kind, dtype=low):
            out += (x.float() if torch.is_autocast_enabled(kind) else x.double(),)
            with torch.autocast(kind, enabled=False):
                out += (x.double() if torch.is_autocast_enabled(kind) else x.float(),)
        return (*out, x.double() if torch.is_autocast_enabled(kind) else x.float())

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("branches taken", [out.dtype for out in compiled(x)], [torch.float32] * 4)


@scenario(compiler=GUARDED)
def test_dtype_asked_inside(amp: Amp, compiler: str) -> None:
    """`get_autocast_dtype` inside a compiled function gives the dtype of the region around it."""
    kind, other = amp.type, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=other):
            inside = x.to(torch.get_autocast_dtype(kind))
        return inside, x.to(torch.get_autocast_dtype(kind))

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("dtypes inside and behind", [out.dtype for out in compiled(x)], [other, amp.default])


@scenario(compiler=DYNAMO)
def test_set_inside(amp: Amp, compiler: str) -> None:
    """A setting that a compiled function changes holds from there on, inside it and after it (pytorch#186530)."""
    kind, other = amp.type, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.mm(x, x)
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, other)
        return before, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    for call in ("first", "second"):
        got = [y.dtype for y in compiled(x)]
        amp.assert_equal(f"dtypes before and behind, {call} call", got, [torch.float32, other])
        amp.assert_equal(f"state after the {call} call", amp.state(), (True, other, True))
        torch.set_autocast_enabled(kind, False)
        torch.set_autocast_dtype(kind, amp.default)


@scenario(compiler=DYNAMO)
def test_compiling_leaves_state(amp: Amp, compiler: str) -> None:
    """Compiling in a region leaves the region's state, its depth included, as it was."""
    x = amp.rand(2, 2)
    for cache in (True, False):
        with amp.region(cache_enabled=cache):
            before = (*amp.state(), amp.depth())
            compiled = amp.compiled(compiler, torch.mm, x, x, dynamic=cache)
            amp.assert_equal(f"dtype, cache_enabled={cache}", compiled(x, x).dtype, amp.dtype)
            amp.assert_equal(f"state after compiling, cache_enabled={cache}", (*amp.state(), amp.depth()), before)


# ---- compilers and functions of the user's own
SEEN = Product(
    {
        "place": ("around", "inside", "off_inside", "switched"),
        "grads": ("asked", "none", "no_grad"),
        "backward": ("outside", "in_a_region"),
    },
    {"nothing has a gradient": where(grads=other_than("asked"), backward="in_a_region")},
)


@scenario(SEEN, types=("cpu",), values=True)
def test_seen_by_a_compiler(amp: Amp, place: str, grads: str, backward: str) -> None:
    """No region is on while a backend compiles a graph, nor while the graph runs: its casts are in it.

    A backend has what its own compiler returns run (torch.compiler_custom_backends.html); regions are off around both
    (`_DisableAutocast` in torch/_functorch/_aot_autograd), for an op in a region would cast again.
    """
    from functorch.compile import make_boxed_func  # imports Dynamo, which every run would wait for
    from torch._dynamo.backends.debugging import aot_eager

    torch.compiler.reset()
    kind, low = amp.type, amp.dtype
    seen: list[tuple[str, bool]] = []

    def kept(graph: torch.fx.GraphModule, given: Any) -> Any:
        def run(*args: Any) -> Any:
            seen.append(("runs", torch.is_autocast_enabled(kind)))
            return graph.forward(*args)

        seen.append(("compiles", torch.is_autocast_enabled(kind)))
        if grads == "asked":
            seen.append(("compiles with gradients", torch.is_grad_enabled()))
        return make_boxed_func(run)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if place == "around":
            return torch.mm(x, y)
        with torch.autocast(kind, dtype=low, enabled=place != "off_inside"):
            out = torch.mm(x, y)
            if place == "switched":
                with torch.autocast(kind, enabled=False):
                    out = torch.mm(out.float(), y)
        return out

    given = [amp.rand(3, 3, requires_grad=grads == "asked") for _ in range(2)]
    compiled = torch.compile(program, backend=partial(aot_eager, fw_compiler=kept, bw_compiler=kept), fullgraph=True)
    for call in ("first", "second"):
        gradients: list[tuple[torch.Tensor, ...]] = []
        results = []
        for function in (program, compiled):
            with amp.region(), torch.set_grad_enabled(grads != "no_grad"):
                results.append(function(*given))
            if grads == "asked":
                with amp.region(enabled=backward == "in_a_region"):
                    gradients.append(torch.autograd.grad(results[-1].float().square().sum(), given))
        amp.assert_identical(f"result of the {call} call", results[1], results[0])
        for got, want in zip(gradients[-1], gradients[0], strict=True) if gradients else ():
            amp.assert_close(f"gradient of the {call} call", got, want, 4 * torch.finfo(low).eps)
    amp.assert_equal("whether a region is on while it …", set(seen), {(what, False) for what, _ in seen})
    graphs = 2 if grads == "asked" else 1
    amp.assert_equal("graphs that were compiled", [what for what, _ in seen].count("compiles"), graphs)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))


CHANGED: dict[str, Callable[[], object]] = {
    "enabled": lambda: torch.set_autocast_enabled("cpu", True),
    "enabled_of_cuda": lambda: torch.set_autocast_enabled("cuda", True),
    "dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "dtype_of_cuda": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "reuse": lambda: torch.set_autocast_cache_enabled(False),
}


@scenario(part=CHANGED, types=("cpu",), dtypes="default")
def test_left_changed(amp: Amp, part: str) -> None:
    """AOTAutograd refuses a function that leaves another state behind than it found, or puts the state back.

    Source: run_functionalized_fw_and_collect_metadata of torch/_functorch/_aot_autograd/collect_metadata_analysis.py.
    """
    from functorch.compile import aot_function, nop  # imports Dynamo, which every run would wait for

    def program(x: torch.Tensor) -> torch.Tensor:
        CHANGED[part]()
        return x * 2

    def states() -> list[object]:
        asked = (torch.is_autocast_enabled, torch.get_autocast_dtype)
        return [*(ask(kind) for ask in asked for kind in ("cpu", "cuda")), torch.is_autocast_cache_enabled()]

    before, said = states(), ""
    try:
        aot_function(program, fw_compiler=nop)(amp.rand(2, 2))
    except RuntimeError as error:
        said = str(error)
    refused = "does not support tracing graphs that mutate the autocast state" in said
    amp.assert_equal(f"whether a change of {part} is refused or put back", refused or states() == before, True)
