"""torch.nn.functional on the jax device: values are CPU's, at edges as well, and what is written in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.jax.agreement import INF, NAN, same

EDGES = torch.tensor([-INF, -30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 30.0, INF, NAN])
ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    F.relu,
    F.leaky_relu,
    F.elu,
    F.celu,
    F.selu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
    F.mish,
    F.hardtanh,
    F.hardsigmoid,
    F.hardswish,
    F.softplus,
    F.softshrink,
    F.hardshrink,
    F.relu6,
    F.logsigmoid,
    lambda x: F.threshold(x, 0.5, -2.0),
    lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype, device=x.device)),
    lambda x: F.rrelu(x, training=False),
)


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_activations_at_edges() -> None:
    for activation in ACTIVATIONS:
        # CPU's vectorised gelu gives nan for infinity and is 1e-4 off at -3, its scalar one neither.
        for edges in EDGES.split(1) if activation is F.gelu else (EDGES,):
            same(activation, edges, loose=4)


def test_activations_in_low_precision() -> None:
    for activation in ACTIVATIONS:
        same(activation, data(5, 7, dtype=torch.bfloat16), loose=2)
    same(F.gelu, data(5, 7, dtype=torch.float16), loose=2)


def test_a_changed_number_gives_a_new_value_without_a_new_program() -> None:
    x = data(4).to("jax")
    for slope in (0.1, 0.2, 0.3):
        torch.testing.assert_close(F.leaky_relu(x, slope).cpu(), F.leaky_relu(x.cpu(), slope))


def test_softmax_of_masked_and_empty_rows() -> None:
    x = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0]])
    for function in (torch.softmax, torch.log_softmax):
        for dim in (0, -1):
            same(function, x, dim)
        same(function, torch.tensor(3.0), 0)
        same(function, torch.zeros(0, 3), 1)
        same(function, x.bfloat16(), 1, dtype=torch.float32)


def test_convolutions() -> None:
    x, w, b = data(2, 4, 7, 6), data(6, 2, 3, 2, seed=1), data(6, seed=2)
    same(F.conv2d, x, w, b, stride=2, padding=(1, 2), dilation=(2, 1), groups=2, loose=4)
    same(F.conv_transpose2d, x, data(4, 3, 3, 3), None, 2, 1, 1, 2, 2, loose=4)
    same(F.conv1d, data(4, 9), data(5, 4, 3), padding="same", loose=4)
    same(F.conv3d, data(1, 2, 4, 5, 6), data(3, 2, 2, 2, 2), loose=4)
    same(F.conv2d, x.bfloat16(), w.bfloat16(), groups=2, loose=2)
    same(F.conv2d, x[:0], w, groups=2)


def test_convolution_keeps_lower_precision() -> None:
    import jax
    import jax.numpy as jnp

    from ampcheck.jax_device.lowerings.conv import convolution

    def call(x: Any, w: Any) -> Any:
        return convolution(x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)

    text = str(jax.make_jaxpr(call)(jnp.ones((1, 2, 4, 4), jnp.bfloat16), jnp.ones((3, 2, 3, 3), jnp.bfloat16)))
    assert text.count("convert_element_type") == 1, text  # of the result, which is accumulated in float32
    assert "f32[1,3,2,2] = conv_general_dilated" in text, text
    assert ":bf16[1,3,2,2] = convert_element_type" in text, text


def test_wrong_shapes_raise_what_pytorch_raises() -> None:
    x, w = data(1, 3, 5, 5), data(4, 2, 3, 3)
    said = []
    for device in ("cpu", "jax"):
        try:
            F.conv2d(x.to(device), w.to(device))
        except RuntimeError as error:
            said.append(str(error))
    assert len(said) == 2, said
    assert said[0] == said[1], said


def test_pooling() -> None:
    x = data(2, 3, 7, 8)
    x[0, 0, 0, 0], x[0, 1, 2, 2], x[1, 2] = NAN, INF, -INF
    same(F.max_pool2d, x, 3, 2, 1, 1, True, True)
    same(F.max_pool2d, x, 2, 1, 0, 2, False, True)
    same(F.max_pool2d, torch.ones(1, 1, 4, 4), 2, 1, return_indices=True)  # the first of equal elements
    same(F.max_pool1d, x[0], 3, 2)
    same(F.max_pool3d, data(1, 2, 5, 4, 6), 2, 2, 1, ceil_mode=True, return_indices=True)
    for include in (True, False):
        same(F.avg_pool2d, x, 3, 2, 1, True, include)
    same(F.avg_pool2d, x.bfloat16(), 2, divisor_override=3)
    same(F.avg_pool3d, data(2, 4, 5, 6), 2, 2, 1, True, False)
    for size in (1, 3, (7, 5), (2, None)):
        same(F.adaptive_avg_pool2d, x, size)
        same(F.adaptive_max_pool2d, x, size, True)
    same(F.lp_pool2d, x.abs(), 2, 2)
    samples = torch.tensor([[[0.3, 0.9], [0.0, 0.5], [0.99, 0.1]]])
    same(F.fractional_max_pool2d, data(1, 3, 7, 9), (2, 3), (3, 4), None, True, samples)
    cubes = torch.tensor([[[0.3, 0.9, 0.4], [0.0, 0.5, 0.7]]])
    same(F.fractional_max_pool3d, data(1, 2, 6, 7, 9), 2, (3, 4, 2), None, True, cubes)
    pooled, index = F.max_pool2d(data(1, 2, 6, 6), 2, return_indices=True)
    same(F.max_unpool2d, pooled, index, 2)


def test_padding_and_columns() -> None:
    x = data(2, 3, 5, 6)
    for mode in ("reflect", "replicate", "circular"):
        same(F.pad, x, (2, 1, 0, 3), mode)
    same(F.pad, x, (-1, 2, 1, -2), value=1.5)
    same(F.unfold, x, (2, 3), 2, 1, (1, 2))
    same(F.fold, data(2, 12, 20), (5, 6), 2)
    same(F.pixel_shuffle, data(2, 8, 3, 2), 2)
    same(F.pixel_unshuffle, x[..., :4, :], 2)
    same(F.channel_shuffle, data(2, 6, 3, 2), 3)


def test_interpolation() -> None:
    x = data(2, 3, 5, 6)
    x[0, 0, 0, 0] = INF
    for mode in ("nearest", "nearest-exact", "area"):
        same(F.interpolate, x, (8, 3), mode=mode)
    for align in (True, False):
        for size in ((8, 4), (5, 6), (1, 1)):
            same(F.interpolate, x[:, 1:], size, mode="bilinear", align_corners=align, loose=8)
            same(F.interpolate, x[:, 1:], size, mode="bicubic", align_corners=align, loose=8)
        same(F.interpolate, x[:, 1:], (2, 9), mode="bilinear", align_corners=align, antialias=True, loose=8)
        same(F.interpolate, x[:, 1:], (2, 9), mode="bicubic", align_corners=align, antialias=True, loose=8)
    same(F.interpolate, x[1], scale_factor=1.7, mode="linear", loose=8)
    same(F.interpolate, data(1, 2, 3, 4, 5), scale_factor=2.0, mode="trilinear", loose=8)


def test_grid_sampling() -> None:
    x, grid = data(2, 3, 5, 6), 1.3 * data(2, 4, 3, 2, seed=1).tanh()
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding, align in (("zeros", False), ("border", True), ("reflection", False), ("reflection", True)):
            same(F.grid_sample, x, grid, mode, padding, align, loose=8)
    same(F.grid_sample, data(1, 2, 3, 4, 5), data(1, 2, 2, 2, 3, seed=1).tanh(), align_corners=False, loose=8)
    same(F.affine_grid, data(2, 2, 3), (2, 3, 4, 5), align_corners=False, loose=4)


def test_losses_with_weights_and_ignored_targets() -> None:
    logits, target = data(5, 4), torch.tensor([0, 3, -100, 1, 2])
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0])
    for reduction in ("none", "mean", "sum"):
        same(F.cross_entropy, logits, target, weight, reduction=reduction)
        same(F.cross_entropy, logits, target, weight, reduction=reduction, label_smoothing=0.1, loose=4)
        same(F.cross_entropy, logits, logits.softmax(1), reduction=reduction)
        same(F.nll_loss, data(2, 4, 3, 2), torch.tensor([[[0, 1], [2, 3], [1, -100]]] * 2), weight, reduction=reduction)
        same(F.multi_margin_loss, logits, target.abs() % 4, 2, 0.5, weight, reduction=reduction)
        labels = torch.tensor([[1, 2, -1, 0], [-1, 0, 0, 0], [3, 0, 1, 2], [0, -1, 1, 1], [2, 2, -1, 0]])
        same(F.multilabel_margin_loss, logits, labels, reduction=reduction)
    same(F.cross_entropy, logits, torch.full((5,), -100))
    same(F.cross_entropy, data(0, 4), torch.zeros(0, dtype=torch.int64))
    same(F.mse_loss, data(0), data(0))


def test_probability_losses_at_their_edges() -> None:
    p, y = torch.tensor([0.0, 1.0, 0.5, 0.2]), torch.tensor([1.0, 0.0, 1.0, 0.3])
    same(F.binary_cross_entropy, p, y, reduction="none")
    same(F.binary_cross_entropy_with_logits, torch.tensor([-200.0, 200.0, 0.0, 3.0]), y, pos_weight=p, reduction="none")
    same(F.kl_div, data(3, 4).log_softmax(1), data(3, 4, seed=1).softmax(1), reduction="batchmean")
    for function in (F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.mse_loss, F.soft_margin_loss, F.hinge_embedding_loss):
        same(function, data(3, 4), data(3, 4, seed=1).sign(), loose=2)


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


def test_embeddings() -> None:
    table, index = data(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    same(F.embedding, index.reshape(2, 4), table, padding_idx=2)
    renormed = table.clone().to("jax")
    F.embedding(index.to("jax"), renormed, max_norm=1.0)
    expected = table.clone()
    F.embedding(index, expected, max_norm=1.0)
    torch.testing.assert_close(renormed.cpu(), expected)
    for mode in ("sum", "mean", "max"):
        same(F.embedding_bag, index, table, torch.tensor([0, 4, 4, 7]), mode=mode, padding_idx=2)
        same(F.embedding_bag, index, table, torch.tensor([0, 4, 8]), mode=mode, include_last_offset=True)
    same(F.embedding_bag, index, table, torch.tensor([0, 4]), mode="sum", per_sample_weights=data(8))


def test_a_wrong_value_is_told() -> None:
    try:
        same(lambda x: F.relu(x) + (0.01 if x.device.type == "jax" else 0.0), data(4))
    except AssertionError:
        return
    raise AssertionError("a result that is 0.01 off was taken for CPU's")
