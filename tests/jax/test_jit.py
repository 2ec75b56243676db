"""What `jit` keeps: state, aliases, settings, padded arguments; whole steps; and the program that comes out."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcheck.jax_device import Bucket, jit, t2j
from ampcheck.jax_device.jit.transform import Buckets
from ampcheck.jax_device.storage.arrays import storage_of
from bench.jax_steps import STEPS
from tests.jax.agreement import Make, Trained, grid, ones, stepping, train, zeros

_counter = torch.zeros(3, device="jax")


class _Hidden:
    """An object without `__dict__`."""

    __slots__ = ("total",)


_hidden = _Hidden()
_hidden.total = torch.zeros(3, device="jax")


def test_state_from_everywhere_is_input_and_output() -> None:
    listed = [zeros(3)]

    @jit
    def jitted(a: Tensor) -> Tensor:
        """Doc."""
        _counter.add_(1)
        listed[0].mul_(2).add_(1)
        _hidden.total.add_(a)
        return _counter + listed[0] + _hidden.total

    for _ in range(3):
        out = jitted(ones(3))
    assert out.tolist() == [13.0] * 3
    assert (_counter.tolist(), listed[0].tolist(), _hidden.total.tolist()) == ([3.0] * 3, [7.0] * 3, [3.0] * 3)
    assert (jitted.__name__, jitted.__doc__) == ("jitted", "Doc.")
    listed[0] = zeros(3)  # another tensor at the same place
    assert (jitted(ones(3)).tolist(), jitted.compiles) == ([4.0 + 1.0 + 4.0] * 3, 1)


def test_inputs_aliases_and_views() -> None:
    y = zeros(2, 3)
    add, view, row = jit(lambda a: a.add_(1)), jit(lambda a: a.t()[1]), jit(lambda a: a[0].add_(1))
    version = y._version
    assert add(y) is add(y) is y
    assert (y.cpu() == 2).all()
    assert y._version > version
    view(y)
    got = view(y)
    y.fill_(5.0)
    assert got.tolist() == [5.0, 5.0]
    row(y)
    row(y)
    assert (y.tolist(), (add.compiles, view.compiles, row.compiles)) == ([[7.0] * 3, [5.0] * 3], (1, 1, 1))


def test_arguments_that_share_a_storage() -> None:
    y, u, v = zeros(2, 3), zeros(3), zeros(3)
    both, same = (jit(lambda a, b: (a.add_(1), b * 2)[1]) for _ in range(2))
    assert [both(y, b).tolist() for b in (y[0], zeros(3), y[0])] == [[2.0] * 3, [0.0] * 3, [6.0] * 3]
    # the fast path must see that the last two are one
    assert [same(u, b).tolist() for b in (v, v, u)] == [[0.0] * 3, [0.0] * 3, [6.0] * 3]


def test_an_argument_that_is_also_reached() -> None:
    holder = SimpleNamespace(x=ones(2), other=zeros(2))
    run = jit(lambda x: x + holder.x)
    assert [run(holder.x).tolist() for _ in range(3)] == [[2, 2]] * 3
    assert run(holder.other).tolist() == [1, 1]  # it shares other storages: another program
    assert run.compiles == 2


def test_blocks_have_one_program_wherever_they_begin() -> None:
    """Of any number of dimensions, in any order, with steps between: the program sees their order of strides."""
    data = torch.arange(480.0, device="jax").view(4, 3, 8, 5)
    for block in (
        lambda i: data[i],
        lambda i: data[..., i],
        lambda i: data.view(-1)[i * 10 : i * 10 + 8],
        lambda i: data[1:3, :, i : i + 2, ::3],
        lambda i: data[:, 1, i : i + 3].transpose(0, 2),
        lambda i: data.permute(3, 0, 2, 1)[1:4, :2, i:, 0][..., :2],
    ):
        run, written = jit(lambda a: ((out := a * 2), out.stride())), jit(lambda a: a.mul_(2))
        returned, beside = jit(lambda a: (a[1:], a * 2)), jit(lambda whole, a: (whole.add_(1), a * 2)[1])
        for i in range(4):
            part = block(i)
            expected = part * 2
            found, strides = run(part)
            assert torch.equal(found, expected)
            assert strides == expected.stride()
        assert run.compiles == 1
        view = returned(part)[0]
        assert written(part) is part
        assert torch.equal(part, expected)
        assert torch.equal(view, part[1:])  # which lies on the argument
        assert torch.equal(beside(data, part), (expected + 1) * 2)


def test_donated_arrays_that_others_have() -> None:
    y = zeros(2, 3)
    before, add = y.clone(), jit(lambda a: a.add_(1))
    for _ in range(3):
        add(y)
    between, held = y.clone(), storage_of(y).array
    add(y)
    assert [(t.cpu() == n).all().item() for t, n in ((before, 0), (between, 3), (y, 4))] == [True] * 3
    assert not held.is_deleted()
    kept = storage_of(y)
    donated = kept.array.unsafe_buffer_pointer()
    add(y)
    assert kept.array.unsafe_buffer_pointer() == donated  # the buffer is used again
    assert "tf.aliasing_output" in add.lower(y).as_text()
    assert "tf.aliasing_output" not in jit(lambda a: a.add_(1), donate=False).lower(y).as_text()


def test_a_step_copies_none_of_its_state() -> None:
    """The gradient that it leaves has the weight's shape, and takes none of the memory that was donated."""
    weight, a = ones(64, 65, requires_grad=True), ones(7, 64)
    step = stepping(torch.optim.AdamW([weight]), lambda: (a @ weight).sum())
    run = jit(lambda: (step(), None)[1])
    assert run.lower().as_text().count("tf.aliasing_output") == 4
    assert not re.findall(r"= f32\[64,65\]\S* copy\(", run.lower().compile().as_text())


