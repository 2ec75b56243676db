"""Rule context, compiled: a region inside or around a compiled function holds for its body alone, as in eager mode.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; cases name the upstream test or issue they come
from.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO, TRACEABLE

pytestmark = pytest.mark.rule("context")


@scenario(compiler=TRACEABLE)
def test_body_alone(amp: Amp, compiler: str) -> None:
    """A region inside a compiled function holds for its body and not for the code before and behind it."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        before = torch.mm(x, x)
        with torch.autocast(kind, dtype=low):
            inside = torch.mm(x, x)
        return before, inside, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program)
    for call in ("first", "second"):
        dtypes = [out.dtype for out in compiled(x)]
        amp.assert_equal(f"dtypes before, inside and behind, {call} call", dtypes, [torch.float32, low, torch.float32])
        amp.assert_equal(f"state after the {call} call", amp.state(), (False, amp.default, True))


@scenario(compiler=TRACEABLE)
def test_parts_of_a_composite_op(amp: Amp, compiler: str) -> None:
    """An op made of others is cast inside a region, as itself or as its parts (upstream test_nonidempotent_amp)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            return torch.einsum("ij,jk->ik", x, x), torch.tensordot(x, x, dims=1)

    x = amp.rand(2, 2)
    want = [y.dtype for y in program(x)]
    compiled = amp.compiled(compiler, program, x)
    amp.assert_equal("dtypes, as in eager mode", [y.dtype for y in compiled(x)], want)


@scenario(compiler=DYNAMO, placed=["before_it", "beginning", "behind_an_op", "called_function", "before_a_return"])
def test_graph_break(amp: Amp, compiler: str, placed: str) -> None:
    """A region goes on behind a graph break and ends as in eager mode (pytorch#93890, #95837, #102414, #124900)."""
    kind, low = amp.type, amp.dtype

    def inner(x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, x)
        torch._dynamo.graph_break()
        return torch.mm(y.float(), x)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out: tuple[torch.Tensor, ...] = ()
        region = torch.autocast(kind, dtype=low)
        if placed == "before_it":
            torch._dynamo.graph_break()
        with region:
            if placed == "behind_an_op":
                out += (torch.mm(x, x),)
            if placed == "called_function":
                out += (inner(x),)
            else:
                torch._dynamo.graph_break()
            if placed == "before_a_return":
                return torch.mm(x, x), torch.mm(x, x).float()
            out += (torch.mm(x, x),)
            torch._dynamo.graph_break()
            out += (torch.mm(x, x),)
        return (*out, torch.mm(x, x))

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    for call in ("first", "second"):
        dtypes = [out.dtype for out in compiled(x)]
        amp.assert_equal(f"dtypes, {call} call", dtypes, [low] * (len(dtypes) - 1) + [torch.float32])
        amp.assert_equal(f"state after the {call} call", amp.state(), (False, amp.default, True))


@scenario(compiler=DYNAMO)
def test_region_given_as_an_argument(amp: Amp, compiler: str) -> None:
    """A region made outside, and changed there, is entered inside, with a graph break if need be (pytorch#115520)."""

    def program(x: torch.Tensor, region: torch.autocast) -> torch.Tensor:
        with region:
            return torch.mm(x, x)

    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, program, x, amp.region(), fullgraph=False)
    for dtype in (amp.dtype, amp.other, amp.dtype):
        amp.assert_equal(f"dtype in a region of {dtype}", compiled(x, amp.region(dtype)).dtype, dtype)
        amp.assert_equal("state after it", amp.state(), (False, amp.default, True))
    region = amp.region()
    for dtype in (amp.dtype, amp.other):
        region.fast_dtype = dtype
        amp.assert_equal(f"dtype in a region that changes to {dtype}", compiled(x, region).dtype, dtype)


@scenario(compiler=["dynamo", "aot", "inductor", "export", "jaxcompile"])
def test_context_manager_around_a_region(amp: Amp, compiler: str) -> None:
    """A user's context manager that enters a region acts as the region (pytorch#134030: silently ignored)."""
    kind, low = amp.type, amp.dtype

    @contextmanager
    def region() -> Iterator[None]:
        with torch.autocast(kind, dtype=low):
            yield

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with region():
            y = torch.mm(x, x)
        return y, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    amp.assert_equal("dtypes", [out.dtype for out in compiled(x)], [low, torch.float32])
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=["export", "strict"])
def test_dtypes_in_the_graph(amp: Amp, compiler: str) -> None:
    """An exported program says of its outputs the dtypes that it returns (torch.export: ExportedProgram.graph).

    Each call in it has a value, that of a region too (pytorch#131829).
    """
    kind, low = amp.type, amp.dtype

    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.autocast(kind, dtype=low):
                y = torch.mm(x, x)
            return y, torch.exp(y)

    exported = torch.export.export(Program(), (amp.rand(2, 2),), strict=compiler == "strict")
    (returned,) = (node.args[0] for node in exported.graph.nodes if node.op == "output")
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    amp.assert_equal("calls without a value", [str(node.target) for node in nodes if "val" not in node.meta], [])
    amp.assert_equal("dtypes the graph says", [node.meta["val"].dtype for node in returned], [low, low])
    amp.assert_equal("dtypes it returns", [out.dtype for out in exported.module()(amp.rand(2, 2))], [low, low])


@scenario(compiler=["export", "strict"])
def test_decision_by_a_dtype(amp: Amp, compiler: str) -> None:
    """An exported program decides by a dtype inside a region as the program does."""
    kind, low = amp.type, amp.dtype

    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(kind, dtype=low):
                y = torch.mm(x, x)
                return y.float() if y.dtype == low else y.double()

    x = amp.rand(2, 2)
    exported = torch.export.export(Program(), (x,), strict=compiler == "strict").module()
    amp.assert_equal("dtype, as in eager mode", exported(x).dtype, Program()(x).dtype)


@scenario(compiler=["export", "decomposed"])
def test_captured_twice(amp: Amp, compiler: str) -> None:
    """An exported program with a region exports again (pytorch#138082)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            y = torch.mm(x, x)
        return y, torch.mm(x, x)

    x, exported = amp.compiled_with_matrix(compiler, program)
    again = amp.compiled(compiler, exported, x)
    amp.assert_equal("dtypes of the second export", [out.dtype for out in again(x)], [low, torch.float32])


# ---- regions left early
@scenario(compiler=["script", "dynamo", "aot", "inductor"], types=("cpu", "cuda"))
def test_left_early(amp: Amp, compiler: str) -> None:
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
    compiled = amp.compiled(compiler, program, x, True)
    for early, dtype in ((True, amp.dtype), (False, torch.float32), (True, amp.dtype)):
        amp.assert_equal(f"dtype, left {'early' if early else 'at its end'}", compiled(x, early).dtype, dtype)
        amp.assert_equal("state after it", amp.state(), (False, amp.default, True))
