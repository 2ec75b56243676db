"""ampcheck.watch: what it says of steps, that it changes nothing, and that its page is right."""

import copy
import pickle
import re
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampcheck
from ampcheck.errors import UsageError
from ampcheck.tools.watch import Culprit, WatchedStep
from tests.cli_support import ROOT

DOC = (ROOT / "docs" / "using.md").read_text(encoding="utf-8").partition("\n## Watch\n")[2]


class Training:
    """A small model, its optimizer and a GradScaler."""

    def __init__(self, optimizer: Any = torch.optim.SGD, scaler: Any = torch.amp.GradScaler, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.scaler = scaler("cpu", **options)

    def step(self, bad: dict[str, float] | None = None, unscale: bool = False, scaler: Any = None) -> Any:
        """Train once; the first element of some gradients is made `bad` before they are checked."""
        scaler = scaler or self.scaler
        self.optimizer.zero_grad()
        scaler.scale(self.model(torch.ones(2, 2)).mean()).backward()
        for name, param in self.model.named_parameters():
            if name in (bad or {}):
                param.grad.view(-1)[0] = (bad or {})[name]
        if unscale:
            scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        out = scaler.step(self.optimizer)
        scaler.update()
        return out


def _fused(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=lr, fused=True)


@pytest.mark.parametrize("unscale", [False, True])
def test_names_and_counts(unscale: bool) -> None:
    run = Training(init_scale=8.0)
    with ampcheck.watch(run.scaler, run.model) as watching:
        run.step(unscale=unscale)
        run.step({"0.weight": nan, "1.weight": -inf}, unscale)
    first, second = watching.steps
    assert (first.taken, first.scale, first.culprits) == (True, None, ())
    assert (second.taken, second.scale) == (False, 8.0)
    assert second.culprits == (Culprit("1.weight", 1, 0, 3), Culprit("0.weight", 0, 1, 6))
    assert watching.skipped == [second]
    assert "1.weight (1 inf of 3)" in str(second)
    assert str(second) in str(watching)


NARROW = "in a dtype that cannot hold the scale"


@pytest.mark.parametrize("loss", ["nan", "inf", NARROW])
def test_a_loss_is_told_before_its_gradients(loss: str) -> None:
    """One of two losses of an iteration is enough; the next iteration's are looked at afresh."""
    run = Training()
    with ampcheck.watch(run.scaler, run.model) as watching:
        for wrong in (loss, ""):
            right = run.model(torch.ones(2, 2)).mean()
            other = right.half() if wrong == NARROW else right * float(wrong or 1)
            sum(run.scaler.scale([other, right])).backward()
            run.scaler.step(run.optimizer)
            run.scaler.update()
            run.optimizer.zero_grad()
        run.step({"1.weight": nan})
    first, second, third = watching.steps
    assert (first.loss, first.taken, second.loss, second.taken, third.loss) == (loss, False, "", True, "")
    assert f"the loss was {loss}, before any gradient" in str(first)
    assert ("ampcheck doctor" in str(first)) == (loss != NARROW)
    assert "first in 1.weight" in str(third)


def test_without_names() -> None:
    run = Training()
    params = list(run.model.parameters())
    run.optimizer = torch.optim.SGD([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
    with ampcheck.watch(run.scaler) as watching:
        run.step({"1.weight": nan})
    assert [culprit.name for culprit in watching.last.culprits] == ["group 1, parameter 1"]


def test_several_optimizers_and_modules_by_name() -> None:
    one, two = Training(), Training()
    with ampcheck.watch(one.scaler, generator=one.model, critic=two.model, g=one.optimizer) as watching:
        for run, bad in ((one, inf), (two, nan)):
            one.scaler.scale(run.model(torch.ones(1, 2)).sum() * bad).backward()
            one.scaler.step(run.optimizer)
    assert [step.optimizer for step in watching.steps] == ["g", "optimizer 1"]
    assert [step.culprits[0].name for step in watching.steps] == ["generator.1.bias", "critic.1.bias"]


class Louder(torch.amp.GradScaler):
    """A scaler with its own step, as other libraries have."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        super().step(optimizer, *args, **kwargs)
        return "stepped"


@pytest.mark.parametrize(
    ("made", "bad", "taken"),
    [
        ({"optimizer": _fused}, [{"0.bias": inf}, {}, {"1.bias": nan}], [False, True, False]),  # asked when looked at
        ({"enabled": False}, [{"0.bias": inf}], [True]),
        ({"scaler": Louder}, [{}], [True]),
    ],
    ids=["fused", "disabled", "subclass"],
)
@pytest.mark.parametrize("unscale", [False, True])
def test_other_steps(made: Any, bad: list[dict[str, float]], taken: list[bool], unscale: bool) -> None:
    run = Training(**made)
    with ampcheck.watch(run.scaler, run.model) as watching:
        out = [run.step(one, unscale) for one in bad]
    assert [step.taken for step in watching.steps] == taken
    named = [[culprit.name for culprit in step.culprits] for step in watching.steps]
    assert named == [[] if fine else [*one] for fine, one in zip(taken, bad, strict=True)]
    assert (out == ["stepped"]) is ("scaler" in made)


def test_tells_of_each_skipped_step_and_keeps_as_many_as_asked() -> None:
    run, told = Training(), list[WatchedStep]()
    with ampcheck.watch(run.scaler, run.model, tell=told.append, keep=3) as watching:
        for bad in ({}, {"1.bias": inf}, {}, {"1.bias": nan}):
            run.step(bad)
    assert ([step.number for step in told], watching.skipped) == ([2, 4], told)
    assert [step.number for step in watching.steps] == [2, 3, 4]


def test_counts_of_an_iteration_without_a_step_are_forgotten() -> None:
    run = Training()
    with ampcheck.watch(run.scaler, run.model) as watching:
        run.scaler.scale(run.model(torch.ones(1, 2)).sum() * inf).backward()
        run.scaler.unscale_(run.optimizer)
        run.scaler.update()
        run.step({"0.bias": nan})
    assert [culprit.name for culprit in watching.last.culprits] == ["0.bias"]


def test_an_error_is_no_step_and_comes_through() -> None:
    run = Training()
    with ampcheck.watch(run.scaler, run.model) as watching:
        with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
            run.scaler.step(run.optimizer)
        copy.deepcopy(run.scaler)  # which an entry made by looking would forbid
        run.step()
    assert [step.number for step in watching.steps] == [1]


def test_nothing_is_left() -> None:
    run = Training()
    before = set(vars(run.scaler))
    watching = ampcheck.watch(run.scaler, run.model)
    run.step()
    watching.close()
    watching.close()
    assert set(vars(run.scaler)) == before
    assert not any(param._post_accumulate_grad_hooks for param in run.model.parameters())
    assert not run.optimizer._optimizer_step_post_hooks
    run.step()
    assert len(watching.steps) == 1


@pytest.mark.parametrize("through", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_copy_is_not_watched(through: Callable[[Any], Any]) -> None:
    run = Training(init_scale=4.0)
    with ampcheck.watch(run.scaler, run.model) as watching:
        run.step()
        other = through(run.scaler)
        run.step(scaler=other)
        assert other.state_dict() == {**run.scaler.state_dict(), "_growth_tracker": 2}
    assert len(watching.steps) == 1


def test_bits_are_those_of_an_unwatched_run() -> None:
    held = []
    for watched in (False, True):
        run = Training()
        watching = ampcheck.watch(run.scaler, run.model) if watched else None
        for bad in ({}, {"0.bias": inf}, {}):
            run.step(bad, True)
        held.append((run.scaler.state_dict(), [param.tolist() for param in run.model.parameters()]))
        assert (watching is not None) is watched
    assert held[0] == held[1]


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for a value."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, _fused])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_step_that_is_taken_reads_nothing_more(unscale: bool, optimizer: Any) -> None:
    reads = []
    for watched in (False, True):
        run = Training(optimizer)
        if watched:
            ampcheck.watch(run.scaler, run.model, tell=None)
        with Reads() as mode:
            run.step({}, unscale)
        reads.append(mode.count)
    assert reads[0] == reads[1]


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        ((3,), {}, "3, which is not a torch.amp.GradScaler"),
        ((torch.amp.GradScaler("cpu"),), {"keep": 0}, "keep is 0"),
        ((torch.amp.GradScaler("cpu"), 3), {}, "3, which is neither a module"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_scaler_alone(given: Any, options: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        ampcheck.watch(*given, **options)
    assert "step" not in getattr(given[0], "__dict__", {})


def test_a_scaler_is_watched_once_at_a_time() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler), pytest.raises(UsageError, match="is watched already"):
        ampcheck.watch(scaler)
    ampcheck.watch(scaler).close()


def test_the_page_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", DOC, re.DOTALL)
    line = re.search(r"^    (step 2 of sgd was .*)$", DOC, re.MULTILINE)
    exec(compile(block[1], "using.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [line[1], "True", "2.weight"]
