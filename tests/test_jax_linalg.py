"""Linalg on the jax device: the checks of jax_checks/linalg.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("linalg"))
def test_linalg(name: str) -> None:
    jax_process.verify("linalg", name)
