"""The program that comes out of a jitted autocast step: the products and casts of the step written by hand in JAX."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from ampcheck.jax_device import jit
from bench.jax_steps import STEPS, layers

RATE = "convert f64 -> f32"  # of the learning rate, which the hand-written step has as a constant


def counted(text: str) -> Counter[str]:
    """How often a StableHLO program has each dot_general and convert, by types."""
    found = re.findall(r"stablehlo\.(dot_general|convert) .*: \(?([^)]*)\)? -> (\S+)", text)
    return Counter(f"{name} {_types(given)} -> {_types(result)}" for name, given, result in found)


def _types(text: str) -> str:
    return ", ".join(re.findall(r"x?([a-z]+\d+)>", text))


@pytest.mark.parametrize("name", ["mlp", "block", "lstm"])
def test_an_autocast_step_has_the_products_of_the_step_written_by_hand(name: str) -> None:
    ours, hand = (counted(lowered.as_text()) for lowered in STEPS[name]()[2])
    dots = {kind: n for kind, n in ours.items() if kind.startswith("dot_general")}
    assert dots == {kind: n for kind, n in hand.items() if kind.startswith("dot_general")}
    assert all(kind.startswith("dot_general bf16, bf16 -> f32") for kind in dots)
    if name == "mlp":  # the others have casts of their own between kernels that PyTorch calls one by one
        assert set(ours - hand) == {RATE}


def test_a_needless_cast_and_a_product_in_float32_are_seen() -> None:
    net, x = layers(8, 2), torch.ones(4, 8, device="jax")

    def step(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16):
            return net(a).detach()

    plain, cast = (counted(jit(fn).lower(x).as_text()) for fn in (step, lambda a: step(a.double().float())))
    assert cast - plain == {"convert f32 -> f64": 1, "convert f64 -> f32": 1}
    assert "dot_general f32, f32 -> f32" in counted(jit(lambda a: net(a).detach()).lower(x).as_text())
