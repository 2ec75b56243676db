"""What a right kernel gives: the same call on the CPU in float64, and how far from it a kernel may be.

A device under test takes no part in it, so a kernel that is wrong in every dtype differs from it. The bound on each
element is derived from the call: what half a rounding of every input moves it by, which grows with the length of its
sums and with its condition, and the rounding of the output itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.checks.call import CallPlan
from ampcheck.checks.comparisons import identical
from ampcheck.compilers import function
from ampcheck.devices.cpu import Cpu
from ampcheck.observe.recorder import is_composite, map_tensors, overload, tensors
from ampcheck.observe.torch_private import is_alias_of
from ampcheck.samples.tensors import build
from ampcheck.samples.torch_private import disable_current_modes
from ampcheck.spec.torch_dtypes import DTYPES, name_of

DRAWS = 3
"""How many times the inputs are moved, each by half a rounding up or down at random."""

FREEDOM = {"fp16": 1.25, "bf16": 1.25, "fp32": 384.0, "fp64": 384.0}
"""What the bound is multiplied by. In float32 and float64 runs the linear algebra, whose algorithms differ in more than
their roundings; the largest that PyTorch's CPU kernels need is 49 (pinverse), and 1.06 in a lower precision."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A call on the CPU in float64, on arguments that were rounded as autocast rounds them.

    `outputs`: its tensors. `moved`: for each, how far its elements move where every input is half a rounding off.
    `changed`: the places of the call's tensors that it writes to. `aliases`: pairs of the places of an output and of an
    argument that share memory. `layouts`: for each output, the strides that PyTorch's CPU and Meta kernels give it,
    without those of dimensions of one element. `dtypes`: those that they give it. Both are empty where none is known.
    `error`: what it raised, where it has no outputs.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    moved: tuple[torch.Tensor, ...] = ()
    changed: frozenset[int] = frozenset()
    aliases: frozenset[tuple[int, int]] = frozenset()
    layouts: tuple[frozenset[tuple[int, ...]], ...] = ()
    dtypes: tuple[frozenset[torch.dtype], ...] = ()
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
        _cache[key] = _computed(todo)
    return _cache[key]


def _computed(todo: CallPlan) -> Reference:
    for dtype in ("fp64", "fp32"):  # a few kernels know no float64
        try:
            outputs, inputs, before = _run(todo, dtype)
            moved = [torch.zeros(x.shape, dtype=torch.float64) for x in outputs]
            for draw in range(DRAWS):
                for place, x in enumerate(_run(todo, dtype, draw)[0]):
                    moved[place] = torch.maximum(moved[place], distance(x, outputs[place]))
        except Exception as raised:  # PyTorch may refuse what the device under test refuses
            error = raised
            continue
        cpu = _made_by_pytorch(todo, len(outputs), lambda x: x)
        meta = _made_by_pytorch(todo, len(outputs), lambda x: x.to("meta"))
        made = [same for same in (cpu, meta) if same]
        # The strides of a composite op, and what comes of a mixture of dtypes, PyTorch leaves to the backend.
        free = is_composite(todo.op.overload) or not meta  # LAPACK's layouts are the CPU's alone
        mixed = len({dtype for dtype in todo.expected.leaves if dtype in FREEDOM}) > 1
        places = enumerate(zip(inputs, before, strict=True))
        return Reference(
            tuple(outputs),
            tuple(moved),
            frozenset(place for place, (now, then) in places if not identical(now, then)),
            frozenset(
                (out, place)
                for out, output in enumerate(outputs)
                for place, tensor in enumerate(inputs)
                if is_alias_of(output, tensor)
            ),
            () if free else tuple(frozenset(map(layout, same)) for same in zip(outputs, *made, strict=True)),
            () if mixed else tuple(frozenset(x.dtype for x in same) for same in zip(*made, strict=True)),
        )
    return Reference(error=error)


