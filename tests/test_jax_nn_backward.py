"""The checks of jax_checks/nn_backward.py, each a test."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("nn_backward"))
def test_nn_backward(name: str) -> None:
    jax_process.verify("nn_backward", name)
