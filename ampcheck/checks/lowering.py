"""Relations of an op and of what Inductor makes of it, on calls whose tensors are in the lower precision.

Inductor takes ops apart by decompositions and lowers what is left to code. `assert_taken_apart` calls an op and its
decomposition, which needs no compilation; `assert_lowered` compares the dtypes that Inductor decides on before it
writes code. `suites/jit/test_lowering.py` says from which promise each relation follows.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import cycle, islice, product
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.relations import MOST, TakenApart, apart, difference, is_real, on_edges, size, unlike
from ampcheck.compilers.kinds import quiet
from ampcheck.observe.recorder import overload, tensors
from ampcheck.observe.torch_private import inductor_graphs
from ampcheck.samples.op_database import rows, spread
from ampcheck.samples.torch_private import pytree

OpInfo = Any
"""An op of PyTorch's op database."""
Sample = Any
"""The arguments of a call, as the op database has them."""

BOUNDS = (0.0, 0.5, 1.0, 3.0, 6.0, 20.0)
"""Where the formulas of activations and losses change, unless an argument says so."""
ROUNDINGS = 4.0
"""By how many roundings of the lower precision a decomposition may be off: the kernel rounds elsewhere."""


def _bounds(scalars: Sequence[float], low: torch.dtype) -> list[float]:
    """Return bounds as they are in a lower precision, with both neighbours, of either sign."""
    found = []
    for bound in dict.fromkeys((*scalars, *BOUNDS)):
        at = torch.tensor(bound, dtype=low)
        around = (at, *(torch.nextafter(at, torch.full_like(at, way)) for way in (float("inf"), -float("inf"))))
        found += [sign * x.item() for x in around if x.isfinite() for sign in (1.0, -1.0)]
    return found


