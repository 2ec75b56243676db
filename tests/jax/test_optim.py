"""Optimizers and `torch._foreach_*` on the jax device: CPU's results, and no new program once training is under way.

The suite of the scaler holds its two ops to the rules; here is what these refuse.
"""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from ampcheck.jax_device import jit
from tests.jax.agreement import compiled, some, train


def test_zeros_are_compiled_for_no_size() -> None:
    weight = torch.ones(91, 67).to("jax")
    with compiled() as count:
        made = [torch.zeros(91, 73, device="jax"), torch.zeros_like(weight), torch.empty_like(weight)]
    assert (count, [t.cpu().any().item() for t in made]) == ([0], [False] * 3)


def _trained(device: str, make: Any, dtype: torch.dtype = torch.float32, steps: int = 8) -> tuple[list[Any], int]:
    """The parameters after some steps with a falling learning rate, and the programs compiled in the last of them."""
    late = [0]

    def counting(step: Any) -> Any:
        taken = iter(range(steps))

        def run(*given: torch.Tensor) -> torch.Tensor:
            with compiled() as count:
                loss = step(*given)
            late[0] += count[0] if next(taken) >= 3 else 0
            return loss

        return run

    done = train(make, counting, device=device, dtype=dtype, steps=steps, decay=0.9)
    return done.parameters, late[0]


def _options() -> dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], str]]:
    """Return each optimizer of PyTorch's database with each of its options, by each implementation."""
    found = {}
    for info in optim_db:
        if info.optim_cls in ELSEWHERE:
            continue
        for given in info.optim_inputs_func("cpu"):
            if isinstance(given.kwargs.get("lr"), torch.Tensor) or "capturable" in given.kwargs:
                continue
            for way in ("loop", *(way for way in info.supported_impls if way != "differentiable")):
                found[f"{info.optim_cls.__name__}-{given.desc}-{way}"] = (info.optim_cls, given.kwargs, way)
    return found


ELSEWHERE = (torch.optim.LBFGS, torch.optim.Muon, torch.optim.SparseAdam)
"""The suite of the scaler has the first two; the device has no sparse gradients."""
_OPTIONS = _options() | {
    f"{cls.__name__}-lr as a tensor-fused": (cls, {"lr": torch.tensor(0.1)}, "fused")
    for cls in (torch.optim.AdamW, torch.optim.SGD)
}


@pytest.mark.parametrize("name", some(_OPTIONS, 10))
def test_optimizer_trains_as_on_the_cpu(name: str) -> None:
    cls, options, way = _OPTIONS[name]
    options = {**options, **({"fused": True} if way == "fused" else {"foreach": way == "foreach"})}
    expected, _ = _trained("cpu", lambda params: cls(params, **deepcopy(options)))
    got, late = _trained("jax", lambda params: cls(params, **deepcopy(options)))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6)
    assert late == 0 or cls is torch.optim.RAdam, f"{late} programs were compiled after the third step"


def test_foreach_is_one_program_and_scalars_are_no_part_of_it() -> None:
    f32, f64 = torch.float32, torch.float64
    kinds = [((1, 2, 3), f32), ((1,), f64), ((1, 0), f32), ((1, 4), f32)]  # sizes that no other test has
    lists = [[torch.ones(size, dtype=dtype).to("jax") for size, dtype in kinds] for _ in range(3)]
    with compiled() as first:
        torch._foreach_addcdiv_(lists[0], lists[1], lists[2], [0.1, 0.2, 0.3, 0.4])
    with compiled() as later:
        for k in range(3):
            torch._foreach_addcdiv_(lists[0], lists[1], lists[2], [0.1 * k, 0.2, k + 0.3, 0.4])
    assert (first[0], later[0]) == (1, 0)


def test_unscale_multiplies_float16_in_float32_and_refuses_what_cuda_refuses() -> None:
    unscale = torch._amp_foreach_non_finite_check_and_unscale_
    found, ones = torch.zeros((), device="jax"), torch.ones(2, device="jax")
    # The scale's inverse is below float16's smallest number; the product is not.
    grad = torch.full((2,), 60000.0, dtype=torch.float16, device="jax")
    unscale([grad], found, torch.tensor(2.0**-26, device="jax"))
    assert grad.tolist() == [torch.tensor(60000.0 * 2.0**-26).half().item()] * 2 != [0.0, 0.0]
    assert found.item() == 0
    for grad, wrong in ((ones, ones), (ones, found.double()), (ones.long(), found)):
        with pytest.raises(RuntimeError, match=r"1-element|float"):
            unscale([grad], wrong, torch.tensor(0.5, device="jax"))


USED = {"all": lambda k, i: True, "one late": lambda k, i: i or k >= 3, "in turns": lambda k, i: i != k % 3}


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.ASGD])
def test_equal_counts_of_steps_are_one_array_and_others_stay_their_own(used: str, make: Any) -> None:
    def trained(jitted: bool, eager: tuple[int, ...]) -> tuple[list[torch.Tensor], Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).to("jax")
        optimizer = make(net.parameters(), lr=0.01)

        def step(x: torch.Tensor, layers: tuple[int, ...]) -> None:
            optimizer.zero_grad()
            for i in layers:
                x = net[i](x).tanh()
            x.square().sum().backward()
            optimizer.step()

        run = jit(step) if jitted else step
        for k in range(6):
            (step if k in eager else run)(
                torch.full((2, 4), 0.1 * k).to("jax"), tuple(filter(partial(USED[used], k), range(3)))
            )
            if k == 3:
                optimizer.state[net[0].bias]["step"].fill_(1.0)
        return [*net.parameters(), *(optimizer.state[p]["step"] for p in net.parameters())], run

    wanted, _ = trained(False, ())
    for eager in ((), (0, 4)):
        got, run = trained(True, eager)
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine.cpu().float(), theirs.cpu().float(), rtol=1e-4, atol=2e-6)
    if used == "all":
        assert run.compiles == 2  # with equal counts, and with one that is another
        text = run.lower(torch.ones(2, 4).to("jax"), (0, 1, 2)).as_text()
        assert 1 < text.count("stablehlo.power") < 6  # of two counts and the loss, not of six counts
