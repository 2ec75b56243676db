"""Gradients of torch.nn on the jax device, and small models trained eagerly beside the same on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampcheck.jax_device.lowerings import ctc
from tests.jax.agreement import close, same
from tests.jax.test_nn import ACTIVATIONS, data


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return data(*shape, seed=seed).requires_grad_()


def test_activations() -> None:
    for activation in (*ACTIVATIONS, lambda x: F.glu(x, 0), lambda x: x.softmax(1), lambda x: F.log_softmax(x, 0)):
        same(activation, leaf(4, 6), loose=4)


def test_convolutions() -> None:
    same(F.conv2d, leaf(2, 4, 7, 6), leaf(6, 2, 3, 2), leaf(6), 2, (1, 2), (2, 1), 2, loose=16)
    same(F.conv_transpose2d, leaf(2, 4, 5, 5), leaf(4, 3, 3, 3), leaf(6), 2, 1, 1, 2, 2, loose=16)
    same(F.conv1d, leaf(4, 9), leaf(5, 4, 3), loose=16)
    same(F.conv3d, leaf(1, 2, 4, 5, 6), leaf(3, 2, 2, 2, 2), loose=16)
    same(F.conv2d, data(2, 4, 5, 5), leaf(3, 4, 3, 3), loose=16)  # the input asks for no gradient


def test_convolutions_of_every_kind() -> None:
    """Strides that leave a rest, dilations, groups, and transposed ones whose output_padding passes the stride."""
    kinds: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], ...] = (
        ((2, 4, 9, 8), (6, 2, 3, 2), ([3, 2], [2, 0], [1, 2], False, [0, 0], 2)),
        ((1, 6, 7), (3, 2, 4), ([2], [3], [1], False, [0], 3)),
        ((2, 3, 5, 4, 6), (4, 3, 1, 2, 3), ([1, 2, 2], [0, 1, 3], [2, 1, 1], False, [0, 0, 0], 1)),
        ((2, 4, 5, 4), (4, 3, 3, 2), ([1, 3], [1, 0], [3, 1], True, [2, 2], 2)),
        ((1, 2, 7), (2, 3, 4), ([1], [2], [2], True, [1], 1)),
        ((2, 4, 3, 4, 3), (4, 1, 2, 1, 3), ([2, 1, 2], [1, 0, 0], [1, 1, 1], True, [1, 0, 0], 4)),
    )
    for image, kernel, options in kinds:
        outputs = kernel[1] * options[-1] if options[3] else kernel[0]
        same(torch.convolution, leaf(*image), leaf(*kernel, seed=1), leaf(outputs, seed=2), *options, loose=32)


def test_pooling_and_padding() -> None:
    x = leaf(2, 3, 7, 8)
    same(F.max_pool2d, x, 3, 2, 1)
    same(F.avg_pool2d, x, 3, 2, 1, True, False)
    for size in (1, (7, 5), (3, 2)):
        same(F.adaptive_avg_pool2d, x, size)
        same(F.adaptive_max_pool2d, x, size)
    same(F.adaptive_avg_pool3d, leaf(2, 5, 7, 4), (2, 3, 2))
    same(F.adaptive_max_pool3d, leaf(2, 5, 7, 4), (2, 3, 2))
    for mode in ("reflect", "replicate", "circular", "constant"):
        same(F.pad, x, (2, 1, 0, 3), mode)
    same(F.unfold, x, 2, 1, 1, 2)
    same(F.fold, leaf(2, 12, 20), (5, 6), 2)


def test_resizing() -> None:
    x = leaf(2, 3, 5, 6)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        same(F.interpolate, x, (8, 4), mode=mode, loose=16)
    same(F.interpolate, x, (3, 9), mode="bicubic", antialias=True, loose=16)
    grid = (1.3 * data(2, 4, 3, 2, seed=1).tanh()).requires_grad_()
    for mode, padding in (
        ("bilinear", "zeros"),
        ("bilinear", "border"),
        ("bilinear", "reflection"),
        ("bicubic", "border"),
    ):
        same(F.grid_sample, x, grid, mode, padding, False, loose=64)


def test_losses() -> None:
    x, y, target = leaf(5, 4), data(5, 4, seed=1), torch.tensor([0, 3, -100, 1, 2])
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0])
    for reduction in ("none", "mean", "sum"):
        for function in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
            same(function, x, y, reduction=reduction, loose=4)
        same(F.cross_entropy, x, target, weight, reduction=reduction, label_smoothing=0.1, loose=4)
        same(F.multi_margin_loss, x, target.abs() % 4, reduction=reduction)
        same(F.multilabel_margin_loss, x, torch.tensor([[1, 2, -1, 0]] * 5), reduction=reduction)
        same(F.binary_cross_entropy, data(5, 4).sigmoid().requires_grad_(), y.sigmoid(), reduction=reduction, loose=4)
    same(F.nll_loss, leaf(2, 4, 3, 2), torch.tensor([[[0, 1], [2, 3], [1, -100]]] * 2), weight)
    same(F.gaussian_nll_loss, x, y, data(5, 4).exp(), loose=4)
    same(F.triplet_margin_loss, x, y, data(5, 4, seed=2), loose=4)
    same(F.cosine_embedding_loss, x, y, torch.tensor([1, -1, 1, -1, 1]), loose=4)


def test_ctc_loss_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table's size follows from the lengths, so that it is compiled, although PyTorch tags it otherwise."""
    traced: list[int] = []
    table = ctc._alphas
    monkeypatch.setattr(ctc, "_alphas", lambda *args: traced.append(1) or table(*args))
    targets, lengths = torch.tensor([[1, 2, 3]], device="jax"), (torch.tensor([7]), torch.tensor([3]))
    seen = []
    for _ in range(3):
        inputs = torch.zeros(7, 1, 5, device="jax", requires_grad=True)
        F.ctc_loss(inputs.log_softmax(2), targets, *lengths).backward()
        seen.append(len(traced))
    assert seen[0] > 0
    assert seen[1:] == seen[:1] * 2


