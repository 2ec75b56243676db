"""What users of other devices expect of the jax device, beside its ops."""

from __future__ import annotations

import io
import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.jax_device import from_jax, jit
from ampcheck.jax_device.storage.arrays import storage_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's imports


def test_torch_compile_without_a_backend_compiles_with_jax() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to("jax")
    x = torch.randn(2, 4, device="jax")
    with torch.autocast("jax", dtype=torch.bfloat16):
        out = torch.compile(model)(x)
        expected = model(x)
    assert out.device.type == "jax"
    torch.testing.assert_close(out, expected)
    out.float().sum().backward()
    assert model.weight.grad is not None
    assert torch.equal(torch.compile(lambda: torch.ones(3, device="jax") + 1)().cpu(), torch.full((3,), 2.0))


def test_torch_compile_without_a_backend_leaves_cpu_tensors_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx  # noqa: PLC0415  # seconds, for one test

    graphs = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, *_, **__: graphs.append(graph) or graph.forward)
    torch.compile(lambda x: x * 3)(torch.ones(2))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, 300),
        (torch.int8, 200.5),
        (torch.int32, 2**40),
        (torch.int64, math.inf),
        (torch.float16, 1e6),
        (torch.bfloat16, 1e39),
        (torch.float32, 1 + 2j),
    ],
)
def test_fills_refuse_what_the_dtype_cannot_hold_as_the_cpu_does(dtype: torch.dtype, value: complex) -> None:
    def fills(device: str) -> list[Callable[[], torch.Tensor]]:
        tensor, mask = torch.zeros(2, dtype=dtype, device=device), torch.tensor([True, False], device=device)
        return [
            lambda: torch.full((2,), value, dtype=dtype, device=device),
            lambda: tensor.fill_(value),
            lambda: tensor.masked_fill_(mask, value),
        ]

    for fill, expected in zip(fills("jax"), fills("cpu"), strict=True):
        with pytest.raises(RuntimeError) as error:
            expected()
        with pytest.raises(RuntimeError, match=re.escape(str(error.value))):
            fill()


def test_storages_say_whether_they_are_of_the_device() -> None:
    for device in ("jax", "cpu"):
        untyped = torch.ones(2, device=device).untyped_storage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TypedStorage is deprecated
            typed = torch.TypedStorage(wrap_storage=untyped, dtype=torch.float32)
            found = typed.is_jax
        assert untyped.is_jax is found is (device == "jax")
        assert untyped.jax().is_jax
        assert bytes(untyped.jax().cpu().tolist()) == bytes(untyped.cpu().tolist())


