"""One run of a program: the kernels that ran and the dtypes they received, its result, and the state it leaves.

What is compared, and how, is here alone: `check_scripted` and the cases of rule limits use the same functions, and the
program of a red case prints them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, TypeAlias, TypeVar

import torch

from ampcheck.observe.isolation import depth
from ampcheck.observe.recorder import Recorder, overload_name, tensors
from ampcheck.observe.torch_private import pytree
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.torch_dtypes import name_of

Program: TypeAlias = Callable[..., object]
Ran = TypeVar("Ran")
Place: TypeAlias = tuple[str, int]
"""A file and a line."""
State: TypeAlias = tuple[bool, torch.dtype, bool, int]
"""Whether autocast is on, its dtype, whether casts are kept, how many regions there are."""

MOVES = ("_to_copy", "detach", "alias", "clone", "lift_fresh")
"""Kernels that compute nothing; eager and compiled programs may have others of them."""


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """A kernel: its op without overload, the floating dtypes it received, and the program's lines that led to it.

    `lines`: the innermost first.
    """

    op: str
    dtypes: tuple[torch.dtype, ...]
    lines: tuple[Place, ...]


@dataclass(slots=True)
class RecordedRun:
    """The record of a program's run. `state`: that afterwards, its regions counted from those before."""

    kernels: list[RecordedKernel] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    others: list[object] = field(default_factory=list)
    error: Exception | None = None
    state: State | None = None


def kernel_log(kernels: list[RecordedKernel], lines: Callable[[], tuple[Place, ...]]) -> Recorder:
    """Return a mode that adds kernels to a list: below autocast and autograd, where composite ops come in parts.

    `lines`: called for each kernel, says which lines of the program led to it.
    """

    def run(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        name = overload_name(func).partition(".")[0]
        if name not in MOVES and not func.is_view and not name.startswith("prim::"):
            given = tuple(x.dtype for x in tensors((args, kwargs)) if x.is_floating_point())
            kernels.append(RecordedKernel(name, given, lines()))
        return func(*args, **kwargs)

    return Recorder(run)


def in_both(one: Sequence[Ran], other: Sequence[Ran], name: Callable[[Ran], str]) -> Iterator[tuple[Ran, Ran]]:
    """Yield the kernels that ran in both of two runs, matched in their order by name."""
    matcher = SequenceMatcher(None, [*map(name, one)], [*map(name, other)], autojunk=False)
    for start, place, size in matcher.get_matching_blocks():
        yield from zip(one[start : start + size], other[place : place + size], strict=True)


def state(device: str) -> State:
    """Return autocast's state now."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return enabled, dtype, torch.is_autocast_cache_enabled(), depth()


def put_back(device: str, before: State) -> None:
    """Put autocast's state back to what it was."""
    torch.set_autocast_enabled(device, before[0])
    torch.set_autocast_dtype(device, before[1])
    torch.set_autocast_cache_enabled(before[2])
    while depth() > before[3]:
        torch.autocast_decrement_nesting()
    while depth() < before[3]:
        torch.autocast_increment_nesting()


def record(
    call: Program,
    inputs: Sequence[object],
    device: str,
    ambient: torch.dtype | None,
    lines: Callable[[], tuple[Place, ...]] = tuple,
) -> RecordedRun:
    """Run a program on copies of its inputs, in a region of the dtype `ambient`, in none where that is None.

    The state from before is back afterwards. `lines`: as for `kernel_log`.
    """
    run = RecordedRun()
    before = state(device)
    given = [item.detach().clone() if isinstance(item, torch.Tensor) else item for item in inputs]
    torch.manual_seed(0)
    torch.set_autocast_enabled(device, False)
    try:
        with nullcontext() if ambient is None else torch.autocast(device, dtype=ambient):
            entered = depth()
            try:
                with kernel_log(run.kernels, lines):
                    made = pytree.tree_leaves(call(*given))
                run.outputs = [leaf.detach() for leaf in made if isinstance(leaf, torch.Tensor)]
                run.others = [leaf for leaf in made if not isinstance(leaf, torch.Tensor)]
            except Exception as error:  # the program may raise anything, and that is what is compared
                run.error = error
            after = state(device)
            run.state = *after[:3], after[3] - entered
    finally:
        put_back(device, before)
    return run


def same_values(got: RecordedRun, want: RecordedRun) -> bool:
    """Return whether two runs with results of the same dtypes agree: in every bit where they ran the same kernels.

    Where they did not, up to a rounding of the lowest dtype that was computed in.
    """
    ran = [[(kernel.op, kernel.dtypes) for kernel in run.kernels] for run in (got, want)]
    used = [dtype for kernel in want.kernels for dtype in kernel.dtypes]
    for a, b in zip(got.outputs, want.outputs, strict=True):
        inexact = ran[0] != ran[1] and a.dtype.is_floating_point
        rounding = max(torch.finfo(dtype).eps for dtype in (*used, a.dtype)) if inexact else 0.0
        wide = torch.complex128 if a.is_complex() else torch.float64
        if a.shape != b.shape or not torch.allclose(a.cpu().to(wide), b.cpu().to(wide), rounding, rounding, True):
            return False
    return True


@contextmanager
def as_python() -> Iterator[None]:
    """Run functions that were scripted or traced before as the Python they were made of, where that is known."""
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


def facts(run: RecordedRun) -> object:
    """Return what a run gave, without the values of its tensors."""
    if run.error is not None:
        return type(run.error).__name__
    return [*(name_of(tensor.dtype) for tensor in run.outputs), *map(str, run.others)]


def refusal(error: Exception, says: str) -> tuple[str, str]:
    """Return what an error says and what it should; the same where it has the words that tell of a limitation."""
    said = " ".join(str(error).split())
    wanted = f"an error that says {says!r}" if says else "what eager mode gives"
    return wanted if says and says in said else f"{type(error).__name__}: {said[:300]}", wanted


def differences(
    program: Program,
    compiled: Program,
    inputs: Sequence[object],
    device: str,
    regions: Sequence[torch.dtype],
    says: str = "",
) -> Iterator[tuple[str, object, object]]:
    """Yield what is looked at, what the compiled program gave, and what the eager one did.

    Both run outside of regions, and in one of each dtype; the compiled one twice, since TorchScript optimizes after the
    first call. `says`: what a refusal says that counts as a clear message.
    """
    places = ["outside of regions", "in a region", "in another one"]
    for where, ambient in zip(places, (None, *regions), strict=True):
        with as_python():
            want = record(program, inputs, device, ambient)
        for turn in ("first", "second"):
            got = record(compiled, inputs, device, ambient)
            what = f"{turn} call {where}"
            if got.error is not None and want.error is None:
                yield (f"what {what} gives", *refusal(got.error, says))
                continue
            yield f"what the {what} gives", facts(got), facts(want)
            yield f"state after the {what}", got.state, want.state
            if facts(got) == facts(want):
                yield f"whether the {what} gives the same values", same_values(got, want), True
