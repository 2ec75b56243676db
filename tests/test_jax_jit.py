"""`jit` on the jax device: the checks of jax_checks/jit.py, jit_refusals.py, jit_steps.py and jit_program.py."""

from __future__ import annotations

import pytest

from tests.jax_process import names, verify


@pytest.mark.parametrize("name", names("jit"))
def test_jit(name: str) -> None:
    verify("jit", name)


@pytest.mark.parametrize("name", names("jit_refusals"))
def test_jit_refusals(name: str) -> None:
    verify("jit_refusals", name)


@pytest.mark.parametrize("name", names("jit_steps"))
def test_jit_steps(name: str) -> None:
    verify("jit_steps", name)


@pytest.mark.parametrize("name", names("jit_program"))
def test_jit_program(name: str) -> None:
    verify("jit_program", name)
