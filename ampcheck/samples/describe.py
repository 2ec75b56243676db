"""How sample inputs are written down: shapes, kinds of values and call paths, no tensors.

A description costs nothing to collect; tensors are made from it on the device when a case runs
(`ampcheck.samples.tensors`).

    "mm": op(
        at("2d", f(3, 4), f(4, 5)),
        at("empty", f(0, 4), f(4, 5)),
        also=("torch.mm", "torch.Tensor.mm"),
    ),

The first sample is the main one: it gets every dtype assignment. The other samples and the spellings get the two
that tell most. A spelling that takes its arguments differently is written with `via`. `method`, `function` and others
are `op` with the spellings that many ops have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ampcheck.samples.torch_private import pytree

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor argument.

    `shape`: its sizes. `dtype`: None for a floating argument whose dtype the case decides, else a name of
    `ampcheck.spec.casting` ("int64", "bool", "complex64", "fp32", …) that stays. `fill`: how values are made, a key of
    `ampcheck.samples.tensors.FILLS` ("normal", "unit" for the open interval (0, 1), "positive", "spd" for symmetric
    positive definite, …). `high`: exclusive bound of integer values. `device`: "own", or "cpu" for an argument that
    PyTorch requires on the CPU. `seed`: tells apart two arguments of the same shape. `strided`: whether it is made as a
    view that is not contiguous, of the same values.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    fill: str = "normal"
    high: int = 2
    device: str = "own"
    seed: int = 0
    strided: bool = False


def f(*shape: int, fill: str = "normal", seed: int = 0) -> TensorArg:
    """Return a floating argument whose dtype the case decides."""
    return TensorArg(shape, None, fill, seed=seed)


positive, unit, signed_unit, sign = (partial(f, fill=name) for name in ("positive", "unit", "signed_unit", "sign"))
regular, spd, distinct = (partial(f, fill=name) for name in ("regular", "spd", "distinct"))
log_probability = partial(f, fill="log_probability")
"""Floating arguments whose values are those of a fill, as in `positive(3, 4)`."""


def i(*shape: int, high: int = 2, fill: str = "integers", seed: int = 0, dtype: str = "int64") -> TensorArg:
    """Return an integer argument with values in [0, high)."""
    return TensorArg(shape, dtype, fill, high=high, seed=seed)


def b(*shape: int, seed: int = 0) -> TensorArg:
    """Return a bool argument."""
    return TensorArg(shape, "bool", "integers", high=2, seed=seed)


def fixed(dtype: str, *shape: int, fill: str = "normal", seed: int = 0, device: str = "own") -> TensorArg:
    """Return an argument of a dtype that no case changes, e.g. complex64 or a uint8 buffer."""
    return TensorArg(shape, dtype, fill, seed=seed, device=device)


@dataclass(frozen=True, slots=True)
class Sample:
    """One call.

    `call` is a path such as `torch.mm`, `torch.Tensor.mm`, `operator.matmul`, or `aten` for the overload itself.
    `not_on`: device types on which the path leads to another overload.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    call: str = "aten"
    not_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """The samples of one overload.

    `values`: how the outputs may be compared beside their dtypes. "exact": bitwise with hand-cast inputs and within a
    bound of the float64 result. "gauge": bitwise only, because the result is defined up to signs or order
    (eigenvectors, QR, pivots). "none": not at all (uninitialised or random outputs). `reason` says why it is not
    "exact". `passes`: how many kernels in a row it rounds as often as; more than 1 where a kernel may compute in its
    own dtype what does not depend on an input's rounding alone, such as a place in an image.
    """

    overload: str
    samples: tuple[Sample, ...]
    values: str = "exact"
    reason: str = ""
    passes: int = 1

    def sample(self, name: str) -> Sample:
        """Return the sample of that name. Raises KeyError with the names there are."""
        for sample in self.samples:
            if sample.name == name:
                return sample
        raise KeyError(f"{self.overload} has no sample {name!r}; it has {', '.join(s.name for s in self.samples)}")


def at(sample_name: str, *args: object, **kwargs: object) -> Sample:
    """Return a sample that calls the overload itself."""
    return Sample(sample_name, args, kwargs)


def via(path: str, *args: object, **kwargs: object) -> Sample:
    """Return a spelling of the call that takes its own arguments; named after where the path leads."""
    return Sample(_spelling_name(path), args, kwargs, path)


def not_on(device_types: tuple[str, ...], sample: Sample) -> Sample:
    """Return the sample, left out on device types where its path leads to another overload."""
    return replace(sample, not_on=device_types)


