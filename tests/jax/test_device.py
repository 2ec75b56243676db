"""The device's module, memory, DLPack and errors; what users of other devices expect; threads, forks and buffers."""

import gc
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.checks.sweep import SweepCheck
from ampcheck.devices.registry import known
from ampcheck.jax_device import from_jax, jit, to_jax
from ampcheck.jax_device.storage import arrays
from ampcheck.jax_device.storage.arrays import storage_of
from ampcheck.spec.case import CELLS, Case
from tests.cli_support import PROGRAMS, printed, python
from tests.jax.agreement import doubling, ones, saved, zeros


def test_lists_show_what_the_process_registers(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "lists", "cuda", "jax")
    assert re.search(r"^jax: \d+ \(.*\); the same$", out, re.MULTILINE)
    assert re.search(r"^jax is what the device promises; \d+ registered under AutocastPrivateUse1 ", out, re.MULTILINE)


def test_module() -> None:
    module = torch.get_device_module("jax")
    assert module is torch.jax
    assert module.is_available()
    assert (module.device_count(), module.current_device()) == (1, 0)
    assert module.get_device_name() == jax.local_devices()[0].device_kind
    assert module.get_device_properties("jax:0").platform == "cpu"
    assert {"manual_seed", "set_checks", "synchronize", "Event"} <= {*dir(module)}
    module.set_device("jax:0")
    with module.device(0), module.device_of(torch.ones(1)):
        assert module.current_device() == 0
    assert torch.ones(2, device="jax:0").device == torch.device("jax:0")


@pytest.mark.nightly
def test_an_import_after_one_that_failed() -> None:
    first, second = python("-c", PROGRAMS["device-failed_import"]).splitlines()
    assert first.startswith("AttributeError"), first
    assert "__dlpack__" in first
    assert second.startswith("RuntimeError an import of ampcheck.jax_device failed in this process before"), second


