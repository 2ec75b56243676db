"""Views, writes through them and copies, compared with the CPU."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("views"))
def test_jax_views(name: str) -> None:
    verify("views", name)
