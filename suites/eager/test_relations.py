"""Rule relations: ways to ask for the same computation agree in a region, op by op of PyTorch's own op database.

Nobody says here what an op should do: each op is called in several ways that must not matter, and a difference that is
there without autocast, too, is the op's own and not autocast's. Each relation follows from a promise:

- `out`, `in_place`: such calls go through as they are, so a region around them changes nothing
  (https://docs.pytorch.org/docs/2.13/amp.html#autocast-eligibility).
- forms, `no_grad`, `inference`: a function, a method, an operator, an alias and another gradient mode are the same op.
- `dtypes`: a policy looks at dtypes, never at shapes, so results of the same dtypes outside have the same ones inside.
- `memory`: what is written to arguments, and whether a result is a view of one, is the op's and not autocast's.
- `tangent`, `gradient`: where the result is that of float32, so is its derivative. A tangent has its result's dtype.
- `pieces`: an elementwise op gives an element among others what it gives it alone, whatever vectors a kernel uses.
- `accuracy`: the error beside float64 is one that rounding of inputs and result to the lower precision explains.
- `rounded`: so is that of a kernel that gets the lower precision, beside float64 of the same numbers.
- `strided`, `zero`, `huge`: so it is in other memory, of zero, and of numbers whose sums overflow.
- `scaled`: results and gradients that the lower precision holds are neither infinite nor zero, at four magnitudes
  of arguments, and with gradients of results that are scaled, as by a GradScaler.
- `sized`: so it is of one element and of thousands, in a region and outside of one, and compiled by Inductor.
- `drawn`: random numbers in the lower precision have float64's distribution, but for rounding.
- `compiled_surface`: a program gives compiled what it gives in eager mode.
- `counted`: an op of real numbers and integers has derivatives as with real numbers alone.
- `cast`: a cast gives the nearest number that a dtype holds, by every way to write it and whatever vectors it uses.
- `written`: a low op gives the same however it is written, and to what is given as out=.
- `infinite`: where a low argument is infinite or nan, so are the results that are in float64, of its formula, too.

A case runs every relation that its op has, on samples of the database as they are (`wide`), with a first argument that
is in the lower precision already (`low`), in other memory, too, and on values that the database does not have (`large`,
`small`, `moved`). Nightly runs take all of them, with those of kernels; other runs take those of `wide`, and on
a device that compiles each op none.
"""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from ampcheck.checks.casts import assert_cast, each
from ampcheck.checks.relations import (
    MOVED,
    assert_compiled,
    assert_compiled_sized,
    assert_counted,
    assert_drawn,
    assert_kernel,
    assert_pieces,
    assert_program,
    assert_relations,
    assert_sized,
    assert_varied,
    elementwise,
    low_kernels,
)
from ampcheck.runner.suite import Amp, Product, scenario
from ampcheck.samples import op_database, surface

pytestmark = pytest.mark.rule("relations")

NAMES = sorted(name for name in op_database.rows() if "empty" not in name)
GIVEN = Product({"op": NAMES, "given": ("low", "large", "small", "moved")}, nightly=True)
STEPS = {"histc", "grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"}
"""Ops whose results step: a rounding decides into which bin a number falls, and which pixel is the nearest."""
KERNELS = Product({"op": sorted({*low_kernels()} - STEPS), "given": ("rounded", "infinite", "written")}, nightly=True)
INSIDE = {
    "strided": {"matrix_exp"},
    "zero": {"matrix_exp", "atan2", "native_group_norm", "nn.functional.triplet_margin_with_distance_loss"},
    "huge": {"matrix_exp", "cross", "linalg.cross", "nn.functional.cosine_embedding_loss"}
    | {"native_layer_norm", "nn.functional.layer_norm"},
}
REASONS = {"it squares, or multiplies before it subtracts": lambda cell: cell["op"] in INSIDE.get(cell["given"], ())}
CHANGED = Product({"op": sorted({*low_kernels()} - STEPS), "given": (*MOVED, "scaled")}, REASONS, nightly=True)


# ---- siblings
TABLE = Path(__file__).with_name("siblings.toml").read_text(encoding="utf-8")
PAIRS = [
    pytest.param(family, name, first, {name: call, first: ways[first]}, id=f"{family}-{name}")
    for family, ways in tomllib.loads(TABLE).items()
    for (first, *_) in [ways]
    for name, call in ways.items()
    if name != first
]
"""Two ways to write one computation, by name: expressions of the tensors that `_tensors` makes."""


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


@pytest.mark.parametrize(("family", "way", "first", "calls"), PAIRS)
@scenario(values=True, database=True)
def test_siblings(amp: Amp, family: str, way: str, first: str, calls: dict[str, str]) -> None:
    """Two ways to write one computation give one dtype in a region, and values that rounding explains."""
    made = _tensors(amp)
    with amp.region():
        got, want = (eval(calls[name], made) for name in (way, first))  # our own expressions
    amp.assert_equal(f"dtype of {family} by {way} and by {first}", got.dtype, want.dtype)
    far = 8 * torch.finfo(amp.dtype).eps * max(1.0, amp.host(want).abs().max().item())
    amp.assert_close(f"{family} by {way} and by {first}", got.float(), want.float(), far)


