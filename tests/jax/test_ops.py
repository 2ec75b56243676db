"""Ops of the jax device beside the CPU, where PyTorch's database (test_op_database.py) has no samples.

Here are promotion, lazy conjugates, empty tensors, masks, errors of values, convolutions, state, and what calls share.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known
from ampcheck.jax_device import jit
from suites.jit.test_faketensor import MIXED, mixed_calls, raises
from tests.jax.agreement import INF, NAN, close, moved, same

check = partial(partial, same)
"""A check for each call: values, and gradients of what requires them."""


def grown(values: Tensor) -> Tensor:
    return values.clone().requires_grad_()


PLAIN = torch.linspace(-2, 3, 24).reshape(2, 3, 4)
BASE = torch.linspace(0, 1, 60).reshape(3, 4, 5)
ROWS = torch.tensor([[0, 2], [-1, 1]])
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, True]])


def assigned(base: Tensor) -> Tensor:
    out = base.clone()
    out[:, 1] = 7
    out[MASK.to(out.device)] += 1
    out[..., -1] = out[..., 0]
    return out


torch.manual_seed(0)
SQUARE = torch.randn(3, 4, 4, dtype=torch.float64) + 2 * torch.eye(4, dtype=torch.float64)


def test_a_wrong_value_dtype_or_place_is_seen() -> None:
    right = torch.index_put(BASE, [MASK], torch.tensor(7.0))
    wrong = torch.index_put(BASE.to("jax"), [MASK.long().to("jax")], torch.tensor(7.0, device="jax"))
    for found, expected in ((wrong, right), (PLAIN.to("jax") + 1e-3, PLAIN), (PLAIN.double().to("jax"), PLAIN)):
        with pytest.raises(AssertionError):
            close(found, expected)


def test_low_precision_accumulates_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16, device="jax")  # in bfloat16, 256 + 1 is 256
    nowhere, start = torch.zeros(4096, dtype=torch.int64, device="jax"), torch.zeros_like(ones[:1])
    adds = start.index_add, start.scatter_add
    for total in (ones.sum(), ones.nansum(), ones.cumsum(0)[-1], *(add(0, nowhere, ones) for add in adds)):
        assert total.item() == 4096


def test_matrices_that_cannot_be_decomposed() -> None:
    bad, singular = torch.diag(torch.tensor([1.0, 2.0, -1.0, 3.0])), torch.diag(torch.tensor([1.0, 0.0, 2.0]))
    same(lambda a: torch.linalg.cholesky_ex(a)[1], torch.stack([bad, bad.abs(), -bad]))
    same(lambda a: torch.linalg.inv_ex(a)[1], singular)
    for function, values, message in (
        (torch.linalg.cholesky, bad, "leading minor of order 3 is not positive-definite"),
        (torch.linalg.inv, singular, "The diagonal element 2 is zero"),
        (lambda a: torch.linalg.solve(a, a[0]), singular, "the input matrix is singular"),
    ):
        for device in ("cpu", "jax"):
            with pytest.raises(torch.linalg.LinAlgError, match=message):
                function(values.to(device))
    with pytest.raises(torch.linalg.LinAlgError, match=r"\(Batch element 1\)"):
        torch.linalg.cholesky(torch.stack([bad.abs(), bad]).to("jax"))
    with pytest.raises(NotImplementedError, match="\"linalg_cholesky_ex\" not implemented for 'Half'"):
        torch.linalg.cholesky(bad.half().to("jax"))


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return data(*shape, seed=seed).requires_grad_()


WORDS, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 7])
ROW = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0]])
NOTHING = torch.zeros(0, dtype=torch.int64)
FACTORS = torch.linalg.lu_factor(2 * torch.eye(3) + 1j * torch.arange(9.0).view(3, 3).sin())
SIDE, ZETAS = torch.ones(3, 2) * (1 + 2j), torch.tensor([-8, 9, 0, 5])
IMAGE, PART = torch.arange(216).mul(97).remainder(256).byte().view(1, 3, 8, 9), torch.linspace(0.02, 0.98, 9).double()
CALLS = {
    "masks": [
        *(
            check(torch.index_put, grown(BASE), where, values, accumulate)
            for accumulate in (False, True)
            for where, values in (
                ([ROWS], grown(torch.ones(2, 2, 4, 5))),
                ([MASK], grown(torch.linspace(1, 2, 25).reshape(5, 5))),
                ([MASK], torch.tensor(7.0)),
                ([MASK, torch.tensor([1, 1, 2, 3, 4])], torch.arange(5.0)),
            )
        ),
        check(assigned, grown(BASE)),
        check(lambda base, mask: base[mask, 3], grown(BASE), MASK),
        check(lambda base, rows: base[None, rows, ..., 1], grown(BASE), ROWS),
    ],
    "images of bytes": [
        check(F.interpolate, IMAGE, (5, width), mode=mode, antialias=smooth, align_corners=aligned)
        for mode in ("bilinear", "bicubic")
        for smooth in (False, True)
        for width, aligned in ((13, False), (9, True), (20, True))
    ],
    "reparametrized draws": [
        check(torch._standard_gamma_grad, torch.tensor([0.5, 2, 10]), torch.tensor([0.3, 1.5, 11]), loose=20),
        *(
            check(torch._dirichlet_grad, PART, scale * PART, torch.full_like(PART, scale), loose=2e4)
            for scale in (0.1, 2, 300)  # the CPU's has 3 digits
        ),
    ],
    "factors of complex matrices": [
        check(torch.linalg.lu_solve, *FACTORS, SIDE if left else SIDE.mT, left=left, adjoint=adjoint, loose=8)
        for left in (False, True)
        for adjoint in (False, True)
    ],
    "numbers": [
        *(
            check(lambda x, *ends: torch.linspace(*ends, dtype=x.dtype, device=x.device), kind, *ends)
            for kind in (NOTHING, NOTHING.byte())
            for ends in ((50, 1, 50), (0, 63, 50))
        ),
        *(check(torch.special.zeta, *given) for given in ((ZETAS, -5), (9, ZETAS), (ZETAS, 3.5))),
        check(torch.ops.aten.native_dropout_backward, torch.tensor([INF, 1.0]).half(), torch.tensor([True, True]), 2.0),
    ],
    "rows": [
        *(check(f, ROW, dim) for f in (torch.softmax, torch.log_softmax) for dim in (0, -1)),
        check(torch.logsumexp, torch.zeros(2, 0), dim=1),
        check(torch.cdist, torch.ones(2, 3, requires_grad=True), torch.ones(2, 3), 2.0),  # a gradient at distance 0
        *(check(lambda a: torch.linalg.det(a.mT), grown(values)) for values in (SQUARE, SQUARE.mT)),
        check(lambda v, g: torch._weight_norm(v, g, 0), leaf(5, 3), leaf(5, 1), loose=8),
    ],
    "bags": [
        *(check(F.embedding_bag, WORDS, leaf(10, 4), OFFSETS, mode=m, padding_idx=2) for m in ("sum", "mean", "max")),
        check(F.embedding_bag, WORDS, leaf(10, 4), torch.tensor([0, 4, 8]), mode="mean", include_last_offset=True),
    ],
    "losses": [
        check(F.cross_entropy, leaf(5, 4), torch.full((5,), -100)),
        check(F.cross_entropy, data(0, 4), NOTHING),
        check(F.mse_loss, data(0), data(0)),
        check(F.multilabel_margin_loss, data(4), torch.tensor([1, 0, -1, -1]), reduction="none"),
        check(F.huber_loss, torch.tensor([INF, -INF, 1.0, NAN], requires_grad=True), torch.zeros(4)),
        check(F.binary_cross_entropy_with_logits, torch.tensor([-200.0, 200.0, 0.0]), torch.tensor([1.0, 0.0, 0.3])),
    ],
}


@pytest.mark.parametrize("family", CALLS)
def test_values_and_gradients(family: str) -> None:
    for call in CALLS[family]:
        call()


REFUSED: dict[str, tuple[Any, type[Exception], Callable[[Tensor, Tensor], Any]]] = {
    "index": (7, IndexError, lambda x, i: x[i]),
    "gather": (-1, RuntimeError, lambda x, i: x.gather(0, i)),
    "scatter": (7, RuntimeError, lambda x, i: x.clone().scatter_(0, i, 1.0)),
    "index_put": (-5, IndexError, lambda x, i: x.clone().index_put_((i,), x[:1])),
    "index_add": (7, IndexError, lambda x, i: x.clone().index_add_(0, i, x[:1])),
    "embedding": (-1, IndexError, lambda x, i: F.embedding(i, x[:, None])),
    "cross_entropy": (4, IndexError, lambda x, i: F.cross_entropy(x[None], i)),
    "one_hot": (4, RuntimeError, lambda x, i: F.one_hot(i, 4)),
    "division": (0, RuntimeError, lambda x, i: x.long() // i),
}


@pytest.mark.filterwarnings("ignore:jit runs:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_the_cpu_refuses(name: str, value_checks: None) -> None:
    """With checks on they raise the CPU's error, in `jit` before anything is written; others and -100 do not."""
    wrong, error, function = REFUSED[name]
    x, right, count = data(4).to("jax"), torch.tensor([1]).to("jax"), torch.zeros((), device="jax")

    def counting(x: Tensor, i: Tensor) -> Tensor:
        count.add_(1)
        return function(x, i)

    step = jit(counting)
    for call in (function, step):
        close(call(x, right), function(x.cpu(), right.cpu()))
        with pytest.raises(error):
            call(x, right - 1 + wrong)
    assert count.item() <= 2  # the eager run counts before it raises
    with pytest.raises(error):
        function(x.cpu(), torch.tensor([wrong]))
    torch.jax.set_checks(False)
    function(x, right - 1 + wrong)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x.long() ** n,
        lambda x, n: x.to(torch.int8).clamp(max=n * -300),
        lambda x, n: x.byte().index_fill(0, x.long() - 1, n * 300),
    ],
    ids=["pow", "clamp", "index_fill"],
)
def test_a_number_that_does_not_fit_is_refused_after_one_that_did(function: Callable[[Tensor, int], Tensor]) -> None:
    for x in (torch.tensor([1.0]), torch.tensor([1.0], device="jax")):
        function(x, 0)
        with pytest.raises(RuntimeError, match=r"not allowed|overflow"):
            function(x, -1)


