"""What collecting the suite costs, and tools by times measured here.

    pytest bench/bench_suite_speed.py

Both sides of each ratio are measured in the same run by processor time, which other work on the machine disturbs less
than wall time. Only ratios are asserted; absolute figures depend on the machine and are printed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ampcheck.bench.advise import diagnosis, worker
from ampcheck.bench.advise.user_step import UserStep
from ampcheck.bench.core.model import PRECISIONS
from ampcheck.bench.core.timing import CpuClock
from bench.conftest import PROGRAMS, ROOT
from tests.bench.test_advice import BF16, CPU, mlp, saw


@pytest.mark.parametrize("injected", [False, True], ids=["as-it-is", "injected"])
def test_collecting_runs_no_op(tmp_path: Path, show: Callable[[str], None], injected: bool) -> None:
    """Collecting every device's cases runs no op and imports neither jax nor PyTorch's op database."""
    path = tmp_path / "seen.json"
    (tmp_path / "op_counter.py").write_text(PROGRAMS["suite_speed-counter"].format(injected=injected, path=str(path)))
    command = [sys.executable, "-m", "pytest", "suites/eager", "-q", "--collect-only", "-p", "op_counter"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=300, check=True)
    ops, items, modules = json.loads(path.read_text())
    heavy = {"jax", "torchax", "torch.testing._internal.common_methods_invocations"} & set(modules)
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
