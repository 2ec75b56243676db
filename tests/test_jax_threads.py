"""Errors in backward, threads, fork, and buffers that nobody holds."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("threads"))
def test_jax_threads(name: str) -> None:
    verify("threads", name)
