"""docs/findings/: each finding still happens. `make docs` writes the index.

A block of a finding ends without an error where the behaviour is present. One that does not says that torch was mended,
or that the page is wrong: either way the file must change.
"""

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from ampcheck.observe.isolation import reset
from scripts import findings
from tests.cli_support import LIMIT

_BLOCK = re.compile(r"^```python(?P<how> subprocess)?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FINDINGS = {one.id: one for one in findings.load()}


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Autocast as a new process has it, before and after."""
    reset({})
    yield
    reset({})


def check(block: re.Match[str], name: str) -> None:
    """Run a block, in this process or in one of its own. Raises AssertionError where it ends with an error."""
    if block["how"]:
        done = subprocess.run([sys.executable, "-c", block["code"]], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, f"{name} does not happen:\n{done.stderr}"
        return
    with warnings.catch_warnings():
        # A warning of torch is no part of a finding.
        warnings.simplefilter("ignore")
        try:
            exec(compile(block["code"], f"{name}.md", "exec"), {"__name__": __name__})
        except Exception as error:
            raise AssertionError(f"{name} does not happen: {type(error).__name__}: {error}") from error


def _runs(name: str) -> object:
    """A finding as a parameter; one that needs a process of its own runs each night alone."""
    apart = any(block["how"] for block in _BLOCK.finditer(FINDINGS[name].body))
    return pytest.param(name, marks=[pytest.mark.nightly] * apart)


@pytest.mark.parametrize("name", [_runs(name) for name in FINDINGS])
def test_it_happens_in_the_versions_it_names(name: str) -> None:
    blocks = list(_BLOCK.finditer(FINDINGS[name].body))
    assert blocks, f"{name} has no block to run"
    named = SpecifierSet(FINDINGS[name].torch).contains(torch.__version__, prereleases=True)
    with nullcontext() if named else pytest.raises(AssertionError, match="does not happen"):
        for block in blocks:
            check(block, name)


WHOLE = """---
sure: certain
area: cache
versions: torch >=2.11
severity: high
upstream: https://github.com/pytorch/pytorch/issues/1
---

# A title

Text.
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# A title", "A title", "a line '# title'"),
        ("area: cache\n", "", "has sure, area, versions, severity, upstream, in this order"),
        ("certain", "surely", "sure is 'surely'; it is one of certain, likely, open"),
        (">=2.11", "2.13.0 and later", "versions begins with torch and a range such as >=2.11,<2.14"),
        ("https://github.com/pytorch/pytorch/issues/1", "unreported", "upstream is the link of"),
    ],
)
def test_front_matter_that_is_not_whole_is_refused(old: str, new: str, says: str) -> None:
    assert findings.parse(Path("x.md"), WHOLE).report.endswith("/1")
    with pytest.raises(ValueError, match=re.escape(says)):
        findings.parse(Path("x.md"), WHOLE.replace(old, new))


@pytest.mark.parametrize("how", ["", " subprocess"])
def test_one_that_was_mended_is_reported(how: str) -> None:
    page = f"```python{how}\nimport torch\nassert torch.ones(1).dtype is torch.float16\n```\n"
    block = _BLOCK.search(page)
    assert block is not None
    with pytest.raises(AssertionError, match="mended does not happen"):
        check(block, "mended")
