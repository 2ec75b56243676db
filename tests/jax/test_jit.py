"""What `jit` keeps: state, aliases, settings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ampcheck.jax_device import jit
from ampcheck.jax_device.storage.arrays import storage_of


def x() -> torch.Tensor:
    return torch.arange(6.0, device="jax").view(2, 3)


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(size, device="jax")


_counter = torch.zeros(3, device="jax")
_scale = 2.0


class _Hidden:
    __slots__ = ("total",)


_hidden = _Hidden()
_hidden.total = torch.zeros(3, device="jax")


def test_state_from_everywhere_is_input_and_output() -> None:
    listed = [zeros(3)]

    def add(a: torch.Tensor) -> torch.Tensor:
        _counter.add_(1)
        listed[0].mul_(2).add_(1)
        _hidden.total.add_(a)  # found by tracking: nothing walks into __slots__
        return _counter + listed[0] + _hidden.total

    jitted = jit(add)
    for _ in range(3):
        out = jitted(torch.ones(3, device="jax"))
    assert out.tolist() == [13.0] * 3
    assert (_counter.tolist(), listed[0].tolist(), _hidden.total.tolist()) == ([3.0] * 3, [7.0] * 3, [3.0] * 3)
    assert jitted.compiles == 1
    listed[0] = zeros(3)  # another tensor at the same place
    assert jitted(torch.ones(3, device="jax")).tolist() == [4.0 + 1.0 + 4.0] * 3
    assert jitted.compiles == 1


def test_settings_are_not_baked_in() -> None:
    global _scale
    jitted = jit(lambda a: a * _scale)
    assert jitted(x())[0, 1].item() == 2.0
    _scale = 3.0
    assert jitted(x())[0, 1].item() == 3.0
    _scale = 2.0
    assert (jitted(x())[0, 1].item(), jitted.compiles) == (2.0, 2)


def test_inputs_aliases_and_views() -> None:
    y = zeros(2, 3)
    add = jit(lambda a: a.add_(1))
    version = y._version
    assert add(y) is y
    assert add(y) is y
    assert (y.cpu() == 2).all()
    assert y._version > version
    view = jit(lambda a: a.t()[1])
    view(y)
    got = view(y)
    y.fill_(5.0)
    assert got.tolist() == [5.0, 5.0]
    row = jit(lambda a: a[0].add_(1))
    row(y)
    row(y)
    assert y.tolist() == [[7.0] * 3, [5.0] * 3]
    assert (add.compiles, view.compiles, row.compiles) == (1, 1, 1)


def test_arguments_that_share_a_storage() -> None:
    y = zeros(2, 3)
    both = jit(lambda a, b: (a.add_(1), b * 2)[1])
    assert both(y, y[0]).tolist() == [2.0] * 3
    assert both(y, zeros(3)).tolist() == [0.0] * 3
    assert both(y, y[0]).tolist() == [6.0] * 3
    same = jit(lambda a, b: (a.add_(1), b * 2)[1])
    u, v = zeros(3), zeros(3)
    assert same(u, v).tolist() == same(u, v).tolist() == [0.0] * 3
    assert same(u, u).tolist() == [6.0] * 3  # the fast path must see that these are one


def test_donated_arrays_that_others_have() -> None:
    y = zeros(2, 3)
    before, add = y.clone(), jit(lambda a: a.add_(1))
    for _ in range(3):
        add(y)
    between = y.clone()
    held = storage_of(y).array
    add(y)
    assert (before.cpu() == 0).all()
    assert (between.cpu() == 3).all()
    assert (y.cpu() == 4).all()
    assert not held.is_deleted()
    kept = storage_of(y)
    donated = kept.array.unsafe_buffer_pointer()
    add(y)
    assert kept.array.unsafe_buffer_pointer() == donated  # the buffer is used again
    assert "tf.aliasing_output" in add.lower(y).as_text()
    assert "tf.aliasing_output" not in jit(lambda a: a.add_(1), donate=False).lower(y).as_text()


def test_what_makes_a_new_program() -> None:
    by = jit(lambda a, n: a * n)
    assert [by(x(), n)[0, 1].item() for n in (2, 3, 2.0, 2)] == [2.0, 3.0, 2.0, 2.0]
    assert by.compiles == 3
    by(x().double(), 2)
    by(zeros(4), 2)
    by(x().t(), 2)
    assert by.compiles == 6
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()).to("jax")
    run = jit(model)
    with torch.no_grad():
        run(x())
        run(x())
        model.eval()
        assert torch.equal(run(x()), run(x()))
        assert run.compiles == 2
        model[1].p = 0.25
        run(x())
        model[0].weight.data = model[0].weight.data.clone()
        model[0].weight.requires_grad_(False)
        run(x())
    assert run.compiles == 4


def test_structures_and_keywords() -> None:
    run = jit(lambda d, *, k: {"a": d["x"] + k, "b": (d["x"], 3)})
    given = x()
    for _ in range(2):
        out = run({"x": given}, k=given)
    assert torch.equal(out["a"], given * 2)
    assert out["b"] == (given, 3)
    assert out["b"][0] is given
    assert run.compiles == 1

    @jit(warn_after=3)
    def decorated(a: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return run({"x": a}, k=a)["a"]  # inside another trace, jit is the function itself

    assert torch.equal(decorated(given), given * 2)
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Doc.")


def test_a_call_unlike_the_last_takes_no_short_way() -> None:
    weight = torch.ones(2, 3, device="jax", requires_grad=True)
    run = jit(lambda a: a * 2 if a.requires_grad else a * 3)
    with torch.no_grad():
        for _ in range(2):
            assert run(weight.detach()).tolist() == [[3.0] * 3] * 2
            assert run(weight).tolist() == [[2.0] * 3] * 2
    assert run.compiles == 2

    step = jit(lambda a: a.square().sum().backward())
    for _ in range(2):
        step(weight)
    with pytest.raises(ValueError, match="part of a graph from outside"):
        step(weight * 2)
    assert weight.grad.tolist() == [[4.0] * 3] * 2
    leaf = jit(lambda a: a.detach() * 2)
    for _ in range(2):
        leaf(weight)
    with pytest.raises(ValueError, match="part of a graph from outside"):
        leaf(weight * 2)

    double, ones = jit(lambda a: a * 2), torch.ones(2, 3, device="jax")
    for given, want in (
        (ones, 2.0), (ones.t().contiguous().t(), 2.0), (ones.to(torch.complex64).conj(), 2 + 0j), (ones.half(), 2.0),
        (torch.ones(6, device="jax").view(2, 3), 2.0), (ones.new_zeros(3, 3)[1:] + 1, 2.0), (ones, 2.0),
    ):  # fmt: skip
        assert double(given).tolist() == [[want] * 3] * 2
        assert double(given).dtype is given.dtype
    assert torch.vmap(double)(ones).tolist() == [[2.0] * 3] * 2
    assert torch.func.grad(lambda a: double(a).sum())(ones).tolist() == [[2.0] * 3] * 2


def test_random_numbers() -> None:
    drop = jit(lambda a: F.dropout(a, 0.5))
    ones = torch.ones(64, device="jax")
    torch.manual_seed(0)
    first, second = drop(ones), drop(ones)
    torch.manual_seed(0)
    assert torch.equal(first, drop(ones))
    assert torch.equal(second, drop(ones))
    assert not torch.equal(first, second)
    assert drop.compiles == 1
    with pytest.raises(RuntimeError, match="seeded inside of a jitted function"):
        jit(lambda a: torch.manual_seed(1) and F.dropout(a))(ones)
    with pytest.raises(RuntimeError, match="random numbers were drawn on the CPU"):
        jit(lambda a: a + torch.rand(64).to("jax"))(ones)
    with pytest.raises(RuntimeError, match="generator"):
        jit(lambda a: torch.rand(3, device="jax", generator=torch.Generator()))(ones)


def test_gradients_that_stay() -> None:
    weight = torch.ones(3, device="jax", requires_grad=True)
    run = jit(lambda a: (a * weight).sum().backward())
    run(x())
    first = weight.grad
    assert first.tolist() == [3.0, 5.0, 7.0]
    for _ in range(2):
        run(x())
    assert weight.grad.tolist() == [9.0, 15.0, 21.0]
    assert run.compiles == 2  # without a gradient, and with one to add to


def test_transforms_inside() -> None:
    ones = torch.ones(3, device="jax")
    assert jit(lambda a: torch.func.grad(lambda v: (v**3).sum())(a))(ones).tolist() == [3.0] * 3
    assert jit(lambda a: torch.vmap(lambda v: v * 2)(a))(ones).tolist() == [2.0] * 3
    weight = torch.ones(3, device="jax", requires_grad=True)

    def second() -> torch.Tensor:
        (first,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
        return torch.autograd.grad(first.sum(), weight)[0]

    assert jit(second)().tolist() == [6.0] * 3

    def saved() -> None:
        weight.grad = None
        checkpoint(lambda v: (v * 2) ** 2, weight, use_reentrant=False).sum().backward()

    jit(saved)()
    assert weight.grad.tolist() == [8.0] * 3
    with torch.inference_mode():
        assert jit(lambda a: a * 2)(ones).tolist() == [2.0] * 3


def test_a_storage_seen_under_two_dtypes() -> None:
    words = torch.zeros(4, device="jax")

    def counts() -> None:
        words.view(torch.int32).add_(1)

    run = jit(counts)
    for _ in range(3):
        run()
    assert words.view(torch.int32).tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="seen under another dtype"):
        jit(lambda: words.view(torch.int32))()


def test_the_program_can_be_lowered_for_another_platform() -> None:
    weight = torch.ones(3, 3, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (F.dropout(a, 0.5) @ weight).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    jitted, before = jit(step), weight.detach().clone()
    state = torch.jax.get_rng_state()
    function, structs = jitted.program(x())
    found = [(s.shape, str(s.dtype), s.weak_type) for s in structs]
    assert found == [
        ((6,), "float32", False),  # the argument's storage, which it sees as (2, 3)
        ((3, 3), "float32", False),
        ((), "float64", True),  # the learning rate
        ((2,), "uint32", False),  # the key of the random numbers
    ]
    for platform in ("tpu", "cpu"):
        text = function.trace(*structs).lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.dot_general" in text
    assert torch.equal(weight, before)
    assert torch.equal(torch.jax.get_rng_state(), state)
    assert jitted.compiles == 1
    jitted(x())
    assert jitted.compiles == 1
    assert not torch.equal(weight, before)
