"""Reductions on the jax device: the checks of jax_checks/reductions.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("reductions"))
def test_reductions(name: str) -> None:
    jax_process.verify("reductions", name)
