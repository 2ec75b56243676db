"""CUDA emulated on a CPU: plain tensors of device cuda:0 in the memory of the CPU, with values, gradients and a
`torch.cuda` that answers.

Autocast's and autograd's kernels for CUDA are PyTorch's own, and the engine runs backward passes in a thread of the
device; only the last step, the kernel, is the CPU's. So casts, values, gradients, programs and the scaler are as on
CUDA, and the bits of kernels, cuDNN, memory layouts that cuDNN chooses, streams that run at a time, and graphs are not.

The tensors are made by a library, `csrc/emulated.cpp`, that is built where this package is installed.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import torch

from ampcheck.devices.cuda import Cuda
from ampcheck.errors import Unsupported
from ampcheck.observe.torch_private import StorageBase, get_cudnn_enabled, set_cudnn_enabled
from ampcheck.spec.case import ANYWHERE

_LIBRARY = Path(__file__).parent / f"_emulated-torch{torch.__version__}.so"


class EmulatedEvent:
    """A moment of the host's clock: the work before it is done when it is recorded."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self._at = 0.0

    def record(self, stream: object = None) -> None:
        """Take the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, other: "EmulatedEvent") -> float:
        """Return the milliseconds between two events."""
        return (other._at - self._at) * 1e3

    def query(self) -> bool:
        """Return whether the work before it is done."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    wait = synchronize


class Selected:
    """The one device, whatever it is called."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class EmulatedStream(Selected):
    """The one stream of the device."""

    cuda_stream = 0

    def wait(self, other: object = None) -> None:
        """Work is done at once, so that none is to be waited for."""

    synchronize = wait_stream = wait_event = wait


PROPERTIES = SimpleNamespace(
    name="emulated on a CPU",
    major=9,
    minor=0,
    total_memory=2**34,
    multi_processor_count=1,
    L2_cache_size=2**20,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    gcnArchName="",
)
"""What `torch.cuda.get_device_properties` says: those of no GPU."""


def _memory(peak: bool) -> Callable[..., int]:
    return lambda device=None: int(torch.ops.ampcheck_emulated.memory(peak))


_ANSWERS: Mapping[str, Any] = {
    **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "is_bf16_supported": lambda including_emulation=True: True,
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_device_name": lambda device=None: PROPERTIES.name,
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "get_arch_list": lambda: ["sm_90"],
    "Event": EmulatedEvent,
    **dict.fromkeys(("Stream", "current_stream", "default_stream"), EmulatedStream),
    "stream": lambda stream: stream,
    "device": Selected,
    "memory_allocated": _memory(False),
    "max_memory_allocated": _memory(True),
    "mem_get_info": lambda device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
    "reset_peak_memory_stats": lambda device=None: torch.ops.ampcheck_emulated.reset_peak(),
    "empty_cache": lambda: None,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.default_generator.manual_seed),
}
"""What `torch.cuda` answers meanwhile."""

_lock, _entered, _ended = threading.Lock(), list[object](), ExitStack()
"""Who has entered the device, in whatever thread, and what ends the emulation behind the last of them."""


def _begin() -> None:
    torch.ops.load_library(_LIBRARY)
    torch.ops.ampcheck_emulated.emulate(True)
    _ended.callback(torch.ops.ampcheck_emulated.emulate, False)
    _ended.callback(set_cudnn_enabled, get_cudnn_enabled())
    set_cudnn_enabled(False)
    for name, answer in _ANSWERS.items():
        _ended.enter_context(mock.patch.object(torch.cuda, name, answer))
    _ended.enter_context(mock.patch("torch.distributed.init_process_group", _no_collectives))
    _ended.enter_context(mock.patch.object(torch.UntypedStorage, "__new__", _new_storage))


def _no_collectives(*_: object, **__: object) -> None:
    raise Unsupported("the emulated device has no collectives")


def _new_storage(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Make a storage; PyTorch asks for the allocator of a device type by name."""
    device = kwargs.pop("device", None)
    if device is None or torch.device(device).type != "cuda":
        return StorageBase.__new__(cls, *args, **kwargs, device=device)  # type: ignore[call-arg]
    return torch.empty(args[0] if args else 0, dtype=torch.uint8, device="cuda").untyped_storage()


class Emulated(Cuda):
    """CUDA in the memory of the CPU."""

    name = "emulated:cuda"
    token = "emc"
    compilers = ANYWHERE
    share = 3
    lone = True
    deviations = Path(__file__).parent / "deviations.toml"
    setup = (
        "from ampcheck.devices.emulated import DEVICES",
        "emulation = DEVICES[0].activate()",
        "emulation.__enter__()  # for all that follows, while it is held",
    )
    refusals = (
        *Cuda.refusals,
        r"[Ll]ow precision dtypes not supported|get_mkldnn_dtype: unsupported data type",
        "could not create a primitive descriptor",  # oneDNN has no kernel for the dtype on this processor
        "MKL FFT doesn't support tensors of type",
        "the emulated device has dense tensors only",
        r"(?s)Could not run 'aten::.*' with arguments from the '(CPU|CUDA)' backend",  # a kernel that CUDA alone has
    )

    def unavailable(self) -> str | None:
        if torch.version.cuda or torch.version.hip:
            return "this torch has CUDA's own kernels, which need a GPU; one for CPUs is emulated upon"
        if not _LIBRARY.exists():
            return (
                f"its library was not built for torch {torch.__version__} when ampcheck was installed; install a C++ "
                "compiler and torch, then ampcheck again with pip's --no-cache-dir"
            )
        return None

    @contextmanager
    def activate(self) -> Iterator[None]:
        entered = object()
        with _lock:
            if not _entered:
                _begin()
            _entered.append(entered)
        try:
            yield
        finally:
            with _lock:
                _entered.remove(entered)
                if not _entered:
                    _ended.close()

    def synchronize(self) -> None:
        """Do nothing: work is done at once."""

    def describe(self) -> dict[str, str]:
        return {
            "model": PROPERTIES.name,
            "platform": "emulated",
            "not shown": "the bits and layouts of CUDA's kernels, cuDNN, streams, graphs",
        }

    def seed(self) -> None:
        torch.default_generator.manual_seed(0)


DEVICES = (Emulated(),)
