"""Refusals of `register_autocast` in one sentence, what it takes back, and its blocks in docs/your_backend.md."""

import contextlib
import copy
import pickle
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, KEY, NAME, WIDE, rand, refused, snapshot
from torch.library import Library

from ampcheck.errors import UsageError
from ampcheck.register import register_autocast


def check_what_is_not_there_or_not_taken() -> None:
    wrong: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("did you mean aten::softmax.int", NAME, {"overrides": {"aten::softmaks": "upcast"}}),
        ("aten::softmax.int", NAME, {"overrides": {"softmax.nit": "upcast"}}),
        ("no overload nowhere::op", NAME, {"overrides": {"nowhere::op": "upcast"}}),
        ("'lower'; it is one of 'downcast'", NAME, {"overrides": {"mm": "lower"}}),
        ("base is 'xpu'; it is one of 'cuda', 'cpu'", NAME, {"base": "xpu"}),
        ("dtypes has torch.float32", NAME, {"dtypes": (HALF, WIDE)}),
        ("dtypes is empty", NAME, {"dtypes": ()}),
        ("'cuda' is not the PrivateUse1 backend, whose name in this process is 'npy'", "cuda", {}),
    )
    for text, name, options in wrong:
        refused(text, partial(register_autocast, name, **options))
    with register_autocast(NAME):
        refused("registered for 'npy' already", partial(register_autocast, NAME))


def check_dtypes_against_the_module() -> None:
    torch.npy.get_amp_supported_dtype = lambda: [HALF]
    try:
        refused("leave dtypes out", partial(register_autocast, NAME, dtypes=(BRAIN,)))
        with register_autocast(NAME, dtypes=(HALF,)):
            assert torch.npy.get_amp_supported_dtype() == [HALF]
        assert torch.npy.get_amp_supported_dtype() == [HALF]
    finally:
        del torch.npy.get_amp_supported_dtype
    with register_autocast(NAME, dtypes=(BRAIN,)):
        # A device module that is an object can be pickled, and each region refers to it.
        assert pickle.loads(pickle.dumps(torch.npy.get_amp_supported_dtype))() == [BRAIN]


def check_no_device_module() -> None:
    module = torch.npy
    del torch.npy
    try:
        with pytest.raises(UsageError, match=r"call torch\._register_device_module\('npy', module\)"):
            register_autocast(NAME)
    finally:
        torch.npy = module


def check_kernel_that_is_there() -> None:
    own = Library("aten", "IMPL")
    own.impl("mm", lambda a, b: a, KEY)
    try:
        refused("aten::mm has a kernel for AutocastPrivateUse1 already", lambda: register_autocast(NAME))
        x = rand(2, 2)
        with register_autocast(NAME, overrides={"aten::mm": "fallthrough"}), torch.autocast(NAME):
            assert torch.mm(x, x) is x
    finally:
        own._destroy()


def check_policies_that_do_not_suit() -> None:
    for overload, policy, text in (
        ("aten::add_.Tensor", "downcast", "writes to one of its arguments"),
        ("aten::mm.out", "upcast", "writes to one of its arguments"),
        ("aten::arange", "promote", "takes no tensors"),
        ("aten::mm", "optdtype", "no optional dtype"),
        ("aten::mm", "append", "no overload of the same arguments and a dtype"),
        ("aten::cat", "append", "no overload of the same arguments and a dtype"),
    ):
        refused(text, partial(register_autocast, NAME, overrides={overload: policy}))


def check_unregister_restores_everything() -> None:
    before = snapshot()
    handle = register_autocast(NAME)
    during = snapshot()
    same = [part for part in before if before[part] == during[part]]
    assert not same, f"the registration did not change {same}, so that putting them back shows nothing"
    handle.unregister()
    after = snapshot()
    assert [part for part in before if before[part] != after[part]] == []
    assert not handle.active
    handle.unregister()
    assert snapshot() == before


def check_regions_are_pickled_and_copied() -> None:
    with register_autocast(NAME):
        for copied in (copy.deepcopy, lambda region: pickle.loads(pickle.dumps(region))):
            region = copied(torch.autocast(NAME, torch.bfloat16))
            assert region.custom_device_mod is torch.npy
            with region:
                assert torch.mm(rand(2, 2), rand(2, 2)).dtype is BRAIN


def check_context_manager_unregisters_after_an_exception() -> None:
    before = snapshot()
    with contextlib.suppress(KeyError), register_autocast(NAME) as handle:
        assert handle.active
        raise KeyError
    assert not handle.active
    assert snapshot() == before


def check_failure_on_the_way_is_rolled_back() -> None:
    before = snapshot()
    made = 0
    plain = Library.impl

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        if made == 50:
            raise OSError("the 50th")
        return plain(*args, **kwargs)

    Library.impl = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(OSError, match="the 50th"):
            register_autocast(NAME)
    finally:
        Library.impl = plain  # type: ignore[method-assign]
    assert snapshot() == before
    register_autocast(NAME).unregister()


def check_without_a_registration_ops_raise() -> None:
    x = rand(2, 2)
    torch.npy.get_amp_supported_dtype = lambda: [HALF]
    try:
        with torch.autocast(NAME), pytest.raises(NotImplementedError, match="Autocastnpy"):
            torch.mm(x, x)
    finally:
        del torch.npy.get_amp_supported_dtype


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
    from ampcheck.spec.state import POLICIES

    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [*POLICIES, "fallthrough"]
