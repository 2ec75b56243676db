"""What scenarios of training share: gradients, custom functions, `torch.amp.GradScaler`, and ranks of a group."""

import importlib
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import distributed

from ampcheck.checks.amp import Amp


def copy_of(leaf: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the values of another one, and without its gradient."""
    return leaf.detach().clone().requires_grad_()


def copies_of(*leaves: torch.Tensor) -> list[torch.Tensor]:
    """Return a copy of each leaf; see `copy_of`."""
    return [copy_of(leaf) for leaf in leaves]


def backward(*results: torch.Tensor) -> None:
    """Run the backward pass of the sum of squares of each result, which is taken in float32."""
    for result in results:
        result.float().pow(2).sum().backward()


def assert_same_gradients(
    amp: Amp, names: Sequence[str], leaves: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> None:
    """Note gradients that differ from those of other leaves in a bit."""
    for name, leaf, other in zip(names, leaves, others, strict=True):
        amp.assert_identical(f"gradient of {name}", leaf.grad, other.grad)


def custom_function(
    device_type: str,
    forward: Callable[..., object],
    backward: Callable[..., object] | None = None,
    cast_inputs: torch.dtype | None = None,
    **members: object,
) -> type[torch.autograd.Function]:
    """Return a torch.autograd.Function of two passes, which custom_fwd and custom_bwd decorate."""
    options = {} if cast_inputs is None else {"cast_inputs": cast_inputs}
    decorated = torch.amp.custom_fwd(device_type=device_type, **options)(forward)
    return plain_function(decorated, backward and torch.amp.custom_bwd(device_type=device_type)(backward), **members)


def plain_function(
    forward: Callable[..., object], backward: Callable[..., object] | None = None, **members: object
) -> type[torch.autograd.Function]:
    """Return a torch.autograd.Function of two passes."""
    passes = {"forward": forward, **({"backward": backward} if backward else {})}
    held = {name: staticmethod(each) for name, each in passes.items()}
    return type("Function", (torch.autograd.Function,), {**held, **members})


def trained(
    amp: Amp,
    values: Sequence[float] = (1.0, 1.0),
    lr: float = 0.5,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> tuple[torch.nn.Parameter, torch.optim.Optimizer, torch.amp.GradScaler]:
    """Return a parameter on the device, its optimizer and a scaler, which has the options."""
    leaf = torch.nn.Parameter(torch.tensor(values, device=amp.type))
    return leaf, make([leaf], lr=lr), torch.amp.GradScaler(amp.type, **options)


def step_and_update(scaler: torch.amp.GradScaler, *optimizers: torch.optim.Optimizer) -> None:
    """Step each optimizer, then update the scale, as an iteration ends."""
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def iterate(
    leaf: torch.nn.Parameter, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, slope: float = 1.0
) -> None:
    """Make one iteration, in which every element of the parameter has the same gradient."""
    leaf.grad = None
    scaler.scale((leaf * slope).sum()).backward()
    step_and_update(scaler, optimizer)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors in another dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def one_process(kind: str = "fake") -> Iterator[None]:
    """Make a process group of this process alone, which a scaler of shards asks, for any device."""
    if kind == "fake":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # gloo reduces no tensors of a backend
    store = distributed.HashStore()  # type: ignore[attr-defined]  # not in __all__
    distributed.init_process_group(kind, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


T = TypeVar("T")

SECONDS = 90
"""How long the ranks may take. All are ended then, before the case's own time is over."""
IMPORTED = (
    *("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"),
    *("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "torch.distributed.checkpoint"),
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
    *("torch.distributed.algorithms.model_averaging.averagers", "torch.distributed.device_mesh"),
    *("torch.distributed.fsdp", "torch.distributed.fsdp.sharded_grad_scaler"),
    *("torch.distributed.optim", "torch.distributed.tensor.parallel"),
)
"""What the ranks use. It is imported before they start, since each would import it anew."""
_FORKED = "Unable to handle autograd's threading in combination with fork-based multiprocessing"
"""What autograd says in a process that was forked after a backward pass on a device such as jax; hence `forks`."""


def _as_rank(rank: int, run: Callable[[], object], folder: str, count: int) -> None:
    """Run a call as a rank of a group, and write what it returns or raises into a file."""
    torch.set_num_threads(1)  # the threads of the process that was forked are not there
    try:
        store = dist.FileStore(f"{folder}/store", count)  # type: ignore[attr-defined]  # not in __all__
        limit = timedelta(seconds=SECONDS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=limit)
        found: dict[str, object] = {"returned": run()}
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # which one it is, is the finding
        found = {"raised": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    torch.save(found, f"{folder}/{rank}")


def on_ranks(amp: Amp, run: Callable[[], T], count: int = 2) -> list[T]:
    """Return what a call returns on each rank; nothing where one raises or does not end, which is noted."""
    if not dist.is_available():
        amp.unsupported("this PyTorch was built without torch.distributed")
    if not dist.is_gloo_available() or "fork" not in multiprocessing.get_all_start_methods():
        amp.unsupported("ranks need the gloo backend, and a system that forks processes")
    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads in the process that is forked
            ranks = torch.multiprocessing.start_processes(  # type: ignore[attr-defined]  # documented
                _as_rank, (run, folder, count), nprocs=count, join=False, start_method="fork"
            )
        end = time.monotonic() + SECONDS
        try:
            while not ranks.join(max(end - time.monotonic(), 0.1)):
                if time.monotonic() > end:
                    amp.check(False, "the ranks", f"did not end within {SECONDS} s")
                    return []
        except Exception as error:  # a rank that ends without a word: its process was ended
            amp.check(False, "a rank", f"ended early: {str(error).splitlines()[0]}")
            return []
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
        found = [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(count)]
    if any(_FORKED in one.get("raised", "") for one in found):
        amp.unsupported("autograd has threads for another device here, without which a fork has no backward pass")
    for rank, one in enumerate(found):
        amp.assert_equal(f"what rank {rank} raised", one.get("raised"), None)
    return [] if any("raised" in one for one in found) else [one["returned"] for one in found]
