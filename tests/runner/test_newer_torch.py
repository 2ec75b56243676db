"""Runs on a torch that no table covers, and on one without TorchScript: the installed one, changed at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampcheck.runner.record import Run, read
from tests.cli_support import ROOT, ended

pytestmark = pytest.mark.nightly

CHANGED = """
import importlib.machinery, sys

CHANGES = {changes}


class Finder:
    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        right = spec.loader.exec_module

        def exec_module(module):
            right(module)
            exec(CHANGES[name], {{"module": module}})

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""
NEWER = {"torch.version": "module.__version__ = '2.99.0'"}
WITHOUT_JIT = {"torch": "del module.jit.script"}


def run(folder: Path, changes: dict[str, str], *arguments: str) -> tuple[subprocess.CompletedProcess[str], Run]:
    """`ampcheck run` in processes that each import torch with these changes."""
    (folder / "sitecustomize.py").write_text(CHANGED.format(changes=changes))
    command = [sys.executable, "-m", "ampcheck", "run", "--device=cpu", "--run-file=run.jsonl", *arguments]
    done = ended(command, folder, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    assert (folder / "run.jsonl").exists(), done.stdout + done.stderr
    return done, read(folder / "run.jsonl")


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="the newest table is this torch's, so that nothing drifted")
def test_a_torch_above_every_table_runs_and_says_once_what_drifted(tmp_path: Path) -> None:
    done, found = run(tmp_path, NEWER, "--rule=drift", "--rule=cache", "--rule=banned", "--op=mm", "--op=cholesky")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("torch 2.99.0 has no policy table; it is compared with the table of torch 2.15") == 1
    assert done.stdout.count("AutocastCPU registers aten::cholesky, which the table of torch 2.15 does not list") == 1
    statuses = {(r.rule, r.op): r.status for r in found.results.values()}
    assert statuses["drift", "cholesky"] == "pass"
    assert "Traceback" not in done.stdout + done.stderr


def test_a_torch_without_torchscript_says_so_in_its_cases(tmp_path: Path) -> None:
    done, found = run(tmp_path, WITHOUT_JIT, "--suite=jit", "--rule=downcast", "--op=mm")
    assert done.returncode == 0, done.stdout + done.stderr
    status = {case.id: (case.status, case.message) for case in found.results.values()}
    scripted = {name: said for name, said in status.items() if "-script-" in name}
    assert set(scripted.values()) == {("unsupported", f"torch {torch.__version__} has no torch.jit.script")}
    assert all(said == "pass" for name, (said, _) in status.items() if name not in scripted)
    assert len(status) > len(scripted) > 2