def test_a_program_of_jax_takes_in_a_jitted_function() -> None:
    doubled = jit(lambda a: a * 2)
    for _ in range(2):
        assert jax.jit(t2j(doubled))(jax.numpy.ones(3)).tolist() == [2.0] * 3
        doubled(ones(3).double())  # of that kind, so that the short way knows it
    assert doubled.compiles == 1


def test_what_makes_a_new_program() -> None:
    by = jit(lambda a, n: a * n)
    assert ([by(grid(), n)[0, 1].item() for n in (2, 3, 2.0, 2)], by.compiles) == ([2.0, 3.0, 2.0, 2.0], 3)
    for other in (grid().double(), zeros(4), grid().t()):
        by(other, 2)
    assert by.compiles == 6
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()).to("jax")
    run = jit(model)
    with torch.no_grad():
        run(grid())
        run(grid())
        model.eval()
        assert torch.equal(run(grid()), run(grid()))
        assert run.compiles == 2
        model[1].p = 0.25
        run(grid())
        model[0].weight.data = model[0].weight.data.clone()
        model[0].weight.requires_grad_(False)
        run(grid())
    assert run.compiles == 4


def test_a_call_unlike_the_last_takes_no_short_way() -> None:
    weight = ones(2, 3, requires_grad=True)
    run = jit(lambda a: a * 2 if a.requires_grad else a * 3)
    with torch.no_grad():
        for _ in range(2):
            assert (run(weight.detach()).tolist(), run(weight).tolist()) == ([[3.0] * 3] * 2, [[2.0] * 3] * 2)
    assert run.compiles == 2
    for step in (jit(lambda a: a.square().sum().backward()), jit(lambda a: a.detach() * 2)):
        for _ in range(2):
            step(weight)
        with pytest.raises(ValueError, match="part of a graph from outside"):
            step(weight * 2)
        assert weight.grad.tolist() == [[4.0] * 3] * 2
    double, plain = jit(lambda a: a * 2), ones(2, 3)
    for given, want in (
        (plain, 2.0), (plain.t().contiguous().t(), 2.0), (plain.to(torch.complex64).conj(), 2 + 0j),
        (plain.half(), 2.0), (ones(6).view(2, 3), 2.0), (plain.new_zeros(3, 3)[1:] + 1, 2.0), (plain, 2.0),
    ):  # fmt: skip
        assert double(given).tolist() == [[want] * 3] * 2
        assert double(given).dtype is given.dtype
    assert torch.vmap(double)(plain).tolist() == [[2.0] * 3] * 2
    assert torch.func.grad(lambda a: double(a).sum())(plain).tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("which", range(6), ids=["size", "stride", "offset", "dtype", "conj", "neg"])
def test_arguments_that_differ_in_one_thing(which: int) -> None:
    """They are written to, so they are no copies."""
    ends = []
    for wrap in (lambda step: step, jit):
        whole, run = torch.arange(8.0, device="jax"), wrap(lambda a: a.mul_(3))
        part, numbers, bits = whole[:2], torch.view_as_complex(whole.view(4, 2)), whole.view(torch.int32)
        others = whole[:3], whole[:4:2], whole[1:3], whole, numbers.conj(), numbers.conj().imag
        one, other = (part, part, part, bits, numbers, numbers.imag)[which], others[which]
        results = [run(t).resolve_conj().resolve_neg().cpu() for t in (one, one, other, other, one)]
        ends.append([*results, whole.cpu()])
    torch.testing.assert_close(*ends)


