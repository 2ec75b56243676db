"""Relations of an op or a program: ways to run it that must agree in a region.

The ops are those of PyTorch's own op database, with its samples; the programs are of `ampcheck/samples/surface.py`.

A difference that is there without autocast, too, is the op's own and not autocast's. `suites/eager/test_relations.py`
says from which promise each relation follows.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from functools import partial
from itertools import product
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.checks.amp import Amp
from ampcheck.observe.recorder import overload, tensors
from ampcheck.observe.torch_private import TorchDispatchMode, all_decompositions, decompositions
from ampcheck.samples import op_database
from ampcheck.samples.surface import as_function, evaluate, inputs, padded, varied
from ampcheck.samples.torch_private import backend_name, pytree
from ampcheck.samples.torch_testing import internal

Result = list[torch.Tensor] | Exception
Region = Callable[[], AbstractContextManager[object]]
Call = Callable[[Region], object]

SAMPLES, MOST = 12, 20_000
"""How many samples of an op are looked at, and the elements of the largest one."""
SHOWN = 2
"""On how many of them every relation is tried; `dtypes` needs more."""
ALLOWED = 8.0
"""How many times the error that rounding explains a result may be off: a kernel rounds its intermediate values, too."""


def _run(amp: Amp, call: Call, region: Region) -> Result:
    """Return the tensors of a call, or what it raises, with the same random numbers each time."""
    amp.seed()
    try:
        made = tensors(call(region))
        return [amp.host(x.to_dense() if x.layout != torch.strided else x).clone() for x in made]
    except Exception as error:  # an op may raise anything
        return error


def difference(got: Result, want: Result, tolerance: float = 0.0, least: float = 0.0) -> str:
    """Say how two results differ; "" where they agree. Exceptions are not compared with each other.

    The tolerance is relative to the largest number of an output, or to `least` where that is more.
    """
    if isinstance(got, Exception) or isinstance(want, Exception):
        if isinstance(got, Exception) and isinstance(want, Exception):
            return ""
        first, second = (f"{type(x).__name__}: {str(x)[:200]}" if isinstance(x, Exception) else "" for x in (got, want))
        return f"raised {first}" if first else f"raised nothing; the other way raised {second}"
    if [(x.dtype, x.shape) for x in got] != [(x.dtype, x.shape) for x in want]:
        shown = [", ".join(f"{x.dtype}{list(x.shape)}" for x in one) for one in (got, want)]
        return f"gave {shown[0]}; the other way gave {shown[1]}"
    for place, (x, y) in enumerate(zip(got, want, strict=True)):
        wide = torch.complex128 if x.is_complex() else torch.float64
        x, y = ((z.dequantize() if z.is_quantized else z).to(wide) for z in (x, y))
        finite = x.isfinite() & y.isfinite()
        if not torch.equal(x.isfinite(), y.isfinite()):
            counts = int(x.isfinite().sum()), int(y.isfinite().sum())
            return f"gave {counts[0]} finite values in output {place}; the other way gave {counts[1]}"
        if not finite.any():
            continue
        far, largest = (x - y)[finite].abs().max().item(), y[finite].abs().max().item()
        if far > tolerance * max(largest, least):
            part = far / largest if largest else float("inf")
            return f"is off by {part:.2g} of the largest value of output {place}; at most {tolerance:.2g} is expected"
    return ""


class Form(NamedTuple):
    """A way to write an op. `in_place`: it writes to its first argument."""

    name: str
    function: Callable[..., Any]
    in_place: bool


def forms(info: Any) -> list[Form]:
    """Return the other ways to write an OpInfo's op.

    They are its method, its operator, its aliases, what torch has under their names, and each of these in place.
    """
    found = {id(info.op): Form("", info.op, False)}

    def add(name: str, function: Any, in_place: bool) -> None:
        if callable(function):
            found.setdefault(id(function), Form(name, function, in_place))

    for one in (info, *info.aliases):
        spaces = ("", "Tensor.", "nn.functional.") if "." not in one.name else ("",)
        for name, in_place in ((one.name, False), (f"{one.name}_", True)):
            for space in spaces:
                with suppress(AttributeError):
                    add(f"{space}{name}", attrgetter(f"{space}{name}")(torch), in_place)
        add(f"method {one.name}", one.method_variant, False)
        add(f"method {one.name}_", one.inplace_variant, True)
    add("operator", info.operator_variant, False)
    add("operator in place", info.inplace_operator_variant, True)
    return [form for form in found.values() if form.name]


class _Relations:
    """An op's sample and the ways to call it."""

    def __init__(self, amp: Amp, op: Any, number: object, sample: Any) -> None:
        self.amp, self.op, self.number = amp, op, number
        self.args, self.kwargs = (sample.input, *sample.args), sample.kwargs
        self.plain_call = self.inside(op.op)
        self.other_forms = [] if isinstance(op, _Program) else forms(op)
        self.known: dict[Call, Result | None] = {}
        """What a reference gives in a region; None where it does not repeat."""
        self.widened = False
        """Whether calls get float32 in place of the lower precision."""

    def off(self) -> AbstractContextManager[object]:
        """Return a region that is disabled."""
        return self.amp.region(enabled=False)  # type: ignore[no-any-return]  # a region of the device

    def on(self) -> AbstractContextManager[object]:
        """Return a region of the lower precision."""
        return self.amp.region()  # type: ignore[no-any-return]  # a region of the device

    def fresh(self, *, grad: bool = False, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
        """Return the arguments anew; `dtype` replaces float32."""

        def one(x: object) -> object:
            if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
                return x
            made = x.detach().clone()
            made = made.float() if self.widened and made.dtype == self.amp.dtype else made
            made = made.to(dtype) if dtype is not None and made.dtype == torch.float32 else made
            return made.requires_grad_(grad and (made.is_floating_point() or made.is_complex()))

        return pytree.tree_map(one, (self.args, self.kwargs))  # type: ignore[no-any-return]  # a tuple as it was

    def inside(self, function: Callable[..., object], *, outside: bool = False) -> Call:
        """Return a call of a function on fresh arguments in the region; `outside`: in none."""

        def call(region: Region) -> object:
            args, kwargs = self.fresh()
            with self.off() if outside else region():
                return function(*args, **kwargs)

        return call

    def agree(self, what: str, way: Call, reference: Call, tolerance: float = 0.0) -> None:
        """Note a difference of two ways in a region that they do not have in a disabled one."""
        amp, on = self.amp, self.on
        if reference not in self.known:
            want = _run(amp, reference, on)
            # Random numbers that no seed decides, or memory that nothing wrote.
            self.known[reference] = None if difference(_run(amp, reference, on), want) else want
        expected = self.known[reference]
        if expected is None:
            return
        found = difference(_run(amp, way, on), expected, tolerance)
        if found:
            outside = self.outside(way, reference)
            if difference(*outside, max(tolerance, 1e-4)):
                return
        amp.check(not found, f"{what} of sample {self.number}", found or "agrees")

    def outside(self, way: Call, reference: Call) -> tuple[Result, Result]:
        """Return what two ways give in a disabled region; on float32 alone where both refuse what is given."""
        amp, off = self.amp, self.off
        given = _run(amp, way, off), _run(amp, reference, off)
        if isinstance(given[0], Exception) and isinstance(given[1], Exception):
            self.widened = True
            given = _run(amp, way, off), _run(amp, reference, off)
            self.widened = False
        return given

    # ---- relations

    def surroundings(self) -> None:
        """Compare ways to enter the region, and what may be around a call: a thread, a checkpoint, a dispatch mode."""
        plain = self.plain_call
        ways: dict[str, Call] = {
            "decorator": lambda region: region()(lambda: plain(nullcontext))(),  # type: ignore[operator]  # it is one
            "region entered again": lambda region: self.entered(plain, region, region),
            "region without a cache": lambda region: self.entered(plain, region, self.uncached),
            "thread": lambda region: self.amp.thread(lambda: plain(region)),
            "checkpoint": lambda region: checkpoint(plain, region, use_reentrant=False),
            "dispatch mode": lambda region: self.entered(plain, partial(FlopCounterMode, display=False), region),
        }
        apart = 1e-5  # no threads share the work in a mode
        if self.amp.type == backend_name():
            apart = 2 * torch.finfo(self.amp.dtype).eps  # and of what a backend runs as one op the parts, each rounded
            if _derives(self.op):
                del ways["checkpoint"]  # its hook raises, which ends the process (python-backend-hook-exception)
        for name, way in ways.items():
            self.agree(name, way, plain, apart if name == "dispatch mode" else 0.0)

    def entered(self, call: Call, first: Region, second: Region) -> object:
        """Return what a call gives in two contexts."""
        with first():
            return call(second)

    def uncached(self) -> AbstractContextManager[object]:
        """Return a region like the one around it, without a cache."""
        on, dtype, _ = self.amp.state()
        return self.amp.region(dtype, enabled=on, cache_enabled=False)  # type: ignore[no-any-return]  # a region

    def forms(self) -> None:
        """Compare every way to write the op, out= and gradient modes."""
        op, amp = self.op, self.amp
        plain = self.plain_call
        for name, function, in_place in self.other_forms:
            reference = self.inside(function, outside=True) if in_place else plain
            self.agree(f"in_place {name}" if in_place else name, self.inside(function), reference)
        for name, mode in (("no_grad", torch.no_grad), ("inference", torch.inference_mode)):
            self.agree(name, mode()(plain), plain)
        right = _run(amp, self.inside(op.op, outside=True), self.on)
        if op.supports_out and not isinstance(right, Exception) and len(right) == 1:
            dtype, shape = right[0].dtype, right[0].shape

            def out(region: Region, *, outside: bool = False) -> object:
                args, kwargs = self.fresh()
                made = torch.zeros(shape, dtype=dtype, device=amp.type)
                with self.off() if outside else region():
                    return op.op(*args, **kwargs, out=made)

            self.agree("out", out, lambda region: out(region, outside=True))

    def written(self) -> None:
        """Compare every way to write an op of the lower precision outside of regions, and what is given as out=.

        A way of which float32 gives another result is another op.
        """
        amp, far = self.amp, ALLOWED * torch.finfo(self.amp.dtype).eps
        low = self.changed(lambda x: x.to(amp.dtype) if x.dtype == torch.float32 else x)
        right, again = (_run(amp, low.plain_call, self.off) for _ in range(2))
        if isinstance(right, Exception) or difference(again, right) or self.rounds_inside() or self.seeded():
            return
        plain, checked = _run(amp, self.plain_call, self.off), list[tuple[str, Result]]()
        for name, function, _ in self.other_forms:
            got, wide = (_run(amp, one.inside(function), self.off) for one in (low, self))
            if isinstance(got, list) and not difference(wide, plain, 1e-4):
                checked.append((name, got))
        for apart in (0, 1) if self.op.supports_out else ():
            got, wide = (_run(amp, partial(one.given_out, apart=apart), self.off) for one in (low, self))
            if isinstance(wide, list):
                checked.append((f"out={' apart' * apart}", got))
        for name, got in checked:
            said = difference(got, right, far)
            amp.check(not said, f"{name} of sample {self.number}", said or "agrees")

    def given_out(self, region: Region, apart: int) -> list[torch.Tensor]:
        """Return what a call writes to tensors that it is given as out=, whose elements may be apart."""
        (args, kwargs), (again, same) = self.fresh(), self.fresh()
        with region():
            results = list(tensors(self.op.op(*again, **same)))
            made = [torch.ones((*x.shape, 1 + apart), dtype=x.dtype, device=x.device)[..., 0] for x in results]
            self.op.op(*args, **kwargs, out=made[0] if len(made) == 1 else tuple(made))
        return made

    def memory(self) -> None:
        """Compare what a call writes to its arguments, and which results share their memory."""

        def call(region: Region) -> object:
            args, kwargs = self.fresh()
            given = _strided((args, kwargs))
            with region():
                results = _strided(self.op.op(*args, **kwargs))
            held = [x.untyped_storage().data_ptr() for x in given]
            shared = [[x.untyped_storage().data_ptr() == at != 0 for at in held] for x in results]
            return [torch.tensor(shared), *given]

        if not isinstance(_run(self.amp, call, self.off), Exception):  # the casts of a region may make a call possible
            self.agree("memory", call, lambda region: call(self.off))

    def derivatives(self) -> None:
        """Compare tangents and gradients with those outside, where the result is that of float32."""
        outside = _run(self.amp, self.inside(self.op.op, outside=True), self.on)
        inside = _run(self.amp, self.inside(self.op.op), self.on)
        if isinstance(outside, Exception) or difference(inside, outside, 1e-5):
            return
        if self.op.supports_forward_ad:
            self.agree("tangent", self.tangent, lambda region: self.tangent(self.off), 1e-3)
        if self.op.supports_autograd:
            self.agree("gradient", self.gradient, lambda region: self.gradient(self.off), 1e-3)

    def duals(self) -> None:
        """Check, in a disabled region, that what has results has derivatives, and tangents in the dtypes of results."""
        amp, what, (args, kwargs) = self.amp, f"of sample {self.number}", self.fresh(grad=True)
        if isinstance(_run(amp, lambda region: self.op.op(*args, **kwargs), self.off), Exception):
            return
        pulled = _run(amp, self.gradient, self.off)
        both = _run(amp, lambda region: [x for pair in self.unpacked(region) for x in pair], self.off)
        if self.op.supports_autograd and (said := refused(pulled)):
            amp.check(False, f"gradient {what}", said)
        elif not self.op.supports_forward_ad:
            return
        elif isinstance(both, Exception):
            amp.check(not (said := refused(both)), f"tangent {what}", said)
        else:
            got, want = ([str(x.dtype) for x in both[k::2]] for k in (1, 0))
            said = f"have {', '.join(got)} for results in {', '.join(want)}" if got != want else ""
            amp.check(not said, f"dtypes of tangents {what}", said or "agree")

    def memory_of(self, other: "_Relations") -> None:
        """Compare with a call on the same numbers in other memory, which float32 gives the same."""
        found = []
        for self.widened in (True, False):
            other.widened = self.widened
            results = [_run(self.amp, one.plain_call, self.on) for one in (self, other)]
            found.append(difference(results[0], results[1], ALLOWED * torch.finfo(self.amp.dtype).eps))
        self.amp.check(bool(found[0]) or not found[1], f"in other memory, sample {self.number}", found[1] or "agrees")

    def tangent(self, region: Region) -> object:
        """Return the tangents of the results for tangents of ones."""
        return [made for _, made in self.unpacked(region)]

    def unpacked(self, region: Region) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the results that have tangents, for tangents of ones, and these."""
        args, kwargs = self.fresh()
        with forward_ad.dual_level():
            dual = pytree.tree_map(lambda x: forward_ad.make_dual(x, torch.ones_like(x)) if is_real(x) else x, args)
            with region():
                out = self.op.op(*dual, **kwargs)
            made = [forward_ad.unpack_dual(x) for x in tensors(out)]
            return [(x.primal.clone(), x.tangent.clone()) for x in made if x.tangent is not None]

    def gradient(self, region: Region, dtype: torch.dtype | None = None, scale: float = 1.0) -> list[torch.Tensor]:
        """Return the results and the gradients of the arguments; the backward pass is outside of the region."""
        args, kwargs = self.fresh(grad=True, dtype=dtype)
        with region():
            out = list(tensors(self.op.op(*args, **kwargs)))
        roots = [x for x in out if x.requires_grad]
        leaves = [x for x in tensors((args, kwargs)) if x.requires_grad]
        if not roots or not leaves:
            return out
        given = [torch.full_like(x, scale) for x in roots]
        return [*out, *(x for x in torch.autograd.grad(roots, leaves, given, allow_unused=True) if x is not None)]

    def accuracy(self) -> None:
        """Compare results and gradients in a region with float64's: rounding must explain how far they are."""
        amp, call = self.amp, self.derived
        got = _run(amp, call, self.on)
        if difference(got, _run(amp, lambda _: call(self.off), self.on)):
            self.explained(got, self.changed(lambda x: x.to(amp.dtype).to(x.dtype)))

    def rounded(self, region: Region | None = None, by: Any = None) -> None:
        """Compare results and gradients of arguments in the lower precision with float64's of the same numbers.

        `by`: what runs in place of the op.
        """
        amp, eps = self.amp, torch.finfo(self.amp.dtype).eps
        low = self.changed(lambda x: x.to(amp.dtype).to(x.dtype))
        amp.seed()
        nudged = low.changed(lambda x: x * (1 + eps * torch.randint(0, 2, x.shape, device=x.device).mul(2).sub(1)))
        other = low.changed(lambda x: x)
        other.op = by or self.op
        got = _run(amp, partial(other.derived, dtype=amp.dtype), region or self.on)
        # A kernel that refuses the lower precision gives nothing wrong, unless PyTorch's database has it for the CPU's.
        claimed = amp.type == "cpu" and amp.dtype in self.op.supported_backward_dtypes("cpu")
        wrong = "INTERNAL ASSERT|not implemented for" if claimed else "INTERNAL ASSERT"
        if by and isinstance(_run(amp, partial(low.derived, dtype=amp.dtype), region or self.on), list):
            wrong = ""
        if not isinstance(got, Exception) or re.search(wrong, str(got)):
            low.explained(got, nudged)

    def scaled(self, factor: float, scale: float) -> None:
        """Compare which results and gradients are infinite or zero, for arguments that are all of another magnitude.

        `scale`: of the gradients of results, as that of a `GradScaler`.

        A zero is told beside numbers that are about as large: a smaller one may be what a sum rounds away.
        """
        amp, info = self.amp, torch.finfo(self.amp.dtype)
        low = self.changed(lambda x: (x * factor).to(amp.dtype).to(x.dtype))
        got = _run(amp, partial(low.derived, dtype=amp.dtype, scale=scale), self.on)
        wides = (torch.float64, None)
        exact, single = (_run(amp, partial(low.derived, dtype=dtype, scale=scale), self.off) for dtype in wides)
        if isinstance(got, Exception) or isinstance(exact, Exception) or isinstance(single, Exception):
            return
        for place, (x, y, z) in enumerate(zip(got, exact, single, strict=False)):
            if not x.is_floating_point() or x.shape != y.shape or difference([z.double()], [y], 1e-3):
                continue
            size = y.abs()
            ends = _lost(x, y, y, amp.dtype)
            least = max(16 * info.tiny, 4 * info.eps * size.nan_to_num(0, 0).max().item()) if x.numel() else 0
            lost = ends | (x == 0) & (size > least)
            if ends.any() and low.cancels(place, ends):
                continue
            said = f"gave {x[lost][0]:.4g} in {x.dtype} where float64 gives {y[lost][0]:.4g}" if lost.any() else ""
            what = f"output {place} of sample {self.number} times {factor:g}, gradients of {scale:g}"
            amp.check(not said, what, said or "agrees")

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "_Relations":
        """Return the op with other values in its real tensors."""
        return _Relations(self.amp, self.op, self.number, _Changed(self.args, self.kwargs, change))

    def derived(self, region: Region, dtype: torch.dtype | None = None, scale: float = 1.0) -> object:
        """Return the results of a call, and its gradients where the op has some; a dtype replaces float32."""
        return self.gradient(region, dtype, scale) if self.op.supports_autograd else self.plain(region, dtype)

    def explained(self, got: Result, moved_by: "_Relations") -> None:
        """Check how far results are from float64's, which differ from those of other arguments by what is allowed."""
        amp = self.amp
        exact = _run(amp, lambda _: self.derived(self.off, torch.float64), self.on)
        moved = _run(amp, lambda _: moved_by.derived(self.off, torch.float64), self.on)
        single = _run(amp, lambda _: moved_by.derived(self.off), self.on)
        if isinstance(exact, Exception) or isinstance(moved, Exception) or isinstance(single, Exception):
            return
        # Of the others some are random, or float32 itself is not enough.
        wide = [x.double() if x.is_floating_point() else x for x in single]
        pairs = enumerate(zip(wide, moved, strict=False))
        exacts = {place for place, (x, y) in pairs if not difference([x], [y], 1e-2)}
        if not exacts or len(wide) != len(moved):
            return
        if isinstance(got, Exception):
            amp.check(False, f"accuracy of sample {self.number}", f"raised {type(got).__name__}: {str(got)[:200]}", got)
            return
        if not len(exact) == len(moved) == len(got):
            return
        largest = max(
            (x[x.isfinite()].abs().max().item() for x in exact if x.isfinite().any() and is_real(x)), default=0.0
        )
        for place, (x, y, z) in enumerate(zip(exact, moved, got, strict=True)):
            if place not in exacts or x.dtype != torch.float64 or x.shape != z.shape or not x.numel():
                continue
            if not z.is_floating_point():
                continue
            said = unexplained(z, x, y, amp.dtype, largest)
            if not said.startswith("gave") or not self.cancels(place, _lost(z, x, y, amp.dtype)):
                amp.check(not said, f"accuracy of output {place} of sample {self.number}", said or "agrees")

    def infinite(self) -> None:
        """Compare which results are infinite or nan in a region, for arguments in the lower precision, with float64's.

        One element of one argument is made infinite or nan: the middle one, or the last one, behind which kernels
        fill up their blocks. The reference is the op, and the formula of other ops that PyTorch has for it, in which a
        fault of all the op's dtypes is not. A result that differs between float32 and float64, too, is not compared,
        and no op that draws random numbers, which are others in another dtype.
        """
        given = self.args, self.kwargs
        places = [place for place, x in enumerate(pytree.tree_leaves(given)) if is_real(x) and x.numel()]
        if self.draws():
            return
        if "conv" in getattr(self.op, "name", ""):
            del places[1:]  # a weight that is nan times padding is nan, where a kernel pads
        for argument, at in enumerate(places):
            for value, last in ENDS if not argument else ENDS[:2]:  # infinity times what rounding leaves is either
                (first, *rest), kwargs = _with_element(given, self.amp.dtype, value, at, last)
                made = SimpleNamespace(input=first, args=rest, kwargs=kwargs)
                where = f"{value} {'at the end' if last else 'in the middle'}" + f", argument {argument}" * (
                    argument > 0
                )
                # Whether an infinite number makes nan depends on the formula.
                for how, around in (("", nullcontext), (", as a formula", FORMULAS))[: 1 + (value != value)]:
                    _Relations(self.amp, self.op, self.number, made).same_ends(where + how, around)

    def same_ends(self, given: str, reference: Region) -> None:
        """Compare where results are infinite or nan with those of float32 and float64 in a context."""
        amp, plain, off = self.amp, self.plain, self.off
        ways = ((amp.dtype, nullcontext, self.on), (None, reference, off), (torch.float64, reference, off))
        found = [_run(amp, partial(self.entered, partial(plain, dtype=x), around), on) for x, around, on in ways]
        results = [one for one in found if isinstance(one, list)]
        for place, (x, single, exact) in enumerate(zip(*results, strict=False) if len(results) == 3 else ()):
            if not x.is_floating_point() or not x.shape == single.shape == exact.shape:
                continue
            if different_ends(single.to(x.dtype), exact):
                continue
            said = different_ends(x, exact)
            if not said or not difference(_run(amp, partial(plain, dtype=amp.dtype), self.on), found[0]):
                amp.check(not said, f"output {place} of sample {self.number} with {given}", said or "agrees")

    def cancels(self, place: int, lost: torch.Tensor) -> bool:
        """Tell whether large terms of a sum cancel in an output, so that a part of the sum may overflow."""
        amp = self.amp
        terms, most = self.changed(torch.abs), torch.finfo(amp.dtype).max / 4
        whole = _run(amp, lambda _: terms.derived(self.off, torch.float64), self.on)
        return isinstance(whole, list) and place < len(whole) and bool((whole[place][lost].abs() >= most).any())

    def rounds_inside(self) -> bool:
        """Tell whether the op is made of several, one of which rounds to the lower precision what another one takes."""
        seen = self.kernels()
        return len(seen) > 1 and any(self.amp.policies.get(name) == "downcast" for name in seen)

    def seeded(self) -> bool:
        """Tell whether the op may draw random numbers."""
        return any(torch.Tag.nondeterministic_seeded in overload(name).tags for name in self.kernels())

    def draws(self) -> bool:
        """Tell whether the op draws random numbers, which may be others in another dtype, for this sample."""
        if not self.seeded():
            return False
        twice = _run(self.amp, lambda region: [self.plain(region), self.plain(region)], self.off)
        return isinstance(twice, Exception) or bool(difference(twice[::2], twice[1::2])) or len(twice) != 2

    def kernels(self) -> list[str]:
        """Return the overloads that a call in a region enters."""
        args, kwargs = self.fresh()
        with self.on():
            return [kernel.overload for kernel in self.amp.observe(lambda: self.op.op(*args, **kwargs)).kernels]

    def plain(self, region: Region, dtype: torch.dtype | None = None) -> object:
        """Return the results of a call on arguments in which a dtype replaces float32."""
        args, kwargs = self.fresh(dtype=dtype)
        with region():
            return self.op.op(*args, **kwargs)


OTHER = re.compile("not implemented|does not require grad|not supported|derivative for|handle types|Could not run")


def refused(found: Exception | Result) -> str:
    """Say what a call raised because of dtypes, and not because a kernel or a formula is not there."""
    said = str(found) if isinstance(found, Exception) else ""
    return f"raised {type(found).__name__}: {said[:200]}" if "type" in said and not OTHER.search(said) else ""


class _Changed:
    """A sample whose real tensors have other values."""

    def __init__(
        self, args: tuple[object, ...], kwargs: dict[str, object], change: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        (self.input, *rest), self.kwargs = pytree.tree_map(lambda x: change(x) if is_real(x) else x, (args, kwargs))
        self.args = tuple(rest)


def _with_element(given: Any, dtype: torch.dtype, value: float, at: int, last: bool) -> Any:
    """Return arguments rounded to a dtype, with a value as one element of the tensor at a place."""
    leaves, spec = pytree.tree_flatten(given)
    for place, x in enumerate(leaves):
        if not is_real(x) or not x.numel():
            continue
        flat = x.detach().to(dtype).to(x.dtype).flatten()
        if place == at:
            flat[-1 if last else len(flat) // 2] = value
        leaves[place] = flat.reshape(x.shape)
    return pytree.tree_unflatten(leaves, spec)


class TakenApart(TorchDispatchMode):
    """Runs decompositions in place of the ops that have one: those of Inductor. `seen`: whether there was any."""

    seen = False

    def __init__(self, table: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.table = (table or decompositions)()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if decomposition := self.table.get(func):
            self.seen = True
            with self:
                out = decomposition(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        return func(*args, **(kwargs or {}))


FORMULAS = partial(TakenApart, lambda: all_decompositions().decomposition_table)
ENDS = tuple((value, last) for value in (float("nan"), float("inf")) for last in (True, False))
"""What an element of an argument is made, and whether it is the last one."""


def _lost(got: torch.Tensor, exact: torch.Tensor, moved: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Return where a result is infinite or nan although the lower precision holds what float64 gives."""
    return exact.isfinite() & moved.isfinite() & (moved.abs() < torch.finfo(low).max / 4) & ~got.isfinite()


def unexplained(got: torch.Tensor, exact: torch.Tensor, moved: torch.Tensor, low: torch.dtype, largest: float) -> str:
    """Say how a result is farther from float64's than rounding to a lower precision explains; "" where it is not.

    The largest difference is compared, and the median.

    `moved`: what float64 gives of rounded arguments. `largest`: the largest number of all results, whose rounding
    explains a gradient that is zero because a sum cancels.
    """
    lost = _lost(got, exact, moved, low)
    if lost.any():
        return f"gave {got[lost][0].item()} in {got.dtype} where float64 gives {exact[lost][0].item():.4g}"
    fine = exact.isfinite() & moved.isfinite() & got.isfinite()
    if not fine.any():
        return ""
    scale = exact[fine].abs().max().item()
    scale = scale if scale > 1e-3 * largest else largest
    far, near = (got.double() - exact)[fine].abs(), (exact - moved)[fine].abs()
    # Beside a pole, the largest may be off by anything.
    for of, one in (("", torch.max), ("half of it ", torch.median)):
        off, allowed = one(far).item(), ALLOWED * max(one(near).item() + torch.finfo(low).eps * scale, 1e-5)
        if off > allowed:
            return f"{of}is off by {off:.2g} in {got.dtype}; rounding explains {allowed:.2g}"
    return ""


def different_ends(got: torch.Tensor, exact: torch.Tensor) -> str:
    """Say where a result is infinite or nan, beyond what its dtype holds, and another one is not; "" where nowhere."""

    def ends(x: torch.Tensor) -> torch.Tensor:
        x = x.to(got.dtype)
        return torch.where(x.isnan(), 2.0, x.sign() * (x.abs() >= torch.finfo(got.dtype).max))

    places = (ends(got) != ends(exact)).nonzero().tolist()
    if not places:
        return ""
    at = tuple(places[0])
    return f"gave {got[at].item()} in {got.dtype} where float64 gives {exact[at].item():.4g}"


def _strided(found: object) -> list[torch.Tensor]:
    return [x for x in tensors(found) if x.layout == torch.strided]


def is_real(x: object) -> bool:
    """Return whether a value is a strided tensor of real floating-point numbers."""
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout == torch.strided


def _assert_dtypes(amp: Amp, op: Any, samples: list[Any]) -> None:
    """Note samples of the same dtypes, which give the same dtypes outside, that give several inside."""
    seen: dict[str, dict[tuple[torch.dtype, ...], str]] = defaultdict(dict)
    for number, sample in enumerate(samples):
        one = _Relations(amp, op, number, sample)
        inside, outside = (_run(amp, one.inside(op.op, outside=out), one.on) for out in (False, True))
        if isinstance(inside, Exception) or isinstance(outside, Exception):
            continue
        kinds = [getattr(x, "dtype", type(x).__name__) for x in pytree.tree_leaves((one.args, one.kwargs))]
        shapes = pytree.tree_map(lambda x: tuple(x.shape) if isinstance(x, torch.Tensor) else x, (one.args, one.kwargs))
        key = f"{kinds} {[x.dtype for x in outside]}"
        seen[key].setdefault(tuple(x.dtype for x in inside), f"{shapes[0]} {shapes[1]}")
    for found in seen.values():
        said = _several([*found.items()])
        amp.check(not said, "dtypes of the results", said)


def _several(found: list[tuple[tuple[torch.dtype, ...], str]]) -> str:
    """Say which dtypes calls of some shapes gave; "" where all gave the same."""
    said = {", ".join(map(str, dtypes)): shapes for dtypes, shapes in found}
    told = "; ".join(f"{dtypes} for shapes {shapes}" for dtypes, shapes in sorted(said.items()))
    return f"gave {told}" if len(said) > 1 else ""


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "large": lambda x: x * 30,
    "small": lambda x: x * 1e-4,
    "moved": lambda x: x + 100,
}
"""What makes other values of those of the database, by the name of what is given."""


def _samples(amp: Amp, op: Any, given: str) -> list[Any]:
    """Return small samples of an op, with other values or another dtype of the first argument."""
    made = [x for x in amp.op_samples(op, torch.float32, SAMPLES) if size(x) <= MOST]
    for sample in made:
        if change := CHANGES.get(given):
            changed = _Changed((sample.input, *sample.args), sample.kwargs, change)
            sample.input, sample.args, sample.kwargs = changed.input, changed.args, changed.kwargs
        if given == "low":
            sample.input = pytree.tree_map(lambda x: x.to(amp.dtype) if is_real(x) else x, sample.input)
    if given == "low" and made:
        first = made[0]
        for lay in (_laid, _transposed):
            other = pytree.tree_map(lambda x: lay(x) if is_real(x) else x, first.input)  # noqa: B023  # called here
            made.append(SimpleNamespace(input=other, args=first.args, kwargs=first.kwargs))
    return made


def size(sample: Any) -> int:
    """Return the number of elements of a sample of the op database."""
    return sum(x.numel() for x in tensors((sample.input, sample.args, sample.kwargs)))


def _op(amp: Amp, name: str, given: str = "wide") -> tuple[Any, list[Any]]:
    """Return an op of the database and small samples of it."""
    op = amp.op_info(name)
    if op is None or torch.float32 not in op.supported_dtypes(amp.type):
        amp.unsupported(f"the op database has no float32 samples of {name} for {amp.type}")
    samples = _samples(amp, op, given)
    if not samples:
        amp.unsupported(f"{name} has no small samples")
    return op, samples


def low_kernels() -> list[str]:
    """Return the ops of the database that have kernels in a lower precision, which decide every element."""
    rows = {name: {*row.dtypes.split()} for name, row in op_database.rows().items() if "empty" not in name}
    return sorted(name for name, dtypes in rows.items() if "fp32" in dtypes and dtypes & {"bf16", "fp16"})


def _laid(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in other memory: channels last, or the last two dimensions transposed."""
    if x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return _transposed(x)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in memory in which the last two dimensions are transposed."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


def _huge(low: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Return numbers of which the largest is near the end of a lower precision."""
    return x * (0.55 * torch.finfo(low).max / max(x.abs().max().item(), 1e-30)) if x.numel() else x


MOVED: dict[str, tuple[Callable[[torch.dtype, torch.Tensor], torch.Tensor], ...]] = {
    "strided": (lambda low, x: _laid(x), lambda low, x: _transposed(x)),
    "zero": (lambda low, x: x * 0,),
    "huge": (_huge, lambda low, x: _laid(_huge(low, x))),
}
"""What changes the first argument of a kernel in the lower precision."""


SCALES = (*((2.0**k, 1.0) for k in (-8, -4, 4, 8)), (1.0, 2.0**8))
"""Magnitudes of all arguments, beside those of the database, and of the gradients of results."""


def assert_kernel(amp: Amp, name: str, given: str) -> None:
    """Compare an op's kernels in the lower precision with float64's: as they are, infinite, scaled, or `MOVED`."""
    op, samples = _op(amp, name)
    judge = "another way to write it gives" if given == "written" else "float64 could judge"
    amp.unjudged = f"{name} has no results in {amp.dtype} that {judge}"
    for number, sample in enumerate(samples):
        one = _Relations(amp, op, number, sample)
        if given in ("infinite", "written"):
            getattr(one, given)()
        elif given == "scaled" and not one.rounds_inside() and not one.draws():
            for factor, scale in SCALES:
                one.scaled(factor, scale)
        elif given == "rounded" and not one.rounds_inside():
            one.rounded()
        elif given in MOVED and not one.rounds_inside() and (given != "huge" or len(one.kernels()) == 1):
            kind = copy(op)
            kind.supports_autograd &= given != "huge"  # formulas of gradients round, and so overflow, between their ops
            for change in MOVED[given]:
                first = pytree.tree_map(lambda x: change(amp.dtype, x) if is_real(x) else x, sample.input)  # noqa: B023
                made = SimpleNamespace(input=first, args=sample.args, kwargs=sample.kwargs)
                _Relations(amp, kind, number, made).rounded()


def assert_compiled_sized(amp: Amp, program: str, shapes: Sequence[Sequence[int]]) -> None:
    """Compare what Inductor writes for a program of a tensor in the lower precision, of its first and last shape."""
    amp.unjudged = f"the program has no results in {amp.dtype} that float64 could judge"
    for shape in (shapes[0], shapes[-1]):
        torch.compiler.reset()
        x = amp.rand(*shape) * 4 - 2
        one = _Relations(amp, _Program(program), f"{list(shape)}", SimpleNamespace(input=x, args=(), kwargs={}))
        one.rounded(by=_Compiled(program, "inductor", x))


_STABLE = "softmax|logsumexp|softplus|logsigmoid|with_logits"
"""What subtracts the largest number before it takes powers of e."""


def assert_sized(amp: Amp, program: str, shapes: Sequence[Sequence[int]]) -> None:
    """Compare a program of a tensor in the lower precision, of each shape, with float64: of like numbers and others."""
    amp.unjudged = f"the program has no results in {amp.dtype} that float64 could judge"
    ways = [(0, "alike"), (4, "apart")] + [(400, "far apart")] * bool(re.search(_STABLE, program))
    for shape, (spread, how) in product(shapes, ways):
        x = amp.rand(*shape)
        x = (x - 0.5) * spread if spread else x.fill_(1.5)  # thousands of like ones add up to more than float16 holds
        for number, lay in enumerate((lambda x: x, _laid, _transposed)[: 1 if spread > 4 else 3]):
            sample = f"{list(shape)} {how}, memory {number}"
            one = _Relations(amp, _Program(program), sample, SimpleNamespace(input=lay(x), args=(), kwargs={}))
            for region in (one.on, one.off):  # in which other kernels get the lower precision
                one.rounded(region)
            if len(shape) == 3 and shape == shapes[1] and spread == 4 and not number:
                one.infinite()


DRAWN = 1 << 20
"""How many random numbers are drawn."""


def assert_drawn(amp: Amp, program: str, never: Sequence[float]) -> None:
    """Compare random numbers in the lower precision with float64's of the CPU: as distributions, and by themselves.

    Between thresholds lie as many as rounding and chance allow, none is infinite, none is in `never`, and none depends
    on another one. `program` draws for a vector of zeros.
    """

    def draw(dtype: torch.dtype, device: str) -> torch.Tensor:
        return next(tensors(evaluate(program, {"a": torch.zeros(DRAWN, dtype=dtype, device=device)})))

    torch.manual_seed(1)
    wide = draw(torch.float64, "cpu").double().sort().values
    torch.manual_seed(2)
    try:
        with amp.region():
            got = draw(amp.dtype, amp.type)
    except NotImplementedError as error:
        amp.unsupported(f"{error}"[:300])
    x = amp.host(got).double()
    lost, beyond = int((~x.isfinite()).sum()), int((wide.abs() > torch.finfo(amp.dtype).max).sum())
    amp.check(lost <= 2 * beyond, "numbers that are infinite or nan", f"{lost}; {beyond} of float64's are too large")
    for value in never:
        amp.assert_equal(f"numbers that are {value}", int((x == value).sum()), 0)
    count, eps = len(x), torch.finfo(amp.dtype).eps
    chance = 5 * count**-0.5
    spread = (wide[len(wide) * 3 // 4] - wide[len(wide) // 4]).item()
    for part in (1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999):
        threshold = wide[int(part * len(wide))].item()
        step = 2 * eps * (abs(threshold) + spread)
        least, most = ((wide <= threshold + way * step).double().mean().item() for way in (-1, 1))
        slack = [2 * chance * (part * (1 - part)) ** 0.5 + 25 / count for part in (least, most)]
        found = (x <= threshold).double().mean().item()
        right, expected = least - slack[0] <= found <= most + slack[1], f"{least:.6f} to {most:.6f} is expected"
        amp.check(right, f"share of numbers up to {threshold:.6g}", f"{found:.6f}; {expected}")
    halves = (x > wide[len(wide) // 2]).double()
    halves -= halves.mean()
    apart = [1 << k for k in range(18)]
    alike = [k for k in apart if (halves * halves.roll(k)).mean().abs().item() > chance / 4]
    amp.assert_equal("distances of numbers that depend on each other", alike, [])


def assert_counted(amp: Amp, name: str) -> None:
    """Check the derivatives of an op of a real number and integers."""
    op, samples = _op(amp, name)
    amp.unjudged = f"{name} has no derivatives"
    for number, sample in enumerate(samples):
        made = _Changed((sample.input, *sample.args), sample.kwargs, torch.Tensor.long)
        made.input = sample.input
        _Relations(amp, op, number, made).duals()


def assert_relations(amp: Amp, name: str, given: str) -> None:
    """Try every relation that an op has, on samples of the database with the values or the dtype that are given."""
    op, samples = _op(amp, name, given)
    _assert_dtypes(amp, op, samples)
    last = len(samples) - (3 if given == "low" else 1)  # the others are the first one in other memory
    places = {round(k * last / max(SHOWN - 1, 1)) for k in range(SHOWN)}
    for number in sorted(places | {*range(last + 1, len(samples))}):
        one = _Relations(amp, op, number, samples[number])
        if number > last:
            one.memory_of(_Relations(amp, op, 0, samples[0]))
        one.forms()
        if "unsafe to autocast" in str(_run(amp, one.inside(op.op), one.on)):
            continue
        one.memory()
        if given in ("wide", "low"):
            one.duals()
        # A result hardly depends on small arguments, and outside a low one is less exact.
        if given in ("wide", "large"):
            one.derivatives()
        if torch.float64 in op.supported_dtypes(amp.type) and (given == "wide" or not one.rounds_inside()):
            one.accuracy()


EDGES = (
    *(0.0, -0.0, 0.1, -0.1, 0.5, -0.5, 0.7, 1.0, -1.0, 1.5, 2.0, -2.0, 3.0, -3.0, 3.14, 4.0, 6.0, -6.0, 20.0, 88.0),
    *(100.0, -100.0, 300.0, 560.0, 2158.0, 1e-3, -1e-3, 1e-7, 1e-30, 65504.0, -65504.0),
    *(float("inf"), -float("inf"), float("nan")),
)
"""Bounds of activations, values at the ends of the lower precisions, and those that are no numbers."""
LONG = 131
"""Elements of the tensor of an op of one: longer than the vectors of any kernel, with a rest."""


def elementwise() -> list[str]:
    """Return the ops of the database that give each element by itself, in the lower precision, too."""
    rows = op_database.rows()
    found = [
        name
        for name in low_kernels()
        if all(torch.Tag.pointwise in overload(each).tags for each in rows[name].overloads.split())
    ]
    return sorted({*found} - {"equal", "nn.functional.rrelu", "native_dropout_backward"})  # not so, and random ones


def on_edges(amp: Amp, name: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return an elementwise op as a function of its real tensors, and values of them in the lower precision.

    Of one tensor there are more values than in the vectors of any kernel, with a rest; of two each pair.
    """
    op = amp.op_info(name)
    if op is None or amp.dtype not in op.supported_dtypes(amp.type):
        amp.unsupported(f"the op database has no samples of {name} in {amp.dtype} for {amp.type}")
    sample = next(iter(amp.op_samples(op, torch.float32, 1)))
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, x in enumerate(leaves) if is_real(x)]
    masks = [place for place, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.dtype == torch.bool]
    edges = torch.tensor(EDGES).to(amp.dtype)
    grid = torch.cartesian_prod(*[edges] * min(len(places), 2))
    columns = [edges.repeat(LONG)[:LONG]] if len(places) == 1 else [grid[:, k % 2] for k in range(len(places))]

    def call(*given: torch.Tensor) -> Any:
        made = list(leaves)
        for place, x in zip(places, given, strict=True):
            made[place] = x
        for place in masks:
            made[place] = given[0] > 0
        first, args, kwargs = pytree.tree_unflatten(made, spec)
        return op.op(first, *args, **kwargs)

    return call, [column.contiguous().to(amp.type) for column in columns]


def assert_pieces(amp: Amp, name: str) -> None:
    """Compare what an elementwise op gives for a long tensor in the lower precision with its elements, one at a time.

    A kernel has a path for vectors and another one for the rest; both round once.
    """
    call, columns = on_edges(amp, name)
    with amp.region():
        whole = call(*columns)
        if not isinstance(whole, torch.Tensor) or whole.shape != columns[0].shape or whole.is_complex():
            amp.unsupported(f"{name} does not give a real number for each element")
        pieces = [call(*(x[i : i + 1].clone() for x in columns)) for i in range(len(whole))]
    said = unlike(amp.host(whole), amp.host(torch.cat(pieces)), columns, torch.finfo(amp.dtype).eps)
    amp.check(not said, name, f"among {len(whole)} elements, {said} alone" if said else "agrees")


def apart(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    """Return which elements differ by more than `eps` of the second one; nan is equal to nan."""
    return (x != y) & ~(x.isnan() & y.isnan()) & ~((x - y).abs() <= eps * y.abs())


def unlike(x: torch.Tensor, y: torch.Tensor, columns: list[torch.Tensor], eps: float) -> str:
    """Say which element of two results differs most, but by roundings of one number; "" where none does."""
    x, y = x.double(), y.double()
    differ = apart(x, y, eps)
    if not differ.any():
        return ""
    at = int(differ.nonzero()[(x - y)[differ].abs().nan_to_num(0.0).argmax()])
    given = ", ".join(f"{column[at].item():.6g}" for column in columns)
    return f"of {given} it gives {x[at].item():.6g}; {y[at].item():.6g}"


class _Program:
    """A program of the surface, called as an op of the database is."""

    supports_out, supports_autograd, supports_forward_ad = False, True, True

    def __init__(self, program: str) -> None:
        self.program = program

    def supported_backward_dtypes(self, type: str) -> tuple[torch.dtype, ...]:
        """Return none: nobody says which kernels of a program are there."""
        return ()

    def op(self, a: torch.Tensor, **others: torch.Tensor) -> object:
        return evaluate(self.program, {"a": a, **others})


class _Compiled(_Program):
    """A program compiled by a backend of `torch.compile`."""

    def __init__(self, program: str, backend: str, like: torch.Tensor) -> None:
        super().__init__(program)
        options: dict[str, Any] = {"fallback_random": True} if backend == "inductor" else {}  # the same random numbers
        self.compiled = torch.compile(as_function(program, like), backend=backend, options=options)

    def op(self, a: torch.Tensor, **others: torch.Tensor) -> object:
        return padded(self.compiled(a=a, **others))


_BACKWARD = re.compile(r"backward|autograd|gradcheck|dual|trained|scaled")
"""What in a program derives: its replay records no gradients, and so cannot."""


def _derives(op: object) -> bool:
    return isinstance(op, _Program) and _BACKWARD.search(op.program) is not None


def assert_program(amp: Amp, program: str) -> None:
    """Compare a program in a region with explicit casts, and try every relation; nothing is left when it ends."""
    outside = _tried(amp, program, inputs(amp.rand))
    if isinstance(outside, Exception):
        if amp.type != "cpu":  # the device has no such kernel, or the program's helpers are of the host
            amp.unsupported(f"the program raises {type(outside).__name__}: {outside}"[:300])
        amp.refused(outside, "the program")


DRAWS = 20
"""How many distributions of other numbers are made: each of a kind is accepted, or none."""


def assert_varied(amp: Amp, program: str, options: Mapping[str, Sequence[str]]) -> None:
    """Do the same with inputs in the lower precision, and with each option of what the program calls off its default.

    What a program refuses outside of a region is left out: most values fit some callables alone. `options`: see
    `varied`.
    """
    for dtype in (amp.other, amp.dtype):
        taken: list[Result] = []
        for _ in range(DRAWS if "dist(" in program else 1):
            low = {name: x.to(dtype) if is_real(x) else x for name, x in inputs(amp.rand).items()}
            taken.append(_run(amp, lambda _: evaluate(program, low), nullcontext))  # noqa: B023  # called here
        lost = re.search('"(.+)" not implemented for', str(taken[-1]))
        right = lost is None or lost[1] in options["kernels_that_are_not_there"]
        amp.check(right, f"inputs in {dtype}", f"{lost[1] if lost else 'each'} is {'not ' * (not right)}there")
        raised = [x for x in taken if isinstance(x, Exception)]
        if 0 < len(raised) < len(taken):
            said = f"{len(raised)} of {len(taken)} raised; {raised[0]}"[:300]
            amp.check(False, f"distributions of like numbers in {dtype}", said)
    ways, refused = [("low inputs", program, low), *((how, made, {}) for how, made in varied(program, options))], []
    for how, made, given in ways:
        known = len(amp.differences)
        print("with", how)
        outside = _tried(amp, made, given or inputs(amp.rand))
        refused += [outside] if isinstance(outside, Exception) else []
        amp.differences[known:] = [f"{said} (with {how})" for said in amp.differences[known:]]
    if len(refused) == len(ways) and not amp.differences:
        amp.unsupported(f"the program refuses low inputs and takes no other options: {refused[0]}"[:300])


def assert_compiled(amp: Amp, program: str, backend: str) -> None:
    """Compare what a program and its gradients are in a region with those of the same, compiled."""
    torch.compiler.reset()
    given = inputs(amp.rand)
    sample = SimpleNamespace(input=given.pop("a"), args=(), kwargs=given)
    plain = _Relations(amp, _Program(program), 0, sample)
    other = _Relations(amp, _Compiled(program, backend, sample.input), 0, sample)
    if isinstance(outside := _run(amp, other.plain_call, other.off), Exception):
        amp.unsupported(f"compiled, the program raises {type(outside).__name__}: {outside}"[:300])
    apart = 4 * torch.finfo(amp.dtype).eps  # the parts of a formula are rounded elsewhere
    amp.unjudged = "what the program gives does not repeat"
    plain.agree("compiled", other.plain_call, plain.plain_call, apart)
    if not _derives(plain.op):
        plain.agree("compiled gradient", other.gradient, plain.gradient, apart)


def assert_whole(
    amp: Amp, module: torch.nn.Module, call: Callable[..., object], dtype: torch.dtype, bound: float
) -> None:
    """Compare a module of one lower precision, outside of regions, with float32 of the same numbers.

    `call` gets a function that returns a tensor in the dtype of the module.
    """
    held, found = {name: x.detach().clone() for name, x in module.state_dict().items()}, list[list[torch.Tensor]]()
    for kind in (torch.float32, dtype):
        module.to(dtype).load_state_dict(held)
        module.to(kind)
        amp.seed()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a module's advice on how to run faster
                made = tensors(call(lambda x: x.to(dtype).to(kind) if is_real(x) else x))  # noqa: B023  # called here
                found.append([x for x in made if x.is_floating_point()])
                if found[-1] and found[-1][0].requires_grad:
                    found[-1][0].float().square().sum().backward()
        except Exception as error:  # a module may raise anything
            if found and "not implemented for" not in str(error):
                amp.note_error(f"the module wholly in {dtype}", error)
            break
    else:
        wide, low = found
        amp.assert_equal(f"dtypes wholly in {dtype}", [x.dtype for x in low], [dtype] * len(wide))
        for place, (x, want) in enumerate(zip(low, wide, strict=False)):
            fine = want.isfinite()
            amp.assert_equal(f"shape of output {place}", x.shape, want.shape)
            if fine.any():
                step = bound * torch.finfo(dtype).eps
                amp.assert_close(
                    f"output {place} wholly in {dtype}", x[fine].detach().float(), want[fine].detach(), step
                )
    module.to(next((x.dtype for x in held.values() if x.is_floating_point()), torch.float32)).load_state_dict(held)
    module.zero_grad()


def assert_whole_module(amp: Amp, name: str) -> None:
    """Do so with a module of torch.nn, with the options and the inputs of PyTorch's database of modules."""
    info = next((x for x in internal("common_modules").module_db if x.name == f"nn.{name}"), None)
    if info is None:
        amp.unsupported(f"PyTorch's database of modules has no {name}")
    amp.unjudged = f"{name} refuses what the database gives it"
    options = {"device": amp.type, "dtype": torch.float32, "requires_grad": False}
    for mode, dtype in product((True, False), (amp.dtype, amp.other)):
        amp.seed()
        every = [x for x in info.module_inputs_func(info, training=mode, **options) if x.forward_input]
        for each in every[:: -(-len(every) // 24)]:
            made, given = each.constructor_input, each.forward_input
            module = amp.module(lambda: info.module_cls(*made.args, **made.kwargs)).train(mode)  # noqa: B023

            def call(low: Callable[[Any], Any], module: Any = module, given: Any = given) -> object:
                args, kwargs = pytree.tree_map(low, (given.args, given.kwargs))
                return module(*args, **kwargs)

            assert_whole(amp, module.requires_grad_(mode), call, dtype, 16.0)


def _tried(amp: Amp, program: str, given: dict[str, torch.Tensor]) -> Result:
    """Try every relation of a program; return what it gives, or raises, outside of a region."""
    one = _Relations(amp, _Program(program), 0, SimpleNamespace(input=given.pop("a"), args=(), kwargs=given))
    outside = _run(amp, one.plain_call, one.off)
    if isinstance(outside, Exception):
        return outside
    banned = _run(amp, one.plain_call, one.on)
    if isinstance(banned, Exception) and "unsafe to autocast" in str(banned):
        return banned  # the list of the device refuses the op
    before = (*amp.state(), amp.depth(), torch.is_grad_enabled(), torch.get_default_dtype())
    if not _derives(one.op):
        amp.assert_cast("the program", lambda: one.plain_call(nullcontext))
    for relation in (one.surroundings, one.forms, one.memory, one.derivatives, one.accuracy):
        relation()
    after = (*amp.state(), amp.depth(), torch.is_grad_enabled(), torch.get_default_dtype())
    amp.assert_equal("state of autocast, gradient mode and default dtype after the program", after, before)
    return outside
