"""Views, writes through them and copies, compared with the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ampcheck.jax_device.storage.arrays import storage_of

Tensor = torch.Tensor
# No float comes to a small or unsigned integer, and no bits to a float: what these give is not PyTorch's promise.
SHAPES = [(), (0,), (3,), (2, 3), (3, 1, 2), (4, 4), (1,), (2, 0, 3)]
DTYPES = [torch.float32, torch.int32, torch.float64, torch.bool, torch.bfloat16, torch.int64]


def _sliced(t: Tensor, a: int, b: int) -> Tensor:
    d = a % t.dim()
    return t[(slice(None),) * d + (slice(b % 3, None, 1 + b % 2),)]


VIEWS: list[Callable[[Tensor, int, int], Tensor]] = [
    lambda t, a, b: t.unsqueeze(a % (t.dim() + 1)),
    lambda t, a, b: t.select(a % t.dim(), b % t.shape[a % t.dim()]),
    lambda t, a, b: t.narrow(a % t.dim(), b % (t.shape[a % t.dim()] + 1), 0),
    _sliced,
    lambda t, a, b: t.transpose(a % t.dim(), b % t.dim()),
    lambda t, a, b: t.permute(sorted(range(t.dim()), key=lambda k: (k * 7 + b) % 5)),
    lambda t, a, b: t.unfold(a % t.dim(), 2, 1 + b % 2),
    lambda t, a, b: t.expand([3 if n == 1 else -1 for n in t.shape]),
    lambda t, a, b: t.diagonal(b % 3 - 1, 0, 1),
    lambda t, a, b: t.view(-1),
    lambda t, a, b: t.squeeze(),
    lambda t, a, b: t.view({torch.int32: torch.int16, torch.int16: torch.int32}.get(t.dtype, t.dtype)),
    lambda t, a, b: t.as_strided((2, 2), (b % 3, 1 + b % 2), a % 2),
    lambda t, a, b: t.chunk(2, a % t.dim())[0],
    lambda t, a, b: t.detach(),
    lambda t, a, b: t.T if t.dim() == 2 else t.movedim(0, -1),
]
WRITES: list[Callable[[Tensor, Tensor, int], Any]] = [
    lambda t, o, v: t.fill_(v),
    lambda t, o, v: t.zero_(),
    lambda t, o, v: t.add_(v),
    lambda t, o, v: t.mul_(o),
    lambda t, o, v: t.copy_(o),
    lambda t, o, v: t.copy_(o.cpu(), non_blocking=True),
    lambda t, o, v: t.copy_(o.to(torch.float64)),
    lambda t, o, v: t.copy_(torch.full(tuple(t.shape), v)),
    lambda t, o, v: t.__setitem__(..., v),
    lambda t, o, v: torch.add(t, v, out=t),
    lambda t, o, v: torch.mul(o, v, out=t),
    lambda t, o, v: t.clamp_(-2, 2),
    lambda t, o, v: t.sub_(t),
    lambda t, o, v: t.resize_(t.shape),
    lambda t, o, v: t.resize_(2, 3).zero_() if t.storage_offset() == 0 and t.is_contiguous() else t,
    lambda t, o, v: setattr(t, "data", o),
    lambda t, o, v: t.set_(o),
    lambda t, o, v: t.t_(),
    lambda t, o, v: t.transpose_(0, -1),
    lambda t, o, v: t.squeeze_(),
    lambda t, o, v: t.unsqueeze_(0),
    lambda t, o, v: t.detach_(),
]


def _places(t: Tensor) -> list[int]:
    """The byte of the storage at which each element lies."""
    width = t.element_size()
    count = t.untyped_storage().nbytes() // width
    flat = torch.arange(count, dtype=torch.int64) * width
    return [int(p) for p in flat.as_strided(t.shape, t.stride(), t.storage_offset()).reshape(-1)]


def defined(t: Tensor, other: Tensor) -> bool:
    """Whether PyTorch says what a write to t from `other` gives: no element is written twice, or read after written.

    Expanded tensors are left in, because for these PyTorch raises an error.
    """
    expanded = any(n > 1 and not step for n, step in zip(t.shape, t.stride(), strict=True))
    places = _places(t)
    if not expanded and len(set(places)) < len(places):
        return False
    if t.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return True
    theirs = _places(other)
    exact = t.dtype is other.dtype and t.is_set_to(other)
    return exact or not {p // 8 for p in places} & {p // 8 for p in theirs}


def outcome(run: Callable[[], Any]) -> Any:
    """What a call returns, or the error it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an out= tensor is resized, of which both warn in words of their own
            return run()
    except (RuntimeError, IndexError, NotImplementedError, ZeroDivisionError) as error:
        return error


def assert_same(host: Tensor, device: Tensor) -> None:
    """The same sizes, strides, offset, dtype and values."""
    for name in ("shape", "dtype"):
        assert getattr(device, name) == getattr(host, name)
    assert (device.stride(), device.storage_offset()) == (host.stride(), host.storage_offset())
    torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0, equal_nan=True)


