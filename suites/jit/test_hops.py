"""Rule hops: in the function that a higher-order operator is given, each op casts what it casts without the operator.

The promise: torch.cond, scan, map and their like run the functions they are given
(https://docs.pytorch.org/docs/2.13/higher_order_ops.html), and an operator without an autocast kernel falls through
(`HigherOrderOperator` of torch/_ops.py; pytorch#107934). So a region around an operator holds in its functions, one in
a function holds there alone (https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast), and what comes out is what
the same program in plain Python gives outside of any region with explicit casts: dtypes, values and gradients. Those
casts follow from `ampcheck.spec.casting`. Two operators do more:

- `wrap_with_autocast`, which torch.export makes of a region, is itself a region;
- an op of torch.library with `register_autocast` casts all that it is given, and runs with autocast disabled
  (https://docs.pytorch.org/docs/2.13/library.html#torch.library.register_autocast).
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ampcheck.runner.suite import Amp, Product, other_than, scenario, where

pytestmark = pytest.mark.rule("hops")

Function = Callable[..., torch.Tensor]
"""A function of a matrix and further tensors."""
Operator = Callable[[Amp, Function, torch.Tensor], Function]
"""Makes a program of a function; the tensor is like what the function gives."""


# ---- operators: the same program in plain Python, as the dispatcher calls it, and as a user writes it
def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x * 2])


def _doubled(f: Function) -> Function:
    return lambda x, *more: f(x * 2, *more)


def _stacked(f: Function) -> Function:
    return lambda x, *more: torch.stack([f(x, *more), f(x * 2, *more)])


def _combined(f: Function) -> Function:
    """Return the combination of two slices, in the dtype of a slice."""
    return lambda a, b, *more: f(a + b, *more).to(a.dtype)


def _higher(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


_NUMBERS = count()


def _predicate(x: torch.Tensor, picked: bool) -> torch.Tensor:
    """Return a predicate, which is a tensor, as the predicate of a compiled program is."""
    yes = x.new_ones((), dtype=torch.bool)
    return yes if picked else yes.logical_not()


def _cond_called(f: Function, picked: bool) -> Function:
    branches = (f, _doubled(f)) if picked else (_doubled(f), f)
    one, two = ((lambda *given, branch=branch: (branch(*given),)) for branch in branches)
    return lambda x, *more: _higher("cond")(_predicate(x, picked), one, two, (x, *more))[0]


def _cond_written(f: Function, picked: bool) -> Function:
    one, two = (f, _doubled(f)) if picked else (_doubled(f), f)
    return lambda x, *more: torch.cond(_predicate(x, picked), one, two, (x, *more))


def _loop(f: Function, like: torch.Tensor, called: bool) -> Function:
    def program(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        start = (x.new_zeros((), dtype=torch.int64), x, torch.zeros_like(like))
        if not called:
            return torch.while_loop(lambda i, x, y: i < 2, lambda i, x, y: (i + 1, x * 2, f(x, *more)), start)[2]
        condition, body = (lambda i, *_: i < 2), (lambda i, x, y, *more: (i + 1, x * 2, f(x, *more)))
        return _higher("while_loop")(condition, body, start, more)[2]

    return program


def _scan_called(f: Function) -> Function:
    return lambda x, *more: _higher("scan")(lambda carry, y, *more: (carry * 1, f(y, *more)), [x], [_twice(x)], more)[1]


def _scan_written(f: Function) -> Function:
    return lambda x, *more: torch._higher_order_ops.scan(lambda carry, y: (carry * 1, f(y, *more)), x, _twice(x))[1]


def _combined_called(f: Function) -> Function:
    combine, scan = _combined(f), _higher("associative_scan")
    return lambda x, *more: scan(lambda a, b, *more: (combine(a, b, *more),), [_twice(x)], more)[0]


def _combined_written(f: Function) -> Function:
    combine = _combined(f)
    return lambda x, *more: torch._higher_order_ops.associative_scan(
        lambda a, b: combine(a, b, *more), _twice(x), 0, combine_mode="generic"
    )


def _map_called(f: Function) -> Function:
    return lambda x, *more: _higher("map_impl")(lambda y, *more: (f(y, *more),), [_twice(x)], more)[0]


def _map_written(f: Function) -> Function:
    return lambda x, *more: torch._higher_order_ops.map(lambda y: f(y, *more), _twice(x))


def _nested_called(f: Function) -> Function:
    def once(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return _higher("invoke_subgraph")(lambda *given: (f(*given),), f"hops{next(_NUMBERS)}", x, *more)[0]

    return lambda x, *more: once(x, *more) + once(x * 2, *more)


def _nested_written(f: Function) -> Function:
    region = torch.compiler.nested_compile_region(f)
    return lambda x, *more: region(x, *more) + region(x * 2, *more)


def _function(f: Function) -> Function:
    """Return a custom function; its formula for the gradient has no op with a policy."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.further = len(more)
            return f(x, *more)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return (gradients[0].double().sum() * x).to(x.dtype), *(None for _ in range(ctx.further))

    return lambda *given: Custom.apply(*given)