LAST, LAST_3D = torch.channels_last, torch.channels_last_3d
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


@pytest.mark.parametrize(("name", "layout"), [("conv2d", LAST), ("conv_transpose2d", LAST), ("conv3d", LAST_3D)])
def test_convolutions_of_channels_last(name: str, layout: torch.memory_format) -> None:
    """Results and gradients have the CPU's strides: the image's or the kernel's decide, in programs, too."""
    dims, convolve = int(name[-2]), getattr(F, name)

    def step(x: Tensor, w: Tensor) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        out = convolve(x, w)
        return out.detach(), *torch.autograd.grad(out.square().sum(), (x, w))

    image, kernel = (data(4, 4, *(n,) * dims) for n in (5, 3))
    for x in (image, image.contiguous(memory_format=layout)):
        for w in (kernel, kernel.contiguous(memory_format=layout)):
            expected = step(x, w)
            there = moved((x, w))
            compiled = torch.compile(convolve, backend="jax", dynamic=False)
            for found in (step(*there), jit(step)(*there), (compiled(*there),)):
                assert [t.stride() for t in found] == [t.stride() for t in expected[: len(found)]]
                close(found, expected[: len(found)], 32)


def test_ctc_loss_is_compiled() -> None:
    """Its table's size follows from the lengths, so that it can be, although PyTorch tags it otherwise."""
    targets, lengths = torch.tensor([[1, 2, 3]], device="jax"), (torch.tensor([7]), torch.tensor([3]))

    @partial(jit, fullgraph=True)
    def step(scores: Tensor) -> Tensor:
        return F.ctc_loss(scores.log_softmax(2), targets, *lengths)

    assert torch.isfinite(step(torch.zeros(7, 1, 5, device="jax")))


@pytest.mark.filterwarnings("ignore")  # ops of the database warn of many things
def test_two_dtypes_that_the_cpu_refuses() -> None:
    host = DeviceAmp(known()["cpu"], "bf16")
    refused = [(op, *call) for op in MIXED for call in mixed_calls(host, op) if "outside of" in call[0]]
    assert len(refused) > 100
    taken = [(op, what) for op, what, call, given in refused if not raises(call, [x.detach().to("jax") for x in given])]
    assert taken == []
