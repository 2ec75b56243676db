"""Training on the jax device in four ways: the checks of jax_checks/training.py."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("training"))
def test_training(name: str) -> None:
    verify("training", name)
