"""Compare what a call did with what it should do, and say every difference in a sentence.

Each function returns the differences that it found; none means the behaviour is right. The functions know nothing of
cases, devices or the specification, so that every check shares them and every reproduction can print them.
"""

from collections.abc import Collection, Sequence

import torch

from ampcheck.errors import one_line
from ampcheck.observe.closeness import SHORTER, bound, dense, distance, identical, right
from ampcheck.observe.recorder import Observation
from ampcheck.observe.torch_private import is_alias_of
from ampcheck.spec.torch_dtypes import name_of


def received(given: Sequence[str], got: Sequence[str], wanted: Sequence[str], name: str, because: str) -> list[str]:
    """Compare the dtypes of the arguments that a kernel received. `given`: what they were before any cast."""
    return [
        f"argument {place} of {name} was given as {a} and reached the kernel as {b}; expected {c} ({because})"
        for place, (a, b, c) in enumerate(zip(given, got, wanted, strict=True))
        if b != c
    ]


def never_ran(overload: str, ran: Sequence[str], error: Exception | None, because: str) -> list[str]:
    """Return the difference of a call in which the kernel of an overload did not run."""
    if error is not None:
        return [f"aten::{overload} raised before its kernel ran: {one_line(error)} ({because})"]
    return [f"the kernel of aten::{overload} never ran; what ran was: {', '.join(ran) or 'nothing'} ({because})"]


def kernel(
    seen: Observation, overload: str, given: Sequence[str], wanted: Sequence[str], dtype: str | None, because: str
) -> list[str]:
    """Compare what the kernel of an overload received: the dtypes, its `dtype=` and the number of casts.

    Args:
        seen: the call, whose own tensors were followed.
        overload: whose kernel is to run.
        given: the dtype of each tensor of the call.
        wanted: the dtype in which each of these is to reach the kernel.
        dtype: the `dtype=` that autocast fills in, or None where it fills in none.
        because: the rule, for the sentences.
    """
    name, call = f"aten::{overload}", seen.of(overload)
    if call is None:
        return never_ran(overload, [k.overload for k in seen.kernels], seen.error, because)
    right = [leaf.got if leaf.source is None else wanted[leaf.source] for leaf in call.leaves]
    found = received([leaf.given for leaf in call.leaves], [leaf.got for leaf in call.leaves], right, name, because)
    found += [
        f"argument {place} of {name} was {before} before the call and is {after} after it; autocast casts copies"
        for place, before, after in seen.changed
    ]
    if dtype not in (None, call.dtype_kwarg):
        found.append(f"{name} ran with dtype={call.dtype_kwarg}; expected dtype={dtype} ({because})")
    expected = sum(a != b for a, b in zip(given, wanted, strict=True))
    made = sum(cast.source is not None for cast in seen.casts)
    # Otherwise the call's own tensors were changed on the way.
    followed = all(leaf.source is not None for leaf in call.leaves)
    if made != expected and followed and not found:
        found.append(f"autocast made {made} casts of the arguments of {name}; expected {expected} ({because})")
    return found


def untouched_dtype(seen: Observation, overload: str, given: str | None, because: str) -> list[str]:
    """Check that autocast changed no `dtype=` that the caller chose, and filled none in where it must not."""
    call = seen.of(overload)
    if call is None or call.dtype_kwarg == given:
        return []
    ran = f"aten::{overload} ran with dtype={call.dtype_kwarg}"
    return [f"{ran}; the caller's dtype={given} was to be left alone ({because})"]


def refused(error: Exception | None, overload: str, mention: str, because: str) -> list[str]:
    """Check that a banned overload raises a RuntimeError that names what to use instead."""
    expected = f"expected a RuntimeError that names {mention} ({because})"
    if error is None:
        return [f"aten::{overload} ran; {expected}"]
    if not isinstance(error, RuntimeError) or mention not in str(error):
        return [f"aten::{overload} raised {one_line(error)}; {expected}"]
    return []


def same_error(got: Exception | None, reference: Exception | None, name: str) -> list[str]:
    """Check that a call raises under autocast exactly where the reference raises."""
    if type(got) is type(reference):
        return []
    did = f"{name} succeeded" if got is None else f"{name} raised {one_line(got)}"
    expected = "succeeds" if reference is None else f"raised {one_line(reference)}"
    return [f"{did}; the same call on explicitly cast inputs {expected}"]


def output_dtypes(got: Sequence[torch.Tensor], wanted: Sequence[str], name: str) -> list[str]:
    """Check the dtype of every output."""
    if len(got) != len(wanted):
        return [f"{name} returned {len(got)} tensors; expected {len(wanted)}"]
    return [
        f"output {place} of {name} is {name_of(x.dtype)}; expected {dtype}"
        for place, (x, dtype) in enumerate(zip(got, wanted, strict=True))
        if name_of(x.dtype) != dtype
    ]


def bitwise(got: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], name: str) -> list[str]:
    """Check that every output equals the reference bit for bit."""
    if len(got) != len(reference):
        return [
            f"{name} returned {len(got)} tensors; the same call on explicitly cast inputs returned {len(reference)}"
        ]
    pairs = enumerate(zip(got, reference, strict=True))
    return [text for place, (a, b) in pairs for text in same_bits(a, b, f"output {place} of {name}")]


def same_bits(got: torch.Tensor, reference: torch.Tensor, what: str) -> list[str]:
    """Check that a tensor, called `what`, has the bits of the reference; not compared where dtypes differ."""
    if got.shape != reference.shape:
        return [f"{what} has shape {tuple(got.shape)}; expected {tuple(reference.shape)}"]
    if got.dtype != reference.dtype or identical(got, reference):
        return []
    difference = (got.to(torch.complex128) - reference.to(torch.complex128)).abs().max().item()
    told = f"differs from the same op on explicitly cast inputs by up to {difference:.3g}"
    return [f"{what} {told}; expected the same bits"]