_PREFIXES = (
    ("torch.Tensor.", "method"),
    ("torch.nn.functional.", "functional"),
    ("torch.linalg.", "linalg"),
    ("torch.fft.", "fft"),
    ("torch.special.", "special"),
    ("torch._C._nn.", "private"),
    ("operator.", "operator"),
    ("torch.", "torch"),
)


def _spelling_name(path: str) -> str:
    for prefix, name in _PREFIXES:
        if path.startswith(prefix):
            return name
    raise ValueError(f"{path!r} is not a call path; it starts with one of {', '.join(p for p, _ in _PREFIXES)}")


def _op(
    overload: str,
    samples: Sequence[Sample],
    also: Sequence[str],
    values: str = "exact",
    reason: str = "",
    passes: int = 1,
) -> Op:
    """Return the samples of an overload; `also` are spellings that take the first sample's arguments as they are.

    Raises ValueError where two samples would share a name, none is given, or `values` lacks its reason.
    """
    if not samples:
        raise ValueError(f"{overload} has no sample")
    if values not in ("exact", "gauge", "none"):
        raise ValueError(f"{overload}: values is {values!r}; it is exact, gauge or none")
    if values != "exact" and not reason:
        raise ValueError(f"{overload}: values={values!r} needs a reason")
    main = samples[0]
    spelled = tuple(Sample(_spelling_name(path), main.args, main.kwargs, path) for path in also)
    named = _numbered((*samples, *spelled))
    return Op(overload, named, values, reason, passes)


Samples = Callable[[str], Op]
"""What makes the samples of an overload, given its name."""


def _spelled(*namespaces: str) -> Callable[..., Samples]:
    """Return what makes samples that functions of an overload's name take as they are, in some namespaces."""

    def spelled(*samples: Sample, also: tuple[str, ...] = (), **options: Any) -> Samples:
        def make(overload: str) -> Op:
            name = overload.partition(".")[0]
            own = (f"{space}.{name.removeprefix(space.rpartition('.')[2] + '_')}" for space in namespaces)
            return _op(overload, samples, (*own, *also), **options)

        return make

    return spelled


op = _spelled()
"""Describe an overload by its samples, the main one first.

Args:
    samples: see `at` and `via`.
    also: spellings that take the first sample's arguments as they are.
    values, reason, passes: as in `Op`.
"""
method, function = _spelled("torch", "torch.Tensor"), _spelled("torch")
functions, functional = _spelled("torch", "torch.nn.functional"), _spelled("torch.nn.functional")
private, linalg, fft = _spelled("torch._C._nn"), _spelled("torch.linalg"), _spelled("torch.fft")
"""Describe an overload that functions of its name, or methods, take as they are."""


def _numbered(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Return samples with a number behind a spelling name that occurs again (`torch`, `torch2`)."""
    seen: dict[str, int] = {}
    out = []
    for sample in samples:
        seen[sample.name] = count = seen.get(sample.name, 0) + 1
        if count > 1 and sample.call == "aten":
            raise ValueError(f"two samples are named {sample.name!r}")
        name = sample.name if count == 1 else f"{sample.name}{count}"
        out.append(replace(sample, name=name))
    return tuple(out)


FORMS = ("large", "small", "positive", "strided")
"""What an op's main sample is run with besides its own values: normal ones made larger, smaller or positive (which sums
without cancelling), positive ones made larger, and its floating tensors as views that are not contiguous."""


def in_form(sample: Sample, form: str) -> Sample | None:
    """Return a sample in one of `FORMS`; None where none of its arguments changes."""

    def changed(arg: TensorArg) -> TensorArg:
        if form == "strided":
            return replace(arg, strided=arg.dtype is None and bool(arg.shape))
        if form == "large" and arg.dtype is None and arg.fill == "positive":
            return replace(arg, fill="large_positive")
        return replace(arg, fill=form) if arg.dtype is None and arg.fill == "normal" else arg

    args = map_leaves(sample.args, changed)
    kwargs = {name: map_leaves(value, changed) for name, value in sample.kwargs.items()}
    return None if (args, kwargs) == (sample.args, sample.kwargs) else replace(sample, args=args, kwargs=kwargs)


def leaves(sample: Sample) -> Iterator[TensorArg]:
    """Yield the tensor arguments of a sample in order, lists and keyword arguments included."""
    for value in pytree.tree_leaves((sample.args, dict(sample.kwargs))):
        if isinstance(value, TensorArg):
            yield value


def map_leaves(value: T, make: Callable[[TensorArg], Any]) -> T:
    """Return the same nested arguments with `make(description)` for each description, in the order of `leaves`."""
    mapped: T = pytree.tree_map_only(TensorArg, make, value)
    return mapped