LEAF, SPARSE = ones(2, requires_grad=True), torch.nn.Embedding(4, 2, sparse=True, device="jax")
STRIDED, ELSEWHERE = "no sparse tensors: use strided ones", "Expected all tensors to be on the same device"
UNRECORDED, ALONE = "JAX records no peak_bytes_in_use for its cpu", "invalid device ordinal 1: there is one jax device"
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: torch.ones(2, device="jax:1"), RuntimeError, ALONE),
    (lambda: torch.empty(2, device="jax:1"), RuntimeError, ALONE),
    (lambda: torch.arange(2, device="jax:1"), RuntimeError, ALONE),
    (lambda: torch.ones(2).to("jax:1"), RuntimeError, ALONE),
    (lambda: torch.zeros_like(torch.ones(2), device="jax:1"), RuntimeError, ALONE),
    (lambda: torch.Stream("jax:1"), RuntimeError, ALONE),
    (lambda: torch.Event("jax:1"), RuntimeError, ALONE),
    (lambda: torch.Generator("jax:1"), RuntimeError, ALONE),
    (lambda: torch.jax.set_device(1), RuntimeError, ALONE),
    (lambda: torch.accelerator.set_device_index(1), RuntimeError, ALONE),
    (lambda: torch.accelerator.device_index(1).__enter__(), RuntimeError, ALONE),
    (lambda: torch.jax.device("cuda:0"), ValueError, "Expected a jax device, but got: cuda:0"),
    (lambda: torch.jax.get_device_capability(), RuntimeError, "a cpu device has no compute capability"),
    (lambda: torch.jax.max_memory_allocated(), RuntimeError, UNRECORDED),
    (lambda: torch.accelerator.max_memory_allocated(), RuntimeError, UNRECORDED),
    (lambda: torch.accelerator.reset_peak_memory_stats(), RuntimeError, "cannot be reset"),
    (lambda: to_jax(torch.ones(2)), TypeError, "got one on cpu"),
    (lambda: to_jax(LEAF), RuntimeError, "requires grad"),
    (lambda: from_jax(np.ones(2)), TypeError, r"takes a jax\.Array, got ndarray"),
    (lambda: from_jax(jnp.ones(2, jnp.int4)), NotImplementedError, "PyTorch has no dtype for JAX's int4"),
    (lambda: np.from_dlpack(LEAF), BufferError, "require gradient"),
    (lambda: ones(2).numpy(), TypeError, r"can't convert jax:0 device type tensor to numpy\. Use Tensor\.cpu"),
    (lambda: bool(ones(2)), RuntimeError, "Boolean value of Tensor with more than one value is ambiguous"),
    (lambda: torch.equal(ones(2), torch.ones(2)), RuntimeError, "at least two devices, cpu and jax:0"),
    (lambda: ones(2, 2) + torch.ones(2, 2), RuntimeError, ELSEWHERE),
    (lambda: ones(2, 2) @ torch.ones(2, 2), RuntimeError, ELSEWHERE),
    (lambda: torch.cat([ones(2, 2), torch.ones(2, 2)]), RuntimeError, ELSEWHERE),
    (lambda: torch.addbmm(ones(2, 2).half(), ones(1, 2, 2), ones(1, 2, 2)), RuntimeError, "tensors of the same dtype"),
    (lambda: torch.empty(2, dtype=torch.complex32, device="jax"), NotImplementedError, r"no torch\.complex32"),
    (lambda: ones(2, 2).to_sparse(), NotImplementedError, STRIDED),
    (lambda: ones(2, 2).to_sparse_csr(), NotImplementedError, STRIDED),
    (lambda: SPARSE(zeros(1).long()).sum().backward(), NotImplementedError, "no sparse tensors.* sparse=False"),
    (lambda: ones(2, 2).to_mkldnn(), NotImplementedError, "no MKL-DNN tensors: use strided ones"),
    (lambda: torch.quantize_per_tensor(ones(2), 0.1, 0, torch.qint8), NotImplementedError, "no quantized.*use bfloat"),
    (lambda: torch.nested.nested_tensor([ones(2)]).relu(), NotImplementedError, "no strided nested.*layout=torch.j"),
    (lambda: CUDNN_RNN([ones(2, 2)], 1, 2, 2, 2, 0, 1, False, False), NotImplementedError, r"@lower\('_cudnn_rnn"),
    (lambda: ones(2).pin_memory(), RuntimeError, "only dense CPU tensors can be pinned"),
    (lambda: PIN(torch.ones(2), torch.device("cuda")), RuntimeError, "cannot pin memory for cuda"),
]
PIN, CUDNN_RNN = torch.ops.aten._pin_memory, torch.ops.aten._cudnn_rnn_flatten_weight


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_errors_name_what_is_wrong() -> None:
    for call, error, words in REFUSED:
        with pytest.raises(error, match=words):
            call()


def test_like_on_another_device() -> None:
    x = torch.ones(2, 3, device="jax").t()
    for name in ("empty_like", "zeros_like", "ones_like", "rand_like"):
        made = getattr(torch, name)(x, device="cpu")
        assert (made.device.type, made.shape) == ("cpu", x.shape)
    assert torch.empty_like(x, device="meta").stride() == x.stride()
    assert torch.equal(x.new_full((2,), 7, device="cpu"), torch.tensor([7.0, 7.0]))
    assert torch.zeros_like(torch.ones(2), device="jax").device.type == "jax"
    assert torch.equal(x + torch.tensor(2.0), x + 2)  # a number of the CPU's


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("jax")
    torch.accelerator.synchronize()
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    gc.collect()  # what other tests left in circles would be freed meanwhile
    before = torch.accelerator.memory_allocated()
    kept = torch.ones(1000, 1000, device="jax") + 1
    assert torch.accelerator.memory_allocated() - before >= kept.nbytes
    assert torch.jax.memory_allocated() == torch.accelerator.memory_stats()["allocated_bytes.all.current"]
    del kept
    assert torch.jax.memory_allocated() - before < 4_000_000
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    torch.accelerator.empty_cache()


