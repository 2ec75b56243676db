"""The suites catch planted faults on the jax device, too: those in the `JAX` of a module of tests/faults."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests import jax_planted

MODULES = (
    "autodiff",
    "checkpoint",
    "customfn",
    "functorch",
    "gradients",
    "interop",
    "optimizers",
    "persistence",
    "scaler",
)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, fault.name) for module in MODULES for fault in import_module(f"tests.faults.{module}").JAX],
)
def test_is_caught(module: str, name: str) -> None:
    jax_planted.verify(module, name)
