"""The rules of the house that ruff has no rule for, measured by `scripts/count_lines.py`."""

import re

import pytest

from scripts.count_lines import (
    Source,
    any_per_thousand,
    classes_twice,
    long_functions,
    main,
    places,
    policy_tables,
    sources,
)

PACKAGE = sources("ampcheck")

TWICE = {*("Op", "Optimizer", "Options", "Seen", "Set", "Thread"), *("_Kernels", "_Planned", "_Signature")}
"""Names that two classes still have. No name joins them."""

ANY = {
    "ampcheck/bench": 18,
    "ampcheck/compilers": 97,
    "ampcheck/observe": 39,
    "ampcheck/reproduce": 27,
    "ampcheck/runner": 16,
    "ampcheck/checks": 16,
}
"""How often a thousand lines of a room may say `Any`: what they do now, and in the end 15."""
LEAST = 15

OLD_WORD = {"bench/run/runfile.py", "devices/base.py", "runner/record.py", "runner/run.py"}
"""The files that read old options, attributes and run files, where a compiler is called an executor."""


def test_no_two_classes_have_one_name() -> None:
    found = classes_twice(PACKAGE)
    assert {name: places for name, places in found.items() if name not in TWICE} == {}


def rooms() -> dict[str, list[Source]]:
    """The files of each folder of the package."""
    found: dict[str, list[Source]] = {}
    for source in PACKAGE:
        if len(source.path.parts) > 2:
            found.setdefault("/".join(source.path.parts[:2]), []).append(source)
    return found


@pytest.mark.parametrize("room", rooms())
def test_types_are_named(room: str) -> None:
    assert any_per_thousand(rooms()[room]) <= ANY.get(room, LEAST)


def test_what_runs_a_program_is_called_its_compiler() -> None:
    files = [source for source in PACKAGE if source.path.relative_to("ampcheck").as_posix() not in OLD_WORD]
    found = [
        f"{file.path}: {line.strip()}"
        for file in (*files, *sources("suites"))
        for line in file.text.splitlines()
        if re.search("executor", line.replace("ThreadPoolExecutor", ""), re.IGNORECASE)
    ]
    assert found == []


def test_functions_are_short() -> None:
    assert len(places(long_functions, PACKAGE)) <= 6


def test_policies_are_in_one_table() -> None:
    (table,) = policy_tables()
    assert table.startswith("ampcheck/spec/tables/policies.csv ")


def test_python_stays_within_its_limits() -> None:
    assert main() == 0
