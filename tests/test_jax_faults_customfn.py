"""The rule customfn catches its planted faults on the jax device, too."""

from __future__ import annotations

import pytest

from tests import jax_planted
from tests.faults.customfn import JAX


@pytest.mark.parametrize("name", [fault.name for fault in JAX])
def test_is_caught(name: str) -> None:
    jax_planted.verify("customfn", name)
