"""The checks of jax_checks/policy_ops.py, each a test."""

from __future__ import annotations

import pytest

from tests import jax_process


@pytest.mark.parametrize("name", jax_process.names("policy_ops"))
def test_policy_ops(name: str) -> None:
    jax_process.verify("policy_ops", name)
