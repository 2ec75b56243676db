"""Write the graphs of docs/torchscript.md: a program as scripted, after PyTorch's autocast pass and after ours.

`python -m scripts.torchscript_graphs` writes them as the installed torch has them.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from ampcheck import torchscript
from ampcheck.torchscript.regions import scripted

PAGE = Path(__file__).parents[1] / "docs" / "torchscript.md"
_BLOCK = re.compile(r"(<!-- graph: (\w+) -->\n```text\n)(.*?)(```\n)", re.S)


def example(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Multiply in a region; TorchScript reads this source."""
    with torch.autocast("cuda"):
        e = torch.mm(a, b)
        return torch.addcmul(e, c, d)


def graphs() -> dict[str, str]:
    """Return the text of each graph by the name that the page has for it."""
    program = scripted(example)
    before, theirs = program.graph.copy(), program.graph.copy()
    torch._C._jit_pass_inline(theirs)
    torch._C._jit_pass_autocast(theirs)  # type: ignore[attr-defined]  # torch's annotations lack it
    torch._C._jit_pass_constant_propagation(theirs)
    ours = torchscript.autocast(program, device_type="cuda").graph
    made = {"scripted": before, "pytorch": theirs, "ours": ours}
    return {name: str(torch._C._jit_pass_canonicalize(graph).str(False)) for name, graph in made.items()}


if __name__ == "__main__":
    shown = graphs()
    text = _BLOCK.sub(lambda match: f"{match[1]}{shown[match[2]]}{match[4]}", PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
