"""`torch.compile` on the jax device: the checks of jax_checks/compile.py."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("compile"))
def test_compile(name: str) -> None:
    verify("compile", name)