def test_transforms_inside() -> None:
    weight = ones(3, requires_grad=True)

    def second(a: Tensor) -> Tensor:
        (first,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
        return torch.autograd.grad(first.sum(), weight)[0]

    cubed, doubled = torch.func.grad(lambda v: (v**3).sum()), torch.vmap(lambda v: v * 2)
    for function, wanted in ((cubed, 3), (doubled, 2), (second, 6)):
        assert jit(function)(ones(3)).tolist() == [wanted] * 3
    with torch.inference_mode():
        assert jit(lambda a: a * 2)(ones(3)).tolist() == [2.0] * 3


def test_a_storage_seen_under_two_dtypes() -> None:
    words = zeros(4)
    run = jit(lambda: (words.view(torch.int32).add_(1), None)[1])
    for _ in range(3):
        run()
    assert words.view(torch.int32).tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="seen under another dtype"):
        jit(lambda: words.view(torch.int32))()


def test_the_program_can_be_lowered_for_another_platform() -> None:
    weight = ones(3, 3, requires_grad=True)
    jitted = jit(stepping(torch.optim.SGD([weight], lr=0.5), lambda a: (F.dropout(a, 0.5) @ weight).sum()))
    before = weight.detach().clone()
    state = torch.jax.get_rng_state()
    function, structs = jitted.program(grid())
    assert [(s.shape, str(s.dtype), s.weak_type) for s in structs] == [
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
    jitted(grid())
    assert jitted.compiles == 1
    assert not torch.equal(weight, before)


# ---- steps


def scaled(make: Make, clips: bool, wrap: Any = jit) -> Trained:
    """Seven float16 steps, of which the first overflows by its scale and the sixth by its input."""
    return train(
        make, wrap, amp=torch.float16, steps=7, clips=clips, inject=lambda i, y: y * torch.inf if i == 5 else y
    )


@pytest.mark.parametrize(
    ("make", "clips"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.01, fused=True), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
    ],
    ids=["fused Adam", "momentum"],
)
def test_the_scaler_decides_on_the_device(make: Make, clips: bool) -> None:
    expected, found = scaled(make, clips, lambda step: step), scaled(make, clips)
    assert found.scales == expected.scales
    assert found.scales[0] == 2.0**19  # the first step overflows
    assert found.scales[5] < found.scales[4]
    torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-3, atol=1e-4)
    assert all(p.isfinite().all() for p in found.parameters)


def test_momentum_that_an_overflow_would_make() -> None:
    with pytest.raises(RuntimeError, match="dampening is not 0"):
        scaled(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), clips=False)


class Looks(torch.optim.SGD):
    """An optimizer whose step Python decides by the learning rate."""

    def step(self, closure: Any = None) -> None:
        if self.param_groups[0]["lr"] > 0.5:
            super().step(closure)


def test_a_changed_learning_rate_counts() -> None:
    for kind, end, programs in ((torch.optim.SGD, -1.25, 1), (Looks, -1.0, 2)):
        weight = zeros(3).requires_grad_()
        optimizer = kind([weight], lr=1.0)
        run = jit(stepping(optimizer, weight.sum))
        run()
        optimizer.param_groups[0]["lr"] = 0.25
        run()
        assert (weight.tolist(), run.compiles) == ([end] * 3, programs)


