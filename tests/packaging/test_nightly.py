"""The steps of .github/workflows/nightly.yml: three nights of two shards on two devices, the third with a fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import LIMIT, MODULE, ROOT, jobs

pytestmark = pytest.mark.nightly

JOBS = jobs("nightly")

GH = """#!/usr/bin/env bash
echo "$*" >> "$KEPT/gh"
case "$1 $2" in
  "run list") if [ -d "$KEPT/history" ]; then echo 17; fi ;;
  "issue list") echo "${ISSUES:-[]}" ;;
  "run download") cp -r "$KEPT/history" history ;;
esac
"""
"""In place of GitHub's program: the history is a folder, and no issue is open."""

DATE = '#!/bin/sh\necho "$NIGHT"\n'
AMPCHECK = f'#!/bin/sh\nexec "{sys.executable}" -m ampcheck "$@"\n'
FAULTY = MODULE.replace('autocast("bf16", **kw)', 'autocast("bf16" if os.environ["FAULT"] else dtype, **kw)')


class Pipeline:
    """The folder that a job's steps run in, and what GitHub keeps from night to night."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder, folder / "kept"
        programs = folder / "bin"
        for place in (programs, self.kept):
            place.mkdir()
        for name, text in (("gh", GH), ("date", DATE), ("ampcheck", AMPCHECK), ("pip", "#!/bin/sh\n")):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (self.kept / "faulty.py").write_text(FAULTY)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.kept}",
            "KEPT": str(self.kept),
            "GITHUB_STEP_SUMMARY": str(self.kept / "summary"),
            "GITHUB_OUTPUT": str(self.kept / "output"),
            "OMP_NUM_THREADS": "1",
            "INDEX": "",
            "NIGHTS": "2",
        }

    def step(self, script: str, folder: Path, *, codes: tuple[int, ...] = (0,), **env: str) -> None:
        """Run one step as GitHub does."""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode in codes, done.stdout + done.stderr

    def night(self, date: str, fault: str) -> Path:
        """One night; returns the folder of its report."""
        install, run = JOBS["suites"]
        (self.kept / "summary").write_text("")
        report = self.folder / date
        (report / "scripts").mkdir(parents=True)
        for name in ("nightly_site", "nightly_issue"):
            (report / "scripts" / name).symlink_to(ROOT / "scripts" / name)
        selection = "--device cpu --device swapped --device-module faulty --suite eager --rule promote --op cat"
        for number in (1, 2):
            folder = self.folder / f"{date}-{number}"
            folder.mkdir()
            given = {"TORCH": "2.13", "SHARD": f"{number}/2", "SELECTION": selection, "NIGHT": date, "FAULT": fault}
            self.step(install, folder, **given)
            self.step(run, folder, codes=(0, 1), **given)
            (file,) = (folder / "reports/runs").glob("*.jsonl")
            header, rest = file.read_text(encoding="utf-8").split("\n", 1)
            assert json.loads(header)["nightly"]
            # All three nights are made within minutes.
            header = re.sub(r'"started":"[\d-]+T', f'"started":"{date}T', header)
            tonight = report / f"tonight/run-2.13-{number}"
            tonight.mkdir(parents=True)
            (tonight / file.name).write_text(f"{header}\n{rest}", encoding="utf-8")
        for script in JOBS["report"][1:]:
            self.step(script, report)
        (report / "history").rename(self.kept / "new")
        subprocess.run(["rm", "-rf", str(self.kept / "history")], check=True)
        (self.kept / "new").rename(self.kept / "history")
        return report


def test_the_plan_has_the_nightly_build_where_an_index_is_named(tmp_path: Path) -> None:
    for index, more in (("", []), ("https://example.org/nightly", ["nightly"])):
        (script,) = JOBS["plan"]
        env = {**os.environ, "INDEX": index, "GITHUB_OUTPUT": str(tmp_path / "output")}
        subprocess.run(["bash", "-e", "-c", script], env=env, check=True)
        planned = json.loads((tmp_path / "output").read_text().splitlines()[-1].partition("=")[2])
        assert planned == ["2.11", "2.12", "2.13", "2.14", "2.15", "newest", *more]


def test_a_regression_is_named_with_its_night(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    for night in ("2026-11-01", "2026-11-02"):
        report = pipeline.night(night, "")
        assert json.loads((report / "site/2.13/changes.json").read_text()).get("regressed", []) == []
        assert "issue" not in (pipeline.kept / "gh").read_text()
    report = pipeline.night("2026-11-03", "1")

    changes = json.loads((report / "site/2.13/changes.json").read_text())
    assert changes["regressed"]
    assert {change["device"] for change in changes["regressed"]} == {"swapped"}
    assert "2026-11-02" in changes["a"]
    assert "2026-11-03" in changes["b"]
    summary = (pipeline.kept / "summary").read_text()
    assert summary.startswith("# torch 2.13\n")
    assert f"{len(changes['regressed'])} regressed" in summary
    assert changes["regressed"][0]["key"] in summary
    issues = [line for line in (pipeline.kept / "gh").read_text().splitlines() if line.startswith("issue create")]
    assert issues == ["issue create --title Regressed at night: torch 2.13 --body-file site/2.13/summary.md"]
    kept = sorted(file.name for file in (pipeline.kept / "history/2.13/runs").iterdir())
    assert kept == [f"2026-11-0{night}-{shard}-of-2.jsonl" for night in (2, 3) for shard in (1, 2)]
    page = (report / "site/2.13/index.html").read_text()
    assert "2026-11-03" in page
    assert "regressed" in page
    assert 'href="2.13/index.html"' in (report / "site/index.html").read_text()


@pytest.mark.parametrize(("title", "says"), [("torch 2.1", "issue comment 5"), ("torch 2.13", "issue create")])
def test_only_the_issue_of_the_same_title_is_commented_on(title: str, says: str, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    site = tmp_path / "site" / "2.1"
    site.mkdir(parents=True)
    (site / "changes.json").write_text('{"regressed": [{}]}')
    issues = json.dumps([{"number": 5, "title": f"Regressed at night: {title}"}])
    pipeline.step(str(ROOT / "scripts" / "nightly_issue"), tmp_path, ISSUES=issues)
    assert (pipeline.kept / "gh").read_text().splitlines()[-1].startswith(says)
