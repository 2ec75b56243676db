"""The source that a program is made of: a function as it is written, with what it uses and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from ampcheck.checks.scenario import ScenarioCheck
from ampcheck.checks.source import PrintedSource, Unreproducible
from ampcheck.devices.registry import known
from ampcheck.spec.case import Case

MODULE = '''\
"""A suite file."""

from __future__ import annotations

import math
from pathlib import Path, PurePath

import pytest

from ampcheck.devices.registry import known
from ampcheck.observe.threads import in_thread
from ampcheck.runner.suite import Amp, promised

ONE = 1
CHOICE: dict[str, object] = {"a": (ONE, lambda x: math.pi), "b": (2, lambda x: Path(x))}
UNUSED = PurePath("é")


class Held:
    """What it holds."""

    value: "list[int]" = 3


def wraps(call: object) -> object:
    return call


@wraps
def helper(amp: Amp, *rest: int) -> tuple[int, ...]:
    """What it does."""
    # é: a comment stays
    return in_thread(lambda: Held.value, amp.activate) + ONE  # type: ignore[no-any-return]


@promised
def wanted(amp: Amp, kind: str) -> int:
    return len(known()) + len(kind)


@pytest.mark.parametrize("kind", list(CHOICE))
def test_it(amp: Amp, kind: str) -> None:
    """What it shows."""
    found, call = CHOICE[kind]
    amp.assert_equal("it", found + helper(amp, 1), wanted(amp, kind))


def test_other(amp: Amp) -> None:
    known()
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "test_given.py"
    path.write_text(MODULE, encoding="utf-8")
    spec = spec_from_file_location("test_given", path)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules["test_given"] = module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules["test_given"]


def _program(function: Callable[..., object], params: dict[str, object]) -> str:
    """Return the program of a scenario that did not run here."""
    case = Case("eager", "context", function.__name__.removeprefix("test_"), "", "", "bf16", "cpu", "cpu")
    return ScenarioCheck(function, params).program(case, known()["cpu"], ran=False)


def test_source_is_what_the_function_uses(module: ModuleType) -> None:
    whole = PrintedSource("test_given")
    whole.add("test_it")
    assert whole.single_entries({"kind": "a"}) == {"CHOICE": "a"}
    assert whole.single_entries({"kind": "c"}) == {}
    assert "from pathlib import Path" in whole.imports

    found = PrintedSource("test_given", kept={"CHOICE": "a"})
    found.add("test_it")
    text = "\n".join(found.text())
    for part in (
        "\nONE = 1\nCHOICE = {'a': (ONE, lambda x: math.pi)}\n",
        'class Held:\n    """What it holds."""\n\n    value: "list[int]" = 3\n',
        "    # é: a comment stays\n    return in_thread(lambda: Held.value, amp.activate) + ONE\n",
        "def in_thread(call, within):\n    def run():\n",
        "def wanted(amp, *given):\n    return amp.promises[('wanted', *given)]\n",
        'def test_it(amp: Amp, kind: str) -> None:\n    """What it shows."""\n',
    ):
        assert part in text
    assert text.index("def in_thread(") < text.index("ONE = 1")
    assert "UNUSED" not in text
    assert found.imports == {"import math", "from concurrent.futures import ThreadPoolExecutor"}


def test_a_program_has_what_the_specification_said(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    text = _program(module.test_it, {"kind": "a"})
    exec(text, {"__name__": "program"})
    assert capsys.readouterr().out.startswith(("ok  ", "FAIL"))
    assert f"('wanted', 'a'): {len(known()) + 1}" in text


def test_what_plain_torch_lacks_is_said(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sources = PrintedSource("test_given")
    with pytest.raises(Unreproducible, match=r"known of ampcheck\.devices\.registry"):
        sources.add("test_other")
    text = _program(module.test_other, {})
    assert "# This scenario needs known of ampcheck.devices.registry, for which plain torch has nothing" in text
    exec(text, {})
    text = _program(module.test_it, {"kind": object()})
    assert "needs the object that pytest gives it" in text
