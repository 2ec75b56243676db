"""Virtual devices ask no driver, on a build of torch that has CUDA on a machine that has none."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.devices import virtual
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import graphs
from ampcheck.observe.torch_private import DeviceType, get_cudnn_enabled

CPU, CUDA, META = (DeviceType.__members__[name].value for name in ("CPU", "CUDA", "Meta"))


@pytest.fixture
def guards() -> Iterator[Any]:
    """The guards of this process by device type, put back behind the test."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    found = (ctypes.c_void_p * len(DeviceType.__members__)).in_dll(library, graphs._REGISTRY)
    before = found[CUDA]
    yield found
    found[CUDA] = before


def test_nothing_is_fused_for_a_gpu_and_the_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []  # a build without CUDA never fuses for a GPU, whatever it is told
    monkeypatch.setattr(virtual, "can_fuse_on_gpu", lambda: True)
    monkeypatch.setattr(virtual, "set_fuse_on_gpu", asked.append)
    before = get_cudnn_enabled()
    with known()["virtual:cuda"].activate():
        assert asked == [False]
        assert not get_cudnn_enabled()
    assert asked == [False, True]
    assert get_cudnn_enabled() == before


@pytest.mark.parametrize("usable", [False, True])
def test_a_guard_without_a_driver_is_replaced(usable: bool, guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's guard takes the place of the one that a build with CUDA has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    guards[CUDA] = guards[CPU]
    graphs.allow.__wrapped__("cuda")
    assert guards[CUDA] == guards[CPU if usable else META]
