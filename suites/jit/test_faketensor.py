"""Rule faketensor: in a region, fake, meta and compiled tensors are what real ones are.

The promise, its sources, and what is compared: docs/coverage/faketensor.md.
"""

import tomllib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from ampcheck.observe.recorder import tensors
from ampcheck.runner.suite import Amp, Product, other_than, scenario, where
from ampcheck.samples import op_database

pytestmark = pytest.mark.rule("faketensor")

_TABLE = tomllib.loads(Path(__file__).with_name("faketensor.toml").read_text(encoding="utf-8"))
OPS: dict[str, int] = {name: _TABLE["later"].get(name, 0) for name in _TABLE["casting"]}
"""Ops without a policy that reach a kernel with one, and the number of the first sample that does: found on torch 2.13
by a call of each op of the database, which tests/checks/test_scenario.py repeats."""
COMPOSED = ("linalg.pinv.singular",)
"""Two ops that PyTorch's tests compose: the first one casts, and the second one refuses what it gives."""
_DERIVATIVES = """
    chunk linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.solve_ex linalg.solve_triangular
    lu_unpack masked_scatter sparse.sampled_addmm split split.list_args split_with_sizes split_with_sizes_copy
    unbind unbind_copy unsafe_chunk unsafe_split
"""
IN_DERIVATIVES = _DERIVATIVES.split()
"""Those that reach it in a backward pass in a region alone."""
WITHOUT_GRADIENT = ("_chunk_cat", "isin")
BY_VALUES = ("combinations", "corrcoef", "cov", "sparse.sampled_addmm")
"""Those that tensors without values cannot run, outside of a region either."""
PHASES = ("forward", "infer", "outside", "inside")
"""A call without gradients, in `torch.inference_mode()`, with a backward pass outside of the region and inside."""
BACKWARD = ("outside", "inside")

REACHING = Product(
    {"op": tuple(OPS), "given": ("wide", "low"), "phase": PHASES, "way": ("real", "fake", "meta")},
    {
        "it reaches a kernel with a policy in a backward pass in a region alone": where(
            op=IN_DERIVATIVES, phase=other_than("inside")
        ),
        "it has no gradient": where(op=WITHOUT_GRADIENT, phase=BACKWARD),
        "the database has no sample of it in a lower precision": lambda cell: (
            cell["given"] == "low" and "bf16" not in op_database.rows("2.13")[cell["op"]].dtypes.split()
        ),
        "whether it runs, or the shape of its result, depends on values": where(way=other_than("real"), op=BY_VALUES),
        "it gives sparse tensors, which are not made on meta": where(op="to_sparse", way="meta"),
    },
)
COMPILED = Product(
    {"compiler": ("aot", "inductor"), "op": tuple(OPS)},
    {"it reaches a kernel with a policy in a backward pass in a region alone": where(op=IN_DERIVATIVES)},
)
MIXED = tuple(_TABLE["mixed"])
"""Ops that take one of float32 and the lower precision and refuse both together, outside of a region or in it: found
on torch 2.13 by such calls of each op of the database."""
DATABASE = Product({"op": tuple(sorted({op for rows in op_database.tables().values() for op in rows}))}, nightly=True)

RAISED = "what it raises"


def _sample(amp: Amp, op: str, given: str, phase: str, number: int) -> tuple[Any, Any]:
    """Return an op of the database and a sample of it; None where there is none in the dtype."""
    info, dtype = amp.op_info(op), amp.dtype if given == "low" else torch.float32
    if info is None or not info.supports_dtype(dtype, amp.type):
        amp.unjudged = f"the op database of this torch has no {op} of {dtype}"
    elif phase in BACKWARD and not info.supports_autograd:
        amp.unjudged = f"{op} has no gradient"
    else:
        made = amp.op_samples(info, dtype, number + 1, grad=phase in BACKWARD)
        if number < len(made):
            return info, made[number]
        amp.unjudged = f"the op database of this torch has no sample {number} of {op} of {dtype}"
    return info, None


