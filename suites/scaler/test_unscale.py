"""Rule unscale: gradients are multiplied by the inverse of the scale, each once and in its own dtype.

Any that is not finite is found. Parts: the device's op, `_amp_foreach_non_finite_check_and_unscale_`, whose gradients
of more elements than a block of a kernel has are the product `LARGE`; `GradScaler.unscale_`. Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler.unscale_.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from ampcheck.runner.suite import Amp, Product, named, other_than, scenario, where

pytestmark = pytest.mark.rule("unscale")

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = ("half", "brain", "single", "double")
DTYPES, BAD = named(**dict(zip(NAMES, FLOATING, strict=True))), named(inf="inf", minus_inf="-inf", nan="nan")
INF, NAN = float("inf"), float("nan")
SIZES = (0, 1, 2, 3, 5, 8, 9, 15, 17, 31, 33, 65, 129, 1023, 1025)


def _ramp(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of either sign whose quarter every dtype holds, and more digits where the dtype has them."""
    return (((torch.arange(size) * 7) % 61 - 30) / 8 + (0.0 if dtype.itemsize == 2 else 1 / 3)).to(dtype)


def _on_device(amp: Amp, host: torch.Tensor) -> torch.Tensor:
    return host.to(amp.type, copy=True)


def _unscaled(grad: torch.Tensor, inverse: float) -> torch.Tensor:
    """Return a gradient multiplied in float32 or wider and rounded once to its own dtype."""
    return (grad.to(torch.promote_types(grad.dtype, torch.float32)) * torch.tensor(inverse)).to(grad.dtype)


def _unscale(amp: Amp, grads: Sequence[torch.Tensor], inverse: float, found: float = 0.0) -> torch.Tensor:
    """Run the device's op on the gradients. Returns what `found_inf`, which holds `found` before, is afterwards."""
    found_inf = torch.full((), found, device=amp.type)
    torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found_inf, torch.full((), inverse, device=amp.type))
    return found_inf


@scenario(dtype=DTYPES, inverse=named(quarter=0.25, third=1 / 3), values=True, dtypes="default")
def test_sizes(amp: Amp, dtype: torch.dtype, inverse: float) -> None:
    """Every element of a gradient of any size is multiplied, in its own dtype (AmpKernels.cu; pytorch#127176)."""
    for sizes in (SIZES, (1025,)):
        grads = [_on_device(amp, _ramp(size, dtype)) for size in sizes]
        amp.assert_equal(f"found_inf of {sizes} finite elements", _unscale(amp, grads, inverse).item(), 0.0)
        for size, grad in zip(sizes, grads, strict=True):
            amp.assert_identical(f"gradient of {size} elements", grad, _unscaled(_ramp(size, dtype), inverse))


@scenario(dtype=DTYPES, bad=BAD, values=True, dtypes="default")
def test_each_place(amp: Amp, dtype: torch.dtype, bad: str) -> None:
    """One infinity or nan is found at any place, and the rest multiplied (test_torch, grad_scaling_unscale)."""
    for size, places in ((1, (0,)), (19, range(19)), (1025, (0, 511, 1023, 1024))):
        for place in places:
            host = _ramp(size, dtype)
            host[place] = float(bad)
            grad = _on_device(amp, host)
            amp.assert_equal(f"found_inf with {bad} at {place} of {size}", _unscale(amp, [grad], 0.25).item(), 1.0)
            got, rest = amp.host(grad), torch.arange(size) != place
            amp.assert_equal(f"what {bad} at {place} of {size} became", repr(got[place].item()), bad)
            amp.assert_equal(f"the rest of {size} elements", got[rest].equal(_unscaled(host, 0.25)[rest]), True)


