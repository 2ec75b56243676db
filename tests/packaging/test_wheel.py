"""What ships: every folder of code and data, nothing that pulls in the heavy packages, and a wheel that works."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampcheck.runner.record import read
from tests.cli_support import LIMIT, MODULE, ROOT, python

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_kind_of_data_file_ships() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    listed = subprocess.run(["git", "ls-files", "ampcheck"], cwd=ROOT, check=True, capture_output=True, text=True)
    kept = listed.stdout.split()
    data = [Path(name) for name in kept if not name.endswith(".py")]
    assert data
    assert [p for p in data if not any(p.match(pattern) for pattern in patterns)] == []


# ---- the built wheel, in an environment that has nothing else of ampcheck


@dataclass(frozen=True)
class Installed:
    """A virtual environment with what ampcheck depends on, and a folder to work in."""

    programs: Path
    wheels: Path
    folder: Path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line of a shell, as a newcomer types it; pip finds the built wheel and no index."""
        env = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            command, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )


def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A copy of the files that git has, so that nothing is left in the checkout, and their names."""
    source = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file() and not name.startswith("reports/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source, {name for name in names if (source / name).is_file()}


def build(tmp_path_factory: pytest.TempPathFactory, **env: str) -> Path:
    """The folder of a wheel built from a copy."""
    (source, _), wheels = copied(tmp_path_factory), tmp_path_factory.mktemp("wheels")
    options = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    command = [sys.executable, "-m", "pip", *options, str(wheels)]
    subprocess.run([*command, str(source)], env={**os.environ, **env}, check=True, capture_output=True, timeout=LIMIT)
    return wheels


def test_the_sdist_has_all_but_reports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, docs and what they read: a distribution builds and tests a package from it."""
    source, names = copied(tmp_path_factory)
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    python("-c", code, folder=source)
    with tarfile.open(next((source / "dist").glob("ampcheck-*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        information = archive.extractfile(next(name for name in archive.getnames() if name.endswith("/PKG-INFO")))
        assert information is not None
        fields = information.read().decode().partition("\n\n")[0]
    assert sorted(name for name in names - held if not name.startswith((".ci/", ".gitignore"))) == []
    for field in ("Author: The ampcheck authors", "Project-URL: Issues, https", "Keywords: pytorch,autocast"):
        assert f"\n{field}" in fields


def environment(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment without ampcheck. What it depends on is linked from this one; nothing is downloaded."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place / "venv", symlinks=True)
    inside = {"base": str(place / "venv"), "platbase": str(place / "venv")}
    links = place / "links"
    links.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "ampcheck" not in entry.name and entry.suffix != ".pth":
            (links / entry.name).symlink_to(entry)
    (Path(sysconfig.get_path("purelib", vars=inside)) / "links.pth").write_text(f"{links}\n")
    programs = Path(sysconfig.get_path("scripts", vars=inside))
    for name, module in (("pip", "pip"), ("pytest", "pytest")):  # `python -P`: the current folder is not on its path
        (programs / name).write_text(f'#!/bin/sh\nexec "{programs}/python" -P -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    folder = tmp_path_factory.mktemp("empty")
    return Installed(programs, wheels, folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The environment after the first command of the page for backends."""
    empty = environment(build(tmp_path_factory), tmp_path_factory)
    (first, *_) = commands()
    assert first == "pip install ampcheck"
    assert empty.run("ampcheck --help").returncode != 0
    done = empty.run(first)
    assert done.returncode == 0, done.stdout + done.stderr
    where = empty.run("python -P -c 'import ampcheck; print(ampcheck.__file__)'").stdout
    assert where.startswith(str(empty.programs.parent))
    return empty


OPERATORS = 'python -P -W error -c "import ampcheck.torchscript as t; print(t.OPERATORS)"'
EMULATED = "ampcheck run --device emulated:cuda --op mm --suite eager --smoke --run-file emulated.jsonl"


@pytest.mark.nightly
def test_a_wheel_built_with_a_compiler_has_its_libraries(installed: Installed) -> None:
    assert installed.run(OPERATORS).stdout.startswith("the library of operators built for torch ")
    done = installed.run(EMULATED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_without_a_compiler_the_operators_are_in_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    nowhere = str(tmp_path_factory.mktemp("nowhere"))
    absent = {"PATH": nowhere, "CC": f"{nowhere}/gcc", "CXX": f"{nowhere}/g++"}
    installed = environment(build(tmp_path_factory, **absent), tmp_path_factory)
    done = installed.run("pip install ampcheck")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed.run(OPERATORS).stdout.startswith("operators written in Python: no library was built")
    refused = installed.run(EMULATED)
    assert refused.returncode == 2
    assert "install a C++ compiler and torch, then ampcheck again with pip's --no-cache-dir" in refused.stderr
    variables = " ".join(f"{name}={value}" for name, value in absent.items() if name != "PATH")
    programs = f"{installed.programs}:{nowhere}"
    done = installed.run(f"env PATH={programs} {variables} ampcheck run --device cpu --smoke --run-file smoke.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    results = read(installed.folder / "smoke.jsonl").results.values()
    assert any(result.suite == "jit" and result.status == "pass" for result in results)


PAGE = (ROOT / "docs" / "your_backend.md").read_text(encoding="utf-8").partition("\n## register_autocast\n")[0]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page, of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[str]:
    """Every command of the page, in its order."""
    return [line for block in blocks("sh") for line in block.splitlines()]


def modules() -> dict[str, str]:
    """The files of the page, by the names in their first lines."""
    found = (re.match(r"# (\w+\.py)\n", block) for block in blocks("python"))
    return {match[1]: match.string for match in found if match}


RED = ("--op linear", "--last-failed")
"""What the page's backend fails. A choice among all rules may be red as well: the backend is a small one."""


@pytest.mark.nightly
def test_every_command_of_the_page_works(installed: Installed) -> None:
    assert set(modules()) == {"mydevice_ampcheck.py", "torch_mydevice.py"}
    (installed.folder / "torch_mydevice.py").write_text(modules()["torch_mydevice.py"])
    for command in commands()[1:]:
        done = installed.run(command)
        if "--package" in command:  # which writes the module that the page shows, but for what it promises
            (installed.folder / "mydevice_ampcheck.py").write_text(modules()["mydevice_ampcheck.py"])
        if "--smoke" in command or "--shard" in command:
            assert done.returncode in (0, 1), command + done.stdout + done.stderr
        else:
            red = any(part in command for part in RED) and "--baseline" not in command
            assert done.returncode == int(red), command + done.stdout + done.stderr
    counts = {path.stem: read(path).counts() for path in (installed.folder / "reports" / "runs").glob("*.jsonl")}
    assert counts["linear"]["fail"] > 20
    assert sum(count["pass"] for count in counts.values()) > 200
    shown = "argument 0 of aten::linear was given as fp32 and reached the kernel as fp32; expected fp16"
    assert shown in " ".join(next(block for block in blocks("text")).split())
    linear = read(installed.folder / "reports/runs/linear.jsonl").results["eager/downcast/linear-fp32-fp16-mydevice"]
    assert linear.message.startswith(shown)
    assert (installed.folder / "reports" / "site" / "index.html").exists()
    keys = (installed.folder / "manifest.txt").read_text().split()
    assert "eager/downcast/mm-fp32-fp16-mydevice" in keys


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["-p no:xdist", "-n1"])
def test_the_suites_run_by_name(workers: str, installed: Installed) -> None:
    names = "ampcheck.suites.eager.test_ops::test_downcast ampcheck.suites.autograd"
    options = f"--device cpu --op mm --run-file by_name{len(workers)}.jsonl"
    done = installed.run(f"pytest --pyargs {names} {options} {workers}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = read(installed.folder / f"by_name{len(workers)}.jsonl")
    assert set(found.counts()) == {"pass"}
    assert {result.suite for result in found.results.values()} == {"eager", "autograd"}
    assert "eager/downcast/mm-fp32-bf16-cpu" in found.results
    assert not list(installed.folder.glob(".pytest_cache"))


@pytest.mark.nightly
def test_a_failure_by_name_is_red_and_its_line_repeats_it(installed: Installed) -> None:
    (installed.folder / "dying_device.py").write_text(MODULE)
    device = "--device swapped --device-module dying_device --op mm -k mm-fp32-fp16-swapped --run-file red.jsonl"
    done = installed.run(f"pytest --pyargs ampcheck.suites.eager {device}")
    assert done.returncode == 1, done.stdout + done.stderr
    (failed,) = (result for result in read(installed.folder / "red.jsonl").results.values() if result.status == "fail")
    assert failed.node == "suites/eager/test_ops.py::test_downcast[mm-fp32-fp16-swapped]"
    done = installed.run(failed.pytest)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "reached the kernel as bf16; expected fp16" in done.stdout


def test_a_name_that_is_no_suite_is_refused(installed: Installed) -> None:
    done = installed.run("pytest --pyargs ampcheck.suites.nope")
    assert done.returncode == 4
    assert "ampcheck.suites.nope" in done.stderr


def test_other_runs_of_pytest_are_left_alone(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--device')\n")
    (tmp_path / "test_own.py").write_text("def test_own(request):\n    assert request.config.option.device == 'x'\n")
    done = installed.run(f"pytest {tmp_path} --device x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
