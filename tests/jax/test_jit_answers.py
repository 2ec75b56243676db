"""What libraries ask while `jit` traces; test_models.py trains theirs in it."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
from torch.compiler import is_compiling

from ampcheck.jax_device import jit


def transformers() -> Any:
    """Hugging Face's package. Skips the test where it cannot be imported."""
    why = "transformers cannot be imported; `pip install transformers` runs this test"
    return pytest.importorskip("transformers", reason=why, exc_type=ImportError)


def ones() -> torch.Tensor:
    return torch.ones(2, 3, device="jax")


YES: dict[str, Any] = {
    "torch.compiler.is_compiling": lambda: lambda: torch.compiler.is_compiling(),
    "taken before": lambda: is_compiling,
    "torch._dynamo.external_utils.is_compiling": lambda: torch._dynamo.external_utils.is_compiling,
    "transformers is_torchdynamo_compiling": lambda: transformers().utils.import_utils.is_torchdynamo_compiling,
    "transformers is_tracing": lambda: transformers().utils.import_utils.is_tracing,
}


@pytest.mark.parametrize("way", YES)
def test_what_says_that_it_is_traced(way: str) -> None:
    asked = YES[way]()
    heard: dict[str, bool] = {}

    class Hears(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            heard["backward"] = asked()
            return grad

    weight = ones().requires_grad_()
    optimizer = torch.optim.Adam([weight])
    optimizer.register_step_pre_hook(lambda *_: heard.update(step=asked()))

    def step(a: torch.Tensor, fails: bool = False) -> torch.Tensor:
        heard["forward"] = asked()
        other = threading.Thread(target=lambda: heard.update(other=asked()))
        other.start()
        other.join()
        optimizer.zero_grad()
        loss = Hears.apply(weight * a).sum()
        loss.backward()
        optimizer.step()
        heard["nested"] = jit(lambda: asked())()
        if fails:
            raise ValueError("planted")
        return loss.detach()

    run = jit(step, fullgraph=True)
    assert asked() is False
    run(ones())
    assert asked() is False
    assert heard == {"forward": True, "other": False, "backward": True, "step": True, "nested": True}
    assert all(type(answer) is bool for answer in heard.values())
    heard.clear()
    run(ones())
    assert not heard  # the program runs, and asks nothing
    with pytest.raises(ValueError, match="planted"):
        run(ones(), fails=True)
    assert asked() is False
    with pytest.warns(UserWarning, match="eagerly"):
        assert jit(lambda a: [float(a.sum()), asked()])(ones())[1] is False


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_other_compilers_get_the_answers_that_they_had() -> None:
    """In a trace sizes are Python's numbers, and neither Dynamo nor TorchScript is at work."""

    def answers() -> list[bool]:
        compiler = torch.compiler
        return [
            torch.jit.is_tracing(),
            torch.jit.is_scripting(),
            compiler.is_dynamo_compiling(),
            compiler.is_exporting(),
        ]

    assert jit(lambda a: (a * 2, answers()), fullgraph=True)(ones())[1] == [False] * 4

    def asks(a: torch.Tensor) -> torch.Tensor:
        return a + 1 if torch.compiler.is_compiling() else a

    zero = torch.zeros(1)
    assert asks(zero).item() == 0
    assert torch.compile(asks, backend="eager", fullgraph=True)(zero).item() == 1
    assert torch.jit.script(asks)(zero).item() == 0
    assert "return _is_compiling_flag" in inspect.getsource(torch.compiler.is_compiling)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_gives_its_own_kind_of_output() -> None:
    package = transformers()
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = package.LlamaConfig(**settings, vocab_size=64, max_position_embeddings=8, num_key_value_heads=2)
    model, given = package.LlamaForCausalLM(config).to("jax").eval(), torch.arange(16, device="jax").view(2, 8)
    with torch.no_grad():
        expected, found = (call(input_ids=given, use_cache=False) for call in (model, jit(model, fullgraph=True)))
    assert type(found) is type(expected)
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
