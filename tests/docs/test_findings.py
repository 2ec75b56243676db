"""docs/findings.md: each finding still happens, and its entry is whole.

A block of the page ends without an error where the behaviour is present. One that does not says that torch was mended,
or that the page is wrong: either way the entry must change.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.cli_support import LIMIT, ROOT

PAGE = ROOT / "docs" / "findings.md"
_SECTION = re.compile(r"^## (?P<id>\S+)\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```python(?P<how> subprocess)?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = {match["id"]: match["body"] for match in _SECTION.finditer(PAGE.read_text(encoding="utf-8"))}

only_on_2_13 = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"the findings are of torch 2.13, this is {torch.__version__}"
)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Autocast as a new process has it, before and after."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_cache_enabled(True)
    torch.clear_autocast_cache()


def check(block: re.Match[str], name: str) -> None:
    """Run a block, in this process or in one of its own. Raises AssertionError where it ends with an error."""
    if block["how"]:
        done = subprocess.run([sys.executable, "-c", block["code"]], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, f"{name} no longer happens:\n{done.stderr}"
        return
    with warnings.catch_warnings():
        # A warning of torch is no part of a finding.
        warnings.simplefilter("ignore")
        try:
            exec(compile(block["code"], f"{PAGE.name}#{name}", "exec"), {"__name__": name})
        except Exception as error:
            raise AssertionError(f"{name} no longer happens: {type(error).__name__}: {error}") from error


@only_on_2_13
@pytest.mark.parametrize("name", SECTIONS)
def test_it_still_happens(name: str) -> None:
    blocks = list(_BLOCK.finditer(SECTIONS[name]))
    assert blocks, f"{name} has no block to run"
    for block in blocks:
        check(block, name)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_entry_is_whole(name: str) -> None:
    body = SECTIONS[name]
    for part in ("**Promise.**", "**What happens.**", "**Consequence.**", "**Sure:**", "**Case:**", "**Upstream:**"):
        assert body.count(part) == 1, f"{name} must have one {part}"
    assert re.search(r"\*\*Sure:\*\* (certain|likely|open)\b", body)
    assert "https://" in body


def test_the_page_has_findings() -> None:
    assert len(SECTIONS) == PAGE.read_text(encoding="utf-8").count("\n## ") >= 10


@pytest.mark.parametrize("how", ["", " subprocess"])
def test_one_that_was_mended_is_reported(how: str) -> None:
    page = f"```python{how}\nimport torch\nassert torch.ones(1).dtype is torch.float16\n```\n"
    block = _BLOCK.search(page)
    assert block is not None
    with pytest.raises(AssertionError, match="mended no longer happens"):
        check(block, "mended")


def test_a_block_that_leaves_autocast_on_does_not_reach_the_next() -> None:
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    _reset()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
