"""Suite files: the rule of a scenario is its marker, and no two files have one case."""

import re
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from ampcheck.checks.cases import compiled_cases, op_cases
from ampcheck.devices.cpu import Cpu
from ampcheck.runner.collect import CASE, Collector
from ampcheck.runner.run import suites_folder
from ampcheck.samples import surface
from ampcheck.spec.case import Case
from ampcheck.spec.casting import LOW
from tests.cli_support import pytest_here, write_suites

TABLE = tomllib.loads(Path(__file__).with_name("collected.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE["collected"])
def test_what_is_collected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, manifest = TABLE["collected"][name], tmp_path / "manifest"
    monkeypatch.setattr(Cpu, "database", Cpu.database)  # as some files set it
    write_suites(tmp_path, {file: "".join(map(TABLE["texts"].get, of)) for file, of in row["files"].items()})
    options = ("--device=cpu", "--collect-only", f"--write-manifest={manifest}", *row["options"])
    code, out = pytest_here(tmp_path, "suites", *options)
    if "says" in row:
        assert (code, row["says"] in out) == (2, True), out
    else:
        keys = [line.split("\t")[0] for line in manifest.read_text().splitlines()]
        assert (code, keys) == (0 if row["cases"] else 5, row["cases"]), out


def test_programs_that_names_share_run_under_the_first() -> None:
    programs, repeated = surface.programs(), surface.repeated()
    firsts = [text for name, text in programs.items() if name not in repeated]
    assert len(set(firsts)) == len(firsts) < len(programs)
    assert set(firsts) == set(programs.values())


NARROWED: dict[str, object] = {"keyword": "mm", "device": ["cpu"], "nightly": True, "red_in": "run.jsonl"}
CHOSEN = [({}, True), *(({name: value}, False) for name, value in NARROWED.items())]


def _collector(devices: list[str], options: dict[str, object], config: pytest.Config) -> Collector:
    """Return what collects all suites, as a run with some options does."""
    option = Namespace(**vars(config.option) | {"keyword": "", "device": [], "nightly": False} | options)
    option.red_in = None
    made = Collector(Mock(option=option, args=[suites_folder()], invocation_params=config.invocation_params), devices)
    made.root = suites_folder()
    option.red_in = options.get("red_in")  # afterwards, as the collector would read the run file
    return made


def _left(cases: Sequence[Case], collector: Collector, scenario: bool = False) -> list[Case]:
    """Return those of some cases that a run has; the parameters of a scenario are the parts of its inputs."""
    items = []
    for case in cases:
        params = dict(enumerate(case.inputs.split("-"))) | {"amp": (case.device, case.amp)}
        marker = (lambda name: name == "scenario" or None) if scenario else (lambda name: None)
        callspec = Mock(params=params)
        items.append(Mock(spec=pytest.Function, stash={CASE: case}, get_closest_marker=marker, callspec=callspec))
    collector.choose(items)
    return [item.stash[CASE] for item in items]


@pytest.mark.parametrize(("options", "one_of"), CHOSEN)
def test_a_whole_run_has_an_op_and_its_inputs_in_one_region_dtype(
    options: dict[str, object], one_of: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = _collector(["cpu"], options, pytestconfig)
    cases = [case for rule in ("downcast", "fallthrough") for case in op_cases(collector.devices["cpu"], rule)]
    for few in (False, True):  # of a device that says so, further samples have one dtype of inputs
        monkeypatch.setattr(Cpu, "one_region_dtype", few)
        left = _left(cases, collector)
        assert (left != cases) == one_of
        assert {(case.op, case.sample) for case in left} == {(case.op, case.sample) for case in cases}
        kept, every = (
            {
                (case.op, case.sample, re.sub("fp16|bf16", "low", case.inputs))
                for case in some
                if not (few and case.sample)
            }
            for some in (left, cases)
        )
        assert kept == every
        assert {case.amp for case in left} == {"bf16", "fp16"}


def test_cases_that_differ_little_are_one(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = _collector(["cpu", "virtual:cuda", "virtual:xpu"], {}, pytestconfig)
    made = [
        Case("eager", "context", "left", "", f"{first}-{second}", amp, device.name, device.token)
        for device, amp, first, second in product(collector.devices.values(), LOW, "abc", "xyz")
    ]
    monkeypatch.setattr(Cpu, "one_region_dtype", True)
    left = _left(made, collector, scenario=True)
    cpu, fake = ([case for case in left if (case.device == "cpu") == here] for here in (True, False))
    assert ({c for case in cpu for c in case.inputs.split("-")}, {case.amp for case in cpu}) == ({*"abcxyz"}, {*LOW})
    assert len(cpu) <= 4, "each value once, not each pair"
    assert sorted(case.inputs for case in fake) == sorted({case.inputs for case in made}), "each once on all devices"
    assert len({(case.device, case.amp) for case in fake}) == 4
    monkeypatch.setattr(Cpu, "one_region_dtype", False)
    ops = compiled_cases(collector.devices["cpu"], "downcast", "jit", nightly=False)
    of_mm = [case for case in ops if case.op == "mm"]
    left = _left(of_mm, collector)
    assert sorted((c.sample, c.compiler) for c in left) == sorted({(c.sample, c.compiler) for c in of_mm})
    assert {c.inputs for c in left} == {c.inputs for c in of_mm}