def _entered(amp: Amp, f: Function) -> Function:
    kind, other = amp.type, amp.other
    return lambda *given: _higher("wrap_with_autocast")(kind, other, True, None, f, *given)


def _of_a_library(amp: Amp, f: Function, like: torch.Tensor, casting: bool) -> Function:
    """Return an op of a library, whose body is the function."""
    name = f"ampcheck_hops::op{next(_NUMBERS)}"

    @torch.library.custom_op(name, mutates_args=(), schema="(Tensor x, Tensor[] more) -> Tensor")
    def op(x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return f(x, *more)

    shape, dtype = like.shape, like.dtype
    op.register_fake(lambda x, more: x.new_empty(shape, dtype=dtype))
    if casting:
        op.register_autocast(amp.type, amp.dtype)
    return lambda x, *more: op(x, list(more))


PLAIN: dict[str, Operator] = {
    **dict.fromkeys(("chosen", "passed", "entered", "recomputed", "opaque", "casting"), lambda amp, f, like: f),
    **dict.fromkeys(("scanned", "mapped"), lambda amp, f, like: _stacked(f)),
    "repeated": lambda amp, f, like: _doubled(f),
    "combined": lambda amp, f, like: lambda x, *more: torch.stack([x, _combined(f)(x, x * 2, *more)]),
    "nested": lambda amp, f, like: lambda x, *more: f(x, *more) + f(x * 2, *more),
    "custom": lambda amp, f, like: _function(f),
}
"""Each operator's program in plain Python."""
DIRECT: dict[str, Operator] = {
    "chosen": lambda amp, f, like: _cond_called(f, True),
    "passed": lambda amp, f, like: _cond_called(f, False),
    "repeated": lambda amp, f, like: _loop(f, like, called=True),
    "scanned": lambda amp, f, like: _scan_called(f),
    "combined": lambda amp, f, like: _combined_called(f),
    "mapped": lambda amp, f, like: _map_called(f),
    "nested": lambda amp, f, like: _nested_called(f),
    "entered": lambda amp, f, like: _entered(amp, f),
    "opaque": lambda amp, f, like: _of_a_library(amp, f, like, casting=False),
    "casting": lambda amp, f, like: _of_a_library(amp, f, like, casting=True),
}
"""The same, as the dispatcher calls the operator: all tensors are arguments, and the results are tuples."""
WRITTEN: dict[str, Operator] = {
    "chosen": lambda amp, f, like: _cond_written(f, True),
    "passed": lambda amp, f, like: _cond_written(f, False),
    "repeated": lambda amp, f, like: _loop(f, like, called=False),
    "scanned": lambda amp, f, like: _scan_written(f),
    "combined": lambda amp, f, like: _combined_written(f),
    "mapped": lambda amp, f, like: _map_written(f),
    "nested": lambda amp, f, like: _nested_written(f),
    "entered": lambda amp, f, like: _entered(amp, f),
    "custom": lambda amp, f, like: _function(f),
    "recomputed": lambda amp, f, like: lambda *given: checkpoint(f, *given, use_reentrant=False),
    "opaque": lambda amp, f, like: _of_a_library(amp, f, like, casting=False),
    "casting": lambda amp, f, like: _of_a_library(amp, f, like, casting=True),
}
"""The same, as a user writes it; a compiler makes the operator of it."""

# ---- ops in the function
OPS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "product": ("mm", torch.mm, ("wide", "wide")),
    "contracted": ("bmm", lambda x, y: torch.einsum("ij,jk->ik", x, y), ("wide", "wide")),
    "padded": ("reflection_pad1d", lambda x: functional.pad(x, (1, 1), mode="reflect"), ("low",)),
    "exponential": ("exp", torch.exp, ("low",)),
    "joined": ("cat", lambda x, y: torch.cat([x, y]), ("low", "wide")),
    "sine": ("sin", torch.sin, ("low",)),
}
"""An overload of each policy, and one without: the call, and the dtype of each tensor it is given ("low" is the one
that is cast to there). `contracted` and `padded` call composite ops, whose parts have the policy."""


