"""Accumulation in float32 on the jax device: the checks of jax_checks/accumulate.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("accumulate"))
def test_accumulate(name: str) -> None:
    jax_process.verify("accumulate", name)
