"""Ranks of a group, in processes of their own, for scenarios of distributed training.

They are forked: so they have what the scenario has made, and a rank takes a fraction of a second.
"""

import importlib
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from ampcheck.checks.amp import Amp

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