# ---- the rest of what a user can call
REPEATED, BESIDE = surface.repeated(), surface.neighbours()
PROGRAMS = [
    pytest.param(text, id=name, marks=[pytest.mark.nightly] if name in REPEATED | BESIDE else [])
    for name, text in surface.programs().items()
]
"""Of names that have one program, runs take the first, and every second one of a line; nightly ones all."""
OPTIONS = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
SIZES = tomllib.loads(Path(__file__).with_name("sizes.toml").read_text(encoding="utf-8"))
NOISY = {name for name in surface.programs() if re.search("fuse_(modules|conv_bn_relu|modules_qat)$|ConvBnReLU", name)}
"""The sum of what a batch norm gives has no gradient but rounding."""
ONCE = [
    pytest.param(text, id=name, marks=[pytest.mark.nightly])
    for name, text in surface.programs().items()
    if name not in REPEATED | NOISY
]


@scenario(values=True, database=True, dtypes="default", call=PROGRAMS)
def test_surface(amp: Amp, call: str) -> None:
    """Every way to run a program agrees in a region, for all of torch's surface that no database of PyTorch has."""
    assert_program(amp, call)


@scenario(types=("cpu",), values=True, database=True, dtypes="default", call=ONCE)
def test_surface_varied(amp: Amp, call: str) -> None:
    """So they do with inputs in the lower precision, and with each option of what a program calls off its default."""
    assert_varied(amp, call, OPTIONS)


@scenario(types=("cpu",), values=True, database=True, dtypes="default", call=ONCE, backend=["aot_eager", "inductor"])
def test_compiled_surface(amp: Amp, call: str, backend: str) -> None:
    """A program gives compiled what it gives in eager mode, in a region as outside of one."""
    assert_compiled(amp, call, backend)


# ---- sizes
SIZED = [
    pytest.param(call, rows["shapes"], id=f"{family}-{name}")
    for family, rows in SIZES.items()
    for name, call in rows.items()
    if name != "shapes"
]


@pytest.mark.nightly
@pytest.mark.parametrize(("call", "shapes"), SIZED)
@scenario(values=True, database=True)
def test_sized(amp: Amp, call: str, shapes: list[list[int]]) -> None:
    """A kernel of one element, or of thousands, gives what float64 does of the same numbers, but for rounding."""
    assert_sized(amp, call, shapes)


@pytest.mark.nightly
@pytest.mark.parametrize(("call", "shapes"), SIZED)
@scenario(types=("cpu",), values=True, database=True, dtypes="default")
def test_compiled_sized(amp: Amp, call: str, shapes: list[list[int]]) -> None:
    """So does what Inductor writes for it."""
    assert_compiled_sized(amp, call, shapes)


DRAWS = tomllib.loads(Path(__file__).with_name("draws.toml").read_text(encoding="utf-8"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("call", "never"), [pytest.param(call, never, id=name) for name, (call, *never) in DRAWS.items()]
)
@scenario(values=True)
def test_drawn(amp: Amp, call: str, never: list[float]) -> None:
    """Random numbers in the lower precision have the distribution of float64's, but for rounding."""
    assert_drawn(amp, call, never)


EIGHT = tuple(f"float8_{kind}" for kind in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0fnu"))
FLOATS = ("float32", "float16", "bfloat16", *EIGHT)
CASTS = Product({"source": FLOATS, "target": FLOATS}, nightly=True)
WAYS = tomllib.loads(Path(__file__).with_name("casts.toml").read_text(encoding="utf-8"))


@scenario(CASTS, types=("cpu", "cuda"), values=True, dtypes="default")
def test_cast(amp: Amp, source: str, target: str) -> None:
    """A cast rounds to the nearest number of a dtype, and so do all ways to write it, alone and among many."""
    ways = {name: eval(f"lambda x, to: {way}", {"torch": torch, "each": each}) for name, way in WAYS.items()}
    assert_cast(amp, getattr(torch, source), getattr(torch, target), ways)


@pytest.mark.nightly
@scenario(types=("cpu",), values=True, dtypes="default", source=["float32", "bfloat16"], target=FLOATS[1:])
def test_compiled_cast(amp: Amp, source: str, target: str) -> None:
    """So does what Inductor writes for it."""
    compiled = torch.compile(lambda x, to: x.to(to), dynamic=False)
    assert_cast(amp, getattr(torch, source), getattr(torch, target), {"compiled": compiled})


# ---- ops of the database
@scenario(op=NAMES, values=True, database=True, dtypes="default")
def test_wide(amp: Amp, op: str) -> None:
    """Every way to call an op agrees in a region, on samples of the database as they are."""
    assert_relations(amp, op, "wide")


@scenario(GIVEN, values=True, database=True)
def test_given(amp: Amp, op: str, given: str) -> None:
    """Every way to call an op agrees in a region, on a low first argument and on values the database does not have."""
    assert_relations(amp, op, given)


@scenario(KERNELS, values=True, database=True)
def test_kernel(amp: Amp, op: str, given: str) -> None:
    """A kernel that gets the lower precision gives what float64 does of the same numbers, but for rounding."""
    assert_kernel(amp, op, given)


@scenario(CHANGED, types=("cpu", "cuda"), values=True, database=True)
def test_changed(amp: Amp, op: str, given: str) -> None:
    """So does one of zero, of numbers near the end of its dtype, in other memory, or of another magnitude."""
    assert_kernel(amp, op, given)


@scenario(Product({"op": NAMES}, nightly=True), types=("cpu", "cuda"), values=True, database=True, dtypes="default")
def test_counted(amp: Amp, op: str) -> None:
    """An op that takes integers beside real numbers has derivatives, and tangents of its results' dtypes."""
    assert_counted(amp, op)


@scenario(op=elementwise(), values=True, database=True, dtypes="default")
def test_pieces(amp: Amp, op: str) -> None:
    """An elementwise op gives an element of a long tensor in the lower precision what it gives that element alone."""
    assert_pieces(amp, op)