def test_to_and_from_jax() -> None:
    x = torch.ones(3, 4, device="jax")
    array = to_jax(x)
    assert array is storage_of(x).array
    x.zero_()
    assert (float(array.sum()), to_jax(x[1]).shape) == (12, (4,))
    mine = jnp.arange(6.0).reshape(2, 3)
    back = from_jax(mine)
    assert storage_of(back).array is mine
    back.add_(1)
    assert float(mine.sum()) == 15


def test_dlpack() -> None:
    x = torch.arange(1000.0, device="jax") + 1
    array = storage_of(x).array
    seen = np.from_dlpack(x)
    assert seen.ctypes.data == array.unsafe_buffer_pointer()
    assert not seen.flags.writeable
    assert jnp.array_equal(jnp.from_dlpack(x), array)
    alias = torch.from_dlpack(x)
    alias[0] = 50
    assert x[0].item() == 50
    for same in (torch.from_dlpack(x, device="jax"), torch.utils.dlpack.from_dlpack(x)):
        assert same.data_ptr() == x.data_ptr()
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
    assert x.__dlpack_device__() == jax.dlpack.from_dlpack(x).__dlpack_device__()
    capsule = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    capsule.zero_()
    assert x.sum().item() != 0
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(2))).tolist() == [1, 1]


def test_pinning() -> None:
    with pytest.warns(UserWarning, match="JAX gives out no pinned memory"):
        copy = torch.ones(2).pin_memory()
    assert copy.tolist() == [1, 1]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, pin_memory=True)
    with pytest.warns(UserWarning, match="JAX gives out no pinned memory"):
        assert next(iter(data))[0].shape == (2, 2)


def test_a_default_dtype_set_between_calls() -> None:
    whole, before = torch.ones(2, dtype=torch.int64, device="jax"), torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64) * 2:
            torch.set_default_dtype(dtype)
            made = [torch.ones(2, device="jax"), torch.full((2,), 0.5, device="jax"), whole / 2, whole.sin()]
            made += [whole.bool() + 0.5, torch.scalar_tensor(1.0, device="jax")]
            assert {tensor.dtype for tensor in made} == {dtype}
    finally:
        torch.set_default_dtype(before)


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's imports


def test_torch_compile_without_a_backend_leaves_cpu_tensors_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx  # noqa: PLC0415  # seconds, for one test

    graphs = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, *_, **__: graphs.append(graph) or graph.forward)
    torch.compile(lambda x: x * 3)(torch.ones(2))
    assert len(graphs) == 1


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
    assert stream.device == torch.device("jax:0")
    assert repr(stream) == "torch.Stream device_type=jax, device_index=0, stream_id=0"
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
    given = {"x": x, "lazy": torch.zeros(2, dtype=torch.complex64, device="jax").conj()}
    for location, expected in ((None, noted), ("jax:0", noted), ("cpu", {})):
        found = torch.load(saved(given), map_location=location, weights_only=True)
        assert torch._utils.get_tensor_metadata(found["x"]) == expected
        assert found["lazy"].is_conj()
    del x, given
    assert torch._utils.get_tensor_metadata(torch.zeros(2, device="jax")) == {}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_integers_wrap(dtype: torch.dtype) -> None:
    """The CPU adds none."""
    x = torch.full((2,), torch.iinfo(dtype).max, dtype=dtype, device="jax")
    assert (x + 1).tolist() == (x - x).tolist() == [0, 0]
    assert (x - x).dtype is dtype


def test_a_gradient_of_the_cpu_is_refused() -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(RuntimeError, match="a gradient with device type 'cpu' to a tensor with device type 'jax'"):
        w.grad = torch.ones(2)
    for backward in (lambda: (w * 2).backward(torch.ones(2)), lambda: doubling(torch.Tensor.cpu)(w).sum().backward()):
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


HUGE = 1 << 22  # a square of it in float32 is 64 TiB


