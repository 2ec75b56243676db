"""The matrix is measured, goes on where it was interrupted, and is shown with what each scenario notices alone."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.faults import matrix
from tests.faults.matrix import Kill, Selection
from tests.faults.mutant import Mutant

CASES = {
    "eager/context/left-bf16-cpu": ("cpu", "eager/context/left"),
    "eager/context/left-fp16-cpu": ("cpu", "eager/context/left"),
    "eager/context/entered-bf16-cpu": ("cpu", "eager/context/entered"),
    "eager/downcast/mm-fp32-bf16-cpu": ("cpu", "eager/downcast"),
    "eager/downcast/bmm-fp32-bf16-cpu": ("cpu", "eager/downcast"),
}
MUTANTS = (
    Mutant("stays", "eager/context", lambda device: nullcontext()),
    Mutant("uncast", "eager/downcast", lambda device: nullcontext(), cases="mm-*"),
)
NOTICES = {"stays": {"eager/context/left-fp16-cpu"}, "uncast": {"eager/downcast/mm-fp32-bf16-cpu"}}


class Scripted:
    """Runners of cases whose results are written down."""

    def __init__(self, interrupted_at: str = "") -> None:
        self.ran: list[tuple[str, str]] = []
        self._interrupted_at = interrupted_at

    def of(self, device: str) -> Any:
        return self

    def cases(self) -> dict[str, tuple[str, str]]:
        return CASES

    def run(self, mutant: Mutant | None, device: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
        if mutant and mutant.name == self._interrupted_at:
            raise KeyboardInterrupt
        if mutant:
            self.ran += [(mutant.name, key) for key in keys]
        return {key: {"status": "fail" if mutant and key in NOTICES[mutant.name] else "pass"} for key in keys}

    def again(self, device: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
        return self.run(None, device, keys)


def _measured(runners: Scripted, results: Path, **chosen: Any) -> list[Kill]:
    return matrix.measure(Selection(**chosen), MUTANTS, runners, results, lambda line: None)  # type: ignore[arg-type]


def test_each_row_is_tried_until_a_case_notices(tmp_path: Path) -> None:
    runners = Scripted()
    found = _measured(runners, tmp_path / "results")
    assert [(kill.mutant, kill.case, kill.status) for kill in found] == [
        ("stays", "eager/context/left-fp16-cpu", "fail"),
        ("uncast", "eager/downcast/mm-fp32-bf16-cpu", "fail"),
    ]
    assert ("uncast", "eager/downcast/bmm-fp32-bf16-cpu") not in runners.ran


def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _measured(Scripted(interrupted_at="uncast"), tmp_path / "results")
    runners = Scripted()
    assert len(_measured(runners, tmp_path / "results")) == 2
    assert {mutant for mutant, _ in runners.ran} == {"uncast"}
