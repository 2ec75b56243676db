"""PyTorch's own databases of ops and modules on the device beside the CPU: values, a second call, gradients, state.

Each run takes one of 24 ops and one of 12 modules; a nightly one takes all.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

from scripts.jax_coverage import measure, samples
from scripts.jax_coverage.ways import Way
from tests.cli_support import ROOT
from tests.jax.agreement import close, moved, some, tensors

PAGE = ROOT / "docs" / "jax_ops.md"
SAMPLES = 2


def disagreeing() -> set[str]:
    """Return the ops that docs/jax_ops.md says have samples that do not agree."""
    section = PAGE.read_text(encoding="utf-8").partition("## Ops that do not fully agree")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| (\S+) \| \d", section, re.MULTILINE))


OPS = {samples.name_of(op): op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}
DRAWN = ("nn.FractionalMaxPool", "nn.Lazy")
"""What draws random numbers, which are the device's own: windows, and parameters that are made at the first call."""
MODULES = {info.name: info for info in module_db if not info.name.startswith(DRAWN)}
NO_GRADIENT = {
    *("chalf", "to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm"),  # which the device refuses
    "tensor_split",  # wants an argument on the CPU
    *("nn.functional.rrelu", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),  # draw
    *("svd_lowrank", "nn.functional.multi_head_attention_forward"),  # draw, too
    "as_strided.partial_views",  # a copy on the device leaves behind the storage that the view does not show
}
LOOSE = {"logcumsumexp": 1000.0, "linalg.householder_product": 1000.0}
"""By how much more than for others a gradient in float32 may be off: both take differences of large numbers."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Deprecated and experimental ops are called too, and warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", some(OPS, 24))
def test_values_are_as_the_page_of_ops_says(name: str) -> None:
    row = measure.row(samples.ops()[name], "jax", Way(), SAMPLES)
    reasons = [sample.reason for sample in row.samples if sample.reason]
    assert not reasons or name in disagreeing(), reasons


def gradients(op: Any, sample: Any, given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the tensors in a sample's arguments, by what of the result is unique."""
    out = sample.output_process_fn_grad(op(given[0], *given[1], **given[2]))
    outs = [t for t in tensors(out) if t.requires_grad]
    ins = [t for t in tensors(given) if t.requires_grad]
    seeds = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.device, t.dtype) for t in outs]
    return torch.autograd.grad(outs, ins, seeds, allow_unused=True) if outs and ins else ()


DIFFERENTIABLE = [name for name, op in OPS.items() if op.supports_autograd and name not in NO_GRADIENT]


@pytest.mark.parametrize("name", some(DIFFERENTIABLE, 24))
def test_gradients(name: str) -> None:
    op = samples.ops()[name]
    every = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    for index in samples.spread(len(every), SAMPLES):
        given = (every[index].input, every[index].args, every[index].kwargs)
        expected, found = (gradients(op, every[index], g) for g in (given, moved(given)))
        assert [g is None for g in found] == [g is None for g in expected]
        close(found, expected, LOOSE.get(name, 64))


@pytest.mark.parametrize("name", some(MODULES, 12))
def test_modules(name: str) -> None:
    """In training and in evaluation: outputs, gradients of parameters, and buffers."""
    info = MODULES[name]
    for training in (True, False):
        for given in info.module_inputs_func(info, "cpu", torch.float32, True, training)[:SAMPLES]:
            torch.manual_seed(0)
            arguments = given.constructor_input
            here = info.module_cls(*arguments.args, **arguments.kwargs).train(training)
            there = copy.deepcopy(here).to("jax")
            seen = []
            for module, (args, kwargs) in (
                (here, (given.forward_input.args, given.forward_input.kwargs)),
                (there, moved((given.forward_input.args, given.forward_input.kwargs))),
            ):
                out = tensors(module(*args, **kwargs))
                sum(t.float().square().sum() for t in out if t.requires_grad).backward()
                grads = [p.grad for p in module.parameters() if p.grad is not None]
                seen.append([*out, *grads, *module.buffers()])
            close(seen[1], seen[0], loose=64)
