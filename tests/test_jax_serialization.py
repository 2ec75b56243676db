"""Copies, pickles and checkpoints of tensors and modules of the jax device."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("serialization"))
def test_jax_serialization(name: str) -> None:
    verify("serialization", name)
