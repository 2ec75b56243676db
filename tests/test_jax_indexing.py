"""Indexing on the jax device: the checks of jax_checks/indexing.py."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("indexing"))
def test_indexing(name: str) -> None:
    jax_process.verify("indexing", name)
