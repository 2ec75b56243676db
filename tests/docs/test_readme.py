"""The commands of the README and of the pages hold: a newcomer types them word for word."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import ROOT, environment, python

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(program: str, text: str = README) -> list[list[str]]:
    """Every command line of a program, comments dropped."""
    lines = (line for block in blocks("sh", text) for line in block.splitlines())
    split = [shlex.split(line, comments=True) for line in lines]
    return [words for words in split if words and words[0] == program]


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.nightly
@pytest.mark.parametrize("words", commands("pytest"), ids=" ".join)
def test_pytest_lines_find_cases(words: list[str]) -> None:
    done = run(*words, "--collect-only", "-q", "--no-run-file")
    assert done.returncode == 0, done.stdout[-500:]
    assert re.search(r"[1-9]\d* tests collected|[1-9]\d*/\d+ tests collected", done.stdout)


def options_shown() -> dict[tuple[str, ...], set[str]]:
    """The options that any page gives each command."""
    out: dict[tuple[str, ...], set[str]] = {}
    for words in commands("ampcheck", PAGES):
        actions = itertools.takewhile(lambda word: re.fullmatch(r"[a-z]+", word), words[1:3])
        name = tuple(actions) if words[1] in ("bench", "deviations", "waivers") else (words[1],)
        out.setdefault(name, set()).update(word for word in words[2:] if re.match(r"--?\w", word))
    return out


@pytest.mark.parametrize("name", options_shown(), ids=" ".join)
def test_commands_take_what_the_pages_give_them(name: tuple[str, ...]) -> None:
    done = run("ampcheck", *name, "--help")
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--?[\w-]+", done.stdout))
    assert sorted(options_shown()[name] - known) == []


def test_the_example_device_runs(tmp_path: Path) -> None:
    """The class of the README, for the CPU in place of a device nobody has."""
    code = next(block for block in blocks("python") if "class MyDevice" in block)
    code = code.replace('name = token = type = "mydevice"', 'name = token = "mydevice"\n    type = "cpu"')
    code = code.replace("AutocastPrivateUse1", "AutocastCPU").replace("AutocastCUDA", "AutocastCPU")
    (tmp_path / "mydevice_ampcheck.py").write_text(code, encoding="utf-8")
    words = next(words for words in commands("ampcheck") if "--device-module" in words)
    done = run(*words, "--op", "mm", "--reports", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mydevice" in done.stdout


def test_the_training_loop_on_jax_learns() -> None:
    code = next(block for block in blocks("python") if "import torch, ampcheck.jax_device" in block)
    assert 0 < float(python("-c", code)) < 0.5  # an untrained model's is 8