class Machine(RuleBasedStateMachine):
    """Tensors made, viewed and written on the CPU and on the device at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: list[tuple[Tensor, Tensor]] = []

    @rule(shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES))
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        host = (torch.arange(torch.Size(shape).numel()) % 5 - 2).reshape(shape).to(dtype)
        self.pool.append((host, host.to("jax")))

    @precondition(lambda self: self.pool)
    @rule(which=st.integers(0, 40), op=st.sampled_from(VIEWS), a=st.integers(0, 5), b=st.integers(0, 5))
    def view(self, which: int, op: Callable[..., Tensor], a: int, b: int) -> None:
        host, device = self.pool[which % len(self.pool)]
        mine, theirs = outcome(lambda: op(host, a, b)), outcome(lambda: op(device, a, b))
        if isinstance(mine, Exception) or isinstance(theirs, Exception):
            assert isinstance(mine, Exception), theirs
            assert isinstance(theirs, Exception), mine
            return
        self.pool.append((mine, theirs))
        assert_same(mine, theirs)

    @precondition(lambda self: self.pool)
    @rule(which=st.integers(0, 40), other=st.integers(0, 40), op=st.sampled_from(WRITES), value=st.integers(-3, 3))
    def write(self, which: int, other: int, op: Callable[..., Any], value: int) -> None:
        host, device = self.pool[which % len(self.pool)]
        given, taken = self.pool[other % len(self.pool)]
        if not defined(host, given):
            return
        mine, theirs = outcome(lambda: op(host, given, value)), outcome(lambda: op(device, taken, value))
        assert isinstance(mine, Exception) is isinstance(theirs, Exception), (mine, theirs)
        for pair in self.pool:
            assert_same(*pair)


def _run(examples: int, *phases: Phase) -> None:
    limits = settings(
        max_examples=examples,
        stateful_step_count=12,
        deadline=None,
        phases=phases,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=limits)


def test_views_and_writes_against_the_cpu() -> None:
    _run(40, Phase.generate)


def test_formats_and_bits() -> None:
    host = torch.arange(24.0).reshape(1, 2, 3, 4)
    device = host.to("jax")
    for run in (
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: torch.empty_like(t.contiguous(memory_format=torch.channels_last)).zero_(),
        lambda t: t.contiguous(memory_format=torch.channels_last).clone(),
        lambda t: t.contiguous(memory_format=torch.channels_last).contiguous(),
        lambda t: t.contiguous(memory_format=torch.channels_last).bfloat16(),
        lambda t: t.permute(3, 1, 0, 2).clone(),
        lambda t: t.expand(3, 2, 3, 4).clone(),
        lambda t: torch.empty(1, 2, 3, 4, memory_format=torch.channels_last, device=t.device).zero_(),
        lambda t: t.clone().resize_(1, 4, 2, 3, memory_format=torch.channels_last),
        lambda t: t[:, :, ::2].to(torch.int16),
    ):
        assert_same(run(host), run(device))
    for moved in (host.permute(0, 2, 3, 1), host[:, :, 1:, ::2], host.expand(2, 2, 3, 4)):
        assert_same(moved.clone(), moved.to("jax"))
        assert_same(moved.clone(), moved.to("jax").cpu())
    assert_same(host.to(memory_format=torch.channels_last), host.to("jax", memory_format=torch.channels_last))
    pairs = torch.arange(8.0).reshape(2, 2, 2).to("jax")
    numbers = torch.view_as_complex(pairs)
    numbers.real.add_(10)
    numbers.imag[0, 0] = -1
    assert pairs[0, 0].tolist() == [10, -1]
    assert torch.view_as_real(numbers)[1, 1].tolist() == [16, 7]
    turned = numbers.conj()
    assert turned.is_conj()
    turned.mul_(1j)
    assert_same(torch.view_as_complex(pairs.cpu()), numbers)
    assert turned.resolve_conj().cpu()[0, 1].item() == numbers[0, 1].item().conjugate()
    assert turned.imag.is_neg()
    assert turned.imag.cpu()[0, 1].item() == -numbers[0, 1].item().imag


def test_a_copy_of_what_is_seen_under_another_dtype() -> None:
    """A storage of floats seen as integers is copied as integers, whichever is seen first."""
    for device in ("cpu", "jax"):
        x = torch.tensor([1.0, -2.0], device=device)
        copy = x.view(torch.int32).clone()
        assert copy.tolist() == [0x3F800000, -0x40000000]
        assert x.clone().tolist() == [1.0, -2.0]
        copy.view(torch.float32).add_(1)
        assert x.tolist() == [1.0, -2.0]


def test_writes_to_expanded_tensors() -> None:
    for device in ("cpu", "jax"):
        wide = torch.zeros(1, device=device).expand(3)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            wide.add_(1)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            wide.copy_(torch.ones(3))
        wide.fill_(4)
        assert wide.tolist() == [4, 4, 4]


def test_storages_say_what_they_hold() -> None:
    x = torch.zeros(3, 4, device="jax", dtype=torch.float64)
    assert x.untyped_storage().nbytes() == x.nbytes == 96
    assert x[1:].untyped_storage().nbytes() == 96
    assert torch.zeros(0, device="jax").untyped_storage().nbytes() == 0
    assert x.data_ptr() == x.view(-1).data_ptr() != 0
    assert x[1].data_ptr() - x.data_ptr() == 32
    assert x.clone().data_ptr() != x.data_ptr()
    assert x.is_set_to(x.view(3, 4))
    assert not x.is_set_to(x.clone())
    held = storage_of(x)
    x.data = torch.ones(2, device="jax", dtype=torch.float64)
    assert storage_of(x) is not held
    assert torch.zeros(2).to("jax").cpu().resize_(5).shape == (5,)  # no copy holds on to NumPy's memory
    host = torch.zeros(2)
    host.to("jax")
    assert host.resize_(5).shape == (5,)
    with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
        torch.ones(2, device="jax", requires_grad=True).resize_(3)
