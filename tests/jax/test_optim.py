"""Optimizers and `torch._foreach_*` on the jax device: CPU's results, and no new program once training is under way.

The suite of the scaler holds its two ops to the rules; here is what these refuse.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

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


@pytest.mark.parametrize("name", some(_OPTIONS, 5))
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
