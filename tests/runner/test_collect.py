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
from tests.cli_support import pytest_here, write_suites

PROMOTE, CACHE = (f'import pytest\n\npytestmark = pytest.mark.rule("{rule}")\n' for rule in ("promote", "cache"))
SCENARIO = """
from ampcheck.runner.suite import scenario

@scenario(dtypes="default")
def test_one(amp):
    amp.assert_equal("it", 1, 1)
"""
NIGHTLY = """
from ampcheck.runner.suite import scenario

AGAIN = pytest.param("x", id="again", marks=pytest.mark.nightly)

@scenario(dtypes="default", call=[pytest.param("x", id="first"), AGAIN])
def test_one(amp, call):
    amp.assert_equal("it", 1, 1)
"""
PRODUCT = """
from ampcheck.runner.suite import Product, scenario

HOW = Product({"policy": ("a", "b"), "mode": ("c", "d"), "at": ("e", "f")}, {"no": lambda cell: cell["at"] == "f"})

@HOW.cells
@scenario(dtypes="default")
def test_one(amp, policy, mode, at):
    amp.assert_equal("it", 1, 1)
"""
DATABASE = (
    SCENARIO.replace('"default"', '"default", database=True')
    + """
from ampcheck.devices.cpu import Cpu

Cpu.database = {}
"""
)
ONE = "eager/promote/one{}-bf16-cpu"
TWO_RULES = {"eager/test_a.py": PROMOTE + SCENARIO, "eager/b/test_c.py": CACHE + SCENARIO}
TWICE = "suites/eager/test_b.py::test_one[bf16-cpu] and suites/eager/test_a.py::test_one[bf16-cpu] are both "
COLLECTED: dict[str, tuple[str | dict[str, str], tuple[str, ...], list[str] | str]] = {
    "a value that is marked nightly": (NIGHTLY, (), [ONE.format("-first")]),
    "it at night": (NIGHTLY, ("--nightly",), [ONE.format("-again"), ONE.format("-first")]),
    "a rule by -k, whatever its file is called": (TWO_RULES, ("-k", "promote"), [ONE.format("")]),
    "a rule by its option": (TWO_RULES, ("--rule=cache",), ["eager/cache/one-bf16-cpu"]),
    "no rule": (
        {"eager/test_a.py": SCENARIO},
        (),
        "test_a.py::test_one has no rule: its file needs pytestmark = pytest.mark.rule(NAME)",
    ),
    "two files with one case": (
        {f"eager/test_{name}.py": PROMOTE + SCENARIO for name in "ab"},
        (),
        f"{TWICE}{ONE.format('')}",
    ),
    "a case per cell of a product": (PRODUCT, (), [ONE.format(f"-{a}-{b}-e") for a in "ab" for b in "cd"]),
    "a case per cell at night": (
        PRODUCT.replace(', {"no": lambda cell: cell["at"] == "f"}', ""),
        ("--nightly",),
        [ONE.format(f"-{a}-{b}-{c}") for a in "ab" for b in "cd" for c in "ef"],
    ),
    "the database on a quick device": (DATABASE.format(True), (), [ONE.format("")]),
    "the database on a slow device": (DATABASE.format(False), (), []),
    "the database on a slow device at night": (DATABASE.format(False), ("--nightly",), [ONE.format("")]),
}
"""Suite files, or a scenario of rule promote; options; the cases that are collected, or the sentence of a refusal."""


@pytest.mark.parametrize("name", COLLECTED)
def test_what_is_collected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, options, expected = COLLECTED[name]
    monkeypatch.setattr(Cpu, "database", Cpu.database)  # as some files set it
    write_suites(tmp_path, {"eager/test_a.py": PROMOTE + files} if isinstance(files, str) else files)
    manifest = tmp_path / "manifest"
    options = ("--device=cpu", "--collect-only", f"--write-manifest={manifest}", *options)
    code, out = pytest_here(tmp_path, "suites", *options)
    if isinstance(expected, str):
        assert (code, expected in out) == (2, True), out
    else:
        keys = [line.split("\t")[0] for line in manifest.read_text().splitlines()]
        assert (code, keys) == (0 if expected else 5, expected), out


def test_programs_that_names_share_run_under_the_first() -> None:
    programs, repeated = surface.programs(), surface.repeated()
    firsts = [text for name, text in programs.items() if name not in repeated]
    assert len(set(firsts)) == len(firsts) < len(programs)
    assert set(firsts) == set(programs.values())


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
