"""Matmul on the jax device: the checks of jax_checks/matmul.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("matmul"))
def test_matmul(name: str) -> None:
    jax_process.verify("matmul", name)