def one_cycle(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    """Move betas or momentum; whether the latter is 0, as in the last step, is part of the program."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)

    def change(step: int) -> None:
        schedule.step()
        for group in optimizer.param_groups if step == 5 and "momentum" in optimizer.param_groups[0] else ():
            group["momentum"] = 0.0

    return change


def all_numbers(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    """Move the numbers in `moved` of an optimizer's group, and the rate."""
    group, moved = optimizer.param_groups[0], {n: v for n, v in optimizer.defaults.items() if n in MOVED}
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def change(step: int) -> None:
        schedule.step()
        factor = 1 - 0.1 * step
        for name, value in moved.items():
            group[name] = tuple(v * factor for v in value) if isinstance(value, tuple) else value * factor

    return change


MOVED = ("betas", "eps", "momentum", "dampening", "lr_decay")
NUMBERS: dict[str, tuple[Make, Any]] = {
    # bias corrections, powers of the step count, are Python's; those in float32 would move weights
    "step counts of RAdam": (lambda p: torch.optim.RAdam(p, lr=1e-2), None),
    "Adam": (lambda p: torch.optim.Adam(p), one_cycle),
    "SGD": (lambda p: torch.optim.SGD(p, momentum=0.5, nesterov=True), one_cycle),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, momentum=0.5), one_cycle),
    "fused Adam": (lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9), eps=1e-3, fused=True), all_numbers),
    "fused SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.3, fused=True), all_numbers),
    "fused Adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.2, eps=1e-2, fused=True), all_numbers),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_of_a_step_are_inputs(name: str) -> None:
    """The rate from the start, what else a scheduler moves once it was seen to; steps move weights as eager ones do."""
    make, changes = NUMBERS[name]
    ends, compiles = [], []
    for wrap in (lambda step: step, jit):
        weight = torch.tensor([0.5, 1.0, 3.0], device="jax", requires_grad=True)
        optimizer = make([weight])
        change = changes(optimizer) if changes else lambda _: None
        run = wrap(stepping(optimizer, lambda weight=weight: weight.square().sum()))
        for i in range(7 if changes else 10):
            run()
            change(i)
            compiles.append(getattr(run, "compiles", 0))
        ends.append(weight.detach().cpu())
    torch.testing.assert_close(*ends, **({} if changes else {"rtol": 1.2e-7, "atol": 0}))
    # Momentum is made in the first step, and that step's numbers are known as such from the second change on.
    assert compiles[-4] == compiles[-2] <= 2 + (name == "fused SGD")


def test_what_an_optimizer_cannot_do() -> None:
    weight = zeros(3).requires_grad_()
    schedule = torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([weight], lr=1.0), 0.5)
    counts, scheduled = (stepping(o, weight.sum) for o in (torch.optim.Adagrad([weight]), schedule.optimizer))
    hidden = np.array([torch.optim.SGD([weight], lr=1.0)], object)
    for step, words in (
        (counts, r"a CPU tensor of shape \[\] is written .*capturable=True"),
        (lambda: (scheduled(), schedule.step()), "lr of an optimizer was changed inside"),
        (lambda: (weight.sum().backward(), hidden[0].step()), r"of an optimizer \(SGD\) that it does not reach"),
    ):
        with pytest.raises(RuntimeError, match=words):
            jit(step)()
    assert schedule.optimizer.param_groups[0]["lr"] == 1.0


def others(states: dict[Any, Any]) -> dict[Any, Any]:
    return {key: {**state, "exp_avg": torch.ones_like(state["exp_avg"])} for key, state in states.items()}


