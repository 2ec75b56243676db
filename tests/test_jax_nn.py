"""The checks of jax_checks/nn.py, each a test."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("nn"))
def test_nn(name: str) -> None:
    jax_process.verify("nn", name)