def slow(seconds: float) -> torch.Tensor:
    """A tensor of the device that is computed that long after this returns."""

    def wait(x: Any) -> Any:
        time.sleep(seconds)
        return np.asarray(x)

    call = jax.jit(lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    return from_jax(call(jnp.ones(3)))


def test_events_time_and_wait_for_the_work_before_them() -> None:
    stream = torch.Stream("jax")
    first, last = (torch.Event("jax", enable_timing=True) for _ in range(2))
    assert first.event_id == 0
    first.record(stream)
    held = slow(0.2)
    last.record()
    last.synchronize()
    last.wait(stream)
    assert last.query()
    assert 150 < first.elapsed_time(last) < 5000
    assert held.tolist() == [1, 1, 1]
    assert 0 < first.event_id < last.event_id
    untimed, never = torch.Event("jax"), torch.Event("jax", enable_timing=True)
    untimed.record()
    for event in (untimed, never):
        with pytest.raises(ValueError, match="two recorded events made with enable_timing=True"):
            first.elapsed_time(event)


def test_streams_are_one_and_wait() -> None:
    stream, other = torch.Stream("jax"), torch.Stream(device="jax:0")
    assert stream == other == torch.accelerator.current_stream() == torch.jax.current_stream() == torch.Stream(0)
    assert (stream.device, repr(stream)) == (
        torch.device("jax:0"),
        "torch.Stream device_type=jax, device_index=0, stream_id=0",
    )
    for wait in (torch.accelerator.current_stream().synchronize, torch.jax.synchronize):
        held = slow(0.1)
        wait()
        assert storage_of(held).array.is_ready()
    with torch.accelerator.current_stream() as entered:
        event = entered.record_event()
        stream.wait_event(event)
        stream.wait_stream(other)
    assert stream.query()
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert issubclass(torch.jax.Event, torch.Event)
    for make in (torch.Stream, torch.Event, torch.Generator):
        with pytest.raises(RuntimeError, match="invalid device ordinal 1: there is one jax device"):
            make("jax:1")


def test_classes_that_are_derived_from_torch_event_and_generator_are_their_own() -> None:
    class Mine(torch.Event):
        pass

    class Drawn(torch.Generator):
        pass

    assert type(Mine("jax")) is Mine
    assert type(Drawn()) is Drawn
    assert isinstance(Drawn(), torch.Generator)
    assert not isinstance(torch.Generator(), Drawn)
    assert torch.Generator().device.type == "cpu"


def test_metadata_of_a_backend_is_saved_with_a_tensor() -> None:
    noted = {"version_number": True, "format_number": True}
    x = torch.zeros(2, device="jax")
    assert torch._utils.get_tensor_metadata(x) == {}
    torch._utils.set_tensor_metadata(x, noted)
    file = io.BytesIO()
    torch.save({"x": x, "lazy": torch.zeros(2, dtype=torch.complex64, device="jax").conj()}, file)
    for location, expected in ((None, noted), ("jax:0", noted), ("cpu", {})):
        file.seek(0)
        found = torch.load(file, map_location=location, weights_only=True)
        assert torch._utils.get_tensor_metadata(found["x"]) == expected
        assert found["lazy"].is_conj()
    del x
    assert torch._utils.get_tensor_metadata(torch.zeros(2, device="jax")) == {}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_integers(dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max
    x = torch.full((2,), largest, dtype=dtype, device="jax")
    assert x.tolist() == torch.zeros(2, dtype=dtype, device="jax").fill_(largest).tolist() == [largest, largest]
    assert (x + 1).tolist() == [0, 0]
    assert (x - x).dtype is dtype
    assert (x.to(torch.float64) / 2).tolist() == [largest / 2] * 2
    for number in (largest + 1, -largest - 2):
        with pytest.raises((RuntimeError, OverflowError)) as error:
            torch.full((2,), number, dtype=dtype)
        with pytest.raises(error.type, match=re.escape(str(error.value))):
            torch.full((2,), number, dtype=dtype, device="jax")
    for op in (torch.add, torch.eq, torch.bitwise_and, lambda *tensors: torch.cat(tensors)):
        with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64 types is not supported"):
            op(x, torch.ones(2, dtype=torch.int64, device="jax"))


def test_a_gradient_of_the_cpu_is_refused() -> None:
    class OnTheCpu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad.cpu()

    w = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(
        RuntimeError, match="assign a gradient with device type 'cpu' to a tensor with device type 'jax'"
    ):
        w.grad = torch.ones(2)
    for backward in (lambda: (w * 2).backward(torch.ones(2)), lambda: OnTheCpu.apply(w).sum().backward()):
        with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device jax:0 but got cpu"):
            backward()
    assert w.grad is None
    w.cpu().sum().backward()  # through a copy, it comes back
    assert w.grad is not None
    assert w.grad.device.type == "jax"


def test_the_profiler_shows_ops_of_the_device(capfd: pytest.CaptureFixture[str]) -> None:
    activities = torch.profiler.ProfilerActivity
    x = torch.randn(8, 8, device="jax", requires_grad=True)
    ways: list[Callable[[], Any]] = [
        torch.profiler.profile,
        lambda: torch.profiler.profile(activities=[activities.CPU, activities.PrivateUse1]),
        lambda: torch.autograd.profiler.profile(use_device="jax"),
    ]
    for way in ways:
        with way() as profile, torch.profiler.record_function("mine"):
            (x @ x).sum().backward()
        assert {"mine", "aten::mm", "aten::sum", "autograd::engine::evaluate_function: MmBackward0"} <= {
            event.key for event in profile.key_averages()
        }
    assert "not enabled" not in capfd.readouterr().err


def _cell() -> tuple[Callable[..., Any], list[torch.Tensor]]:
    torch.manual_seed(0)
    return torch.nn.GRUCell(3, 4).to("jax"), [torch.randn(2, 3, device="jax"), torch.randn(2, 4, device="jax")]


def _convolution(name: str, *rest: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    tensors = [torch.randn(1, 2, 5, 5, device="jax"), torch.randn(2, 2, 3, 3, device="jax")]
    return lambda x, w: getattr(torch, name)(x, w, *rest), tensors


FAKED = {
    "gru_cell": _cell,
    "cudnn_convolution": lambda: _convolution("cudnn_convolution", (0, 0), (1, 1), (1, 1), 1, False, False, True),
    "cudnn_convolution_transpose": lambda: _convolution(
        "cudnn_convolution_transpose", (0, 0), (0, 0), (1, 1), (1, 1), 1, False, False, True
    ),
    "cudnn_convolution_relu": lambda: _convolution("cudnn_convolution_relu", None, (1, 1), (0, 0), (1, 1), 1),
    "histc": lambda: (lambda x: torch.histc(x, 4), [torch.randn(9, device="jax")]),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * n.startswith("cudnn")) for n in FAKED])
def test_ops_that_pytorch_has_no_meta_kernel_for_can_be_compiled(name: str) -> None:
    op, tensors = FAKED[name]()
    expected = op(*tensors)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(op, fullgraph=True)(*tensors), expected)
    if name != "histc":  # of which PyTorch's fake tensors run the kernel, on sizes that are numbers
        torch.testing.assert_close(torch.compile(op, fullgraph=True, dynamic=True)(*tensors), expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = op(*(torch.empty_like(t) for t in tensors))
    assert (fake.shape, fake.device, fake.dtype) == (expected.shape, expected.device, expected.dtype)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.preserve_format, torch.channels_last])
