"""Suite files: the rule of a scenario is its marker, and no two files have one case."""

import re
import tomllib
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
