"""A trace against independent truth: the profiler's event tree, and the same program without a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from ampcheck import trace
from ampcheck.errors import UsageError
from tests.processor import lstm_that_runs
from tests.tools.trace_programs import GRAD, PROGRAMS, Mlp, Program, casts, region


@pytest.fixture(autouse=True)
def _lstm_that_runs() -> Iterator[None]:
    with lstm_that_runs():
        yield


WHOLE = ("mlp", "conv_bn") if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ("mlp",)
"""Programs whose kernels cast nothing by themselves. PyTorch's own bfloat16 convolution does, which runs where oneDNN
has none for the processor."""


def profiled(run: Program) -> tuple[int, int, int]:
    """All casts, those autocast makes and those of gradients that a program makes, from the profiler.

    A kernel of autocast casts and then calls its own op again, so the last event of such a cast's parent has its name.
    """
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        run()
    found = [event for event in prof.events() if event.name == "aten::_to_copy"]
    autocast = gradient = 0
    for event in found:
        conversion = event.cpu_parent
        caller = conversion.cpu_parent if conversion is not None else None
        if caller is None:
            continue
        if caller.cpu_children[-1].name == caller.name:
            autocast += 1
        elif "ToCopyBackward" in caller.name:
            gradient += 1
    return len(found), autocast, gradient


def _compare_totals(program: str, t: Any, total: int) -> None:
    seen = sum(len(op.casts) for op in t.ops)
    # The profiler also sees what a single kernel casts inside of itself, as the recurrent one does.
    assert seen == total if program in WHOLE else seen <= total


@pytest.mark.parametrize("mode", GRAD)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_casts_are_those_the_profiler_sees(program: str, mode: str) -> None:
    run = PROGRAMS[program]()

    def inside() -> None:
        with region(), GRAD[mode]():
            run()
            run()

    total, autocast, _ = profiled(inside)
    with trace() as t:
        inside()
    assert len(casts(t, "autocast")) == autocast > 0
    _compare_totals(program, t, total)


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_casts_of_a_backward_are_those_the_profiler_sees(program: str, where: str) -> None:
    run = PROGRAMS[program]()

    def step() -> None:
        with region():
            loss = run().float().sum()
            if where == "inside":
                loss.backward()
        if where == "outside":
            loss.backward()

    total, autocast, gradient = profiled(step)
    with trace() as t:
        step()
    _compare_totals(program, t, total)
    assert len(casts(t, "autocast")) == autocast > 0
    of_the_program = sum(op.phase == "backward" for op in t.ops for cast in op.casts if cast.origin == "user")
    if program in WHOLE:
        assert len(casts(t, "gradient")) + of_the_program == gradient
    assert 0 < len(casts(t, "gradient")) <= gradient
    backward = [cast for op in t.ops if op.phase == "backward" for cast in op.casts if cast.origin == "autocast"]
    assert where == "inside" or not backward


@pytest.mark.parametrize("mode", GRAD)
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_what_they_are_without_a_trace(program: str, mode: str) -> None:
    run = PROGRAMS[program]()
    with region(), GRAD[mode]():
        expected = run()
    with trace(), region(), GRAD[mode]():
        got = run()
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def _trained(traced: bool, where: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Mlp(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    out = []
    with trace() if traced else contextlib.nullcontext():
        for _ in range(3):
            with region():
                hidden = checkpoint(model, torch.randn(2, 8), use_reentrant=False)
                loss = hidden.square().mean()
                if where == "inside":
                    scaler.scale(loss).backward()
            if where == "outside":
                scaler.scale(loss).backward()
            out += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [*out, *model.state_dict().values()]


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_training_is_what_it_is_without_a_trace(where: str) -> None:
    plain, traced = _trained(False, where), _trained(True, where)
    assert len(plain) == len(traced)
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


def test_the_fast_path_of_a_transformer_is_taken_as_without_a_trace() -> None:
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad(), trace() as t:
        model(x)
    assert [op.name for op in t.ops] == ["_transformer_encoder_layer_fwd"]


def test_nested_traces_are_refused_and_the_outer_one_goes_on() -> None:
    with trace() as t:
        with pytest.raises(UsageError, match="one trace cannot hold another"), trace():
            pass
        torch.ones(2) + 1
    assert [op.name for op in t.ops] == ["ones", "add"]
    with pytest.raises(UsageError, match="used already"), t:
        pass


def test_an_exception_leaves_no_mode_behind_and_the_record_readable() -> None:
    original = torch.overrides.has_torch_function
    with pytest.raises(RuntimeError, match="cannot be multiplied"), trace() as t, region():
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.overrides.has_torch_function is original
    assert torch._C._is_multithreading_enabled()
    assert t.ops[-1].name == "mm"
    assert t.ops[-1].error.startswith("RuntimeError: mat1 and mat2")
    assert "mm" in t.table()
    with trace() as second:
        torch.ones(2)
    assert len(second.ops) == 1


class Named(torch.Tensor):
    """A subclass without behaviour of its own."""


class Names(torch.overrides.TorchFunctionMode):
    """Notes the functions that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_other_modes_and_subclasses_behave_as_without_a_trace() -> None:
    attention, given = torch.nn.MultiheadAttention(4, 2), torch.ones(2, 1, 4)

    def run() -> torch.Tensor:
        return attention(given, given, given)[0].sum() + F.dropout(torch.ones(3).as_subclass(Named), 0.0).sum()

    with Names() as plain:
        expected = run()
    with Names() as traced, trace() as t:
        got = run()
    assert type(got) is type(expected) is Named
    assert traced.seen == plain.seen
    assert t.ops
