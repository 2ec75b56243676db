"""Compute what a right kernel gives: the same call on the CPU in float64, and how far from it a kernel may be.

A device under test takes no part in it, so a kernel that is wrong in every dtype differs from it.
`ampcheck.observe.closeness.bound` is how far from it a right kernel may be.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampcheck.checks.cases import CallPlan
from ampcheck.checks.comparisons import changed, layout
from ampcheck.devices.cpu import Cpu
from ampcheck.observe.closeness import dense, moved_by, mover
from ampcheck.observe.recorder import attempt, is_composite, tensors
from ampcheck.observe.torch_private import DisableTorchFunction, is_alias_of
from ampcheck.samples.torch_private import disable_current_modes

EXACT = ("fp64", "fp32")
"""The dtypes in which a call is exact, the better one first; a few kernels know no float64."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A call on the CPU in float64, on arguments that were rounded as autocast rounds them.

    `outputs`: its tensors. `moved`: see `ampcheck.observe.closeness.moved_by`. `changed`: the places of the call's
    tensors that it writes to. `aliases`: pairs of the places of an output and of an argument that share memory.
    `layouts`: for each output, the strides that PyTorch's CPU and Meta kernels give it, without those of dimensions of
    one element. `dtypes`: those that they give it. Both are empty where none is known. `dtype`: the exact one.
    `made_on`: "cpu" and "meta", where PyTorch's kernels for these took the call in the dtypes of the kernel. `error`:
    what it raised, where it has no outputs.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    moved: tuple[torch.Tensor, ...] = ()
    changed: frozenset[int] = frozenset()
    aliases: frozenset[tuple[int, int]] = frozenset()
    layouts: tuple[frozenset[tuple[int, ...]], ...] = ()
    dtypes: tuple[frozenset[torch.dtype], ...] = ()
    dtype: str = "fp64"
    made_on: tuple[str, ...] = ()
    error: Exception | None = None


_cache: dict[object, Reference] = {}
_CACHED = 20_000


def reference(todo: CallPlan) -> Reference:
    """Return the reference of a planned call, computed once for all devices of a run."""
    expected = todo.expected
    key = (todo.op.overload, todo.sample.name, todo.dtypes, expected.overload, expected.leaves, expected.dtype_kwarg)
    if key not in _cache:
        if len(_cache) >= _CACHED:
            _cache.clear()
        with disable_current_modes(), DisableTorchFunction():  # those of a device under test do not compute it
            _cache[key] = _computed(todo)
    return _cache[key]


def _computed(todo: CallPlan) -> Reference:
    for dtype in EXACT:
        try:
            outputs, inputs, before = _run(todo, dtype)
            moved = moved_by(lambda draw, dtype=dtype: _run(todo, dtype, draw)[0], outputs)  # type: ignore[misc]
        except Exception as raised:  # PyTorch may refuse what the device under test refuses
            error = raised
            continue
        made = {where: _made_by_pytorch(todo, len(outputs), where) for where in ("cpu", "meta")}
        made = {where: same for where, same in made.items() if same}
        # PyTorch leaves to the backend the strides of a composite op, and the dtypes of a mixture in which its own
        # kernels differ.
        free = is_composite(todo.op.overload) or "meta" not in made  # LAPACK's layouts are the CPU's alone
        mixed = len({kind for kind in todo.expected.leaves if kind in ("fp16", "bf16", "fp32", "fp64")}) > 1
        dtypes = tuple(frozenset(x.dtype for x in same) for same in zip(*made.values(), strict=True))
        open_dtypes = mixed and (len(made) < 2 or any(len(known) > 1 for known in dtypes))
        places = [(out, place) for out, _ in enumerate(outputs) for place, _ in enumerate(inputs)]
        return Reference(
            tuple(outputs),
            tuple(moved),
            frozenset(changed(inputs, before)),
            frozenset((out, place) for out, place in places if is_alias_of(outputs[out], inputs[place])),
            () if free else tuple(frozenset(map(layout, same)) for same in zip(outputs, *made.values(), strict=True)),
            () if open_dtypes else dtypes,
            dtype,
            tuple(made),
        )
    return Reference(error=error)


def _run(
    todo: CallPlan, dtype: str, draw: int | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs of the call on the CPU, its tensors after the call, and what they were before it."""
    cpu = Cpu()
    inputs = todo.cast(todo.inputs(cpu), dtype)
    if draw is not None:
        inputs = list(map(mover(todo.narrowest, draw), inputs))
    before = [tensor.clone() for tensor in inputs]
    return list(map(dense, _called(todo.reference(dtype), inputs))), inputs, before


def _called(call: Callable[..., object], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    Cpu().seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call under test gives the same ones
        return list(tensors(call(*inputs)))


def _made_by_pytorch(todo: CallPlan, count: int, where: str) -> list[torch.Tensor]:
    """Return the `count` outputs that PyTorch makes in the dtypes of the kernel; none if it refuses the call."""
    # The CPU may lack the dtype; a Meta kernel may be missing, or ask for values.
    made, _ = attempt(lambda: _called(todo.reference(), [x.to(where) for x in todo.cast(todo.inputs(Cpu()))]))
    return made if made and len(made) == count else []


@disable_current_modes()  # a virtual device is entered with one
def raised_by_cpu(todo: CallPlan) -> Exception | None:
    """Return what the CPU raises on the dtypes that the kernel is to receive; None where it runs the call."""
    return attempt(lambda: _called(todo.reference(), todo.cast(todo.inputs(Cpu()))))[1]