def _run(
    todo: CallPlan, dtype: str, draw: int | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs of the call on the CPU, its tensors after the call, and what they were before it."""
    cpu = Cpu()
    call, args, kwargs = cast_call(todo, *build(todo.sample, todo.dtypes, cpu), dtype)
    if draw is not None:
        move = mover(narrowest(todo), draw)
        args, kwargs = map_tensors(args, move), {name: map_tensors(value, move) for name, value in kwargs.items()}
    inputs = list(tensors((args, kwargs)))
    before = [tensor.clone() for tensor in inputs]
    cpu.seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call under test gives the same ones
        return [dense(x) for x in tensors(call(*args, **kwargs))], inputs, before


def _as_pytorch(todo: CallPlan, move: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> list[torch.Tensor]:
    """Return the outputs of the call on the CPU in the dtypes of the kernel, for arguments that `move` takes.

    Raises whatever PyTorch raises.
    """
    cpu = Cpu()
    call, args, kwargs = cast_call(todo, *build(todo.sample, todo.dtypes, cpu))
    args, kwargs = map_tensors(args, move), {name: map_tensors(value, move) for name, value in kwargs.items()}
    cpu.seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call under test gives the same ones
        return list(tensors(call(*args, **kwargs)))


def _made_by_pytorch(todo: CallPlan, count: int, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Return the `count` outputs that PyTorch makes of arguments that `move` takes; none if it refuses the call."""
    try:
        made = _as_pytorch(todo, move)
    except Exception:  # the CPU may lack the dtype; a Meta kernel may be missing, or ask for values
        return []
    return made if len(made) == count else []


def layout(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions that have more than one element; none for empty or sparse tensors."""
    if tensor.layout != torch.strided or not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def placed(
    got: torch.Tensor, want: Reference, place: int, inputs: Sequence[torch.Tensor], device: str, what: str
) -> list[str]:
    """Compare an output with PyTorch's in its device, dtype and strides, and in the memory that it shares.

    Args:
        place: of the output among those of `want`.
        inputs: the call's tensors; the output is on the device of the first one of type `device`.
    """
    homes = [tensor.device for tensor in inputs if tensor.device.type == device]
    out = []
    if want.dtypes and got.dtype not in want.dtypes[place]:
        right = " or ".join(sorted(map(name_of, want.dtypes[place])))
        out.append(f"{what} is {name_of(got.dtype)}; expected {right}, as PyTorch's CPU and Meta kernels give")
    if homes and got.device not in (homes[0], torch.device("cpu")):
        out.append(f"{what} is on {got.device}; expected {homes[0]}, where the inputs are")
    if want.layouts and got.shape == want.outputs[place].shape and layout(got) not in want.layouts[place]:
        known = " or ".join(str(strides) for strides in sorted(want.layouts[place]))
        out.append(f"{what} has strides {layout(got)} in its dimensions of several elements; expected {known}")
    for number, tensor in enumerate(inputs):
        aliased = is_alias_of(got, tensor)
        if (place, number) not in want.aliases and aliased:
            out.append(f"{what} shares memory with argument {number}; expected memory of its own")
    return out


@disable_current_modes()  # a virtual device is entered with one
def raised_by_cpu(todo: CallPlan) -> Exception | None:
    """Return what the CPU raises on the dtypes that the kernel is to receive; None where it runs the call."""
    try:
        _as_pytorch(todo)
    except Exception as error:  # whatever it is, PyTorch itself does not run this call
        return error
    return None


def mover(dtype: str, draw: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that moves each element by half a rounding of a dtype, up or down at random."""
    generator = torch.Generator().manual_seed(draw)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
        return tensor * (1 + signs * torch.finfo(DTYPES[dtype]).eps / 2)

    return move


def narrowest(todo: CallPlan) -> str:
    """Return the least precise floating dtype that the kernel receives; "fp32" for none."""
    floating = [dtype for dtype in todo.expected.leaves if dtype in FREEDOM]
    return max(floating, key=lambda dtype: torch.finfo(DTYPES[dtype]).eps, default="fp32")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of any layout as a strided one."""
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance of each element; 0 where both are not finite."""
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    far = (a.to(wide) - b.to(wide)).abs()
    return torch.where(a.isfinite() & b.isfinite(), far, torch.zeros_like(far))


def bound(want: torch.Tensor, moved: torch.Tensor, kernel: str, output: torch.dtype, passes: int = 1) -> torch.Tensor:
    """Return how far each element of a right output of dtype `output` may be from the exact one; see the module.

    `passes`: how many kernels in a row it went through. What went through several may be off by the roundings of values
    about 1 where the exact result is 0.
    """
    real = output.to_real()
    eps = max(torch.finfo(real).eps, torch.finfo(DTYPES[kernel]).eps)
    size = torch.where(want.isfinite(), want.abs(), torch.zeros_like(want.abs())).to(torch.float64)
    largest = max(size.max().item() if size.numel() else 0.0, 1.0 if passes > 1 else 0.0)
    rounded = eps * (0.75 * size + 0.25 * largest)
    return passes * FREEDOM[kernel] * (rounded + moved) + torch.finfo(real).smallest_normal


def far(
    got: torch.Tensor, want: torch.Tensor, moved: torch.Tensor, kernel: str, what: str, passes: int = 1
) -> list[str]:
    """Compare an output on the CPU, called `what`, with the exact one in shape and value.

    Args:
        got: the output, of any dtype.
        want: the same of the reference, float64 or as `got` where that is not floating.
        moved: as in `Reference`.
        kernel: the least precise dtype that the kernel received.
        passes: how many kernels in a row the output went through.
    """
    got = dense(got)
    if got.shape != want.shape:
        return [f"{what} has shape {tuple(got.shape)}; expected {tuple(want.shape)}"]
    if not (got.is_floating_point() or got.is_complex()):
        wrong = got != want.to(got.dtype)
        return _at(wrong, got, want, what, "expected") if bool(wrong.any()) else []
    limit = bound(want, moved, kernel, got.dtype, passes)
    finite = want.isfinite()
    right = torch.where(finite, got.isfinite() & (distance(got, want) <= limit), _same_nonfinite(got, want))
    most = torch.finfo(got.dtype.to_real()).max
    if not (got.is_complex() or want.is_complex()):
        # Beyond the dtype's range, an infinity is right, and so is a value near the largest one.
        huge = got.to(want.dtype) * want.sign() >= most / 2
        right |= finite & (want.abs() > most - limit) & huge
    wrong = ~right
    if not bool(wrong.any()):
        return []
    worst = distance(got, want)[wrong].max().item()
    allowed = limit[wrong].max().item()
    rest = f"that is off by up to {worst:.3g}, and a right kernel in {kernel} by at most {allowed:.3g}; expected"
    return _at(wrong, got, want, what, rest)


def _same_nonfinite(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    if got.is_complex() or want.is_complex():
        return ~got.isfinite()
    return (got.isnan() & want.isnan()) | (got.to(want.dtype) == want)


def _at(wrong: torch.Tensor, got: torch.Tensor, want: torch.Tensor, what: str, expected: str) -> list[str]:
    place = tuple(int(number) for number in wrong.nonzero()[0])
    seen, right = got[place].item(), want[place].item()
    where = f" at {list(place)}" if place else ""
    return [f"{what} is {seen:.6g}{where}; {expected} {right:.6g}, the float64 result on the CPU"]


def cast_call(
    todo: CallPlan, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call that autocast is to make of a case's own, with the arguments cast as for its kernel.

    A spelling may not take the `dtype=` that autocast fills in; its inputs are cast to that dtype instead. All floating
    arguments are cast to `dtype` in the end, where it is given.
    """
    filled = todo.expected.dtype_kwarg
    if todo.sample.call != "aten":
        dtype = dtype or filled
    wanted = iter(todo.expected.leaves)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        out = tensor.to(DTYPES[next(wanted)])
        return out.to(DTYPES[dtype]) if dtype and out.is_floating_point() else out

    args = map_tensors(args, cast)
    kwargs = {name: map_tensors(value, cast) for name, value in kwargs.items()}
    call = function(todo.op, todo.sample)
    if todo.sample.call == "aten" and filled:
        call = overload(todo.expected.overload)
        kwargs["dtype"] = DTYPES[dtype or filled]
    return call, args, kwargs
