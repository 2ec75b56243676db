"""Several JAX devices, eight virtual ones of the CPU: a jitted step over a mesh equals the step on one device."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ampcheck.jax_device import jit
from ampcheck.jax_device.mesh import Axes, Mesh, axes_of, make_mesh, place, shard, shard_batch
from ampcheck.jax_device.storage.arrays import storage_of
from tests.jax.agreement import stepping

pytestmark = pytest.mark.alone(XLA_FLAGS="--xla_force_host_platform_device_count=8")  # read when JAX starts

ROWS = [("^0", ("model",)), (r"^2\.weight", (None, "model"))]


def train(
    mesh: Mesh | None, rules: Sequence[tuple[str, Axes]] = (), parallel: Callable[[Any], Any] = lambda model: model
) -> tuple[list[float], torch.nn.Module, str]:
    """Five steps of AdamW under autocast: the losses, the model, the compiled program."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("jax")
    if mesh:
        shard(model, mesh, rules)
        x, y = shard_batch(x, mesh), shard_batch(y, mesh)
    else:
        x, y = x.to("jax"), y.to("jax")
    optimizer, called = torch.optim.AdamW(model.parameters(), lr=0.01), parallel(model)
    run = jit(stepping(optimizer, lambda x, y: F.mse_loss(called(x), y), torch.bfloat16))
    losses = [run(x, y).item() for _ in range(5)]
    assert (run.compiles, x.device) == (1, torch.device("jax:0"))
    for p in model.parameters():
        assert p.grad.device == optimizer.state[p]["exp_avg"].device == torch.device("jax:0")
        assert axes_of(optimizer.state[p]["exp_avg"]) == axes_of(p)
    return losses, model, run.lower(x, y).compile().as_text()


def test_data_parallel() -> None:
    assert (jax.device_count(), torch.jax.device_count()) == (8, 1)
    expected, alone, text = train(None)
    losses, model, spread = train(make_mesh({"data": 8}))
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=0)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        array = storage_of(p).array
        assert len(array.sharding.device_set) == 8
        assert array.sharding.is_fully_replicated
        torch.testing.assert_close(p.detach().cpu(), q.detach().cpu(), rtol=1e-2, atol=1e-3)
    assert "all-reduce" in spread
    assert "all-reduce" not in text


