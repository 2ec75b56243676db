"""Attention and recurrent layers that run whole on the jax device: the checks of jax_checks/fused.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("fused"))
def test_fused(name: str) -> None:
    jax_process.verify("fused", name)
