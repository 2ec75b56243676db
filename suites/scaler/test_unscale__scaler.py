"""Rule unscale, `GradScaler.unscale_`: `ampcheck.spec.rules` says what it promises. Sources are PyTorch 2.13's."""

from collections.abc import Sequence

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("unscale")

NAN = float("nan")
Parameters = list[torch.nn.Parameter]


def _scaler(amp: Amp, scale: float) -> torch.amp.GradScaler:
    """A scaler whose scale is on the device already, as it is after the first call of `scale`."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=scale)
    scaler.scale(torch.zeros((), device=amp.type))
    return scaler


def _parameters(amp: Amp, grads: Sequence[torch.Tensor]) -> Parameters:
    """A parameter on the device for each gradient, and the gradient in its place."""
    out = []
    for grad in grads:
        made = torch.nn.Parameter(torch.zeros(grad.shape, dtype=grad.dtype, device=amp.type))
        made.grad = grad.to(amp.type, copy=True)
        out.append(made)
    return out


def _found(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> float:
    return float(sum(found.item() for found in scaler._found_inf_per_device(optimizer).values()))


@pytest.mark.parametrize("scale", [4.0, 3.0, 65536.0, 1.0, 0.5, 2.0**127], ids=["4", "3", "65536", "1", "half", "top"])
@scenario(values=True, dtypes="default")
def test_divides(amp: Amp, scale: float) -> None:
    """Gradients are divided by the scale, through a reciprocal rounded once from float64 (grad_scaler.py, unscale_)."""
    grads = [torch.tensor([1.0, -2.5, 1 / 3]), torch.tensor(7.0), torch.zeros(0)]
    held = _parameters(amp, [grad * min(scale, 2.0**120) for grad in grads])
    optimizer, scaler = torch.optim.SGD(held), _scaler(amp, scale)
    before = [amp.device.host(one.grad).clone() for one in held if one.grad is not None]
    scaler.unscale_(optimizer)
    inverse = torch.tensor(scale, dtype=torch.float64).reciprocal().float()
    for n, (one, scaled) in enumerate(zip(held, before, strict=True)):
        amp.exact(f"gradient {n} at scale {scale}", one.grad, scaled * inverse)
    amp.expect("what was found", _found(scaler, optimizer), 0.0)
    amp.expect("the scale afterwards", scaler.get_scale(), scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=["brain", "single", "double"])
@scenario(values=True, dtypes="default")
def test_keeps_dtype(amp: Amp, dtype: torch.dtype) -> None:
    """A gradient stays the tensor it was, in its own dtype (amp.html#torch.amp.GradScaler.unscale_; pytorch#127176)."""
    held = _parameters(amp, [torch.tensor([4.0, -8.0, 4 / 3], dtype=dtype)])
    before, optimizer, scaler = held[0].grad, torch.optim.SGD(held), _scaler(amp, 4.0)
    scaler.unscale_(optimizer)
    amp.expect("whether the gradient is the same tensor", held[0].grad is before, True)
    amp.exact("the gradient", held[0].grad, torch.tensor([4.0, -8.0, 4 / 3], dtype=dtype) / 4)


@scenario(values=True, dtypes="default")
def test_half_is_refused(amp: Amp) -> None:
    """float16 gradients are refused before any gradient is changed (grad_scaler.py; pytorch#74739, diffusers#1246)."""
    held = _parameters(amp, [torch.ones(2), torch.ones(2, dtype=torch.float16)])
    optimizer, scaler = torch.optim.SGD(held), _scaler(amp, 4.0)
    amp.raises("unscale_", ValueError, "Attempting to unscale FP16 gradients", lambda: scaler.unscale_(optimizer))
    for one in held:
        amp.exact("the gradient", one.grad, torch.ones(2, dtype=one.dtype))


@pytest.mark.parametrize("bad_one", [None, 0, 1, 2, 3, 4, 5, 6], ids=lambda n: "none" if n is None else f"at_{n}")
@pytest.mark.parametrize("bad", ["inf", "nan"])
@scenario(values=True, dtypes="default")
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
        grads[bad_one].view(-1)[-1:].fill_(float(bad)) if grads[bad_one].is_contiguous() else grads[bad_one][-1].fill_(
            float(bad)
        )
    held = _parameters(amp, grads)
    frozen = torch.nn.Parameter(torch.zeros(2, device=amp.type), requires_grad=False)
    optimizer = torch.optim.SGD([{"params": held[:3]}, {"params": [frozen]}, {"params": held[3:]}])
    scaler, found = _scaler(amp, 4.0), torch.zeros((), device=amp.type)
    inverse = torch.full((), 0.25, device=amp.type)
    per_device = scaler._unscale_grads_(optimizer, inverse, found, True)
    amp.expect("what was found", sum(one.item() for one in per_device.values()), float(bad_one is not None))
    for n, (one, grad) in enumerate(zip(held, grads, strict=True)):
        if n != bad_one:
            amp.exact(f"gradient {n}", one.grad, grad / 4)
    amp.expect("the gradient of the frozen parameter", frozen.grad, None)


@scenario(values=True, dtypes="default")
def test_gradients_with_a_graph(amp: Amp) -> None:
    """Gradients made by create_graph=True are divided in place all the same (amp_examples.html, gradient penalty)."""
    leaf = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf]), _scaler(amp, 8.0)
    grad = torch.autograd.grad(scaler.scale((leaf**3).sum()), [leaf], create_graph=True)[0]
    leaf.grad = grad
    scaler.unscale_(optimizer)
    amp.exact("the gradient", leaf.grad, torch.tensor([3.0, 12.0, 27.0]))
    amp.expect("what was found", _found(scaler, optimizer), 0.0)


