"""Indexing, scattering and putting together on the jax device give CPU's results."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import pytest
import torch

from ampcheck.jax_device.lowerings.indexing import index_put
from tests.jax.agreement import NAN, close, moved, same

BASE = torch.linspace(0, 1, 60).reshape(3, 4, 5)
ROWS, COLUMNS = torch.tensor([[0, 2], [-1, 1]]), torch.tensor([3, 0])
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, True]])


def grown(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


def put(base: torch.Tensor, where: Any, values: Any, accumulate: bool = False) -> torch.Tensor:
    return torch.index_put(base, where, values, accumulate)


def test_reading() -> None:
    for where in (
        (ROWS,),
        (ROWS, COLUMNS),
        (slice(None), COLUMNS),
        (ROWS, slice(None), COLUMNS),
        (MASK,),
        (MASK, COLUMNS[0]),
        (slice(None), slice(None), torch.tensor([True, False, True, False, False])),
        (torch.tensor(1),),
        (torch.zeros(0, dtype=torch.int64),),
        (None, ROWS, ..., 1),
    ):
        same(lambda base, at: base[at], grown(BASE), where)
        same(lambda base, at: base[at], BASE.transpose(0, 1).contiguous().transpose(0, 1), where)


def test_writing() -> None:
    for accumulate in (False, True):
        same(put, grown(BASE), [ROWS], grown(torch.ones(2, 2, 4, 5)), accumulate)
        same(put, grown(BASE), [ROWS, COLUMNS], grown(torch.ones(5)), accumulate)
        same(put, grown(BASE), [MASK], grown(torch.linspace(1, 2, 25).reshape(5, 5)), accumulate)
        same(put, grown(BASE), [MASK], torch.tensor(7.0), accumulate)
        same(put, BASE, [MASK, torch.tensor([1, 1, 2, 3, 4])], torch.arange(5.0), accumulate)
    same(put, torch.zeros(3), [torch.tensor([1, 1, 1])], torch.tensor([1.0, 2.0, 4.0]), True)

    def assigned(base: torch.Tensor) -> torch.Tensor:
        out = base.clone()
        out[:, 1] = 7
        out[MASK.to(out.device)] += 1
        out[..., -1] = out[..., 0]
        return out

    same(assigned, grown(BASE))


def test_a_wrong_place_is_seen() -> None:
    """The index of a mask is where it is true, not the places 0 and 1."""
    wrong = torch.index_put(BASE.to("jax"), [MASK.long().to("jax")], torch.tensor(7.0, device="jax"))
    with pytest.raises(AssertionError, match="not close"):
        close(wrong, put(BASE, [MASK], torch.tensor(7.0)))


def test_masks_inside_jit() -> None:
    values = torch.arange(25.0).reshape(5, 5)
    arrays = [t.numpy() for t in (BASE, MASK, values)]
    found = jax.jit(lambda b, m, v: index_put(b, (m,), v))(*arrays)
    assert torch.equal(torch.from_numpy(found.__array__().copy()), put(BASE, [MASK], values))


def test_slices_by_index() -> None:
    where, source = torch.tensor([2, 0, 2]), torch.linspace(1, 2, 60).reshape(3, 4, 5)
    for dim in (0, -2):
        same(torch.index_select, grown(BASE), dim, where)
        same(torch.index_fill, grown(BASE), dim, where, 3)
    same(torch.index_add, grown(BASE), 0, where, grown(source), alpha=2.5)
    same(torch.index_add, torch.arange(3), 0, where, torch.tensor([5, 6, 7]), alpha=2)
    same(torch.index_copy, grown(BASE), 0, torch.tensor([2, 0, 1]), grown(source))
    same(torch.index_select, torch.tensor(3.0), 0, torch.tensor([0]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "index_reduce.. is in beta")
        for reduce in ("prod", "mean", "amin", "amax"):
            for include_self in (False, True):
                same(torch.index_reduce, BASE, 0, where, source, reduce, include_self=include_self)


def test_gather_and_scatter() -> None:
    where = torch.tensor([[0, 2, 1], [1, 1, 0]])
    base, source = torch.linspace(1, 2, 15).reshape(3, 5), torch.linspace(3, 4, 12).reshape(3, 4)
    for dim in (0, -1):
        same(torch.gather, grown(base), dim, where)
        same(torch.scatter_add, base, dim, where, source)
        same(torch.scatter_add, grown(base), dim, where, grown(source[:2, :3]))
        for reduce in ("sum", "prod", "mean", "amin", "amax"):
            for include_self in (False, True):
                same(torch.scatter_reduce, base, dim, where, source, reduce, include_self=include_self)
    same(torch.scatter, grown(base), 0, torch.tensor([[0, 2], [1, 0]]), grown(source[:2, :2]))
    same(torch.scatter, base, 0, torch.tensor([[0, 2], [1, 0]]), source)
    same(torch.scatter, base, 1, where, 9)
    same(torch.scatter, base, 1, where, 2, reduce="multiply")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The reduce argument of torch.scatter")
        same(torch.scatter, base, 1, where, source, reduce="add")
    same(torch.scatter_reduce, torch.tensor([5, 7]), 0, torch.tensor([0, 0]), torch.tensor([3, 4]), "mean")
    same(torch.gather, torch.tensor(3.0), 0, torch.tensor(0))
    same(torch.gather, base, 0, torch.zeros(0, 2, dtype=torch.int64))


def test_masks() -> None:
    mask = BASE > 0.4
    same(torch.masked_fill, grown(BASE), mask, NAN)
    same(torch.masked_fill, BASE.half(), mask[0, 0], torch.tensor(1.5))
    same(torch.masked_select, grown(BASE), mask[0])
    same(torch.masked_scatter, grown(BASE), mask, grown(torch.arange(60.0)))
    for size in (3, 50):
        same(torch.nonzero_static, mask, size=size)
    same(torch.nonzero, mask)
    same(torch.nonzero, torch.tensor(4))
    same(torch.take, grown(BASE), ROWS)
    same(torch.put, grown(BASE), ROWS, grown(torch.ones(2, 2)), accumulate=True)
    same(torch.repeat_interleave, grown(BASE), torch.tensor([2, 0, 1]), dim=0)


def test_putting_together() -> None:
    same(torch.cat, [grown(BASE), torch.ones(3, 1, 5)], dim=1)
    same(torch.cat, [torch.zeros(0), BASE, BASE.half()], dim=-1)
    same(torch.cat, [torch.ones(2, dtype=torch.int32), torch.ones(2)])
    same(torch.stack, [BASE, BASE.double()], dim=-1)
    same(torch.roll, grown(BASE), (1, -2), (0, 2))
    same(torch.roll, BASE, 7)
    same(torch.flip, grown(BASE), (0, -1))
    same(torch.rot90, grown(BASE), 3, (0, 2))
    same(torch.Tensor.repeat, grown(BASE), 2, 1, 3, 1)
    same(torch.diag_embed, grown(BASE), offset=-1, dim1=0, dim2=2)
    same(torch.squeeze, grown(BASE[:, :1]))
    same(lambda t: t.clone().transpose_(0, 1).unsqueeze_(0).squeeze_(0), grown(BASE))


def test_parts() -> None:
    """Parts of tensors: their gradients, and writing them out of place."""
    same(lambda t: t[1:, ::2, 3], grown(BASE))
    same(lambda t: t[:, 5:], grown(BASE))
    same(lambda t: t.diagonal(1, 1, 2), grown(BASE))
    same(lambda t: t.unfold(2, 3, 1), grown(BASE))
    same(lambda t: t.unfold(1, 2, 2), BASE.bfloat16().requires_grad_())
    same(torch.slice_scatter, grown(BASE), grown(torch.ones(3, 2, 5)), 1, 0, 4, 2)
    same(torch.select_scatter, grown(BASE), grown(torch.ones(3, 5)), 1, -1)
    same(torch.diagonal_scatter, grown(BASE), grown(torch.ones(5, 3)), 1)
    same(torch.as_strided_scatter, grown(BASE), grown(torch.ones(2, 2)), (2, 2), (20, 3), 1)
    same(torch.as_strided_copy, BASE, (2, 2), (1, 7), 3)
    close(torch.split_with_sizes_copy(moved(BASE), [1, 3], 1), torch.split_with_sizes_copy(BASE, [1, 3], 1))