def test_empty_like_has_the_strides_of_the_cpus(format: torch.memory_format) -> None:
    for view in (
        lambda x: x,
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x[:, :, ::2],
        lambda x: x.expand(2, -1, -1, -1),
    ):
        there, here = (view(torch.zeros(1, 2, 4, 4, device=device)) for device in ("cpu", "jax"))
        made = torch.empty_like(here, memory_format=format, dtype=torch.float16)
        assert made.stride() == torch.empty_like(there, memory_format=format).stride()
        assert (made.dtype, made.device.type) == (torch.float16, "jax")
    with pytest.raises(NotImplementedError, match=r"has no torch\.sparse_coo tensors, only strided ones"):
        torch.empty_like(here, layout=torch.sparse_coo)


def test_jit_sees_generators_of_no_kind() -> None:
    with pytest.raises(RuntimeError, match="an op inside of jit was given a generator"):
        jit(lambda: torch.poisson(torch.ones(2, device="jax"), generator=torch.Generator("jax")))()


def test_fused_convolutions_of_cudnn() -> None:
    x, w, bias = (torch.randn(*size, device="jax") for size in ((1, 2, 5, 5), (3, 2, 3, 3), (3,)))
    z = torch.randn(1, 3, 3, 3, device="jax")
    plain = torch.conv2d(x, w, bias)
    fused = torch.cudnn_convolution_relu(x, w, bias, (1, 1), (0, 0), (1, 1), 1)
    torch.testing.assert_close(fused, plain.relu())
    added = torch.cudnn_convolution_add_relu(x, w, z, 0.5, bias, (1, 1), (0, 0), (1, 1), 1)
    torch.testing.assert_close(added, (plain + 0.5 * z).relu())
    assert torch.equal(
        torch.cudnn_convolution_add_relu(x, w, z, None, bias, (1, 1), (0, 0), (1, 1), 1), (plain + z).relu()
    )
