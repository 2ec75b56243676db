"""What users of other devices expect of the jax device, beside its ops."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's imports


def test_torch_compile_without_a_backend_compiles_with_jax() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to("jax")
    x = torch.randn(2, 4, device="jax")
    with torch.autocast("jax", dtype=torch.bfloat16):
        out = torch.compile(model)(x)
        expected = model(x)
    assert out.device.type == "jax"
    torch.testing.assert_close(out, expected)
    out.float().sum().backward()
    assert model.weight.grad is not None
    assert torch.equal(torch.compile(lambda: torch.ones(3, device="jax") + 1)().cpu(), torch.full((3,), 2.0))


def test_torch_compile_without_a_backend_leaves_cpu_tensors_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    graphs = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, *_, **__: graphs.append(graph) or graph.forward)
    torch.compile(lambda x: x * 3)(torch.ones(2))
    assert len(graphs) == 1