CHANGES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "loaded": lambda o: o.load_state_dict({**o.state_dict(), "state": others(o.state_dict()["state"])}),
    "another state": lambda o: setattr(o, "state", defaultdict(dict)),
    "no state": lambda o: o.state.clear(),
    "other dictionaries": lambda o: o.state.update(others(o.state)),
    "other tensors": lambda o: [s.update(others(o.state)[p]) for p, s in o.state.items()],
    "other groups": lambda o: setattr(o, "param_groups", [{**g, "weight_decay": 0.5} for g in o.param_groups]),
    "one group more": lambda o: o.add_param_group({"params": [ones(2, requires_grad=True)]}),
    "another setting": lambda o: o.param_groups[0].update(maximize=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_optimizer_changed_between_calls(name: str) -> None:
    found = []
    for wrap in (lambda step: step, jit):
        weight = torch.tensor([0.5, 1.0, 3.0], device="jax", requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        run = wrap(stepping(optimizer, lambda weight=weight: weight.square().sum()))
        for i in range(5):
            run()
            if i == 2:
                CHANGES[name](optimizer)
        found.append([weight.detach().cpu(), optimizer.state[weight]["exp_avg"].cpu()])
    torch.testing.assert_close(*found)


# ---- buckets

SIZES = Bucket((4, 8))


def labels(count: int) -> Tensor:
    return torch.arange(count, device="jax") % 3


def test_a_step_written_for_padding_trains_as_without_and_has_a_program_a_bucket() -> None:
    seen = []
    for buckets in ({"tokens": SIZES, "wanted": Bucket((8, 4), value=-100)}, None):
        torch.manual_seed(0)
        model = torch.nn.Embedding(3, 3).to("jax")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @jit(buckets=buckets)
        def step(tokens: Tensor, wanted: Tensor, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss = F.cross_entropy(model(tokens), wanted, ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        seen.append(([step(labels(n), wanted=labels(n)).item() for n in (2, 3, 4, 7)], model.weight.detach(), step))
    (losses, weight, padded), (plain, expected, other) = seen
    assert losses == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(weight, expected)
    assert (padded.compiles, other.compiles) == (2, 4)
    assert "tensor<4xi64>" in padded.lower(labels(3), labels(3)).as_text()


def test_several_dimensions_dictionaries_and_tensors_of_the_cpu() -> None:
    buckets: Buckets = {"batch.x": [SIZES, Bucket((2, 6), -1, float("inf"))], "rest.y": Bucket((3,), value=1)}

    @jit(buckets=buckets)
    def parts(batch: dict[str, Any], y: Tensor | None = None, **more: Any) -> Any:
        return batch["x"] + batch["by"], more["rest"]["y"] * 2

    given = {"x": torch.zeros(3, 5), "by": 1}
    x, y = parts(given, rest={"y": torch.zeros(2, dtype=torch.bool)})
    assert x.device.type == y.device.type == "jax"
    assert (x.tolist(), y.tolist()) == ([[1.0] * 5 + [float("inf")]] * 4, [0, 0, 2])
    assert given["x"].shape == (3, 5)  # the caller's own


def test_what_has_a_bucket_s_size_is_the_argument_itself_and_none_stays() -> None:
    @jit(buckets={"x": SIZES, "mask": SIZES})
    def add(x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x.add_(1) if mask is None else x

    given = zeros(4)
    assert add(given) is given
    assert (given.tolist(), add(zeros(1), torch.zeros(5)).shape) == ([1.0] * 4, (4,))


def test_padded_arguments_written_without_gradients_and_eagerly() -> None:
    fill, double = (jit(fn, buckets={"x": SIZES}) for fn in (lambda x: x.zero_(), lambda x: x * 2))
    with pytest.raises(RuntimeError, match="the step wrote x, of which it has a padded copy"):
        fill(ones(3))
    with torch.inference_mode():
        assert [double(ones(n)).tolist() for n in (3, 4)] == [[2, 2, 2, 0], [2] * 4]
    assert double.compiles == 1
    with pytest.warns(UserWarning, match="runs .* eagerly"):
        assert jit(lambda x: float(x.sum()) + len(x), buckets={"x": SIZES})(ones(3)) == 7


def called(name: str, argument: Any) -> Any:
    return lambda: jit(lambda x: x, buckets={name: SIZES})(argument)


@pytest.mark.parametrize(
    ("made", "kind", "says"),
    [
        (lambda: Bucket(()), ValueError, r"positive integers, at least one; got \[\]"),
        (lambda: jit(lambda x: x, buckets={"y": SIZES}), ValueError, "buckets name 'y'; the parameters are x"),
        (lambda: jit(lambda x: x, buckets={"x": ()}), TypeError, r"buckets of 'x' are no Bucket: \(\)"),
        (called("x", torch.zeros(9)), ValueError, "dimension 0 of x has size 9, its largest bucket 8"),
        (called("x", torch.zeros(2, requires_grad=True)), ValueError, "pad x, which requires grad"),
        (called("x.a", torch.zeros(2)), TypeError, "x is no dictionary with that key"),
    ],
    ids=["no size", "name", "none", "larger", "grad", "no dictionary"],
)
def test_what_are_no_buckets_or_cannot_be_padded_is_an_error(made: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        made()


# ---- the program of an autocast step beside that of the step written by hand in JAX

RATE = "convert f64 -> f32"  # of the learning rate, which the hand-written step has as a constant


def counted(text: str) -> Counter[str]:
    """How often a StableHLO program has each dot_general and convert, by types."""

    def types(text: str) -> str:
        return ", ".join(re.findall(r"x?([a-z]+\d+)>", text))

    found = re.findall(r"stablehlo\.(dot_general|convert) .*: \(?([^)]*)\)? -> (\S+)", text)
    return Counter(f"{name} {types(given)} -> {types(result)}" for name, given, result in found)


@pytest.mark.parametrize("name", ["mlp", "block", "lstm"])
def test_an_autocast_step_has_the_products_of_the_step_written_by_hand(name: str) -> None:
    texts = [lowered.as_text() for lowered in STEPS[name]()[2]]
    ops = [len(re.findall(r"= \"?(?:stablehlo|chlo)\.(?!constant)", text)) for text in texts]
    assert name != "block" or ops[0] < 1.5 * ops[1], f"{ops[0]} operations, {ops[1]} by hand"
    ours, hand = map(counted, texts)
    dots = {kind: n for kind, n in ours.items() if kind.startswith("dot_general")}
    assert dots == {kind: n for kind, n in hand.items() if kind.startswith("dot_general")}
    assert all(kind.startswith("dot_general bf16, bf16 -> f32") for kind in dots)
    if name == "mlp":  # the others have casts of their own between kernels that PyTorch calls one by one
        assert set(ours - hand) == {RATE}
