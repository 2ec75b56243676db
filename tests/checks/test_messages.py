"""What each kind of check says of a case that is not as promised: one planted mistake and the sentence about it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import BY_NAME
from tests.faults.suites import Runners

SAID = tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
"""By device and mutant: a case, and a line that its message has."""


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("device", "mutant", "case", "sentence"),
    [
        pytest.param(device, mutant, said["case"], said["says"], id=mutant)
        for device, table in SAID.items()
        for mutant, said in table.items()
    ],
)
def test_message(device: str, mutant: str, case: str, sentence: str, runners: Runners) -> None:
    said = runners.run(BY_NAME[mutant], device, [case])[case]["message"]
    assert sentence in said.splitlines()
