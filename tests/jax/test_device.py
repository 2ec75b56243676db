"""The device's module, memory, DLPack and errors."""

from __future__ import annotations

import gc
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import ampcheck.jax_device as device
from ampcheck.jax_device.storage.arrays import storage_of


def test_module() -> None:
    module = torch.get_device_module("jax")
    assert module is torch.jax
    assert module.is_available()
    assert (module.device_count(), module.current_device()) == (1, 0)
    assert module.get_device_name() == jax.local_devices()[0].device_kind
    assert module.get_device_properties("jax:0").platform == "cpu"
    module.set_device("jax:0")
    with module.device(0), module.device_of(torch.ones(1)):
        assert module.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        module.set_device(1)
    with pytest.raises(ValueError, match="Expected a jax device, but got: cuda:0"):
        module.device("cuda:0")
    with pytest.raises(RuntimeError, match="a cpu device has no compute capability"):
        module.get_device_capability()


@pytest.mark.nightly
def test_an_import_after_one_that_failed() -> None:
    code = (
        "import torch\n"
        "del torch.Tensor.__dlpack__\n"  # the device needs it
        "for _ in range(2):\n"
        "    try: import ampcheck.jax_device\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("AttributeError"), first
    assert "__dlpack__" in first
    assert second.startswith("RuntimeError an import of ampcheck.jax_device failed in this process before"), second


def test_a_device_that_is_not_there() -> None:
    for make in (
        lambda: torch.ones(2, device="jax:1"),
        lambda: torch.ones(2).to("jax:1"),
        lambda: torch.empty(2, device="jax:1"),
        lambda: torch.zeros_like(torch.ones(2), device="jax:1"),
        lambda: torch.arange(2, device="jax:1"),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
            make()
    assert torch.ones(2, device="jax:0").device == torch.device("jax:0")


def test_default_device() -> None:
    with torch.device("jax"):
        assert torch.ones(2).device.type == torch.tensor([1.0]).device.type == "jax"
        assert torch.nn.Linear(2, 2).weight.device.type == "jax"
    torch.set_default_device("jax")
    try:
        assert torch.zeros(2).device.type == "jax"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_like_on_another_device() -> None:
    x = torch.ones(2, 3, device="jax").t()
    for name in ("empty_like", "zeros_like", "ones_like", "rand_like"):
        made = getattr(torch, name)(x, device="cpu")
        assert made.device.type == "cpu"
        assert made.shape == x.shape
    assert torch.empty_like(x, device="meta").stride() == x.stride()
    assert torch.equal(x.new_full((2,), 7, device="cpu"), torch.tensor([7.0, 7.0]))
    assert torch.zeros_like(torch.ones(2), device="jax").device.type == "jax"


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
    for most in (torch.jax.max_memory_allocated, torch.accelerator.max_memory_allocated):
        with pytest.raises(RuntimeError, match="JAX records no peak_bytes_in_use for its cpu devices"):
            most()
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    for enter in (torch.accelerator.set_device_index, lambda i: torch.accelerator.device_index(i).__enter__()):
        with pytest.raises(RuntimeError, match="invalid device ordinal 1: there is one jax device"):
            enter(1)
    with pytest.raises(RuntimeError, match="cannot be reset"):
        torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()


def test_to_and_from_jax() -> None:
    x = torch.ones(3, 4, device="jax")
    array = device.to_jax(x)
    assert array is storage_of(x).array
    x.zero_()
    assert float(array.sum()) == 12
    assert device.to_jax(x[1]).shape == (4,)
    mine = jnp.arange(6.0).reshape(2, 3)
    back = device.from_jax(mine)
    assert storage_of(back).array is mine
    back.add_(1)
    assert float(mine.sum()) == 15
    with pytest.raises(TypeError, match="got one on cpu"):
        device.to_jax(torch.ones(2))
    with pytest.raises(RuntimeError, match="requires grad"):
        device.to_jax(torch.ones(2, device="jax", requires_grad=True))
    with pytest.raises(TypeError, match=r"takes a jax\.Array, got ndarray"):
        device.from_jax(np.ones(2))
    with pytest.raises(NotImplementedError, match="PyTorch has no dtype for JAX's int4"):
        device.from_jax(jnp.ones(2, jnp.int4))


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
    with pytest.raises(BufferError, match="require gradient"):
        np.from_dlpack(torch.ones(2, device="jax", requires_grad=True))


def test_values_for_python() -> None:
    x = torch.tensor([[1.5, -2.0], [0.0, float("nan")]], device="jax")
    assert x[0].tolist() == [1.5, -2.0]
    assert x[0, 1].item() == -2.0
    assert bool(x[0, 0])
    assert int(torch.tensor(3, device="jax")) == 3
    assert len({x, x}) == 1
    with pytest.raises(TypeError, match=r"can't convert jax:0 device type tensor to numpy\. Use Tensor\.cpu"):
        x.numpy()
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        bool(x)
    assert torch.equal(x[0], x[0].clone())
    assert not torch.equal(x[0], x[0] + 1)
    with pytest.raises(RuntimeError, match="at least two devices, cpu and jax:0"):
        torch.equal(x, x.cpu())


def test_printing() -> None:
    for made in (
        torch.arange(6.0).reshape(2, 3),
        torch.tensor([1 + 2j, float("inf")]),
        torch.empty(0, 3),
        torch.tensor([1e-8, 1e8]).bfloat16(),
    ):
        shown = repr(made.to("jax"))
        assert "device='jax:0'" in shown
        there = shown.replace("device='jax:0', ", "").replace(", device='jax:0'", "")
        assert "".join(there.split()) == "".join(repr(made).split())
    assert "requires_grad=True" in repr(torch.ones(1, device="jax", requires_grad=True))
    assert "grad_fn=<MulBackward0>" in repr(torch.ones(1, device="jax", requires_grad=True) * 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_errors_name_what_is_wrong() -> None:
    x, sparse = torch.ones(2, 2, device="jax"), torch.nn.Embedding(4, 2, sparse=True, device="jax")
    for run in (lambda: x + torch.ones(2, 2), lambda: x @ torch.ones(2, 2), lambda: torch.cat([x, torch.ones(2, 2)])):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            run()
    assert (x + torch.tensor(2.0)).tolist() == [[3, 3], [3, 3]]
    with pytest.raises(NotImplementedError, match=r"the jax device has no torch\.complex32"):
        torch.empty(2, dtype=torch.complex32, device="jax")
    for make, instead in (
        (lambda: x.to_sparse(), "no sparse tensors: use strided ones"),
        (lambda: x.to_sparse_csr(), "no sparse tensors: use strided ones"),
        (lambda: sparse(torch.tensor([1], device="jax")).sum().backward(), r"no sparse tensors.* sparse=False"),
        (lambda: x.to_mkldnn(), "no MKL-DNN tensors: use strided ones"),
        (lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "no quantized tensors: use bfloat16"),
        (lambda: torch.nested.nested_tensor([x, x]).relu(), "no strided nested tensors; use layout=torch.j"),
        (lambda: torch.ops.aten._cudnn_rnn_flatten_weight([x], 1, 2, 2, 2, 0, 1, False, False), r"@lower\('_cudnn_rnn"),
    ):
        with pytest.raises(NotImplementedError, match=instead):
            make()


def test_pinning() -> None:
    with pytest.warns(UserWarning, match="JAX gives out no pinned memory"):
        copy = torch.ones(2).pin_memory()
    assert copy.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="jax").pin_memory()
    with pytest.raises(RuntimeError, match="cannot pin memory for cuda"):
        torch.ops.aten._pin_memory(torch.ones(2), torch.device("cuda"))
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
