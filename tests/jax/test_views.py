"""Views, writes through them and copies, compared with the CPU."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ampcheck.jax_device.storage.arrays import storage_of
from tests.jax.agreement import INF, assert_same, compiled, outcome

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


class Machine(RuleBasedStateMachine):
    """Tensors made, viewed and written on the CPU and on the device at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: list[tuple[Tensor, Tensor]] = []

    @rule(shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES))
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        host = (torch.arange(torch.Size(shape).numel()) % 5 - 2).reshape(shape).to(dtype).clone()
        self.pool.append((host, host.to("jax")))

    @precondition(lambda self: self.pool)
    @rule(which=st.integers(0, 40), op=st.sampled_from(VIEWS), a=st.integers(0, 5), b=st.integers(0, 5))
    def view(self, which: int, op: Callable[..., Tensor], a: int, b: int) -> None:
        host, device = self.pool[which % len(self.pool)]
        mine, theirs = outcome(lambda: op(host, a, b)), outcome(lambda: op(device, a, b))
        if not isinstance(mine, Exception):
            self.pool.append((mine, theirs))
        assert isinstance(mine, Exception) is isinstance(theirs, Exception), (mine, theirs)
        assert_same(*self.pool[-1][::-1])

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
            assert_same(*pair[::-1])


def test_views_and_writes_against_the_cpu() -> None:
    options = {"derandomize": True, "database": None, "suppress_health_check": list(HealthCheck), "deadline": None}
    options |= {"phases": (Phase.generate,), "report_multiple_bugs": False}
    limits = settings(max_examples=25, stateful_step_count=12, **options)
    run_state_machine_as_test(Machine, settings=limits)


def image(device: str) -> Tensor:
    return torch.arange(24.0).reshape(1, 2, 3, 4).to(device)


def _bits(device: str) -> list[Tensor]:
    x = torch.tensor([1.0, -2.0], device=device)
    copy = x.view(torch.int32).clone()
    seen = [copy.clone(), x.clone()]
    copy.view(torch.float32).add_(1)
    return [*seen, copy, x]


def _complex(device: str) -> list[Any]:
    pairs = torch.arange(8.0).reshape(2, 2, 2).to(device)
    numbers = torch.view_as_complex(pairs)
    numbers.real.add_(10)
    numbers.imag[0, 0] = -1
    seen = torch.view_as_real(numbers).clone()
    turned = numbers.conj()
    turned.mul_(1j)
    bits = turned.is_conj(), turned.imag.is_neg(), numbers.is_conj()
    return [seen, pairs, numbers, turned.resolve_conj(), turned.imag.resolve_neg(), *bits]


LAST, WIDE = torch.channels_last, (torch.uint16, torch.uint32, torch.uint64)
REFUSED = [
    *((torch.uint8, 300), (torch.int8, 200.5), (torch.int32, 2**40), (torch.int64, INF)),
    *((torch.float16, 1e6), (torch.bfloat16, 1e39), (torch.float32, 1 + 2j)),
]
BY_DEVICE: dict[str, list[Callable[[str], Any]]] = {
    "formats": [
        lambda d: image(d).contiguous(memory_format=LAST),
        lambda d: torch.arange(24.0).reshape(1, 2, 3, 4).to(d, memory_format=LAST),
        lambda d: torch.empty_like(image(d).contiguous(memory_format=LAST)).zero_(),
        lambda d: image(d).contiguous(memory_format=LAST).clone(),
        lambda d: image(d).contiguous(memory_format=LAST).contiguous(),
        lambda d: image(d).contiguous(memory_format=LAST).bfloat16(),
        lambda d: torch.empty(1, 2, 3, 4, memory_format=LAST, device=d).zero_(),
        lambda d: image(d).resize_(1, 4, 2, 3, memory_format=LAST),
        lambda d: image(d)[:, :, ::2].to(torch.int16),
        *(
            lambda d, view=view, format=format: torch.empty_like(view(image(d)), memory_format=format).zero_()
            for format in (torch.contiguous_format, torch.preserve_format, LAST)
            for view in (Tensor.detach, lambda x: x.permute(0, 2, 3, 1), lambda x: x[:, :, ::2])
        ),
        *(
            lambda d, view=view, back=back: view(image("cpu")).clone().to(d if back else "cpu").to(d)
            for view in (lambda x: x.permute(0, 2, 3, 1), lambda x: x[:, :, 1:, ::2], lambda x: x.expand(2, -1, -1, -1))
            for back in (True, False)
        ),
    ],
    "bits": [_bits, _complex],
    "expanded": [
        lambda d: torch.zeros(1, device=d).expand(3).add_(1),
        lambda d: torch.zeros(1, device=d).expand(3).copy_(torch.ones(3)),
        lambda d: torch.zeros(1, device=d).expand(3).fill_(4),
        lambda d: torch.ones(2, device=d, requires_grad=True).resize_(3),
    ],
    "what a dtype does not hold": [
        *(
            lambda d, t=t, number=number: torch.full((2,), number, dtype=t, device=d)
            for t in WIDE
            for number in (torch.iinfo(t).max + 1, -torch.iinfo(t).max - 2)
        ),
        *(lambda d, t=t, v=v: torch.full((2,), v, dtype=t, device=d) for t, v in REFUSED),
        *(lambda d, t=t, v=v: torch.zeros(2, dtype=t, device=d).fill_(v) for t, v in REFUSED),
        *(
            lambda d, t=t, v=v: torch.zeros(2, dtype=t, device=d).masked_fill_(torch.tensor([True, False]).to(d), v)
            for t, v in REFUSED
        ),
    ],
}


@pytest.mark.parametrize("kind", BY_DEVICE)
def test_a_function_of_the_device_gives_what_it_gives_on_the_cpu(kind: str) -> None:
    """Values and layouts are the same; an error has the same words."""
    for function in BY_DEVICE[kind]:
        here, there = outcome(function, "cpu"), outcome(function, "jax")
        assert_same(there, here)
        assert not isinstance(here, Exception) or str(there).split("\n")[0] == str(here).split("\n")[0]


PARTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "row": lambda t, i: t[i],
    "column": lambda t, i: t[:, i],
    "block": lambda t, i: t[2:5, i : i + 1],
    "turned block": lambda t, i: t[i : i + 1, 1:4].t(),
    "every second of a column": lambda t, i: t[::2, i],
    "diagonal": lambda t, i: t[i - i % 2 :].diagonal()[:1],
}


@pytest.mark.parametrize("name", PARTS)
def test_reading_and_writing_a_slice_makes_no_program_for_each_offset(name: str) -> None:
    host, part = torch.arange(81.0).view(9, 9), PARTS[name]
    device, programs = host.to("jax"), list[int]()
    for i in range(1, 9):
        with compiled() as count:
            for t in (host, device):
                part(t, i).add_(part(t, i - 1) * 2)
                part(t, i).copy_(part(t, i - 1))
            assert torch.equal(part(device, i).cpu(), part(host, i))
        programs += count
    assert_same(device, host)
    assert not any(programs[3:])


def test_storages_say_what_they_hold() -> None:
    x = torch.zeros(3, 4, device="jax", dtype=torch.float64)
    assert x.untyped_storage().nbytes() == x.nbytes == 96
    assert (x[1:].untyped_storage().nbytes(), torch.zeros(0, device="jax").untyped_storage().nbytes()) == (96, 0)
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