def _body(amp: Amp, operator: str, op: str, place: str) -> Function:
    """Return a function that calls an op, in the region that a place says."""
    call = OPS[op][1]
    first, *further = (_given(amp, operator, each, place) for each in OPS[op][2])

    def bare(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return call(x.to(first), *(t.to(dtype) for t, dtype in zip(more, further, strict=True)))

    return _placed(amp, bare, place)


def _placed(amp: Amp, bare: Function, place: str) -> Function:
    """Return a function in the region that a place says."""
    kind, on = amp.type, place != "disabled"
    dtype = {"inside": amp.dtype, "different": amp.other}.get(place)

    def placed(*given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=on):
            return bare(*given)

    return bare if place == "around" else placed


def _with_casts(amp: Amp, operator: str, op: str, place: str) -> Function:
    """Return the same function with explicit casts."""
    (overload, call, dtypes), region = OPS[op], _cast_to(amp, operator, place)
    given = [_given(amp, operator, each, place) for each in dtypes]
    casts = amp.casting(overload, given, region).dtypes if region else given
    low = amp.dtype if operator == "casting" and place != "inside" else None

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        taken = [t.to(low) for t in tensors] if low else tensors
        return call(*(t.to(dtype).to(cast) for t, dtype, cast in zip(taken, given, casts, strict=True)))

    return function


def _given(amp: Amp, operator: str, each: str, place: str) -> torch.dtype:
    """Return the dtype of a tensor that an op is given in a place."""
    other = place == "different" or (place == "around" and operator == "entered")
    return torch.float32 if each == "wide" else amp.other if other else amp.dtype


def _cast_to(amp: Amp, operator: str, place: str) -> torch.dtype | None:
    """Return the dtype that autocast casts to where the op is, None where it is off."""
    if place == "around" and operator == "casting":
        return None
    around = amp.other if operator == "entered" else amp.dtype
    return {"around": around, "inside": amp.dtype, "disabled": None, "different": amp.other}[place]


# ---- what a case does
def _casts_in(graph: torch.fx.GraphModule) -> int:
    casts = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
    graphs = [module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
    return sum(node.target in casts for each in graphs for node in each.nodes)


def _made(amp: Amp, way: str, program: Function, given: list[torch.Tensor]) -> Callable[..., Any]:
    if way == "called":
        return program
    if way == "graph":
        return make_fx(program)(*given)
    return amp.compiled(way, program, *given)


def _lacking(operator: str, way: str) -> str:
    """Return the operator that this torch does not have, "" for none."""
    names = {"repeated": "while_loop", "scanned": "scan", "combined": "associative_scan", "mapped": "map"}
    written = operator in names and way not in ("called", "graph")
    return names[operator] if written and not hasattr(torch._higher_order_ops, names[operator]) else ""


def _check(amp: Amp, way: str, operator: str, op: str, place: str, gradient: str = "off") -> None:
    if lacking := _lacking(operator, way):
        amp.unsupported(f"torch {torch.__version__} has no {lacking}")
    operators = DIRECT if way in ("called", "graph") else WRITTEN
    given = [amp.rand(2, 2) for _ in OPS[op][2]]
    explicit = _with_casts(amp, operator, op, place)
    like = torch.zeros_like(explicit(*given))
    program = operators[operator](amp, _body(amp, operator, op, place), like)
    reference = PLAIN[operator](amp, explicit, like)
    given[0].requires_grad_(gradient == "on")
    before = (*amp.state(), amp.depth())

    def run(program: Function, region: bool) -> tuple[torch.Tensor, Any]:
        with amp.region(enabled=region):
            made = _made(amp, way, program, given)
            out = None if way == "graph" else made(*given)
        return (made(*given) if way == "graph" else out), made  # a graph has the casts of the state it was made in

    want = reference(*given)
    try:
        got, made = run(program, place != "inside")
    except Exception as error:
        amp.assert_equal("state after an error", (*amp.state(), amp.depth()), before)
        same = operators[operator](amp, explicit, like)
        try:
            run(same, False)
        except Exception as outside:  # the operator does not take such a function, with autocast or without
            amp.refused(outside, operator)
        amp.note_error("a call in a region alone", error)
        return
    amp.assert_equal("state and depth afterwards", (*amp.state(), amp.depth()), before)
    amp.assert_equal("dtype of the result", got.dtype, want.dtype)
    if way == "graph" and operator not in ("entered", "opaque", "casting"):
        _, plain = run(operators[operator](amp, explicit, like), False)
        amp.assert_equal("casts in the graph", _casts_in(made), _casts_in(plain))
    if got.dtype == want.dtype:
        _assert_values(amp, got, want, given[0])


def _assert_values(amp: Amp, got: torch.Tensor, want: torch.Tensor, x: torch.Tensor) -> None:
    """Compare results, and their gradients for a tensor that needs one."""
    if not amp.has_values:
        return
    amp.assert_close("the result", got, want, 1e-5)
    if x.requires_grad:
        one, two = (torch.autograd.grad(y.double().sum(), x, retain_graph=True)[0] for y in (got, want))
        amp.assert_close("the gradient", one, two, 8 * torch.finfo(amp.dtype).eps)


_PLACES = ("around", "inside", "disabled", "different")
_SHAPES: dict[str, Callable[..., bool]] = {
    "a combination of two slices has the shape of a slice": where(operator="combined", op=("padded", "joined")),
}
_BY_ITSELF: dict[str, Callable[..., bool]] = {
    "a graph of make_fx calls the op of a library in the state that the graph is called in": where(
        way="graph", operator="opaque", place="around"
    ),
    "associative_scan that is called by itself hands over one slice or many, so that each op goes by elements": where(
        way=("called", "graph"), operator="combined", op=("product", "contracted")
    ),
}
_RECORDS: dict[str, Callable[..., bool]] = {
    "a graph of make_fx has its casts in it, and is called without a gradient": where(way="graph", gradient="on"),
    "invoke_subgraph has a gradient in a compiled program alone": where(operator="nested", gradient="on"),
}
_GRADIENTS: dict[str, Callable[..., bool]] = {
    "an op of a library has the gradient that its author writes (rule customfn)": where(
        operator=("opaque", "casting"), gradient="on"
    ),
}

CALLED = Product(
    {
        "way": ("called", "graph"),
        "operator": tuple(DIRECT),
        "op": tuple(OPS),
        "place": _PLACES,
        "gradient": ("off", "on"),
    },
    _SHAPES | _GRADIENTS | _RECORDS | _BY_ITSELF,
)
_GRADIENT_LOST: dict[str, Callable[..., bool]] = {
    "invoke_subgraph records its derivative with the fake tensors of AOTAutograd": where(
        operator="nested", gradient="on", compiler=other_than("aot")
    ),
    "torch.export keeps the forward pass of a custom function alone": where(
        operator="custom", gradient="on", compiler="export"
    ),
}
COMPILED = Product(
    {
        "compiler": ("dynamo", "aot", "export"),
        "operator": tuple(WRITTEN),
        "op": tuple(OPS),
        "place": _PLACES,
        "gradient": ("off", "on"),
    },
    _SHAPES | _GRADIENTS | _GRADIENT_LOST,
)


@scenario(CALLED, types=("cpu",), dtypes="default")
def test_called(amp: Amp, way: str, operator: str, op: str, place: str, gradient: str) -> None:
    """An operator that is called by itself, or recorded, gives what the program in plain Python gives."""
    _check(amp, way, operator, op, place, gradient)


@scenario(COMPILED, types=("cpu",), dtypes="default")
def test_compiled(amp: Amp, compiler: str, operator: str, op: str, place: str, gradient: str) -> None:
    """An operator in a compiled program gives what the program in plain Python gives."""
    _check(amp, compiler, operator, op, place, gradient)


# ---- one operator in two states
STATES = Product(
    {
        "compiler": ("dynamo", "aot", "export"),
        "operator": tuple(name for name in WRITTEN if name not in ("entered", "opaque", "casting", "repeated")),
        "first": ("on", "off"),
        "gradient": ("off", "on"),
    },
    _GRADIENT_LOST,
)
"""Without the operators whose function has one state, and without `while_loop`, whose tensors keep their dtype."""


@scenario(STATES, types=("cpu",), dtypes="default")
def test_on_and_off(amp: Amp, compiler: str, operator: str, first: str, gradient: str) -> None:
    """An operator that a program calls in a region and in a disabled one casts in each call what that call casts."""
    if lacking := _lacking(operator, compiler):
        amp.unsupported(f"torch {torch.__version__} has no {lacking}")
    given = [amp.rand(2, 2), amp.rand(2, 2)]
    given[0].requires_grad_(gradient == "on")
    states = (first == "on", first != "on")
    call, kind, low = WRITTEN[operator](amp, lambda x, y: x @ y, given[1]), amp.type, amp.dtype

    def program(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for on in states:
            with torch.autocast(kind, dtype=low, enabled=on):
                found.append(call(*given))
        return tuple(found)

    results = amp.compiled(compiler, program, *given)(*given)
    casts = [_with_casts(amp, operator, "product", "around" if on else "disabled") for on in states]
    wanted = [PLAIN[operator](amp, function, given[1])(*given) for function in casts]
    amp.assert_equal("dtypes of the results", [y.dtype for y in results], [y.dtype for y in wanted])
    for got, want in zip(results, wanted, strict=True):
        if got.dtype == want.dtype:
            _assert_values(amp, got, want, given[0])


# ---- other device types
ELSEWHERE = Product(
    {
        "way": ("called", "graph", "dynamo"),
        "operator": tuple(name for name in DIRECT if name not in ("repeated", "entered")),
        "op": tuple(OPS),
        "place": ("around", "disabled"),
    },
    _SHAPES | _BY_ITSELF,
)
"""Without `while_loop`, whose fake results need symbolic sizes, which fake tensors of absent devices do not have, and
without regions in the function: `torch.autocast` disables a region of a device type that is absent."""


@scenario(ELSEWHERE, types=("cuda", "xpu", "mps", "mtia"), dtypes="default")
def test_elsewhere(amp: Amp, way: str, operator: str, op: str, place: str) -> None:
    """An operator gives what the program in plain Python gives on device types that are not the CPU."""
    _check(amp, way, operator, op, place)


@scenario(dtypes="default")
def test_every_operator(amp: Amp) -> None:
    """Each higher-order operator has an autocast kernel for the device's key, or falls through (pytorch#166106)."""
    import torch._higher_order_ops.triton_kernel_wrap  # defines the operators that call Triton's kernels
    import torch._prims.rng_prims  # defines the functional random wrappers

    key = torch._C._parse_dispatch_key(amp.key)
    operators = torch._ops._higher_order_ops
    refusing = [name for name, op in operators.items() if op.non_fallthrough_keys.has(key) and key not in op.py_kernels]
    named = {"cond", "triton_kernel_wrapper_mutation", "run_and_save_rng_state"}
    amp.check(named <= set(operators), "higher-order operators", f"there are only {sorted(operators)}")
    amp.assert_equal("operators that refuse to run in a region", sorted(refusing), [])


# ---- flex_attention
FLEX = Product(
    {
        "compiler": ("dynamo", "aot"),
        "given": ("wide", "low", "mixed"),
        "score": ("none", "scaled", "biased"),
        "place": ("around", "inside", "disabled", "different"),
    },
    {"where autocast is off, nothing is promised of tensors of two dtypes": where(given="mixed", place="disabled")},
)


def _attention(amp: Amp, score: str, place: str, bias: torch.Tensor) -> Function:
    """Return flex_attention with a score function, in the region that a place says."""
    from torch.nn.attention.flex_attention import flex_attention

    change = {
        "none": None,
        "scaled": lambda value, b, h, m, n: value * 0.5,
        "biased": lambda value, b, h, m, n: value + bias[m, n],
    }[score]
    return _placed(amp, lambda q, k, v: flex_attention(q, k, v, score_mod=change), place)


def _attention_in_words(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: str, bias: torch.Tensor
) -> torch.Tensor:
    """Return softmax(change(q k / sqrt(width))) v, computed in float32 and rounded at the end."""
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    scores = {"none": scores, "scaled": scores * 0.5, "biased": scores + bias}[score]
    return (torch.softmax(scores, -1) @ v.float()).to(q.dtype)


@scenario(FLEX, types=("cpu",), dtypes="default")
def test_attention(amp: Amp, compiler: str, given: str, score: str, place: str) -> None:
    """flex_attention casts query, key and value to the region's dtype (torch/_higher_order_ops/flex_attention.py)."""
    dtypes = [amp.dtype if given == "low" or (given == "mixed" and i == 1) else torch.float32 for i in range(3)]
    tensors = [amp.rand(1, 1, 4, 8, dtype=dtype) for dtype in dtypes]
    bias = amp.rand(4, 4)
    program = _attention(amp, score, place, bias)
    cast = {"around": amp.dtype, "inside": amp.dtype, "disabled": None, "different": amp.other}[place]
    want = _attention_in_words(*(t.to(cast) if cast else t for t in tensors), score, bias)
    before = (*amp.state(), amp.depth())
    with amp.region(enabled=place != "inside"):
        got = amp.compiled(compiler, program, *tensors)(*tensors)
    amp.assert_equal("state and depth afterwards", (*amp.state(), amp.depth()), before)
    amp.assert_equal("dtype of the result", got.dtype, want.dtype)
    if got.dtype != want.dtype:
        return
    amp.assert_close("the result", got, want, 4 * torch.finfo(amp.dtype).eps)


# ---- functional random wrappers
RANDOM = Product({"op": ("product", "padded", "sine"), "place": _PLACES, "calls": ("one", "two")})


def _dropping(amp: Amp, op: str, place: str, calls: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a program that drops out the results of a checkpointed function, which is called once or twice."""
    body = _body(amp, "recomputed", op, place)

    def one(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (checkpoint(lambda *given: functional.dropout(body(*given)), *given, use_reentrant=False),)

    return one if calls == "one" else (lambda *given: (*one(*given), *one(*given)))


@scenario(RANDOM, types=("cpu",), dtypes="default")
def test_random_numbers(amp: Amp, op: str, place: str, calls: str) -> None:
    """What is computed again in the backward pass draws the same random numbers, in the dtypes of the first time.

    AOTAutograd puts `run_and_save_rng_state` and `run_with_rng_state` around each random op that is computed again
    (`functionalize_rng_ops` of torch/_functorch/partitioners.py; pytorch#107934, #166106). The reference is the
    function with explicit casts outside of any region, times the mask that the result shows.
    """
    from functorch.compile import make_boxed_func  # imports Dynamo, which every run would wait for
    from torch._dynamo.backends.debugging import aot_eager

    seen: list[str] = []

    def kept(graph: torch.fx.GraphModule, given: Any) -> Any:
        called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        seen.extend(name for name in called if "rng_state" in name)
        return make_boxed_func(graph.forward)

    backend = partial(aot_eager, fw_compiler=kept, bw_compiler=kept)
    given = [amp.rand(4, 4) for _ in OPS[op][2]]
    given[0].requires_grad_()
    explicit = _with_casts(amp, "recomputed", op, place)
    before = (*amp.state(), amp.depth())
    with amp.region(enabled=place != "inside"):
        results = torch.compile(_dropping(amp, op, place, calls), backend=backend, fullgraph=True)(*given)
    amp.assert_equal("state and depth afterwards", (*amp.state(), amp.depth()), before)
    wanted = [explicit(*given) * (y != 0) * 2 for y in results]
    amp.assert_equal("dtypes of the results", [y.dtype for y in results], [y.dtype for y in wanted])
    got, want = (torch.autograd.grad([y.double().sum() for y in ys], given[0])[0] for ys in (results, wanted))
    for y, z in zip(results, wanted, strict=True):
        amp.assert_close("a result", y.double(), z.detach().double())
    amp.assert_close("the gradient", got, want, 8 * torch.finfo(amp.dtype).eps)
    wrappers = ["run_and_save_rng_state"] * len(results) + ["run_with_rng_state"] * len(results)
    amp.assert_equal("functional random wrappers in the graphs", seen, wrappers)