OUT_OF_MEMORY: dict[str, Callable[[torch.Tensor], object]] = {
    "factory": lambda x: x.new_empty(HUGE, HUGE),
    "random": lambda x: torch.randn(HUGE, HUGE, device="jax"),
    "copy": lambda x: x.expand(HUGE, HUGE).contiguous(),
    "transfer": lambda x: torch.ones(1).expand(HUGE, HUGE).to("jax"),
    "in place": lambda x: x.clone().resize_(HUGE, HUGE),
    "out": lambda x: torch.mul(x, x.mT, out=x.new_empty(0))[0, 0].item(),
    "storage": lambda x: torch.UntypedStorage(4 * HUGE**2, device="jax"),
    "value read": lambda x: (x * x.mT)[0, 0].item(),  # the program fails by itself, and what reads it is told
    "copied back": lambda x: (x @ x.mT).sum().cpu(),
    "jit": lambda x: jit(lambda x: x @ x.mT)(x)[0, 0].item(),
    "jit, at once": lambda x: jit(lambda x: torch.ones(HUGE, HUGE, device="jax") * x)(x)[0].tolist(),
    "compile": lambda x: torch.compile(lambda x: x @ x.mT, backend="jax")(x)[0, 0].item(),
    "backward": lambda x: (
        doubling(lambda grad: grad.expand(HUGE, HUGE).clone()[:, :1])(x.requires_grad_()).sum().backward()
    ),
}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_out_of_memory(name: str) -> None:
    """It is PyTorch's error, which says once how much was asked for."""
    where = "the host" if name == "transfer" else "jax:0"
    with pytest.raises(torch.OutOfMemoryError, match=f"^Tried to allocate 65536.00 GiB, but {where} is out of mem"):
        OUT_OF_MEMORY[name](torch.ones(HUGE, 1, device="jax"))
    assert torch.ones(2, device="jax").sum() == 2


def test_out_of_memory_in_the_words_of_other_platforms() -> None:
    for text, asked in {
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.": "3.00 GiB",
        "RESOURCE_EXHAUSTED: Attempting to allocate 512.00M. That was not possible.": "512.00 MiB",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.48G hbm.": "20.50 GiB",
        "INTERNAL: Error dispatching computation: Out of memory": "a buffer",
    }.items():
        with pytest.raises(torch.OutOfMemoryError, match=f"allocate {asked}, but jax:0 is"):
            arrays.refuse(jax.errors.JaxRuntimeError(text))
    arrays.refuse(jax.errors.JaxRuntimeError("INVALID_ARGUMENT: memory of another kind"))


