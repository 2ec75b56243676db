"""The source that a program is made of: a scenario as it is written, with what it uses and nothing else."""

from collections.abc import Iterator
from importlib import import_module

import pytest

from ampcheck.checks.program import PrintedSource, Unreproducible
from ampcheck.checks.scenario import ScenarioCheck
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.spec.case import Case


@pytest.fixture(autouse=True)
def _left_as_found() -> Iterator[None]:
    """Put autocast's state back: a program may end inside a region, as its scenario does."""
    yield
    reset({})


def _program(module: str, name: str, **params: object) -> str:
    """Return the program of a scenario that did not run here."""
    case = Case("eager", "context", name, "", "", "bf16", "cpu", "cpu")
    function = getattr(import_module(f"suites.eager.{module}"), f"test_{name}")
    return ScenarioCheck(function, params).program(case, known()["cpu"], ran=False)


def test_a_program_has_what_its_scenario_uses(capsys: pytest.CaptureFixture[str]) -> None:
    text = _program("test_eligibility", "low_and_wide", op="mv")
    for part in (
        "LOW_AND_WIDE = {'mv': lambda low, wide: torch.mv(wide, low[0])}\n",  # of a dictionary, the entry of the case
        'def test_low_and_wide(amp: Amp, op: str) -> None:\n    """A result of a region and a float32 tensor do not',
        "def outcome(self, call, *given, whole = False):\n        try:\n",  # without annotations and docstring
        "        except Exception as error:  # the call under test may raise anything\n",
    ):
        assert part in text
    for part in ("pytest", "ampcheck", "isclose", "DeviceAmp", "def interleave"):
        assert part not in text
    exec(text, {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith(("ok  ", "FAIL"))


def test_a_program_has_what_the_specification_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = _program("test_holders", "overlap", first="coroutine", second="by_hand", order="crossed", region="same")
    assert "def _overlap_seen(amp, *given):\n    return amp.promises[('_overlap_seen', *given)]\n" in text
    assert "('_overlap_seen', 'crossed', 'same'): [" in text
    assert "class _Model" not in text
    exec(text, {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("ok  ")


def test_what_plain_torch_lacks_is_said() -> None:
    source = PrintedSource("suites.eager.test_eligibility")
    with pytest.raises(Unreproducible, match=r"\w+ of ampcheck\.checks"):
        source.add("test_any_form")
    text = _program("test_eligibility", "any_form", form="leaf")
    assert "# This scenario needs" in text
    assert ", for which plain torch has nothing" in text
    exec(text, {"__name__": "__main__"})
    text = _program("test_eligibility", "low_and_wide", op=object())
    assert "needs the object that pytest gives it" in text
