"""Every way to a storage without a tensor: it works or is an error, and the process lives."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("roads"))
def test_jax_roads(name: str) -> None:
    verify("roads", name)