@scenario(count=[2, 29, 111, 150], values=True, dtypes="default")
def test_many(amp: Amp, count: int) -> None:
    """No gradient of a long list is left out, first, last or where a list is split for the device (AmpKernels.cu)."""
    wholes = [_ramp(1 + n % 5) for n in range(count)]
    grads = [_on_device(amp, whole) for whole in wholes]
    amp.assert_equal("found_inf of finite gradients", _unscale(amp, grads, 0.25).item(), 0.0)
    for n, (grad, whole) in enumerate(zip(grads, wholes, strict=True)):
        amp.assert_identical(f"gradient {n} of {count}", grad, _unscaled(whole, 0.25))
    for n in {0, 1, count // 2, count - 2, count - 1}:
        hosts = [whole.clone() for whole in wholes]
        hosts[n][-1] = INF
        grads = [_on_device(amp, host) for host in hosts]
        found = _unscale(amp, grads, 0.25).item()
        amp.assert_equal(f"found_inf with an infinity in gradient {n} of {count}", found, 1.0)


PLACES: dict[str, Callable[[int], int]] = {
    "first": lambda size: 0,
    "middle": lambda size: 4096 if size > 4096 else size // 2,
    "last": lambda size: size - 1,
}
"""Where in a large gradient what is not finite lies; 4096 is where a vector or a chunk of many kernels ends."""

LARGE = Product(
    {
        "size": ("4096", "4097", "65537"),
        "dtype": NAMES,
        "bad": ("none", "inf", "minus_inf", "nan"),
        "place": tuple(PLACES),
        "beside": ("alone", "many_before", "many_after", "many_large"),
        "layout": ("whole", "column"),
    },
    {"nothing is at a place": where(bad="none", place=other_than("first"))},
)


@scenario(LARGE, values=True, dtypes="default")
def test_large(amp: Amp, size: str, dtype: str, bad: str, place: str, beside: str, layout: str) -> None:
    """One infinity or nan is found wherever in a large gradient it is, alone or among many (AmpKernels.cu)."""
    kind, count, where = FLOATING[NAMES.index(dtype)], int(size), PLACES[place](int(size))
    hosts = {"many_before": 60, "many_after": 60, "many_large": 3}.get(beside, 0) * [_ramp(7, kind)]
    hosts = [_ramp(5000, kind) for _ in hosts] if beside == "many_large" else hosts
    host = _ramp(count, kind)
    if bad != "none":
        host[where] = float(bad.replace("minus_", "-"))
    hosts = [host, *hosts] if beside == "many_after" else [*hosts, host]
    number = 0 if beside == "many_after" else len(hosts) - 1
    grads = [_on_device(amp, each) for each in hosts]
    if layout == "column":
        grads[number] = _on_device(amp, torch.stack([host, host], 1))[:, 0]
    found = _unscale(amp, grads, 0.25)
    amp.assert_equal(f"found_inf with {bad} at {where} of {count}", found.item(), float(bad != "none"))
    for each, (grad, given) in enumerate(zip(grads, hosts, strict=True)):
        got, want = amp.host(grad), _unscaled(given, 0.25)
        finite = given.isfinite()
        amp.assert_equal(f"whether gradient {each} is multiplied", got[finite].equal(want[finite]), True)


@scenario(place=["first", "last", "only", "between"], values=True, dtypes="default")
def test_empty(amp: Amp, place: str) -> None:
    """A gradient without elements does not keep the others of its list from being unscaled (AmpKernels.cu)."""
    empty, full = torch.zeros(0, 3), _ramp(5)
    hosts = {"first": [empty, full], "last": [full, empty], "only": [empty], "between": [full, empty, full]}[place]
    grads = [_on_device(amp, host) for host in hosts]
    amp.assert_equal("found_inf", _unscale(amp, grads, 0.25).item(), 0.0)
    for grad, host in zip(grads, hosts, strict=True):
        amp.assert_identical(f"a gradient of {list(host.shape)}", grad, _unscaled(host, 0.25))
    grads = [_on_device(amp, host).fill_(NAN) for host in hosts]
    amp.assert_equal("found_inf of nan", _unscale(amp, grads, 0.25).item(), float(place != "only"))


@scenario(values=True, dtypes="default")
def test_no_gradients(amp: Amp) -> None:
    """An empty list of gradients changes nothing (AmpKernels.cu)."""
    for found in (0.0, 1.0):
        amp.assert_equal(f"found_inf that was {found}", _unscale(amp, [], 0.25, found).item(), found)


LAYOUTS = {
    "columns": lambda base: base[:, :, ::2],
    "rows": lambda base: base[:, 1::2],
    "transposed": lambda base: base.transpose(1, 3),
    "channels_last": lambda base: base.contiguous(memory_format=torch.channels_last),
    "offset": lambda base: base.reshape(-1)[7:200],
    "permuted_slice": lambda base: base.permute(3, 0, 2, 1)[1:, :, ::3],
    "scalar": lambda base: base[1, 2, 3, 4],
    "diagonal": lambda base: base[0].diagonal(dim1=1, dim2=2),
    "one_element": lambda base: base[:1, :1, :1, :1],
}


@scenario(layout=LAYOUTS, values=True, dtypes="default")
def test_layout(amp: Amp, layout: str) -> None:
    """A view is unscaled where it lies, keeps its strides, and what lies between its elements is left alone.

    test_torch, test_grad_scaling_unscale, has some of these layouts; the device may take another path for each.
    """
    base = _on_device(amp, _ramp(240).reshape(2, 4, 6, 5))
    untouched = amp.host(base).clone()
    grad, host = LAYOUTS[layout](base), LAYOUTS[layout](untouched.clone())
    strides = grad.stride()
    found = _unscale(amp, [grad], 0.25)
    amp.assert_identical("the view", grad, _unscaled(host, 0.25))
    amp.assert_equal("strides of the view", grad.stride(), strides)
    amp.assert_equal("found_inf", found.item(), 0.0)
    if layout != "channels_last":  # a copy of its own
        LAYOUTS[layout](untouched).copy_(_unscaled(host, 0.25))
        amp.assert_identical("the tensor that it is a view of", base, untouched)
    if host.dim():
        grad[tuple(size - 1 for size in host.shape)].fill_(-INF)
        amp.assert_equal("found_inf with an infinity in its last element", _unscale(amp, [grad], 0.25).item(), 1.0)


@scenario(values=True, dtypes="default")
def test_views_of_one_buffer(amp: Amp) -> None:
    """Gradients that are pieces of one flat buffer are each multiplied once (as DistributedDataParallel keeps them)."""
    buffer = _on_device(amp, _ramp(60))
    grads = [buffer[:7], buffer[7:27].view(4, 5), buffer[27:51].view(2, 3, 4), buffer[51:52].view(())]
    found = _unscale(amp, grads, 0.25)
    want = _ramp(60)
    want[:52] = _unscaled(want[:52], 0.25)
    amp.assert_identical("the buffer", buffer, want)
    amp.assert_equal("found_inf", found.item(), 0.0)


@pytest.mark.parametrize("bad_one", [None, 0, 1, 2, 3, 4, 5], ids=lambda n: "none" if n is None else f"at_{n}")
@scenario(values=True, dtypes="default")
def test_mixed_list(amp: Amp, bad_one: int | None) -> None:
    """A list may mix dtypes, shapes and layouts (test_torch, test_grad_scaling_unscale, the slow path)."""
    hosts = [
        _ramp(9, torch.float16),
        _ramp(12).reshape(3, 4).t(),
        _ramp(5, torch.float64),
        torch.tensor(2.0),
        _ramp(16, torch.bfloat16).reshape(4, 4)[:, 1::2],
        _ramp(0, torch.float16),
        _ramp(8, torch.float16),
    ]
    grads = [_on_device(amp, host) for host in hosts]
    if bad_one is not None:
        grads[bad_one].fill_(NAN)
    found = _unscale(amp, grads, 0.25)
    seen = bad_one is not None and hosts[bad_one].numel() > 0
    amp.assert_equal("found_inf", found.item(), float(seen))
    for n, (grad, host) in enumerate(zip(grads, hosts, strict=True)):
        if n != bad_one:
            amp.assert_identical(f"gradient {n}", grad, _unscaled(host, 0.25))


@scenario(values=True, dtypes="default")
def test_found_is_kept(amp: Amp) -> None:
    """found_inf of one list stays set when the next list is finite (AmpKernels.cu: it is set, never cleared)."""
    found, inverse = torch.zeros((), device=amp.type), torch.full((), 0.25, device=amp.type)
    for values, want in (([1.0, 2.0], 0.0), ([1.0, NAN], 1.0), ([1.0, 2.0], 1.0), ([INF], 1.0), ([], 1.0)):
        torch._amp_foreach_non_finite_check_and_unscale_([torch.tensor(values, device=amp.type)], found, inverse)
        amp.assert_equal(f"found_inf after {values}", found.item(), want)
    amp.assert_equal("the inverse scale afterwards", inverse.item(), 0.25)


INVERSES = {
    "one": (1.0, [1.0, INF, NAN, -INF], [1.0, INF, NAN, -INF], 1.0),
    "zero": (0.0, [1.0, -2.0, 0.0], [0.0, -0.0, 0.0], 0.0),
    "zero_inf": (0.0, [1.0, INF], [0.0, NAN], 1.0),
    "inf": (INF, [1.0, -2.0, 0.0], [INF, -INF, NAN], 0.0),
    "nan": (NAN, [1.0], [NAN], 0.0),
    "smallest": (2.0**-126, [2.0**126, 2.0**120], [1.0, 2.0**-6], 0.0),
    "largest": (2.0**127, [2.0**-126, -(2.0**-100)], [2.0, -(2.0**27)], 0.0),
    "negative": (-0.5, [4.0, -2.0], [-2.0, 1.0], 0.0),
}
"""An inverse scale, gradients, what they become, and found_inf."""


@scenario(kind=INVERSES, values=True, dtypes="default")
def test_inverse(amp: Amp, kind: str) -> None:
    """Infinities are looked for before the multiplication; an inverse scale of 1 changes nothing (AmpKernels.cu)."""
    inverse, given, want, seen = INVERSES[kind]
    grad = torch.tensor(given, device=amp.type)
    found = _unscale(amp, [grad], inverse)
    amp.assert_equal(f"{given} times {inverse}", repr(amp.values(grad)), repr(want))
    amp.assert_equal("found_inf", found.item(), seen)


@scenario(values=True, dtypes="default")
def test_subnormal(amp: Amp) -> None:
    """Gradients below the normal numbers of float32 are multiplied too (IEEE 754; AmpKernels.cu has no exception)."""
    grad = torch.tensor([2.0**-140, -(2.0**-126)], device=amp.type)
    _unscale(amp, [grad], 4.0)
    amp.assert_equal("subnormal gradients times 4", amp.values(grad), [2.0**-138, -(2.0**-124)])
    grad = torch.tensor([2.0**-125, 2.0**-126], device=amp.type)
    _unscale(amp, [grad], 0.25)
    amp.assert_equal("quarters of small gradients", amp.values(grad), [2.0**-127, 2.0**-128])


@scenario(kind=["ints", "complex"], values=True, dtypes="default")
def test_no_floating_gradient(amp: Amp, kind: str) -> None:
    """A gradient that is not real floating point is refused and left unchanged (AmpKernels.cu; pytorch#127176)."""
    dtype, text = {"ints": (torch.int32, "nt"), "complex": (torch.complex64, "omplex")}[kind]
    grad = torch.ones(3, dtype=dtype, device=amp.type)
    amp.assert_raises("a gradient of another kind", RuntimeError, text, lambda: _unscale(amp, [grad], 0.25))
    amp.assert_identical("the gradient afterwards", grad, torch.ones(3, dtype=dtype))


@scenario(which=["found_inf", "inv_scale"], values=True, dtypes="default")
def test_wrong_argument(amp: Amp, which: str) -> None:
    """found_inf and inv_scale are float32 and have one element; another is refused (AmpKernels.cu)."""
    good = {"found_inf": torch.zeros((), device=amp.type), "inv_scale": torch.ones((), device=amp.type)}
    wrongly_typed = [torch.zeros((), dtype=dtype) for dtype in (torch.float16, torch.int)]
    for wrong in (torch.zeros(2), torch.zeros(0), *wrongly_typed):
        given, grad = {**good, which: _on_device(amp, wrong)}, torch.ones(2, device=amp.type)
        what = f"{which} of {list(wrong.shape)} {wrong.dtype}"
        call = partial(torch._amp_foreach_non_finite_check_and_unscale_, [grad], **given)
        amp.assert_raises(what, RuntimeError, f"{which} must be a", call)
        amp.assert_identical(f"the gradient after {what}", grad, torch.ones(2))


@scenario(values=True, dtypes="default", types=("cuda", "xpu", "mps", "jax"))
def test_another_device(amp: Amp) -> None:
    """Gradients on two devices in one list are refused (test_torch, test_grad_scaling_unscale)."""
    grads = [torch.ones(2, device=amp.type), torch.ones(2)]
    amp.assert_raises("a list on two devices", RuntimeError, "on the same device", lambda: _unscale(amp, grads, 0.25))


# ---- GradScaler.unscale_
Parameters = list[torch.nn.Parameter]


def _scaler(amp: Amp, scale: float) -> torch.amp.GradScaler:
    """Return a scaler whose scale is on the device already, as it is after the first call of `scale`."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=scale)
    scaler.scale(torch.zeros((), device=amp.type))
    return scaler


def _parameters(amp: Amp, grads: Sequence[torch.Tensor]) -> Parameters:
    """Return a parameter on the device for each gradient, and the gradient in its place."""
    out = []
    for grad in grads:
        made = torch.nn.Parameter(torch.zeros(grad.shape, dtype=grad.dtype, device=amp.type))
        made.grad = grad.to(amp.type, copy=True)
        out.append(made)
    return out


def _found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> float:
    return float(sum(found.item() for found in scaler._found_inf_per_device(optimizer).values()))


@pytest.mark.parametrize("scale", [4.0, 3.0, 65536.0, 1.0, 0.5, 2.0**127], ids=["4", "3", "65536", "1", "half", "top"])
@scenario(values=True, dtypes="default")
def test_divides(amp: Amp, scale: float) -> None:
    """Gradients are divided by the scale, through a reciprocal rounded once from float64 (grad_scaler.py, unscale_)."""
    grads = [torch.tensor([1.0, -2.5, 1 / 3]), torch.tensor(7.0), torch.zeros(0)]
    held = _parameters(amp, [grad * min(scale, 2.0**120) for grad in grads])
    optimizer, scaler = torch.optim.SGD(held), _scaler(amp, scale)
    before = [amp.host(one.grad).clone() for one in held if one.grad is not None]
    scaler.unscale_(optimizer)
    inverse = torch.tensor(scale, dtype=torch.float64).reciprocal().float()
    for n, (one, scaled) in enumerate(zip(held, before, strict=True)):
        amp.assert_identical(f"gradient {n} at scale {scale}", one.grad, scaled * inverse)
    amp.assert_equal("what was found", _found_inf(scaler, optimizer), 0.0)
    amp.assert_equal("the scale afterwards", scaler.get_scale(), scale)


@pytest.mark.parametrize("bad_one", [None, 0, 1, 2, 3, 4, 5, 6], ids=lambda n: "none" if n is None else f"at_{n}")
@scenario(bad=["inf", "nan"], values=True, dtypes="default")
def test_perfect_storm(amp: Amp, bad: str, bad_one: int | None) -> None:
    """Dtypes, shapes, layouts and groups mixed in one optimizer (test_torch, test_grad_scaling_unscale, end)."""
    grads = [
        torch.full((3, 4), 4.0),
        torch.full((2, 3, 4, 5), 4.0).contiguous(memory_format=torch.channels_last),
        torch.full((5,), 4.0, dtype=torch.float64),
        torch.full((), 4.0),
        torch.full((4, 6), 4.0, dtype=torch.bfloat16).t(),
        torch.full((2, 2), 4.0, dtype=torch.float16),
        torch.full((9,), 4.0),
    ]
    if bad_one is not None:
        grads[bad_one][(-1,) * grads[bad_one].dim()] = float(bad)
    held = _parameters(amp, grads)
    frozen = torch.nn.Parameter(torch.zeros(2, device=amp.type), requires_grad=False)
    optimizer = torch.optim.SGD([{"params": held[:3]}, {"params": [frozen]}, {"params": held[3:]}])
    scaler, found = _scaler(amp, 4.0), torch.zeros((), device=amp.type)
    per_device = scaler._unscale_grads_(optimizer, torch.full((), 0.25, device=amp.type), found, True)
    amp.assert_equal("what was found", sum(one.item() for one in per_device.values()), float(bad_one is not None))
    for n, (one, grad) in enumerate(zip(held, grads, strict=True)):
        if n != bad_one:
            amp.assert_identical(f"gradient {n}", one.grad, grad / 4)
    amp.assert_equal("the gradient of the frozen parameter", frozen.grad, None)


@scenario(values=True, dtypes="default")
def test_gradients_with_a_graph(amp: Amp) -> None:
    """Gradients made by create_graph=True are divided in place all the same (amp_examples.html, gradient penalty)."""
    leaf = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf]), _scaler(amp, 8.0)
    leaf.grad = torch.autograd.grad(scaler.scale((leaf**3).sum()), [leaf], create_graph=True)[0]
    scaler.unscale_(optimizer)
    amp.assert_identical("the gradient", leaf.grad, torch.tensor([3.0, 12.0, 27.0]))
    amp.assert_equal("what was found", _found_inf(scaler, optimizer), 0.0)


def _embedding(amp: Amp, rows: Sequence[int], scaler: torch.amp.GradScaler) -> torch.nn.Embedding:
    """Return an embedding with the sparse gradient of a weighted sum of the rows, scaled."""
    made = torch.nn.Embedding(5, 3, sparse=True).to(amp.type)
    index = torch.tensor(rows, device=amp.type)
    weights = torch.arange(1.0, len(rows) + 1, device=amp.type)[:, None]
    scaler.scale((made(index) * weights).sum()).backward()
    return made


@scenario(rows=named(coalesced=(0, 3), uncoalesced=(3, 3, 0, 3)), values=True, dtypes="default")
def test_sparse(amp: Amp, rows: tuple[int, ...]) -> None:
    """A sparse gradient is divided by the scale, each value once (test_grad_scaling_unscale_sparse; pytorch#35810)."""
    scaler = _scaler(amp, 4.0)
    made = _embedding(amp, rows, scaler)
    optimizer = torch.optim.SparseAdam(made.parameters())
    scaler.unscale_(optimizer)
    want = torch.zeros(5, 3)
    for n, row in enumerate(rows):
        want[row] += n + 1
    grad = made.weight.grad
    amp.assert_equal("whether the gradient is sparse", grad.is_sparse, True)
    amp.assert_identical("the gradient", grad.to_dense(), want)
    amp.assert_equal("what was found", _found_inf(scaler, optimizer), 0.0)


@scenario(place=[0, 1, 3], bad=BAD, values=True, dtypes="default")
def test_sparse_bad_value(amp: Amp, bad: str, place: int) -> None:
    """An infinity or nan among the values of a sparse gradient is found (test_grad_scaling_unscale_sparse)."""
    scaler = _scaler(amp, 4.0)
    made = _embedding(amp, (3, 3, 0, 1), scaler)
    optimizer = torch.optim.SparseAdam(made.parameters())
    made.weight.grad._values()[place] = float(bad)
    scaler.unscale_(optimizer)
    amp.assert_equal(f"what was found with {bad} at {place}", _found_inf(scaler, optimizer), 1.0)


@scenario(sign=named(plus=1, minus=-1), values=True, dtypes="default")
def test_sparse_overflow_by_coalescing(amp: Amp, sign: int) -> None:
    """float16 values of one row whose sum overflows count as an overflow (grad_scaler.py; upstream's sparse test)."""
    leaf = torch.nn.Parameter(torch.zeros(5, dtype=torch.float16, device=amp.type))
    for second, want in ((60000.0, 1.0), (-60000.0, 0.0)):
        values = torch.tensor([60000.0 * sign, second * sign], dtype=torch.float16, device=amp.type)
        index = torch.tensor([[2, 2]], device=amp.type)
        leaf.grad = torch.sparse_coo_tensor(index, values, (5,), check_invariants=True)
        optimizer, scaler = torch.optim.SGD([leaf]), _scaler(amp, 4.0)
        inverse = torch.full((), 0.25, device=amp.type)
        found = scaler._unscale_grads_(optimizer, inverse, torch.zeros((), device=amp.type), True)
        amp.assert_equal("what was found", sum(one.item() for one in found.values()), want)


@scenario(values=True, dtypes="default")
def test_sparse_beside_dense(amp: Amp) -> None:
    """Sparse and dense gradients of one optimizer are each divided once (grad_scaler.py, _unscale_grads_)."""
    scaler = _scaler(amp, 4.0)
    made = _embedding(amp, (1, 1, 4), scaler)
    dense = _parameters(amp, [torch.full((3,), 8.0)])
    scaler.unscale_(torch.optim.SGD([*made.parameters(), *dense], lr=1.0))
    want = torch.tensor([0.0, 3.0, 0.0, 0.0, 3.0])
    amp.assert_identical("the sparse gradient", made.weight.grad.to_dense()[:, 0], want)
    amp.assert_identical("the dense gradient", dense[0].grad, torch.full((3,), 2.0))


@scenario(values=True, dtypes="default")
def test_one_gradient_tensor_for_two(amp: Amp) -> None:
    """A tensor that is the gradient of two parameters is divided once (unscale_ divides the gradient tensors)."""
    one, two = _parameters(amp, [torch.full((2,), 8.0), torch.full((2,), 8.0)])
    two.grad = one.grad
    optimizer, scaler = torch.optim.SGD([one, two]), _scaler(amp, 4.0)
    scaler.unscale_(optimizer)
    amp.assert_identical("the gradient", one.grad, torch.full((2,), 2.0))
