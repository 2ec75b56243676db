"""The blocks about register_autocast in docs/your_backend.md do what the page says."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from register_support import HALF, NAME, WIDE, rand

PAGE = (Path(__file__).parents[3] / "docs" / "your_backend.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("\n## register_autocast\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(number: int, scope: dict[str, Any]) -> None:
    exec(BLOCKS[number].replace("mydevice", NAME), scope)


def check_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    registering, without_storages, overriding, taking_back = range(len(BLOCKS))
    x, low = rand(2, 2), rand(2, 2, dtype=HALF)
    with torch.library._scoped_library("mylib", "DEF") as library:
        library.define("attention(Tensor x) -> Tensor")
        library.impl("attention", lambda x: x, "PrivateUse1")
        scope: dict[str, Any] = {}
        run(registering, scope)
        with torch.autocast(NAME):
            assert torch.mm(x, x).dtype is HALF
        from ampcheck.register import registration

        assert registration._current is not None
        registration._current.unregister()
        run(without_storages, {**scope, f"torch_{NAME}": SimpleNamespace(handle_of=id)})
        registration._current.unregister()
        run(overriding, scope)
        with torch.autocast(NAME):
            assert torch.softmax(low, 0).dtype is WIDE
            assert torch.ops.mylib.attention(x).dtype is HALF
            assert "aten::linear" not in scope["handle"].policies
        run(taking_back, scope)
        assert not scope["handle"].active
        assert "'aten::mm': 'downcast'" in capsys.readouterr().out


def check_policies_are_listed() -> None:
    from ampcheck.spec.casting import POLICIES

    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [*POLICIES, "fallthrough"]
