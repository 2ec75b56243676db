"""Random ops of the jax device: their moments are the distribution's, and seeds, states and generators fix them."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

N, TIMES = 1000, 20
"""How many numbers a call draws, which a program of few elements compiles quickly for; and how often it is called."""
JAX = "jax"


def _empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(N, device=JAX, dtype=dtype)


def _full(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((N,), value, device=JAX, dtype=dtype)


# What draws N numbers, their mean and their variance; the op database has more (test_op_database.py).
_DRAWS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "randn-fp16": (lambda: torch.randn(N, device=JAX, dtype=torch.float16), 0, 1),
    "normal.Tensor_Tensor": (lambda: torch.normal(_full(1), _full(2)), 1, 4),
    "bernoulli_.float": (lambda: _empty(torch.int64).bernoulli_(0.3), 0.3, 0.21),
    "random_.from": (lambda: _empty(torch.int32).random_(-10, 10), -0.5, 399 / 12),
    "poisson": (lambda: torch.poisson(_full(3)), 3, 3),
    "binomial": (lambda: torch.binomial(_full(10), _full(0.3)), 3, 2.1),
    "_standard_gamma": (lambda: torch._standard_gamma(_full(3)), 3, 3),
    "_sample_dirichlet": (lambda: torch._sample_dirichlet(torch.full((N, 4), 3.0, device=JAX)), 0.25, 0.1875 / 13),
    "randperm": (lambda: torch.randperm(N, device=JAX), (N - 1) / 2, (N**2 - 1) / 12),
}


def _check_moments(drawn: torch.Tensor, mean: float, variance: float) -> None:
    """Raises AssertionError where mean or variance is further off than chance allows."""
    values = drawn.cpu().double().flatten()
    error = math.sqrt(variance / len(values))
    assert abs(values.mean().item() - mean) < 5 * error, f"mean {values.mean().item()}, not {mean}"
    spread = ((values - mean) ** 2).std().item() / math.sqrt(len(values))
    assert abs(((values - mean) ** 2).mean().item() - variance) < 6 * spread + 1e-3 * variance


@pytest.mark.parametrize("name", _DRAWS)
def test_moments_and_seed(name: str) -> None:
    draw, mean, variance = _DRAWS[name]
    torch.manual_seed(7)
    first = [draw().cpu() for _ in range(TIMES)]
    torch.manual_seed(7)
    assert torch.equal(first[0], draw().cpu())
    assert not torch.equal(first[0], first[1])
    _check_moments(torch.cat(first), mean, variance)


def test_bounds() -> None:
    torch.manual_seed(0)
    low = _empty(torch.bfloat16).uniform_(1, 2).float()
    assert low.min() >= 1
    assert low.max() < 2
    assert _empty().exponential_().min() > 0
    assert _empty().geometric_(0.9).min() == 1
    assert torch.randperm(100, device=JAX).sort().values.tolist() == list(range(100))
    assert _empty(torch.bool).random_().float().mean().sub(0.5).abs() < 0.05
    whole = _empty(torch.int64).random_(-(2**63), None)
    assert (whole < 0).float().mean().sub(0.5).abs() < 0.05


def test_multinomial_without_replacement_takes_none_twice_and_none_of_weight_zero() -> None:
    torch.manual_seed(0)
    drawn = torch.multinomial(torch.tensor([[0.0, 1, 2, 3], [5, 1, 0, 1]], device=JAX).repeat(50, 1), 3)
    for row, absent in zip(drawn.tolist(), [0, 2] * 50, strict=True):
        assert sorted(row) == [i for i in range(4) if i != absent]


def test_native_dropout_mask_and_gradient() -> None:
    x = torch.ones(1000, device=JAX, requires_grad=True)
    out, mask = torch.native_dropout(x, 0.25, True)
    out.sum().backward()
    torch.testing.assert_close(out.detach().cpu(), mask.cpu() / 0.75)
    torch.testing.assert_close(x.grad.cpu(), mask.cpu() / 0.75)
    assert torch.native_dropout(x, 0.25, False)[1].all()
    assert not torch.native_dropout(x, 1.0, True)[0].any()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: _empty().normal_(0, -1), "std >= 0.0, but found std -1"),
        (lambda: _empty().uniform_(2, 1), "from=2.0 > to=1.0"),
        (lambda: _empty().exponential_(-1), "lambda > 0.0, but found lambda=-1"),
        (lambda: _empty().bernoulli_(2.0), r"in \[0, 1\]"),
        (lambda: _empty(torch.uint8).random_(0, 300), "out of bounds"),
        (lambda: _empty().random_(3, 3), "from=3 >= to=3"),
        (lambda: torch.randperm(-1, device=JAX), "negative dimension -1"),
    ],
)
def test_numbers_no_distribution_has(draw: Callable[[], Any], message: str) -> None:
    draw_well = _empty().normal_(0, 1)  # a first good call, so that nothing hides behind a compiled program
    assert draw_well.numel()
    with pytest.raises(RuntimeError, match=message):
        draw()


def test_the_device_generator_says_its_device() -> None:
    generator = torch.Generator(device=JAX)
    assert isinstance(generator, torch.Generator)
    assert isinstance(generator, torch.jax.Generator)
    assert generator.device == torch.device("jax", 0)
    with pytest.raises(RuntimeError, match="lives on the jax device, not on cpu"):
        torch.jax.Generator("cpu")
    assert torch.Generator().device == torch.Generator(device="cpu").device == torch.device("cpu")
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance(JAX, torch.Generator)


WITH_GENERATOR: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(4, device=JAX, generator=g),
    "normal_": lambda g: torch.empty(4, device=JAX).normal_(generator=g),
    "rrelu_with_noise": lambda g: torch.ops.aten.rrelu_with_noise(
        -torch.ones(8, device=JAX), torch.zeros(8, device=JAX), 0.1, 0.3, True, g
    ),
    "init": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device=JAX), generator=g),
}


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_generators_fix_what_ops_draw(name: str) -> None:
    draw = WITH_GENERATOR[name]
    generator = torch.Generator(JAX).manual_seed(3)
    first, state = draw(generator), generator.get_state()
    copies = generator.clone_state(), pickle.loads(pickle.dumps(generator))
    second = draw(generator)
    assert not torch.equal(first, second)
    generator.set_state(state)
    assert all(torch.equal(draw(g), second) for g in (generator, *copies))
    assert all(g.device == torch.device("jax:0") for g in copies)
    assert torch.equal(draw(generator.manual_seed(3)), first)
    assert generator.initial_seed() == 3


def test_states_and_forks() -> None:
    torch.manual_seed(1)
    torch.rand(2, device=JAX)
    state = torch.jax.get_rng_state()
    expected = torch.rand(3, device=JAX).cpu()
    torch.jax.set_rng_state(state)
    with torch.random.fork_rng(device_type=JAX):
        torch.manual_seed(9)
        torch.rand(5, device=JAX)
    assert torch.equal(torch.rand(3, device=JAX).cpu(), expected)
    assert torch.jax.initial_seed() == 1
    assert torch.jax.seed() == torch.jax.initial_seed() != 1
    with pytest.raises(RuntimeError, match=r"16 elements; this one is torch\.uint8 of shape"):
        torch.jax.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="a seed lies between"):
        torch.jax.manual_seed(2**64)
