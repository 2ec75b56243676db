"""Run a program of regions on torch and note what is seen. Reproductions print this source: it needs torch alone."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch

from ampcheck.observe.recorder import Recorder
from ampcheck.observe.torch_private import AutoDispatchBelowAutograd
from ampcheck.spec.torch_dtypes import DTYPES, name_of

Body = Callable[[], None]
OVERLOADS = {"mul": "mul.Tensor"}
STRICT = ("mm", "binary_cross_entropy")
"""The ops that some implementations refuse for inputs of different dtypes, which others promote."""
Seen = tuple[int, str, object]
"""An observation: the line of the program, what was seen, and its value."""


class RegionLike(Protocol):
    """A context manager that also decorates, as `torch.autocast` is."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> object: ...

    def __call__(self, function: Body, /) -> Body: ...


class PlannedError(Exception):
    """The exception that programs raise."""


class Kernel(NamedTuple):
    """The kernel that a call ran: the dtypes of its tensors, None where it did not run; how many casts were made; and
    the dtype of the result, or how it failed."""

    dtypes: tuple[str, ...] | None
    casts: int
    dtype_kwarg: str | None
    result: str


class LookedAt:
    """A region whose state is looked at inside of it and after it; it decorates, too."""

    def __init__(self, region: RegionLike, look: Callable[[str], None]) -> None:
        self.region, self.look = region, look

    def __enter__(self) -> None:
        self.region.__enter__()
        self.look("inside the region")

    def __exit__(self, *raised: Any) -> None:
        try:
            self.region.__exit__(*raised)
        finally:
            self.look("after the region")

    def __call__(self, function: Body) -> Body:
        def inside() -> None:
            self.look("inside the region")
            function()

        decorated = self.region(inside)

        def call() -> None:
            try:
                decorated()
            finally:
                self.look("after the region")

        return call


class Side:
    """Notes in `seen` what a program sees. `defaults`: its device types, and the dtype each has before one is set."""

    def __init__(self, defaults: Mapping[str, torch.dtype]) -> None:
        self.defaults = defaults
        self.seen: list[Seen] = []
        self.results: dict[str, str] = {}

    def run(self, program: Callable[[Side], None]) -> list[Seen]:
        self.code = program.__code__
        self.look("at the start")
        try:
            program(self)
        except PlannedError:
            self.note("exception", "not caught")
        self.look("at the end")
        return self.seen

    def note(self, what: str, value: object) -> None:
        frame, line = sys._getframe(), 0  # the program comes last in its file
        while frame.f_back and frame.f_code is not Side.run.__code__ and line <= 0:
            frame = frame.f_back
            if frame.f_code.co_filename == self.code.co_filename:
                line = frame.f_lineno - self.code.co_firstlineno
        self.seen.append((max(line, 0), what, value))

    def look(self, what: str) -> None:
        for device in self.defaults:
            self.note(f"state of {device} {what}", self.state(device))

    def state(self, device: str) -> tuple[bool, str, bool, int]:
        raise NotImplementedError

    def caught(self) -> None:
        self.note("exception", "caught")
        self.look("after the exception")

    def ran(self, op: str, device: str, kernel: Kernel) -> None:
        if kernel.dtypes is None:
            self.note(f"{op} on {device}", "refused" if "autocast" in kernel.result else kernel.result)
            return
        self.note(f"dtypes in the kernel of {op} on {device}", kernel.dtypes)
        self.note(f"casts made for {op} on {device}", kernel.casts)
        if kernel.dtype_kwarg:
            self.note(f"dtype= of {op} on {device}", kernel.dtype_kwarg)
        if op not in STRICT or len(set(kernel.dtypes)) == 1:
            if kernel.result in DTYPES:
                self.results[device] = kernel.result
            self.note(f"result of {op} on {device}", kernel.result)


class Torch(Side):
    """Does what a program says on torch. `thread`: what each new thread calls first."""

    def __init__(self, defaults: Mapping[str, torch.dtype], thread: Callable[[], object] | None = None) -> None:
        super().__init__(defaults)
        self.thread = thread
        self.weights: dict[tuple[str, str], torch.Tensor] = {}

    def state(self, device: str) -> tuple[bool, str, bool, int]:
        torch.autocast_increment_nesting()
        depth = torch.autocast_decrement_nesting()
        dtype = name_of(torch.get_autocast_dtype(device))
        return torch.is_autocast_enabled(device), dtype, torch.is_autocast_cache_enabled(), depth

    def region(self, device: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> RegionLike:
        return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def autocast(
        self, device: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> LookedAt:
        with warnings.catch_warnings():  # a region of an unsupported dtype warns, and is seen to be disabled
            warnings.filterwarnings("ignore", message="(?s)In .* autocast, but the target dtype is not supported")
            return LookedAt(self.region(device, dtype, enabled, cache_enabled), self.look)

    def no_grad(self) -> torch.no_grad:
        return torch.no_grad()

    def inference_mode(self) -> torch.inference_mode:
        return torch.inference_mode()

    def set_enabled(self, device: str, enabled: bool) -> None:
        torch.set_autocast_enabled(device, enabled)
        self.look("after enabled was set")

    def set_dtype(self, device: str, dtype: torch.dtype) -> None:
        torch.set_autocast_dtype(device, dtype)
        self.look("after dtype was set")

    def set_cache_enabled(self, enabled: bool) -> None:
        torch.set_autocast_cache_enabled(enabled)
        self.look("after cache_enabled was set")

    def clear_cache(self) -> None:
        torch.clear_autocast_cache()

    def in_thread(self, body: Body) -> None:
        try:
            with ThreadPoolExecutor(1, initializer=self.thread) as pool:
                pool.submit(body).result()
        finally:
            self.look("after the thread")

    def new(self, device: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((2, 2), 0.5, dtype=dtype, device=device)

    def last(self, device: str) -> torch.Tensor:
        """Return a tensor of the last result's dtype."""
        return self.new(device, DTYPES[self.results.get(device, "fp32")])

    def weight(self, device: str, name: str) -> torch.Tensor:
        """Return the weight of a name: a leaf, one that is "frozen", or a "low" one of the device's default dtype."""
        if (device, name) not in self.weights:
            with torch.inference_mode(False):
                made = self.new(device, self.defaults[device] if name.startswith("low") else torch.float32)
            self.weights[device, name] = made.requires_grad_(name.startswith("leaf"))
        return self.weights[device, name]

    def op(self, device: str, call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        op = call.__name__
        given = [list(inputs)] if op == "cat" else inputs
        self.ran(op, device, self.observe(device, OVERLOADS.get(op, op), lambda: call(*given), inputs))

    def observe(
        self, device: str, overload: str, call: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Kernel:
        kernels: list[tuple[str, tuple[str, ...], torch.dtype | None]] = []
        casts = 0

        def record(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal casts
            dtypes = [name_of(x.dtype) for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            name = str(func).removeprefix("aten.").removesuffix(".default")
            kernels.append((name, tuple(dtypes), kwargs.get("dtype")))
            out = func(*args, **kwargs)
            casts += func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype) and out.dtype != args[0].dtype
            return out

        try:
            with AutoDispatchBelowAutograd(), Recorder(record):
                result = name_of(call().dtype)
        except RuntimeError as error:
            result = repr(error)
        kernel = next((kernel for kernel in kernels if kernel[0] == overload), None)
        if kernel is None:
            return Kernel(None, 0, None, result)
        return Kernel(kernel[1], casts, name_of(kernel[2]) if kernel[2] else None, result)
