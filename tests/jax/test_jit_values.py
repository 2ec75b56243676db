"""Values that Python asks for in a jitted step: branches and shapes have programs, numbers come after the call."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from ampcheck.jax_device import jit


def x(*values: float) -> torch.Tensor:
    return torch.tensor(values or (0.0, 1.0, 2.0), device="jax", dtype=torch.float32)


@pytest.fixture
def quiet() -> Iterator[None]:
    """No step runs eagerly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="jit runs .* eagerly")
        yield


def both(fn: Callable[..., Any], *inputs: tuple[Any, ...]) -> Any:
    """The jitted function, after it gave on each of the inputs what the plain one gives."""
    run = jit(fn)
    for given in inputs:
        got, want = run(*given), fn(*given)
        assert type(got) is type(want)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else str(got) == str(want)
    return run


def test_the_line_of_a_branch_is_told_once() -> None:
    def branch(a: torch.Tensor) -> torch.Tensor:
        if a.sum() > 0:
            return a * 2
        return a

    run = jit(branch)
    with pytest.warns(UserWarning, match="a program of .*branch for each outcome of") as told:
        run(x())
    assert len(told) == 1
    assert not heard(lambda: run(-x()))
    assert re.search(r"jit_values\.py:\d+ \(`if a\.sum\(\) > 0:`\)", str(told[0].message))
    assert told[0].filename == __file__


