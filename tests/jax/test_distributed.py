"""`torch.distributed` on the jax device: two processes over gloo give what one process gives.

The file is also the program of each process: `python -m tests.jax.test_distributed RANK STORE RESULTS`.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ampcheck.jax_device import jit
from tests.cli_support import python
from tests.jax.agreement import stepping

WORLD = 2
OVERFLOWS = 1  # the step in which the last rank's gradients are infinite
STEPS = 3


def _mine(rank: int, size: int = 2) -> torch.Tensor:
    return torch.arange(float(size), device="jax") + 10 * rank


def _all_reduce(rank: int) -> Any:
    given = _mine(rank)
    work = dist.all_reduce(given, async_op=True)
    work.wait()
    return [given, *work.get_future().value()]


def _into(collective: Callable[[Any, Any], Any], made: Callable[[], Any], given: Callable[[int], Any]) -> Any:
    """Return a call of a collective, and what it wrote and read."""

    def call(rank: int) -> Any:
        out, mine = made(), given(rank)
        collective(out, mine)
        return [*out, *mine] if isinstance(mine, list) else out

    return call


def _zeros() -> torch.Tensor:
    return torch.zeros(2, device="jax")


COLLECTIVES: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "all_reduce": (_all_reduce, lambda rank: [torch.tensor([10.0, 12.0])] * 2),
    "broadcast": (
        lambda rank: (given := _mine(rank).bfloat16(), dist.broadcast(given, 1))[0],
        lambda rank: torch.tensor([10.0, 11.0]).bfloat16(),
    ),
    "all_gather": (
        _into(dist.all_gather, lambda: [_zeros() for _ in range(WORLD)], _mine),
        lambda rank: [torch.tensor([0.0, 1.0]), torch.tensor([10.0, 11.0])],
    ),
    "reduce_scatter": (
        _into(
            lambda out, given: dist.reduce_scatter(out[0], given),
            lambda: [_zeros()],
            lambda r: [_mine(r), _mine(r) + 1],
        ),
        lambda rank: [torch.tensor([10.0, 12.0]) + 2 * rank, _mine(rank).cpu(), _mine(rank).cpu() + 1],
    ),
    "send": (
        lambda rank: (given := _mine(rank), dist.recv(given, 0) if rank else dist.send(given, 1))[0],
        lambda rank: torch.tensor([0.0, 1.0]),
    ),
    "objects": (_into(dist.all_gather_object, lambda: [None] * WORLD, int), lambda rank: [0, 1]),
}


def _sharded(layers: Any) -> torch.nn.Module:
    """FSDP of each linear layer and of the whole, with parameters gathered in bfloat16."""
    mesh = dist.init_device_mesh("jax", (WORLD,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (layers[0], layers[2], layers):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return layers  # type: ignore[no-any-return]


def _train(ranks: range, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> list[Any]:
    """Train on the batches of some ranks; returns scale and parameters after each step."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to("jax")
    model = wrap(layers)
    optimizer, scaler = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("jax")
    data = torch.randn(STEPS, WORLD, 4, 8, generator=torch.Generator().manual_seed(1))
    data[OVERFLOWS, WORLD - 1] = torch.inf
    seen = []
    for batches in data:
        optimizer.zero_grad()
        for rank in ranks:
            with torch.autocast("jax", dtype=torch.bfloat16):
                loss = model(batches[rank].to("jax")).float().square().mean() / len(ranks)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        whole = [getattr(p, "full_tensor", p.detach)() for p in layers.parameters()]  # gathered where it is sharded
        seen.append([scaler.get_scale(), *(p.detach().cpu() for p in whole)])
    return seen


PARALLEL: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "ddp": torch.nn.parallel.DistributedDataParallel,
    "fsdp": _sharded,
}
"""How models are made parallel."""


def _main(rank: int, store: str, results: str) -> None:
    dist.init_process_group("cpu:gloo,jax:gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    seen = {name: collective(rank) for name, (collective, _) in COLLECTIVES.items()}
    dist.barrier()
    seen |= {name: _train(range(rank, rank + 1), wrap) for name, wrap in PARALLEL.items()}
    torch.save(seen, results)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the processes saw."""
    folder = tmp_path_factory.mktemp("distributed")
    results = [folder / f"{rank}.pt" for rank in range(WORLD)]
    command = ("-W", "error::UserWarning:torch.library", "-m", "tests.jax.test_distributed")
    with ThreadPoolExecutor(WORLD) as pool:
        list(pool.map(lambda rank: python(*command, rank, folder / "store", results[rank]), range(WORLD)))
    return [torch.load(path) for path in results]


@pytest.mark.nightly
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_give_each_rank_its_result_on_the_device(name: str, processes: list[dict[str, Any]]) -> None:
    for rank, seen in enumerate(processes):
        torch.testing.assert_close(seen[name], COLLECTIVES[name][1](rank), rtol=0, atol=0, check_device=False)
        found = seen[name] if isinstance(seen[name], list) else [seen[name]]
        assert all(value.device.type == "jax" for value in found if isinstance(value, torch.Tensor))


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_models_train_as_one_and_all_skip_an_overflow(name: str, processes: list[dict[str, Any]]) -> None:
    alone = _train(range(WORLD), lambda model: model)
    for seen in processes:
        torch.testing.assert_close(seen[name], alone, rtol=0, atol=0)
    scales, weights = [step[0] for step in alone], [step[1] for step in alone]
    assert scales[OVERFLOWS] == scales[0] / 2
    assert torch.equal(weights[OVERFLOWS], weights[0])
    assert not torch.equal(weights[-1], weights[0])


def _hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future(devices=[torch.device("jax", 0)])
    future.set_result(bucket.buffer())
    return future


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_jitted_step_of_a_parallel_model_runs_eagerly_and_says_so(name: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 2).to("jax")
        if name == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
            model.register_comm_hook(None, _hook)  # without one, that of one process is its module
        else:
            fully_shard(model, mesh=dist.device_mesh.init_device_mesh("jax", (1,)))
        step = jit(stepping(torch.optim.SGD(model.parameters(), lr=0.1), lambda x: model(x).square().mean()))
        x = torch.ones(3, 4, device="jax")
        with pytest.warns(UserWarning, match="jit runs .* eagerly, as .*(DistributedDataParallel averages|DTensor of)"):
            losses = [step(x).item()]
        losses += [step(x).item() for _ in range(3)]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < 0.5 * losses[0]
    finally:
        dist.destroy_process_group()


def test_gloo_is_the_backend_of_the_device_by_default() -> None:
    assert dist.Backend.default_device_backend_map["jax"] == "gloo"
    assert "jax" in dist.Backend.backend_capability["gloo"]


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
