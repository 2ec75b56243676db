"""docs/torchscript.md shows graphs as this torch and our pass make them; run as a module, this writes them there."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from ampcheck import torchscript
from ampcheck.spec.policies import minor
from ampcheck.torchscript.library import variadic
from ampcheck.torchscript.regions import scripted
from tests.cli_support import ROOT

DOC = ROOT / "docs" / "torchscript.md"
_BLOCK = re.compile(r"(<!-- graph: (\w+) -->\n```text\n)(.*?)(```\n)", re.S)


def example(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    with torch.autocast("cuda"):
        e = torch.mm(a, b)
        return torch.addcmul(e, c, d)


def graphs() -> dict[str, str]:
    """The example as scripted, after PyTorch's pass and after ours."""
    program = scripted(example)
    before = program.graph.copy()
    theirs = program.inlined_graph.copy()
    torch._C._jit_pass_autocast(theirs)
    torch._C._jit_pass_constant_propagation(theirs)
    ours = torchscript.autocast(program, device_type="cuda").graph
    return {"scripted": _text(before), "pytorch": _text(theirs), "ours": _text(ours)}


def _text(graph: torch._C.Graph) -> str:
    return str(torch._C._jit_pass_canonicalize(graph).str(False))


def written() -> dict[str, str]:
    """The graphs that the page shows."""
    return {name: text for _, name, text, _ in _BLOCK.findall(DOC.read_text(encoding="utf-8"))}


@pytest.mark.skipif(minor(torch.__version__) != "2.13", reason="the page shows the graphs of torch 2.13")
@pytest.mark.parametrize("name", ["scripted", "pytorch", "ours"])
def test_the_page_shows_the_graph(name: str) -> None:
    assert written()[name] == graphs()[name]


def test_promotion_is_decided_at_run_time() -> None:
    assert "amp::autocast_promote(" in written()["ours"]
    assert "amp::autocast" not in written()["scripted"]
    assert variadic() or "operators written in Python" in torchscript.OPERATORS


if __name__ == "__main__":
    shown = graphs()
    page = _BLOCK.sub(lambda match: f"{match[1]}{shown[match[2]]}{match[4]}", DOC.read_text(encoding="utf-8"))
    DOC.write_text(page, encoding="utf-8")