@pytest.mark.usefixtures("quiet")
def test_nothing_is_taken_over_of_a_program_whose_outcome_is_another() -> None:
    def trained(wrap: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to("jax")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("jax", init_scale=4.0)

        @wrap
        def step(a: torch.Tensor) -> tuple[torch.Tensor, float]:
            optimizer.zero_grad()
            with torch.autocast("jax", dtype=torch.float16):
                loss = model(a).pow(2).mean()
            if not torch.isfinite(loss):
                return loss.detach(), 0.0
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss, loss.item()

        a = torch.arange(6.0, device="jax").view(2, 3)
        found = [step(b) for b in (a, a + 1, a * math.inf, a - 1, a * math.inf, a)]
        kept = [p.detach().cpu() for p in (*model.parameters(), *model.buffers())]
        return [[loss.cpu() for loss, _ in found], [number for _, number in found], kept, scaler.state_dict()]

    plain, compiled = trained(lambda step: step), trained(jit)
    torch.testing.assert_close(compiled, plain, equal_nan=True, rtol=1e-3, atol=1e-3)
    assert [number == 0.0 for number in compiled[1]] == [False, False, True, False, True, False]


@pytest.mark.usefixtures("quiet")
def test_random_numbers_are_drawn_once_a_call() -> None:
    def drops(a: torch.Tensor) -> torch.Tensor:
        return F.dropout(a, 0.5) if a.sum() > 0 else F.dropout(a, 0.5).neg()

    run = jit(drops)
    for a in (x(), -x(), x()):
        run(a)
    torch.manual_seed(0)
    twice = [run(a).tolist() for a in (x(), -x(), x())]
    drawn = torch.jax.get_rng_state().tolist()
    torch.manual_seed(0)
    one = jit(lambda a: F.dropout(a.abs(), 0.5))
    again = [one(x()).tolist() for _ in range(3)]
    assert twice == again
    assert torch.jax.get_rng_state().tolist() == drawn


NUMBERS = [(x(*v),) for v in ((0, 1, 2), (3, 4, 5), (-1.5, 0.25, 8))]
MASKS = [(x(), torch.tensor(m, device="jax")) for m in ((True, False, True), (False, False, True), (True, False, True))]
SIZES = [(x(*v),) for v in ((0, 1, 2), (2, 1, 0), (1, 1, 0))]
PROGRAMS: dict[str, tuple[list[tuple[Any, ...]], tuple[int, ...], list[Callable[..., Any]]]] = {
    "a branch": ([(x(),), (-x(),), (x(),), (x() + 1,)], (2,), [lambda a: a * 2 if a.sum() > 0 else a - 1]),
    "a number that is returned or computed with": (
        NUMBERS,
        (1,),
        [
            lambda a: a.to(torch.int64).sum().item(),
            lambda a: {"loss": a.mean().item() * 2 + 1, "right": (a > 1).sum().item() / 3},
            lambda a: a.sum().item() > 4,
            lambda a: 1 - a.to(torch.int64).max().item(),
            lambda a: a.to(torch.bfloat16) * a.sum().item(),
            lambda a: torch.add(a, a, alpha=a.sum().item()),
        ],
    ),
    "a shape by a mask": (
        MASKS,
        (1, 2),
        [
            lambda a, m: (a * 2)[m].sum() + a.masked_select(m).sum(),
            lambda a, m: torch.nonzero(m, as_tuple=True)[0] + 1,
            lambda a, m: a.repeat_interleave(m.to(torch.int64) + 1),
            lambda a, m: a.index_put((m,), torch.ones((), device="jax")),
            lambda a, m: torch.bincount(m.to(torch.int64)),
        ],
    ),
    "a size": (
        SIZES,
        (2, 3),
        [
            lambda a: a[: a.to(torch.int64).sum().item()] * 2,
            lambda a: a.new_zeros(int(a.to(torch.int64).sum()), 2),
            lambda a: sum((a * i for i in range(int(a.to(torch.int64).sum()))), a),
        ],
    ),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_values_decide_is_right_and_has_so_many_programs(kind: str) -> None:
    inputs, programs, functions = PROGRAMS[kind]
    for fn in functions:
        assert both(fn, *inputs).compiles in programs, fn


@pytest.mark.nightly
@pytest.mark.usefixtures("quiet")
def test_lengths_of_sequences() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 2, 5, generator=generator).to("jax")
    linear = torch.nn.Linear(5, 5).to("jax")

    def step(labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        linear.zero_grad()
        loss = F.ctc_loss(linear(scores).log_softmax(-1), labels, lengths, torch.full_like(lengths, 2))
        loss.backward()
        return loss.detach()

    run = jit(step)
    for lengths in ((6, 5), (6, 5), (4, 6)):
        for _ in range(2):
            labels = torch.randint(1, 5, (2, 2), generator=generator).to("jax")
            given = torch.tensor(lengths, device="jax")
            got, grad = run(labels, given), linear.weight.grad
            torch.testing.assert_close(got, step(labels, given))
            torch.testing.assert_close(grad, linear.weight.grad)
    assert run.compiles == 2


def heard(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in found]


def eagerly(fn: Callable[..., Any], *inputs: Any) -> Any:
    """The jitted function, which ran eagerly on some of the inputs."""
    run = jit(fn)
    assert any("eagerly" in line for line in heard(lambda: [run(given) for given in inputs]))
    return run


def test_what_python_does_by_a_value_runs_eagerly() -> None:
    kept: list[float] = []
    last: dict[str, float] = {}
    seen: set[float] = set()

    class Reader:
        loss = 0.0

    reader = Reader()
    for fn in (
        lambda a: kept.append(a.sum().item()),
        lambda a: last.update(loss=a.sum().item()),
        lambda a: seen.add(a.sum().item()),
        lambda a: setattr(reader, "loss", a.sum().item()),
        lambda a: math.isfinite(a.sum().item()),
        lambda a: float(a.sum()),
        lambda a: f"{a.sum().item():.2f}",
        lambda a: a.sum().item() / (a.sum().item() + 1),
        lambda a: a.to(torch.int64).sum().item() // 2,
        lambda a: a.tolist(),
        lambda a: a.cpu(),
        lambda a: range(int(a.sum() * 1.5)) if math.floor(a.sum().item()) else 0,
    ):
        eagerly(fn, x(), x())
    assert kept == [3.0, 3.0]
    assert last == {"loss": 3.0}
    assert seen == {3.0}
    assert reader.loss == 3.0
    assert type(reader.loss) is type(kept[0]) is float


class Unseen:
    """An object that the walk does not see into."""

    __slots__ = ("value",)
    value: Any


def test_what_an_unseen_object_keeps_is_kept_at_each_call() -> None:
    unseen = Unseen()
    for fn, want in (
        (lambda a: setattr(unseen, "value", a.sum().item()), 3.0),
        (lambda a: setattr(unseen, "value", a.sum().item() * 2), 6.0),
        (lambda a: setattr(unseen, "value", (a > 0).nonzero()), [[1], [2]]),
    ):
        run = eagerly(fn, x())
        unseen.value = None
        run(x())
        assert type(unseen.value) is (float if type(want) is float else torch.Tensor)
        assert (unseen.value if type(want) is float else unseen.value.tolist()) == want


def test_what_a_branch_counts_is_counted_at_each_call() -> None:
    counted = {"positive": 0}

    def branch(a: torch.Tensor) -> torch.Tensor:
        if a.sum() > 0:
            counted["positive"] += 1
        return a * 2

    eagerly(branch, x(), x(), -x(), x())
    assert counted == {"positive": 3}


def test_many_outcomes_run_eagerly() -> None:
    def places(a: torch.Tensor) -> torch.Tensor:
        return (a > 0).nonzero()

    run = jit(places)
    masks = [torch.tensor([n >> k & 1 for k in range(4)], device="jax") for n in range(1, 14)]
    told = heard(lambda: [run(mask) for mask in masks])
    assert [run(mask).tolist() for mask in masks] == [places(mask).tolist() for mask in masks]
    assert run.compiles == 3
    assert len(told) == 2
    assert re.search(r"eagerly, as there were more than 3 outcomes of .*\(a > 0\)\.nonzero", told[1])

    def loops(a: torch.Tensor) -> torch.Tensor:
        while a.sum() < 100:
            a = a + 1
        return a

    assert torch.equal(eagerly(loops, x())(x()), loops(x()))


def test_values_inside_of_transforms_and_backward() -> None:
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad.clamp(max=1) if grad.max() > 1 else grad

    def grads(a: torch.Tensor) -> torch.Tensor:
        b = a.detach().requires_grad_()
        (Clipped.apply(b) * a).sum().backward()
        return b.grad

    with pytest.warns(UserWarning, match="outcome"):
        run = both(grads, (x(),), (x(0.5, 0.25, 0.125),), (x(),))
    assert run.compiles == 2


STATEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "branch": lambda a: a * 2 if a.sum() > 0 else a - 1,
    "compared": lambda a: a + 1 if a.max().item() > 2 else a,
    "computed": lambda a: a + a.mean().item() * 0.5,
    "condition": lambda a: torch.cond(a[0] > 0, torch.abs, torch.neg, (a,)),
    "equal": lambda a: a / 2 if torch.equal(a, a.abs()) else a,
    "loop": lambda a: a * 1.5 ** int((a > 1).sum()),
    "mask": lambda a: a + a[a > 1].sum(),
    "region": lambda a: a.bfloat16().float() if (a < 0).any().item() else a,
    "size": lambda a: a + a[: (a > 0).sum().item()].sum(),
    "written": lambda a: a.mul_(0.5) if a.abs().max() > 4 else a,
}
INPUTS = ((0.0, 1.0, 2.0), (-3.0, 5.0, 0.25), (-1.0, -2.0, -4.0))


@pytest.mark.filterwarnings("ignore:jit ", "ignore::DeprecationWarning")
@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
    st.lists(st.sampled_from(sorted(STATEMENTS)), min_size=1, max_size=5), st.lists(st.sampled_from(INPUTS), max_size=6)
)
def test_drawn_programs(names: list[str], inputs: list[tuple[float, ...]]) -> None:
    def program(a: torch.Tensor) -> tuple[torch.Tensor, float]:
        for name in names:
            a = STATEMENTS[name](a)
        return a, a.sum().item()

    run = jit(program)
    for values in inputs:
        got, want = x(*values), x(*values)
        (out, number), (expected, total) = run(got), program(want)
        torch.testing.assert_close((out, got), (expected, want))
        assert type(number) is float
        assert number == pytest.approx(total, nan_ok=True)
        assert (out is got) is (expected is want)
