"""The comparison of scripts/check_bench.py, of made-up measurements."""

import re
from pathlib import Path

import pytest

from ampcheck.bench.core.model import Rounds
from ampcheck.bench.run.runfile import BenchWriter
from ampcheck.bench.run.summary import summarize
from ampcheck.errors import UsageError
from scripts import check_bench
from tests.cli_support import ROOT


def files(folder: Path, **speeds: dict[str, float]) -> dict[str, list[Path]]:
    """Run files of five turns: for each side, seconds of `fp32` by workload, a little noise in each round."""
    found: dict[str, list[Path]] = {}
    for side in check_bench.SIDES:
        for turn in range(5):
            path = folder / f"{side}-{turn}.jsonl"
            writer = BenchWriter(path, {"started": "2026-11-20T03:00:00Z"})
            rounds = []
            for number, (workload, seconds) in enumerate(speeds[side.replace("-", "_")].items()):
                noise = [1 + 0.001 * ((turn * 7 + round * 3 + number) % 5) for round in range(5)]
                samples = {"fp32": [seconds * one for one in noise], "fp32-aa": [seconds * one for one in noise]}
                rounds.append(Rounds(workload, "cpu", "eager", turn, samples))
                writer.rounds(rounds[-1])
            writer.close(summarize(rounds), {})
            found.setdefault(side, []).append(path)
    return found


def test_the_largest_changes_come_first_and_five_are_shown(tmp_path: Path) -> None:
    names = ["mm-64", "mm-512", "linear", "softmax", "add", "layer-norm", "conv2d"]
    base = dict.fromkeys(names, 1e-3)
    head = {name: 1e-3 * (1 + 0.1 * number) for number, name in enumerate(names)}
    found = files(tmp_path, base=base, head={**head, "mm-512": 0.5e-3}, base_again=base)
    text = check_bench.summary(check_bench.compare(found), check_bench.invalid(found), 5)
    rows = re.findall(r"^\| cpu/eager/([\w-]+)/fp32 .*\| (slower|faster) \|", text, re.MULTILINE)
    assert rows == [("mm-512", "faster"), *((name, "slower") for name in reversed(names[3:]))]
    assert "7 timings in 5 turns: 5 slower, 1 faster" in text


@pytest.mark.parametrize("again", [0.85, 1.15])
def test_a_change_within_the_noise_of_base_does_not_count(again: float, tmp_path: Path) -> None:
    base, head = {"add": 1e-3, "softmax": 1e-3}, {"add": 1.1e-3, "softmax": 1.1e-3, "of-head-alone": 1e-3}
    found = files(tmp_path, base=base, head=head, base_again={**base, "add": again * 1e-3})
    timings = check_bench.compare(found)
    assert [timing.name for timing in timings if timing.counts] == ["cpu/eager/softmax/fp32"]
    assert len(timings) == 2


def test_a_checkout_without_its_own_package_is_refused(tmp_path: Path) -> None:
    check_bench.own_package(ROOT)
    with pytest.raises(UsageError, match="is not what Python imports there"):
        check_bench.own_package(tmp_path)
