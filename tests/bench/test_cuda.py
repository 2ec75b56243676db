"""Benchmarks on CUDA, emulated or with a false `torch.cuda`: settings, clocks, caches, graphs, what is recorded."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from ampcheck.bench.core import prepare
from ampcheck.bench.core.model import PRECISIONS, BenchPlan, Rounds
from ampcheck.bench.core.timing import CudaClock, Timed, clock, interleave
from ampcheck.bench.run import measure
from ampcheck.bench.run.measure import Measurer
from ampcheck.bench.run.summary import summarize
from ampcheck.devices.cuda import Cuda, _hardware
from ampcheck.devices.registry import known
from tests.bench.test_workloads import OP

DEVICE = known()["emulated:cuda"]
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # importing Inductor
emulated = pytest.mark.skipif(DEVICE.unavailable() is not None, reason=str(DEVICE.unavailable()))


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """The settings of float32 products are put back behind a test."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn  # type: ignore[attr-defined]
    before = [one.fp32_precision for one in backends]
    yield
    for one, value in zip(backends, before, strict=True):
        one.fp32_precision = value


@pytest.fixture
def cuda() -> Iterator[None]:
    with DEVICE.activate():
        yield


@emulated
def test_every_kind_of_workload_is_measured() -> None:
    measurer = Measurer(BenchPlan(DEVICE.name, [], 0, 5, 1e-4, 1, []))
    with DEVICE.activate():
        found = [measurer.measure(name, "eager") for name in ("mm-64", "gru-cell", "tiny-mlp-step", "weight-cache")]
    for rounds, one in zip(found, summarize(found), strict=True):
        assert {variant.name: variant.reason for variant in one.variants if variant.verdict == "invalid"} == {}
        assert set(rounds.failed) <= {"fp16-native"}
        assert {len(samples) for samples in rounds.samples.values()} == {5}
    assert {"fp32", "tf32", "bf16"} <= set(found[0].samples)
    assert (found[0].facts["bf16"]["precision_check"], found[0].facts["fp32"]["memory"]) == ("mm in bf16", 64 * 64 * 4)


@emulated
def test_tf32_is_set_before_a_sample_and_never_by_the_older_names(cuda: None) -> None:
    """Reading an older name once the newer was set raises, and a context within the call is part of its time."""
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "tf32"
    variants = {name: prepare.prepare(OP, PRECISIONS[name], "cuda", "eager") for name in ("fp32", "tf32")}
    seen: list[tuple[str, str]] = []
    for name, one in variants.items():
        one.call = lambda name=name: seen.append((name, matmul.fp32_precision))  # type: ignore[misc]
    interleave(clock(DEVICE), {name: Timed(one.call, one.restore) for name, one in variants.items()}, 3, 0)
    assert set(seen) == {("fp32", "ieee"), ("tf32", "tf32")}


@emulated
def test_the_reference_is_computed_on_the_gpu_once_for_all_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def reference(workload: prepare.Workload, device: str = "cpu") -> torch.Tensor:
        asked.append((workload.name, device))
        if workload.name == "mm-16" and device == "cuda":
            raise torch.OutOfMemoryError
        return prepare.reference(workload, device)

    monkeypatch.setattr(measure, "reference", reference)
    measurer = Measurer(BenchPlan(DEVICE.name, [], 0, 5, 1e-5, 1, []))
    with DEVICE.activate():
        for name in ("mm-32", "mm-32", "mm-16"):
            measurer.measure(name, "eager")
    assert asked == [("mm-32", "cuda"), ("mm-16", "cuda"), ("mm-16", "cpu")]


@emulated
def test_calls_in_turns_have_more_inputs_than_the_cache_holds(cuda: None) -> None:
    seen: list[int] = []
    workload = replace(OP, call=lambda x, y: seen.append(x.data_ptr()) or torch.mm(x, y))  # type: ignore[func-returns-value]
    one = prepare.prepare(workload, PRECISIONS["fp32"], "cuda", "eager")
    for _ in range(100):
        one.call()
    assert (len(set(seen)), seen[:50]) == (50, seen[50:])
    large = torch.empty(2**19, device="cuda")  # twice as large as the cache of the emulated device
    assert [len(prepare.copies([one])) for one in (large, large[: 2**17])] == [0, 3]


@pytest.fixture
def event(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """CUDA's event, which comes after 2 ms of the GPU, on a machine that has none of this.

    What these do is CUDA's, in which order they are called is ours.
    """
    made = MagicMock(**{"elapsed_time.return_value": 2.0, "query.return_value": True})
    for name in ("Stream", "current_stream", "synchronize", "reset_peak_memory_stats", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing=False: made)
    return made


@pytest.mark.usefixtures("event")
def test_a_graph_holds_many_calls_is_captured_once_and_gives_the_time_of_one() -> None:
    calls: list[int] = []
    replay = prepare.graphed(lambda: calls.append(1) or len(calls))
    assert not calls, "nothing runs before the first call"
    first, captured = replay(), len(calls)
    assert ([replay(), replay()], (len(calls), captured, first)) == ([first, first], (51, 51, 51))
    wall, _, _ = interleave(CudaClock(Cuda()), {"graph": Timed(replay, calls=50)}, 1, 0)
    assert wall == {"graph": [2e-3 / 50]}


@pytest.mark.usefixtures("event")
def test_an_op_whose_kernels_are_not_short_has_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ms of 50 calls are 40 us each; how long the host took to launch them does not matter."""
    monkeypatch.setattr(prepare, "LIMIT", 30e-6)
    with pytest.raises(prepare.TooLong, match="its kernels take 40 us; graphs are for calls below 30 us"):
        prepare.graphed(int)()


@pytest.mark.parametrize("comes", [True, False])
def test_an_event_that_has_not_come_makes_a_result_invalid_and_no_output_is_read(comes: bool, event: MagicMock) -> None:
    timer, found = CudaClock(Cuda()), Rounds("w", "cuda", "eager", 0, facts={"a": {}})
    event.query.return_value = comes
    large = MagicMock(spec=torch.Tensor, device=torch.device("cuda"))
    measure.blocked(interleave(timer, {"a": Timed(lambda: large)}, 3, 0)[2], found)
    assert ("invalid" in found.facts["a"]) is not comes
    assert not large.mock_calls


# ---- the machine


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\ncase $1 in *pid) echo 7; echo 8;; *) echo 580.1, 1980, 1980, 700.00; esac"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    _hardware.cache_clear()
    yield
    _hardware.cache_clear()


def test_driver_clocks_power_and_other_programs_are_recorded(driver: None) -> None:
    recorded = {"driver_version": "580.1", "clocks.sm": "1980", "clocks.max.sm": "1980", "power.limit": "700.00"}
    assert _hardware("") == {**recorded, "programs": "2"}