def far(
    got: torch.Tensor,
    want: torch.Tensor,
    moved: torch.Tensor,
    kernel: torch.dtype,
    what: str,
    passes: int = 1,
    products: str = "",
) -> list[str]:
    """Compare an output on the CPU, called `what`, with the exact one in shape and value.

    Args:
        got: the output, of any dtype.
        want: the same of the reference, float64 or as `got` where that is not floating.
        moved: as in `ampcheck.observe.closeness.bound`, as the rest.
    """
    got = dense(got)
    if got.shape != want.shape:
        return [f"{what} has shape {tuple(got.shape)}; expected {tuple(want.shape)}"]
    numbers = got.is_floating_point() or got.is_complex()
    wrong = ~right(got, want, moved, kernel, passes, products) if numbers else got != want.to(got.dtype)
    if not bool(wrong.any()):
        return []
    told = "expected"
    if numbers:
        worst = distance(got, want)[wrong].max().item()
        allowed = bound(want, moved, kernel, got.dtype, passes, products)[wrong].max().item()
        kind = name_of(kernel)
        told = f"that is off by up to {worst:.3g}, and a right kernel in {kind} by at most {allowed:.3g}; expected"
    place = tuple(int(number) for number in wrong.nonzero()[0])
    where = f" at {list(place)}" if place else ""
    values = f"{got[place].item():.6g}{where}; {told} {want[place].item():.6g}"
    of = (got, want, moved, kernel, passes)
    allowing = [name for name in SHORTER if products == "ieee" and bool(right(*of, name).all())]
    told = "".join(
        f"; products in {name} are as far off, which no setting in force allows, as torch.set_float32_matmul_precision "
        f"or, for convolutions, torch.backends.fp32_precision = {name!r} would"
        for name in allowing[:1]
    )
    return [f"{what} is {values}, the float64 result on the CPU{told}"]


def pytorch_dtype(got: torch.Tensor, right: Collection[torch.dtype], what: str) -> list[str]:
    """Check that an output has a dtype that PyTorch's own kernels give it."""
    names = " or ".join(sorted(map(name_of, right)))
    told = f"{what} is {name_of(got.dtype)}; expected {names}, as PyTorch's CPU and Meta kernels give"
    return [] if got.dtype in right else [told]


def on_device(got: torch.Tensor, inputs: Sequence[torch.Tensor], device: str, what: str) -> list[str]:
    """Check that an output is on the device of the first input of a type, or on the CPU."""
    home = next((x.device for x in inputs if x.device.type == device), got.device)
    told = f"{what} is on {got.device}; expected {home}, where the inputs are"
    return [] if got.device in (home, torch.device("cpu")) else [told]


def layout(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions that have more than one element; none for empty or sparse tensors."""
    if tensor.layout != torch.strided or not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def strides(got: torch.Tensor, right: Collection[tuple[int, ...]], what: str) -> list[str]:
    """Check that an output has strides that PyTorch's own kernels give it."""
    known = " or ".join(str(one) for one in sorted(right))
    told = f"{what} has strides {layout(got)} in its dimensions of several elements; expected {known}"
    return [] if layout(got) in right else [told]


def same_tensor(
    x: torch.Tensor, y: torch.Tensor, values: tuple[torch.Tensor, torch.Tensor] | None, what: str
) -> list[str]:
    """Compare shape, strides and bits of a tensor with the reference. `values`: both on the CPU, if they have any."""
    if x.shape != y.shape:
        return [f"{what} has shape {tuple(x.shape)}; expected {tuple(y.shape)}"]
    out = strides(x, [layout(y)], what)
    return out + (same_bits(*values, what) if values else [])


def own_memory(got: torch.Tensor, inputs: Sequence[torch.Tensor], aliases: Collection[int], what: str) -> list[str]:
    """Check that an output shares memory with no input but those at the places `aliases`."""
    return [
        f"{what} shares memory with argument {place}; expected memory of its own"
        for place, tensor in enumerate(inputs)
        if place not in aliases and is_alias_of(got, tensor)
    ]


def changed(now: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> list[int]:
    """Return the places at which tensors hold other values than before."""
    return [place for place, (a, b) in enumerate(zip(now, before, strict=True)) if not identical(a, b)]


def wrong_anyway(found: Sequence[str], outside: Sequence[str]) -> list[str]:
    """Return differences from PyTorch's CPU; each says so where the call outside of autocast has some, too."""
    return [f"{text}; it is wrong without autocast, too" if outside else text for text in found]


def raises_anyway(error: Exception, name: str) -> str:
    """Return the difference of a call that raises the same in a region and outside."""
    return f"{name} raised {one_line(error)}; it raises that without autocast, too"


def zeroed(outputs: Sequence[torch.Tensor]) -> bool:
    """Write zeros to outputs; return whether the device can. One that cannot shares memory unseen."""
    try:
        for output in outputs:
            output.detach().zero_()
    except Exception:  # a device may lack the op, or refuse a view
        return False
    return True


NOTHING_RAN = "{name} ran no kernel"
NO_INPUTS = "the inputs of {name} cannot be made on {device}: {error}"
UNSTEADY = "{name} does not repeat: equal calls outside of autocast give different values"
OVERWRITTEN = "output {place} of {name} changed when the op was called again; each call has its own"
WRITTEN = "argument {place} of {name} holds other values after the call; it is only read"
SHARED = "argument {place} of {name} changes as the outputs are written to: an output shares memory with it"
"""Sentences of what the program of a case looks at in other lines than its check."""
