"""Time the suite: cases a second beside PyTorch's own lists, and collecting; and tools by times measured here.

    pytest bench/bench_suite_speed.py

Both sides of each ratio are measured in the same run, each in a fresh process, imports included, by processor time,
which other work on the machine disturbs less than wall time. Only ratios are asserted; absolute figures depend on the
machine and are printed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.advise import diagnosis, worker
from ampcheck.bench.advise.user_step import UserStep
from ampcheck.bench.core.model import PRECISIONS
from ampcheck.bench.core.timing import CpuClock
from bench.conftest import PROGRAMS, ROOT
from tests.bench.test_advice import BF16, CPU, mlp, saw

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def _run(*arguments: str, path: str = "", red: bool = False) -> tuple[float, str]:
    """Run Python in a separate process; returns its processor time and output. `red`: it may end with 1."""
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"} if path else ENVIRONMENT
    before = os.times()
    command, merged = [sys.executable, *arguments], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, timeout=300, check=False, **merged)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert done.returncode in ((0, 1) if red else (0,)), done.stdout[-3000:]
    return seconds, done.stdout


def _pytest(*arguments: str, path: str = "", red: bool = False) -> tuple[float, str]:
    return _run("-m", "pytest", "suites/eager", "-q", "-p", "no:benchmark", *arguments, path=path, red=red)


def _collect(*arguments: str) -> tuple[float, int]:
    """Collect; returns the seconds and how many cases there were."""
    seconds, output = _pytest("--collect-only", *arguments)
    return seconds, sum("::" in line for line in output.splitlines())


def test_cases_a_second(benchmark: Any, tmp_path: Path, show: Callable[[str], None]) -> None:
    """Our cases against PyTorch's, end to end."""
    theirs = min(_run("-c", PROGRAMS["suite_speed-upstream"]) for _ in range(2))
    upstream = json.loads(theirs[1].splitlines()[-1])
    runs = []

    def ours() -> None:
        path = tmp_path / f"{len(runs)}.jsonl"
        seconds, _ = _pytest("--device", "cpu", "--run-file", str(path), red=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        runs.append((seconds, [line for line in lines if line["kind"] == "case"]))

    benchmark.pedantic(ours, rounds=1, iterations=1)
    seconds, cases = runs[0]
    rates = {
        "ours_end_to_end": len(cases) / seconds,
        "ours_inside_cases": len(cases) / sum(case["seconds"] for case in cases),
        "pytorch_end_to_end": upstream["cases"] / theirs[0],
        "pytorch_warm": upstream["cases"] / upstream["warm"],
    }
    ratio = rates["ours_end_to_end"] / rates["pytorch_end_to_end"]
    benchmark.extra_info.update({**rates, "cases": len(cases), "seconds": seconds, "ratio": ratio})
    show(f"this suite: {len(cases)} cases in {seconds:.1f} s, {rates['ours_end_to_end']:.0f} a second end to end")
    show(f"  without pytest, imports and collection {rates['ours_inside_cases']:.0f} a second")
    show(f"PyTorch's CPU lists: {upstream['cases']} in {theirs[0]:.1f} s, {rates['pytorch_end_to_end']:.0f} a second")
    show(f"  without imports {rates['pytorch_warm']:.0f} a second")
    show(f"ratio end to end: {ratio:.1f} (at least 5)")
    assert ratio >= 5


def test_collecting(benchmark: Any, show: Callable[[str], None]) -> None:
    """Thousands of cases are collected in little more time than a hundred."""
    few = ("--device", "cpu", "--rule", "promote", "--amp-dtype", "bf16")
    many = ("--device", "cpu", "--device", "virtual:cuda")
    timed: dict[str, list[tuple[float, int]]] = {"few": [], "many": []}

    def both() -> None:
        timed["few"].append(_collect(*few))
        timed["many"].append(_collect(*many))

    benchmark.pedantic(both, rounds=2, iterations=1)
    (short, hundred), (long, thousands) = min(timed["few"]), min(timed["many"])
    ratio = long / short
    benchmark.extra_info.update({"few": hundred, "many": thousands, "seconds": [short, long], "ratio": ratio})
    show(f"collecting {hundred} cases {short:.2f} s, {thousands} cases {long:.2f} s, ratio {ratio:.2f} (at most 1.8)")
    assert thousands >= 8000 > 200 >= hundred > 0
    assert ratio <= 1.8


@pytest.mark.parametrize("injected", [False, True], ids=["as-it-is", "injected"])
def test_collecting_runs_no_op(benchmark: Any, tmp_path: Path, show: Callable[[str], None], injected: bool) -> None:
    """Collecting every device's cases runs no op and imports neither jax nor PyTorch's op database."""
    path = tmp_path / "seen.json"
    (tmp_path / "op_counter.py").write_text(PROGRAMS["suite_speed-counter"].format(injected=injected, path=str(path)))
    benchmark.pedantic(
        lambda: _pytest("--collect-only", "-q", "-p", "op_counter", path=str(tmp_path)), rounds=1, iterations=1
    )
    ops, items, modules = json.loads(path.read_text())
    heavy = {"jax", "torchax", "torch.testing._internal.common_methods_invocations"} & set(modules)
    benchmark.extra_info.update({"ops": ops, "items": items, "heavy": sorted(heavy)})
    show(f"collecting {items} cases runs {len(ops)} ops{' (one injected)' if injected else ''}")
    assert items > 8000
    assert not heavy
    if injected:
        assert ops[-1].startswith("aten::ones from ")
    else:
        assert ops == []


def test_a_trace_costs_a_bounded_factor(show: Callable[[str], None]) -> None:
    """A traced run of tiny ops may take many times as long as an untraced one, but not thousands."""
    from ampcheck.tools.trace import trace  # noqa: PLC0415  # only this bench needs it
    from tests.tools.test_trace import PROGRAMS as TRACED  # noqa: PLC0415  # only this bench needs it
    from tests.tools.test_trace import region  # noqa: PLC0415  # only this bench needs it

    run = TRACED["mlp"]()

    def timed() -> float:
        started = time.process_time()  # what other processes take of the machine counts for neither
        for _ in range(10):
            with region():
                run()
        return time.process_time() - started

    timed()
    plain = min(timed() for _ in range(5))
    with trace():
        traced = min(timed() for _ in range(5))
    show(f"a traced step takes {traced / plain:.0f} of an untraced one (at most 200)")
    assert traced / plain < 200


# ---- what `ampcheck bench advise` says of steps whose bottleneck is known, from times measured here


@pytest.mark.parametrize(("width", "batch", "bound"), [(4, 2, True), (512, 256, False)], ids=["tiny", "big"])
def test_a_tiny_step_is_launch_bound_and_a_big_one_is_not(width: int, batch: int, bound: bool) -> None:
    add = worker.tiny(CPU)
    add()
    spec = mlp(width, batch)
    step = UserStep(spec, PRECISIONS["fp32"], "cpu")
    step.call()
    clock = CpuClock(CPU)
    rows = [(clock.sample(step.call, 3)[0], clock.sample(add, 1)[0] / worker.ADDS) for _ in range(9)]
    seconds, tiny = (min(row[place] for row in rows) for place in (0, 1))
    case = replace(BF16, first=replace(BF16.first, seconds=seconds), tiny=tiny, first_seen=saw(spec, "fp32"))
    assert bool(diagnosis.launch_bound(case)) is bound, (seconds, tiny, case.first_seen.ops)


def test_what_autocast_lowers_in_a_big_product_is_most_of_its_time() -> None:
    assert max(saw(mlp(256, 256)).lowered_share for _ in range(5)) > 0.7  # one may be held up by other processes
