"""ampcheck.watch: what it says of steps, that it changes nothing, and that its page is right."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from math import inf, nan
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampcheck
from ampcheck.errors import UsageError
from ampcheck.tools.watch import Culprit, Watch, WatchedStep
from tests.cli_support import ROOT

DOC = (ROOT / "docs" / "using.md").read_text(encoding="utf-8").partition("\n## Watch\n")[2]


def _model() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _step(
    scaler: torch.amp.GradScaler, model: Any, optimizer: Any, bad: dict[str, float], unscale: bool = False
) -> None:
    """An iteration in which the first element of some gradients is made `bad` before they are checked."""
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 2)).mean()).backward()
    for name, param in model.named_parameters():
        if name in bad:
            param.grad.view(-1)[0] = bad[name]
    if unscale:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("unscale", [False, True])
def test_names_and_counts(unscale: bool) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with ampcheck.watch(scaler, model) as watching:
        _step(scaler, model, optimizer, {}, unscale)
        _step(scaler, model, optimizer, {"0.weight": nan, "1.weight": -inf}, unscale)
    first, second = watching.steps
    assert (first.taken, first.scale, first.culprits) == (True, None, ())
    assert (second.taken, second.scale) == (False, 8.0)
    assert second.culprits == (Culprit("1.weight", 1, 0, 3), Culprit("0.weight", 0, 1, 6))
    assert watching.skipped == [second]
    assert str(first) == "step 1 of optimizer 0 was taken"
    assert str(second) == (
        "step 2 of optimizer 0 was skipped at scale 8: first in 1.weight (1 inf of 3), then in 0.weight (1 nan of 6)"
    )
    assert str(watching) == f"2 steps; of the last 2, 1 were skipped\n{second}"


def test_without_names() -> None:
    model, _ = _model()
    params = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler) as watching:
        _step(scaler, model, optimizer, {"1.weight": nan})
    assert watching.last is not None
    assert [culprit.name for culprit in watching.last.culprits] == ["group 1, parameter 1"]


def test_several_optimizers_and_modules_by_name() -> None:
    (one, first), (two, second) = _model(), _model()
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler, generator=one, critic=two, g=first) as watching:
        for model, optimizer, bad in ((one, first, inf), (two, second, nan)):
            scaler.scale(model(torch.ones(1, 2)).sum() * bad).backward()
            scaler.step(optimizer)
    assert [step.optimizer for step in watching.steps] == ["g", "optimizer 1"]
    assert [step.culprits[0].name for step in watching.steps] == ["generator.1.bias", "critic.1.bias"]


def test_fused_is_asked_when_looked_at() -> None:
    model, _ = _model()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler, model) as watching:
        _step(scaler, model, optimizer, {"0.bias": inf})
        _step(scaler, model, optimizer, {}, True)
        _step(scaler, model, optimizer, {"1.bias": nan}, True)
    assert [step.taken for step in watching.steps] == [False, True, False]
    assert [[str(c) for c in step.culprits] for step in watching.steps] == [
        ["0.bias (1 inf of 3)"],
        [],
        ["1.bias (1 nan of 1)"],
    ]


def test_tells_of_each_skipped_step() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    told: list[WatchedStep] = []
    with ampcheck.watch(scaler, model, tell=told.append) as watching:
        for bad in ({}, {"1.bias": inf}, {}, {"1.bias": nan}):
            _step(scaler, model, optimizer, bad)
    assert told == watching.skipped
    assert [step.number for step in told] == [2, 4]


def test_keeps_as_many_as_asked() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler, model, keep=2) as watching:
        for _ in range(5):
            _step(scaler, model, optimizer, {})
    assert [step.number for step in watching.steps] == [4, 5]


def test_counts_of_an_iteration_without_a_step_are_forgotten() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler, model) as watching:
        scaler.scale(model(torch.ones(1, 2)).sum() * inf).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        _step(scaler, model, optimizer, {"0.bias": nan})
    assert watching.last is not None
    assert [culprit.name for culprit in watching.last.culprits] == ["0.bias"]


def test_disabled() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with ampcheck.watch(scaler, model) as watching:
        _step(scaler, model, optimizer, {"0.bias": inf}, True)
    assert [step.taken for step in watching.steps] == [True]


def test_an_error_is_no_step_and_comes_through() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler, model) as watching:
        with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
            scaler.step(optimizer)
        copy.deepcopy(scaler)  # which an entry made by looking would forbid
        _step(scaler, model, optimizer, {})
    assert [step.number for step in watching.steps] == [1]


class _Louder(torch.amp.GradScaler):
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        super().step(optimizer, *args, **kwargs)
        return "stepped"


def test_a_subclass_keeps_its_own() -> None:
    model, optimizer = _model()
    scaler = _Louder("cpu")
    with ampcheck.watch(scaler, model) as watching:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        assert scaler.step(optimizer) == "stepped"
    assert watching.last is not None
    assert watching.last.taken


def test_nothing_is_left() -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    before = set(vars(scaler))
    watching = ampcheck.watch(scaler, model)
    _step(scaler, model, optimizer, {})
    watching.close()
    watching.close()
    assert set(vars(scaler)) == before
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())
    assert not optimizer._optimizer_step_post_hooks
    _step(scaler, model, optimizer, {})
    assert len(watching.steps) == 1


@pytest.mark.parametrize("through", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_copy_is_not_watched(through: Any) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ampcheck.watch(scaler, model) as watching:
        _step(scaler, model, optimizer, {})
        other = through(scaler)
        _step(other, model, optimizer, {})
        assert other.state_dict() == {**scaler.state_dict(), "_growth_tracker": 2}
    assert len(watching.steps) == 1


def test_bits_are_those_of_an_unwatched_run() -> None:
    held = []
    for watched in (False, True):
        model, optimizer = _model()
        scaler = torch.amp.GradScaler("cpu")
        watching = ampcheck.watch(scaler, model) if watched else None
        for bad in ({}, {"0.bias": inf}, {}):
            _step(scaler, model, optimizer, bad, True)
        held.append((scaler.state_dict(), [param.tolist() for param in model.parameters()]))
        assert (watching is not None) is watched
    assert held[0] == held[1]


class _Reads(TorchDispatchMode):
    """Counts what makes the host wait for a value."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_step_that_is_taken_reads_nothing_more(unscale: bool, fused: bool) -> None:
    reads = []
    for watched in (False, True):
        model, _ = _model()
        optimizer = torch.optim.Adam(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cpu")
        if watched:
            ampcheck.watch(scaler, model, tell=None)
        with _Reads() as mode:
            _step(scaler, model, optimizer, {}, unscale)
        reads.append(mode.count)
    assert reads[0] == reads[1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ampcheck.watch(3), "watch was given 3, which is not a torch.amp.GradScaler"),  # type: ignore[arg-type]
        (lambda: ampcheck.watch(torch.amp.GradScaler("cpu"), keep=0), "keep is 0"),
        (lambda: ampcheck.watch(torch.amp.GradScaler("cpu"), 3), "3, which is neither a module"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        call()


def test_watched_twice() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch(scaler), pytest.raises(UsageError, match="is watched already"):
        ampcheck.watch(scaler)
    with ampcheck.watch(scaler) as second:
        assert isinstance(second, Watch)


def test_refused_input_leaves_the_scaler_alone() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(UsageError):
        ampcheck.watch(scaler, "model")  # type: ignore[arg-type]
    assert "step" not in vars(scaler)


def test_the_page_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", DOC, re.DOTALL)
    line = re.search(r"^    (step 2 of sgd was .*)$", DOC, re.MULTILINE)
    assert block is not None
    assert line is not None
    exec(compile(block[1], "using.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [line[1], "True", "2.weight"]


def test_importing_ampcheck_imports_no_torch() -> None:
    code = "import sys, ampcheck; assert 'watch' in dir(ampcheck); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_patch_of_a_method_is_seen() -> None:
    """The watch calls the methods that the class has at its start, so it does not hide a fault planted there."""
    model, optimizer = _model()
    with patch.object(torch.amp.GradScaler, "step", lambda self, optimizer: "planted"):
        scaler = torch.amp.GradScaler("cpu")
        with ampcheck.watch(scaler, model):
            scaler.scale(torch.ones(()))
            called: Any = scaler.step(optimizer)
    assert called == "planted"
