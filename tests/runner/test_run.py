"""`ampcheck run`: one run file and one JUnit file, whatever a device does to the process that tests it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
import torch

from ampcheck.programs.regions import programs
from ampcheck.programs.search import Search
from ampcheck.runner.record import FIXED_SEED, RED, Run, first_line, read, seed_of_programs
from ampcheck.runner.run import Supervisor, share_of, suites_folder
from ampcheck.runner.run import environment as child_environment
from ampcheck.runner.summarize import RunRecorder, merge
from ampcheck.spec.case import Shard
from tests.cli_support import MODULE, ROOT, ended, interrupted, pytest_here, run, run_pytest

SUITE = ROOT / "suites" / "eager"
EAGER = ("run", "--suite=eager")  # one suite shows the same as all, and is collected sooner
Ran = tuple[subprocess.CompletedProcess[str], Run]
OPS = ("--op=addmm", "--op=baddbmm", "--op=addbmm", "--op=mm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the repository, with the third party's module in it."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "dying_device.py").write_text(MODULE)
    # A project's own settings must not reach the suites.
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--no-such-option"\n')
    return folder


@pytest.fixture(scope="module")
def dying(folder: Path) -> Ran:
    """A run on a device that ends the process in two cases and hangs in a third."""
    device = ("--device=dying", "--device-module=dying_device")
    done = run(folder, *EAGER, *device, *OPS, "--timeout=10", "--run-file=a.jsonl", code=1)
    return done, read(folder / "a.jsonl")


def statuses(found: Run) -> dict[str, str]:
    return {key: result.status for key, result in found.results.items()}


@pytest.mark.nightly
def test_a_dying_process_costs_the_case_that_it_died_in(dying: Ran) -> None:
    _, found = dying
    other = {key: status for key, status in statuses(found).items() if status != "pass"}
    assert other == {
        "eager/downcast/addmm-fp64-bf16-dying": "crash",
        "eager/downcast/baddbmm-fp64-bf16-dying": "crash",
        "eager/downcast/addbmm-fp64-bf16-dying": "timeout",
    }
    assert len(found.results) == found.header["cases"] > 100
    assert found.footer["counts"] == dict(found.counts())
    assert not found.note
    (device,) = found.header["devices"]
    assert (device["name"], device["token"], device["key"]) == ("dying", "dying", "AutocastCPU")


def test_a_crash_says_how_where_and_how_to_repeat_it(dying: Ran) -> None:
    done, found = dying
    exited = found.results["eager/downcast/addmm-fp64-bf16-dying"]
    assert exited.message == "the process ended with exit code 7"
    signalled = found.results["eager/downcast/baddbmm-fp64-bf16-dying"]
    assert signalled.message.startswith("the process ended with signal SIGSEGV; it was in bad (dying_device.py:")
    hung = found.results["eager/downcast/addbmm-fp64-bf16-dying"]
    assert hung.message.startswith("nothing happened for 10 s; it was in bad (dying_device.py:")
    assert exited.cause == "crash: the process ended with exit code …"
    assert signalled.cause == "crash: the process ended with signal SIGSEGV (dying_device.py in bad)"
    assert hung.cause == "timeout: nothing happened for … s (dying_device.py in bad)"
    for result in (exited, signalled, hung):
        assert result.device == "dying"
        assert "--device=dying --device-module=dying_device" in result.pytest
        assert f"torch.ops.aten.{result.op}.default(" in result.torch
        assert first_line(f"{result.status}: {result.key}: {result.message}") in done.stdout
    assert f"run file: {found.path.name}" in done.stdout
    assert "JUnit: a.xml" in done.stdout


@pytest.mark.nightly
def test_an_interrupted_run_is_resumed(folder: Path, whole: Run) -> None:
    cut = folder / "cut.jsonl"
    lines = whole.path.read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:30]))
    done = run(folder, *EAGER, *PRODUCTS, "--resume=cut.jsonl", "--run-file=resumed.jsonl", code=1)
    found = read(folder / "resumed.jsonl")
    assert statuses(found) == statuses(whole)
    assert found.footer is not None
    before = [json.loads(line)["seconds"] for line in lines[1:30]]
    assert [result.seconds for result in list(found.results.values())[:29]] == before
    for file, options, why in (
        ("cut.jsonl", ("--op=mm",), f"it has {len(whole.results)} cases, and these options choose "),
        (str(whole.path), (), "was not interrupted: it is complete"),
    ):
        done = run(folder, *EAGER, *SWAPPED, *options, f"--resume={file}")
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr


@pytest.mark.nightly
def test_what_hung_twice_is_not_tried_a_third_time(folder: Path) -> None:
    options = ("--device=hanging", "--device-module=dying_device", "--op=addbmm", "--op=mm", "--amp-dtype=bf16")
    run(folder, *EAGER, *options, "--timeout=4", "-n1", "--run-file=hangs.jsonl", code=1)
    found = read(folder / "hangs.jsonl").results.values()
    assert {(result.op, result.status) for result in found} == {("mm", "pass"), ("addbmm", "timeout")}
    waited = [result for result in found if result.message.startswith("nothing happened for 4 s")]
    others = [result for result in found if result.message.startswith("not tried, since two cases of addbmm hung: ")]
    assert len(waited) == 2
    assert all(result.key in others[0].message for result in waited)
    assert len(waited) + len(others) == sum(result.op == "addbmm" for result in found)


SWAPPED = ("--device=swapped", "--device-module=dying_device")
PRODUCTS = (*SWAPPED, "--op=mm", "--op=addmm")


@pytest.fixture(scope="module")
def swapped(folder: Path) -> Ran:
    """A run that is not divided, of a device with a fault, by a file in a folder of its own."""
    files = ("--run-file=whole/one.jsonl", "--junit=out/swapped.xml")
    done = run(folder, *EAGER, *PRODUCTS, *files, code=1)
    return done, read(folder / "whole" / "one.jsonl")


@pytest.fixture(scope="module")
def whole(swapped: Ran) -> Run:
    return swapped[1]


def test_a_third_partys_fault_is_found(swapped: Ran, folder: Path) -> None:
    done, found = swapped
    failed = [result for result in found.results.values() if result.status == "fail"]
    assert failed
    assert {result.amp for result in failed} == {"fp16"}
    assert all(result.status == "pass" for result in found.results.values() if result.amp == "bf16")
    main = found.results["eager/downcast/mm-fp32-fp16-swapped"]
    assert main.message.startswith(
        "argument 0 of aten::mm was given as fp32 and reached the kernel as bf16; expected fp16"
    )
    first = failed[0]  # of the one cause; it is printed as soon as it fails
    assert first_line(f"fail: {first.key}: {first.message}") in done.stdout
    assert (folder / "out" / "swapped.xml").exists()


def test_green_ends_with_0_and_absent_devices_are_said(tmp_path: Path) -> None:
    done = run(tmp_path, *EAGER, "--op=mm", "-k", "cpu or vmp", "--reports=kept", code=0)
    devices = done.stdout.partition("devices: ")[2].splitlines()[0].split(", ")
    assert {"cpu", "jax", "virtual:cuda"} <= set(devices)
    (found,) = (tmp_path / "kept" / "runs").glob("*.jsonl")
    assert set(read(found).counts()) <= {"pass", "deviation"}
    assert found.with_suffix(".xml").exists()
    ran = len(read(found).results)
    assert f"{ran} of {ran} cases ran" in done.stdout
    assert "; 0 more were not selected" not in done.stdout
    for name, reason in read(found).header["absent"].items():
        assert f"without {name}: {reason}" in done.stdout


@pytest.mark.nightly
def test_list_and_manifest_show_what_a_run_has(tmp_path: Path) -> None:
    choice = ("--device=cpu", "--rule=promote")
    listed = run(tmp_path, "run", "--list", *choice, code=0)
    keys = listed.stdout.split()
    assert keys == sorted(keys)
    assert {key.rpartition("/")[0] for key in keys} == {"eager/promote", "autograd/promote", "jit/promote"}
    assert f"{len(keys)} cases" in listed.stderr
    run(tmp_path, "manifest", *choice, "--out=all.txt", code=0)
    lines = [line.split("\t") for line in (tmp_path / "all.txt").read_text().splitlines()]
    assert [key for key, _ in lines] == keys
    fields = {"op": "cat", "inputs": "fp32", "amp": "bf16", "device": "cpu"}
    assert json.loads(dict(lines)["eager/promote/cat-fp32-bf16-cpu"]) == fields
    assert not (tmp_path / "reports").exists()


def test_what_the_manifest_has_and_no_run_is_missing(tmp_path: Path) -> None:
    gone = "eager/downcast/gone-fp32-fp16-vmp"
    (tmp_path / "all.txt").write_text(f'{gone}\t{{"device": "virtual:mps"}}\neager/downcast/mm-fp32-bf16-cpu\n')
    options = ("--device=cpu", "--op=mm", "--manifest=all.txt", "--run-file=run.jsonl")
    code, said = pytest_here(tmp_path, str(SUITE), *options)
    assert code == 1, said
    found = read(tmp_path / "run.jsonl")
    assert {key for key, result in found.results.items() if result.status != "pass"} == {gone}
    assert found.results[gone].status == "missing"
    assert found.results[gone].cause == "missing: the manifest lists it, but it did not run"
    assert found.results[gone].device == "virtual:mps"
    assert found.header["cases"] == len(found.results)


def test_ctrl_c_keeps_what_was_measured(folder: Path) -> None:
    path = folder / "stopped.jsonl"
    options = (*EAGER, "--device=dying", "--device-module=dying_device", "--op=addbmm", f"--run-file={path}")
    code, out = interrupted(folder, *options, when=lambda: path.exists() and path.read_text().count("\n") >= 5)
    assert code == 130
    found = read(path)
    assert found.note == "the run was interrupted"
    assert found.footer is None
    assert 0 < len(found.results) < found.header["cases"]
    assert f"interrupted: {len(found.results)} of {found.header['cases']} cases ran" in out
    assert xml.parse(path.with_suffix(".xml")).getroot()[0].attrib["tests"] == str(len(found.results))


@pytest.mark.nightly
def test_plain_pytest_with_xdist_finds_the_same(dying: Ran, folder: Path) -> None:
    path = folder / "plain.jsonl"
    device = ("--device=swapped", "--device-module=dying_device", "--op=addmm", f"--run-file={path}")
    run_pytest(folder, str(SUITE), *device, "-n2", code=1)
    found = read(path)
    assert len(found.results) == found.header["cases"]
    assert found.footer is not None
    names = {key.replace("-dying", "") for key in dying[1].results if "/addmm" in key}
    assert {key.replace("-swapped", "") for key in found.results} == names
    bad = {result.amp for result in found.results.values() if result.status == "fail"}
    assert bad == {"fp16"}


@pytest.mark.nightly
def test_xdist_reports_a_crash_under_the_devices_name(folder: Path) -> None:
    path = folder / "crashed.jsonl"
    device = ("--device=dying", "--device-module=dying_device", "--op=addmm", f"--run-file={path}")
    run_pytest(folder, str(SUITE), *device, "-n2")
    crashed = [result for result in read(path).results.values() if result.status == "crash"]
    assert [(result.key, result.device) for result in crashed] == [("eager/downcast/addmm-fp64-bf16-dying", "dying")]
    assert crashed[0].cause == "crash: worker 'gw…' crashed"


@pytest.fixture(scope="module")
def shards(folder: Path, whole: Run) -> list[Run]:
    """The same in three shards, one of them by plain pytest, each with the manifest of all."""
    (folder / "all.txt").write_text("\n".join(whole.results))
    found = []
    for number in (1, 2, 3):
        options = (*PRODUCTS, f"--shard={number}/3", "--manifest=all.txt", f"--run-file=shards/{number}.jsonl")
        start, first = (run_pytest, (str(SUITE), "-v")) if number == 3 else (run, EAGER)
        done = start(folder, *first, *options, code=1)
        assert f"shard {number}/3" in done.stdout
        found.append(read(folder / "shards" / f"{number}.jsonl"))
    return found


@pytest.mark.nightly
def test_shards_together_are_the_whole_run(whole: Run, shards: list[Run]) -> None:
    merged = merge(shards)
    assert statuses(merged) == statuses(whole)
    assert len(set(statuses(whole).values())) > 1
    same = ("manifest", "cases", "devices")
    assert {name: merged.header[name] for name in same} == {name: whole.header[name] for name in same}
    assert merged.footer["counts"] == whole.footer["counts"] if whole.footer else False
    assert not merged.note
    assert "shard" not in merged.header
    assert sum(len(shard.results) for shard in shards) == len(whole.results)


@pytest.mark.nightly
def test_a_shard_is_named_and_has_its_cases_alone(shards: list[Run]) -> None:
    for number, shard in enumerate(shards, 1):
        assert shard.header["shard"] == f"{number}/3"
        assert 0 < len(shard.results) == shard.header["cases"]
        assert "missing" not in shard.counts()
        assert all(Shard(number, 3).has(key) for key in shard.results)


def test_processes_share_out_an_ops_cases_together_and_a_scenarios_by_parameters() -> None:
    def share(function: str, op: str, inputs: str) -> int:
        return share_of(f"suites/eager/test_ops.py::{function}[{op}-{inputs}]", op, "", inputs, 1000)

    assert share("test_upcast", "exp", "fp32") == share("test_promote", "exp", "fp16-bf16")
    assert share("test_upcast", "exp", "fp32") != share("test_upcast", "log", "fp32")
    assert share("test_loop", "loop", "adam") != share("test_loop", "loop", "sgd")


def test_a_shard_depends_on_the_key_alone() -> None:
    keys = [f"eager/downcast/op{number}-fp32-bf16-cpu" for number in range(800)]
    shards = [Shard.parse(f"{number}/8") for number in range(1, 9)]
    shares = [{key for key in keys if shard.has(key)} for shard in shards]
    assert sorted(key for share in shares for key in share) == sorted(keys)
    assert all(50 < len(share) < 150 for share in shares)
    # Published: another version of ampcheck must put a case into the same shard.
    assert [shard.number for shard in shards if shard.has("eager/downcast/mm-fp32-bf16-cpu")] == [8]


@pytest.mark.nightly
def test_last_failed_runs_what_was_red(folder: Path, whole: Run) -> None:
    path = folder / "renamed.jsonl"
    gone = "eager/downcast/addmm-fp32-fp16-swapped"
    path.write_text(whole.path.read_text().replace("addmm-fp32-fp16-swapped", "gone-fp32-fp16-swapped"))
    red = {key for key, status in statuses(whole).items() if status in RED}
    assert gone in red
    done = run(folder, *EAGER, *SWAPPED, f"--last-failed={path}", "--run-file=again/one.jsonl", code=1)
    found = read(folder / "again" / "one.jsonl")
    assert statuses(found) == {key: statuses(whole)[key] for key in red - {gone}}
    assert found.footer is not None
    assert (
        f"not in this run: 1 of the red cases of {path} no longer exist, or other options leave them out: "
        "eager/downcast/gone-fp32-fp16-swapped" in done.stdout
    )


def test_last_failed_with_nothing_red(tmp_path: Path, whole: Run) -> None:
    path = tmp_path / "green.jsonl"
    path.write_text(
        "".join(f"{line}\n" for line in whole.path.read_text().splitlines() if '"status":"fail"' not in line)
    )
    code, said = pytest_here(tmp_path, str(SUITE), "--device=cpu", f"--red-in={path}")
    assert code == 2
    assert f"the run file {path} has no red case, so there is none to run again" in said


@pytest.mark.nightly
def test_a_run_ends_after_so_many_red_cases(folder: Path) -> None:
    done = run(folder, *EAGER, *PRODUCTS, "--max-red=2", "--run-file=few.jsonl", "-n1", code=1)
    found = read(folder / "few.jsonl")
    red = [result for result in found.results.values() if result.status in RED]
    assert len(red) >= 2
    assert len(found.results) < found.header["cases"]
    assert "missing" not in found.counts()
    assert found.footer is None
    assert f"the run was ended: {len(red)} cases are red (--max-red 2)" in done.stdout
    assert f"{len(found.results)} of {found.header['cases']} cases ran" in done.stdout
    steps = [note for note in found.header["preflight"] if note.startswith("failed")]
    assert xml.parse(folder / "few.xml").getroot()[0].attrib["tests"] == str(len(found.results) + len(steps))


@pytest.mark.nightly
@pytest.mark.parametrize(("least", "processes"), [(20, 2), (200, 1)])
def test_more_processes_start_for_more_cases(
    least: int, processes: int, folder: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    path = folder / f"least{least}" / "one.jsonl"
    root = suites_folder()
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "ampcheck" / "pytest.ini"), f"--rootdir={root.parent}"]
    outcome = RunRecorder(path)
    arguments = [*command, "-p", "ampcheck.runner.plugin", "-q", *PRODUCTS, str(SUITE)]
    Supervisor(arguments, child_environment(2), outcome, processes=2, least=least).run()
    outcome.finish()
    found = read(path)
    assert found.header["processes"] == outcome.processes == processes
    assert statuses(found) == statuses(whole)


@pytest.mark.nightly
def test_a_baseline_excuses_what_it_lists_alone(folder: Path, whole: Run) -> None:
    assert run(folder, "deviations", "baseline", str(whole.path), "--out=baseline.txt", code=0).stdout == ""
    red = {key for key, status in statuses(whole).items() if status in RED}
    done = run(folder, *EAGER, *PRODUCTS, "--baseline=baseline.txt", "--run-file=known/one.jsonl", code=0)
    found = read(folder / "known" / "one.jsonl")
    assert {key for key, status in statuses(found).items() if status == "deviation"} == red
    assert f"baseline baseline.txt: {len(red)} cases are failing as it says" in done.stdout


@pytest.mark.nightly
def test_the_pytest_line_reproduces_where_the_module_is(whole: Run, folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "pytest").symlink_to(Path(sys.executable).with_name("pytest"))
    line = whole.results["eager/downcast/mm-fp32-fp16-swapped"].pytest
    assert line.startswith("pytest ")
    done = ended(["sh", "-c", line], folder, PATH=f"{folder / 'bin'}:{os.environ['PATH']}", code=1)
    assert "1 failed" in done.stdout
    assert "reached the kernel as bf16; expected fp16" in done.stdout


# ---- on a torch that no table covers, and on one without TorchScript: the installed one, changed at import

NEWER = {"torch.version": "module.__version__ = '2.99.0'"}
WITHOUT_JIT = {"torch": "del module.jit.script"}


def run_on(folder: Path, changes: dict[str, str], *arguments: str) -> Ran:
    """`ampcheck run` in processes that each import torch with these changes."""
    finder = Path(__file__).with_name("sitecustomize.txt").read_text(encoding="utf-8")
    (folder / "sitecustomize.py").write_text(finder.format(changes=changes))
    command = [sys.executable, "-m", "ampcheck", "run", "--device=cpu", "--run-file=run.jsonl", *arguments]
    done = ended(command, folder, code=0, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    return done, read(folder / "run.jsonl")


@pytest.mark.nightly
@pytest.mark.skipif(torch.__version__ >= "2.14", reason="the newest table is this torch's, so that nothing drifted")
def test_a_torch_above_every_table_runs_and_says_once_what_drifted(tmp_path: Path) -> None:
    done, found = run_on(tmp_path, NEWER, "--rule=drift", "--rule=cache", "--rule=banned", "--op=mm", "--op=cholesky")
    assert done.stdout.count("torch 2.99.0 has no policy table; it is compared with the table of torch 2.15") == 1
    assert done.stdout.count("AutocastCPU registers aten::cholesky, which the table of torch 2.15 does not list") == 1
    statuses = {(r.rule, r.op): r.status for r in found.results.values()}
    assert statuses["drift", "cholesky"] == "pass"
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.nightly
def test_a_torch_without_torchscript_says_so_in_its_cases(tmp_path: Path) -> None:
    _, found = run_on(tmp_path, WITHOUT_JIT, "--suite=jit", "--rule=downcast", "--op=mm")
    status = {case.id: (case.status, case.message) for case in found.results.values()}
    scripted = {name: said for name, said in status.items() if "-script-" in name}
    assert set(scripted.values()) == {("unsupported", f"torch {torch.__version__} has no torch.jit.script")}
    assert all(said == "pass" for name, (said, _) in status.items() if name not in scripted)
    assert len(status) > len(scripted) > 2


# ---- the seed in a run file is the one that the random programs are drawn from


def _today() -> int:
    return int(f"{datetime.now(UTC):%Y%m%d}")


def test_which_seed_a_run_has() -> None:
    assert seed_of_programs(False) == seed_of_programs(False, 7) == FIXED_SEED
    assert seed_of_programs(True, "12") == seed_of_programs(True, 12) == 12
    assert seed_of_programs(True, "night") == seed_of_programs(True, "night") != seed_of_programs(True, "day")
    assert seed_of_programs(True) in (_today(), _today() - 1)


def drawn(search: Search) -> list[str]:
    """The programs that a search draws, none of them run."""
    found: list[str] = []
    assert search.first_difference(found.append, programs(["cpu"]), examples=20, nightly=20) is None
    return found


def test_a_seed_decides_what_is_drawn() -> None:
    usual = drawn(Search())
    assert len(usual) > 10
    assert usual == drawn(Search(given=7))  # only a nightly run takes one
    assert usual == drawn(Search(nightly=True, given=FIXED_SEED))
    assert usual != drawn(Search(nightly=True, given=7))


@pytest.mark.nightly
def test_a_run_file_has_the_seed(tmp_path: Path) -> None:
    """Given, fixed, or, in the test of a supervised run, the day's."""
    command = (str(ROOT / "suites" / "eager" / "test_defaults.py"), "--device=cpu", "--run-file=run.jsonl")
    given, fixed = tmp_path / "given", tmp_path / "fixed"
    given.mkdir()
    run_pytest(given, *command, "--nightly", "--hypothesis-seed=7", code=0)
    assert read(given / "run.jsonl").header["seed"] == 7
    fixed.mkdir()
    assert pytest_here(fixed, *command)[0] == 0
    assert read(fixed / "run.jsonl").header["seed"] == FIXED_SEED


@pytest.mark.nightly
def test_a_supervised_run_has_the_seed(tmp_path: Path) -> None:
    before = _today()
    run(tmp_path, "run", "--device=cpu", "--rule=defaults", "--nightly", "--run-file=run.jsonl", code=0)
    header = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])
    assert header["nightly"] is True
    assert before <= header["seed"] <= _today()