def test_tensor_parallel() -> None:
    expected, _, _ = train(None)
    losses, model, spread = train(make_mesh({"data": 2, "model": 4}), ROWS)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=0)
    assert [axes_of(p) for p in model.parameters()] == [("model",), ("model",), (None, "model"), ()]
    assert storage_of(model[0].weight).array.addressable_shards[0].data.shape == (4, 8)
    assert "all-reduce" in spread


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adamax, torch.optim.RMSprop, torch.optim.NAdam])
def test_state_of_optimizers_follows_its_parameter(kind: type[torch.optim.Optimizer]) -> None:
    """One weight of two is split, and a tensor on one device is written beside them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.GELU(), torch.nn.Linear(32, 6)).to("jax")
    mesh = make_mesh({"data": 2})
    shard(model, mesh, [(r"0\.weight", ("data",))])
    x, optimizer, total = shard_batch(torch.ones(8, 4), mesh), kind(model.parameters()), torch.zeros(4, device="jax")

    def step(x: torch.Tensor, ones: torch.Tensor) -> None:
        optimizer.zero_grad()
        (model(x).square().mean() + total.sum() + ones.add_(x[0]).sum()).backward()
        optimizer.step()
        total.add_(1)

    run = jit(step)
    for _ in range(3):
        run(x, ones := torch.ones(4, device="jax"))
    assert (run.compiles, total.tolist(), ones.tolist()) == (1, [3.0] * 4, [2.0] * 4)
    for p in model.parameters():
        state = [v for v in optimizer.state[p].values() if v.shape == p.shape]
        assert state
        assert {axes_of(p), *map(axes_of, state)} == {("data",) if p is model[0].weight else ()}


def test_another_placement_is_another_program() -> None:
    linear = torch.nn.Linear(8, 8).to("jax")
    run = jit(lambda a: linear(a).detach())
    x = torch.ones(8, 8, device="jax")
    expected = run(x).cpu()
    for axes in (("data",), (None, "data")):
        shard(linear, make_mesh({"data": 8}), [("weight", axes)])
        torch.testing.assert_close(run(x).cpu(), expected)
        torch.testing.assert_close(linear(x).detach().cpu(), expected)  # eagerly too
        assert axes_of(linear.weight) == axes
    assert run.compiles == 3


@pytest.mark.parametrize("write", ["load", "copy_", "ones_", "normal_", "zero_", "mul_", "row", "fill_"])
def test_a_write_in_place_keeps_the_placement(write: str) -> None:
    model, data = torch.nn.Linear(4, 32).to("jax"), torch.ones(32, 4)
    shard(model, make_mesh({"data": 2}), [("weight", ("data",))])
    weight = model.weight.data
    {
        "load": lambda: model.load_state_dict({"weight": data, "bias": data[:, 0]}),
        "copy_": lambda: weight.copy_(data),
        "ones_": lambda: torch.nn.init.ones_(model.weight),
        "normal_": lambda: torch.nn.init.normal_(model.weight),
        "zero_": weight.zero_,
        "mul_": lambda: weight.mul_(2),
        "row": lambda: weight[3].fill_(1),
        "fill_": lambda: weight.fill_(2),
    }[write]()
    assert axes_of(model.weight) == ("data",)


def test_what_cannot_be_placed() -> None:
    mesh, linear = make_mesh({"data": 8}), torch.nn.Linear(8, 8).to("jax")
    with pytest.raises(ValueError, match="needs 16 devices; there are 8"):
        make_mesh({"data": 16})
    with pytest.raises(ValueError, match=r"dimension 0 of a tensor of shape \[9, 2\] cannot be split over 8 devices"):
        shard_batch(torch.zeros(9, 2), mesh)
    with pytest.raises(ValueError, match="has no axis 'model'"):
        shard(linear, mesh, [("weight", ("model",))])
    with pytest.raises(ValueError, match="the rule 'head' decides for none"):
        shard(linear, mesh, [("head", ("data",))])
    with pytest.raises(ValueError, match=r"2 axes .* for a tensor of shape \[8\]"):
        place(torch.zeros(8), mesh, ("data", None))
    assert axes_of(linear.weight) is None  # a refused rule leaves the module as it was


def test_a_step_leaves_what_shared_memory_with_a_parameter() -> None:
    """A clone shares its array until one is written; a step writes its weight where the weight lies."""
    weight = torch.ones(16, 8).to("jax")
    before, after = weight.clone(), torch.full((16, 8), 2.0).to("jax")
    layer = torch.nn.Linear(8, 16, bias=False).to("jax")
    layer.weight = torch.nn.Parameter(weight)
    shard(layer, make_mesh({"data": 8}))
    run = jit(lambda: layer.weight.detach().add_(1) * 0)
    run()
    layer.weight.data.copy_(after)
    run()
    assert [t.cpu().unique().tolist() for t in (before, after, layer.weight.detach())] == [[1.0], [2.0], [3.0]]


def test_a_parallel_model_of_one_process_has_the_mean_over_the_mesh() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        expected, alone, _ = train(None)
        mesh = make_mesh({"data": 8})
        for ways in ({}, {"device_mesh": dist.init_device_mesh("jax", (1,))}):
            losses, model, text = train(mesh, parallel=lambda model, ways=ways: DistributedDataParallel(model, **ways))
            torch.testing.assert_close(losses, expected, rtol=1e-3, atol=0)
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(p.cpu(), q.cpu(), rtol=1e-3, atol=1e-4)
            assert text.count(" all-reduce(") == train(mesh)[2].count(" all-reduce(") > 0
    finally:
        dist.destroy_process_group()
