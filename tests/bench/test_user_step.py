"""A step of the user's own: found, checked, and made ready in a variant."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.advise.user_step import StepSpec, UserStep, checked, load, reference
from ampcheck.bench.core.model import PRECISIONS
from ampcheck.errors import UsageError
from tests.cli_support import ROOT


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_a_step_is_that_of_plain_torch_and_leaves_the_users_model_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    spec = StepSpec(model, (torch.randn(4, 8), torch.randn(4, 8)), F.mse_loss)
    before = [p.detach().clone() for p in spec.model.parameters()]
    found = UserStep(spec, PRECISIONS["bf16"], "cpu").output()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(spec.model(spec.inputs[0]), spec.inputs[1])
    grads = torch.autograd.grad(loss, list(spec.model.parameters()))
    assert torch.equal(found, torch.cat([t.reshape(-1).double() for t in (loss.detach(), *grads)]))
    assert all(torch.equal(one, two) for one, two in zip(before, spec.model.parameters(), strict=True))
    assert reference(spec).shape == found.shape


def test_inference_gives_the_outputs_without_gradients() -> None:
    spec = StepSpec(nn.Linear(4, 2), (torch.randn(3, 4),), None)
    step = UserStep(spec, PRECISIONS["bf16-native"], "cpu")
    out = step.call()
    assert (out.dtype, out.requires_grad) == (torch.bfloat16, False)
    assert step.output().shape == (6,)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "returned None; a tuple (model, inputs, loss) is wanted"),
        ((nn.Linear(2, 2), (torch.ones(2),)), "returned a tuple of 2"),
        (("model", (), None), "returned a str as the model"),
        ((nn.Linear(2, 2).half(), (), None), "returned a model whose weight is fp16; it is wanted in fp32"),
        ((nn.Linear(2, 2), torch.ones(2), None), "returned a Tensor as the inputs"),
        ((nn.Linear(2, 2), (torch.ones(2), 3), None), "returned an int among the inputs"),
        ((nn.Linear(2, 2), (torch.ones(2),), 3), "returned an int as the loss"),
        ((nn.ReLU(), (torch.ones(2),), mean), "no parameter of the model requires grad"),
        ((nn.Linear(2, 2), (), F.mse_loss), "no input to give it as the second"),
    ],
)
def test_what_is_no_step_is_refused(made: object, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        checked(made, "make of steps.py")


BAD = [
    ("steps.py:marked2", "steps.py has no function marked2"),
    ("steps.py:answer", "answer of steps.py is an int, not a function"),
    ("steps.py:needs", "needs of steps.py cannot be called without arguments: missing a required argument: 'path'"),
    ("steps.py:raises", "raises of steps.py raised LookupError: no such data at all (steps.py:9 in raises)"),
    ("none.py", "none.py does not exist"),
    ("broken.py", "broken.py cannot be loaded: ZeroDivisionError: division by zero (broken.py:1 in <module>)"),
    ("nosuchmodule:make", "module nosuchmodule cannot be imported: ModuleNotFoundError: No module named"),
    ("steps", "'steps' names no function; it is written MODULE:FUNCTION, FILE.py:FUNCTION or FILE.py"),
    ("two.py", "two.py marks several functions with @ampcheck.step: marked, other; name one as two.py:FUNCTION"),
    ("unmarked.py", "unmarked.py marks no function with @ampcheck.step"),
]


@pytest.mark.parametrize(("target", "words"), BAD)
def test_what_names_no_step_is_refused_in_a_sentence(scripts: Path, target: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(target)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_alone_gives_its_marked_function(scripts: Path) -> None:
    assert isinstance(load("steps.py").model, nn.Linear)
    assert load("steps.py:marked").loss is None
    assert isinstance(load("steps:marked").model, nn.Linear)


@pytest.mark.parametrize(
    ("width", "loss", "words"),
    [
        (3, None, r"the step cannot be run in float32 on cpu: RuntimeError: mat1 and mat2"),
        (2, lambda output: output.view(7), r"RuntimeError: shape .*\(tests.bench.test_user_step.py:\d+ in .*\)$"),
    ],
)
def test_a_step_that_does_not_run_is_refused_with_its_own_words_and_the_users_line(
    width: int, loss: Any, words: str
) -> None:
    spec = StepSpec(nn.Linear(2, 2), (torch.ones(1, width),), loss)
    with pytest.raises(UsageError, match=words):
        UserStep(spec, PRECISIONS["fp32"], "cpu").try_out()


def test_the_decorator_is_reached_without_jax() -> None:
    code = (
        "import sys, ampcheck\n@ampcheck.step\ndef f(): pass\nassert f.__name__ == 'f'\nassert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