def _gradients(results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    ends = [x for x in results if x.requires_grad]
    if not ends or not leaves:
        return []
    return list(torch.autograd.grad(ends, leaves, [torch.ones_like(x) for x in ends], allow_unused=True))


def _facts(results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> dict[str, object]:
    """Return what a tensor without values has, too."""
    plain = [x.layout is torch.strided and not x.is_nested for x in results]
    return {
        "dtypes of the results": [x.dtype for x in results],
        "shapes of the results": [tuple(x.shape) if p else "" for x, p in zip(results, plain, strict=True)],
        "strides of the results": [x.stride() if p else x.layout for x, p in zip(results, plain, strict=True)],
        "which results require grad": [x.requires_grad for x in results],
        "dtypes of the gradients": [None if x is None else x.dtype for x in gradients],
        "shapes of the gradients": [None if x is None else tuple(x.shape) for x in gradients],
    }


def _called(amp: Amp, op: str, given: str, phase: str, way: str, number: int, *, on: bool = True) -> dict[str, object]:
    """Return the facts of a call, in a region or with `on` False outside of any; {} where there is no sample."""
    info, sample = _sample(amp, op, given, phase, number)
    if sample is None:
        return {}
    mode = FakeTensorMode() if way == "fake" else None

    def of_its_kind(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or way == "real":
            return value
        return mode.from_tensor(value) if mode else value.detach().to("meta").requires_grad_(value.requires_grad)

    def region() -> Any:
        return amp.region() if on else nullcontext()

    torch.manual_seed(0)
    try:
        with mode or nullcontext():
            sample = sample.transform(of_its_kind)
            leaves = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
            with torch.inference_mode(phase == "infer"), region():
                results = list(tensors(info(sample.input, *sample.args, **sample.kwargs)))
                gradients = _gradients(results, leaves) if phase == "inside" else []
            if phase == "outside":
                gradients = _gradients(results, leaves)
            return _facts(results, gradients)
    except Exception as error:  # the op may raise anything
        return {RAISED: f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _assert_agrees(amp: Amp, op: str, given: str, phase: str, way: str, number: int, what: str = "") -> None:
    """Compare a call in a region with the real one there; a real or meta one with the real one outside."""

    def called(way: str, on: bool) -> dict[str, object]:
        return _called(amp, op, given, phase, way, number, on=on)

    want = called("real", way == "fake")
    if not want or RAISED in want:
        amp.unjudged = str(want.get(RAISED, amp.unjudged))
        return
    got = called(way, True)
    if way == "real":  # the dtypes of its results are what rule fallthrough is about
        same = {key for key in want if key not in ("dtypes of the results", "strides of the results")}
    elif got == want:
        same = set(want)
    else:
        one, other = called("real", False), called(way, False)
        if RAISED in other:
            amp.unjudged = f"outside of a region, too: {other[RAISED]}"
            return
        same = {key for key in want if one.get(key) == other[key]}
    if RAISED in got:
        amp.assert_equal(what + RAISED, got[RAISED], None)
        return
    for key in want:
        if key in same:
            amp.assert_equal(what + key, got[key], want[key])


@scenario(REACHING, types=("cpu",), dtypes="default")
def test_call(amp: Amp, op: str, given: str, phase: str, way: str) -> None:
    """A fake tensor is what the real one is, a meta tensor is not cast, and the real call works as outside."""
    _assert_agrees(amp, op, given, phase, way, OPS[op])


def _compiled(amp: Amp, compiler: str, op: str, phase: str, *, on: bool = True) -> list[dict[str, object]]:
    """Return what the function and the compiled one give: the facts, and their results as "results"."""
    info, sample = _sample(amp, op, "wide", phase, OPS[op])
    if sample is None:
        return []
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, value in enumerate(flat) if isinstance(value, torch.Tensor)]
    call, kind, low = info.op, amp.type, amp.dtype

    def function(*given: torch.Tensor) -> object:
        filled = list(flat)
        for place, x in zip(places, given, strict=True):
            filled[place] = x
        first, others, named = tree_unflatten(filled, spec)
        with torch.autocast(kind, dtype=low, enabled=on):
            return call(first, *others, **named)

    def run(function: Callable[..., object]) -> dict[str, object]:
        inputs = [flat[place] for place in places]
        torch.manual_seed(0)
        try:
            with torch.inference_mode(phase == "infer"):
                results = list(tensors(function(*inputs)))
            gradients = _gradients(results, [x for x in inputs if x.requires_grad]) if phase == "outside" else []
        except Exception as error:  # the op may raise anything
            return {RAISED: f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        return {**_facts(results, gradients), "results": results}

    inputs = [flat[place] for place in places]
    return [run(function), run(lambda *given: amp.compiled(compiler, function, *inputs)(*given))]


@scenario(COMPILED, types=("cpu",), dtypes="default")
def test_compiled(amp: Amp, compiler: str, op: str) -> None:
    """A compiled call gives what the eager one gives: the same dtypes, shapes and values, and gradients like them."""
    for phase in ("infer", "outside"):
        found = _compiled(amp, compiler, op, phase)
        if not found or RAISED in found[0]:
            amp.unjudged = str(found[0][RAISED]) if found else amp.unjudged
            continue
        want, got = found
        if RAISED in got:
            outside = _compiled(amp, compiler, op, phase, on=False)
            if RAISED in outside[1]:
                amp.unjudged = f"outside of a region, too: {outside[1][RAISED]}"
            else:
                amp.assert_equal(f"{phase}: {RAISED}", got[RAISED], None)
            continue
        for key in [key for key in want if key not in ("strides of the results", "results")]:
            amp.assert_equal(f"{phase}: {key}", got[key], want[key])
        results: Any = zip(got["results"], want["results"], strict=True)
        for number, (one, other) in enumerate(results):
            if one.dtype == other.dtype and one.is_floating_point():
                host = amp.host(other.detach())
                amp.assert_close(f"{phase}: result {number}", one, host, 8 * torch.finfo(amp.dtype).eps)


@scenario(DATABASE, types=("cpu",), dtypes="default")
def test_database(amp: Amp, op: str) -> None:
    """The same for each op of the database, without inference mode: two samples, in float32 and the lower precision."""
    for number in range(2):
        for given in ("wide", "low"):
            for phase in ("forward", *BACKWARD):
                for way in ("fake", "meta"):
                    _assert_agrees(amp, op, given, phase, way, number, f"sample {number}, {given}, {phase}, {way}: ")


def raises(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> bool:
    try:
        function(*(x.clone() for x in inputs))
    except Exception:  # the op may raise anything
        return True
    return False


def mixed_calls(amp: Amp, op: str) -> list[tuple[str, Callable[..., object], list[torch.Tensor]]]:
    """Return calls that real tensors refuse since one is in the lower precision: of a sample right in either dtype."""
    info = amp.op_info(op)
    for number, sample in enumerate(amp.op_samples(info, torch.float32, 8) if info else ()):
        flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [place for place, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        wide = [place for place in places if flat[place].dtype is torch.float32]

        def call(on: bool, *given: torch.Tensor, flat: list[Any] = flat, spec: Any = spec) -> object:
            left = iter(given)
            filled = [next(left) if isinstance(value, torch.Tensor) else value for value in flat]
            first, others, named = tree_unflatten(filled, spec)
            with torch.autocast(amp.type, dtype=amp.dtype, enabled=on):
                return info.op(first, *others, **named)

        def given(*low: int, flat: list[Any] = flat, places: list[int] = places) -> list[torch.Tensor]:
            return [flat[place].to(amp.dtype) if place in low else flat[place] for place in places]

        outside, inside = partial(call, False), partial(call, True)
        if len(wide) > 1 and not raises(outside, given()) and not raises(outside, given(*wide)):
            made = [(f"sample {number}, tensor {places.index(place)} low", given(place)) for place in wide]
            refused = [(f"{what}, outside of a region", outside, x) for what, x in made if raises(outside, x)]
            refused += [(f"{what}, in a region", inside, x) for what, x in made if raises(inside, x)]
            if refused:
                return refused
    amp.unjudged = "real tensors of two dtypes are taken"
    return []


@scenario(Product({"op": MIXED}), types=("cpu",), dtypes="default")
def test_mixed(amp: Amp, op: str) -> None:
    """Fake tensors of two dtypes are refused where real ones are."""
    for what, call, inputs in mixed_calls(amp, op):
        with FakeTensorMode() as mode:
            amp.assert_equal(f"{what}: refused", raises(call, [mode.from_tensor(x) for x in inputs]), True)


@scenario(Product({"compiler": ("aot", "inductor"), "op": MIXED}, nightly=True), types=("cpu",), dtypes="default")
def test_mixed_compiled(amp: Amp, compiler: str, op: str) -> None:
    """A compiled call with tensors of two dtypes is refused where the eager one is."""
    for what, call, inputs in mixed_calls(amp, op):

        def compiled(*given: torch.Tensor, call: Callable[..., object] = call) -> object:
            return amp.compiled(compiler, call, *given)(*given)

        amp.assert_equal(f"{what}: refused", raises(compiled, inputs), True)
