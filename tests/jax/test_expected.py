"""What users of other devices expect of the jax device, beside its ops."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, 300),
        (torch.int8, 200.5),
        (torch.int32, 2**40),
        (torch.int64, math.inf),
        (torch.float16, 1e6),
        (torch.bfloat16, 1e39),
        (torch.float32, 1 + 2j),
    ],
)
def test_fills_refuse_what_the_dtype_cannot_hold_as_the_cpu_does(dtype: torch.dtype, value: complex) -> None:
    def fills(device: str) -> list[Callable[[], torch.Tensor]]:
        tensor, mask = torch.zeros(2, dtype=dtype, device=device), torch.tensor([True, False], device=device)
        return [
            lambda: torch.full((2,), value, dtype=dtype, device=device),
            lambda: tensor.fill_(value),
            lambda: tensor.masked_fill_(mask, value),
        ]

    for fill, expected in zip(fills("jax"), fills("cpu"), strict=True):
        with pytest.raises(RuntimeError) as error:
            expected()
        with pytest.raises(RuntimeError, match=re.escape(str(error.value))):
            fill()


@pytest.mark.parametrize(("dtype", "value"), [(torch.uint8, -130), (torch.float16, math.inf), (torch.int8, 101.9)])
def test_fills_take_what_the_cpu_takes(dtype: torch.dtype, value: float) -> None:
    found = torch.full((2,), value, dtype=dtype, device="jax")
    expected = torch.full((2,), value, dtype=dtype)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(torch.zeros_like(found).fill_(value).cpu(), expected)


@pytest.mark.parametrize("layer", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_of_embeddings_are_refused(layer: type[torch.nn.Module]) -> None:
    embedding = layer(4, 2, sparse=True, device="jax")
    with pytest.raises(NotImplementedError, match=r"the jax device has no sparse tensors.* sparse=False"):
        embedding(torch.tensor([[1, 2]], device="jax")).sum().backward()


def test_storages_say_whether_they_are_of_the_device() -> None:
    for device in ("jax", "cpu"):
        untyped = torch.ones(2, device=device).untyped_storage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TypedStorage is deprecated
            typed = torch.TypedStorage(wrap_storage=untyped, dtype=torch.float32)
            found = typed.is_jax
        assert untyped.is_jax is found is (device == "jax")
