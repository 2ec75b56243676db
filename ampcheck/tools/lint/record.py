"""One run of a program: the kernels that ran and the dtypes they received, its result, and the state it leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch

from ampcheck.observe.isolation import depth
from ampcheck.observe.recorder import overload_name, tensors
from ampcheck.observe.torch_private import TorchDispatchMode, pytree
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.torch_dtypes import name_of

Program: TypeAlias = Callable[..., object]

_TORCH = str(Path(torch.__file__).parent)
_OWN = tuple(str(Path(__file__).parents[2] / name) for name in ("tools/lint", "programs"))
# Kernels that compute nothing; eager and compiled programs may have others of them.
MOVES = ("_to_copy", "detach", "alias", "clone", "lift_fresh")


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """A kernel: its op without overload, the floating dtypes it received, and the program's lines that led to it.

    `lines`: the innermost first.
    """

    op: str
    dtypes: tuple[str, ...]
    lines: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class RecordedRun:
    """The record of a program's run. `state`: enabled, dtype, cache_enabled and depth afterwards."""

    kernels: list[RecordedKernel] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    others: list[object] = field(default_factory=list)
    error: Exception | None = None
    state: tuple[bool, torch.dtype, bool, int] | None = None


class _Recorder(TorchDispatchMode):
    """Sits below autocast and autograd, so composite ops come in parts and autocast acts on those as always."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[RecordedKernel] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = overload_name(func).partition(".")[0]
        if name not in MOVES and not func.is_view and not name.startswith("prim::"):
            found = (tensor.dtype for tensor in tensors((args, kwargs or {})) if tensor.is_floating_point())
            self.kernels.append(RecordedKernel(name, tuple(map(name_of, found)), _lines()))
        return func(*args, **(kwargs or {}))


def _lines() -> tuple[tuple[str, int], ...]:
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not record.__code__:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, *_OWN, "<")):
            found.append((file, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def state(device: str) -> tuple[bool, torch.dtype, bool, int]:
    """Autocast's state now."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return enabled, dtype, torch.is_autocast_cache_enabled(), depth()


@contextmanager
def as_python() -> Iterator[None]:
    """Functions that were scripted or traced before run as the Python they were made of, where that is known."""
    kind: Any = torch.jit.ScriptFunction
    compiled = kind.__call__

    def call(self: object, *args: object, **kwargs: object) -> object:
        python = getattr(self, "_torchdynamo_inline", None)
        return compiled(self, *args, **kwargs) if python is None else python(*args, **kwargs)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = compiled


def record(call: Program, inputs: Sequence[object], device: str, ambient: torch.dtype | None) -> RecordedRun:
    """Run a program on copies of its inputs, in a region of the dtype `ambient`, in none where that is None.

    The state from before is back afterwards.
    """
    run = RecordedRun()
    before = state(device)
    given = [item.detach().clone() if isinstance(item, torch.Tensor) else item for item in inputs]
    torch.manual_seed(0)
    recorder = _Recorder()
    torch.set_autocast_enabled(device, False)
    try:
        with nullcontext() if ambient is None else torch.autocast(device, dtype=ambient):
            entered = depth()
            try:
                with recorder:
                    made = call(*given)
                run.outputs = [tensor.detach() for tensor in tensors(made)]
                run.others = [item for item in pytree.tree_leaves(made) if not isinstance(item, torch.Tensor)]
            except Exception as error:  # the program may raise anything, and that is what is compared
                run.error = error
            after = state(device)
            run.state = *after[:3], after[3] - entered
    finally:
        _restore(device, before)
    run.kernels = recorder.kernels
    return run


def _restore(device: str, before: tuple[bool, torch.dtype, bool, int]) -> None:
    torch.set_autocast_enabled(device, before[0])
    torch.set_autocast_dtype(device, before[1])
    torch.set_autocast_cache_enabled(before[2])
    while depth() > before[3]:
        torch.autocast_decrement_nesting()
    while depth() < before[3]:
        torch.autocast_increment_nesting()
