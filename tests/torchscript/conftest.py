"""What every test of TorchScript keeps: autocast's state."""

from collections.abc import Iterator

import pytest
import torch


def _state() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]


@pytest.fixture(autouse=True)
def _state_is_kept() -> Iterator[None]:
    before = _state()
    yield
    assert _state() == before