def arguments(sample: Sample, given: str, low: torch.dtype) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments of a call, anew.

    `given`: which tensors are in the lower precision: "wide" for none, "low" for all, "first" for the first one,
    "others" for the rest, or "bounds" for all, the first one with values at the bounds that the op's numbers name,
    which the lower precision does not have.
    """
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    eps = torch.finfo(low).eps
    nudged = [x * (1 + eps / 3) if type(x) is float and given == "bounds" else x for x in leaves]
    scalars = [x for x in nudged if type(x) is float]
    seen = 0
    for place, x in enumerate(nudged):
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            continue
        x = x.detach().clone()
        if given in ("low", "bounds") or given == ("others" if seen else "first"):
            if given == "bounds" and not seen and is_real(x):
                values = list(islice(cycle(_bounds(scalars, low)), x.numel()))
                x = torch.tensor(values, dtype=x.dtype, device=x.device).reshape(x.shape)
            x = x.to(low) if x.dtype == torch.float32 else x
        nudged[place] = x
        seen += 1
    return pytree.tree_unflatten(nudged, spec)  # type: ignore[no-any-return]  # the pair that was taken apart


Result = list[torch.Tensor] | Exception


class _Calls:
    """Calls of an op on a sample."""

    def __init__(self, amp: Amp, op: OpInfo, sample: Sample, given: str, *, inside: bool) -> None:
        self.amp, self.op, self.sample, self.given, self.inside = amp, op, sample, given, inside

    def run(
        self, change: Callable[[object], object] = lambda x: x, mode: TakenApart | None = None
    ) -> tuple[Result, Result]:
        """Return the results and the gradients of a call, each as tensors on the host or as what was raised."""
        args, kwargs = pytree.tree_map(change, arguments(self.sample, self.given, self.amp.dtype))
        leaves = [x for x in tensors((args, kwargs)) if is_real(x)] if self.op.supports_autograd else []
        for x in leaves:
            x.requires_grad_()
        self.amp.seed()
        results: Result
        gradients: Result = []
        try:
            with mode or nullcontext():
                with self.amp.region() if self.inside else nullcontext():
                    out = list(tensors(self.op.op(*args, **kwargs)))
                results = self._hosted(out)
                roots = [x for x in out if x.requires_grad]
                if roots and leaves:
                    try:
                        ones = [torch.ones_like(x) for x in roots]
                        made = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
                        gradients = self._hosted([x for x in made if x is not None])
                    except Exception as error:  # a derivative may raise anything
                        gradients = error
        except Exception as error:  # an op may raise anything
            return error, error
        return results, gradients

    def _hosted(self, found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self.amp.host(x.to_dense() if x.layout != torch.strided else x).detach().clone() for x in found]

    def exact(self, *, rounded: bool) -> tuple[Result, Result]:
        """Return what the call gives in float64 without a region; `rounded`: for numbers in the lower precision."""

        def change(x: object) -> object:
            if isinstance(x, torch.Tensor):
                return x.double() if x.is_floating_point() else x
            return torch.tensor(x, dtype=self.amp.dtype).item() if rounded and type(x) is float else x

        return _Calls(self.amp, self.op, self.sample, self.given, inside=False).run(change)


def _farther(got: Result, want: Result, exact: Result, least: float) -> bool:
    """Return whether a result is farther from the exact one than the right one is, by more than the least that counts.

    True where that cannot be told.
    """
    if isinstance(got, Exception) or isinstance(want, Exception) or isinstance(exact, Exception):
        return True
    if not len(got) == len(want) == len(exact):
        return True
    for x, y, z in zip(got, want, exact, strict=True):
        if x.dtype != y.dtype or x.shape != z.shape or y.shape != z.shape:
            return True
        if not x.is_floating_point():
            continue
        far, near = ((one.double() - z).nan_to_num(posinf=1e300).abs() for one in (x, y))
        if x.numel() and far.max() > near.max() + least:
            return True
    return False


def assert_taken_apart(amp: Amp, name: str, given: Sequence[tuple[str, bool]], count: int) -> None:
    """Compare an op with its decomposition: results and gradients.

    A difference that float32 has, too, is the op's own, and so is one by which the decomposition is the more exact one.

    Args:
        amp: the helper of the scenario.
        name: an op of the database.
        given: what `arguments` is given, and whether the call is in a region.
        count: on how many samples.
    """
    op, samples = _samples(amp, name, count)
    for number, sample in samples:
        for kind, inside in given:
            calls = _Calls(amp, op, sample, kind, inside=inside)
            mode = TakenApart()
            got = calls.run(mode=mode)
            if not mode.seen:
                amp.unjudged = f"Inductor takes nothing of {name} apart"
                continue
            want = calls.run()
            where = "in a region" if inside else "outside of regions"
            for part in range(2):
                what = f"{('results', 'gradients')[part]} of sample {number}, {kind}, {where}"
                amp.check(not (found := _apart(calls, got, want, part)), what, found or "agree")


def _apart(calls: _Calls, got: tuple[Result, ...], want: tuple[Result, ...], part: int) -> str:
    """Return how a decomposition differs; "" where it does not, or only as it may."""
    if isinstance(want[part], Exception):
        return ""  # what a kernel refuses says nothing of values
    found = difference(got[part], want[part], ROUNDINGS * torch.finfo(calls.amp.dtype).eps)
    if not found or difference(calls.run()[part], want[part]):
        return ""  # or it is random
    wide = _Calls(calls.amp, calls.op, calls.sample, "wide", inside=False)
    if difference(wide.run(mode=TakenApart())[part], wide.run()[part], 1e-4):
        return ""
    least = torch.finfo(calls.amp.dtype).eps ** 2
    exact = [calls.exact(rounded=rounded)[part] for rounded in (False, True)]
    return found if any(_farther(got[part], want[part], one, least) for one in exact) else ""


def _samples(amp: Amp, name: str, count: int) -> tuple[OpInfo, list[tuple[int, Sample]]]:
    """Return an op and some of its small samples, by number, the last one among them."""
    op = amp.op_info(name)
    if op is None or torch.float32 not in op.supported_dtypes(amp.type):
        amp.unsupported(f"the op database has no float32 samples of {name} for {amp.type}")
    made = [x for x in enumerate(amp.op_samples(op, torch.float32, 12)) if size(x[1]) <= MOST]
    if not made:
        amp.unsupported(f"{name} has no small samples")
    return op, [made[place] for place in spread(len(made), count)]


# ---- what Inductor lowers ops to


class Lowered(BaseException):
    """Ends a compilation by Inductor before it writes code."""

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.dtypes = dtypes


def _stop(graph: Any) -> None:
    raise Lowered([x.get_dtype() for x in graph.graph_outputs])


class _Lowering:
    """A call in a program: of an op, on low tensors or on one that the program makes, in a region or outside."""

    def __init__(self, amp: Amp, op: OpInfo, sample: Sample, given: str, *, inside: bool) -> None:
        self.made = given == "made"
        args = arguments(sample, "low" if self.made else given, amp.dtype)
        self.leaves, self.spec = pytree.tree_flatten(args)
        self.places = [
            i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor) and x.layout == torch.strided
        ]
        self.op, self.kind, self.low, self.inside = op, amp.type, amp.dtype, inside

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.leaves[place].clone() for place in self.places]

    def __call__(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        leaves = list(self.leaves)
        for place, x in zip(self.places, given, strict=True):
            leaves[place] = x
        if self.made and self.places:
            first = self.leaves[self.places[0]]
            leaves[self.places[0]] = torch.ones(first.shape, dtype=first.dtype, device=self.kind)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        with torch.autocast(self.kind, dtype=self.low) if self.inside else nullcontext():
            return [x.clone() for x in tensors(self.op.op(*args, **kwargs))]  # an argument may be among them


def _lowerings(
    amp: Amp, name: str, given: Sequence[str], regions: Sequence[bool]
) -> Iterator[tuple[str, _Lowering, list[torch.dtype]]]:
    """Yield calls of an op that eager mode runs, with what they are, and the dtypes of their results."""
    op, samples = _samples(amp, name, 2)
    for number, sample in samples:
        for kind, inside in product(given, regions):
            call = _Lowering(amp, op, sample, kind, inside=inside)
            try:
                dtypes = [x.dtype for x in call(call.tensors)]
            except Exception:  # what it refuses is not compiled
                continue
            around = inside or torch.is_autocast_enabled(amp.type)
            yield f"sample {number}, {kind}, {'in a region' if around else 'outside of regions'}", call, dtypes


def _compiled(amp: Amp, calls: Sequence[_Lowering]) -> list[list[torch.Tensor]]:
    """Return what calls give in one program that Inductor compiles."""

    def program(*given: torch.Tensor) -> list[list[torch.Tensor]]:
        rest = iter(given)
        return [call(list(islice(rest, len(call.places)))) for call in calls]

    inputs = [x for call in calls for x in call.tensors]
    known = getattr(calls[0].op.op, "__globals__", {})
    # what the database seeds first, Dynamo does not take
    seeding = {x: lambda call, *args, **kwargs: call(*args, **kwargs) for x in known if x == "wrapper_set_seed"}
    with patch.dict(known, seeding), inductor_graphs().config.patch(fx_graph_cache=False), quiet():
        return amp.compiled("inductor", program, dynamic=False)(*inputs)  # type: ignore[no-any-return]  # the program's


def _decided(amp: Amp, calls: Sequence[_Lowering]) -> list[torch.dtype] | Exception:
    """Return the dtypes that Inductor decides on for a program of some calls, or what was raised."""
    try:
        with patch.object(inductor_graphs().GraphLowering, "compile_to_module", _stop):
            return [x.dtype for x in tensors(_compiled(amp, calls))]
    except Lowered as stopped:
        return stopped.dtypes
    except Exception as error:  # Dynamo or Inductor may raise anything
        return error


def assert_lowered(amp: Amp, name: str, *, regions: Sequence[bool] = (True, False)) -> None:
    """Compare the dtypes of an op's results in Inductor, before it writes code, with those of eager mode.

    What Inductor refuses in float32, too, is no case. `regions`: whether the program has a region of its own.
    """
    plans = list(_lowerings(amp, name, ("low", "first", "others", "made"), regions))
    if not plans:
        amp.unsupported(f"{name} runs on no low tensors")
    got = _decided(amp, [call for _, call, _ in plans])
    if isinstance(got, Exception):
        wide = _decided(amp, [call for _, call, _ in _lowerings(amp, name, ("wide",), (False,))])
        if type(wide) is type(got):
            amp.unsupported(f"Inductor raises {type(got).__name__} for {name}, in float32, too")
        amp.note_error(f"{name} in Inductor, which takes it in float32", got)
        return
    want = [(what, dtype) for what, _, dtypes in plans for dtype in dtypes]
    amp.assert_equal("number of results", len(got), len(want))
    for (what, right), dtype in zip(want, got, strict=True):
        amp.assert_equal(f"dtype of {name}, {what}", dtype, right)


def assert_compiled_on_edges(amp: Amp, name: str, compiler: str) -> None:
    """Compare an elementwise op, compiled, with eager mode in a region on edges, but where float32 differs, too.

    The compiler emulates roundings, so that results are off by one of them at most. What an integer gets of a number
    that it cannot hold is not defined.
    """
    call, low = on_edges(amp, name)

    def differing(columns: list[torch.Tensor], enabled: bool) -> tuple[torch.Tensor, torch.Tensor]:
        def program(*given: torch.Tensor) -> Any:
            with torch.autocast(amp.type, dtype=amp.dtype, enabled=enabled):
                return call(*given)

        want = program(*columns)
        if not isinstance(want, torch.Tensor) or want.shape != columns[0].shape:
            amp.unsupported(f"{name} does not give one result for each element")
        if not want.is_floating_point() and want.dtype != torch.bool:
            amp.unsupported(f"{name} gives no floating-point numbers")
        torch.compiler.reset()
        with inductor_graphs().config.patch(emulate_precision_casts=True, fx_graph_cache=False), quiet():
            return amp.host(amp.compiled(compiler, program, *columns)(*columns)), amp.host(want)

    got, want = differing(low, True)
    amp.assert_equal(f"dtype of {name}", got.dtype, want.dtype)
    eps = 2 * torch.finfo(amp.dtype).eps
    if said := unlike(got, want, low, eps):
        wide, right = differing([x.float() for x in low], False)
        said = unlike(torch.where(apart(wide.double(), right.double(), eps), want, got), want, low, eps)
    amp.check(not said, name, f"compiled, {said} in eager mode" if said else "agrees")


def assert_written(amp: Amp, name: str) -> None:
    """Compare an op's results, compiled by Inductor to the end, with those of eager mode, but for their dtypes.

    What float32 has, too, is the op's own.
    """

    def run(kinds: Sequence[str], *, written: bool) -> dict[str, Result]:
        calls = [(what, call) for what, call, _ in _lowerings(amp, name, kinds, (True,))]
        amp.seed()
        try:
            outs = _written(amp, [call for _, call in calls]) if written else [call(call.tensors) for _, call in calls]
        except Exception as error:  # Dynamo, Inductor or the C++ compiler may raise anything
            return {what: error for what, _ in calls}
        return {what: [amp.host(x) for x in out] for (what, _), out in zip(calls, outs, strict=True)}

    want = run(("low", "first"), written=False)
    if not want:
        amp.unsupported(f"{name} runs on no low tensors")
    if any(torch.Tag.nondeterministic_seeded in overload(one).tags for one in rows()[name].overloads.split()):
        amp.unsupported(f"{name} draws random numbers")
    got = run(("low", "first"), written=True)
    wide: list[dict[str, Result]] = []
    for what, right in want.items():
        made, sizes = got[what], [0.0]
        if isinstance(made, list) and isinstance(right, list):
            made = [x.to(y.dtype) for x, y in zip(made, right, strict=True)]
            sizes += [x.abs().max().item() for x in right if is_real(x) and x.numel() and x.isfinite().all()]
        said = difference(made, right, 4 * torch.finfo(amp.dtype).eps, 1e-3 * max(sizes))
        if said:
            wide = wide or [run(("wide",), written=written) for written in (True, False)]
            same = re.sub("low|first", "wide", what)
            said = "" if difference(wide[0][same], wide[1][same], 1e-4) else said
        amp.check(not said, f"{name}, {what}", said or "agrees")


def _written(amp: Amp, calls: Sequence[_Lowering]) -> list[list[torch.Tensor]]:
    """Return what calls give in one program that Inductor has compiled."""
    torch.compiler.reset()
    with inductor_graphs().config.patch(emulate_precision_casts=True, fallback_random=True):
        return _compiled(amp, calls)
