"""Every way to a storage of the device without a tensor, each in a process of its own: it works or is a clear error.

A way is a line of Python; what follows `=>` is what it must give, as text, or the error's words.
"""

import copy
import os
import pickle
import signal
import warnings
from collections.abc import Callable

import pytest
import torch

from tests.jax.agreement import saved

pytestmark = pytest.mark.alone  # JAX must not have started where a process forks

SHARED = "cannot be shared between processes"
ROADS = """
torch.UntypedStorage(4, device="jax").tolist() => [0, 0, 0, 0]
torch.UntypedStorage(device="jax").nbytes() => 0
torch.UntypedStorage([1, 2], device="jax").tolist() => [1, 2]
torch.UntypedStorage._new_shared(4, device="jax") => SHARED
torch.UntypedStorage([1, 2]).to(device="jax").tolist() => [1, 2]
torch.UntypedStorage([1, 2]).to(device="jax").device.type => jax
torch.TypedStorage(2, dtype=torch.float32, device="jax").tolist() => [0.0, 0.0]
torch.TypedStorage([1.0, 2.0], dtype=torch.float32, device="jax").tolist() => [1.0, 2.0]
torch.FloatStorage(4, device="jax") => Keyword argument 'device' cannot be specified
s().tolist()[:4] => [0, 0, 128, 63]
s().to(device="cpu").tolist() == s().tolist() => True
s().resize_(0).nbytes() => 0
s().resize_(-1) => cannot have -1 bytes
s()[3] => 63
s()[0:2] => shares no memory
s().fill_(3).tolist() => [3, 3, 3, 3, 3, 3, 3, 3]
s().copy_(torch.zeros(2).untyped_storage()).tolist() => [0, 0, 0, 0, 0, 0, 0, 0]
s().copy_(torch.zeros(1).untyped_storage()) => self was 8 bytes but src was 4 bytes
torch.zeros(2).untyped_storage().copy_(s()).tolist()[:4] => [0, 0, 128, 63]
s().float().tolist()[:4] => [0.0, 0.0, 128.0, 63.0]
s().pin_memory() => only CPU memory can be pinned
s().share_memory_() => SHARED
s()._share_fd_cpu_() => SHARED
s()._share_filename_cpu_() => SHARED
s().byteswap(torch.float32) => None
copy.copy(s()).tolist() == s().tolist() => True
copy.deepcopy(s()).tolist() == s().tolist() => True
torch.load(save(s()), weights_only=False).tolist() == s().tolist() => True
t().storage().clone().tolist() => [1.0, 1.0]
(lambda a: a.resize_(3) or a.tolist())(t().storage()) => [1.0, 1.0, 0.0]
copy.deepcopy(t().storage()).tolist() => [1.0, 1.0]
pickle.loads(pickle.dumps(t().storage())).tolist() => [1.0, 1.0]
t().new([1, 2]).tolist() => [1.0, 2.0]
t().new(t().storage()).tolist() => [1.0, 1.0]
torch.Tensor(2, 3, device="jax") => legacy constructor expects device type: cpu
torch.Tensor(t()).tolist() => [1.0, 1.0]
torch.Tensor(t().storage()) => the devices must match
t().set_(s()).tolist() => [1.0, 1.0]
t().set_(s(), 1, (1,), (1,)).tolist() => [1.0]
t().set_(s(), 1, (3,), (1,)).tolist() => [1.0, 0.0, 0.0]
t().set_(s(), -1, (1,), (1,)) => negative sizes, strides and offsets
t().set_(torch.ones(2).untyped_storage()) => the devices must match
t().set_(torch.ones(2, device="jax").double()) => Could not set tensor of type
torch.ones(2).set_(s()) => the devices must match
t().resize_(-1) => sizes must not be negative
t().as_strided((2,), (1,), 5) => out of bounds for storage of 2 elements
t().as_strided((2,), (-1,), 1) => Negative strides are not supported
torch._C._acc.create_empty_tensor((2,), torch.float32) + 1 => has no values
torch._C._acc.create_empty_tensor((2,), torch.float32).untyped_storage().clone() => has no values
t().share_memory_() => SHARED
torch.nn.Linear(2, 2).to("jax").share_memory() => SHARED
torch.empty(2, pin_memory=True) => getPinnedMemoryAllocator
torch.ones(2, 2).to_sparse().to("jax") => Sparsejax
torch.sparse_coo_tensor([[0]], [1.0], (2,), device="jax") => Sparsejax
torch.sparse_csr_tensor([0, 1], [0], [1.0], device="jax") => SparseCsrjax
torch.empty(2, layout=torch.sparse_coo, device="jax") => Sparsejax
torch.empty_like(t(), layout=torch.sparse_coo) => only strided ones
torch._empty_affine_quantized([2], scale=0.1, zero_point=0, dtype=torch.qint8, device="jax") => Quantizedjax
torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to("jax") => Quantizedjax
torch.empty(2, dtype=torch.qint8, device="jax") => Quantizedjax
torch.empty(2, dtype=torch.bits8, device="jax") => the jax device has no torch.bits8
torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="jax") => NestedTensorjax
torch.nested.as_nested_tensor([t(), t()], layout=torch.jagged).is_nested => True
torch.from_file("/dev/zero", size=2, device="jax") => aten::from_file has no kernel on the jax device
torch.ones(2, device="meta").to("jax") => Cannot copy out of meta tensor
torch.jit.trace(torch.nn.ReLU(), t())(t()).tolist() => [1.0, 1.0]
""".strip().replace("SHARED", SHARED)
if hasattr(torch.UntypedStorage, "_swap_data_ptr_"):  # since torch 2.12
    ROADS += "\ns()._swap_data_ptr_(torch.zeros(2).untyped_storage()) => cannot swap"
