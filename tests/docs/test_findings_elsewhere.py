"""docs/findings_elsewhere.md: what it says of torch still happens."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli_support import ROOT
from tests.docs.test_findings import only_on_2_13

PAGE = (ROOT / "docs" / "findings_elsewhere.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^## (\S+)\n.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_every_section_has_a_block() -> None:
    assert list(BLOCKS) == re.findall(r"^## (\S+)", PAGE, re.MULTILINE)


@only_on_2_13
@pytest.mark.parametrize("name", BLOCKS)
def test_it_still_happens(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKS[name]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
