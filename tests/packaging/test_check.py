"""The steps of .github/workflows/check.yml and what they run, and the commands of steps that need hardware or a tag."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ampcheck.bench.core.model import Rounds
from ampcheck.bench.run.runfile import BenchWriter
from ampcheck.bench.run.summary import summarize
from ampcheck.cli import main
from ampcheck.errors import UsageError
from tests.cli_support import LIMIT, ROOT, jobs


def load() -> ModuleType:
    """Import scripts/check_bench.py."""
    spec = importlib.util.spec_from_file_location("check_bench", ROOT / "scripts" / "check_bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["check_bench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_bench = load()


def test_the_targets_of_make_exist() -> None:
    for (script,) in (jobs("check")["static"], jobs("check")["tests"]):
        done = subprocess.run([*script.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "lint-imports" in done.stdout
        assert "mypy" in done.stdout


def parsed(script: str, **values: str) -> None:
    """Let the command line read a script's `ampcheck` command; it ends with 2 for an option that it does not know."""
    for name, value in values.items():
        script = script.replace(f'"${name}"', value)
    script = re.sub(r'"\S*\$\(date[^)]*\)\S*"', "new.jsonl", script)
    program = f"ampcheck() {{ printf '%s\\0' \"$@\"; }}\n{script}"
    words = subprocess.run(["bash", "-e", "-c", program], capture_output=True, text=True, check=True).stdout.split("\0")
    main._parser().parse_args(words[:-1])


def test_commands_of_hardware_are_understood() -> None:
    scripts = [
        script
        for job in ("hardware", "virtual-npu")
        for script in jobs("nightly")[job]
        if script.startswith("ampcheck")
    ]
    assert len(scripts) == 3
    for script in scripts:
        parsed(script, DEVICE="cuda")
    with pytest.raises(SystemExit):
        parsed("ampcheck bench --no-such-option")


@pytest.mark.parametrize(("tag", "good"), [("v0.1.0", True), ("v0.2.0", False)])
def test_the_tag_names_the_version(tag: str, good: bool, tmp_path: Path) -> None:
    (script,) = (script for script in jobs("publish")["build"] if "TAG" in script)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "ampcheck-0.1.0.tar.gz").touch()
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, "TAG": tag}, check=False)
    assert (done.returncode == 0) == good


# ---- the comparison, of made-up measurements


def files(folder: Path, **speeds: dict[str, float]) -> dict[str, list[Path]]:
    """Run files of five turns: for each side, seconds of `fp32` by workload, a little noise in each round."""
    found: dict[str, list[Path]] = {}
    for side in check_bench.SIDES:
        for turn in range(5):
            path = folder / f"{side}-{turn}.jsonl"
            writer = BenchWriter(path, {"started": "2026-11-20T03:00:00Z"})
            rounds = []
            for number, (workload, seconds) in enumerate(speeds[side.replace("-", "_")].items()):
                noise = [1 + 0.001 * ((turn * 7 + round * 3 + number) % 5) for round in range(5)]
                samples = {"fp32": [seconds * one for one in noise], "fp32-aa": [seconds * one for one in noise]}
                rounds.append(Rounds(workload, "cpu", "eager", turn, samples))
                writer.rounds(rounds[-1])
            writer.close(summarize(rounds), {})
            found.setdefault(side, []).append(path)
    return found


def test_the_largest_changes_come_first_and_five_are_shown(tmp_path: Path) -> None:
    names = ["mm-64", "mm-512", "linear", "softmax", "add", "layer-norm", "conv2d"]
    base = dict.fromkeys(names, 1e-3)
    head = {name: 1e-3 * (1 + 0.1 * number) for number, name in enumerate(names)}
    found = files(tmp_path, base=base, head={**head, "mm-512": 0.5e-3}, base_again=base)
    text = check_bench.summary(check_bench.compare(found), check_bench.invalid(found), 5)
    rows = re.findall(r"^\| cpu/eager/([\w-]+)/fp32 .*\| (slower|faster) \|", text, re.MULTILINE)
    assert rows[0] == ("mm-512", "faster")
    assert rows[1:] == [(name, "slower") for name in reversed(names[3:])]
    assert "7 timings in 5 turns: 5 slower, 1 faster" in text
    assert "1 smaller changes" in text


@pytest.mark.parametrize("again", [0.85, 1.15])
def test_a_change_within_the_noise_of_base_does_not_count(again: float, tmp_path: Path) -> None:
    base, head = {"add": 1e-3, "softmax": 1e-3}, {"add": 1.1e-3, "softmax": 1.1e-3}
    found = files(tmp_path, base=base, head=head, base_again={**base, "add": again * 1e-3})
    counted = [timing.name for timing in check_bench.compare(found) if timing.counts]
    assert counted == ["cpu/eager/softmax/fp32"]


def test_a_timing_of_one_side_is_not_compared(tmp_path: Path) -> None:
    base = {"add": 1e-3}
    found = files(tmp_path, base=base, head={**base, "softmax": 1e-3}, base_again=base)
    assert [timing.name for timing in check_bench.compare(found)] == ["cpu/eager/add/fp32"]


def test_a_checkout_without_its_own_package_is_refused(tmp_path: Path) -> None:
    check_bench.own_package(ROOT)
    with pytest.raises(UsageError, match="is not what Python imports there"):
        check_bench.own_package(tmp_path)


# ---- the job itself


@pytest.mark.nightly
def test_a_planted_slowdown_is_in_the_summary(tmp_path: Path) -> None:
    head, programs, summary = tmp_path / "head", tmp_path / "bin", tmp_path / "summary.md"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(head)], check=True)
    base = subprocess.run(["git", "rev-parse", "HEAD"], cwd=head, check=True, capture_output=True, text=True).stdout
    shutil.copy(ROOT / "scripts" / "check_bench.py", head / "scripts")
    workloads = head / "ampcheck" / "bench" / "workloads" / "policies.py"
    text = workloads.read_text(encoding="utf-8")
    planted = text.replace(
        '"fallthrough", torch.add,', '"fallthrough", lambda x, y: (__import__("time").sleep(2e-3), torch.add(x, y))[1],'
    )
    assert planted != text
    workloads.write_text(planted, encoding="utf-8")
    programs.mkdir()
    for name, line in (("pip", ""), ("python", f'exec "{sys.executable}" "$@"\n')):
        (programs / name).write_text(f"#!/bin/sh\n{line}")
        (programs / name).chmod(0o755)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "BASE": base.strip(),
        "SELECTION": "--turns 3 -- --quick --device cpu --filter add --filter softmax",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    for script in jobs("check")["benchmarks"]:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=head,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\S+) \|.*\| (slower|faster) \|", summary.read_text(), re.MULTILINE)
    assert ("cpu/eager/add/fp32", "slower") in rows
    assert {name.split("/")[2] for name, _ in rows} == {"add"}
    assert len(list((head / "reports" / "bench").glob("*.jsonl"))) == 9
