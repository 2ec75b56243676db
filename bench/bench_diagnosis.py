"""Check what `ampcheck bench advise` says of steps whose bottleneck is known, from times measured here.

pytest bench/bench_diagnosis.py
"""

from dataclasses import replace

import pytest

from ampcheck.bench.advise import diagnosis, worker
from ampcheck.bench.advise.user_step import UserStep
from ampcheck.bench.core.model import PRECISIONS
from ampcheck.bench.core.timing import CpuClock
from tests.bench.test_advice import BF16, CPU, mlp, saw


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