def test_ctc_loss() -> None:
    targets = torch.tensor([[1, 2, 2, 3], [4, 4, 1, 1], [5, 1, 2, 3]])
    logits = leaf(12, 3, 6)
    for lengths in (((12, 10, 12), (4, 2, 0)), ((12, 3, 12), (4, 4, 4))):
        for infinite in (True, False):
            ended = [torch.tensor(length) for length in lengths]

            def loss(x: torch.Tensor, t: torch.Tensor, ended: Any = ended, infinite: bool = infinite) -> torch.Tensor:
                lp = x.log_softmax(-1)
                return F.ctc_loss(lp, t, ended[0], ended[1], reduction="sum", zero_infinity=infinite)

            same(loss, logits, targets, loose=16)


def test_norms() -> None:
    x, w, b = leaf(3, 4, 6), leaf(6, seed=1), leaf(6, seed=2)
    same(F.layer_norm, x, (6,), w, b, loose=8)
    same(F.layer_norm, x, (4, 6), loose=8)
    same(F.rms_norm, x, (6,), w, loose=8)
    same(F.group_norm, x, 2, leaf(4), leaf(4), loose=16)
    same(F.instance_norm, x, loose=16)
    same(F.local_response_norm, x, 2, loose=8)
    same(F.batch_norm, x, data(4), data(4).exp(), leaf(4), leaf(4), False, loose=16)
    same(lambda v, g: torch._weight_norm(v, g, 0), leaf(5, 3), leaf(5, 1), loose=8)


def test_embeddings() -> None:
    index, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 7])
    same(F.embedding, index, leaf(10, 4), 2, scale_grad_by_freq=True)
    for mode in ("sum", "mean", "max"):
        same(F.embedding_bag, index, leaf(10, 4), offsets, mode=mode, padding_idx=2)
    same(F.embedding_bag, index, leaf(10, 4), offsets, mode="sum", per_sample_weights=leaf(8), loose=4)


def beside(make: Callable[[], nn.Module], run: Callable[[nn.Module, str], torch.Tensor], steps: int = 3) -> None:
    """Train the same model on both devices; losses, gradients and what is left are equal."""
    torch.manual_seed(0)
    here = make()
    there = copy.deepcopy(here).to("jax")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (here, there)]
    for _ in range(steps):
        losses = []
        for model, optimizer, device in zip((here, there), optimizers, ("cpu", "jax"), strict=True):
            optimizer.zero_grad()
            loss = run(model, device)
            loss.backward()
            losses.append(loss)
        close(losses[1], losses[0], 32)
        close([p.grad for p in there.parameters()], [p.grad for p in here.parameters()], 64)
        for optimizer in optimizers:
            optimizer.step()
    close(list(there.state_dict().values()), list(here.state_dict().values()), 64)


class Sentences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(self.embed(words)))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(6, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6))
        self.short = nn.Conv2d(3, 6, 1, 2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(F.relu(self.second(self.first(x)) + self.short(x)).mean((2, 3)))
        return out


def test_a_transformer_trains() -> None:
    words = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(1))

    def run(model: nn.Module, device: str) -> torch.Tensor:
        there = words.to(device)
        return F.cross_entropy(model(there)[:, :-1].reshape(-1, 11), there[:, 1:].reshape(-1), label_smoothing=0.1)

    beside(Sentences, run)


def test_a_residual_block_trains() -> None:
    images, labels = data(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    beside(Block, lambda model, device: F.cross_entropy(model(images.to(device)), labels.to(device)))


@pytest.mark.nightly
def test_recurrent_networks_train() -> None:
    x = data(5, 3, 6)
    for kind in (nn.LSTM, nn.GRU):
        for bias in (True, False):

            def run(model: nn.Module, device: str) -> torch.Tensor:
                packed = nn.utils.rnn.pack_padded_sequence(x.to(device), torch.tensor([5, 3, 2]))
                return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].square().mean()

            beside(lambda kind=kind, bias=bias: kind(6, 4, 2 if bias else 1, bias=bias, bidirectional=True), run, 2)


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


def test_fused_attention() -> None:
    q, k, v = (leaf(2, 2, 5, 8, seed=s) for s in range(3))
    same(F.scaled_dot_product_attention, q, k, v, is_causal=True, loose=16)
    there = [t.detach().to("jax").requires_grad_() for t in (q, k, v)]
    out = torch.ops.aten._scaled_dot_product_flash_attention(*there, 0.0, True)[0]
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(out, expected, 16)
    close(torch.autograd.grad(out.sum(), there), torch.autograd.grad(expected.sum(), (q, k, v)), 16)


def test_a_wrong_gradient_is_told() -> None:
    try:
        same(lambda x: F.relu(x) + (0.1 * (x - x.detach()) if x.device.type == "jax" else 0.0), leaf(4))
    except AssertionError:
        return
    raise AssertionError("a gradient that is 0.1 off was taken for CPU's")
