"""`register_autocast`: what it refuses and what it puts back; tests/backends runs the suites on a backend that has it.

What needs a PrivateUse1 device, whose name a process can set once, runs in another process: the checks of
tests/backends/register.
"""

import ast
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.cli_support import PROGRAMS, ROOT, ended, python

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
    report = folder / "checks.xml"
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "register_support", str(CHECKS)]
    options = ["-o", "python_files=checks_*.py", "-o", "python_functions=check_*", f"--junitxml={report}"]
    done = ended([*command, *options], PYTHONPATH=paths)
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


# ---- the door


def test_importing_ampcheck_imports_no_torch() -> None:
    python("-W", "error", "-c", PROGRAMS["register-door"])


def test_a_process_without_a_backend_is_told() -> None:
    code = "from ampcheck.register import register_autocast; register_autocast('npy')"
    done = ended([sys.executable, "-c", code])
    wanted = "UsageError: 'npy' is not the PrivateUse1 backend, whose name in this process is 'privateuseone'"
    assert done.stderr.strip().splitlines()[-1].endswith(wanted)
