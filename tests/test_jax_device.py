"""What PyTorch asks of a device besides computation: its module, memory, DLPack, errors."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("device"))
def test_jax_device(name: str) -> None:
    verify("device", name)
