"""Values that Python asks for in a jitted step; what `jit` refuses or runs eagerly, and that nothing is left behind."""

import cProfile
import math
import random
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.jax_device import jit, to_jax
from ampcheck.jax_device.jit.watch import ValueNeededError
from tests.jax.agreement import doubling, grid, heard, library, ones


def x(*values: float) -> Tensor:
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
        assert torch.equal(got, want) if isinstance(want, Tensor) else str(got) == str(want)
    return run


@pytest.mark.usefixtures("quiet")
def test_random_numbers_are_drawn_once_a_call() -> None:
    def drops(a: Tensor) -> Tensor:
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
    assert (twice, torch.jax.get_rng_state().tolist()) == (again, drawn)


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
            lambda a: 1 - a.to(torch.int64).max().item(),
            lambda a: a.to(torch.bfloat16) * a.sum().item(),
        ],
    ),
    "a shape by a mask": (
        MASKS,
        (1, 2),
        [
            lambda a, m: (a * 2)[m].sum() + a.masked_select(m).sum(),
            lambda a, m: torch.nonzero(m, as_tuple=True)[0] + 1,
            lambda a, m: a.repeat_interleave(m.to(torch.int64) + 1),
        ],
    ),
    "a size": (
        SIZES,
        (2, 3),
        [
            lambda a: a[: a.to(torch.int64).sum().item()] * 2,
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


def eagerly(fn: Callable[..., Any], *inputs: Any) -> Any:
    """The jitted function, which ran eagerly on some of the inputs."""
    run = jit(fn)
    assert any("eagerly" in line for line in heard(lambda: [run(given) for given in inputs]))
    return run


def test_what_python_does_by_a_value_runs_eagerly() -> None:
    kept: list[float] = []
    last: dict[str, float] = {}
    seen: set[float] = set()

    reader = SimpleNamespace()
    for fn in (
        lambda a: kept.append(a.sum().item()),
        lambda a: last.update(loss=a.sum().item()),
        lambda a: seen.add(a.sum().item()),
        lambda a: setattr(reader, "loss", a.sum().item()),
        lambda a: math.isfinite(a.sum().item()),
        lambda a: float(a.sum()),
        lambda a: float(to_jax(a.sum())),
        lambda a: float(np.asarray(to_jax(a)).sum()),
        tries,
        lambda a: f"{a.sum().item():.2f}",
        lambda a: a.sum().item() / (a.sum().item() + 1),
        lambda a: a.to(torch.int64).sum().item() // 2,
        lambda a: a.tolist(),
        lambda a: a.cpu(),
        lambda a: range(int(a.sum() * 1.5)) if math.floor(a.sum().item()) else 0,
    ):
        eagerly(fn, x(), x())
    assert (kept, last, seen, reader.loss) == ([3.0, 3.0], {"loss": 3.0}, {3.0}, 3.0)
    assert type(reader.loss) is type(kept[0]) is float


def test_what_an_unseen_object_keeps_is_kept_at_each_call() -> None:
    unseen = np.array([None], object)
    for fn, want in (
        (lambda a: unseen.__setitem__(0, a.sum().item()), 3.0),
        (lambda a: unseen.__setitem__(0, a.sum().item() * 2), 6.0),
        (lambda a: unseen.__setitem__(0, (a > 0).nonzero()), [[1], [2]]),
    ):
        run = eagerly(fn, x())
        unseen[0] = None
        run(x())
        assert type(unseen[0]) is (float if type(want) is float else Tensor)
        assert (unseen[0] if type(want) is float else unseen[0].tolist()) == want


def test_many_outcomes_run_eagerly() -> None:
    def places(a: Tensor) -> Tensor:
        return (a > 0).nonzero()

    run = jit(places)
    masks = [torch.tensor([n >> k & 1 for k in range(4)], device="jax") for n in range(1, 14)]
    told = heard(lambda: [run(mask) for mask in masks])
    assert [run(mask).tolist() for mask in masks] == [places(mask).tolist() for mask in masks]
    assert (run.compiles, len(told)) == (3, 2)
    assert re.search(r"eagerly, as there were more than 3 outcomes of .*\(a > 0\)\.nonzero", told[1])

    def loops(a: Tensor) -> Tensor:
        while a.sum() < 100:
            a = a + 1
        return a

    assert torch.equal(eagerly(loops, x())(x()), loops(x()))


def test_values_inside_of_transforms_and_backward() -> None:
    clipped = doubling(lambda grad: grad.clamp(max=1) if grad.max() > 1 else grad)

    def grads(a: Tensor) -> Tensor:
        b = a.detach().requires_grad_()
        (clipped(b) * a).sum().backward()
        return b.grad

    with pytest.warns(UserWarning, match="outcome"):
        run = both(grads, (x(),), (x(0.5, 0.25, 0.125),), (x(),))
    assert run.compiles == 2


STATEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
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
    def program(a: Tensor) -> tuple[Tensor, float]:
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


def branch(a: Tensor) -> Tensor:
    if a.sum() > 0:
        return a
    return -a


def tries(a: Tensor) -> Tensor:
    try:
        return a * float(a.sum())
    except RuntimeError:  # takes the error for one of its own
        return a


NEEDS: dict[str, Callable[[Tensor], Any]] = {
    r"aten::is_nonzero needs a value.* at .*jit_values\.py:\d+ \(`if a\.sum\(\) > 0:`\)": branch,
    r"float\(a\.sum\(\)\)": tries,
    "aten::(.*)item": lambda a: a * a.sum().item(),
    "aten::(.*)index": lambda a: a[a > 1],
    r"an array of JAX needs a value.*values\.py:\d+ \(`.*to_jax\(a\.sum": lambda a: float(to_jax(a.sum())),
    r"an array of JAX needs a value.*values\.py:\d+ \(`.*np\.asarray": lambda a: float(np.asarray(to_jax(a)).sum()),
    r"grad\.sum\(\)\.item\(\)": lambda a: (
        doubling(lambda grad: grad * grad.sum().item())(torch.ones_like(a, requires_grad=True)).sum().backward()
    ),
}


@pytest.mark.parametrize("words", NEEDS)
def test_with_fullgraph_a_value_that_python_needs_is_an_error(words: str) -> None:
    with pytest.raises(ValueNeededError, match=words):
        jit(NEEDS[words], fullgraph=True)(grid())


def three_steps(wrap: Callable[..., Any]) -> tuple[Any, ...]:
    """Everything that three steps leave behind, each of which asks for values at its end."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, capturable=True)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.optim.lr_scheduler.StepLR(optimizer, 1)], [2]
    )
    meter = SimpleNamespace(calls=0, losses=[])
    scaler, host, drawn = torch.amp.GradScaler("jax"), torch.zeros(2), list[Any]()

    def step(a: Tensor) -> Any:
        meter.calls += 1
        meter.losses.append(meter.calls)
        loss = F.dropout(model(a), 0.5).pow(2).mean()
        scaler.scale(loss).backward()  # adds to what the last step left
        scaler.step(optimizer)
        scaler.update()
        host.add_(1)
        scheduler.step()
        a.add_(1)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
        meter.new = len(drawn)
        return loss.item()

    given, run = grid(), wrap(step)
    found = [run(given) for _ in range(3)]
    return (
        found, [meter.calls, meter.losses, vars(meter), host.tolist(), drawn, given.tolist()],
        [(p.tolist(), p.grad.tolist()) for p in model.parameters()], [b.tolist() for b in model.buffers()],
        [{k: v.tolist() for k, v in state.items()} for state in optimizer.state.values()],
        scheduler.state_dict(), scheduler.get_last_lr(), scaler.state_dict(), torch.jax.get_rng_state().tolist(),
    )  # fmt: skip


def test_a_step_that_needs_a_value_runs_eagerly_as_if_it_had_not_been_traced() -> None:
    expected = three_steps(lambda step: step)
    with pytest.warns(UserWarning, match="runs three_steps.<locals>.step eagerly") as told:
        assert three_steps(jit) == expected
    assert [str(w.filename) for w in told] == [__file__]
    text = str(told[0].message)
    assert re.search(r"random of Random draws .* at .*jit_values\.py:\d+ \(`drawn\.append\(\(random\.random\(\)", text)
    assert "fullgraph=True" in text
    with pytest.raises(ValueNeededError, match="draws random numbers"):
        three_steps(lambda step: jit(step, fullgraph=True))


def test_only_the_calls_that_need_a_value_run_eagerly() -> None:
    asked = deque[bool]()

    def branch(a: Tensor, look: bool) -> Tensor:
        asked.append(torch.compiler.is_compiling())
        return a * 2 if look and a.sum() > 0 else a * 3

    run = jit(branch)
    assert run(grid(), False)[0, 1].item() == 3.0
    with pytest.warns(UserWarning, match="eagerly") as told:
        assert run(grid(), True)[0, 1].item() == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(grid(), True)[0, 1].item() == 2.0
        assert run(-grid(), True)[0, 1].item() == -3.0  # the same kind, the other branch
        assert run(grid(), False)[0, 1].item() == 3.0
        assert run(grid()[:1], True)[0, 1].item() == 2.0  # another kind, the same place
    assert (len(told), run.compiles) == (1, 2)
    assert [*asked] == [True, False, False, False, True, False]  # what was tried is taken back


def test_an_eager_step_keeps_its_graph_and_its_errors() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")

    def fails(a: Tensor) -> Tensor:
        if a.sum() > 100:
            raise KeyError("planted")
        return linear(a)

    run = jit(fails)
    with pytest.warns(UserWarning, match="eagerly"):
        run(grid()).sum().backward()
    assert linear.weight.grad is not None
    with pytest.raises(KeyError, match="planted") as caught:
        run(grid() + 100)
    assert caught.value.__context__ is None


def test_what_a_program_cannot_do() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")
    kept: list[Any] = []
    host = torch.zeros(3)
    refused: list[tuple[Callable[[Tensor], Any], Any, type[Exception], str]] = [
        (lambda a: kept.append(a * 2), grid(), RuntimeError, r"outlives the call: the result of aten::mul"),
        (linear, grid(), RuntimeError, "returns a tensor that requires grad"),
        (lambda a: host.add_(1), grid(), RuntimeError, r"a CPU tensor of shape \[3\] is written"),
        (lambda a: setattr(a, "data", a * 2), grid(), RuntimeError, "another storage"),
        (lambda a: a * 2, linear(grid()), ValueError, "part of a graph from outside"),
        (lambda a: a * 2, torch.zeros(10000), ValueError, "10000 elements on cpu"),
        (lambda a: a, jnp.zeros(3), TypeError, "got a ArrayImpl"),
    ]
    for fn, given, kind, words in refused:
        with pytest.raises(kind, match=words):
            jit(fn)(given)
    assert (host == 0).all()


def looking(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    self.products += any(name in str(func) for name in ("matmul", "aten.mm."))
    return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("base", [TorchFunctionMode, TorchDispatchMode])
def test_a_mode_sees_the_ops(base: type) -> None:
    names = "__torch_function__", "__torch_dispatch__", "products"
    mode, given = type("Looking", (base,), dict(zip(names, (looking, looking, 0), strict=True)))(), ones(2, 3)

    def inside(a: Tensor) -> Tensor:
        with mode:
            return a @ a.mT

    run, alone, expected = jit(lambda a: a @ a.mT), jit(lambda: given @ given.mT), given @ given.mT
    outer = jit(lambda a: run(a) * 2)
    assert torch.equal(outer(given), expected * 2)
    assert (run.compiles, outer.compiles) == (0, 1)  # it is part of the other's program
    assert torch.equal(jit(inside)(given), expected)
    for call, args in ((run, [given]), (alone, [])) * 2:
        for _ in range(3):  # the last by the short way
            call(*args)
        with mode:
            assert torch.equal(call(*args), expected)
    assert mode.products == 5


def test_many_programs_are_told() -> None:
    run = jit(lambda a, n: a * n, warn_after=3)
    run(grid(), 0)
    run(grid(), 1)
    with pytest.warns(UserWarning, match="traced .* 3 times.* changed: 1 became 2"):
        run(grid(), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(grid(), 3)


YES: dict[str, Any] = {
    "torch.compiler.is_compiling": lambda: lambda: torch.compiler.is_compiling(),
    "taken before": lambda: is_compiling,
    "transformers is_torchdynamo_compiling": lambda: (
        library("transformers").utils.import_utils.is_torchdynamo_compiling
    ),
}


@pytest.mark.parametrize("way", YES)
def test_what_says_that_it_is_traced(way: str) -> None:
    asked = YES[way]()
    noted: dict[str, bool] = {}

    hears = doubling(lambda grad: (noted.update(backward=asked()), grad)[1])
    weight = ones(2, 3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    optimizer.register_step_pre_hook(lambda *_: noted.update(step=asked()))

    def step(a: Tensor, fails: bool = False) -> Tensor:
        noted["forward"] = asked()
        other = threading.Thread(target=lambda: noted.update(other=asked()))
        other.start()
        other.join()
        optimizer.zero_grad()
        loss = hears(weight * a).sum()
        loss.backward()
        optimizer.step()
        noted["nested"] = jit(lambda: asked())()
        if fails:
            raise ValueError("planted")
        return loss.detach()

    run = jit(step, fullgraph=True)
    assert asked() is False
    run(ones(2, 3))
    assert asked() is False
    assert noted == {"forward": True, "other": False, "backward": True, "step": True, "nested": True}
    assert all(type(answer) is bool for answer in noted.values())
    noted.clear()
    run(ones(2, 3))
    assert not noted  # the program runs, and asks nothing
    with pytest.raises(ValueError, match="planted"):
        run(ones(2, 3), fails=True)
    assert asked() is False
    with pytest.warns(UserWarning, match="eagerly"):
        assert jit(lambda a: [float(a.sum()), asked()])(ones(2, 3))[1] is False


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_gives_its_own_kind_of_output() -> None:
    package = library("transformers")
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = package.LlamaConfig(**settings, vocab_size=64, max_position_embeddings=8, num_key_value_heads=2)
    model, given = package.LlamaForCausalLM(config).to("jax").eval(), torch.arange(16, device="jax").view(2, 8)
    with torch.no_grad():
        expected, found = (call(input_ids=given, use_cache=False) for call in (model, jit(model, fullgraph=True)))
    assert type(found) is type(expected)
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)


@pytest.mark.parametrize("name", ["cProfile", "function", "torch.profiler"])
def test_a_profiler_goes_on_or_says_that_it_cannot(name: str) -> None:
    seen: list[str] = []
    profilers: dict[str, Any] = {
        "cProfile": cProfile.Profile,
        "function": lambda: nullcontext(sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name))),
        "torch.profiler": lambda: torch.profiler.profile(with_stack=True),
    }
    run = jit(lambda a: a * 2 + 1)

    def later() -> Tensor:
        return run(ones(3))

    with profilers[name]() as profiler:
        said = heard(lambda: run(ones(3)))
        later()
        sys.setprofile(None)
    assert run(ones(3)).tolist() == [3.0] * 3
    assert [("sees nothing of this thread any more" in text) for text in said] == [True] * (name == "torch.profiler")
    if name == "cProfile":
        seen = [getattr(entry.code, "co_name", "") for entry in profiler.getstats()]
    assert ("later" in seen) == (name != "torch.profiler")
