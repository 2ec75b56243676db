"""The jax device over several JAX devices: the checks of jax_checks/mesh.py."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("mesh"))
def test_mesh(name: str) -> None:
    verify("mesh", name)
