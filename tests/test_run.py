"""`ampcheck run`: one run file and one JUnit file, whatever a device does to the process that tests it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from ampcheck.compare import first_line
from ampcheck.results import Run, read
from tests.cli_support import LIMIT, MODULE, ROOT, environment, interrupted, run, run_pytest

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
def dying(folder: Path) -> tuple[subprocess.CompletedProcess[str], Run]:
    """A run on a device that ends the process in two cases and hangs in a third."""
    done = run(
        folder, "run", "--device=dying", "--device-module=dying_device", *OPS, "--timeout=20", "--run-file=one.jsonl"
    )
    return done, read(folder / "one.jsonl")


def statuses(found: Run) -> dict[str, str]:
    return {key: result.status for key, result in found.results.items()}


def test_a_dying_process_costs_the_case_that_it_died_in(dying: tuple[subprocess.CompletedProcess[str], Run]) -> None:
    done, found = dying
    assert done.returncode == 1, done.stdout + done.stderr
    other = {key: status for key, status in statuses(found).items() if status != "pass"}
    assert other == {
        "eager/downcast/addmm-fp64-bf16-dying": "crash",
        "eager/downcast/baddbmm-fp64-bf16-dying": "crash",
        "eager/downcast/addbmm-fp64-bf16-dying": "timeout",
    }
    assert len(found.results) == found.header["cases"] > 100
    assert found.footer is not None
    assert found.footer["counts"] == dict(found.counts())
    assert not found.note


def test_a_crash_says_how_and_where_and_how_to_reproduce_it(
    dying: tuple[subprocess.CompletedProcess[str], Run],
) -> None:
    done, found = dying
    exited = found.results["eager/downcast/addmm-fp64-bf16-dying"]
    assert exited.message == "the process ended with exit code 7"
    signalled = found.results["eager/downcast/baddbmm-fp64-bf16-dying"]
    assert signalled.message.startswith("the process ended with signal SIGSEGV; it was in bad (dying_device.py:")
    hung = found.results["eager/downcast/addbmm-fp64-bf16-dying"]
    assert hung.message.startswith("nothing happened for 20 s; it was in bad (dying_device.py:")
    assert exited.cause == "crash: the process ended with exit code …"
    assert signalled.cause == "crash: the process ended with signal SIGSEGV (dying_device.py in bad)"
    assert hung.cause == "timeout: nothing happened for … s (dying_device.py in bad)"
    for result in (exited, signalled, hung):
        assert result.device == "dying"
        assert "--device=dying --device-module=dying_device" in result.pytest
        assert f"torch.ops.aten.{result.op}.default(" in result.torch
        assert first_line(f"{result.status}: {result.key}: {result.message}") in done.stdout
    assert f"run file: {found.path.name}" in done.stdout
    assert "JUnit: one.xml" in done.stdout


def test_the_junit_file_says_the_same(dying: tuple[subprocess.CompletedProcess[str], Run], folder: Path) -> None:
    suite = xml.parse(folder / "one.xml").getroot()[0]
    found = dying[1]
    assert suite.attrib["tests"] == str(len(found.results))
    assert (suite.attrib["errors"], suite.attrib["failures"], suite.attrib["skipped"]) == ("3", "0", "0")
    bad = {f"{c.attrib['classname']}.{c.attrib['name']}": c[0].attrib["message"] for c in suite if len(c)}
    assert bad["eager.downcast.addmm-fp64-bf16-dying"] == "crash: the process ended with exit code 7"
    assert len(bad) == 3


def test_two_processes_find_the_same(dying: tuple[subprocess.CompletedProcess[str], Run], folder: Path) -> None:
    options = ("--device=dying", "--device-module=dying_device", *OPS, "--timeout=20", "--run-file=two.jsonl", "-n2")
    done = run(folder, "run", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    found = read(folder / "two.jsonl")
    assert statuses(found) == statuses(dying[1])
    same = ("manifest", "cases", "devices", "absent", "versions")
    assert {name: found.header[name] for name in same} == {name: dying[1].header[name] for name in same}
    assert found.header["command"] == ["ampcheck", "run", *options]


def test_the_fault_of_a_third_party_is_found(folder: Path) -> None:
    device = ("--device=swapped", "--device-module=dying_device", "--op=mm")
    done = run(folder, "run", *device, "--run-file=swapped.jsonl", "--junit=out/swapped.xml")
    assert done.returncode == 1
    found = read(folder / "swapped.jsonl")
    failed = [result for result in found.results.values() if result.status == "fail"]
    assert failed
    assert {result.amp for result in failed} == {"fp16"}
    assert all(result.status == "pass" for result in found.results.values() if result.amp == "bf16")
    main = found.results["eager/downcast/mm-fp32-fp16-swapped"]
    assert main.message.startswith(
        "argument 0 of aten::mm was given as fp32 and reached the kernel as bf16; expected fp16"
    )
    assert main.message.partition("\n")[0] in done.stdout
    assert (folder / "out" / "swapped.xml").exists()


def test_the_reproducing_line_reproduces(folder: Path) -> None:
    run(folder, "run", "--device=swapped", "--device-module=dying_device", "--op=mm", "--run-file=again.jsonl")
    line = read(folder / "again.jsonl").results["eager/downcast/mm-fp32-fp16-swapped"].pytest
    program, *arguments = shlex.split(line)
    assert program == "pytest"
    command = [sys.executable, "-m", "pytest", *arguments, "--rootdir=.", "-c", os.devnull, "--no-run-file"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert "reached the kernel as bf16; expected fp16" in done.stdout


def test_green_ends_with_0_and_absent_devices_are_said(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "--op=mm", "-k", "cpu or vmp", "--reports=kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "devices: cpu, jax, virtual:cuda" in done.stdout
    (found,) = (tmp_path / "kept" / "runs").glob("*.jsonl")
    assert set(read(found).counts()) <= {"pass", "deviation"}
    assert found.with_suffix(".xml").exists()
    ran = len(read(found).results)
    assert f"{ran} of {ran} cases ran" in done.stdout
    assert "; 0 more were not selected" not in done.stdout
    for name, reason in read(found).header["absent"].items():
        assert f"without {name}: {reason}" in done.stdout


def test_list_and_manifest_show_what_a_run_has(tmp_path: Path) -> None:
    choice = ("--device=cpu", "--rule=promote")
    listed = run(tmp_path, "run", "--list", *choice)
    assert listed.returncode == 0
    keys = listed.stdout.split()
    assert keys == sorted(keys)
    assert {key.rpartition("/")[0] for key in keys} == {"eager/promote", "autograd/promote", "jit/promote"}
    assert f"{len(keys)} cases" in listed.stderr
    assert run(tmp_path, "manifest", *choice, "--out=all.txt").returncode == 0
    assert (tmp_path / "all.txt").read_text().split() == keys
    assert not (tmp_path / "reports").exists()


def test_what_the_manifest_has_and_no_run_is_missing(tmp_path: Path) -> None:
    gone = "eager/downcast/gone-fp32-fp16-vmp"
    (tmp_path / "all.txt").write_text(f"{gone}\neager/downcast/mm-fp32-bf16-cpu\n")
    options = ("--device=cpu", "--op=mm", "--manifest=all.txt", "--run-file=run.jsonl")
    done = run(tmp_path, "run", *options)
    assert done.returncode == 1
    found = read(tmp_path / "run.jsonl")
    assert {key for key, result in found.results.items() if result.status != "pass"} == {gone}
    assert found.results[gone].status == "missing"
    assert found.results[gone].cause == "missing: the manifest lists it, but it did not run"
    assert found.results[gone].device == "virtual:mps"
    assert found.header["cases"] == len(found.results)


def test_ctrl_c_keeps_what_was_measured(folder: Path) -> None:
    path = folder / "stopped.jsonl"
    options = ("run", "--device=dying", "--device-module=dying_device", "--op=addbmm", f"--run-file={path}")
    code, out = interrupted(folder, *options, when=lambda: path.exists() and path.read_text().count("\n") >= 5)
    assert code == 130
    found = read(path)
    assert found.note == "the run was interrupted"
    assert found.footer is None
    assert 0 < len(found.results) < found.header["cases"]
    assert f"interrupted: {len(found.results)} of {found.header['cases']} cases ran" in out
    assert xml.parse(path.with_suffix(".xml")).getroot()[0].attrib["tests"] == str(len(found.results))


@pytest.mark.parametrize("options", [("-n2",), ("-p", "no:xdist")], ids=["xdist", "without-xdist"])
def test_plain_pytest_finds_the_same_with_and_without_xdist(
    dying: tuple[subprocess.CompletedProcess[str], Run], folder: Path, options: tuple[str, ...]
) -> None:
    path = folder / f"plain{len(options)}.jsonl"
    device = ("--device=swapped", "--device-module=dying_device", "--op=addmm", f"--run-file={path}")
    done = run_pytest(folder, str(ROOT / "suites"), *device, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    found = read(path)
    assert len(found.results) == found.header["cases"]
    assert found.footer is not None
    names = {key.replace("-dying", "") for key in dying[1].results if "/addmm" in key}
    assert {key.replace("-swapped", "") for key in found.results} == names
    bad = {result.amp for result in found.results.values() if result.status == "fail"}
    assert bad == {"fp16"}


def test_xdist_reports_a_crash_under_the_devices_name(folder: Path) -> None:
    path = folder / "crashed.jsonl"
    device = ("--device=dying", "--device-module=dying_device", "--op=addmm", f"--run-file={path}")
    run_pytest(folder, str(ROOT / "suites"), *device, "-n2")
    crashed = [result for result in read(path).results.values() if result.status == "crash"]
    assert [(result.key, result.device) for result in crashed] == [("eager/downcast/addmm-fp64-bf16-dying", "dying")]
    assert crashed[0].cause == "crash: worker 'gw…' crashed"


def test_the_header_tells_tokens(dying: tuple[subprocess.CompletedProcess[str], Run]) -> None:
    (device,) = dying[1].header["devices"]
    assert (device["name"], device["token"], device["key"]) == ("dying", "dying", "AutocastCPU")
    json.dumps(dying[1].header)
