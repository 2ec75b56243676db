"""`register_autocast`: what it refuses, what it puts back, and a backend that has its autocast from it.

What needs a PrivateUse1 device, whose name a process can set once, runs in other processes: the checks of
tests/backends/register, and `ampcheck run` on tests/backends/numpy_backend.py.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ampcheck.runner.record import RED, Result, read
from tests.cli_support import ROOT

BACKENDS = ROOT / "tests" / "backends"
CHECKS = BACKENDS / "register"


def functions(path: Path, prefix: str) -> list[str]:
    """The names of a file's functions, without running it."""
    found = ast.parse(path.read_text(encoding="utf-8")).body
    return [node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith(prefix)]


NAMES = [f"{path.stem}::{name}" for path in sorted(CHECKS.glob("checks_*.py")) for name in functions(path, "check_")]


def run_checks(folder: Path) -> dict[str, str]:
    """Return the checks' failures by `file::function`, "" for one that passed."""
    paths = os.pathsep.join(map(str, (ROOT, BACKENDS, CHECKS)))
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    report = folder / "checks.xml"
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "register_support", str(CHECKS)]
    options = ["-o", "python_files=checks_*.py", "-o", "python_functions=check_*", f"--junitxml={report}"]
    done = subprocess.run([*command, *options], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        check = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
        found[check] = "\n".join(
            child.text or child.attrib.get("message", "") for child in case if child.tag != "system-out"
        )
    return found


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(tmp_path_factory.mktemp("register"))


def test_every_check_ran(checked: dict[str, str]) -> None:
    assert sorted(checked) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_registration(checked: dict[str, str], name: str) -> None:
    assert not checked[name], checked[name]


# ---- a backend of NumPy arrays


def run_suite(folder: Path, fault: str, *selection: str, base: str = "cuda") -> dict[str, Result]:
    """The results of the eager suite on the NumPy backend, with a mistake planted in its registration."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{BACKENDS}", "OMP_NUM_THREADS": "1"}
    env |= {"NPY_FAULT": fault, "NPY_BASE": base}
    command = [
        sys.executable,
        "-m",
        "ampcheck",
        "run",
        "--device=npy",
        "--device-module=numpy_backend",
        "--suite=eager",
    ]
    done = subprocess.run(
        [*command, *selection, f"--reports={folder}"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    files = list((folder / "runs").glob("*.jsonl"))
    assert len(files) == 1, done.stdout + done.stderr
    return read(files[0]).results


def red(results: dict[str, Result]) -> list[Result]:
    return [result for result in results.values() if result.status in RED]


POLICIES = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "fallthrough")
STATES = (
    "nesting",
    "cache",
    "context",
    "state",
    "defaults",
    "errors",
    "decorator",
    "threads",
    "eligibility",
    "exceptions",
)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Every op case, and the scenarios of regions, on a backend that has the lists of CUDA."""
    return run_suite(tmp_path_factory.mktemp("cuda"), "", *(f"--rule={rule}" for rule in (*POLICIES, *STATES)))


@pytest.mark.nightly
@pytest.mark.parametrize(("rules", "least"), [(POLICIES, 4700), (STATES, 480)], ids=["policies", "states"])
def test_one_call_gives_a_backend_its_autocast(
    registered: dict[str, Result], rules: tuple[str, ...], least: int
) -> None:
    results = {key: result for key, result in registered.items() if result.rule in rules}
    assert red(results) == []
    assert {result.rule for result in results.values() if result.status == "pass"} == set(rules)
    assert sum(result.status == "pass" for result in results.values()) > least


@pytest.mark.nightly
def test_the_lists_of_another_key(tmp_path: Path) -> None:
    """One dtype has a case of every overload; the lists alone differ from those above."""
    rules = ("downcast", "upcast", "promote")
    results = run_suite(tmp_path, "", *(f"--rule={rule}" for rule in rules), "--amp-dtype=bf16", base="cpu")
    assert red(results) == []
    assert {result.rule for result in results.values() if result.status == "pass"} == set(rules)
    assert sum(result.status == "pass" for result in results.values()) > 850


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "selection", "rule", "words"),
    [
        (
            "drop",
            "--op=linear",
            "downcast",
            "argument 0 of aten::linear was given as fp32 and reached the kernel as fp32",
        ),
        ("policy", "--op=exp", "upcast", "argument 0 of aten::exp was given as fp16 and reached the kernel as fp16"),
        ("uncached", "--rule=cache", "cache", "casts of a leaf used by three products: got 3; expected 1"),
        ("stale", "--rule=cache", "cache", "product after the change: got [[2.0, 2.0]]; expected [[18.0, 18.0]]"),
    ],
)
def test_a_planted_mistake_in_a_registration_is_named(
    tmp_path: Path, fault: str, selection: str, rule: str, words: str
) -> None:
    found = red(run_suite(tmp_path, fault, selection))
    assert {result.rule for result in found} == {rule}
    assert any(words in result.message for result in found), [result.message for result in found]


# ---- the door


def test_importing_ampcheck_imports_no_torch() -> None:
    code = (
        "import sys, ampcheck; assert 'torch' not in sys.modules\n"
        "from ampcheck.register import register_autocast; assert 'torch' in sys.modules\n"
        "heavy = [name for name in sys.modules if name.startswith(('ampcheck.devices', 'pytest', 'jax'))]\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)


def test_a_process_without_a_backend_is_told() -> None:
    code = "from ampcheck.register import register_autocast; register_autocast('npy')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    wanted = "UsageError: 'npy' is not the PrivateUse1 backend, whose name in this process is 'privateuseone'"
    assert done.stderr.strip().splitlines()[-1].endswith(wanted)
