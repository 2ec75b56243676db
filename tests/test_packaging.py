"""What ships: every folder of code and data, and nothing that pulls in the heavy packages by itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def folders(top: str) -> set[str]:
    """Every folder below a top folder that holds files of its own, as a package name."""
    kept = subprocess.run(["git", "ls-files", top], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return {".".join(Path(name).parent.parts) for name in kept}


def test_every_folder_ships() -> None:
    expected = folders("ampcheck") | {f"ampcheck.{name}" for name in folders("suites")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected


def test_every_kind_of_data_file_ships() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    listed = subprocess.run(["git", "ls-files", "ampcheck"], cwd=ROOT, check=True, capture_output=True, text=True)
    kept = listed.stdout.split()
    data = [Path(name) for name in kept if not name.endswith(".py")]
    assert data
    assert [p for p in data if not any(p.match(pattern) for pattern in patterns)] == []


def test_the_door_imports_nothing_heavy() -> None:
    heavy = {"torch", "jax", "torchax", "numpy"}
    code = f"import sys, ampcheck, ampcheck.cli, ampcheck.plugin; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert out.strip() == "set()"
