"""Suite files: the rule of a scenario is its marker, and no two files have one case."""

import re
from argparse import Namespace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ampcheck.checks.cases import op_cases
from ampcheck.devices.cpu import Cpu
from ampcheck.runner.collect import CASE, Collector
from ampcheck.runner.run import suites_folder
from ampcheck.samples import surface
from tests.cli_support import pytest_here

MARK = 'pytestmark = pytest.mark.rule("promote")\n'
SCENARIO = """
from ampcheck.runner.suite import scenario

@scenario(dtypes="default")
def test_one(amp):
    amp.assert_equal("it", 1, 1)
"""


def collect(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    """Collect suite files of those texts, on the CPU."""
    for name, text in files.items():
        path = folder / "suites" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n{text}", encoding="utf-8")
    (folder / "suites" / "__init__.py").touch()
    return pytest_here(folder, "suites", "--device=cpu", "--collect-only", *options)


NIGHTLY = """
from ampcheck.runner.suite import scenario

AGAIN = pytest.param("x", id="again", marks=pytest.mark.nightly)

@scenario(dtypes="default", call=[pytest.param("x", id="first"), AGAIN])
def test_one(amp, call):
    amp.assert_equal("it", 1, 1)
"""


@pytest.mark.parametrize(("options", "names"), [((), ["first"]), (("--nightly",), ["first", "again"])])
def test_a_value_that_is_marked_nightly_has_cases_at_night(
    options: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    code, out = collect(tmp_path, {"eager/test_a.py": MARK + NIGHTLY}, *options)
    assert code == 0, out
    assert re.findall(r"test_one\[(\w+)-", out) == names


def test_programs_that_names_share_run_under_the_first() -> None:
    programs, repeated = surface.programs(), surface.repeated()
    firsts = [text for name, text in programs.items() if name not in repeated]
    assert len(set(firsts)) == len(firsts) < len(programs)
    assert set(firsts) == set(programs.values())


def test_a_rule_is_chosen_by_its_name_whatever_the_file_is_called(tmp_path: Path) -> None:
    files = {"eager/test_a.py": MARK + SCENARIO, "eager/b/test_c.py": MARK.replace("promote", "cache") + SCENARIO}
    manifest = tmp_path / "manifest"
    code, out = collect(tmp_path, files, "-k", "promote", f"--write-manifest={manifest}")
    assert code == 0, out
    assert [line.split("\t")[0] for line in manifest.read_text().splitlines()] == ["eager/promote/one-bf16-cpu"]
    code, out = collect(tmp_path, files, "--rule=cache", f"--write-manifest={manifest}")
    assert code == 0, out
    assert [line.split("\t")[0] for line in manifest.read_text().splitlines()] == ["eager/cache/one-bf16-cpu"]


def test_a_scenario_without_a_rule_is_refused(tmp_path: Path) -> None:
    code, out = collect(tmp_path, {"eager/test_a.py": SCENARIO})
    assert code == 2, out
    assert "test_a.py::test_one has no rule: its file needs pytestmark = pytest.mark.rule(NAME)" in out


def test_two_files_with_one_case_are_refused(tmp_path: Path) -> None:
    code, out = collect(tmp_path, {name: MARK + SCENARIO for name in ("eager/test_a.py", "eager/test_b.py")})
    assert code == 2, out
    one, other = ("suites/eager/test_b.py::test_one[bf16-cpu]", "suites/eager/test_a.py::test_one[bf16-cpu]")
    assert f"{one} and {other} are both eager/promote/one-bf16-cpu" in out


PRODUCT = """
from ampcheck.runner.suite import Product, scenario

HOW = Product({"policy": ("a", "b"), "mode": ("c", "d"), "at": ("e", "f")}, {"no": lambda cell: cell["at"] == "f"})

@HOW.cells
@scenario(dtypes="default")
def test_one(amp, policy, mode, at):
    amp.assert_equal("it", 1, 1)
"""


@pytest.mark.parametrize(("options", "cells"), [((), ["a-c-e", "a-d-e", "b-c-e", "b-d-e"]), (("--nightly",), None)])
def test_a_product_makes_a_case_per_cell(tmp_path: Path, options: tuple[str, ...], cells: list[str] | None) -> None:
    text = MARK + (PRODUCT if cells else PRODUCT.replace(', {"no": lambda cell: cell["at"] == "f"}', ""))
    manifest = tmp_path / "manifest"
    code, out = collect(tmp_path, {"eager/test_a.py": text}, f"--write-manifest={manifest}", *options)
    assert code == 0, out
    wanted = cells or [f"{a}-{b}-{c}" for a in "ab" for b in "cd" for c in "ef"]
    names = [line.split("\t")[0] for line in manifest.read_text().splitlines()]
    assert sorted(names) == [f"eager/promote/one-{cell}-bf16-cpu" for cell in wanted]


NARROWED: dict[str, object] = {"keyword": "mm", "device": ["cpu"], "nightly": True, "red_in": "run.jsonl"}
CHOSEN = [({}, True), *(({name: value}, False) for name, value in NARROWED.items())]


@pytest.mark.parametrize(("options", "one_of"), CHOSEN)
def test_a_whole_run_has_one_region_dtype_of_a_device_that_says_so(
    options: dict[str, object], one_of: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = Namespace(**vars(pytestconfig.option) | {"keyword": "", "device": []} | options | {"red_in": None})
    config = Mock(option=option, args=[suites_folder()], invocation_params=pytestconfig.invocation_params)
    collector = Collector(config, ["cpu"])
    collector.root = suites_folder()
    option.red_in = options.get("red_in")  # afterwards, as the collector would read the run file
    cases = [case for rule in ("downcast", "fallthrough") for case in op_cases(collector.devices["cpu"], rule)]
    items = [Mock(stash={CASE: case}, get_closest_marker=lambda name: None) for case in cases]
    assert collector.choose(list(items)) == []
    monkeypatch.setattr(Cpu, "one_region_dtype", True)
    out = {item.stash[CASE] for item in collector.choose(list(items))}
    assert bool(out) == one_of
    left, every = (
        {(case.op, case.sample, re.sub("fp16|bf16", "low", case.inputs)) for case in some}
        for some in (set(cases) - out, cases)
    )
    assert left == every
    assert {case.amp for case in cases if case not in out} == {"bf16", "fp16"}


@pytest.mark.parametrize(("slow", "options", "runs"), [(0, [], True), (1, [], False), (1, ["--nightly"], True)])
def test_a_slow_device_has_scenarios_of_the_database_at_night(
    slow: int, options: list[str], runs: bool, tmp_path: Path
) -> None:
    text = MARK + SCENARIO.replace('"default"', '"default", database=True')
    text += f"\nfrom ampcheck.devices.cpu import Cpu\n\nCpu.database = {not slow}\n"
    code, out = collect(tmp_path, {"eager/test_a.py": text}, *options)
    assert ("test_one[bf16-cpu]" in out) == runs, out
    assert code == (0 if runs else 5)
