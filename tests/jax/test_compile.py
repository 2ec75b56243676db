"""`torch.compile(backend="jax")`: what the suites of compiled functions do not run: buffers, writes, `jit` around."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

from ampcheck.jax_device import jit
from tests.cli_support import environment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's own, while Dynamo is imported
    import ampcheck.jax_device.compile  # noqa: F401  # registers the backend

pytestmark = [  # Dynamo's own slips, which say nothing of the device, and Inductor's imports
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_the_entry_point_is_enough() -> None:
    """Nothing but the name is needed in a new process: torch loads the backend, and registers it itself."""
    code = (
        "import torch, ampcheck.jax_device\n"
        "print(torch.compile(torch.sin, backend='jax')(torch.zeros(2, device='jax')).tolist())"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "[0.0, 0.0]\n", done.stderr


@pytest.mark.parametrize("amp", [False, True])
def test_steps_of_several_sizes_are_those_of_the_module_itself(amp: bool) -> None:
    """Losses, gradients and running statistics; under autocast XLA may leave out a rounding inside of one program."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    middle = [torch.nn.Tanh()] if amp else [torch.nn.BatchNorm1d(16), torch.nn.ReLU()]
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), *middle, torch.nn.Linear(16, 3)).to("jax")
    twin = copy.deepcopy(module)
    seen = []
    for call, owner in ((torch.compile(module, backend="jax"), module), (twin, twin)):
        torch.manual_seed(0)
        losses = []
        for rows in (8, 8, 5):
            x, y = torch.randn(rows, 4).to("jax"), torch.randn(rows, 3).to("jax")
            with torch.autocast("jax", dtype=torch.bfloat16, enabled=amp):
                loss = F.mse_loss(call(x), y)
            loss.backward()
            losses.append(loss.detach())
        seen.append([t.cpu() for t in (*losses, *(p.grad for p in owner.parameters()), *owner.buffers())])
    bounds = {"rtol": 2e-2, "atol": 5e-3} if amp else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(seen[0], seen[1], **bounds)
    assert amp or module[1].num_batches_tracked.item() == 3


def test_random_masks_are_the_same_in_backward() -> None:
    torch._dynamo.reset()
    drop = torch.compile(torch.nn.Dropout(0.5), backend="jax")
    ones = torch.ones(200, device="jax", requires_grad=True)
    first = drop(ones)
    first.sum().backward()
    assert torch.equal(first.detach(), ones.grad)
    assert 0 < (first != 0).sum().item() < 200
    assert not torch.equal(first, drop(ones))


def test_inputs_that_are_written() -> None:
    torch._dynamo.reset()
    x = torch.zeros(3, device="jax")
    doubled = torch.compile(lambda a: a.add_(1) * 2, backend="jax")
    assert doubled(x).tolist() == [2.0] * 3
    assert doubled(x).tolist() == [4.0] * 3
    assert x.tolist() == [2.0] * 3


def test_a_compiled_function_inside_of_a_jitted_one_is_part_of_its_program() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).to("jax")
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(5, 3, device="jax")
    expected = compiled(x)

    @jit
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        out = compiled(x)
        out.square().sum().backward()
        return out.detach()

    torch.testing.assert_close(step(x), expected)
    assert step.compiles == 1
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(x).square().sum().backward()  # compiled again, outside
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])


def test_a_condition_inside_of_a_jitted_function_has_a_program_for_each_outcome() -> None:
    run = jit(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)))
    with pytest.warns(UserWarning, match="a program of .* for each outcome of .*torch.cond"):
        run(torch.ones(2, device="jax"))
    for sign in (1, -1, 1):
        x = torch.full((2,), float(sign), device="jax")
        assert torch.equal(run(x), x + sign)
    assert run.compiles == 2