def _embedding(amp: Amp, rows: Sequence[int], scaler: torch.amp.GradScaler) -> torch.nn.Embedding:
    """An embedding with the sparse gradient of a weighted sum of the rows, scaled."""
    made = torch.nn.Embedding(5, 3, sparse=True).to(amp.type)
    index = torch.tensor(rows, device=amp.type)
    weights = torch.arange(1.0, len(rows) + 1, device=amp.type)[:, None]
    scaler.scale((made(index) * weights).sum()).backward()
    return made


@pytest.mark.parametrize("rows", [(0, 3), (3, 3, 0, 3)], ids=["coalesced", "uncoalesced"])
@scenario(values=True, dtypes="default")
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
    amp.expect("whether the gradient is sparse", grad is not None and grad.is_sparse, True)
    if grad is not None:
        amp.exact("the gradient", grad.to_dense(), want)
    amp.expect("what was found", _found(scaler, optimizer), 0.0)


@pytest.mark.parametrize("bad", ["inf", "-inf", "nan"], ids=["inf", "minus_inf", "nan"])
@pytest.mark.parametrize("place", [0, 1, 3])
@scenario(values=True, dtypes="default")
def test_sparse_bad_value(amp: Amp, bad: str, place: int) -> None:
    """An infinity or nan among the values of a sparse gradient is found (test_grad_scaling_unscale_sparse)."""
    scaler = _scaler(amp, 4.0)
    made = _embedding(amp, (3, 3, 0, 1), scaler)
    optimizer = torch.optim.SparseAdam(made.parameters())
    if made.weight.grad is None:
        raise RuntimeError("the scenario computed no gradient")
    made.weight.grad._values()[place] = float(bad)
    scaler.unscale_(optimizer)
    amp.expect(f"what was found with {bad} at {place}", _found(scaler, optimizer), 1.0)


@pytest.mark.parametrize("sign", [1, -1], ids=["plus", "minus"])
@scenario(values=True, dtypes="default")
def test_sparse_overflow_by_coalescing(amp: Amp, sign: int) -> None:
    """float16 values of one row whose sum overflows count as an overflow (grad_scaler.py; upstream's sparse test)."""
    leaf = torch.nn.Parameter(torch.zeros(5, dtype=torch.float16, device=amp.type))
    for second, want in ((60000.0, 1.0), (-60000.0, 0.0)):
        values = torch.tensor([60000.0 * sign, second * sign], dtype=torch.float16, device=amp.type)
        leaf.grad = torch.sparse_coo_tensor(
            torch.tensor([[2, 2]], device=amp.type), values, (5,), check_invariants=True
        )
        optimizer, scaler = torch.optim.SGD([leaf]), _scaler(amp, 4.0)
        inverse = torch.full((), 0.25, device=amp.type)
        found = scaler._unscale_grads_(optimizer, inverse, torch.zeros((), device=amp.type), True)
        amp.expect("what was found", sum(one.item() for one in found.values()), want)


@scenario(values=True, dtypes="default")
def test_sparse_beside_dense(amp: Amp) -> None:
    """Sparse and dense gradients of one optimizer are each divided once (grad_scaler.py, _unscale_grads_)."""
    scaler = _scaler(amp, 4.0)
    made = _embedding(amp, (1, 1, 4), scaler)
    dense = _parameters(amp, [torch.full((3,), 8.0)])
    optimizer = torch.optim.SGD([*made.parameters(), *dense], lr=1.0)
    scaler.unscale_(optimizer)
    if made.weight.grad is not None:
        amp.exact("the sparse gradient", made.weight.grad.to_dense()[:, 0], torch.tensor([0.0, 3.0, 0.0, 0.0, 3.0]))
    amp.exact("the dense gradient", dense[0].grad, torch.full((3,), 2.0))


@scenario(values=True, dtypes="default")
def test_own_gradients_alone(amp: Amp) -> None:
    """unscale_ touches the gradients of the optimizer it is given, and no others (amp_examples.html, several)."""
    one, two = _parameters(amp, [torch.full((2,), 8.0), torch.full((2,), 8.0)])
    first, second, scaler = torch.optim.SGD([one]), torch.optim.SGD([two]), _scaler(amp, 4.0)
    scaler.unscale_(first)
    amp.exact("gradient of the first optimizer", one.grad, torch.full((2,), 2.0))
    amp.exact("gradient of the second optimizer", two.grad, torch.full((2,), 8.0))
    two.grad = torch.full((2,), NAN, device=amp.type)
    scaler.unscale_(second)
    amp.expect("what was found in the first", _found(scaler, first), 0.0)
    amp.expect("what was found in the second", _found(scaler, second), 1.0)


@scenario(values=True, dtypes="default")
def test_one_gradient_tensor_for_two(amp: Amp) -> None:
    """A tensor that is the gradient of two parameters is divided once (unscale_ divides the gradient tensors)."""
    one, two = _parameters(amp, [torch.full((2,), 8.0), torch.full((2,), 8.0)])
    two.grad = one.grad
    optimizer, scaler = torch.optim.SGD([one, two]), _scaler(amp, 4.0)
    scaler.unscale_(optimizer)
    amp.exact("the gradient", one.grad, torch.full((2,), 2.0))
