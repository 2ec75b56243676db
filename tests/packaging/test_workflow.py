"""The steps of .github/workflows/conformance.yml, run in bash, with programs that note their arguments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ampcheck.spec.ids import Shard
from tests.cli_support import LIMIT, jobs

NOTE = '#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@" >> "$NOTES"\n'


(PLAN,), (INSTALL, RUN), (INSTALL_REPORT, REPORT) = jobs("conformance").values()


def run(script: str, folder: Path, **env: str) -> list[str]:
    """What the programs of a step were called with, a word a line; the step must end well."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("ampcheck", "pip"):
        (programs / name).write_text(NOTE)
        (programs / name).chmod(0o755)
    notes = folder / "notes"
    notes.touch()
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "NOTES": str(notes)}
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={**own, **files, **env}, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return notes.read_text().splitlines()


@pytest.mark.parametrize("count", [1, 8])
def test_the_plan_names_every_shard(count: int, tmp_path: Path) -> None:
    run(PLAN, tmp_path, COUNT=str(count))
    name, _, value = (tmp_path / "GITHUB_OUTPUT").read_text().strip().partition("=")
    assert name == "shards"
    assert [Shard.parse(text) for text in json.loads(value)] == [Shard(n, count) for n in range(1, count + 1)]


def test_what_is_installed(tmp_path: Path) -> None:
    assert run(INSTALL, tmp_path, INSTALL="torch-mydevice>=2 .") == [
        "pip",
        "install",
        "./.ampcheck",
        "torch-mydevice>=2",
        ".",
    ]
    assert run(INSTALL_REPORT, tmp_path)[-3:] == ["pip", "install", "./.ampcheck"]


EMPTY = dict.fromkeys(("DEVICES", "MODULE", "DEVIATIONS", "BASELINE", "MANIFEST"), "")


def test_the_run_takes_every_input(tmp_path: Path) -> None:
    given = {
        "DEVICES": "one two",
        "MODULE": "mydevice_ampcheck",
        "DEVIATIONS": "a.toml b.toml",
        "BASELINE": "my baseline.txt",
        "MANIFEST": "manifest.txt",
    }
    words = run(RUN, tmp_path, SHARD="2/8", **given)
    assert words[:6] == ["ampcheck", "run", "--shard", "2/8", "--run-file", "reports/runs/2-of-8.jsonl"]
    pairs = list(zip(words[6::2], words[7::2], strict=True))
    assert pairs == [
        ("--device", "one"),
        ("--device", "two"),
        ("--deviations", "a.toml"),
        ("--deviations", "b.toml"),
        ("--device-module", "mydevice_ampcheck"),
        ("--baseline", "my baseline.txt"),
        ("--manifest", "manifest.txt"),
    ]


def test_the_run_needs_no_input(tmp_path: Path) -> None:
    assert run(RUN, tmp_path, SHARD="1/1", **EMPTY)[2:] == ["--shard", "1/1", "--run-file", "reports/runs/1-of-1.jsonl"]


def test_a_red_run_ends_its_step(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(f"ampcheck() {{ return 1; }}\n{RUN}", tmp_path, SHARD="1/1", **EMPTY)


def test_summary_and_badge(tmp_path: Path) -> None:
    site = tmp_path / "reports" / "site"
    site.mkdir(parents=True)
    (site / "summary.md").write_text("## ampcheck\n")
    (site / "badge.json").write_text('{\n "label": "ampcheck"\n}\n')
    assert run(REPORT, tmp_path) == ["ampcheck", "report"]
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == "## ampcheck\n"
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == 'badge<<END\n{\n "label": "ampcheck"\n}\nEND\n'
