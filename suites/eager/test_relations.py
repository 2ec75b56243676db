"""Rule relations: ways to ask for the same computation agree in a region, op by op of PyTorch's own op database.

Nobody says here what an op should do: each op is called in several ways that must not matter, and a difference that is
there without autocast, too, is the op's own and not autocast's. Each relation follows from a promise:

- `out`, `in_place`: such calls go through as they are, so a region around them changes nothing
  (https://docs.pytorch.org/docs/2.13/amp.html#autocast-eligibility).
- `method`, `no_grad`, `inference`: a function, a method and another gradient mode are the same op.
- `dtypes`: a policy looks at dtypes, never at shapes, so results of the same dtypes outside have the same ones inside.
- `memory`: what is written to arguments, and whether a result is a view of one, is the op's and not autocast's.
- `tangent`, `gradient`: where the result is that of float32, so is its derivative.
- `accuracy`: the error beside float64 is one that rounding of inputs and result to the lower precision explains.

A case runs every relation that its op has, on samples of the database as they are (`wide`), with a first argument that
is in the lower precision already (`low`), and on values that the database does not have (`large`, `small`, `moved`).
Nightly runs take all of them, other runs those of `wide`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from ampcheck.runner.suite import Amp, Product, scenario
from ampcheck.samples import op_database

pytestmark = pytest.mark.rule("relations")

Result = list[torch.Tensor] | Exception
Region = Callable[[], AbstractContextManager[object]]
Call = Callable[[Region], object]

HARDWARE = ("cpu", "cuda", "xpu", "mps", "mtia")
"""Device types whose kernels are compiled; what compiles a program for each call would take hours."""
SAMPLES, MOST = 12, 20_000
"""How many samples of an op are looked at, and the elements of the largest one."""
SHOWN = 2
"""On how many of them every relation is tried; `dtypes` needs more."""
ALLOWED = 8.0
"""How many times the error that rounding explains a result may be off: a kernel rounds its intermediate values, too."""

NAMES = sorted(name for name in op_database.rows() if "empty" not in name)
GIVEN = Product({"op": NAMES, "given": ("low", "large", "small", "moved")}, nightly=True)


# ---- running and comparing


def _run(amp: Amp, call: Call, region: Region) -> Result:
    """Return the tensors of a call, or what it raises, with the same random numbers each time."""
    amp.seed()
    try:
        made = [x for x in tree_leaves(call(region)) if isinstance(x, torch.Tensor)]
        return [amp.host(x.to_dense() if x.layout != torch.strided else x).clone() for x in made]
    except Exception as error:  # an op may raise anything
        return error


def _difference(got: Result, want: Result, tolerance: float = 0.0) -> str:
    """Say how two results differ; "" where they agree. Exceptions are not compared with each other."""
    if isinstance(got, Exception) or isinstance(want, Exception):
        if isinstance(got, Exception) and isinstance(want, Exception):
            return ""
        first, second = (f"{type(x).__name__}: {str(x)[:200]}" if isinstance(x, Exception) else "" for x in (got, want))
        return f"raised {first}" if first else f"raised nothing; the other way raised {second}"
    if [(x.dtype, x.shape) for x in got] != [(x.dtype, x.shape) for x in want]:
        shown = [", ".join(f"{x.dtype}{list(x.shape)}" for x in one) for one in (got, want)]
        return f"gave {shown[0]}; the other way gave {shown[1]}"
    for place, (x, y) in enumerate(zip(got, want, strict=True)):
        if x.is_quantized or not x.numel():
            continue
        wide = torch.complex128 if x.is_complex() else torch.float64
        x, y = x.to(wide), y.to(wide)
        finite = x.isfinite() & y.isfinite()
        if not torch.equal(x.isfinite(), y.isfinite()):
            counts = int(x.isfinite().sum()), int(y.isfinite().sum())
            return f"gave {counts[0]} finite values in output {place}; the other way gave {counts[1]}"
        if not finite.any():
            continue
        far, largest = (x - y)[finite].abs().max().item(), y[finite].abs().max().item()
        if far > tolerance * largest:
            part = far / largest if largest else float("inf")
            return f"is off by {part:.2g} of the largest value of output {place}; at most {tolerance:.2g} is expected"
    return ""


class _Relations:
    """An op's sample and the ways to call it."""

    def __init__(self, amp: Amp, op: Any, number: int, sample: Any) -> None:
        self.amp, self.op, self.number = amp, op, number
        self.args, self.kwargs = (sample.input, *sample.args), sample.kwargs

    def off(self) -> AbstractContextManager[object]:
        """Return a region that is disabled."""
        return self.amp.region(enabled=False)

    def on(self) -> AbstractContextManager[object]:
        """Return a region of the lower precision."""
        return self.amp.region()

    def fresh(self, *, grad: bool = False, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
        """Return the arguments anew; `dtype` replaces float32."""

        def one(x: object) -> object:
            if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
                return x
            made = x.detach().clone()
            made = made.to(dtype) if dtype is not None and made.dtype == torch.float32 else made
            return made.requires_grad_(grad and (made.is_floating_point() or made.is_complex()))

        return tree_map(one, (self.args, self.kwargs))

    def inside(self, function: Any, *, outside: bool = False) -> Call:
        """Return a call of a function on fresh arguments in the region; `outside`: in none."""

        def call(region: Region) -> object:
            args, kwargs = self.fresh()
            with self.off() if outside else region():
                return function(*args, **kwargs)

        return call

    def agree(self, what: str, way: Call, reference: Call, tolerance: float = 0.0) -> None:
        """Note a difference of two ways in a region that they do not have in a disabled one."""
        amp, on, off = self.amp, self.on, self.off
        want = _run(amp, reference, on)
        if _difference(_run(amp, reference, on), want):
            return  # random numbers that no seed decides, or memory that nothing wrote
        found = _difference(_run(amp, way, on), want, tolerance)
        if found and _difference(_run(amp, way, off), _run(amp, reference, off), max(tolerance, 1e-4)):
            return
        amp.check(not found, f"{what} of sample {self.number}", found or "agrees")

    # ---- relations

    def forms(self) -> None:
        """Compare function, method, in-place form, out= and gradient modes."""
        op, amp = self.op, self.amp
        plain = self.inside(op.op)
        first = isinstance(self.args[0], torch.Tensor)
        if op.get_method() and first:
            self.agree("method", self.inside(op.get_method()), plain)
        if op.get_inplace() and first:
            self.agree("in_place", self.inside(op.get_inplace()), self.inside(op.get_inplace(), outside=True))
        for name, mode in (("no_grad", torch.no_grad), ("inference", torch.inference_mode)):
            self.agree(name, lambda region, mode=mode: mode()(lambda: plain(region))(), plain)
        right = _run(amp, self.inside(op.op, outside=True), self.on)
        if op.supports_out and not isinstance(right, Exception) and len(right) == 1:
            dtype, shape = right[0].dtype, right[0].shape

            def out(region: Region, *, outside: bool = False) -> object:
                args, kwargs = self.fresh()
                made = torch.zeros(shape, dtype=dtype, device=amp.type)
                with self.off() if outside else region():
                    return op.op(*args, **kwargs, out=made)

            self.agree("out", out, lambda region: out(region, outside=True))

    def memory(self) -> None:
        """Compare what a call writes to its arguments, and which results share their memory."""

        def call(region: Region) -> object:
            args, kwargs = self.fresh()
            given = [
                x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.layout == torch.strided
            ]
            with region():
                out = self.op.op(*args, **kwargs)
            results = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.layout == torch.strided]
            held = [x.untyped_storage().data_ptr() for x in given]
            shared = [[x.untyped_storage().data_ptr() == at != 0 for at in held] for x in results]
            return [torch.tensor(shared), *given]

        if not isinstance(_run(self.amp, call, self.off), Exception):  # the casts of a region may make a call possible
            self.agree("memory", call, lambda region: call(self.off))

    def derivatives(self) -> None:
        """Compare tangents and gradients with those outside, where the result is that of float32."""
        outside = _run(self.amp, self.inside(self.op.op, outside=True), self.on)
        if _difference(_run(self.amp, self.inside(self.op.op), self.on), outside, 1e-5) or isinstance(
            outside, Exception
        ):
            return
        if self.op.supports_forward_ad:
            self.agree("tangent", self.tangent, lambda region: self.tangent(self.off), 1e-3)
        if self.op.supports_autograd:
            self.agree("gradient", self.gradient, lambda region: self.gradient(self.off), 1e-3)

    def tangent(self, region: Region) -> object:
        """Return the tangents of the results for tangents of ones."""
        args, kwargs = self.fresh()
        with forward_ad.dual_level():
            dual = tree_map(lambda x: forward_ad.make_dual(x, torch.ones_like(x)) if _is_real(x) else x, args)
            with region():
                out = self.op.op(*dual, **kwargs)
            made = [forward_ad.unpack_dual(x).tangent for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
            return [x.clone() for x in made if x is not None]

    def gradient(self, region: Region, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """Return the results and the gradients of the arguments; the backward pass is outside of the region."""
        args, kwargs = self.fresh(grad=True, dtype=dtype)
        with region():
            out = [x for x in tree_leaves(self.op.op(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        roots = [x for x in out if x.requires_grad]
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not roots or not leaves:
            return out
        ones = [torch.ones_like(x) for x in roots]
        return [*out, *(x for x in torch.autograd.grad(roots, leaves, ones, allow_unused=True) if x is not None)]

    def accuracy(self) -> None:
        """Compare results and gradients in a region with float64's: rounding must explain how far they are."""
        amp = self.amp
        rounded = _Relations(amp, self.op, self.number, _Rounded(self.args, self.kwargs, amp.dtype))
        call = self.gradient if self.op.supports_autograd else lambda region, dtype=None: self.plain(region, dtype)
        nudge = (
            rounded.gradient if self.op.supports_autograd else lambda region, dtype=None: rounded.plain(region, dtype)
        )
        exact = _run(amp, lambda _: call(self.off, torch.float64), self.on)
        moved = _run(amp, lambda _: nudge(self.off, torch.float64), self.on)
        single = _run(amp, lambda _: nudge(self.off), self.on)
        got = _run(amp, lambda region: call(region), self.on)
        if isinstance(exact, Exception) or isinstance(moved, Exception) or isinstance(single, Exception):
            return
        if _difference([x.double() if x.is_floating_point() else x for x in single], moved, 1e-2):
            return  # random, or float32 itself is not enough
        if isinstance(got, Exception):
            amp.check(False, f"accuracy of sample {self.number}", f"raised {type(got).__name__}: {str(got)[:200]}", got)
            return
        if not len(exact) == len(moved) == len(got):
            return
        most, eps = torch.finfo(amp.dtype).max, torch.finfo(amp.dtype).eps
        for place, (x, y, z) in enumerate(zip(exact, moved, got, strict=True)):
            if x.dtype != torch.float64 or x.shape != z.shape or not x.numel() or not z.is_floating_point():
                continue
            what = f"accuracy of output {place} of sample {self.number}"
            lost = x.isfinite() & y.isfinite() & (y.abs() < most / 4) & ~z.isfinite()
            if lost.any():
                amp.check(
                    False, what, f"gave {z[lost][0].item()} in {z.dtype} where float64 gives {x[lost][0].item():.4g}"
                )
                continue
            fine = x.isfinite() & y.isfinite() & z.isfinite()
            if not fine.any():
                continue
            allowed = ALLOWED * max(((x - y)[fine].abs().max() + eps * x[fine].abs().max()).item(), 1e-5)
            far = (z.double() - x)[fine].abs().max().item()
            amp.check(far <= allowed, what, f"is off by {far:.2g}; rounding explains {allowed:.2g}")

    def rounds_inside(self) -> bool:
        """Tell whether the op is made of several, one of which rounds to the lower precision what another one takes."""
        args, kwargs = self.fresh()
        with self.on():
            seen = self.amp.observe(lambda: self.op.op(*args, **kwargs)).kernels
        return len(seen) > 1 and any(self.amp.policies.get(kernel.overload) == "downcast" for kernel in seen)

    def plain(self, region: Region, dtype: torch.dtype | None = None) -> object:
        """Return the results of a call on arguments in which a dtype replaces float32."""
        args, kwargs = self.fresh(dtype=dtype)
        with region():
            return self.op.op(*args, **kwargs)


class _Rounded:
    """A sample whose float32 tensors hold values of a lower precision."""

    def __init__(self, args: tuple[object, ...], kwargs: dict[str, object], low: torch.dtype) -> None:
        first, *rest = tree_map(lambda x: x.to(low).to(x.dtype) if _is_real(x) else x, args)
        self.input, self.args = first, tuple(rest)
        self.kwargs = tree_map(lambda x: x.to(low).to(x.dtype) if _is_real(x) else x, kwargs)


def _is_real(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout == torch.strided


def _assert_dtypes(amp: Amp, op: Any, samples: list[Any]) -> None:
    """Note samples of the same dtypes, which give the same dtypes outside, that give several inside."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    for number, sample in enumerate(samples):
        one = _Relations(amp, op, number, sample)
        inside, outside = (_run(amp, one.inside(op.op, outside=out), one.on) for out in (False, True))
        if isinstance(inside, Exception) or isinstance(outside, Exception):
            continue
        kinds = [getattr(x, "dtype", type(x).__name__) for x in tree_leaves((one.args, one.kwargs))]
        shapes = tree_map(lambda x: tuple(x.shape) if isinstance(x, torch.Tensor) else x, (one.args, one.kwargs))
        key = f"{kinds} {[x.dtype for x in outside]}"
        seen[key].setdefault(", ".join(str(x.dtype) for x in inside), f"{shapes[0]} {shapes[1]}")
    for found in seen.values():
        said = "; ".join(f"{dtypes} for shapes {shapes}" for dtypes, shapes in sorted(found.items()))
        amp.check(len(found) == 1, "dtypes of the results", f"gave {said}")


def _samples(amp: Amp, op: Any, given: str) -> list[Any]:
    """Return small samples of an op, with other values or another dtype of the first argument."""
    change: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "large": lambda x: x * 30,
        "small": lambda x: x * 1e-4,
        "moved": lambda x: x + 100,
        "wide": lambda x: x,
        "low": lambda x: x,
    }
    made = [x for x in amp.op_samples(op, torch.float32, SAMPLES) if _size(x) <= MOST]
    for sample in made:
        changed = tree_map(lambda x: change[given](x) if _is_real(x) else x, (sample.input, sample.args, sample.kwargs))
        sample.input, sample.args, sample.kwargs = changed
        if given == "low":
            sample.input = tree_map(lambda x: x.to(amp.dtype) if _is_real(x) else x, sample.input)
    return made


def _size(sample: Any) -> int:
    tensors = (x for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, torch.Tensor))
    return sum(x.numel() for x in tensors)


def _assert_relations(amp: Amp, name: str, given: str) -> None:
    op = amp.op_info(name)
    if op is None or torch.float32 not in op.supported_dtypes(amp.type):
        amp.unsupported(f"the op database has no float32 samples of {name} for {amp.type}")
    samples = _samples(amp, op, given)
    if not samples:
        amp.unsupported(f"{name} has no small samples")
    _assert_dtypes(amp, op, samples)
    places = sorted({round(k * (len(samples) - 1) / max(SHOWN - 1, 1)) for k in range(SHOWN)})
    for number in places:
        one = _Relations(amp, op, number, samples[number])
        one.forms()
        one.memory()
        if given in (
            "wide",
            "large",
        ):  # a result hardly depends on small arguments, and outside a low one is less exact
            one.derivatives()
        if torch.float64 in op.supported_dtypes(amp.type) and (given == "wide" or not one.rounds_inside()):
            one.accuracy()


# ---- siblings

FAMILIES: dict[str, dict[str, str]] = {
    "product": {
        "matmul": "a @ b",
        "mm": "a.mm(b)",
        "einsum": 'torch.einsum("ij,jk", a, b)',
        "tensordot": "torch.tensordot(a, b, 1)",
        "linear": "F.linear(a, b.mT)",
        "bmm": "torch.bmm(a[None], b[None])[0]",
        "addmm": "torch.addmm(zero, a, b)",
        "multi_dot": "torch.linalg.multi_dot([a, b])",
        "inner": "torch.inner(a, b.mT)",
        "conv1d": "F.conv1d(b.mT[..., None], a[..., None])[..., 0].mT",
    },
    "matrix_vector": {
        "matmul": "a @ v",
        "mv": "a.mv(v)",
        "einsum": 'torch.einsum("ij,j", a, v)',
        "linear": "F.linear(v, a)",
        "addmv": "torch.addmv(v * 0, a, v)",
        "inner": "torch.inner(a, v)",
    },
    "dot": {"matmul": "v @ v", "dot": "v.dot(v)", "vdot": "torch.vdot(v, v)", "inner": "torch.inner(v, v)"},
    "outer": {"einsum": 'torch.einsum("i,j", v, v)', "outer": "torch.outer(v, v)", "addr": "torch.addr(zero, v, v)"},
    "convolution": {
        "conv2d": "F.conv2d(image, kernel)",
        "convolution": "torch.convolution(image, kernel, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)",
        "conv3d": "F.conv3d(image[:, :, None], kernel[:, :, None])[:, :, 0]",
    },
    "transposed": {
        "conv_transpose2d": "F.conv_transpose2d(image, kernel)",
        "convolution": "torch.convolution(image, kernel, None, (1, 1), (0, 0), (1, 1), True, (0, 0), 1)",
    },
    "attention": {
        "function": "F.scaled_dot_product_attention(t, t, t)",
        "formula": "torch.softmax(t @ t.mT / 2, -1) @ t",
    },
    "norm": {
        "norm": "a.norm()",
        "linalg": "torch.linalg.vector_norm(a)",
        "matrix": "torch.linalg.matrix_norm(a)",
        "total": "torch.nn.utils.get_total_norm([a])",
    },
    "softmax": {
        "function": "F.softmax(a, -1)",
        "special": "torch.special.softmax(a, -1)",
        "module": "torch.nn.Softmax(-1)(a)",
    },
    "loss": {
        "cross_entropy": "F.cross_entropy(a, classes)",
        "nll": "F.nll_loss(F.log_softmax(a, -1), classes)",
        "module": "torch.nn.CrossEntropyLoss()(a, classes)",
        "soft": "F.cross_entropy(a, F.one_hot(classes, 4).float())",
    },
    "inverse": {
        "inv": "torch.linalg.inv(s)",
        "inverse": "torch.inverse(s)",
        "solve": "torch.linalg.solve(s, eye)",
        "pinv": "torch.linalg.pinv(s)",
        "pinverse": "torch.pinverse(s)",
        "power": "torch.linalg.matrix_power(s, -1)",
    },
    "variance": {"var": "a.var()", "var_mean": "torch.var_mean(a)[0]", "cov": "torch.cov(a.flatten())"},
    "bilinear": {
        "function": "F.bilinear(a, b, eye[None])",
        "einsum": 'torch.einsum("bi,oij,bj->bo", a, eye[None], b)',
        "formula": "((a @ eye) * b).sum(-1, True)",
    },
}
"""Ways to write one computation, by family: expressions of the tensors that `_tensors` makes."""
PAIRS = [(family, name) for family, ways in FAMILIES.items() for name in list(ways)[1:]]


def _tensors(amp: Amp) -> dict[str, object]:
    eye = torch.eye(4).to(amp.type)
    return {
        "torch": torch,
        "F": torch.nn.functional,
        "a": amp.rand(4, 4),
        "b": amp.rand(4, 4),
        "v": amp.rand(4),
        "t": amp.rand(2, 3, 4),
        "s": amp.rand(4, 4) + 4 * eye,
        "eye": eye,
        "zero": eye * 0,
        "image": amp.rand(1, 2, 6, 6),
        "kernel": amp.rand(2, 2, 3, 3),
        "classes": torch.arange(4).to(amp.type),
    }


@pytest.mark.parametrize(("family", "way"), PAIRS, ids=[f"{family}-{name}" for family, name in PAIRS])
@scenario(types=HARDWARE, values=True)
def test_siblings(amp: Amp, family: str, way: str) -> None:
    """Two ways to write one computation give one dtype in a region, and values that rounding explains."""
    made = _tensors(amp)
    first = next(iter(FAMILIES[family]))
    with amp.region():
        got, want = (eval(FAMILIES[family][name], made) for name in (way, first))  # our own expressions
    amp.assert_equal(f"dtype of {family} by {way} and by {first}", got.dtype, want.dtype)
    far = 8 * torch.finfo(amp.dtype).eps * max(1.0, amp.host(want).abs().max().item())
    amp.assert_close(f"{family} by {way} and by {first}", got.float(), want.float(), far)


# ---- ops of the database


@scenario(op=NAMES, types=HARDWARE, values=True, dtypes="default")
def test_wide(amp: Amp, op: str) -> None:
    """Every way to call an op agrees in a region, on samples of the database as they are."""
    _assert_relations(amp, op, "wide")


@GIVEN.cells
@scenario(types=HARDWARE, values=True)
def test_given(amp: Amp, op: str, given: str) -> None:
    """Every way to call an op agrees in a region, on a low first argument and on values the database does not have."""
    _assert_relations(amp, op, given)
