"""torch.nn.functional on the jax device beside the CPU: its edges, and what is written in place.

test_op_database.py has the plain samples of PyTorch's ops and modules, with gradients, and test_ops.py the edges of
functions of one tensor. Here is what these lack: infinities, ties, empty tensors, ignored classes, state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampcheck.jax_device import jit
from tests.jax.agreement import INF, NAN, close, same

EDGES = torch.tensor([-INF, -30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 30.0, INF, NAN])
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{f.__name__: f for f in (F.leaky_relu, F.gelu, F.hardswish)},
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "rrelu": lambda x: F.rrelu(x, training=False),
}


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return data(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    activation = ACTIVATIONS[name]
    # CPU's vectorised gelu gives nan for infinity and is 1e-4 off at -3, its scalar one neither.
    for edges in EDGES.split(1) if name == "gelu" else (EDGES,):
        same(activation, edges, loose=4)
    same(activation, data(5, 7, dtype=torch.bfloat16), loose=2)


# A check for each call: values, and gradients of what requires them.
check = partial(partial, same)
IMAGE, HOLES = leaf(2, 3, 7, 8), data(2, 3, 7, 8)
HOLES[0, 0, 0, 0], HOLES[0, 1, 2, 2], HOLES[1, 2] = NAN, INF, -INF
ROW = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0]])
WORDS, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 7])
SCORES, CLASSES = leaf(5, 4), torch.tensor([0, 3, -100, 1, 2])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0])
LABELS = torch.tensor([[1, 2, -1, 0], [-1, 0, 0, 0], [3, 0, 1, 2], [0, -1, 1, 1], [2, 2, -1, 0]])
CHANCES = torch.tensor([1.0, 0.0, 1.0, 0.3])
CALLS: dict[str, list[Callable[[], Any]]] = {
    "softmax": [
        *(check(f, ROW, dim) for f in (torch.softmax, torch.log_softmax) for dim in (0, -1)),
        *(check(f, torch.tensor(3.0), 0) for f in (torch.softmax, torch.log_softmax)),
        *(check(f, torch.zeros(0, 3), 1) for f in (torch.softmax, torch.log_softmax)),
        check(torch.softmax, ROW.bfloat16(), 1, dtype=torch.float32),
    ],
    "pooling": [
        check(F.max_pool2d, HOLES, 3, 2, 1, 1, True, True),
        check(F.max_pool2d, HOLES, 2, 1, 0, 2, False, True),
        check(F.max_pool2d, torch.ones(1, 1, 4, 4), 2, 1, return_indices=True),  # the first of equal elements
        check(F.avg_pool2d, HOLES, 3, 2, 1, True, True),
        check(F.avg_pool2d, data(2, 3, 7, 8, dtype=torch.bfloat16), 2, divisor_override=3),
        check(F.adaptive_max_pool2d, IMAGE, (7, 5)),
        check(F.max_unpool2d, *F.max_pool2d(data(1, 2, 6, 6), 2, return_indices=True), 2),
    ],
    "windows": [
        check(F.pad, HOLES, (-1, 2, 1, -2), value=1.5),
        check(F.unfold, IMAGE, (2, 3), 2, 1, (1, 2)),
        check(F.fold, leaf(2, 12, 20), (5, 6), 2),
        *(check(F.interpolate, HOLES, (8, 3), mode=mode) for mode in ("nearest", "nearest-exact")),
        *(check(F.interpolate, IMAGE, (2, 9), mode=m, antialias=True, loose=16) for m in ("bilinear", "bicubic")),
        check(F.grid_sample, HOLES[:1, :2], 1.3 * data(1, 4, 3, 2, seed=1).tanh(), "nearest", "reflection", True),
    ],
    "losses": [
        *(
            check(F.cross_entropy, SCORES, CLASSES, WEIGHT, reduction=r, label_smoothing=0.1, loose=4)
            for r in ("none", "mean", "sum")
        ),
        check(F.multi_margin_loss, SCORES, CLASSES.abs() % 4, 2, 0.5, WEIGHT),
        check(F.multilabel_margin_loss, SCORES, LABELS, reduction="none"),
        check(F.binary_cross_entropy, torch.tensor([0.0, 1.0, 0.5, 0.2]), CHANCES, reduction="none"),
        check(F.binary_cross_entropy_with_logits, torch.tensor([-200.0, 200.0, 0.0, 3.0]), CHANCES, pos_weight=CHANCES),
        check(F.cross_entropy, SCORES, torch.full((5,), -100)),
        check(F.cross_entropy, data(0, 4), torch.zeros(0, dtype=torch.int64)),
        check(F.mse_loss, data(0), data(0)),
        check(F.huber_loss, torch.tensor([INF, -INF, 1.0, NAN], requires_grad=True), torch.zeros(4)),
    ],
    "norms": [
        check(F.batch_norm, leaf(3, 4, 6), data(4), data(4).exp(), leaf(4), leaf(4), False, loose=16),
        check(lambda v, g: torch._weight_norm(v, g, 0), leaf(5, 3), leaf(5, 1), loose=8),
    ],
    "embeddings": [
        check(F.embedding, WORDS, leaf(10, 4), 2, scale_grad_by_freq=True),
        *(check(F.embedding_bag, WORDS, leaf(10, 4), OFFSETS, mode=m, padding_idx=2) for m in ("sum", "mean", "max")),
        check(F.embedding_bag, WORDS, leaf(10, 4), torch.tensor([0, 4, 8]), mode="mean", include_last_offset=True),
    ],
}


@pytest.mark.parametrize("family", CALLS)
def test_values_and_gradients(family: str) -> None:
    for call in CALLS[family]:
        call()


def test_a_changed_number_gives_a_new_value_without_a_new_program() -> None:
    x = data(4).to("jax")
    for slope in (0.1, 0.2, 0.3):
        torch.testing.assert_close(F.leaky_relu(x, slope).cpu(), F.leaky_relu(x.cpu(), slope))


# Strides that leave a rest, dilations, groups, and transposed ones whose output_padding passes the stride.
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], ...] = (
    ((2, 4, 9, 8), (6, 2, 3, 2), ([3, 2], [2, 0], [1, 2], False, [0, 0], 2)),
    ((1, 6, 7), (3, 2, 4), ([2], [3], [1], False, [0], 3)),
    ((2, 3, 5, 4, 6), (4, 3, 1, 2, 3), ([1, 2, 2], [0, 1, 3], [2, 1, 1], False, [0, 0, 0], 1)),
    ((2, 4, 5, 4), (4, 3, 3, 2), ([1, 3], [1, 0], [3, 1], True, [2, 2], 2)),
    ((1, 2, 7), (2, 3, 4), ([1], [2], [2], True, [1], 1)),
    ((2, 4, 3, 4, 3), (4, 1, 2, 1, 3), ([2, 1, 2], [1, 0, 0], [1, 1, 1], True, [1, 0, 0], 4)),
)


@pytest.mark.parametrize(("image", "kernel", "options"), CONVOLUTIONS)
def test_convolutions(image: tuple[int, ...], kernel: tuple[int, ...], options: tuple[Any, ...]) -> None:
    outputs = kernel[1] * options[-1] if options[3] else kernel[0]
    same(torch.convolution, leaf(*image), leaf(*kernel, seed=1), leaf(outputs, seed=2), *options, loose=32)


def test_other_convolutions() -> None:
    same(F.conv2d, data(2, 4, 5, 5), leaf(3, 4, 3, 3), loose=16)  # the input asks for no gradient
    same(F.conv1d, leaf(4, 9), leaf(5, 4, 3), padding="same", loose=16)
    same(F.conv2d, data(2, 4, 7, 6).bfloat16(), data(6, 2, 3, 2).bfloat16(), groups=2, loose=2)
    same(F.conv2d, data(0, 4, 7, 6), data(6, 2, 3, 2), groups=2)
    said = []
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError) as error:
            F.conv2d(data(1, 3, 5, 5).to(device), data(4, 2, 3, 3).to(device))
        said.append(str(error.value))
    assert said[0] == said[1]


def test_batch_norm_writes_running_statistics() -> None:
    module = nn.BatchNorm2d(3)
    there = copy.deepcopy(module).to("jax")
    for seed in range(2):
        x = data(4, 3, 5, 5, seed=seed)
        torch.testing.assert_close(there(x.to("jax")).cpu(), module(x), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(there.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    held = there.running_mean.data.clone()
    there.eval()(data(4, 3, 5, 5).to("jax"))
    assert torch.equal(there.running_mean, held)


def test_an_embedding_renorms_its_table_in_place() -> None:
    table = data(10, 4)
    renormed = table.clone().to("jax")
    F.embedding(WORDS.to("jax"), renormed, max_norm=1.0)
    F.embedding(WORDS, table, max_norm=1.0)
    torch.testing.assert_close(renormed.cpu(), table)


@pytest.mark.parametrize("infinity", [False, True])
@pytest.mark.parametrize(("lengths", "targets"), [((12, 10, 12), (4, 2, 0)), ((12, 3, 12), (4, 4, 4))])
def test_ctc_loss(lengths: tuple[int, ...], targets: tuple[int, ...], infinity: bool) -> None:
    rows, ends = (
        torch.tensor([[1, 2, 2, 3], [4, 4, 1, 1], [5, 1, 2, 3]]),
        (torch.tensor(lengths), torch.tensor(targets)),
    )

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(-1), t, *ends, reduction="sum", zero_infinity=infinity)

    same(loss, leaf(12, 3, 6), rows, loose=16)


def test_ctc_loss_is_compiled() -> None:
    """Its table's size follows from the lengths, so that it can be, although PyTorch tags it otherwise."""
    targets, lengths = torch.tensor([[1, 2, 3]], device="jax"), (torch.tensor([7]), torch.tensor([3]))

    @partial(jit, fullgraph=True)
    def step(scores: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(scores.log_softmax(2), targets, *lengths)

    assert torch.isfinite(step(torch.zeros(7, 1, 5, device="jax")))


def test_attention_without_training() -> None:
    torch.manual_seed(0)
    x, padding = data(2, 5, 8), torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    for first in (True, False):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first).eval()
        there = copy.deepcopy(layer).to("jax")
        with torch.no_grad():
            close(there(x.to("jax")), layer(x), 16)
            mine = there(x.to("jax"), src_key_padding_mask=padding.to("jax"))
            close(mine, layer(x, src_key_padding_mask=padding), 16)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    there_ = copy.deepcopy(attention).to("jax")
    with torch.no_grad():
        close(there_(*[x.to("jax")] * 3), attention(x, x, x), 16)


def test_attention_by_the_overload_of_cuda() -> None:
    q, k, v = (leaf(2, 2, 5, 8, seed=s) for s in range(3))
    there = [t.detach().to("jax").requires_grad_() for t in (q, k, v)]
    out = torch.ops.aten._scaled_dot_product_flash_attention(*there, 0.0, True)[0]
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(out, expected, 16)
    close(torch.autograd.grad(out.sum(), there), torch.autograd.grad(expected.sum(), (q, k, v)), 16)


@pytest.mark.parametrize("added", [lambda x: 0.01, lambda x: 0.1 * (x - x.detach())], ids=["value", "gradient"])
def test_a_difference_is_seen(added: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(AssertionError, match="not close"):
        same(lambda x: F.relu(x) + (added(x) if x.device.type == "jax" else 0.0), leaf(4))
