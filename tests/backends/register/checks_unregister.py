"""Unregistering puts everything back."""

import contextlib
import copy
import pickle
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, NAME, rand, snapshot
from torch.library import Library

from ampcheck.register import register_autocast


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