PLAIN = ((1, 1), 1, False, False, True)  # dilation, groups, and what cuDNN asks besides
SIZES = ((1, 2, 5, 5), (2, 2, 3, 3))
FAKED: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "gru_cell": (torch.nn.GRUCell(3, 4).to("jax"), ((2, 3), (2, 4))),
    "cudnn_convolution": (lambda *t: torch.cudnn_convolution(*t, (0, 0), (1, 1), *PLAIN), SIZES),
    "cudnn_convolution_transpose": (lambda *t: TRANSPOSED(*t, (0, 0), (0, 0), (1, 1), *PLAIN), SIZES),
    "cudnn_convolution_relu": (lambda *t: torch.cudnn_convolution_relu(*t, None, (1, 1), (0, 0), (1, 1), 1), SIZES),
    "histc": (lambda x: torch.histc(x, 4), ((9,),)),
}
TRANSPOSED = torch.cudnn_convolution_transpose


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * n.startswith("cudnn")) for n in FAKED])
def test_ops_that_pytorch_has_no_meta_kernel_for_can_be_compiled(name: str) -> None:
    op, shapes = FAKED[name]
    tensors = [torch.randn(shape, device="jax") for shape in shapes]
    expected = op(*tensors)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(op, fullgraph=True)(*tensors), expected)
    if name != "histc":  # of which PyTorch's fake tensors run the kernel, on sizes that are numbers
        torch.testing.assert_close(torch.compile(op, fullgraph=True, dynamic=True)(*tensors), expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = op(*(torch.empty_like(t) for t in tensors))
    assert (fake.shape, fake.device, fake.dtype) == (expected.shape, expected.device, expected.dtype)


def test_fused_convolutions_of_cudnn() -> None:
    x, w, bias = (torch.randn(*size, device="jax") for size in ((1, 2, 5, 5), (3, 2, 3, 3), (3,)))
    z = torch.randn(1, 3, 3, 3, device="jax")
    plain = torch.conv2d(x, w, bias)
    fused = torch.cudnn_convolution_relu(x, w, bias, (1, 1), (0, 0), (1, 1), 1)
    torch.testing.assert_close(fused, plain.relu())
    added = torch.cudnn_convolution_add_relu(x, w, z, 0.5, bias, (1, 1), (0, 0), (1, 1), 1)
    torch.testing.assert_close(added, (plain + 0.5 * z).relu())
    added = torch.cudnn_convolution_add_relu(x, w, z, None, bias, (1, 1), (0, 0), (1, 1), 1)
    assert torch.equal(added, (plain + z).relu())


def _backward() -> None:
    doubling(lambda grad: torch.mm(grad, grad))(torch.ones(3, device="jax", requires_grad=True)).sum().backward()


def _alive() -> int:
    """How many arrays live, once the threads of autograd have let go of what they ran last."""
    counts = [-1, -2, -3]
    while len(set(counts[-3:])) > 1:
        time.sleep(0.05)
        gc.collect()
        counts.append(len(jax.live_arrays()))
    return counts[-1]


def _left(make: Callable[[], Any]) -> int:
    """How many more arrays live after a call than before it."""
    make()  # what is compiled and shared is made the first time
    gc.collect()
    gc.freeze()  # what other tests left behind need not be looked at again and again
    try:
        before = _alive()
        make()
        return _alive() - before
    finally:
        gc.unfreeze()


def _many() -> None:
    for i in range(1000):
        x = torch.full((3,), float(i), device="jax")
        x[1:].unsqueeze(0).add_(1)
        x.view(torch.int32)


def _graph() -> None:
    leaf = torch.ones(5, device="jax", requires_grad=True)
    for _ in range(50):
        (leaf * 2).exp().sum().backward()


def _raising() -> None:
    for _ in range(50):
        with pytest.raises(RuntimeError):
            _backward()


@pytest.mark.nightly
def test_no_buffer_outlives_its_tensors() -> None:
    left = [_left(run) for run in (_many, _graph, _raising)]
    assert left == [0, 0, 0], left


def test_the_count_sees_a_leak() -> None:
    kept = []
    assert _left(lambda: kept.append(torch.ones(3, device="jax") + 1)) == 1


def _descended(seed: int) -> list[float]:
    torch_seeded = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 4, generator=torch_seeded).to("jax").requires_grad_()
    data = torch.randn(8, 4, generator=torch_seeded).to("jax")
    losses = []
    for _ in range(10):
        loss = (data @ weight).tanh().pow(2).mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
        losses.append(loss.item())
    return losses


def test_two_threads_train_as_one_after_the_other() -> None:
    alone = [_descended(0), _descended(1)]
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(_descended, (0, 1))] == alone


def test_loader_workers_while_the_device_is_in_use() -> None:
    x = torch.ones(3, device="jax") + 1
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    with warnings.catch_warnings():
        # JAX warns of os.fork() in a process with threads; the workers touch nothing of the device.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        batches = [b[0].to("jax") for b in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)]
    assert (torch.cat(batches).tolist(), x.tolist()) == (list(range(8)), [2, 2, 2])


def test_a_gradient_that_pytorch_refuses_is_an_exception_in_a_sweep() -> None:
    """Below a dispatch mode it would end the process; see docs/findings/python-backend-hook-exception.md."""
    case = Case("eager", "promote", "addcdiv", CELLS, "grad", "fp16", "jax", "jax")
    assert SweepCheck().run(case, known()["jax"]) == []