if hasattr(torch.UntypedStorage, "_resize_with_addr_"):  # since torch 2.13
    ROADS += "\ns()._resize_with_addr_(1, 8) => no address that could be set"


def t() -> torch.Tensor:
    """A tensor of two ones."""
    return torch.ones(2, device="jax")


def s() -> torch.UntypedStorage:
    """Its storage."""
    return t().untyped_storage()


def forked(run: Callable[[], str]) -> str:
    """What a call says in a process of its own, or how that process ended. JAX must not have started yet."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, run().encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(child, 0)
    return f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else said


def said(line: str) -> str:
    """What the expression gives, or the error's words."""
    warnings.simplefilter("ignore")
    try:
        names = {"torch": torch, "copy": copy, "pickle": pickle, "t": t, "s": s, "save": saved}
        return str(eval(line, names))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _walk() -> str:
    """Every way in one process, which prints each before it is taken: the one that ends the process is the last."""
    wrong = []
    for road in ROADS.splitlines():
        line, _, want = road.partition(" => ")
        got = said(line)
        if not (want == got or ("Error: " in got and want in got)):
            wrong.append(f"{line} gave {got[:200]!r}; expected {want!r}")
    return "\n".join(wrong)


@pytest.mark.nightly
def test_every_way_works_or_is_a_clear_error() -> None:
    """One process takes them all; only where it ends is each taken in its own, to name those that end it."""
    found = forked(_walk)
    if found.startswith("ended by"):
        ends = {line: forked(lambda line=line: said(line)) for line in ROADS.splitlines()}
        found = "\n".join(f"{line}: {how}" for line, how in ends.items() if how.startswith("ended by"))
    assert not found, found


def test_the_net_catches_a_way_that_nobody_thought_of() -> None:
    """PyTorch's own constructor, past ours, which would follow a null pointer without the net."""
    assert torch.jax.fallback_allocator
    words = forked(lambda: str(torch._C.StorageBase.__new__(torch.UntypedStorage, 4, device="jax").nbytes()))
    assert words == "4"
    refused = "t().set_(torch._C.StorageBase.__new__(torch.UntypedStorage, 4, device='jax'))"
    assert "the devices must match" in forked(lambda: said(refused))
